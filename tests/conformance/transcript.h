// Transcript: recorded calls to a KV-cache manager and what it answered, one JSON object per line.
//
// The first line is the configuration, every other line one operation with its inputs and the
// observed outputs. Parsing checks the format, the kind of every value and the ranges that
// replaying relies on; it knows nothing of block managers.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_
#define KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_event.h"
#include "tests/conformance/field_reader.h"

namespace kvblocks::conformance {

struct TranscriptConfig {
  std::string name;
  int64_t num_blocks = 0;
  std::vector<RecordedGroup> groups;
  int64_t hash_block_size = 0;
  int64_t scheduler_block_size = 0;
  bool enable_caching = false;
  bool use_eagle = false;
  bool enable_events = false;
  int64_t max_model_len = 0;
  int64_t max_in_flight_tokens = 0;
  bool append_all = false;  // free order "fifo"; otherwise "unhashed_first"
  // Of vLLM 0.33 on; older transcripts lack them.
  std::optional<int64_t> retention_interval = std::nullopt;
  int64_t hash_lookahead = 0;
  int64_t prefill_lookahead = 0;
  bool records_boundaries = false;  // and allocations with hits put them on their request
  bool has_no_partial_keys = false;
  double watermark = 0;  // every allocation finds something scheduled
  int64_t decode_context_parallel = 1;
};

// What happened to the hash table, in order.
struct TableChange {
  enum class Kind { kStored, kRemoved, kCleared, kStoredTail, kMoved };

  Kind kind = Kind::kCleared;
  GroupId group = 0;
  int64_t from = 0;  // kStored: positions [from, to), and the block of each, 0 where not registered
  int64_t to = 0;
  std::vector<BlockId> blocks;  // kRemoved, kStoredTail: the one block; kMoved: source and target
  int64_t num_tokens = 0;       // kStoredTail: what the key stands for
  bool is_further_key = false;  // kRemoved, kStoredTail: beside another key of the block
};

// State after an operation: number of free blocks, checksums of queue, keys and references, changes
// of the hash table.
struct RecordedState {
  int64_t num_free = 0;
  uint32_t queue_crc = 0;
  uint32_t key_crc = 0;
  uint32_t ref_crc = 0;
  std::vector<TableChange> changes;
};

struct RecordedDigest {
  std::vector<BlockId> queue;
  BlockLists cached;
  int64_t num_keys = 0;
  double usage = 0;
};

struct Operation {
  std::string op;
  std::string id;

  // Inputs.
  std::vector<TokenId> prompt;
  std::string salt;
  std::string lora;
  bool skip_reading = false;
  int64_t num_new = 0;
  bool use_hits = false;
  int64_t num_hit_tokens = 0;
  int64_t num_lookahead = 0;
  int64_t num_external = 0;
  bool delay = false;
  bool gate = false;
  int64_t n = 0;  // cache, trim
  std::vector<BlockId> ids;  // evict
  std::vector<std::pair<std::string, int64_t>> computed;               // comp
  std::vector<std::pair<std::string, std::vector<TokenId>>> appended;  // app

  // Outputs; what an operation does not record stays empty.
  std::optional<RecordedState> state;
  std::optional<RecordedDigest> digest;
  std::optional<BlockLists> hits;    // get
  int64_t hit_tokens = 0;            // get
  int64_t boundary = 0;              // get, where boundaries are recorded
  std::optional<BlockLists> blocks;  // alloc; empty: no space
  std::vector<std::pair<BlockId, BlockId>> copies;  // alloc: source and target of each
  std::optional<BlockLists> tables;  // ids
  std::vector<int64_t> common;       // common
  bool ok = false;                   // reset
};

// InvalidArgument says which field is missing or wrong.
absl::StatusOr<TranscriptConfig> ParseConfig(const std::string& line);
absl::StatusOr<Operation> ParseOperation(const std::string& line);

// Token of document `doc` at `position`.
TokenId TranscriptToken(int64_t doc, int64_t position);

// ReplayedCache: a KV-cache manager as the replayer calls it, so that one replay runs on the C++
// library and on its C interface.
//
// Only what transcripts record. Answers are values; a refused call is a status.

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

#endif  // KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_
