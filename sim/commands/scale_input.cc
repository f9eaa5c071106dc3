#include "kvblocks/sim/commands/scale_input.h"

#include <cstdint>
#include <string>
#include <utility>

#include "kvblocks/checks/status_text.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/replica_kinds.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

// Between two looks of a rule; a run makes them all, also while nothing happens.
constexpr SimTime kLeastInterval = 10 * kMillisecond;

template <typename... Parts>
absl::Status Refuse(const char* field, const std::string& text, const Parts&... expected) {
  return InvalidArgument(FlagName(field), ": got \"", text, "\", expected ", expected...);
}

absl::Status SetTime(const char* field, const std::string& text, SimTime least, SimTime* out) {
  if (text.empty()) return absl::OkStatus();
  const auto time = ParseDuration(text);
  if (!time.ok() || *time < least) {
    return Refuse(field, text, "a time with a unit", least > 0 ? ", of at least 10ms" : "",
                  ", such as 10s");
  }
  *out = *time;
  return absl::OkStatus();
}

absl::Status SetCount(const char* field, const std::string& text, int64_t least, int64_t most,
                      int32_t* out) {
  if (text.empty()) return absl::OkStatus();
  const auto value = ParseScaledDecimal(text, 0);
  if (!value.ok() || *value < least || *value > most) {
    return Refuse(field, text, "a whole number from ", least, " to ", most,
                  ", with the replicas of the beginning between both limits");
  }
  *out = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

absl::Status SetRule(const ReplayConfig& config, ScaleRule* rule) {
  const auto kinds = ReplicaKinds(config);
  if (!kinds.ok()) return kinds.status();
  int64_t num_replicas = 0;
  for (const ReplicaKind& kind : *kinds) num_replicas += kind.count;
  rule->most = static_cast<int32_t>(num_replicas);
  if (absl::Status status = ParseRule(config.scale_rule(), rule); !status.ok()) {
    return InvalidArgument("--scale-rule: ", status.message());
  }
  constexpr auto kMost = static_cast<int64_t>(Fleet::kMostReplicas);
  for (absl::Status status :
       {SetCount("min_replicas", config.min_replicas(), 1, num_replicas, &rule->least),
        SetCount("max_replicas", config.max_replicas(), num_replicas, kMost, &rule->most),
        SetTime("scale_interval", config.scale_interval(), kLeastInterval, &rule->interval),
        SetTime("scale_cooldown", config.scale_cooldown(), 0, &rule->cool_down)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

bool AsksForScaling(const ReplayConfig& config) {
  return !config.scale().empty() || !config.scale_rule().empty();
}

absl::StatusOr<ScalingOptions> MakeScalingOptions(const ReplayConfig& config) {
  ScalingOptions scaling;
  if (!config.scale().empty()) {
    auto schedule = ParseSchedule(config.scale());
    if (!schedule.ok()) return InvalidArgument("--scale: ", schedule.status().message());
    scaling.schedule = *std::move(schedule);
  }
  if (!config.scale_rule().empty()) {
    absl::Status status = SetRule(config, &scaling.rule.emplace());
    if (!status.ok()) return status;
  }
  absl::Status status = SetTime("start_time", config.start_time(), 0, &scaling.start_time);
  if (!status.ok()) return status;
  const std::string& lost = config.lost_requests();
  if (!lost.empty() && lost != "retry" && lost != "fail") {
    return Refuse("lost_requests", lost, "retry or fail");
  }
  scaling.fails_lost = lost == "fail";
  return scaling;
}

}  // namespace kvblocks::sim
