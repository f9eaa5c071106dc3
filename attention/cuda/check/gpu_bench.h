// GpuBench: times operations on the GPU beside what its memory and matrix units give in the same
// run.
//
// An operation is captured into a graph `copies` times, each on its own data, so that launches
// leave no gaps and data larger than the second-level cache comes from memory; a round is one
// replay, timed by events, and the median of the rounds counts. Read and copy bandwidth, the cost
// of an empty launch and the rate of mma.sync are measured first, in the same way. Prints a row per
// case: microseconds, TB/s and TFLOP/s of the least work that the operation could do, and their
// percentages of what was measured: bandwidth of the read one and, where as much is written as
// read, of the copy one.

#ifndef KVBLOCKS_ATTENTION_CUDA_CHECK_GPU_BENCH_H_
#define KVBLOCKS_ATTENTION_CUDA_CHECK_GPU_BENCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attention/cuda/check/device_tensor.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention::cuda {

struct BenchCase {
  std::string name;
  double bytes = 0, flops = 0;  // of one operation
  bool moves = false;           // writes about as many of the bytes as it reads
  int copies = 1;
};

struct GpuBenchOptions {
  std::string filter;  // only cases whose names contain it
  int rounds = 25;     // whose times count
  // Of rounds before those, so that times are those of a GPU that has been busy: what multiplies
  // much gets slower when the power cap takes hold, within the first tenth of a second. 0: a pause
  // instead, and times are those of a burst.
  double warm_ms = 50;
  // Rate of large matrix products as a library has it, measured likewise; 0: this program's own
  // loop.
  double matrix_tflops = 0;
};

class GpuBench {
 public:
  explicit GpuBench(GpuBenchOptions options);
  ~GpuBench();

  void MeasurePeaks();
  bool wants(const std::string& name) {
    const bool wanted = name.find(options_.filter) != std::string::npos;
    num_wanted_ += wanted ? 1 : 0;
    return wanted;
  }
  int num_wanted() const { return num_wanted_; }
  // Prints the row of a case that is wanted: make(copy) makes a copy of its data, and
  // enqueue(context, data) enqueues the operation on it. Failures are printed and counted.
  template <typename Make, typename Enqueue>
  void Run(const BenchCase& bench_case, const Make& make, const Enqueue& enqueue) {
    if (!wants(bench_case.name)) return;
    std::vector<decltype(make(0))> data;
    for (int copy = 0; copy < bench_case.copies; ++copy) data.push_back(make(copy));
    PrintRow(bench_case, MedianMs([&](const ExecContext& context) {
               absl::Status status;
               for (auto& copy : data) status.Update(enqueue(context, copy));
               return status;
             }));
  }
  // Milliseconds of one replay of what `enqueue` does; negative if it fails.
  double MedianMs(const std::function<absl::Status(const ExecContext&)>& enqueue);

  const ExecContext& context() const { return context_; }
  int failures() const { return failures_; }
  double read_tbs() const { return read_tbs_; }

 private:
  void PrintRow(const BenchCase& bench_case, double ms);

  GpuBenchOptions options_;
  double read_tbs_ = 0, copy_tbs_ = 0;
  ExecContext context_;
  Workspace workspace_;
  DeviceErrorFlags flags_;
  DeviceTensor workspace_memory_, flags_memory_;
  int failures_ = 0, num_wanted_ = 0;
};

double Median(std::vector<double> values);
// Copies of data that make up several times the second-level cache, at most `most`.
int CopiesFor(double bytes, int most = 40);

// The cases of one family of operations.
void BenchDecode(GpuBench& bench);
void BenchPrefill(GpuBench& bench);
void BenchCascade(GpuBench& bench);
void BenchMla(GpuBench& bench);
void BenchIndex(GpuBench& bench);
void BenchCacheWrites(GpuBench& bench);
void BenchStates(GpuBench& bench);
void BenchBlocksAndLists(GpuBench& bench);
void BenchStep(GpuBench& bench);
void BenchLayer(GpuBench& bench);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CHECK_GPU_BENCH_H_
