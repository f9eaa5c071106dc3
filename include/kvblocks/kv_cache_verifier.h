// Replays block tables with real rows and finds every wrong read.

#ifndef KVBLOCKS_KV_CACHE_VERIFIER_H_
#define KVBLOCKS_KV_CACHE_VERIFIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"

// KvCacheVerifier: a sanitizer for KV caches. Given every step of an engine, it does the step
// with real tensors and says where the first wrong number appears.
//
//   auto verifier = KvCacheVerifier::Create({.num_blocks = n, .groups = groups, .ops = &ops});
//   ... per step, behind the block manager's calls:
//   status = (*verifier)->OnStep(requests);     // DataLoss: a wrong number; failure() has details
//   ... when a request's blocks are given back (end, preemption):
//   status = (*verifier)->Release(id);
//
// Each step writes a key and a value per scheduled token and layer through the slot mapping, with
// small heads, and attends through the block tables. Beside it stands a plain list of keys and
// values per request and layer; attention over that, in float64, must give the same. What a token
// writes depends on all tokens before it, so a prefix hit must read exactly what another request
// with that prefix wrote; all rows that a request finds computed are read back bit by bit once.
//
// Content that may not be read any more is overwritten with NaN at once:
//   - a block that a request gets anew: what was in it went when it was handed out;
//   - a block that no request holds and no look-up can find (VerifierOptions::use_of_block);
//   - blocks named by Drop, and the rows of tokens taken back by Rollback.
// Layers that keep a state instead of rows write, at the end of each step, what follows from all
// tokens so far, and every step must find the state behind the tokens before it, bit by bit.
//
// A free block that is still cached keeps its content, as it must. A block of the table counts as
// new if no computed token lies in it when it first appears. A block that a request needs and that
// the engine counts as free is a failure before it is reused.
//
// Knows block ids, not managers: tables are spans of int32. Depends on attention/ only.
// Cost per step: O(scheduled tokens * layers), and for each row attended O(length * layers).
// Memory: the pool with small heads, plus a row per live token and layer. Single-threaded;
// attention runs on the pool of threads given. After a failure every call returns it.

namespace kvblocks::attention {

// Where a plan puts the layers of a verified run.
struct VerifiedMemory {
  struct Layer {
    size_t tensor = 0;
    PagePlace place = {};
  };
  std::vector<TensorView> tensors = {};  // contiguous, on the host, zeroed; they must live as long
  std::vector<Layer> layers = {};        // of all groups, in order
};

// Layers that read through one block table. At most one of window and chunk; neither with
// compression or sink blocks.
struct VerifiedGroup {
  std::string name;  // for messages
  bool is_mla = false;
  int64_t block_size = 0;                 // tokens
  int64_t window = 0;                     // tokens, the query included; 0: all
  int64_t chunk = 0;                      // of chunked local attention; 0: off
  int64_t compress_ratio = 1;             // tokens per stored row
  std::vector<float> sinks = {};          // a logit per query head, or none
  std::vector<int32_t> sink_blocks = {};  // of sink tokens, before every table of the group
  int64_t num_layers = 1;  // 0: left out; others may not read its blocks
  // A block holds the state of a recurrent layer (Mamba) behind the last token that was computed of
  // those it covers, block_size of them. A step begins with the state behind the computed tokens
  // and writes the one at its end; `at_boundaries`: also that at each end of a block on its way. No
  // window, chunk, compression or sinks.
  bool is_state = false;
  bool at_boundaries = false;
  // Rows of an encoder's input (cross attention): one per VerifiedRequest::encoder_tokens, all
  // written in the first step of the request, all seen by every query, and all read back bit by bit
  // in each later step. The table has the blocks that they take and no more. As above, nothing else
  // of these.
  bool is_cross = false;
};

// Layers whose queries see rows of two groups as one set of keys (DeepSeek V4): a window of latent
// rows, and all rows so far of a compressed cache, or those that an indexer chooses. Layer i of
// both, for as many as both have; each group is attended to by itself, too. If both are the same
// group, queries see chosen rows of it alone (DeepSeek V3.2).
struct VerifiedJoint {
  size_t window_group = 0, rows_group = 0;  // both with latent rows; the second without a window
  std::vector<float> sinks = {};            // a logit per query head, or none
  // Rows that an indexer chooses for each query, whose keys are the rows themselves; 0: all are
  // read.
  int64_t topk = 0;
};

// States that a compressor makes rows of (DeepSeek V4): of the latent rows in a window, taken as
// values and scores, CompressTokens makes a row for each query that completes one.
struct VerifiedCompressor {
  size_t states_group = 0;
  int64_t ratio = 1;     // tokens per row
  bool overlap = false;  // a row is made of 2 * ratio tokens; the window has them all
};

// What the engine's books say of a block.
enum class BlockUse : uint8_t {
  kFree,    // may not be read
  kCached,  // free, but a look-up may give it out
  kHeld,    // referenced
};

struct VerifierOptions {
  int64_t num_blocks = 0;  // null block included
  std::vector<VerifiedGroup> groups;
  std::vector<VerifiedJoint> joints = {};
  std::vector<VerifiedCompressor> compressors = {};
  // Does the paged side: ReshapeAndCache or ConcatAndCacheMla, PagedDecode, PagedPrefill,
  // MlaDecode, SparseMlaDecode, IndexTopk, CompressTokens.
  const AttentionOps* ops = nullptr;
  ThreadPool* threads = nullptr;
  // Where the layers lie, if as a plan says: float32 pages of block_size / compress_ratio rows,
  // keys before values. Without layers: planes of the verifier's own.
  VerifiedMemory memory = {};
  // Called with each piece of the memory of all blocks: backends of other devices map it.
  std::function<absl::Status(absl::Span<std::byte> memory)> on_memory = nullptr;
  // Null: blocks that no request of the verifier's holds are free, the others held.
  std::function<BlockUse(int32_t block)> use_of_block;

