// Which options need which others. Order is that of the rows.

#include <algorithm>
#include <iterator>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvblocks/sim/commands/fleet_input.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/replica_kinds.h"

namespace kvblocks::sim {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::kvblocks::config::v1::ReplayConfig;

struct OptionUse {
  const char* field;
  bool (*has_use)(const ReplayConfig&);
  const char* needs;
};

bool IsExact(const ReplayConfig& config) { return config.plan() == "exact"; }
bool HasTiers(const ReplayConfig& config) { return !config.tier().empty(); }
bool HasDrafts(const ReplayConfig& config) { return config.num_draft_tokens() > 0; }
bool HasRule(const ReplayConfig& config) { return !config.scale_rule().empty(); }
bool HasQueue(const ReplayConfig& config) { return !config.router_queue().empty(); }

// The device's memory decides how many blocks there are.
bool IsSizedByDevice(const ReplayConfig& config) {
  return config.num_blocks() == 0 && config.kv_memory() == 0 &&
         !config.kv_cache_config().has_num_blocks();
}

bool IsByLayers(const ReplayConfig& config) {
  return config.time() == "auto" || config.time() == "table" || config.time() == "roofline";
}
bool IsByKernels(const ReplayConfig& config) {
  return IsByLayers(config) && config.time() != "roofline";
}

bool DrawsAtRandom(const ReplayConfig& config) {
  return HasDrafts(config) || config.load_failures() > 0 || config.policy() == "random";
}

constexpr const char* kSizedByDevice =
    "a pool that the device's memory sizes: neither --num-blocks nor --kv-memory";
constexpr const char* kByLayers = "--time=auto, table or roofline, whose steps are made of layers";
constexpr const char* kByKernels = "--time=auto or table";
constexpr const char* kExact = "--plan=exact, which it is about";
constexpr const char* kTier = "--tier beside it, which it is about";
constexpr const char* kNeedsDrafts = "--num-draft-tokens of at least 1, which it is about";

const OptionUse kUses[] = {
    {"start_jitter", [](const ReplayConfig& c) { return c.concurrency() > 0; },
     "--concurrency, whose first sessions it spreads"},
    {"reorder", [](const ReplayConfig& c) { return !c.require_sorted(); },
     "rows that may be out of order: no --require-sorted"},
    {"layout", IsExact, kExact},
    {"typical_len", IsExact, kExact},
    {"match_unit", [](const ReplayConfig& c) { return c.partial_hits(); }, "--partial-hits"},
    {"max_retained_share", [](const ReplayConfig& c) { return !c.retain().empty(); },
     "--retain beside it, which it limits"},
    {"load", HasTiers, kTier},
    {"load_if", HasTiers, kTier},
    {"load_failures", HasTiers, kTier},
    {"load_failure_policy", HasTiers, kTier},
    {"drafter", HasDrafts, kNeedsDrafts},
    {"lookahead_tokens", HasDrafts, kNeedsDrafts},
    {"acceptance", HasDrafts, kNeedsDrafts},
    {"seed", DrawsAtRandom, "--num-draft-tokens, --load-failures or --policy=random, which draw"},
    {"memory_utilization", IsSizedByDevice, kSizedByDevice},
    {"activation_gb", IsSizedByDevice, kSizedByDevice},
    {"graph_gb", IsSizedByDevice, kSizedByDevice},
    {"kernel_tables", IsByKernels, kByKernels},
    {"step_times", [](const ReplayConfig& c) { return c.time() == "recorded"; }, "--time=recorded"},
    {"step_time", [](const ReplayConfig& c) { return c.time() == "fixed"; }, "--time=fixed"},
    {"compute_efficiency", IsByLayers, kByLayers},
    {"memory_efficiency", IsByLayers, kByLayers},
    {"fixed_time", IsByLayers, kByLayers},
    {"time_per_layer", IsByLayers, kByLayers},
    {"time_per_sequence", IsByLayers, kByLayers},
    {"prefill_factor", IsByKernels, kByKernels},
    {"expert_prefill_factor", IsByKernels, kByKernels},
    {"prefill_time_per_layer", IsByKernels, kByKernels},
    {"draft_time", HasDrafts, kNeedsDrafts},
    {"router_queue_order", HasQueue, "--router-queue, without which nobody waits"},
    {"router_queue_limit", HasQueue, "--router-queue, without which nobody waits"},
    {"min_replicas", HasRule, "--scale-rule"},
    {"max_replicas", HasRule, "--scale-rule"},
    {"scale_interval", HasRule, "--scale-rule"},
    {"scale_cooldown", HasRule, "--scale-rule"},
    {"start_time", [](const ReplayConfig& c) { return HasRule(c) || !c.scale().empty(); },
     "--scale or --scale-rule"},
    {"lost_requests", [](const ReplayConfig& c) { return absl::StrContains(c.scale(), "crash"); },
     "--scale with a crash, whose requests it is about"},
};

const FieldDescriptor* FieldOf(const char* name) {
  return ReplayConfig::descriptor()->FindFieldByName(name);
}

const ReplayConfig& Defaults() {
  static const ReplayConfig* const defaults = new ReplayConfig(*DefaultConfig("vllm-main"));
  return *defaults;
}

bool IsChanged(const ReplayConfig& config, const FieldDescriptor* field) {
  const auto* reflection = config.GetReflection();
  const ReplayConfig& defaults = Defaults();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->GetInt64(config, field) != reflection->GetInt64(defaults, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->GetUInt64(config, field) != reflection->GetUInt64(defaults, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->GetDouble(config, field) != reflection->GetDouble(defaults, field);
    default:
      return reflection->GetString(config, field) != reflection->GetString(defaults, field);
  }
}

absl::Status Needs(const OptionUse& use) {
  return absl::InvalidArgumentError(absl::StrCat(FlagName(use.field), " needs ", use.needs));
}

// "host:4TiB:read=24GB/s:shared".
bool HasSharedTier(const ReplayConfig& config) {
  const std::vector<std::string> tiers = absl::StrSplit(config.tier(), ',');
  return std::any_of(tiers.begin(), tiers.end(), [](const std::string& tier) {
    const std::vector<std::string> parts = absl::StrSplit(tier, ':');
    return std::count(parts.begin(), parts.end(), "shared") > 0;
  });
}

}  // namespace

absl::Status CheckOptionUses(const ReplayConfig& config, const ReplayConfig& given) {
  const auto kinds = ReplicaKinds(config);
  if (!kinds.ok()) return kinds.status();
  const auto* reflection = given.GetReflection();
  for (const OptionUse& use : kUses) {
    const FieldDescriptor* field = FieldOf(use.field);
    bool is_used = false;
    for (const ReplicaKind& kind : *kinds) {
      const bool has_use = use.has_use(kind.config);
      if (!has_use && reflection->HasField(kind.given, field)) return Needs(use);
      is_used |= has_use;
    }
    if (is_used) continue;
    if (reflection->HasField(given, field) || IsChanged(config, field)) return Needs(use);
  }
  if (HasSharedTier(config) && !IsFleet(config)) {
    return BadOption("--tier", config.tier(),
                     "no shared tier with one replica: --replicas of at least 2 share, or leave out "
                     ":shared");
  }
  return absl::OkStatus();
}

absl::Status CheckOptionUses(const std::vector<const ReplayConfig*>& configs,
                             const ReplayConfig& asked) {
  for (const OptionUse& use : kUses) {
    const FieldDescriptor* field = FieldOf(use.field);
    if (!asked.GetReflection()->HasField(asked, field) || !IsChanged(asked, field)) continue;
    const bool is_used =
        std::any_of(configs.begin(), configs.end(), [&](const ReplayConfig* config) {
          const auto kinds = ReplicaKinds(*config);
          if (!kinds.ok()) return true;  // told elsewhere
          return std::any_of(kinds->begin(), kinds->end(), [&](const ReplicaKind& kind) {
            return use.has_use(kind.config);
          });
        });
    if (!is_used) return Needs(use);
  }
  return absl::OkStatus();
}

void DropUselessOptions(ReplayConfig* config) {
  for (const OptionUse& use : kUses) {
    const FieldDescriptor* field = FieldOf(use.field);
    // A grid over seeds asks for as many points.
    if (use.has_use(*config) || std::string_view(use.field) == "seed") continue;
    const auto* reflection = config->GetReflection();
    const ReplayConfig& defaults = Defaults();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(config, field, reflection->GetInt64(defaults, field));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(config, field, reflection->GetDouble(defaults, field));
        break;
      default:
        reflection->SetString(config, field, reflection->GetString(defaults, field));
    }
  }
}

}  // namespace kvblocks::sim
