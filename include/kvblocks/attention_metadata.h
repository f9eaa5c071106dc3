// What a batch is to attention: lengths, slots, block tables.

#ifndef KVBLOCKS_ATTENTION_METADATA_H_
#define KVBLOCKS_ATTENTION_METADATA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

// BatchInput: one step as the scheduler and the block manager hand it over. Plain values and spans;
// nothing is kept after the build.

namespace kvblocks::attention {

struct RequestInput {
  int64_t num_computed_tokens = 0;   // in the cache before this step
  int64_t num_scheduled_tokens = 0;  // new in this step, at least 1
  int64_t num_prompt_tokens = 0;     // read only where short_extends_are_decodes is false
};

struct BatchInput {
  absl::Span<const RequestInput> requests = {};
  // requests.size() x groups, request by request: the manager's block ids, as many as cover
  // computed and scheduled tokens, or more. Blocks outside a group's window may be anything.
  absl::Span<const absl::Span<const int32_t>> block_ids = {};
  bool causal = true;
  // Keys of each request's encoder, for layers of cross attention (cross_metadata()); empty: none.
  absl::Span<const int32_t> encoder_lens = {};
  // Blocks of the manager that begin every request of the step, per group; empty: none.
  absl::Span<const int64_t> num_common_prefix_blocks = {};
  // What a captured graph wants, at least the actual counts; 0: no padding.
  int64_t padded_num_reqs = 0;
  int64_t padded_num_tokens = 0;
};

// Context parallelism: tokens of every request spread over the caches of several ranks.
//
// Rank (p / I) % N keeps the token at position p, I being the interleave and N the number of ranks,
// as row p / (N * I) * I + p % I of the request in its cache. So a request's rows on a rank have no
// gaps, and a block id of the manager, which covers N * B tokens, is a block of B rows on each
// rank. This is how vLLM 0.33 spreads tokens (cp_kv_cache_interleave_size).
//
// A step on rank r, with metadata of its own builder (KvGroupConfig::context_parallel):
//   gather   the queries of all heads that the ranks have between them
//   store    new keys and values by slot_mapping, which is -1 for tokens of other ranks
//   attend   to the rows that were there before the step, local_context_lens of them: all are
//            before every query, so there is no causal rule -> a state (out, lse) per rank
//   attend   causally to the step's own keys and values, without a cache -> one more state
//   merge    the N + 1 states (MergeStates), then sinks, once
// AttentionLayer::Forward does the two middle ones: with a cache and without.
//
// Prompts may be cut over ranks as well (prefill context parallelism): PrefillShard. Windows and
// chunks do not go with this, here as in the block manager, nor do ALiBi and masks, which count
// positions that a rank's rows do not have.

struct CommonAttentionMetadata;

// With decode and prefill ranks, the number of both together: rank = prefill rank * decode ranks +
// decode rank.
struct ContextParallel {
  int32_t num_ranks = 1;
  int32_t rank = 0;
  int32_t interleave = 1;  // successive tokens on one rank; divides the rows of a block

  bool enabled() const { return num_ranks > 1; }
  bool IsLocal(int64_t position) const { return position / interleave % num_ranks == rank; }
  // The row of a token that is local.
  int64_t LocalRow(int64_t position) const {
    return position / (int64_t{num_ranks} * interleave) * interleave + position % interleave;
  }
  // How many of the first `length` tokens are local.
  int64_t LocalLength(int64_t length) const {
    const int64_t round = int64_t{num_ranks} * interleave;
    const int64_t rest = length % round - int64_t{rank} * interleave;
    return length / round * interleave + std::clamp<int64_t>(rest, 0, interleave);
  }

  friend bool operator==(const ContextParallel&, const ContextParallel&) = default;
};
// InvalidArgument unless there is such a rank and `rows_per_block` is a multiple of the interleave.
absl::Status CheckContextParallel(const ContextParallel& parallel, int64_t rows_per_block);

// The positions that a rank of prefill context parallelism has of `num_tokens` tokens. They are cut
// into 2 * N chunks of equal length, the last ones short or empty; rank r takes chunks r and
// 2 * N - 1 - r, one after the other, so that all ranks attend to as many keys.
struct ShardRows {
  int64_t first_begin = 0, first_size = 0;
  int64_t second_begin = 0, second_size = 0;

