// Semantics: what KV-cache managers of several vLLM versions do differently, one switch each.
//
//   KvCacheManagerOptions options{.max_model_len = 8192};           // as vLLM 0.33
//   options.semantics = Semantics::Vllm025();                       // as vLLM 0.25
//   options.semantics.retention_interval = 1024;                    // one switch of it
//
// Numbers like V-3 are rules of docs/semantics.md, which also says what each does to hit rates.

#ifndef KVBLOCKS_MANAGERS_SEMANTICS_H_
#define KVBLOCKS_MANAGERS_SEMANTICS_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvblocks {

struct Semantics {
  std::string_view name = "vllm-0.33";

  // --- What versions do; the values here are those of 0.33 ---

  // Windowed and Mamba groups register sparsely: what serves hits at multiples of so many tokens
  // (a multiple of the scheduler block size), and at the ends of the prompt and of the prefix that
  // others share (Request::shared_prefix_boundary). 0: only the latter two. None: whatever some hit
  // can use. Without such groups 0 changes nothing. V-1.
  std::optional<int64_t> retention_interval = 0;
  // With draft groups that drop a block, sparse registration keeps what serves a resend of the
  // prompt and a longer prompt after the drop; otherwise as if nothing were dropped. V-3.
  bool retains_for_draft_drop = true;
  // The block that a draft group drops may be the last full block of the request; otherwise it ends
  // before the last token. Several groups only. V-12.
  bool drops_last_full_block = true;
  // Draft flags of groups act only with use_eagle. V-13.
  bool draft_flags_need_eagle = true;
  // With partial_hits a prompt's tail is registered where a resend of it can use it, also in a block
  // that is registered as a whole; otherwise at the last hash boundary of the prompt, if its block
  // is not full by then. V-20 to V-22.
  bool registers_usable_tails = true;
  // AllocateSlots takes hits without computing a token (num_new_tokens 0). V-40.
  bool allows_adopt_only = true;

  // --- Where we deviate from the engine on purpose; true: do as it does, for comparisons ---

  // One BlockStored per registration, also where nothing of it is kept, with the tokens of all its
  // positions; otherwise one per run of kept blocks. V-61.
  bool one_event_per_registration = false;
  // Tails of prompts are registered also where no look-up can use them: in full-attention groups, and
  // inside a block of states where a step ends there and groups drop. V-20, V-115.
  bool registers_unusable_tails = false;
  // The admission gate caps a windowed group's need before it subtracts blocks that are there or
  // skipped, so that it asks for too few behind a hit. V-42.
  bool caps_need_before_hits = false;
  // A window of one token registers and hits nothing. V-36.
  bool window_of_one_keeps_nothing = false;
  // A windowed group with draft drop aligns its hit before and after the drop, and may lose a whole
  // alignment unit. V-36.
  bool aligns_before_drop = false;
  // Hits that were evicted since their look-up are adopted all the same. V-36.
  bool adopts_stale_hits = false;
  // Computed and external tokens beyond max_model_len are cut off; otherwise they are refused. V-41.
  bool clamps_external_tokens = false;
  // Tokens that a drafter may compute again are kept and not registered also where hashes look ahead,
  // which makes neither necessary. V-14.
  bool replays_behind_lookahead_hashes = false;
  // A state is registered whenever its block is there, also where the step that ended at it is not the
  // latest: with steps in flight, states behind outputs. Otherwise only what the latest step left is.
  // And of a boundary inside a block, sparse registration keeps the last state before it. V-6.
  bool registers_earlier_states = false;
  // A hit that ends inside a block is used even if the step that computes the block is the same one:
  // the copy comes before what the step writes. BM-121.
  bool copies_blocks_of_step = false;
  // GetNumCommonPrefixBlocks answers 0, because cascade attention is gone from the engine. V-30.
  bool has_no_common_prefix = false;

  static Semantics Vllm033() { return {}; }
  static Semantics Vllm025() {
    Semantics semantics;
    semantics.name = "vllm-0.25";
    semantics.retention_interval = std::nullopt;
    semantics.retains_for_draft_drop = false;
    semantics.drops_last_full_block = false;
    semantics.draft_flags_need_eagle = false;
    semantics.registers_usable_tails = false;
    semantics.allows_adopt_only = false;
    return semantics;
  }
  // 0.33 with all its deviations from these rules, to compare answers one by one.
  static Semantics Vllm033Exactly() {
    Semantics semantics;
    semantics.name = "vllm-0.33-exactly";
    semantics.one_event_per_registration = true;
    semantics.registers_unusable_tails = true;
    semantics.caps_need_before_hits = true;
    semantics.window_of_one_keeps_nothing = true;
    semantics.aligns_before_drop = true;
    semantics.adopts_stale_hits = true;
    semantics.clamps_external_tokens = true;
    semantics.replays_behind_lookahead_hashes = true;
    semantics.registers_earlier_states = true;
    semantics.copies_blocks_of_step = true;
    semantics.has_no_common_prefix = true;
    return semantics;
  }
  // "vllm-0.25", "vllm-0.33" or "vllm-0.33-exactly"; none for another name.
  static std::optional<Semantics> ByName(std::string_view name) {
    for (const Semantics& known : {Vllm025(), Vllm033(), Vllm033Exactly()}) {
      if (known.name == name) return known;
    }
    return std::nullopt;
  }

  friend bool operator==(const Semantics&, const Semantics&) = default;
};

// Every switch but the retention interval, by the name that configurations and Python have for it.
struct SemanticsSwitch {
  const char* name;
  bool Semantics::*member;
};
inline constexpr SemanticsSwitch kSemanticsSwitches[] = {
    {"retains_for_draft_drop", &Semantics::retains_for_draft_drop},
    {"drops_last_full_block", &Semantics::drops_last_full_block},
    {"draft_flags_need_eagle", &Semantics::draft_flags_need_eagle},
    {"registers_usable_tails", &Semantics::registers_usable_tails},
    {"allows_adopt_only", &Semantics::allows_adopt_only},
    {"one_event_per_registration", &Semantics::one_event_per_registration},
    {"registers_unusable_tails", &Semantics::registers_unusable_tails},
    {"caps_need_before_hits", &Semantics::caps_need_before_hits},
    {"window_of_one_keeps_nothing", &Semantics::window_of_one_keeps_nothing},
    {"aligns_before_drop", &Semantics::aligns_before_drop},
    {"adopts_stale_hits", &Semantics::adopts_stale_hits},
    {"clamps_external_tokens", &Semantics::clamps_external_tokens},
    {"has_no_common_prefix", &Semantics::has_no_common_prefix},
    {"replays_behind_lookahead_hashes", &Semantics::replays_behind_lookahead_hashes},
    {"registers_earlier_states", &Semantics::registers_earlier_states},
    {"copies_blocks_of_step", &Semantics::copies_blocks_of_step},
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_SEMANTICS_H_
