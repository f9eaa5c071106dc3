// Transcript: recorded calls to a KV-cache manager and what it answered, one JSON object per line.
//
// The first line is the configuration, every other line one operation with its inputs and the
// observed outputs. Parsing checks the format, the kind of every value and the ranges that
// replaying relies on; it knows nothing of block managers.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_
#define KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/block.h"
#include "kvblocks/kv_cache_manager.h"
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

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_TRANSCRIPT_H_
