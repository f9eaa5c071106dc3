// EvictionPolicy: which cached block that nobody references is reused next.
//
// The pool's default is its free queue, least recently released first, tails before heads, and has
// no policy object unless blocks can be retained. Any other policy is one of these: it hears what happens to cached blocks and
// names victims among the candidates, which are the blocks that may go now. EvictionIndex decides
// what is a candidate, so that no policy can take a block that is in use or that cached blocks
// build upon.
//
// Order of the calls for a block: Insert; then Enter when it becomes a candidate and Leave when it
// stops being one, in turn; Hit each time a look-up found it; Remove at the end, never while it is
// a candidate. Cost: O(log n) per call, O(1) where a class says so. Nothing is allocated per call,
// but for the keys of blocks that were evicted, which arc, lirs, s3fifo and hazard remember. Not
// thread-safe.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

enum class EvictionPolicyKind : uint8_t {
  kLru,     // least recently released: the pool's own queue
  kFifo,    // longest in the cache
  kLfu,     // fewest uses, then least recently released
  kSlru,    // segmented LRU: what was used twice has up to 4/5 of the pool
  kS3Fifo,  // a small queue for newcomers, a main queue with second chances, and a memory of keys
  kSieve,   // a queue with a hand that spares what was used since it passed
  kArc,     // adaptive replacement: recency and frequency, balanced by what was evicted too early
  kHazard,  // lowest chance of reuse per unit of time, as learnt so far (see HazardPolicy)
  kLirs,      // what was used twice within a short time has most of the pool (see LirsPolicy)
  kWTinyLfu,  // a window for newcomers; into the main part only who is used more than its victim
  kGdsf,      // lowest uses x cost of computing it again, with ageing (see GdsfPolicy)
  kPriority,  // lowest priority of retention, then least recently released (see PriorityPolicy)
  kTtl,       // earliest end of retention or last release (see TtlPolicy)
};

// "lru", "fifo", "lfu", "slru", "s3fifo", "sieve", "arc", "hazard", "lirs", "w-tinylfu", "gdsf",
// "priority", "ttl".
std::string_view EvictionPolicyName(EvictionPolicyKind kind);
// InvalidArgument, with the list of names, for another one.
absl::StatusOr<EvictionPolicyKind> ParseEvictionPolicy(std::string_view name);
// "arc|fifo|..." for usage texts and errors.
std::string EvictionPolicyNames();
// priority and ttl: retained blocks stand among the others, where the policy ranks them.
bool RanksRetainedBlocks(EvictionPolicyKind kind);

struct BlockRetention;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The block holds content with this key from now on, num_tokens of it.
  virtual void Insert(BlockId id, uint64_t key, int64_t num_tokens) = 0;
  virtual void Hit(BlockId id) = 0;
  // A request gave back these blocks of one table, the deepest first. Inserted blocks only.
  virtual void Release(absl::Span<const BlockId> deepest_first) = 0;
  virtual void Enter(BlockId id) = 0;
  virtual void Leave(BlockId id) = 0;
  // The candidate that should go; it stays a candidate. kNullBlockId when there is none, or to leave
  // the choice to the pool's queue, where the least recently released block stands in front.
  virtual BlockId Victim() = 0;
  // The block lost its content, to make room if `was_evicted`.
  virtual void Remove(BlockId id, bool was_evicted) = 0;
  // As after construction.
  virtual void Clear() = 0;

  // Of policies that rank retained blocks; under others these are no candidates, and nothing of
  // this is called. A block that is no candidate now is retained this way; null: no longer.
  virtual void SetRetention(BlockId, const BlockRetention*) {}
  virtual void AdvanceTime(int64_t) {}
  virtual bool ranks_retained() const { return false; }
  virtual absl::Status CheckInvariants() const = 0;
};

// What a policy may ask the index about a cached block.
class CachedPrefixes {
 public:
  virtual ~CachedPrefixes() = default;
  // Cached blocks that build upon it.
  virtual int32_t NumChildren(BlockId id) const = 0;
  // Tokens of its content that come before it, cached or not.
  virtual int64_t NumTokensBefore(BlockId id) const = 0;
};

// `prefixes` must outlive the policy; hazard can do without, gdsf cannot.
std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(EvictionPolicyKind kind, int32_t num_blocks,
                                                   const CachedPrefixes* prefixes);
// Host memory that a pool of so many blocks takes for it, at most.
int64_t EvictionPolicyBytes(EvictionPolicyKind kind, int64_t num_blocks);

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_POLICY_H_