  // REQUIRES: num_tokens >= 0, 0 <= rank < num_ranks.
  static ShardRows Of(int64_t num_tokens, int32_t num_ranks, int32_t rank);
  int64_t size() const { return first_size + second_size; }
  int64_t Position(int64_t row) const {
    return row < first_size ? first_begin + row : second_begin + row - first_size;
  }
};

// The rows of a batch that each rank of prefill context parallelism computes.
//
// The new tokens of a request are cut as ShardRows says, and decodes go to the ranks round robin.
// All ranks' rows are padded to the same number, num_rows, as a gather wants them: row i of rank r
// lands in row r * num_rows + i of what was gathered.
//
//   shard.Build(meta, num_ranks, rank);
//   mine = gather(x, shard.rows());                  // -1: padding
//   ...                                              // with query_start_loc and positions
//   x = gather(all_ranks(mine), shard.restore());    // in the batch's order again
//
// Host memory; O(R * N + T). Views are good until the next Build; one that fails changes nothing.
class PrefillShard {
 public:
  // InvalidArgument for ranks that there are not, ResourceExhausted if rows of all ranks together
  // do not fit in int32.
  absl::Status Build(const CommonAttentionMetadata& meta, int32_t num_ranks, int32_t rank);

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_tokens() const { return query_start_loc_.back(); }  // without padding
  // [num_rows]: the batch's row of each, request by request, ascending; -1: padding.
  absl::Span<const int32_t> rows() const { return rows_; }
  // [R + 1]: whose rows they are.
  absl::Span<const int32_t> query_start_loc() const { return query_start_loc_; }
  // [num_tokens]: the place of each among the new tokens of its request: query_positions against
  // the keys of all new tokens.
  absl::Span<const int32_t> query_positions() const { return query_positions_; }
  // [T]: where each row of the batch is in the gathered rows.
  absl::Span<const int32_t> restore() const { return restore_; }

 private:
  std::vector<int32_t> rows_, query_positions_, restore_;
  std::vector<int32_t> query_start_loc_ = {0};
};

// KvGroupConfig: one KV-cache group as attention metadata sees it.
//
// A group counts in three units: tokens, which positions count; rows of its cache, one per token or
// one per compression_ratio tokens; and blocks, the manager's (manager_block_size tokens) and the
// kernel's (kernel_block_size rows). A manager's block is a whole number of rows and of kernel
// blocks. Over several ranks of context parallelism a manager's block is so many tokens on all of
// them together, and rows are those of one rank.
//
// Sink blocks are blocks that the manager has taken for good (SingleTypeManager::sink_blocks): rows
// of learned keys and values that every query sees. Each table begins with them, lengths count
// their rows, and positions do not: a request's token p is row num_sink_rows() + p of its table.

struct KvGroupConfig {
  int64_t manager_block_size = 16;  // tokens per block id of the manager
  int64_t kernel_block_size = 16;   // cache rows per block of the kernel
  int64_t num_blocks = 0;           // of the manager; ids are below it
  int64_t window = 0;               // in tokens, the query included; 0: full attention
  int64_t compression_ratio = 1;    // tokens per cache row
  int32_t null_block = 0;           // of the manager; never stored to; -1: there is none
  // Block numbers of the cache's view, where pages do not lie end to end (PlacePages). Tables and
  // slots then hold these.
  std::optional<BlockMap> block_map = std::nullopt;
  std::vector<int32_t> sink_blocks = {};  // of the manager; empty: none
  ContextParallel context_parallel = {};  // one rank unless said otherwise

  KvGroupKey key() const { return {kernel_block_size, window, compression_ratio}; }
  // The following REQUIRE a config that CheckKvGroup accepts.
  int64_t rows_per_block() const {
    return manager_block_size / compression_ratio / context_parallel.num_ranks;
  }
  int64_t expansion() const { return rows_per_block() / kernel_block_size; }
  // The cache's number of a manager's block, or of the first kernel block in it.
  int64_t FirstKernelBlock(int32_t id) const {
    return block_map ? block_map->First(id) : id * expansion();
  }
  int64_t num_sink_rows() const {
    return static_cast<int64_t>(sink_blocks.size()) * rows_per_block();
  }
  bool IsPage(int32_t id) const { return !block_map || block_map->IsPage(id); }
  // The first block of the manager that a query at or behind `position` may look at.
  int64_t FirstVisibleBlock(int64_t position) const {
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / manager_block_size;
  }
};

// InvalidArgument unless units fit together and a table for these bounds can be addressed.
absl::Status CheckKvGroup(const KvGroupConfig& config, int64_t max_num_reqs, int64_t max_seq_len);

// The slots of the rows of the sink blocks: where an engine stores the learned keys and values,
// once. REQUIRES: a checked config, num_sink_rows() slots.
void FillSinkSlots(const KvGroupConfig& config, int64_t* slots);

// The slots of a request's new tokens: -1 in the null block, for tokens that complete no row of
// a compressed cache, and for those of other ranks. REQUIRES: a checked config, ids that cover the
// request, one slot per new token.
void FillSlots(const KvGroupConfig& config, absl::Span<const int32_t> ids,
               const RequestInput& request, int64_t* slots);

// CommonAttentionMetadata: what one step's batch is to the attention layers of one KV-cache
// group. Built once per step, shared by all layers of the group.
//
// All arrays are views on buffers that the builder (or the embedder) owns; requests follow each
// other in the order decodes, extends, fresh prefills; token t of request b is row
// query_start_loc[b] + t. Visibility needs no mask here: lengths, `causal` and the layer's window
// say it all.

// What the batch consists of. Backends may choose kernels by it; results never depend on it.
enum class AttentionState : uint8_t {
  kPrefillNoCache,   // every query is a whole request, some longer than the decode threshold
  kPrefillCacheHit,  // no decodes, some request has cached tokens
  kDecodeOnly,       // one query token each
  kSpecDecoding,     // at most the threshold each, some more than one
  kChunkedPrefill,   // anything else
};
const char* Name(AttentionState state);

class StepPlans;  // attention_layer.h

struct CommonAttentionMetadata {
  // On the device of the step; R = num_reqs, T = num_actual_tokens, padded rows behind them.
  ConstTensorView query_start_loc;  // i32 [R + 1]: from 0 to T, non-decreasing
  ConstTensorView seq_lens;         // i32 [R]: new tokens included, and sink rows of the group
  ConstTensorView block_table;   // i32 [R, columns]: row b valid for ceil(L / block_size) entries
  ConstTensorView slot_mapping;  // i64 [T_padded]: -1 skips
  ConstTensorView positions;     // i32 [T_padded] or absent
  ConstTensorView token_to_req;  // i32 [T_padded] or absent

