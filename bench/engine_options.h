// EngineOptions: what a benchmark chooses about the engine it runs on.

#ifndef KVBLOCKS_BENCH_ENGINE_OPTIONS_H_
#define KVBLOCKS_BENCH_ENGINE_OPTIONS_H_

#include <cstdint>

namespace kvblocks::bench {

inline constexpr int64_t kBlockSize = 16;

struct EngineOptions {
  int64_t num_blocks = 100'000;
  int64_t block_size = kBlockSize;
  bool enable_caching = true;
  int64_t window = 0;  // 0: full attention
  int64_t lookup_history_blocks = 0;
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_ENGINE_OPTIONS_H_
