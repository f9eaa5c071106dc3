// Replays block tables with real rows and finds every wrong read.

#ifndef KVBLOCKS_KV_CACHE_VERIFIER_H_
#define KVBLOCKS_KV_CACHE_VERIFIER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"

// TokenValues: what a token's key, value and query are in a verified run: numbers that follow from
// the tokens up to it, its layer and a seed, so that all requests with the same prefix write the
// same rows, and a prefix that was mistaken for another shows.
//
// A prefix is named by a 64-bit digest that each further token is chained to. Values are multiples
// of 1/64 in [-2, 2), exact in every type that a cache may have. Cost: about 1 ns per value.

namespace kvblocks::attention {

enum class TokenValueKind : uint64_t { kKeyAndValue = 1, kQuery = 2, kSinkToken = 3 };

class TokenValues {
 public:
  explicit TokenValues(uint64_t seed);

  // The digest before a request's first token. Equal tokens under another salt are other content.
  uint64_t EmptyPrefix(uint64_t salt) const;
  // The digest of a prefix with one more token.
  static uint64_t Extend(uint64_t prefix, int64_t token);

  // The values of the last token of `prefix` in a layer.
  void Fill(uint64_t prefix, int64_t layer, TokenValueKind kind, absl::Span<float> out) const;

 private:
  uint64_t seed_;
};

// Plain attention: one query against a list of key and value rows, as the formula says, in float64.
//
// What paged attention is compared with. Knows no blocks: rows lie one after another in the order
// of their tokens. Shares nothing with the backends. Cost: O(rows * heads * (key + value size)).

// How a row of floats holds keys and values.
struct RowShape {
  bool is_mla = false;       // V is the first value_size columns of K; one KV head
  int64_t num_heads = 1;     // of queries
  int64_t num_kv_heads = 1;  // 1 for MLA
  int64_t key_size = 0;
  int64_t value_size = 0;

  // Keys of all heads, then values of all heads.
  int64_t floats() const { return is_mla ? key_size : num_kv_heads * (key_size + value_size); }
};

// out [num_heads, value_size] of query [num_heads, key_size] over `num_rows` rows. `sinks`, one
// logit per head or none, take part in the sum of the softmax only. No row: zeros.
void AttendPlainly(const RowShape& shape, double scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out);

// PagedMemory: the blocks of a verified run as real memory, which knows what was done to each block
// last and can make its content unusable.
//
// Pages lie where a plan puts them (PagePlace), in the caller's tensors; or, if there is no plan,
// as on a device with one page size: plane i holds layer i of every group, and a block is one page
// of each plane, large enough for the largest group. Within a page come the keys of all its rows,
// then the values; latent rows and states as they are. Rows are found here by the rule of the
// layout, and by operations through the views, so that each checks the other.
//
// What a block's content is depends on the layout: in planes and slabs, all bytes that its id
// stands for, in every group; in chunks, the page of the group that took it last, since ids of one
// chunk stand for other bytes in other groups. Poisoned floats are one particular NaN. Own memory
// is taken when it is first touched.

inline constexpr int32_t kNullBlock = 0;  // of the engine: never written to

enum class BlockEvent : uint8_t {
  kNone,
  kHandedOut,  // taken anew by a request: what was in it is void
  kLost,       // no request holds it, and no look-up may find it
  kDropped,    // the engine said so
};

struct BlockHistory {
  int64_t step = -1;     // of the event
  uint64_t request = 0;  // kHandedOut: the request that took it
  BlockEvent event = BlockEvent::kNone;
};

// Where a plan puts the layers of a verified run.
struct VerifiedMemory {
  struct Layer {
    size_t tensor = 0;
    PagePlace place = {};
  };
  std::vector<TensorView> tensors = {};  // contiguous, on the host, zeroed; they must live as long
  std::vector<Layer> layers = {};        // of all groups, in order
};

class PagedMemory {
 public:
  struct Layer {
    size_t group = 0;
    RowShape shape = {};
    int64_t block_rows = 0;
  };

  PagedMemory() = default;  // no blocks
  // `given` without layers: planes of its own. ResourceExhausted if there is not that much memory;
  // InvalidArgument or OutOfRange for places that do not hold the layers.
  static absl::StatusOr<PagedMemory> Create(int64_t num_blocks, const std::vector<Layer>& layers,
                                            const VerifiedMemory& given);

