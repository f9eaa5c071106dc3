// BlendSession: one request whose prompt is put together from separately prefilled chunks, after
// CacheBlend.
//
// A session says, layer by layer, what of the prompt exists already: the first
// `num_computed_tokens` tokens, a prefix-cache hit, are in the paged cache and only looked at; then
// come rows of chunks, whose K and V were made when each chunk was prefilled alone; then the suffix,
// which is always computed. RunBlend (blend_run.h) prefills what is not computed, recomputing of the
// chunks only the tokens that deviate most.
//
// Layers go through states (StateOf): kFullPrefill before the first check layer, where all rows are
// computed; kCheck at a check layer, where the rows that came so far are projected, their new K and V
// replace the old ones, and those that deviate most, with the suffix, go on as queries; kReuse at all
// others, where only rows that went on are projected and the rest keep the K and V of their chunks.
// Each check selects among the rows that the one before left, so its ratio must not be larger.
//
// A session keeps views, not copies: memory of K and V, on the host or a device, must outlive its
// runs. It is only read by them, so runs can be repeated, and sessions of a batch share nothing. Not
// thread-safe while chunks are added. Cost: O(tokens + chunks * layers) bytes of its own.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/tensor/tensor_view.h"

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
  kAllRows,  // the rows of the chunks, rotated to their positions, and the recomputed ones over them
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
  // The first `num_computed_tokens` of the prompt are in the cache: hits of the block manager. A hit
  // may end inside a chunk.
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

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_
