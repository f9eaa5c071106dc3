#include "sim/cost/kernel_tables.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/cost/kernel_tables.pb.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::cost::v1;

constexpr int kMantissaBits = 62;

// Rounded down, digit by digit.
uint64_t SquareRoot(Wide value) {
  Wide root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const Wide candidate = root | (Wide{1} << bit);
    if (candidate * candidate <= value) root = candidate;
  }
  return static_cast<uint64_t>(root);
}

// 2^(2^-1), 2^(2^-2), ... with 62 bits behind the point.
std::array<uint64_t, kLogBits> MakeRoots() {
  std::array<uint64_t, kLogBits> roots;
  Wide value = Wide{2} << kMantissaBits;
  for (uint64_t& root : roots) {
    root = SquareRoot(value << kMantissaBits);
    value = root;
  }
  return roots;
}

struct LogPoint {
  FixedLog x, y;
};

constexpr std::string_view kKernelTablesFormat = "kvblocks kernel tables 1";
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int64_t kMaxInflatedBytes = int64_t{64} << 20;
constexpr int kMaxAxes = 3;
constexpr size_t kMaxCorners = size_t{1} << 22;
constexpr int64_t kMaxAxisValue = int64_t{1} << 50;
// The logarithm of the longest time that a grid may hold.
constexpr int64_t kMaxLogTime = int64_t{44} << KernelGrid::kStoredLogBits;

absl::Status Damaged(absl::string_view where, absl::string_view what) {
  return InvalidArgument(where, ": ", what);
}

absl::StatusOr<std::string> Inflate(const std::string& packed, int64_t size,
                                    const std::string& where) {
  if (size < 1 || size > kMaxInflatedBytes) {
    return Damaged(
        where, absl::StrCat("operations_bytes is ", size, ", expected 1 to ", kMaxInflatedBytes));
  }
  std::string out(static_cast<size_t>(size), '\0');
  uLongf length = static_cast<uLongf>(size);
  const int result =
      uncompress(reinterpret_cast<Bytef*>(out.data()), &length,
                 reinterpret_cast<const Bytef*>(packed.data()), static_cast<uLong>(packed.size()));
  if (result != Z_OK || length != static_cast<uLongf>(size)) {
    return Damaged(where, "the deflated operations are damaged or shorter than they say");
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> AxisOf(const pb::KernelGrid& grid, int index,
                                            const std::string& where) {
  std::vector<int64_t> values;
  uint64_t value = 0;
  for (const uint64_t step : grid.axis(index).step()) {
    if (step < 1 || step > static_cast<uint64_t>(kMaxAxisValue) - value) {
      return Damaged(where, absl::StrCat("axis ", index, " goes from ", value, " by ", step,
                                         ", expected ascending values up to ", kMaxAxisValue));
    }
    value += step;
    values.push_back(static_cast<int64_t>(value));
  }
  if (values.empty()) return Damaged(where, absl::StrCat("axis ", index, " is empty"));
  return values;
}

absl::StatusOr<KernelGrid> MakeGrid(const pb::KernelGrid& grid, const std::string& where) {
  if (grid.axis_size() < 1 || grid.axis_size() > kMaxAxes) {
    return Damaged(where, absl::StrCat(grid.axis_size(), " axes, expected 1 to ", kMaxAxes));
  }
  std::vector<std::vector<int64_t>> axes;
  size_t num_corners = 1;
  for (int i = 0; i < grid.axis_size(); ++i) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto axis, AxisOf(grid, i, where));
    if (axis.size() > kMaxCorners / num_corners) {
      return Damaged(where, absl::StrCat("more than ", kMaxCorners, " corners"));
    }
    num_corners *= axis.size();
    axes.push_back(std::move(axis));
  }
  const auto num_times = static_cast<size_t>(grid.log_time_size());
  const auto num_holes = static_cast<size_t>(grid.hole_size());
  if (num_times == 0 || num_times + num_holes != num_corners) {
    return Damaged(where, absl::StrCat(num_times, " times and ", num_holes, " holes for ",
                                       num_corners, " corners"));
  }
  std::vector<int32_t> times(num_corners, 0);
  uint64_t position = 0;
  for (int i = 0; i < grid.hole_size(); ++i) {
    position += grid.hole(i);
    if (position >= num_corners || (i > 0 && grid.hole(i) == 0)) {
      return Damaged(where, absl::StrCat("hole ", i, " is at corner ", position,
                                         ", expected ascending ones below ", num_corners));
    }
    times[position] = KernelGrid::kHole;
  }
  const size_t row_size = axes.back().size();
  int64_t row_start = 0, before = 0;
  bool is_first = true;
  int next = 0;
  for (size_t i = 0; i < num_corners; ++i) {
    if (i % row_size == 0) is_first = true;
    if (times[i] == KernelGrid::kHole) continue;
    const int64_t log = (is_first ? row_start : before) + grid.log_time(next++);
    if (log < 0 || log > kMaxLogTime) {
      return Damaged(where, absl::StrCat("time ", next - 1, " has the logarithm ", log,
                                         ", expected 0 to ", kMaxLogTime));
    }
    if (is_first) row_start = log;
    is_first = false;
    before = log;
    times[i] = static_cast<int32_t>(log);
  }
  return KernelGrid(std::move(axes), std::move(times));
}

}  // namespace