  bool poison = true;
  // Query rows attended per step and layer; 0: all. Requests whose tables changed have half of
  // them, the others the rest; within both it goes round.
  int64_t max_rows_per_step = 0;
  // Largest difference of an output value; values lie in [-2, 2).
  double tolerance = 1e-5;
  uint64_t seed = 0;
  int64_t num_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t head_size = 8;  // of K and V; MLA rows have half as much again for the rotary part
};

// A state that a step writes on its way, besides those of its table's rule.
struct VerifiedCheckpoint {
  size_t group = 0;
  int64_t num_tokens = 0;  // the state behind so many tokens
  int32_t block = 0;
};

// One request's part of a step.
struct VerifiedRequest {
  uint64_t id = 0;  // unique among live requests
  std::string_view name;
  uint64_t salt = 0;          // separates content that look-ups must not share
  int64_t num_computed = 0;   // tokens whose rows are in the cache, hits included
  int64_t num_scheduled = 0;  // at least 1
  // Ids of the first num_computed + num_scheduled tokens, or more.
  absl::Span<const int64_t> tokens;
  // One table per group.
  absl::Span<const absl::Span<const int32_t>> block_tables;
  absl::Span<const VerifiedCheckpoint> checkpoints = {};
  // Of cross attention: the encoder's input, the same in every step.
  absl::Span<const int64_t> encoder_tokens = {};
};

// One block's content to another.
struct VerifiedCopy {
  int32_t source = 0;
  int32_t target = 0;
};

struct VerifierStats {
  int64_t num_steps = 0;
  int64_t num_tokens = 0;          // scheduled
  int64_t num_rows_written = 0;    // tokens x layers
  int64_t num_rows_attended = 0;   // queries x layers
  int64_t num_keys_attended = 0;   // read by them
  int64_t num_joint_rows_attended = 0;  // queries x joint layers
  int64_t num_rows_compressed = 0;      // made of states again, x layers with states
  int64_t num_hit_tokens = 0;      // found computed by a request that came in
  int64_t num_rows_read_back = 0;  // of them, in reach of later tokens, x layers
  int64_t num_encoder_rows_read = 0;  // back, in steps behind those that wrote them, x layers
  int64_t num_states_read = 0;     // at the start of steps, x layers
  int64_t num_states_written = 0;  // at the end of steps and on their way, x layers
  int64_t num_blocks_poisoned = 0;
  int64_t num_blocks_copied = 0;
  double max_error = 0;
};

struct VerifierFailure {
  int64_t step = 0;  // from 0
  std::string request = {};
  int64_t layer = -1;  // over all groups
  std::string layer_name = {};
  int64_t position = -1;      // of the query; -1: found without one
  int64_t key_position = -1;  // token whose row is wrong, hidden or shown; -1: none
  int32_t block = -1;         // where that row, or else the query's, should be
  std::string text = {};      // all of it, and what is known of the block
};

class KvCacheVerifier {
 public:
  // InvalidArgument names the field; ResourceExhausted if the pool does not fit the memory.
  static absl::StatusOr<std::unique_ptr<KvCacheVerifier>> Create(VerifierOptions options);
  virtual ~KvCacheVerifier() = default;

  // Copies blocks, in this order: before the OnStep of the step that begins with them.
  // InvalidArgument, and nothing was done, for blocks outside the pool and for the null block.
  virtual absl::Status CopyBlocks(absl::Span<const VerifiedCopy> copies) = 0;
  // The step's requests as scheduled, tables as the step uses them. DataLoss for a wrong number or
  // an impossible table, InvalidArgument for what cannot be a step; then nothing was done.
  virtual absl::Status OnStep(absl::Span<const VerifiedRequest> requests) = 0;
  // The request's tokens from num_tokens on are void (rejected drafts) and will be computed again.
  virtual absl::Status Rollback(uint64_t request, int64_t num_tokens) = 0;
  // The request gave its blocks back. Unknown requests are ignored.
  virtual absl::Status Release(uint64_t request) = 0;
  // The content of these blocks is void, even if requests hold them.
  virtual absl::Status Drop(absl::Span<const int32_t> blocks) = 0;

  virtual const std::vector<VerifiedGroup>& groups() const = 0;
  virtual int64_t num_joint_layers() const = 0;
  virtual const VerifierStats& stats() const = 0;
  virtual const std::optional<VerifierFailure>& failure() const = 0;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_KV_CACHE_VERIFIER_H_
