#include "sim/drafting.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/simulation_config.h"

namespace kvblocks::sim {
namespace {

struct Traits {
  Drafter drafter;
  std::string_view name;
  EngineVersion since;
  bool writes_ahead;         // lookahead slots
  bool reads_hidden_states;  // of the tokens before those that it drafts
  // What it caches depends on the next token, too, so that a hit must not end right before the
  // first one that it reads, or hashes have lookahead.
  bool depends_on_next_token;
};

constexpr std::array<Traits, 9> kTraits = {{
    {Drafter::kNgram, "ngram", EngineVersion::kVllm025, false, false, false},
    {Drafter::kEagle, "eagle", EngineVersion::kVllm025, true, true, true},
    {Drafter::kParallelEagle, "parallel_eagle", EngineVersion::kVllm033, true, true, true},
    {Drafter::kMtp, "mtp", EngineVersion::kVllm025, true, true, true},
    {Drafter::kMtpModules, "mtp_modules", EngineVersion::kVllm033, true, true, true},
    {Drafter::kDraftModel, "draft_model", EngineVersion::kVllm025, true, false, false},
    {Drafter::kParallelDraftModel, "parallel_draft_model", EngineVersion::kVllm033, true, false,
     false},
    {Drafter::kDFlash, "dflash", EngineVersion::kVllm033, true, true, false},
    {Drafter::kDSpark, "dspark", EngineVersion::kVllm033, true, true, false},
}};

const Traits& TraitsOf(Drafter drafter) {
  for (const Traits& traits : kTraits) {
    if (traits.drafter == drafter) return traits;
  }
  return kTraits[0];
}

// Of the engine's second budget, per request.
int64_t NumDraftSlots(const DraftOptions& drafts) {
  switch (drafts.drafter) {
    case Drafter::kDraftModel:
      return 1;
    case Drafter::kParallelEagle:
      return drafts.num_draft_tokens - 1;
    case Drafter::kParallelDraftModel:
      return drafts.num_draft_tokens;
    default:
      return 0;
  }
}

// What drafts add to what a request holds: tokens below each window, where a drafter may compute
// again what reads them (V-100), and a further state per draft (V-108).
absl::Status ApplyToGroups(const DraftOptions& drafts, int64_t num_kept_tokens,
                           SimulationConfig* config) {
  for (KvCacheGroup& group : config->kv_cache.groups) {
    KvCacheSpecOptions options = group.spec.options();
    if (group.spec.sliding_window()) {
      options.extra_retained_tokens = num_kept_tokens;
    } else if (group.spec.kind() == KvCacheSpecKind::kMamba && drafts.num_draft_tokens > 0) {
      options.num_speculative_blocks = drafts.num_draft_tokens;
    } else {
      continue;
    }
    auto spec = group.spec.WithOptions(options);
    if (!spec.ok()) return spec.status();
    group.spec = *std::move(spec);
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view DrafterName(Drafter drafter) { return TraitsOf(drafter).name; }

std::optional<Drafter> ParseDrafter(std::string_view name) {
  for (const Traits& traits : kTraits) {
    if (traits.name == name) return traits.drafter;
  }
  return std::nullopt;
}

absl::Status ApplyDrafts(const DraftOptions& drafts, SimulationConfig* config) {
  const Traits& traits = TraitsOf(drafts.drafter);
  const bool has_drafts = drafts.num_draft_tokens > 0;
  if (has_drafts && config->engine < traits.since) {
    const std::string_view engine = EngineVersionName(config->engine);
    const std::string_view since = EngineVersionName(traits.since);
    return InvalidArgument("drafter is ", std::string(traits.name), ", expected another one for ",
                           std::string(engine), ": it is modelled from ", std::string(since),
                           " on");
  }
  config->drafts = drafts;
  SchedulerOptions& scheduler = config->scheduler;
  scheduler.num_draft_tokens = drafts.num_draft_tokens;
  scheduler.num_lookahead_tokens = has_drafts && traits.writes_ahead ? drafts.num_draft_tokens : 0;
  // One more for the query that it reads its drafts from.
  if (has_drafts && drafts.drafter == Drafter::kDFlash) ++scheduler.num_lookahead_tokens;
  // Before there was one budget.
  const bool has_slots = has_drafts && config->engine >= EngineVersion::kVllm033;
  scheduler.num_draft_slots = has_slots ? NumDraftSlots(drafts) : 0;
  if (has_drafts && (drafts.drafter == Drafter::kDFlash || drafts.drafter == Drafter::kDSpark)) {
    // Their drafts are one pass over the lookahead slots of all requests, within a step's tokens.
    const int64_t most = scheduler.max_num_batched_tokens / scheduler.num_lookahead_tokens;
    const int64_t active = scheduler.max_num_active_seqs > 0 ? scheduler.max_num_active_seqs
                                                             : scheduler.max_num_seqs;
    if (most < active) scheduler.max_num_active_seqs = std::max<int64_t>(1, most);
  }
  int64_t reads_ahead = 0;
  if (has_drafts && traits.reads_hidden_states) {
    reads_ahead = drafts.drafter == Drafter::kMtpModules ? drafts.num_draft_tokens : 1;
  }
  config->manager.prefill_lookahead_tokens = reads_ahead;
  KVBLOCKS_RETURN_IF_ERROR(ApplyToGroups(drafts, std::max<int64_t>(0, reads_ahead - 1), config));
  const bool hashes_ahead = reads_ahead > 0 && traits.depends_on_next_token &&
                            drafts.lookahead_hashes && config->engine >= EngineVersion::kVllm033 &&
                            config->manager.enable_caching;
  config->manager.num_hash_lookahead_tokens = hashes_ahead ? reads_ahead : 0;
  config->manager.use_eagle = reads_ahead > 0 && traits.depends_on_next_token && !hashes_ahead;
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