FixedLog Log2(uint64_t value) {
  const int octave = static_cast<int>(std::bit_width(value)) - 1;
  // 1 <= mantissa < 2, 31 bits behind the point; squaring it doubles what is left of the logarithm.
  uint64_t mantissa = octave >= 31 ? value >> (octave - 31) : value << (31 - octave);
  FixedLog log = octave;
  for (int i = 0; i < kLogBits; ++i) {
    mantissa = mantissa * mantissa >> 31;
    const bool doubled = mantissa >= uint64_t{1} << 32;
    log = log * 2 + (doubled ? 1 : 0);
    if (doubled) mantissa >>= 1;
  }
  return log;
}

int64_t Exp2(FixedLog log) {
  static const std::array<uint64_t, kLogBits> kRoots = MakeRoots();
  const int64_t octave = log >> kLogBits;
  if (octave >= kMantissaBits) return int64_t{1} << kMantissaBits;
  if (octave < -1) return 0;
  const uint64_t fraction = static_cast<uint64_t>(log) & ((uint64_t{1} << kLogBits) - 1);
  uint64_t mantissa = uint64_t{1} << kMantissaBits;
  for (int i = 0; i < kLogBits; ++i) {
    if ((fraction >> (kLogBits - 1 - i) & 1) == 0) continue;
    mantissa =
        static_cast<uint64_t>(Wide{mantissa} * kRoots[static_cast<size_t>(i)] >> kMantissaBits);
  }
  const int shift = kMantissaBits - static_cast<int>(octave);
  return static_cast<int64_t>(((mantissa >> (shift - 1)) + 1) >> 1);
}

FixedLog OnLine(FixedLog x0, FixedLog y0, FixedLog x1, FixedLog y1, FixedLog x) {
  return y0 + static_cast<FixedLog>(Wide{y1 - y0} * (x - x0) / (x1 - x0));
}

KernelGrid::KernelGrid(std::vector<std::vector<int64_t>> axes, std::vector<int32_t> log_times)
    : log_times_(std::move(log_times)) {
  for (std::vector<int64_t>& values : axes) {
    Axis axis{.values = std::move(values), .logs = {}};
    for (const int64_t value : axis.values) axis.logs.push_back(Log2(static_cast<uint64_t>(value)));
    axes_.push_back(std::move(axis));
  }
  strides_.assign(axes_.size(), 1);
  for (size_t i = axes_.size() - 1; i > 0; --i) {
    strides_[i - 1] = strides_[i] * axes_[i].values.size();
  }
}

// Empty if the rows below hold nothing.
std::optional<FixedLog> KernelGrid::LogAt(size_t axis, size_t offset,
                                          absl::Span<const FixedLog> counts, bool* outside) const {
  const std::vector<FixedLog>& logs = axes_[axis].logs;
  const FixedLog x = counts[axis];
  const auto at = [&](size_t i) -> std::optional<FixedLog> {
    const size_t corner = offset + i * strides_[axis];
    if (axis + 1 < axes_.size()) return LogAt(axis + 1, corner, counts, outside);
    if (log_times_[corner] == kHole) return std::nullopt;
    return FixedLog{log_times_[corner]} << (kLogBits - kStoredLogBits);
  };
  // The nearest measured values on both sides, and the one before the lower one.
  const size_t above =
      static_cast<size_t>(std::upper_bound(logs.begin(), logs.end(), x) - logs.begin());
  std::optional<LogPoint> low, high, lower;
  size_t i = above;
  while (i > 0 && !low) {
    --i;
    if (const auto y = at(i)) low = LogPoint{logs[i], *y};
  }
  if (low && low->x == x) return low->y;
  for (size_t j = above; j < logs.size() && !high; ++j) {
    if (const auto y = at(j)) high = LogPoint{logs[j], *y};
  }
  if (low && high) return OnLine(low->x, low->y, high->x, high->y, x);
  if (high) return high->y;
  if (!low) return std::nullopt;
  *outside = true;
  while (i > 0 && !lower) {
    --i;
    if (const auto y = at(i)) lower = LogPoint{logs[i], *y};
  }
  return lower ? OnLine(lower->x, lower->y, low->x, low->y, x) : low->y;
}

