// CacheBlend: KV caches of text chunks joined, with some tokens computed again.

#ifndef KVBLOCKS_CACHE_BLEND_H_
#define KVBLOCKS_CACHE_BLEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/tensor_view.h"

// BlendSession: one request whose prompt is put together from separately prefilled chunks, after
// CacheBlend.
//
// A session says, layer by layer, what of the prompt exists already: the first
// `num_computed_tokens` tokens, a prefix-cache hit, are in the paged cache and only looked at; then
// come rows of chunks, whose K and V were made when each chunk was prefilled alone; then the
// suffix, which is always computed. RunBlend (blend_run.h) prefills what is not computed,
// recomputing of the chunks only the tokens that deviate most.
//
// Layers go through states (StateOf): kFullPrefill before the first check layer, where all rows are
// computed; kCheck at a check layer, where the rows that came so far are projected, their new K and
// V replace the old ones, and those that deviate most, with the suffix, go on as queries; kReuse at
// all others, where only rows that went on are projected and the rest keep the K and V of their
// chunks. Each check selects among the rows that the one before left, so its ratio must not be
// larger.
//
// A session keeps views, not copies: memory of K and V, on the host or a device, must outlive its
// runs. It is only read by them, so runs can be repeated, and sessions of a batch share nothing.
// Not thread-safe while chunks are added. Cost: O(tokens + chunks * layers) bytes of its own.

namespace kvblocks::attention {

// What a layer does for a request.
enum class BlendState : int8_t {
  kDecode = -1,      // no prompt is being prefilled: a decode, or a request without a session
  kFullPrefill = 0,  // layers before the first check layer: all tokens
  kCheck = 1,        // the rows so far projected; those to keep recomputing are selected
  kReuse = 2,        // only selected tokens; the others keep the K and V of their chunks
};

// How a selected row is masked.
enum class BlendMask : uint8_t {
  kByPosition,
  // As published: row r of M sees j <= r + n - M, which lets rows in the middle see their future.
  // For comparison only.
  kCompatBottomRight,
};

// What a run stores in layers that reuse chunks.
enum class BlendStore : uint8_t {
  kAllRows,  // the rows of the chunks, rotated to their positions, and the recomputed ones over
             // them
  // The recomputed ones. The cache holds those of the chunks already, rotated to their positions.
  kNewRows,
};

// A layer that selects, and how much of the chunks goes on behind it: floor(ratio * their tokens +
// 1e-6).
struct BlendCheck {
  int layer = 1;
  double ratio = 0.16;
};

struct BlendConfig {
  int num_layers = 1;
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1;
  int64_t hidden_size = 1;
  DType dtype = DType::kF32;  // of hidden rows, Q, K and V
  double theta = 10000;
  int64_t rotary_dim = 0;  // 0: head_dim
  RotaryPairs pairs = RotaryPairs::kHalves;

  // Of this on, sessions of a batch may differ.
  std::vector<BlendCheck> check_layers = {{.layer = 1, .ratio = 0.16}};  // ascending
  bool rank_by_keys = false;  // deviation of K, at equal positions, instead of V
  BlendMask mask = BlendMask::kByPosition;
  BlendStore store = BlendStore::kAllRows;
};

struct BlendChunk {
  absl::Span<const int32_t> ids;
  // Per layer [ids, Hkv, D]. Both empty if all tokens of the chunk are computed already.
  absl::Span<const ConstTensorView> k = {}, v = {};
  // The position of each token that its K has been rotated for; empty: K is not rotated. What is in
  // the cache of a chunk prefilled alone has 0, 1, 2, ...
  absl::Span<const int32_t> rotated_for = {};
  // BOS or prefix tokens at its start: kept of the first chunk, dropped of the others.
  int64_t num_leading_tokens = 0;
};

// Rows of a chunk that a session may reuse; they follow each other in the prompt.
struct BlendPiece {
  int64_t position = 0;  // in the prompt, of the first
  int64_t num_rows = 0;
  std::vector<ConstTensorView> k, v;  // per layer [num_rows, Hkv, D]
  std::vector<int32_t> rotated_for;   // per row; 0 for K that is not rotated
};

class BlendSession {
 public:
  // The first `num_computed_tokens` of the prompt are in the cache: hits of the block manager. A
  // hit may end inside a chunk.
  static absl::StatusOr<BlendSession> Create(const BlendConfig& config,
                                             int64_t num_computed_tokens = 0);

