// Drafting: what a kind of drafter means for scheduler, block manager and prefix cache.
//
//   ApplyDrafts({.drafter = Drafter::kEagle, .num_draft_tokens = 3}, &config);
//
// What follows from the kind, with K drafts per step:
//
//   drafter               lookahead    draft   last hit block or hash     prefill
//                         slots        slots   lookahead (see below)      lookahead
//   ngram                 0            0       nothing                    0
//   eagle, mtp            K            0       1 token                    1
//   parallel_eagle        K            K-1     1 token                    1
//   mtp_modules           K            0       K tokens                   K
//   draft_model           K            1       nothing                    0
//   parallel_draft_model  K            K       nothing                    0
//   dflash                K+1          0       nothing                    1
//   dspark                K            0       nothing                    1
//
// What the drafters in the middle cache depends on the token behind, too. From vllm-0.33 on the
// hash of a block covers that many tokens behind it, and a hit ends where the drafter can go on;
// before, and without lookahead hashes, a look-up gives its last block back. Draft slots count
// against the engine's second budget, since vllm-0.28 (V-10, V-71, V-80, V-111). Windows keep what
// a drafter may compute again (V-100), and Mamba groups K further states for every drafter (V-108).

#ifndef KVBLOCKS_SIM_DRAFTING_H_
#define KVBLOCKS_SIM_DRAFTING_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace kvblocks::sim {

struct SimulationConfig;

enum class Drafter {
  kNgram,
  kEagle,
  kParallelEagle,
  kMtp,         // one module, run K times
  kMtpModules,  // K modules
  kDraftModel,
  kParallelDraftModel,
  kDFlash,
  kDSpark,
};

std::string_view DrafterName(Drafter drafter);
std::optional<Drafter> ParseDrafter(std::string_view name);

struct DraftOptions {
  Drafter drafter = Drafter::kNgram;
  int64_t num_draft_tokens = 0;  // K per step; 0: none, whatever the drafter
  bool lookahead_hashes = true;  // where drafter and engine version have them
};

// Sets everything in `config` that depends on drafts. To be called after engine version and prefix
// caching are set. InvalidArgument for a drafter that the version does not have.
absl::Status ApplyDrafts(const DraftOptions& drafts, SimulationConfig* config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_DRAFTING_H_