  // The same on the host, always there: what splits and checks read.
  absl::Span<const int32_t> host_query_start_loc;  // R + 1 (padded rows repeat T)
  absl::Span<const int32_t> host_seq_lens;         // R, exact or upper bounds

  // Of one of several ranks of context parallelism, whose rows the block table is about:
  // local_context_lens are those of each request that it held before the step. seq_lens, positions
  // and counts are the requests' own. Layers attend to that context without a causal rule.
  ContextParallel context_parallel;
  ConstTensorView local_context_lens;  // i32 [R]; absent with one rank
  absl::Span<const int32_t> host_local_context_lens;
  int32_t max_local_context_len = 0;

  // query_start_loc of the requests behind the decodes, from 0: what PrefillView needs. Absent
  // where there are no decodes (query_start_loc serves) or it was not filled.
  ConstTensorView prefill_query_start_loc;  // i32 [R - num_decodes + 1]
  absl::Span<const int32_t> host_prefill_query_start_loc;

  int64_t block_size = 0;  // of the kernel
  int32_t num_reqs = 0;
  int32_t num_actual_tokens = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;  // may be an upper bound
  bool causal = true;

  int32_t num_decodes = 0, num_decode_tokens = 0;
  int32_t num_extends = 0;
  int32_t num_prefills = 0, num_prefill_tokens = 0;  // extends included
  AttentionState attn_state = AttentionState::kDecodeOnly;
  int64_t common_prefix_len = 0;  // a multiple of block_size, or 0
  // > 0: the requests are pieces, cut at multiples of it (VirtualBatches), and positions count from
  // where a piece begins. For layers of this chunk only.
  int64_t chunk = 0;
  // The first rows of every table: of blocks that all requests share and all queries see, whatever
  // window they look through. In seq_lens, not in positions.
  int64_t sink_rows = 0;

  // Null unless attached (masks/mask_wiring.h). What is there reaches the kernels.
  MaskRef attn_mask, swa_mask, custom_mask;

