// KernelTables: measured kernel times of some devices, from the file that
// tools/pack_kernel_tables.py writes (kernel_tables.proto).
//
//   auto tables = LoadKernelTables(path, "h100-sxm");
//   const KernelGrid* gemm = tables->Find("gemm", "bfloat16");
//   gemm->At({n, k, m})
//
// Only the asked device is unpacked: 2 to 10 ms. A file that is no such file, is damaged or wants
// too much memory is an error that says where; nothing in it is believed unchecked.

#ifndef KVBLOCKS_SIM_COST_KERNEL_TABLES_H_
#define KVBLOCKS_SIM_COST_KERNEL_TABLES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblocks::sim {

// Binary logarithms in whole numbers, so that what is interpolated between measured times has the
// same bits on every machine; the library's log and exp do not.
//
// Cost: about 60 ns each. For making tables, not for every step.

// A logarithm counts in steps of 2^-kLogBits of an octave.
inline constexpr int kLogBits = 20;
using FixedLog = int64_t;

// log2(value), rounded down. REQUIRES: value >= 1.
FixedLog Log2(uint64_t value);

// 2^log, rounded to nearest; 0 for what is far below 1, and at most 2^62. Exp2(Log2(v)) is within
// 1e-6 of v.
int64_t Exp2(FixedLog log);

// The line through (x0, y0) and (x1, y1) at x, which may lie outside. REQUIRES: x0 < x1.
FixedLog OnLine(FixedLog x0, FixedLog y0, FixedLog x1, FixedLog y1, FixedLog x);

// KernelGrid: measured times of one kernel over one to three counts, and what lies between them.
//
// Linear in the logarithms of the counts and of the time. Below the first value of an axis the
// first value holds, because kernels have a floor; above the last one the line of the last two goes
// on, and says so. Rows may be shorter than the axis: what did not fit into memory was not
// measured.
//
// Cost of At: about 0.2 us per row that it touches (one, two or four).
class KernelGrid {
 public:
  static constexpr int32_t kHole = std::numeric_limits<int32_t>::min();
  // Stored logarithms count in these steps of an octave.
  static constexpr int kStoredLogBits = 11;

  // At() goes no further, about 17 s, so that sums over layers stay small.
  static constexpr int64_t kMaxTime = int64_t{1} << 44;

  // Ascending axes of values >= 1; times as stored, kHole where there is none, the last axis
  // running fastest. REQUIRES: as many times as the axes have corners, at least one of them no
  // hole.
  KernelGrid(std::vector<std::vector<int64_t>> axes, std::vector<int32_t> log_times);

  size_t num_axes() const { return axes_.size(); }
  // Of axis `i`.
  int64_t last(size_t i) const { return axes_[i].values.back(); }

  // Picoseconds, from 1 to kMaxTime. `outside` is set, and never cleared, where a count lies above
  // what was measured. REQUIRES: as many counts as axes, each >= 1.
  int64_t At(absl::Span<const int64_t> counts, bool* outside = nullptr) const;

 private:
  struct Axis {
    std::vector<int64_t> values;
    std::vector<FixedLog> logs;
  };

  std::optional<FixedLog> LogAt(size_t axis, size_t offset, absl::Span<const FixedLog> counts,
                                bool* outside) const;

  std::vector<Axis> axes_;
  std::vector<size_t> strides_;
  std::vector<int32_t> log_times_;
};

class KernelTables {
 public:
  using Grids = std::map<std::string, KernelGrid, std::less<>>;  // by key

  const std::string& device() const { return device_; }
  const std::string& attribution() const { return attribution_; }

  // Null if there is none.
  const KernelGrid* Find(std::string_view operation, std::string_view key) const;
  // All of one operation; empty if there are none.
  const Grids& GridsOf(std::string_view operation) const;

 private:
  friend absl::StatusOr<KernelTables> ParseKernelTables(std::string_view data,
                                                        const std::string& device,
                                                        const std::string& source);

  std::string device_, attribution_;
  std::map<std::string, Grids, std::less<>> operations_;
};

// `source` names the data in messages. NotFound, with the names there are, if the device is not in
// it; InvalidArgument for anything else that is wrong.
absl::StatusOr<KernelTables> ParseKernelTables(std::string_view data, const std::string& device,
                                               const std::string& source);
absl::StatusOr<KernelTables> LoadKernelTables(const std::string& path, const std::string& device);

// Where the file lies that comes with this program: in the runfiles of a Bazel build, beside the
// program, or in ../share/kvblocks. Empty if it is in none of these places.
std::string FindKernelTablesFile();

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_KERNEL_TABLES_H_