  int64_t num_blocks() const { return num_blocks_; }
  // All memory, in one piece or more.
  const std::vector<absl::Span<std::byte>>& allocations() const { return allocations_; }

  const KvCacheView& View(size_t layer) const { return layers_[layer].view; }
  // From block ids to block numbers of the view.
  const BlockMap& Map(size_t layer) const { return layers_[layer].map; }
  bool IsPage(size_t layer, int32_t block) const { return layers_[layer].map.IsPage(block); }

  // Row `offset` of a block, as plain memory has it.
  void Write(size_t layer, int32_t block, int64_t offset, const float* row);
  bool Equals(size_t layer, int32_t block, int64_t offset, const float* row) const;
  void PoisonRow(size_t layer, int32_t block, int64_t offset);
  bool IsPoisoned(size_t layer, int32_t block, int64_t offset) const;

  // One block's content to another.
  void Copy(int32_t source, int32_t target);

  // A request took the block for a group: from now on its content is that group's.
  void SetGroup(int32_t block, size_t group) {
    group_of_block_[static_cast<size_t>(block)] = static_cast<int32_t>(group);
  }
  // The event happened to a block; with `poison` its content is void. The null block: in all
  // groups.
  void Record(int32_t block, const BlockHistory& history, bool poison);

  const BlockHistory& history(int32_t block) const { return history_[static_cast<size_t>(block)]; }
  int64_t num_poisoned() const { return num_poisoned_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Placed {
    Layer layer;
    size_t tensor = 0;
    PagePlace place = {};
    std::byte* data = nullptr;  // of the tensor
    KvCacheView view = {};
    BlockMap map = {};
    // Floats of a row's parts.
    int64_t key_floats = 0, value_floats = 0;
  };
  struct Tensor {
    std::byte* data = nullptr;
    int64_t block_stride = 0;  // planes and slabs
  };

  absl::Status Place(const std::vector<Layer>& layers, const VerifiedMemory& memory);
  // Floats of the keys and of the values of a row.
  std::byte* Keys(const Placed& placed, int32_t block, int64_t offset) const;
  std::byte* Values(const Placed& placed, int32_t block, int64_t offset) const;
  // The pieces of a block's content.
  void ForEachPiece(int32_t block, int32_t group,
                    absl::FunctionRef<void(std::byte* data, int64_t bytes)> visit) const;

  int64_t num_blocks_ = 0;
  bool in_chunks_ = false;
  std::vector<Placed> layers_;
  std::vector<Tensor> tensors_;
  std::vector<absl::Span<std::byte>> allocations_;
  std::unique_ptr<std::byte[], Free> own_;
  std::vector<BlockHistory> history_;
  std::vector<int32_t> group_of_block_;  // -1: never taken
  int64_t num_poisoned_ = 0;
};

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
// both, for as many as both have; each group is attended to by itself, too.
struct VerifiedJoint {
  size_t window_group = 0, rows_group = 0;  // both with latent rows; the second without a window
  std::vector<float> sinks = {};            // a logit per query head, or none
  // Rows that an indexer chooses for each query, whose keys are the compressed rows themselves; 0:
  // all are read.
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

// The rows of a group's layers.
RowShape ShapeOf(const VerifiedGroup& group, const VerifierOptions& options);

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
  KvCacheVerifier(const KvCacheVerifier&) = delete;
  KvCacheVerifier& operator=(const KvCacheVerifier&) = delete;

  // Copies blocks, in this order: before the OnStep of the step that begins with them.
  // InvalidArgument, and nothing was done, for blocks outside the pool and for the null block.
  absl::Status CopyBlocks(absl::Span<const VerifiedCopy> copies);
  // The step's requests as scheduled, tables as the step uses them. DataLoss for a wrong number or
  // an impossible table, InvalidArgument for what cannot be a step; then nothing was done.
  absl::Status OnStep(absl::Span<const VerifiedRequest> requests);
  // The request's tokens from num_tokens on are void (rejected drafts) and will be computed again.
  absl::Status Rollback(uint64_t request, int64_t num_tokens);
  // The request gave its blocks back. Unknown requests are ignored.
  absl::Status Release(uint64_t request);
  // The content of these blocks is void, even if requests hold them.
  absl::Status Drop(absl::Span<const int32_t> blocks);

