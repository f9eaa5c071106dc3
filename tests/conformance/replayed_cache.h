// ReplayedCache: a KV-cache manager as the replayer calls it, so that one replay runs on the C++
// library and on its C interface.
//
// Only what transcripts record. Answers are values; a refused call is the status of whoever
// refused.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_
#define KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_event.h"
#include "tests/conformance/transcript.h"

namespace kvblocks::conformance {

class ReplayedCache {
 public:
  virtual ~ReplayedCache() = default;

  struct Group {
    int64_t block_size = 0;
    std::string kind = {};
    std::optional<int64_t> sliding_window = std::nullopt;
  };
  struct Facts {
    int64_t num_blocks = 0, scheduler_block_size = 0, hash_block_size = 0;
    std::vector<Group> groups = {};
    bool names_lookahead_tokens = true;  // in events
  };
  virtual const Facts& facts() const = 0;

  // One request. Destroyed before its cache.
  class Sequence {
   public:
    virtual ~Sequence() = default;
    virtual absl::Status SetNumComputed(int64_t num_tokens) = 0;
    virtual absl::Status Append(const std::vector<TokenId>& tokens) = 0;
    virtual absl::StatusOr<int64_t> LookUp() = 0;
    virtual BlockLists Hits() const = 0;  // of the latest look-up
    virtual int64_t num_hit_tokens() const = 0;
    virtual int64_t hit_boundary() const = 0;  // shared prefix that the look-up reports
    virtual absl::Status SetBoundary(int64_t num_tokens) = 0;
    // The blocks taken; empty: no space.
    virtual absl::StatusOr<std::optional<BlockLists>> Allocate(const Operation& operation) = 0;
    virtual absl::Status Free() = 0;
    virtual absl::Status Preempt() = 0;
    virtual absl::Status CacheBlocks(int64_t num_tokens) = 0;
    virtual absl::Status RemoveSkippedBlocks(int64_t num_tokens) = 0;
    virtual BlockLists Tables() const = 0;
    virtual absl::StatusOr<std::vector<int64_t>> NumCommonPrefixBlocks() const = 0;
    // Empty behind the last full block.
    virtual std::optional<BlockHash> HashOfBlock(GroupId group, int64_t position) const = 0;
    // Of the last hash block before so many tokens.
    virtual std::optional<BlockHash> HashOfPrefix(int64_t num_tokens) const = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<Sequence>> New(const Operation& operation) = 0;

  virtual absl::Status EvictBlocks(const std::vector<BlockId>& ids) = 0;
  virtual bool ResetPrefixCache() = 0;
  virtual absl::Status StartStep() = 0;
  // The copies of allocations since the last call.
  virtual std::vector<BlockCopy> TakeCopies() = 0;
  virtual absl::Status ReleaseCopies(const std::vector<BlockCopy>& copies) = 0;
  virtual std::vector<KvEvent> TakeEvents() = 0;

  struct Block {
    int32_t ref_count = 0;
    GroupId cached_group = -1;  // -1: not cached
  };
  virtual Block BlockAt(BlockId id) const = 0;
  virtual std::vector<BlockId> FreeList() = 0;
  struct Counts {
    int64_t num_free = 0, num_keys = 0;
    double usage = 0;
  };
  virtual Counts GetCounts() const = 0;
  virtual absl::Status CheckInvariants() const = 0;
};

// Which engine's transcripts: kVllm033 with everything that it does differently from our rules.
enum class Recorder { kVllm033, kVllm025 };

// What the library is asked for.
struct ManagerConfig {
  KvCacheConfig cache;
  KvCacheManagerOptions options;
};
// InvalidArgument for an unknown kind, and for a group that lacks what its kind needs.
absl::StatusOr<KvCacheSpec> SpecOf(const RecordedGroup& group);
absl::StatusOr<ManagerConfig> ManagerConfigOf(const TranscriptConfig& config, Recorder recorder);

// A manager configured as recorded, with the engines' formula for admission caps. InvalidArgument
// if the configuration makes no sense.
using MakeReplayedCache = std::function<absl::StatusOr<std::unique_ptr<ReplayedCache>>(
    const TranscriptConfig& config, Recorder recorder)>;

absl::StatusOr<std::unique_ptr<ReplayedCache>> MakeLibraryCache(const TranscriptConfig& config,
                                                                Recorder recorder);
absl::StatusOr<std::unique_ptr<ReplayedCache>> MakeCInterfaceCache(const TranscriptConfig& config,
                                                                   Recorder recorder);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_
