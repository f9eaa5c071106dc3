// Attention on CPUs: threads, operations, the float64 reference.

#ifndef KVBLOCKS_ATTENTION_CPU_H_
#define KVBLOCKS_ATTENTION_CPU_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "kvblocks/attention_ops.h"

// ThreadPool: runs independent work items of an operation on a fixed set of threads.
//
// An atomic counter hands out items, so any thread may run any item. Items must not share results;
// then the outcome does not depend on the number of threads. The calling thread takes
// part. Thread-safe: concurrent calls wait for each other. No allocation per call.

namespace kvblocks::attention {

class ThreadPool {
 public:
  // `num_threads` >= 1 in all, the caller included; 0 means one per processor.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();

  int num_threads() const { return num_threads_; }

  // Calls work(item, thread) once for each item in [0, num_items), thread in [0, num_threads()),
  // and returns when all are done. `work` must not throw or call ParallelFor.
  void ParallelFor(int64_t num_items, absl::FunctionRef<void(int64_t item, int thread)> work);

 private:
  struct State;

  int num_threads_;
  std::unique_ptr<State> state_;
};

// On `pool`, or one item after another on the calling thread if it is null.
void ParallelFor(ThreadPool* pool, int64_t num_items,
                 absl::FunctionRef<void(int64_t item, int thread)> work);
inline int NumThreads(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->num_threads(); }

// What both backends share. They refuse contexts of other devices, whose memory the host could not
// read. Rows of the cache's own type are copied bit by bit; others go through float64 and are
// rounded once. Tokens are spread over the context's threads; results do not depend on them. A
// conversion uses one row of scratch per thread; copies allocate nothing.
//
// SelectHkvd ranks a NaN among the differences as +infinity and sets kNonFiniteInput; a prefix that
// is selected at some ratio is selected at every larger one. Cost: O(n * Hkv * D), and O(n)
// expected for the selection plus its sort. RotateKeys copies columns past rotary_dim, and rows
// that are rotated by nothing; in place every call rotates once more.

// CPU: attention with SIMD instructions and threads, the backend that users run.
//
// Every op takes any dense or latent layout, f32, f16 and bf16 and the 8-bit cache types, any head
// sizes, and all features of AttnParams. Results are within float32 accuracy (relative 1e-6; see
// the tests), rounded to the output type through float32. They are the same bit for bit whatever
// the threads, the other requests of the batch and the ids of the blocks; a decode equals the same
// row of a prefill, an explicit mask the rule it spells out. They may differ between instruction
// sets.
//
// Only pieces change numbers, within the accuracy: a SplitPolicy, a plan or the prefix of a Cascade
// cut the keys, Auto without a plan does not. Float64 tensors go to CPU_REFERENCE.
//
// Cost: keys and values are read once per request, and once per 32 query tokens of a prefill at
// groups of 4. A thread keeps scratch of the order of a megabyte between calls.

const AttentionOps& Cpu();

// CPU_REFERENCE: attention in float64, rounded once; what every other backend is measured against.
//
// Inputs are converted exactly, 8-bit caches are code * scale. Per (token, head): the exact maximum
// of the scores, then exponentials and the value sum in key order; one rounding to the output type,
// to nearest even. Any head size, group, block size and cache layout. Results depend neither on the
// threads nor on the batch. Cost: about a nanosecond per multiplication, and memory for the scores
// of up to 64 rows per thread.

const AttentionOps& CpuReference();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_H_
