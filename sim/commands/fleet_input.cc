#include "kvblocks/sim/commands/fleet_input.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/scale_input.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

namespace {

// What options other than those that make a fleet say of one; null: nothing.
const ReplayOption* RouterOptionIn(const ReplayConfig& config) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (option.section != kFleetGroup || option.setting->needs().empty()) continue;
    if (!ValueText(config, option.field).empty()) return &option;
  }
  return nullptr;
}

absl::StatusOr<RouterKind> KindOf(const ReplayConfig& config) {
  if (config.router().empty()) {
    return config.data_parallel() > 1 ? RouterKind::kDataParallel : RouterKind::kRoundRobin;
  }
  const auto kind = ParseRouter(config.router());
  if (kind.ok()) return kind;
  return absl::InvalidArgumentError(absl::StrCat("--router: ", kind.status().message()));
}

// "requests:64,tokens:100000".
absl::Status SetQueueLimits(const std::string& text, RouterQueueOptions* queue) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> fields = absl::StrSplit(part, ':');
    int64_t* limit = fields[0] == "requests" ? &queue->max_requests
                     : fields[0] == "tokens" ? &queue->max_tokens
                                             : nullptr;
    int64_t value;
    if (fields.size() != 2 || limit == nullptr || *limit != 0 || !absl::SimpleAtoi(fields[1], &value) ||
        value < 1) {
      return BadOption(FlagName("router_queue"), text,
                            "requests:N, tokens:N or both with a comma between them, N at least 1");
    }
    *limit = value;
  }
  return absl::OkStatus();
}

absl::Status SetQueue(const ReplayConfig& config, RouterQueueOptions* queue) {
  if (!config.router_queue().empty()) {
    absl::Status status = SetQueueLimits(config.router_queue(), queue);
    if (!status.ok()) return status;
  }
  const std::string& order = config.router_queue_order();
  if (!order.empty() && order != "fcfs" && order != "priority") {
    return BadOption(FlagName("router_queue_order"), order, "fcfs or priority");
  }
  queue->by_priority = order == "priority";
  const std::string& limit = config.router_queue_limit();
  if (!limit.empty() && (!absl::SimpleAtoi(limit, &queue->max_waiting) || queue->max_waiting < 0)) {
    return BadOption(FlagName("router_queue_limit"), limit, "a whole number of at least 0");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsFleet(const ReplayConfig& config) {
  return config.replicas() > 1 || !config.replica().empty() || config.data_parallel() > 1 ||
         AsksForScaling(config);
}

bool AsksForRouter(const ReplayConfig& config) { return RouterOptionIn(config) != nullptr; }

absl::Status RefuseFleet(const ReplayConfig& config) {
  if (IsFleet(config)) {
    return absl::InvalidArgumentError(
        config.data_parallel() > 1
            ? absl::StrCat("data_parallel: got ", config.data_parallel(),
                           ", expected 1: this command runs one engine")
        : AsksForScaling(config)
            ? std::string("scale and scale_rule are for several replicas: this command runs one")
        : config.replica().empty()
            ? absl::StrCat("replicas: got ", config.replicas(),
                           ", expected 1: this command runs one replica")
            : absl::StrCat("replica: got \"", config.replica(),
                           "\", expected none: this command runs one replica"));
  }
  const ReplayOption* option = RouterOptionIn(config);
  if (option == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option->name(), ": got \"", ValueText(config, option->field),
                   "\", expected none: this command runs one replica"));
}

absl::StatusOr<FleetOptions> MakeFleetOptions(const ReplayConfig& config) {
  FleetOptions options;
  RouterOptions& router = options.router;
  const auto kind = KindOf(config);
  if (!kind.ok()) return kind.status();
  router.kind = *kind;
  struct Number {
    const char* field;
    const std::string& text;
    int64_t* out;
    int exponent;  // of ten
    int64_t least, most;
    const char* expected;
  };
  int64_t seed = 0;
  constexpr int64_t kMostWeight = 1'000'000 * kMillion;
  constexpr const char* kWeight = "a number from 0 to 1000000 with at most 6 decimals";
  const Number numbers[] = {
      {"router_seed", config.router_seed(), &seed, 0, 0, INT64_MAX, "a whole number of at least 0"},
      {"hit_weight", config.hit_weight(), &router.hit_weight, 6, 0, kMostWeight, kWeight},
      {"load_weight", config.load_weight(), &router.load_weight, 6, 0, kMostWeight, kWeight},
      {"queue_weight", config.queue_weight(), &router.queue_weight, 6, 0, kMostWeight, kWeight},
      {"router_temperature", config.router_temperature(), &router.temperature, 6, 0, kMostWeight,
       kWeight},
      {"session_factor", config.session_factor(), &router.session_factor, 6, 0, kMostWeight,
       "0, or a number from 1 to 1000000 with at most 6 decimals"},
      {"router_tree_blocks", config.router_tree_blocks(), &router.tree_blocks, 0, 1,
       int64_t{1} << 31, "a whole number from 1 to 2147483648"},
      {"event_loss", config.event_loss(), &options.event_loss, 6, 0, kMillion,
       "a share from 0 to 1 with at most 6 decimals"},
  };
  for (const Number& number : numbers) {
    if (number.text.empty()) continue;
    const auto value = ParseScaledDecimal(number.text, number.exponent);
    const bool is_below_mean = number.out == &router.session_factor && value.ok() && *value > 0 &&
                               *value < kMillion;
    if (!value.ok() || *value < number.least || *value > number.most || is_below_mean) {
      return BadOption(FlagName(number.field), number.text, number.expected);
    }
    *number.out = *value;
  }
  router.seed = static_cast<uint64_t>(seed);
  struct Delay {
    const char* field;
    const std::string& text;
    SimTime* out;
  };
  for (const Delay& delay : {Delay{"router_delay", config.router_delay(), &options.router_delay},
                             Delay{"event_delay", config.event_delay(), &options.event_delay}}) {
    if (delay.text.empty()) continue;
    const auto time = ParseDuration(delay.text);
    if (!time.ok()) return BadOption(FlagName(delay.field), delay.text, "a time with a unit, such as 5ms");
    *delay.out = *time;
  }
  if (absl::Status status = SetQueue(config, &options.queue); !status.ok()) return status;
  auto scaling = MakeScalingOptions(config);
  if (!scaling.ok()) return scaling.status();
  options.scaling = *std::move(scaling);
  return options;
}

}  // namespace kvblocks::sim
