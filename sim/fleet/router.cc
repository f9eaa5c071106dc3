#include "kvblocks/sim/fleet/router.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblocks::sim {
namespace {

constexpr std::array<const char*, 10> kNames = {
    "round-robin", "random",  "least-requests", "least-tokens",       "two-choices",
    "session",     "prefix",  "prefix-approximate", "oracle",
    "data-parallel"};

absl::Status Between(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", least, " to ", most));
}

}  // namespace

std::string_view RouterName(RouterKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<RouterKind> ParseRouter(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<RouterKind>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "got \"", std::string(name), "\", expected one of ", absl::StrJoin(kNames, ", ")));
}

absl::Status Validate(const RouterOptions& options) {
  constexpr int64_t kMostWeight = 1'000'000 * kMillion;
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>("hit_weight", options.hit_weight),
        {"load_weight", options.load_weight},
        {"queue_weight", options.queue_weight},
        {"temperature", options.temperature},
        {"session_factor", options.session_factor}}) {
    if (absl::Status status = Between(field, value, 0, kMostWeight); !status.ok()) return status;
  }
  if (options.session_factor > 0 && options.session_factor < kMillion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "session_factor is ", options.session_factor,
        " millionths, expected at least 1000000 (the mean itself), or 0 for no bound"));
  }
  if (options.stats_interval < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("stats_interval is ", options.stats_interval, " ps, expected at least 0"));
  }
  return Between("tree_blocks", options.tree_blocks, 1, int64_t{1} << 31);
}

std::unique_ptr<Router> MakeRouter(const RouterOptions& options, int32_t num_replicas,
                                   GroupId group, const std::vector<RankGroup>& ranks) {
  if (options.kind == RouterKind::kDataParallel) {
    return MakeRankRouter(options, num_replicas, ranks);
  }
  if (UsesContent(options.kind)) return MakeScoreRouter(options, num_replicas, group);
  return MakeLoadRouter(options);
}

}  // namespace kvblocks::sim
