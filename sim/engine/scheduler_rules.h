// SchedulerRules: what schedulers of several vLLM versions do differently, one switch each.
//
//   options.rules = SchedulerRules::Of(EngineVersion::kVllm025);
//
// Numbers like V-70 are rules of docs/simulator.md.

#ifndef KVBLOCKS_SIM_ENGINE_SCHEDULER_RULES_H_
#define KVBLOCKS_SIM_ENGINE_SCHEDULER_RULES_H_

#include <array>
#include <optional>
#include <string_view>

#include "kvblocks/model_facts.h"

namespace kvblocks::sim {

// Oldest first.
inline constexpr std::array<EngineVersion, 2> kEngineVersions = {EngineVersion::kVllm025,
                                                                 EngineVersion::kVllm033};

// "vllm-0.33".
std::string_view EngineVersionName(EngineVersion version);
// Also "vllm-main", which is the newest. None for another name.
std::optional<EngineVersion> ParseEngineVersion(std::string_view name);

// The values here are those of 0.33.
struct SchedulerRules {
  // The long-prefill threshold is ignored for a request that is alone, running and waiting ones
  // together. V-70.
  bool alone_ignores_threshold = true;
  // Under the priority policy the walk over the running requests continues behind one that
  // preempted itself; otherwise it ends there. V-72.
  bool walks_on_after_self_preemption = true;
  // A request that enters with one token is padded unless the step has part of a running request's
  // prompt, and enters bare where the longest sequence leaves no room; otherwise it is padded
  // behind decodes only, and without room nobody enters. V-74.
  bool pads_unless_prompts_run = true;
  // Synchronous steps with drafts, too, register what their outputs completed. V-82.
  bool registers_with_sync_outputs = true;
  // Blocks leave a window when no step under way reads them; otherwise when the next step does not.
  // V-89.
  bool trims_settled_windows = true;
  // The walk's place moves back if the victim stood before it; otherwise if the victim had its part
  // of the step already. V-89.
  bool victim_before_walk_moves_it = true;

  static SchedulerRules Of(EngineVersion version);

  friend bool operator==(const SchedulerRules&, const SchedulerRules&) = default;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_SCHEDULER_RULES_H_
