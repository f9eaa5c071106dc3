// MachinePeaks: what memory and arithmetic units of this machine give to plain loops, to hold
// kernels against. Measured on all threads of a pool, with the best instruction set the machine
// has.

#ifndef KVBLOCKS_BENCH_MACHINE_PEAKS_H_
#define KVBLOCKS_BENCH_MACHINE_PEAKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvblocks/attention_cpu.h"

namespace kvblocks::bench {

// Seconds since some start: by the clock on the wall, or, for machines that are busy with other
// things, processor time of this process shared by `threads` threads. The latter leaves out what
// threads wait for each other.
double Seconds(bool processor_time, int threads);

// Memory of floats that begins at a huge page and asks for such: what large caches should do, and
// what keeps look-ups of addresses out of the figures.
class HugeBuffer {
 public:
  explicit HugeBuffer(int64_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  HugeBuffer& operator=(HugeBuffer&&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

class MachinePeaks {
 public:
  // `smoke` measures next to nothing, to see that it runs. Else reads are from a buffer of 256 MiB,
  // many times the last cache.
  MachinePeaks(attention::ThreadPool* threads, bool processor_time, bool smoke);

  // Bytes per second of summing up the buffer once.
  double MeasureReads();
  // Float operations per second of multiplying [6, 64] by [64, 4 vectors] matrices that stay in the
  // first-level cache, a multiply-add counted as two.
  double MeasureMatrixFlops();

 private:
  attention::ThreadPool* threads_;
  bool processor_time_, smoke_;
  int64_t floats_;
  HugeBuffer buffer_;
  std::vector<double> sums_;
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_MACHINE_PEAKS_H_