  // Where the layers of a step share their plans; null: each call plans for itself.
  StepPlans* plans = nullptr;
};

// The split of a batch into decodes, extends and fresh prefills: its order, its counts, its state
// and the views on its two phases.
//
// Order: decodes (at most decode_threshold new tokens), then extends (more, and with cached
// context), then fresh prefills (nothing cached). Counting trusts that order and stops at the first
// request that is no decode. Cost: O(R); nothing is allocated.
//
// Older names for the same things, L being a length with and q_len the number of its new tokens:
//   context_lens of a prefill, num_computed_tokens     L - q_len
//   context_lens of a decode, seq_lens, kv_lens        L
//   prompt_lens, subquery lengths, extend_lens         q_len
//   query_start_loc, cu_seqlens_q, subquery_start_loc  query_start_loc
//   actual_seq_lengths, cumulative ends                query_start_loc[1:]
//   seq_start_loc, cu_seqlens_k                        running sum of L, from 0
//   prefill offsets, qo_indptr of the prefill part     query_start_loc of PrefillView

struct SplitOptions {
  int32_t decode_threshold = 1;  // or 1 + speculative tokens
  // All decodes have the same number of new tokens; padding rows of none count as decodes.
  bool require_uniform = false;
  // Otherwise a request inside its prompt is a prefill, however short.
  bool short_extends_are_decodes = true;
};

struct BatchSplit {
  int32_t num_decodes = 0, num_decode_tokens = 0;
  int32_t num_extends = 0;
  int32_t num_prefills = 0, num_prefill_tokens = 0;  // extends included

  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};

// Of a batch in order. `in_prompt` tells per request whether it has prompt tokens to compute; empty
// means none, and only options.short_extends_are_decodes == false reads it. Empty `seq_lens` leaves
// num_extends 0.
BatchSplit SplitCounts(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, absl::Span<const uint8_t> in_prompt,
                       const SplitOptions& options);

// Of the requests of query_start_loc, in any order; requests without new tokens are padding.
AttentionState StateOf(absl::Span<const int32_t> query_start_loc,
                       absl::Span<const int32_t> seq_lens, const BatchSplit& split,
                       int32_t decode_threshold);

// The decodes as a batch of their own: slices of the same buffers. Padded rows belong to it where
// there are no prefills.
CommonAttentionMetadata DecodeView(const CommonAttentionMetadata& meta);

// The extends and fresh prefills, and padded rows, with offsets from 0. FailedPrecondition where
// there are decodes and prefill_query_start_loc is absent.
absl::StatusOr<CommonAttentionMetadata> PrefillView(const CommonAttentionMetadata& meta);

// The batch of another KV group: the same lengths with other blocks. block_table i32 [R, columns]
// and slot_mapping i64 [T_padded] replace meta's; the common prefix is cut to whole blocks.
absl::StatusOr<CommonAttentionMetadata> WithBlockTable(const CommonAttentionMetadata& meta,
                                                       ConstTensorView block_table,
                                                       ConstTensorView slot_mapping,
                                                       int64_t block_size);

// The slots that a sliding window sees, listed per token: how a windowed cache is handed to kernels
// that take lists of slots.
//
// A token at position p sees keys max(p - W + 1, 0) ... p, oldest first; the rest of its row is -1.
// Sink rows, if the tables begin with some, come before them in every token's list.
// Padding tokens get length 0 and -1 throughout, so that nothing stale is left. Cost: O(T * W).

// Host tensors: query_start_loc i32 [R + 1], seq_lens i32 [R], block_table i32 [R or more, columns]
// -> indices i32 [T or more, sink_rows + W], lens i32 [T or more]. Lengths and tables count sink
// rows.
struct WindowIndicesArgs {
  int64_t window = 0;
  int64_t sink_rows = 0;
  ConstTensorView query_start_loc = {}, seq_lens = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;  // of the cache: ids are below it; 0: unknown
  TensorView indices = {}, lens = {};
};
absl::Status BuildSwaIndices(const WindowIndicesArgs& args);
// What can be checked without reading tensors, for at least `num_tokens` tokens, on any device.
absl::Status CheckTensors(const ExecContext& context, const WindowIndicesArgs& args,
                          int64_t num_tokens);

// Slots and index lists of compressed caches (DeepSeek V4): r tokens share one row, which is
// written when the last of them is there, and queries read a list of rows beside their window.
//
// All operations work on the host, refuse bad input before they write, and leave no stale entries:
// what is not used is -1, and padding tokens have length 0.

// The row that a token completes: the slot of row p / ratio if (p + 1) % ratio == 0, else -1.
// query_start_loc i32 [R + 1], positions i32 [T or more], block_table i32 [R or more, columns] in
// blocks of `block_size` rows -> slot_mapping i64 [T or more].
struct CompressedSlotsArgs {
  int64_t ratio = 1;
  ConstTensorView query_start_loc = {}, positions = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;  // of the cache: ids are below it; 0: unknown
  TensorView slot_mapping = {};
};
absl::Status BuildCompressedSlots(const CompressedSlotsArgs& args);

// Rows of a request as slots of the cache: indices i32 [T or more, K], negative ones meaning none,
// -> slots i32 [T or more, K] and counts i32 [T or more] of those that are there. `slots` may be
// `indices`.
struct TopkSlotsArgs {
  ConstTensorView query_start_loc = {}, indices = {}, block_table = {};
  int64_t block_size = 0;
  int64_t num_blocks = 0;
  TensorView slots = {}, counts = {};
};
absl::Status BuildTopkSlots(const TopkSlotsArgs& args);

// All complete rows of each token's context: 0 ... min((p + 1) / ratio, capacity) - 1, where
// capacity is the width of indices. query_start_loc, positions -> indices i32 [T or more,
// capacity], lens.
struct DenseCompressedIndicesArgs {
  int64_t ratio = 128;
  ConstTensorView query_start_loc = {}, positions = {};
  TensorView indices = {}, lens = {};
};
absl::Status BuildDenseCompressedIndices(const DenseCompressedIndicesArgs& args);

// Tokens of its context that a prefill gathers for windows of W: those that some query sees.
constexpr int64_t WindowGatherLen(int64_t query_len, int64_t seq_len, int64_t window) {
  return query_len + std::min(seq_len - query_len, window - 1);
}

// What each token of a prefill reads from a gathered buffer that holds, per request, M rows:
// `compressed_rows` (N) rows of the compressed cache, then WindowGatherLen rows of its newest
// tokens. First min((p + 1) / ratio, topk) entries of its top-k list (request-local rows, kept
// where negative), then the min(p + 1, window) tokens of its window; all as rows of the buffer.
// query_start_loc i32 [R + 1], seq_lens i32 [R], topk i32 [T or more, K] -> indices i32 [T or more,
// K + window], lens i32 [T or more]. An absent topk with ratio <= 1 is a layer with a window only.
struct PrefillIndicesArgs {
  int64_t ratio = 1;
  int64_t window = 0;
  int64_t rows_per_request = 0;  // M
  int64_t compressed_rows = 0;   // N
  ConstTensorView query_start_loc = {}, seq_lens = {}, topk = {};
  TensorView indices = {}, lens = {};
};
absl::Status CombinePrefillIndices(const PrefillIndicesArgs& args);

// What can be checked without reading tensors, for at least `num_tokens` tokens, on any device.
absl::Status CheckTensors(const ExecContext& context, const CompressedSlotsArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const TopkSlotsArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const DenseCompressedIndicesArgs& args,
                          int64_t num_tokens);
absl::Status CheckTensors(const ExecContext& context, const PrefillIndicesArgs& args,
                          int64_t num_tokens);

// AttentionMetadataBuilder: makes CommonAttentionMetadata, one per KV group, from what the
// scheduler and the block manager say of a step.
//
//   auto builder = AttentionMetadataBuilder::Create({
//       .groups = {{.manager_block_size = 16, .kernel_block_size = 16, .num_blocks = 1000}},
//       .max_num_reqs = 64, .max_num_tokens = 2048, .max_seq_len = 8192});
//   std::vector<RequestInput> requests = {{.num_computed_tokens = 40, .num_scheduled_tokens = 1}};
//   std::vector<absl::Span<const int32_t>> tables = {manager.GetBlocks(request, 0)};
//   absl::Status built = builder->Build({.requests = requests, .block_ids = tables});
//   const CommonAttentionMetadata& meta = builder->metadata(/*group=*/0);
//   // Row i of the batch is the step's request builder->permutation()[i]; lay queries out so.
//
// The result depends on the input alone. Lengths are computed + scheduled tokens, and sink rows of
// groups that have some (KvGroupConfig). Where a group is spread over ranks, slots of tokens that
// other ranks keep are -1. Table entries
// behind a request's last block, those of blocks outside a group's window and padded rows hold the
// null block. Padded rows repeat T in query_start_loc, have length 0 and slot -1; padded positions
// are 0, padded token_to_req -1. Views are good until the next Build that succeeds, and always at
// the same addresses. A Build that fails leaves metadata and permutation as they were. All arrays
// lie in one allocation, so that one copy moves a step to a device.
//
// Cost: O(R + T + block ids), about 40 ns per decode with 64 block ids; nothing allocated after
// Create. Thread-compatible.

// Sets the masks of a group's metadata: custom ones, and those of backends that ask for explicit
// ones. Called for every group of a Build, before anything is written, with metadata that has the
// step's counts, max lengths, `causal` and the lengths on the host, but no other arrays yet. A
// failure fails the Build. AttachMasks of masks/mask_wiring.h fits in.
using AttachMasksFunction =
    std::function<absl::Status(const KvGroupConfig&, CommonAttentionMetadata*)>;

struct MetadataBuilderOptions {
  std::vector<KvGroupConfig> groups = {};
  int64_t max_num_reqs = 0, max_num_tokens = 0;  // padding included
  int64_t max_seq_len = 0;
  SplitOptions split = {};
  AttachMasksFunction attach_masks = {};  // empty: the implicit path, no masks
  // Bytes per group for ragged bits of a step's custom mask. They are copied to where the arrays
  // are, and so move with these and stay at the same addresses; a step with more is refused. 0:
  // masks are left where attach_masks made them.
  int64_t max_mask_bytes = 0;
};

class AttentionMetadataBuilder {
 public:
  // InvalidArgument, or ResourceExhausted if the arrays exceed the memory of the machine.
  static absl::StatusOr<AttentionMetadataBuilder> Create(const MetadataBuilderOptions& options);
  AttentionMetadataBuilder(AttentionMetadataBuilder&&) = default;
  AttentionMetadataBuilder& operator=(AttentionMetadataBuilder&&) = default;