  // On failure the session is as it was.
  absl::Status AddChunk(const BlendChunk& chunk);
  // `suffix`: at least one token, because the last one's logits are wanted. `prompt`: the whole
  // prompt as the model will see it, or empty; it must be the chunks and the suffix.
  absl::Status Plan(absl::Span<const int32_t> suffix, absl::Span<const int32_t> prompt = {});

  const BlendConfig& config() const { return config_; }
  bool planned() const { return suffix_len_ > 0; }
  absl::Span<const int32_t> token_ids() const { return ids_; }
  int64_t num_tokens() const { return static_cast<int64_t>(ids_.size()); }
  int64_t num_computed_tokens() const { return num_computed_; }
  int64_t suffix_len() const { return suffix_len_; }
  // Rows that a run begins with: tokens behind the computed ones. Of them the first num_old_rows()
  // have K and V of a chunk.
  int64_t num_rows() const { return num_tokens() - num_computed_; }
  int64_t num_old_rows() const { return num_old_rows_; }
  absl::Span<const BlendPiece> pieces() const { return pieces_; }

  BlendState StateOf(int layer) const;
  // Rows that attend in a layer.
  int64_t NumAttendedRows(int layer) const;

 private:
  explicit BlendSession(const BlendConfig& config, int64_t num_computed)
      : config_(config), num_computed_(num_computed) {}

