// ComputedBlocks: the answer of a prefix look-up, to be handed to AllocateSlots of the same
// request.
//
// Per group a list of blocks that hold the request's first num_tokens() tokens; null blocks stand
// where no later token needs the data. A value without references: nothing is pinned, so blocks may
// be reused until AllocateSlots adopts them, which refuses a list gone stale.

#ifndef KVBLOCKS_MANAGERS_COMPUTED_BLOCKS_H_
#define KVBLOCKS_MANAGERS_COMPUTED_BLOCKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

using HitLists = absl::InlinedVector<std::vector<BlockId>, 1>;

class ComputedBlocks {
 public:
  // No hit.
  ComputedBlocks() = default;

  // Lists put together by the caller, one per group; AllocateSlots checks every block of them.
  ComputedBlocks(HitLists lists, int64_t num_tokens)
      : lists_(std::move(lists)), num_tokens_(num_tokens) {}

  // Tokens that need not be computed.
  int64_t num_tokens() const { return num_tokens_; }

  // Length of the longest prefix any group could have served if it is longer than the hit, else 0:
  // a prefix that other requests share but a sparsely kept group does not hold.
  int64_t shared_prefix_boundary() const { return shared_prefix_boundary_; }

  // Tokens behind the hit that were hit, too, but are computed again, for windows that are not cached.
  int64_t num_replayed_tokens() const { return num_replayed_tokens_; }

  // REQUIRES: 0 <= group < num_groups().
  absl::Span<const BlockId> blocks(GroupId group) const {
    return lists_[static_cast<size_t>(group)];
  }
  size_t num_groups() const { return lists_.size(); }
  // No block in any list, null or real.
  bool empty() const {
    for (const std::vector<BlockId>& list : lists_) {
      if (!list.empty()) return false;
    }
    return true;
  }

 private:
  friend class KvCacheManager;

  HitLists lists_;
  int64_t num_tokens_ = 0;
  int64_t shared_prefix_boundary_ = 0;
  int64_t num_replayed_tokens_ = 0;
  // Whose look-up this was, and the pool's removal epoch then: at the same epoch no block can have
  // lost its key.
  uint64_t request_serial_ = 0;
  uint64_t manager_serial_ = 0;
  uint64_t removal_epoch_ = 0;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_COMPUTED_BLOCKS_H_