  // InvalidArgument, OutOfRange (block ids and tables) or ResourceExhausted (more than was created
  // for), naming request and value; requests are counted as in the input.
  absl::Status Build(const BatchInput& input);

  // Before the first Build: an empty batch.
  const CommonAttentionMetadata& metadata(int group = 0) const { return groups_[group].meta; }
  // The phases of the last batch; made when first asked for.
  const CommonAttentionMetadata& decode_view(int group = 0);
  const CommonAttentionMetadata& prefill_view(int group = 0);
  // The last batch as layers of cross attention without a cache see it: seq_lens are those of the
  // encoders, whose keys lie one after another in the order of rows; nothing is causal, and there
  // are no tables and slots. All lengths are 0 if the input had none.
  CommonAttentionMetadata cross_metadata() const;
  // Row -> index of the request in the input.
  absl::Span<const int32_t> permutation() const { return {permutation_, num_reqs()}; }

  // i32 [T_padded]: the row of each token. Made when first asked for, and from then on also in the
  // metadata of all groups.
  ConstTensorView token_to_req();

  int num_groups() const { return static_cast<int>(groups_.size()); }
  const KvGroupConfig& config(int group) const { return groups_[group].config; }
  KvGroupKey key(int group) const { return groups_[group].config.key(); }
  std::optional<int> FindGroup(const KvGroupKey& key) const;  // the first of that key
  // Everything that the views point to.
  absl::Span<const std::byte> storage() const;

