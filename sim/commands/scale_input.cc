#include "kvblocks/sim/commands/scale_input.h"

#include "kvblocks/checks/status_text.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

struct ScaleOptionText {
  const char* name;
  const char* unit;
  const char* help;
};

// In the order of ScaleInput::Option.
constexpr ScaleOptionText kScaleOptions[] = {
    {"--scale", "PLAN",
     "replicas start, stop or crash: TIME:ACTION, separated by commas, such as "
     "10s:start=2,60s:stop,90s:crash@3; =N: so many, @N: that one"},
    {"--scale-rule", "RULE",
     "replicas start and stop by queue:LOW:HIGH, requests that wait per replica, or ttft:LIMIT:LOW:HIGH, the "
     "share of first tokens within LIMIT"},
    {"--min-replicas", "N", "fewest that --scale-rule leaves [1]"},
    {"--max-replicas", "N", "most that --scale-rule lets be, those that drain included [as --replicas]"},
    {"--scale-interval", "TIME", "between two looks of --scale-rule [10s]"},
    {"--scale-cooldown", "TIME", "in which --scale-rule changes nothing more [0s]"},
    {"--start-time", "TIME", "from the start of a replica until it takes requests [0s]"},
    {"--lost-requests", "retry|fail",
     "requests of a replica that crashes are sent again at once, or end [retry]"},
};

}  // namespace

void ScaleInput::AddOptions(OptionParser* options, const char* group) {
  for (size_t i = 0; i < kNumOptions; ++i) {
    options->Add({.name = kScaleOptions[i].name,
                  .unit = kScaleOptions[i].unit,
                  .help = kScaleOptions[i].help,
                  .group = group},
                 &texts_[i]);
  }
}

absl::StatusOr<ScalingOptions> ScaleInput::Configure(int64_t num_replicas) const {
  ScalingOptions scaling;
  const auto refuse = [&](Option option, const auto&... expected) {
    return InvalidArgument(kScaleOptions[option].name, ": got \"", *texts_[option], "\", expected ",
                           expected...);
  };
  for (const Option option : {kLeast, kMost, kInterval, kCoolDown}) {
    if (texts_[option] && !texts_[kRule]) {
      return InvalidArgument(kScaleOptions[option].name, " needs --scale-rule");
    }
  }
  for (const Option option : {kStartTime, kLost}) {
    if (texts_[option] && !is_used()) {
      return InvalidArgument(kScaleOptions[option].name, " needs --scale",
                             option == kLost ? "" : " or --scale-rule");
    }
  }
  if (texts_[kScale]) {
    auto schedule = ParseSchedule(*texts_[kScale]);
    if (!schedule.ok()) return InvalidArgument("--scale: ", schedule.status().message());
    scaling.schedule = *std::move(schedule);
  }
  if (texts_[kRule]) {
    ScaleRule& rule = scaling.rule.emplace();
    rule.most = static_cast<int32_t>(num_replicas);
    if (absl::Status status = ParseRule(*texts_[kRule], &rule); !status.ok()) {
      return InvalidArgument("--scale-rule: ", status.message());
    }
    for (const auto& [option, out] : {std::pair<Option, int32_t*>(kLeast, &rule.least), {kMost, &rule.most}}) {
      if (!texts_[option]) continue;
      const int64_t least = option == kLeast ? 1 : num_replicas;
      const int64_t most = option == kLeast ? num_replicas : static_cast<int64_t>(Fleet::kMostReplicas);
      const auto value = ParseScaledDecimal(*texts_[option], 0);
      if (!value.ok() || *value < least || *value > most) {
        return refuse(option, "a whole number from ", least, " to ", most, ", with --replicas between both");
      }
      *out = static_cast<int32_t>(*value);
    }
    for (const auto& [option, out] :
         {std::pair<Option, SimTime*>(kInterval, &rule.interval), {kCoolDown, &rule.cool_down}}) {
      if (!texts_[option]) continue;
      const auto time = ParseDuration(*texts_[option]);
      if (!time.ok() || (option == kInterval && *time == 0)) {
        return refuse(option, "a time with a unit, such as 10s");
      }
      *out = *time;
    }
  }
  if (texts_[kStartTime]) {
    const auto time = ParseDuration(*texts_[kStartTime]);
    if (!time.ok()) return refuse(kStartTime, "a time with a unit, such as 30s");
    scaling.start_time = *time;
  }
  if (texts_[kLost]) {
    if (*texts_[kLost] != "retry" && *texts_[kLost] != "fail") return refuse(kLost, "retry or fail");
    scaling.fails_lost = *texts_[kLost] == "fail";
  }
  const auto needed = Scaler::NumReplicas(scaling, static_cast<int32_t>(num_replicas));
  if (!needed.ok()) return InvalidArgument("--scale: ", needed.status().message());
  return scaling;
}

}  // namespace kvblocks::sim