  BlendConfig config_;
  int64_t num_computed_ = 0;
  std::vector<int32_t> ids_;
  int64_t suffix_len_ = 0;  // 0: not planned yet
  int64_t num_old_rows_ = 0;
  std::vector<BlendPiece> pieces_;
};

// What is refused of the model that a configuration describes, whatever it says of blending.
absl::Status CheckBlendModel(const BlendConfig& config);

// BlendWork: the memory that a blended prefill works in, on the device that it runs on.
//
// One stretch of bytes from the caller holds everything; nothing else is allocated on a device.
// What depends on which rows are selected (their hidden rows, queries, positions, slots) has two
// places each: a selection gathers from one into the other. The integers are made on the host and
// copied once per run: how many rows go on in each layer follows from the ratios, so nothing is
// read back.

// The largest batch: its requests, their new tokens, and the longest of them.
struct BlendBounds {
  int64_t max_num_reqs = 0, max_num_tokens = 0, max_seq_len = 0;
};

// Bytes to provide for a batch within the bounds. InvalidArgument for negative ones, or more than
// 2^63 bytes.
absl::StatusOr<int64_t> BlendWorkBytes(const BlendConfig& config, const BlendBounds& bounds);

// What travels with a row from layer to layer.
struct BlendRowTensors {
  TensorView hidden;     // [T, E]
  TensorView q;          // [T, H, D]
  TensorView positions;  // i32 [T]
  TensorView slots;      // i64 [T]
  TensorView origins;    // i32 [T]: which row of its request it was at first
};

struct BlendWork {
  BlendRowTensors rows[2];
  TensorView k_new, v_new;  // [T, Hkv, D], as projected
  TensorView k_old, v_old;  // [T, Hkv, D], of chunks; requests begin where their rows do
  TensorView picked;        // [T, Hkv, D], old rows of those that a later check selects among
  TensorView attention;     // [T, H, D]
  TensorView selected;      // i32 [T]
  TensorView limits;    // i32 [T]: positions up to which rows see, where these are not their own
  TensorView integers;  // i32, copied from the host
};

// `memory`: dense u8[n], aligned to 16 bytes, at least BlendWorkBytes. ResourceExhausted if it is
// less.
absl::StatusOr<BlendWork> MakeBlendWork(const BlendConfig& config, const BlendBounds& bounds,
                                        const TensorView& memory);

// RunBlend: one step of a batch in which some requests prefill prompts of chunks (BlendSession) and
// the others are as ever: decodes, whole prompts, chunks of prompts. One call per layer and
// operation serves all of them, over the paged cache of the block manager.
//
// Per layer: the rows that are still there are projected; K of the reused chunk rows is rotated by
// the difference between where it stands and what it was rotated for, from the chunk's memory into
// the work memory, never in place, so nothing is rotated twice; the cache takes old rows first and
// new ones over them; at a check layer rows are selected and taken along; then all rows attend
// through the block table, each to the keys up to its own position (BlendMask::kByPosition), those
// of a prefix-cache hit among them. Blocks of the hit are read only.
//
// With ratio 1 the result is the full prefill, bit for bit where the model and the operations treat
// rows one by one; with ratio 0 only the suffix is computed behind the check layer. Results of a
// request do not depend on the others. What a blend leaves in the cache is not what a full prefill
// would: no other request may hit blocks with such rows. Make the request with
// skip_writing_prefix_cache, which holds for all of its steps, decodes included; a run is refused
// if the prefix cache has a block that the session writes (BlendStep::num_registered_tokens).
//
// On a device everything stays there: nothing is read back, and one copy of integers goes to it
// before the first layer. The run itself enqueues operations and calls the model; BlendStep says
// whose the memory is. All layers are of one KV group. Bad input is refused before the first call
// of the model; an error of the model or an operation leaves the step's own slots unspecified.

// Moments of a run that can be measured. On a device these are moments of the stream: record an
// event.
enum class BlendMoment : uint8_t {
  kRunBegins,
  kSelectionBegins,  // of all sessions that check in the layer
  kSelectionEnds,
  kLayerEnds,
  kHiddenRowsAreThere,  // behind the last layer: what remains of the time to first token is the
                        // head
};

// The model, a layer at a time. Rows of all requests follow each other.
struct BlendModel {
  // q [rows, H, D], k and v [rows, Hkv, D] of hidden [rows, E], before rotary embedding.
  std::function<absl::Status(int layer, const ConstTensorView& hidden, const TensorView& q,
                             const TensorView& k, const TensorView& v)>
      project;
  // PagedPrefill of rotated queries; args come with scale D^-1/2, causal, the scales of the cache,
  // and the position of every row.
  std::function<absl::Status(int layer, const PagedPrefillArgs& args)> attend;
  // Adds to hidden [rows, E] what the layer makes of attention [rows, H, D].
  std::function<absl::Status(int layer, const ConstTensorView& attention, const TensorView& hidden)>
      finish;
  // Optional; layer is -1 for moments that have none.
  std::function<void(BlendMoment moment, int layer)> at = {};
};

struct BlendLayer {
  KvCacheView cache;
  KvScales scales = {};  // of a quantised cache
};

// Tensors are on the context's device.
struct BlendStep {
  // Of the step, by AttentionMetadataBuilder: causal, without masks; host_seq_lens exact.
  const CommonAttentionMetadata* metadata = nullptr;
  // By row of the metadata; null: a request whose rows are all computed in every layer. A session's
  // request has all tokens behind its computed ones in this step.
  absl::Span<const BlendSession* const> sessions;
  // By row of the metadata, if there is a session: so many first tokens of the request have blocks
  // that others may hit (KvCacheManager::GetNumRegisteredTokens; 0 without a prefix cache). Of a
  // session's request they may not reach behind its computed tokens; other rows are ignored.
  absl::Span<const int64_t> num_registered_tokens;
  absl::Span<const BlendLayer> layers;
  ConstTensorView hidden;  // [T, E]: embeddings of the step's tokens; not changed
  // u8, BlendWorkBytes of it, aligned to 16 bytes. May be absent on the host: the result then owns
  // what the run allocates.
  TensorView work;
  // Copies to the device in the order of the stream, and returns when `from` may be reused. Needed
  // on devices only.
  std::function<absl::Status(std::byte* to, absl::Span<const std::byte> from)> upload = {};
};

struct BlendLayerReport {
  int64_t projected_rows = 0;
  int64_t attended_rows = 0;      // queries
  int64_t recomputed_rows = 0;    // projected, of tokens whose K and V a chunk has
  int64_t bytes_from_chunks = 0;  // K and V read from chunks, to compare and to store
  int64_t bytes_stored = 0;  // K and V sent to the cache, before its own type: of chunks and new
  // By the host's clock, which on a device sees operations enqueued, not done.
  double selection_microseconds = 0;
  double ended_microseconds = 0;  // since the run began
};

struct BlendResult {
  BlendResult() = default;
  BlendResult(BlendResult&&) = default;  // a copy's views would look into the original
  BlendResult& operator=(BlendResult&&) = default;