 private:
  struct Group {
    KvGroupConfig config;
    int64_t expansion = 1;  // kernel blocks per manager block
    int64_t columns = 0;
    int64_t sink_columns = 0;  // the first, which stay as Create fills them
    int32_t null_kernel_block = 0;
    int32_t* block_table = nullptr;  // [max_num_reqs, columns]
    int64_t* slot_mapping = nullptr;
    int32_t* own_lens = nullptr;  // lengths with sink rows, or local context; null: neither
    std::byte* mask_bits = nullptr;  // null: no room for them
    std::vector<int32_t> filled;  // per row: entries behind it hold the null block
    // Per manager block: the check in which somebody wrote to it last.
    std::vector<uint32_t> writer;
    CommonAttentionMetadata meta, decode_view, prefill_view;
    CommonAttentionMetadata masks;  // of the batch being built; nothing else in it counts
    bool has_decode_view = false, has_prefill_view = false;
  };
  AttentionMetadataBuilder() = default;
  size_t num_reqs() const { return static_cast<size_t>(groups_[0].meta.num_reqs); }

  absl::Status Check(const BatchInput& input);
  absl::Status CheckBlocks(const BatchInput& input, size_t g);
  absl::Status FindDuplicateSlot(const BatchInput& input, size_t g);
  CommonAttentionMetadata CountPhases(const BatchInput& input);  // fills phase_
  absl::Status FetchMasks(const BatchInput& input, const CommonAttentionMetadata& scalars);
  // Fills `permutation` with the order of rows.
  void Order(absl::Span<const RequestInput> requests, const CommonAttentionMetadata& scalars,
             int32_t* permutation) const;
  CommonAttentionMetadata FillLengths(const BatchInput& input,
                                      const CommonAttentionMetadata& scalars);
  void FillGroup(const BatchInput& input, size_t g);
  void Publish(const BatchInput& input, const CommonAttentionMetadata& lengths, size_t g);
  void PublishLocalContext(Group& group);
  void PublishMasks(Group& group);

  SplitOptions split_;
  AttachMasksFunction attach_masks_;
  int64_t max_num_reqs_ = 0, max_num_tokens_ = 0, max_seq_len_ = 0, max_mask_bytes_ = 0;

  std::unique_ptr<std::byte[]> storage_;  // of all arrays below and in the groups
  size_t storage_bytes_ = 0;
  int32_t* query_start_loc_ = nullptr;
  int32_t* prefill_query_start_loc_ = nullptr;
  int32_t* seq_lens_ = nullptr;
  int32_t* encoder_lens_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* token_to_req_ = nullptr;
  int32_t* permutation_ = nullptr;
  std::vector<Group> groups_;

  // Scratch of one Build.
  std::vector<uint8_t> phase_;          // per request of the input: 0 decode, 1 extend, 2 fresh
  std::vector<int32_t> uniform_count_;  // per query length
  uint32_t check_ = 0;                  // counts checks for Group::writer
  // What masks are attached by.
  std::vector<int32_t> mask_order_, mask_query_start_loc_, mask_seq_lens_;

