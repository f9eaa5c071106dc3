#include "sim/engine/scheduler_rules.h"

namespace kvblocks::sim {

std::string_view EngineVersionName(EngineVersion version) {
  switch (version) {
    case EngineVersion::kVllm025:
      return "vllm-0.25";
    case EngineVersion::kVllm033:
      return "vllm-0.33";
  }
  return "unknown";
}

std::optional<EngineVersion> ParseEngineVersion(std::string_view name) {
  if (name == "vllm-main") return kEngineVersions.back();
  for (const EngineVersion version : kEngineVersions) {
    if (name == EngineVersionName(version)) return version;
  }
  return std::nullopt;
}

SchedulerRules SchedulerRules::Of(EngineVersion version) {
  if (version == EngineVersion::kVllm033) return {};
  // All of them changed after 0.25.
  return {.alone_ignores_threshold = false,
          .walks_on_after_self_preemption = false,
          .pads_unless_prompts_run = false,
          .registers_with_sync_outputs = false,
          .trims_settled_windows = false,
          .victim_before_walk_moves_it = false};
}

}  // namespace kvblocks::sim
