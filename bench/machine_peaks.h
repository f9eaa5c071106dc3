// MachinePeaks: what memory and arithmetic units of this machine give to plain loops, to hold
// kernels against. Measured on all threads of a pool, with the best instruction set the machine has.

#ifndef KVBLOCKS_BENCH_MACHINE_PEAKS_H_
#define KVBLOCKS_BENCH_MACHINE_PEAKS_H_

#include <cstdint>
#include <vector>

#include "attention/cpu/thread_pool.h"

namespace kvblocks::bench {

// Seconds since some start: by the clock on the wall, or, for machines that are busy with other
// things, processor time of this process shared by `threads` threads. The latter leaves out what
// threads wait for each other.
double Seconds(bool processor_time, int threads);

class MachinePeaks {
 public:
  // Reads are from a buffer of `buffer_bytes`, which should be many times the last cache.
  MachinePeaks(attention::ThreadPool* threads, bool processor_time, int64_t buffer_bytes);

  // Bytes per second of summing up the buffer once.
  double MeasureReads();
  // Float operations per second of multiplying [6, 64] by [64, 4 vectors] matrices that stay in the
  // first-level cache, a multiply-add counted as two.
  double MeasureMatrixFlops();

 private:
  attention::ThreadPool* threads_;
  bool processor_time_;
  std::vector<float> buffer_;
  std::vector<double> sums_;
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_MACHINE_PEAKS_H_
