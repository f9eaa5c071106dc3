#include "sim/commands/fleet_input.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/cost/sim_time.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

namespace {

// What options other than those that make a fleet say of one; null: nothing.
const ReplayOption* RouterOptionIn(const ReplayConfig& config) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (option.section != kFleetGroup || option.setting->needs().empty()) continue;
    if (config.GetReflection()->HasField(config, option.field) &&
        ValueText(config, option.field) != DefaultText(option)) {
      return &option;
    }
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
    if (fields.size() != 2 || limit == nullptr || *limit != 0 ||
        !absl::SimpleAtoi(fields[1], &value) || value < 1) {
      return BadOption(FlagName("router_queue"), text,
                            "requests:N, tokens:N or both with a comma between them, N at least 1");
    }
    *limit = value;
  }
  return absl::OkStatus();
}

absl::Status SetQueue(const ReplayConfig& config, RouterQueueOptions* queue) {
  if (!config.router_queue().empty()) {
    KVBLOCKS_RETURN_IF_ERROR(SetQueueLimits(config.router_queue(), queue));
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

absl::StatusOr<ScalingOptions> MakeScalingOptions(const ReplayConfig& config) {
  ScalingOptions scaling;
  if (!config.scale().empty()) {
    auto schedule = ParseSchedule(config.scale());
    if (!schedule.ok()) return InvalidArgument("--scale: ", schedule.status().message());
    scaling.schedule = *std::move(schedule);
  }
  if (!config.scale_rule().empty()) {
    KVBLOCKS_RETURN_IF_ERROR(SetRule(config, &scaling.rule.emplace()));
  }
  KVBLOCKS_RETURN_IF_ERROR(SetTime("start_time", config.start_time(), 0, &scaling.start_time));
  const std::string& lost = config.lost_requests();
  if (!lost.empty() && lost != "retry" && lost != "fail") {
    return Refuse("lost_requests", lost, "retry or fail");
  }
  scaling.fails_lost = lost == "fail";
  return scaling;
}

}  // namespace

bool AsksForScaling(const ReplayConfig& config) {
  return !config.scale().empty() || !config.scale_rule().empty();
}

bool IsSplit(const ReplayConfig& config) {
  return config.prefill_replicas() > 0 || config.decode_replicas() > 0;
}

bool IsFleet(const ReplayConfig& config) {
  return IsSplit(config) || config.replicas() > 1 || !config.replica().empty() ||
         config.data_parallel() > 1 || AsksForScaling(config);
}

absl::Status RefuseFleet(const ReplayConfig& config) {
  if (IsFleet(config)) {
    return absl::InvalidArgumentError(
        config.data_parallel() > 1
            ? absl::StrCat("data_parallel: got ", config.data_parallel(),
                           ", expected 1: this command runs one engine")
        : IsSplit(config)
            ? std::string("prefill_replicas and decode_replicas are for several replicas: this "
                          "command runs one")
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
  for (const absl::Status& status :
       {SetTime("router_delay", config.router_delay(), 0, &options.router_delay),
        SetTime("event_delay", config.event_delay(), 0, &options.event_delay)}) {
    if (!status.ok()) return status;
  }
  KVBLOCKS_RETURN_IF_ERROR(SetQueue(config, &options.queue));
  auto scaling = MakeScalingOptions(config);
  if (!scaling.ok()) return scaling.status();
  options.scaling = *std::move(scaling);
  return options;
}

absl::StatusOr<FleetOptions> MakeHandoverOptions(const ReplaySetup& setup) {
  const ReplayConfig& config = setup.config;
  FleetOptions fleet;
  HandoverOptions options;
  options.num_prefill = static_cast<size_t>(config.prefill_replicas());
  for (const auto& [field, name, out] :
       {std::tuple("prefill_router", config.prefill_router(), &fleet.router),
        std::tuple("decode_router", config.decode_router(), &options.decode_router)}) {
    const auto kind = ParseRouter(name);
    if (!kind.ok()) return OfOption(FlagName(field), field, kind.status());
    out->kind = *kind;
  }
  options.first_token =
      config.first_token() == "decode" ? FirstToken::kDecode : FirstToken::kPrefill;
  options.link.bytes_per_second = config.link_bandwidth() > 0
                                      ? config.link_bandwidth() * 1'000'000'000
                                      : std::llround(setup.node_gb_per_s * 1e9);
  absl::Status status = SetTime("link_latency", config.link_latency(), 0, &options.link.latency);
  if (!status.ok()) return status;
  options.link.sharing =
      config.link_sharing() == "fifo" ? LinkSharing::kFifo : LinkSharing::kEqualParts;
  options.scope =
      config.link_scope() == "decode" ? LinkScope::kPerDecodeReplica : LinkScope::kShared;
  options.charges_hits = config.transfer() == "all";
  options.max_local_tokens = config.local_tokens();
  if (status = RefuseTiers(setup); !status.ok()) return status;
  if (setup.block_bytes == 0) {
    return absl::InvalidArgumentError(
        "the native layout has no blocks of one size to transfer; choose another --layout");
  }
  const auto& groups = setup.simulation.kv_cache.groups;
  if (std::any_of(groups.begin(), groups.end(), [](const KvCacheGroup& group) {
        return group.spec.kind() == KvCacheSpecKind::kCrossAttention;
      })) {
    return absl::InvalidArgumentError(
        "--prefill-replicas and --decode-replicas: got groups of cross attention, expected none: "
        "what encoders made is not transferred");
  }
  // Of several groups each has layers of its own in a block.
  const std::vector<int64_t> of_groups = GroupBlockBytes(setup.simulation);
  for (size_t g = 0; g < groups.size(); ++g) {
    const KvCacheSpecKind kind = groups[g].spec.kind();
    options.groups.push_back(
        {.block_bytes = groups.size() == 1 ? setup.block_bytes
                                           : std::min(setup.block_bytes, of_groups[g]),
         .block_size = groups[g].spec.block_size(),
         .is_window = kind == KvCacheSpecKind::kSlidingWindow ||
                      kind == KvCacheSpecKind::kSlidingWindowMla ||
                      kind == KvCacheSpecKind::kChunkedLocalAttention});
  }
  fleet.handover = options;
  return fleet;
}

// --- Replicas of several kinds ---

namespace {

// What one replica can have otherwise than another. The version of the engine is not among it: the
// defaults of other options follow from it. Nor is how long clients wait.
bool IsOfOneReplica(const std::string& field) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (field != option.name()) continue;
    return !option.setting->of_all() && option.section != kWorkloadGroup &&
           option.section != kReportGroup && option.section != kFleetGroup;
  }
  return false;
}

// Where the settings of a part begin: behind a colon that an option's name and "=" follow. Values
// may have colons themselves.
std::vector<std::string> SplitSettings(const std::string& text) {
  std::vector<std::string> settings;
  size_t begin = 0;
  for (size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1)) {
    const std::string rest = text.substr(colon + 1);
    const size_t equals = rest.find('=');
    if (equals == std::string::npos || !OptionField(rest.substr(0, equals)).ok()) continue;
    settings.push_back(text.substr(begin, colon - begin));
    begin = colon + 1;
  }
  settings.push_back(text.substr(begin));
  return settings;
}

// "2:device=h200:tensor-parallel=2".
absl::Status ParseKind(const std::string& part, ReplicaKind* kind) {
  std::string settings = part;
  const size_t colon = part.find(':');
  const std::string first = part.substr(0, colon);
  if (first.find_first_not_of("0123456789") == std::string::npos) {
    const auto most = static_cast<int64_t>(Fleet::kMostReplicas);
    if (!absl::SimpleAtoi(first, &kind->count) || kind->count < 1 || kind->count > most) {
      return absl::InvalidArgumentError(absl::StrCat("got ", first.empty() ? "nothing" : first,
                                                     " replicas, expected 1 to ", most));
    }
    settings = colon == std::string::npos ? "" : part.substr(colon + 1);
    if (settings.empty()) return absl::OkStatus();
  }
  for (const std::string& setting : SplitSettings(settings)) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", setting, "\", expected OPTION=VALUE, like device=h200"));
    }
    const std::string value = setting.substr(equals + 1);
    const auto field = OptionField(setting.substr(0, equals));
    if (!field.ok()) return field.status();
    if (!IsOfOneReplica(*field)) {
      return absl::InvalidArgumentError(absl::StrCat(
          FlagName(*field), ": got \"", value,
          "\", expected none here: all replicas have the same; "
          "what may differ are options of pool, scheduler, drafts, model, device and time"));
    }
    if (absl::Status status = SetOption(*field, value, &kind->given); !status.ok()) return status;
    absl::StrAppend(&kind->options, kind->options.empty() ? "" : " ", FlagName(*field).substr(2),
                    "=", value);
  }
  kind->config.MergeFrom(kind->given);
  return CheckOptionRanges(kind->config);
}

}  // namespace

absl::StatusOr<std::vector<ReplicaKind>> ReplicaKinds(const ReplayConfig& config) {
  if (config.replica().empty()) {
    const int64_t of_roles = config.prefill_replicas() + config.decode_replicas();
    return std::vector<ReplicaKind>{{.count = of_roles > 0 ? of_roles : config.replicas(),
                                     .config = config}};
  }
  std::vector<ReplicaKind> kinds;
  int64_t sum = 0;
  const std::vector<std::string> parts = absl::StrSplit(config.replica(), ';');
  for (size_t i = 0; i < parts.size(); ++i) {
    ReplicaKind kind = {.config = config};
    if (absl::Status status = ParseKind(parts[i], &kind); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--replica, part ", i + 1, " \"", parts[i], "\": ", status.message()));
    }
    sum += kind.count;
    kinds.push_back(std::move(kind));
  }
  if (sum > static_cast<int64_t>(Fleet::kMostReplicas)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--replica: got ", sum, " replicas, expected at most ", Fleet::kMostReplicas));
  }
  if (config.replicas() > 1 && config.replicas() != sum) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--replicas: got ", config.replicas(), ", expected ", sum, " as --replica lists, or none"));
  }
  return kinds;
}

}  // namespace kvblocks::sim