  int64_t padded_reqs_ = 0, padded_tokens_ = 0;  // of the last batch
  bool has_token_to_req_ = false;
};

// GraphParameters: what captured graphs of a model's steps read, by padded size.
//
// An engine captures one graph per size of a list (GraphCaptureSizes) and replays the smallest that
// a step fits into. Graphs hold addresses, so a step's lengths, tables and slots must come to where
// they were at the capture. There is one builder here; a set per size says what the graph of that
// size is captured with.
//
//   auto graphs = GraphParameters::Create(builder_options, {.sizes = GraphCaptureSizes(512)});
//   auto on_device = DeviceMetadata::Create(context, &graphs->builder());
//   for each set of graphs->sets(): capture a step with (*on_device)->OnDevice(set.metadata[group])
//   every step:  auto set = graphs->Update(input);     // or run without a graph if it is refused
//                (*on_device)->Upload(context);
//                replay the graph of (*set)->num_tokens
//
// A set's metadata never changes: it describes the size filled to the brim, every length at its
// bound. Update rewrites what its views point to: the step's rows, and behind them padding, which
// has slot -1, length 0 and the last query_start_loc again, so that kernels store nothing and
// attend to nothing. Views of all sets begin at the same addresses.
//
// Sets are for backends whose kernels read lengths on the device. A graph of one query length
// (uniform_query_len > 0) serves decodes, all of that many tokens; with 0 any step fits, and layers
// are captured with all requests as prefills (GraphLevel::kAlways). Cost: that of the builder;
// nothing is allocated after Create.
//
// Masks of a graph stay where they are and of the form that they have: ragged bits need
// max_mask_bytes, and sets are captured with as many; other masks must be the same object for every
// step, which MaskNeeds::max_seq_len sees to. A step whose masks are others is refused.

// The padded token counts that vLLM 0.33 captures: 1, 2, 4, then multiples of 8 below 256 and of 16
// from there on, up to `most`.
std::vector<int64_t> GraphCaptureSizes(int64_t most);

struct GraphParameterSet {
  int64_t num_tokens = 0;  // padded: what the set is found by
  int64_t num_reqs = 0;    // padded
  std::vector<CommonAttentionMetadata> metadata;  // per KV group: what a graph is captured with
  int64_t workspace_bytes = 0;                    // the most that some layer needs at this size
};

struct GraphParameterOptions {
  std::vector<int64_t> sizes = {};  // padded token counts, ascending
  int64_t uniform_query_len = 1;    // of every request; sizes are multiples of it. 0: any
};

class GraphParameters {
 public:
  // `options` bounds what steps are like; its max_num_tokens must be at least the largest size.
  // InvalidArgument, or what the builder refuses.
  static absl::StatusOr<GraphParameters> Create(const MetadataBuilderOptions& options,
                                                const GraphParameterOptions& graphs);
  GraphParameters(GraphParameters&&) = default;
  GraphParameters& operator=(GraphParameters&&) = default;

  // The smallest set that the step fits into, or OutOfRange that says the limit.
  absl::StatusOr<const GraphParameterSet*> Find(const BatchInput& input) const;
  // Builds the step, padded to that set, into the buffers. The input's own padding must be 0. A
  // refusal, which may also be the builder's, changes nothing.
  absl::StatusOr<const GraphParameterSet*> Update(const BatchInput& input);

  // Keeps, for every set, the larger of what it has and what `bytes_of` says that a layer needs at
  // its size. Call it for each shape of layers before memory is taken. On failure nothing changes.
  absl::Status RequireWorkspace(
      absl::FunctionRef<absl::StatusOr<int64_t>(const GraphParameterSet&)> bytes_of);

  const std::vector<GraphParameterSet>& sets() const { return sets_; }
  // Of the last step that Update built: permutation, positions, metadata with its own counts.
  AttentionMetadataBuilder& builder() { return *builder_; }

 private:
  GraphParameters() = default;
  absl::Status AddSet(int64_t size, int64_t num_reqs);
  CommonAttentionMetadata Filled(CommonAttentionMetadata meta, int64_t size);

