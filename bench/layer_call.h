// What a layer adds to its operations.

#ifndef KVBLOCKS_BENCH_LAYER_CALL_H_
#define KVBLOCKS_BENCH_LAYER_CALL_H_

namespace kvblocks::bench {

// Times AttentionLayer::Forward and the same operations called directly, over one request with one
// head of eight values, so that little else is to do, in turns; prints a row per kind of step, in
// nanoseconds of the calling thread. False if a call fails.
bool RunLayerCalls(int rounds, bool processor_time);

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_LAYER_CALL_H_
