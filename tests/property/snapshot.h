// Snapshot: all observable state of a KvCacheManager, to compare before and after a call.

#ifndef KVBLOCKS_TESTS_PROPERTY_SNAPSHOT_H_
#define KVBLOCKS_TESTS_PROPERTY_SNAPSHOT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvblocks/tests/property/live_request.h"

namespace kvblocks::property {

using Tables = std::vector<std::vector<BlockId>>;  // per group

struct Snapshot {
  std::vector<BlockId> queue;  // with chunks, class by class
  std::vector<int32_t> refs;
  std::vector<int> key_groups;    // -1: no key
  std::vector<BlockHash> hashes;  // of keyed blocks, else zero
  std::vector<Tables> tables;     // per live request
  std::vector<bool> holds;

  std::vector<int> page_classes;  // with chunks; -1: no page

  // Unreferenced blocks. With chunks not all are in a queue.
  int64_t num_free() const {
    if (page_classes.empty()) return static_cast<int64_t>(queue.size());
    return std::count(refs.begin(), refs.end(), 0);
  }

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

inline Snapshot Take(const KvCacheManager& manager, const std::vector<LiveRequest>& requests) {
  Snapshot snapshot;
  const BlockPool& pool = manager.pool();
  snapshot.queue = pool.WalkFree();
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    snapshot.refs.push_back(block.ref_count);
    snapshot.key_groups.push_back(block.key_group);
    snapshot.hashes.push_back(block.has_key() ? pool.hash(id) : BlockHash());
  }
  if (pool.chunks() != nullptr) {
    snapshot.page_classes.push_back(-1);
    for (BlockId id = 1; id < pool.num_blocks(); ++id) {
      snapshot.page_classes.push_back(pool.chunks()->ClassOfPage(id));
    }
  }
  for (const LiveRequest& request : requests) {
    snapshot.tables.push_back(manager.GetBlockIds(*request.real));
    snapshot.holds.push_back(manager.HoldsBlocks(*request.real));
  }
  return snapshot;
}

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_SNAPSHOT_H_