  const std::vector<VerifiedGroup>& groups() const { return options_.groups; }
  int64_t num_joint_layers() const { return static_cast<int64_t>(joints_.size()); }
  const VerifierStats& stats() const { return stats_; }
  const std::optional<VerifierFailure>& failure() const { return failure_; }

 private:
  struct Layer {
    size_t group;
    int64_t index;  // in the group
  };
  struct Held {
    std::string name;
    std::vector<uint64_t> prefixes;            // after each token in the cache
    std::vector<std::vector<int32_t>> tables;  // per group, as last seen
    std::vector<std::vector<float>> rows;      // per layer: the plain list, sink tokens first
    int64_t num_encoder_tokens = 0;
    int64_t num_tokens() const { return static_cast<int64_t>(prefixes.size()); }
  };
  struct Joint {
    size_t window_layer, rows_layer;
    size_t index;  // in the options
  };
  // What the metadata builders were made for.
  struct Room {
    int64_t num_reqs = 0, num_tokens = 0, seq_len = 0;
  };
  // A request in the step under way.
  struct Part {
    uint64_t id = 0;
    Held* held = nullptr;
    int64_t num_computed = 0;
    bool is_new = false;
    bool changed = false;  // it, or a table of it
    size_t index = 0;      // in parts_
    bool is_queried = false;
    absl::Span<const VerifiedCheckpoint> checkpoints = {};
  };
  struct Query {
    const Part* part;
    int64_t position;
  };
  // Queries of one request at successive positions, as the paged side takes them.
  struct Piece {
    size_t first_query;
    int64_t num_queries;
    int64_t num_rows;  // those that the last of the queries sees, or a window hides from it
  };
  // A block that was not where it is now in the tables of the step before.
  struct Appearance {
    int32_t block;
    uint64_t request;
    size_t group;
    bool is_new;  // no computed token lies in it
  };

  explicit KvCacheVerifier(VerifierOptions options);

  // Rows of a group in the cache: sink tokens, then stored rows.
  int64_t NumRows(const VerifiedGroup& group, int64_t num_tokens) const {
    return NumSinkRows(group) + num_tokens / group.compress_ratio;
  }
  // Rows of the group that a query sees, or a window hides from it, behind so many tokens.
  int64_t RowsSeen(const VerifiedGroup& group, const Held& held, int64_t num_tokens) const {
    return group.is_cross ? held.num_encoder_tokens : NumRows(group, num_tokens);
  }
  int64_t BlockRows(const VerifiedGroup& group) const {
    return group.block_size / group.compress_ratio;
  }
  int64_t NumSinkRows(const VerifiedGroup& group) const {
    return static_cast<int64_t>(group.sink_blocks.size()) * BlockRows(group);
  }
  int64_t FirstVisible(const VerifiedGroup& group, int64_t position) const;
  int32_t BlockOfRow(size_t g, const Held& held, int64_t row) const;
  // The token that a row stands for, the last of them if it is several; negative for sink tokens.
  int64_t TokenOfRow(const VerifiedGroup& group, int64_t row) const {
    return (row - NumSinkRows(group) + 1) * group.compress_ratio - 1;
  }
  RowShape Shape(const VerifiedGroup& group) const { return ShapeOf(group, options_); }
  const VerifiedGroup& GroupOf(size_t layer) const { return options_.groups[layers_[layer].group]; }
  std::string LayerName(size_t layer) const;
  const float* PlainRow(size_t layer, const Held& held, int64_t row) const;
  // Whether the row that the tables lead to is what the plain list has.
  bool IsAsWritten(size_t layer, const Held& held, int64_t row) const;