  GraphParameterOptions graphs_;
  std::unique_ptr<AttentionMetadataBuilder> builder_;  // stays where it is when this moves
  int64_t max_seq_len_ = 0, max_mask_bytes_ = 0;
  std::vector<GraphParameterSet> sets_;
  std::vector<std::vector<int32_t>> host_;  // what host spans of sets point to
};

// The tokens that a step feeds to the model, and the rows whose logits it samples from.
//
// An engine keeps a row of token ids per request, prompt and output. With asynchronous scheduling
// it launches a step before it has seen what the last one sampled: those ids, and draft tokens of
// speculation, are on the device only, and are put in there. So the next token of a request that
// took part in the last step is read from `sampled`, its drafts from `drafts`.
//
//   logits_start_loc = {0, 1, 1, 4}: the step samples behind one row of request 0, behind none of
//   request 1 (its prompt goes on), behind three of request 2, whose last two tokens are drafts.
//
// The same structure serves the host (GatherInputTokens) and a GPU (cuda/index_ops.h, one launch).
// Cost: O(T + R).

// Batch row b is the request of row request_rows[b] of token_ids and has the q_b tokens of
// query_start_loc from position num_computed[b] on. Of n_b = logits_start_loc[b + 1] -
// logits_start_loc[b] rows that it is sampled behind, the last ones, all but the first are drafts;
// without logits_start_loc n_b is 1, and requests without tokens come last.
//
// last_rows[b] >= 0 is the request's row in the last step, whose results are on the device only:
// token q_b - n_b is sampled[last_rows[b]][0], and the k-th draft behind it
// drafts[last_rows[b]][k], if there are drafts. All other tokens, those of drafts that the host
// knows included, are token_ids[request_rows[b]][position].
//
// Padding behind the last token has id 0 and position 0; logits_indices behind the last row repeat
// it, so that whatever they select can be read.
struct InputTokensArgs {
  ConstTensorView query_start_loc = {};   // i32 [R + 1]
  ConstTensorView request_rows = {};      // i32 [R or more]
  ConstTensorView num_computed = {};      // i32 [R or more]
  ConstTensorView token_ids = {};         // i32 [rows, max_len]
  ConstTensorView logits_start_loc = {};  // i32 [R + 1] or absent
  ConstTensorView last_rows = {};         // i32 [R or more], -1: none; or absent: none at all
  ConstTensorView sampled = {};           // i32 [last rows, 1 or more]; absent iff last_rows is
  ConstTensorView drafts = {};            // i32 [last rows, K] or absent
  TensorView input_ids = {};              // i32 or i64 [T or more]
  TensorView positions = {};              // i32 or i64 [T or more] or absent
  TensorView logits_indices = {};         // i32 [rows to sample behind, or more] or absent
};
absl::Status GatherInputTokens(const InputTokensArgs& args);
// What can be checked without reading tensors, for at least `num_tokens` tokens and `num_logits`
// rows, on any device.
absl::Status CheckTensors(const ExecContext& context, const InputTokensArgs& args,
                          int64_t num_tokens, int64_t num_logits);

// VirtualBatches: chunked local attention as ordinary causal attention over pieces of requests.
//
// For chunks of C tokens, a query at position p sees keys from C * (p / C) on. Cutting each request
// at multiples of C makes every piece that holds new tokens a request of its own: its queries
// are the new tokens of the piece, its length the piece up to its last new token, its blocks the C
// / BS that begin at the piece, or as many as the table has columns. Tokens keep their order, so
// queries, slots and positions stay as they are.
//
//   VirtualBatches pieces;
//   absl::Status status = pieces.Build(builder.metadata(group), /*chunk=*/8192);
//   CommonAttentionMetadata meta = pieces.metadata();
//   status = chunked_layer.Forward(context, tensors, &meta);
//
// A layer with that chunk knows such metadata by its `chunk` and runs the kernels of plain causal
// attention, the fast ones included, which have no rule for chunks.
//
// How many pieces there are depends on positions, so this is not for captured graphs. Host memory
// only. Cost: O(pieces * C / BS); memory is kept between calls. Views are good until the next call
// that succeeds; one that fails changes nothing. Thread-compatible.

class VirtualBatches {
 public:
  struct Piece {
    int32_t request = 0;  // row of the batch that was cut
    int32_t start = 0;    // position at which the piece begins, a multiple of the chunk
  };

  // `chunk` must be a multiple of meta.block_size. Requests without queries give no pieces. A
  // custom mask, whose rows and columns are positions of whole requests, is refused.
  absl::Status Build(const CommonAttentionMetadata& meta, int64_t chunk);

  // The same pieces over the blocks of another KV group: lengths must be those that were cut.
  absl::Status UpdateBlockTable(const CommonAttentionMetadata& other_group);

  // Entries behind a request's table hold block 0 and are never needed.
  CommonAttentionMetadata metadata() const;
  absl::Span<const Piece> pieces() const { return pieces_; }

 private:
  absl::Status CheckTable(const CommonAttentionMetadata& meta, int64_t chunk) const;
  void FillTable(const CommonAttentionMetadata& meta);

  int64_t chunk_ = 0;
  CommonAttentionMetadata source_;  // scalars and per-token views; its lengths are not used
  std::vector<Piece> pieces_;
  std::vector<int32_t> query_start_loc_ = {0}, prefill_query_start_loc_, seq_lens_;
  int64_t width_ = 0;                                        // columns of block_table_
  std::vector<int32_t> block_table_;                         // [pieces, width_]
  std::vector<int32_t> cut_query_start_loc_, cut_seq_lens_;  // of the batch that was cut
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_H_