  // On the context's device, in the work memory.
  ConstTensorView hidden;     // [rows, E]: final rows of all requests
  ConstTensorView positions;  // i32 [rows]
  // Request b has rows [row_start[b], row_start[b + 1]); the last is the one to sample from.
  std::vector<int32_t> row_start;
  std::vector<BlendLayerReport> layers;
  std::unique_ptr<std::byte[]> memory;  // if the step had no work memory
};

// `config` says what model it is. Sessions agree with it in that and may differ in the rest. `ops`
// select, gather, rotate and store. A batch without tokens gives an empty result.
absl::StatusOr<BlendResult> RunBlend(const AttentionOps& ops, const ExecContext& context,
                                     const BlendConfig& config, const BlendStep& step,
                                     const BlendModel& model);

// SmallTransformer: a decoder of random weights in plain code, to show and test what blending of
// cached chunks does to a model's output.
//
// Pre-norm layers of grouped-query attention and SwiGLU, RMSNorm without weights, rotary embedding,
// tied embedding and output head. Weights are normal, scaled by fan-in, and follow from the seed
// alone. Every row is computed by itself, in float64 in a fixed order, and rounded to float32 per
// layer, so a row's bits do not depend on what else is in a batch. Nothing is trained: outputs mean
// nothing, differences between them do.

struct SmallTransformerConfig {
  int num_layers = 6;
  int64_t vocabulary = 128;
  int64_t hidden_size = 48;
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 12;
  int64_t ffn_size = 96;
  double theta = 10000;
  // Queries times this: how far attention is from the mean over all keys.
  double sharpness = 1;
  uint64_t seed = 1;
};

// A prompt prefilled in full.
struct PrefilledPrompt {
  std::vector<int32_t> ids;
  std::vector<float> hidden;             // [n, E], final
  std::vector<std::vector<float>> k, v;  // [layer]: [n, Hkv, D], K not rotated
};

class SmallTransformer {
 public:
  explicit SmallTransformer(const SmallTransformerConfig& config);

  const SmallTransformerConfig& config() const { return config_; }
  // Shapes and rotary embedding filled in; check layers, ranking and mask at their defaults.
  BlendConfig blend_config() const;

  std::vector<float> Embed(absl::Span<const int32_t> ids) const;  // [n, E]
  // Of one final hidden row.
  std::vector<double> Logits(absl::Span<const float> hidden) const;

  // The callbacks of a layer, over float32 rows.
  absl::Status Project(int layer, const ConstTensorView& hidden, const TensorView& q,
                       const TensorView& k, const TensorView& v) const;
  absl::Status Finish(int layer, const ConstTensorView& attention, const TensorView& hidden) const;
  // With `ops` for attention. Both must outlive the result.
  BlendModel Model(const AttentionOps& ops, const ExecContext& context) const;

  // Plain causal prefill of a prompt alone, without any of the blending code.
  absl::StatusOr<PrefilledPrompt> Prefill(const AttentionOps& ops, const ExecContext& context,
                                          absl::Span<const int32_t> ids) const;

 private:
  struct Layer {
    std::vector<float> q, k, v;   // [out, E]
    std::vector<float> o;         // [E, H * D]
    std::vector<float> gate, up;  // [F, E]
    std::vector<float> down;      // [E, F]
  };

  SmallTransformerConfig config_;
  std::vector<float> embedding_;  // [vocabulary, E]
  std::vector<Layer> layers_;
};

// The chunk of a prompt that was prefilled alone; views on `prompt`, which must outlive them.
struct ChunkViews {
  ChunkViews() = default;
  ChunkViews(ChunkViews&&) = default;  // a copy's chunk would look into the original
  ChunkViews& operator=(ChunkViews&&) = default;

  std::vector<ConstTensorView> k, v;
  BlendChunk chunk;
};
ChunkViews ViewsOf(const PrefilledPrompt& prompt, const SmallTransformerConfig& config,
                   int64_t num_leading_tokens);

// CompareWithPrefill: how far a blended prefill's final rows are from those of a full one.
//
// On the host, in float64: O(rows * E). For examples, benchmarks and tests.

struct BlendDeviation {
  double largest = 0, mean = 0;  // of |blended - full| over all elements; a NaN in either stays one
  double relative = 0;           // |blended - full| / |full| as vectors; 0 where they are equal
};

// rows [M, E] of a blend at positions i32 [M], against full [n, E], the rows of a full prefill from
// `first_position` on.
absl::StatusOr<BlendDeviation> CompareWithPrefill(const ConstTensorView& rows,
                                                  const ConstTensorView& positions,
                                                  const ConstTensorView& full,
                                                  int64_t first_position = 0);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_CACHE_BLEND_H_
