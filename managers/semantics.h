// Semantics: which vLLM's rules a KV-cache manager follows, to the letter.
//
//   KvCacheManagerOptions options{.max_model_len = 8192};           // as vLLM 0.33
//   options.semantics = Semantics::Vllm025();                       // as vLLM 0.25
//   options.semantics.retention_interval = 1024;                    // denser registration
//
// Four things that vLLM 0.33 does are left out by default, because a cache could then hold, or a
// look-up find, what nothing can use or what was not computed yet, or because consumers of events
// could not follow the cache. Each has a switch, and
// Vllm033Exactly() has all of them set, to compare answers with the engine's one by one.
// Numbers like V-3 are rules of docs/semantics.md, which also says what each does to hit rates.

#ifndef KVBLOCKS_MANAGERS_SEMANTICS_H_
#define KVBLOCKS_MANAGERS_SEMANTICS_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvblocks {

struct Semantics {
  std::string_view name = "vllm-0.33";

  // As before 0.33. Registration is dense. The block that a draft group drops ends before the last
  // token (V-12), sparse registration takes no notice of the drop (V-3), and draft flags act without
  // use_eagle, too (V-13). With partial_hits the tail of a prompt is registered at its last hash
  // boundary if its block is not full by then (V-20 to V-22). AllocateSlots needs a token to compute
  // beside hits (V-40). A window of one token keeps a block, a window's hit is aligned once (V-36),
  // tokens beyond max_model_len are refused (V-41), and the admission gate subtracts what a hit
  // covers before it caps a window's need (V-42).
  bool is_025 = false;

  // Windowed and Mamba groups register sparsely: what serves hits at multiples of so many tokens
  // (a multiple of the scheduler block size), and at the ends of the prompt and of the prefix that
  // others share (Request::shared_prefix_boundary). 0: only the latter two. None: whatever some hit
  // can use. Without such groups 0 changes nothing. V-1.
  std::optional<int64_t> retention_interval = 0;

  // Tails of prompts are registered also where no look-up can use them: in full-attention groups, and
  // inside a block of states where a step ends there and groups drop. V-20, V-115.
  bool registers_unusable_tails = false;
  // A state is registered whenever its block is there, also where the step that ended at it is not the
  // latest: with steps in flight, states behind outputs. Otherwise only what the latest step left is.
  // And of a boundary inside a block, sparse registration keeps the last state before it. V-6.
  bool registers_earlier_states = false;
  // Hits are used as the look-up gave them: also where a block was evicted since (V-36), and where a
  // hit ends inside a block that the same step computes, so that the copy comes before what the step
  // writes (BM-121). Otherwise the former are refused, and the latter wait.
  bool trusts_hits = false;

  // One BlockStored per registration, also where nothing of it is kept, with the tokens of all its
  // positions; otherwise one per run of kept blocks. V-61.
  bool one_event_per_registration = false;

  static Semantics Vllm033() { return {}; }
  static Semantics Vllm025() {
    return {.name = "vllm-0.25", .is_025 = true, .retention_interval = std::nullopt};
  }
  static Semantics Vllm033Exactly() {
    return {.name = "vllm-0.33-exactly",
            .registers_unusable_tails = true,
            .registers_earlier_states = true,
            .trusts_hits = true,
            .one_event_per_registration = true};
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

// The switches by name, for texts and other languages.
struct SemanticsSwitch {
  const char* name;
  bool Semantics::*member;
};
inline constexpr SemanticsSwitch kSemanticsSwitches[] = {
    {"registers_unusable_tails", &Semantics::registers_unusable_tails},
    {"registers_earlier_states", &Semantics::registers_earlier_states},
    {"trusts_hits", &Semantics::trusts_hits},
    {"one_event_per_registration", &Semantics::one_event_per_registration},
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_SEMANTICS_H_
