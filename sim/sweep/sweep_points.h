// Sweep points: from what people write to a list of replays, each with a name that follows from its
// content.
//
// Always: the same specification gives the same points in the same order. Two points have the same
// name if and only if (but for collisions of 128 bits) they are the same replay: the same effective
// options, whatever was said or left at its default, of the same content, by the same version of
// the program. A file may move; that changes no name.

#ifndef KVBLOCKS_SIM_SWEEP_SWEEP_POINTS_H_
#define KVBLOCKS_SIM_SWEEP_SWEEP_POINTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/run_files.h"
#include "sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

inline constexpr int64_t kMostSweepPoints = 1'000'000;

// XXH3 of files, each read once.
class ContentHashes {
 public:
  static std::string OfText(std::string_view text);
  absl::StatusOr<std::string> OfFile(const std::string& path);
  // Of all regular files in it, with their names.
  absl::StatusOr<std::string> OfFolder(const std::string& path);

 private:
  std::map<std::string, std::string> files_;
};

struct PlannedPoint {
  ::kvblocks::sweep::v1::SweepPoint point;
  // The effective configuration, with the path of the trace.
  ::kvblocks::config::v1::ReplayConfig config;
  std::vector<::kvblocks::sweep::v1::Setting> settings;
  std::string name;     // 32 hexadecimal digits
  absl::Status status;  // of options that contradict each other; the point then has no replay
};

// Reads a file in protobuf text or JSON.
absl::StatusOr<::kvblocks::sweep::v1::SweepSpec> ReadSweepSpec(const std::string& path);

// "num-blocks=1000,2000" or "max-num-seqs=64:512:*2" as an axis. Values that have commas in them
// are parted by '|'.
absl::StatusOr<::kvblocks::sweep::v1::Axis> ParseAxis(std::string_view text);

// The values of an axis, ranges written out.
absl::StatusOr<std::vector<std::string>> AxisValues(const ::kvblocks::sweep::v1::Axis& axis);

::kvblocks::sweep::v1::Setting MakeSetting(std::string option, std::string value);

// One point: `asked` with `settings` over it, and defaults. InvalidArgument for an unknown option
// or a value that is none, NotFound and the like for files; options out of range are in the point's
// status.
absl::StatusOr<PlannedPoint> PlanPoint(const ::kvblocks::config::v1::ReplayConfig& asked,
                                       const std::vector<::kvblocks::sweep::v1::Setting>& settings,
                                       ContentHashes* hashes);

// What the points read, as FilesOf of each.
std::vector<RunFile> FilesOf(const ::kvblocks::config::v1::ReplayConfig& asked,
                             const std::vector<::kvblocks::sweep::v1::Axis>& axes);
std::vector<RunFile> FilesOf(const ::kvblocks::sweep::v1::SweepSpec& spec);

// See CheckOptionUses; of a search that changes `asked` along one of `axes` at a time.
absl::Status CheckSearchUses(const ::kvblocks::config::v1::ReplayConfig& asked,
                             const std::vector<::kvblocks::sweep::v1::Axis>& axes);

absl::StatusOr<std::vector<PlannedPoint>> ExpandSweep(const ::kvblocks::sweep::v1::SweepSpec& spec,
                                                      ContentHashes* hashes);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SWEEP_POINTS_H_
