// CrossAttentionManager: groups whose layers attend to the encoder. A request takes blocks for the
// encoder's tokens once, with its first allocation that names them, and keeps them to its end.
//
// Nothing is shared, registered or looked up, so such groups need a manager without prefix cache.

#ifndef KVBLOCKS_MANAGERS_CROSS_ATTENTION_MANAGER_H_
#define KVBLOCKS_MANAGERS_CROSS_ATTENTION_MANAGER_H_

#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class CrossAttentionManager : public SingleTypeManager {
 public:
  CrossAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : SingleTypeManager(spec, options, pool, {.has_own_layout = true, .can_drop = false}) {}

  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
    for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
    return 0;
  }

 protected:
  int64_t NumSkippedTokensImpl(int64_t) const override { return 0; }
  int64_t NumNewBlocks(const GroupBlocks*, int64_t size, const SlotDemand& demand, int64_t,
                       bool) const override {
    return std::max<int64_t>(0, block_size_.CeilDiv(demand.num_encoder_tokens) - size);
  }
  void AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) override {
    const int64_t size = static_cast<int64_t>(held.table.size());
    held.num_new = std::max<int64_t>(0, block_size_.CeilDiv(demand.num_encoder_tokens) - size);
    if (held.num_new > 0) pool_->TakeBlocks(held.num_new, held.table, group());
  }
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_CROSS_ATTENTION_MANAGER_H_
