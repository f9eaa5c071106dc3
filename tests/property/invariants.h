// What a run of the property tests looks at: requests on both sides, snapshots of all observable
// state, and the invariants of the block manager that hold after every operation, checked on the
// library's state alone; those of the pool by CheckInvariants.

#ifndef KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_
#define KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvblocks/kv_cache_manager.h"
#include "tests/oracle/manager.h"

namespace kvblocks::property {

// The same request on both sides of a comparison.
struct LiveRequest {
  std::unique_ptr<Request> real;
  oracle::Request model;

  // The latest look-up.
  ComputedBlocks real_hits;
  oracle::Hits model_hits;

  // Since the request last got its first blocks: the largest number of tokens counted as processed,
  // and of slots asked for.
  int64_t max_processed = 0;
  int64_t max_slots = 0;

  void SetComputed(int64_t computed, int64_t inflight) {
    model.num_computed = computed;
    model.num_inflight = inflight;
    real->set_num_computed_tokens(computed);
    real->set_num_inflight_tokens(inflight);
  }
  void SetSharedBoundary(int64_t num_tokens) {
    model.shared_boundary = num_tokens;
    real->set_shared_prefix_boundary(num_tokens);
  }
  void SetStatus(oracle::Status status) {
    model.status = status;
    real->set_status(static_cast<RequestStatus>(status));
  }
};
static_assert(static_cast<int>(oracle::Status::kFinished) ==
              static_cast<int>(RequestStatus::kFinished));

// --- All observable state of a manager, to compare before and after a call ---

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

// --- Invariants ---

// "": all hold. Else the name of the first that does not, and what shows it.
std::string BrokenInvariant(const KvCacheManager& manager,
                            const std::vector<LiveRequest>& requests);

// INV-12 and INV-13 for the answer of a look-up.
std::string BrokenHitInvariant(const KvCacheManager& manager, const Request& request,
                               const ComputedBlocks& hits);

// INV-20: real ids of a table do not change, except where scratch blocks of states give way;
// INV-19: what became null stays null. For a request that held blocks before and still does.
std::string BrokenTableInvariant(const KvCacheManager& manager, const Tables& before,
                                 const Tables& after);

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_