int64_t KernelGrid::At(absl::Span<const int64_t> counts, bool* outside) const {
  absl::InlinedVector<FixedLog, 3> logs;
  for (const int64_t count : counts) logs.push_back(Log2(static_cast<uint64_t>(count)));
  bool is_outside = false;
  const std::optional<FixedLog> log = LogAt(0, 0, logs, &is_outside);
  if (outside != nullptr) *outside |= is_outside;
  return std::clamp<int64_t>(Exp2(log.value_or(0)), 1, kMaxTime);
}

const KernelTables::Grids& KernelTables::GridsOf(std::string_view operation) const {
  static const Grids* const kNone = new Grids;
  const auto it = operations_.find(operation);
  return it == operations_.end() ? *kNone : it->second;
}

const KernelGrid* KernelTables::Find(std::string_view operation, std::string_view key) const {
  const Grids& grids = GridsOf(operation);
  const auto it = grids.find(key);
  return it == grids.end() ? nullptr : &it->second;
}

absl::StatusOr<KernelTables> ParseKernelTables(std::string_view data, const std::string& device,
                                               const std::string& source) {
  pb::KernelTables file;
  if (data.size() > kMaxFileBytes) {
    return Damaged(source, absl::StrCat(data.size(), " bytes, expected at most ", kMaxFileBytes));
  }
  if (!file.ParseFromArray(data.data(), static_cast<int>(data.size())) ||
      file.format() != kKernelTablesFormat) {
    return Damaged(source, "not a file of kernel times, as tools/pack_kernel_tables.py writes it");
  }
  std::vector<std::string> names;
  const pb::KernelDevice* found = nullptr;
  for (const auto& candidate : file.device()) {
    if (candidate.name() == device) found = &candidate;
    names.push_back(candidate.name());
  }
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat(source, ": no kernel times of ", device,
                                            "; there are those of ", absl::StrJoin(names, ", ")));
  }
  const std::string where = absl::StrCat(source, ": ", device);
  KVBLOCKS_ASSIGN_OR_RETURN(auto inflated,
                            Inflate(found->operations_zlib(), found->operations_bytes(), where));
  pb::KernelOperations operations;
  if (!operations.ParseFromString(inflated)) return Damaged(where, "its operations are damaged");

  KernelTables tables;
  tables.device_ = device;
  tables.attribution_ = file.attribution();
  for (const auto& operation : operations.operation()) {
    KernelTables::Grids& grids = tables.operations_[operation.name()];
    for (const pb::KernelGrid& grid : operation.grid()) {
      KVBLOCKS_ASSIGN_OR_RETURN(
          auto made, MakeGrid(grid, absl::StrCat(where, ": ", operation.name(), " ", grid.key())));
      grids.insert_or_assign(grid.key(), std::move(made));
    }
  }
  return tables;
}

absl::StatusOr<KernelTables> LoadKernelTables(const std::string& path, const std::string& device) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::string data;
  char buffer[1 << 16];
  while (static_cast<int64_t>(data.size()) <= kMaxFileBytes &&
         (file.read(buffer, sizeof(buffer)) || file.gcount() > 0)) {
    data.append(buffer, static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  return ParseKernelTables(data, device, path);
}

std::string FindKernelTablesFile() {
  namespace fs = std::filesystem;
  constexpr const char* kName = "kernel_tables.pb";
  constexpr const char* kInTree = "sim/cost/tables/kernel_tables.pb";
  std::vector<fs::path> places;
  const auto add_runfiles = [&](const fs::path& folder) {
    places.push_back(folder / "kvblocks" / kInTree);
    places.push_back(folder / "_main" / kInTree);
  };
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    if (const char* folder = std::getenv(variable)) add_runfiles(folder);
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    add_runfiles(program.string() + ".runfiles");
    places.push_back(program.parent_path() / kName);
    places.push_back(program.parent_path().parent_path() / "share" / "kvblocks" / kName);
  }
  for (const fs::path& place : places) {
    if (fs::is_regular_file(place, error)) return place.string();
  }
  return "";
}

}  // namespace kvblocks::sim