  void WriteSinkRows();
  absl::Status CheckStep(absl::Span<const VerifiedRequest> requests) const;
  void TakeParts(absl::Span<const VerifiedRequest> requests);
  bool ReplaceTable(const Part& part, size_t g, absl::Span<const int32_t> table);
  void Settle();
  absl::Status CheckTables();
  void MakeRoom();
  absl::Status BuildMetadata(size_t g);
  size_t FirstLayerOf(size_t g) const;
  void FillEncoderRows(Held& held, uint64_t salt, absl::Span<const int64_t> tokens);
  void AppendTokens(Held& held, uint64_t salt, absl::Span<const int64_t> tokens);
  absl::Status WriteRows(size_t g);
  absl::Status CheckEntry(const Part& part, size_t layer, int64_t entry, int64_t token);
  absl::Status ReadStates(const Part& part);
  absl::Status WriteStates(const Part& part);
  absl::Span<const float> StateOf(size_t layer, const Held& held, int64_t num_tokens);
  void WriteState(size_t layer, const Held& held, int64_t num_tokens, int32_t block);
  absl::Status ReadBack(const Part& part);
  void ChooseQueries();
  absl::Status Attend(size_t g);
  absl::Status AttendPieces(size_t layer, absl::Span<const Piece> pieces);
  absl::Status RunPaged(size_t layer, absl::Span<const Piece> pieces);
  absl::Status Compare(size_t layer);
  void AttendReference(size_t layer, const Query& query, int64_t first_row, bool with_sinks,
                       absl::Span<double> out) const;
  absl::Status CheckJoints() const;
  absl::Status AttendJointly(size_t joint);
  absl::Status RunJoint(const Joint& joint, size_t query_layer);
  void AttendReference(const Joint& joint, size_t query_layer, const Query& query,
                       absl::Span<double> out) const;
  // Rows of a joint's compressed cache that a query reads.
  std::vector<int64_t> ChosenRows(const Joint& joint, const Held& held, int64_t num_rows,
                                  absl::Span<const float> query) const;
  absl::Status CheckCompressors() const;
  absl::Status Compress(const VerifiedCompressor& compressor, size_t layer);
  absl::Status WrongJointOutput(const Joint& joint, const Query& query,
                                absl::Span<const float> got, absl::Span<const double> expected);
  // The table of a query's request for a group, as the paged side takes it.
  void AppendTable(size_t g, const Query& query, int64_t columns);
  double Scale(const RowShape& shape) const;
  static double LargestError(absl::Span<const float> got, absl::Span<const double> expected);

  absl::Status Fail(VerifierFailure failure);
  absl::Status FailedOperation(size_t layer, const char* operation, const absl::Status& status);
  absl::Status WrongRow(size_t layer, const Part& part, int64_t row);
  absl::Status WrongOutput(size_t layer, const Query& query, absl::Span<const float> got);
  std::string NameOf(uint64_t request) const;
  std::string DescribeRow(size_t layer, const Held& held, int64_t row) const;
  std::string DescribeBlock(size_t layer, int32_t block, int64_t offset) const;

  const VerifierOptions options_;
  const TokenValues values_;
  std::vector<Layer> layers_;
  std::vector<Joint> joints_;
  std::vector<std::vector<float>> sink_rows_;  // per layer
  PagedMemory memory_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Held>> held_;
  std::vector<int32_t> num_holders_;  // per block, in tables of held_
  // Per group; made anew when a step needs more room.
  std::vector<std::optional<AttentionMetadataBuilder>> builders_;
  Room room_;

  // Of the step under way; buffers are reused.
  std::vector<Part> parts_;
  std::vector<Appearance> appeared_;
  std::vector<int32_t> left_;  // blocks that a table no longer names
  std::vector<Query> queries_;
  size_t turn_ = 0;            // where the next step goes on taking queries
  std::vector<size_t> batch_;  // indices into queries_, in the order of the paged side's rows
  std::vector<float> query_values_, outputs_, new_rows_, state_, index_weights_;
  std::vector<std::vector<int32_t>> batch_rows_;  // per group: part -> row of the metadata
  std::vector<int32_t> piece_tables_, piece_rows_, piece_starts_;
  std::vector<int32_t> window_slots_, window_counts_, row_slots_, row_counts_, positions_;
  std::vector<int64_t> cross_slots_;
  std::vector<double> errors_;

  VerifierStats stats_;
  std::optional<VerifierFailure> failure_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_KV_CACHE_VERIFIER_H_
