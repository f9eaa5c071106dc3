// PromptContents: a prompt's blocks, and what pools hold of them, for routers that compare them.
//
// One prompt at a time: Hash, then ask. Pools are asked what a look-up would find now, and nothing
// in them changes. Cost: a hash per block, and per pool a look-up.

#ifndef KVBLOCKS_SIM_FLEET_PROMPT_CONTENTS_H_
#define KVBLOCKS_SIM_FLEET_PROMPT_CONTENTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/prefix_content.h"
#include "sim/engine/sim_request.h"
#include "sim/fleet/router.h"
#include "sim/replica_set.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

class PromptContents {
 public:
  // The first group that keeps all blocks of a request, whose blocks are compared; else group 0.
  static GroupId GroupOf(const KvCacheManager& manager);

  // The prompt as managers like `manager` hash it; nothing of an empty prompt, or without caching.
  void Hash(const TraceInfo& trace, const SimRequest& request, const KvCacheManager& manager,
            GroupId group);
  // That a hit can consist of: the last token is always computed.
  absl::Span<const BlockHash> blocks() const { return blocks_; }
  // Tokens that a look-up finds.
  int64_t HeldBy(const KvCacheManager& manager);

 private:
  GroupId group_ = 0;
  int64_t num_prompt_ = 0;
  std::optional<PrefixContent> content_;  // of the prompt; empty: nothing of it is hashed
  std::vector<BlockHash> blocks_;
  ComputedBlocks found_;  // scratch
  HitLists lists_;        // likewise
};

// InvalidArgument unless one prompt's hashes serve `count` replicas of the set from `first` on,
// and, for a router that compares contents, there are any.
absl::Status CheckContents(const ReplicaSet& set, size_t first, size_t count, RouterKind kind,
                           GroupId group);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_PROMPT_CONTENTS_H_
