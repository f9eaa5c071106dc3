// BlendSession: one request whose prompt is put together from separately prefilled chunks, after
// CacheBlend.
//
// AddChunk collects, per layer, the K (before rotary embedding) and V that a chunk had when it was
// prefilled alone; Plan appends the suffix, which is always recomputed. RunBlend (blend_run.h) then
// prefills the whole prompt, recomputing of the chunks only the tokens that deviate most. The
// session is only read by a run, so runs can be repeated, and sessions of a batch share nothing.
//
// The collected rows are exactly the prompt's: shapes are checked, and against the prompt's ids if
// they are given, since decoding and encoding text again can change the number of tokens. Not
// thread-safe while chunks are added. Memory: K and V of every layer, copied.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_

#include <cstddef>
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
  kDecode = -1,      // the prompt is there
  kFullPrefill = 0,  // layers before the check layer: all tokens
  kCheck = 1,        // all tokens projected; those to keep recomputing are selected
  kReuse = 2,        // only selected tokens; the others keep the K and V of their chunks
};

// How a selected row is masked.
enum class BlendMask : uint8_t {
  kByPosition,
  // As published: row r of M sees j <= r + n - M, which lets rows in the middle see their future.
  // For comparison only.
  kCompatBottomRight,
};

struct BlendConfig {
  int num_layers = 1;
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1;
  int64_t hidden_size = 1;
  DType dtype = DType::kF32;  // of hidden rows, Q, K and V
  double theta = 10000;
  int64_t rotary_dim = 0;  // 0: head_dim
  RotaryPairs pairs = RotaryPairs::kHalves;

  int check_layer = 1;
  double ratio = 0.16;
  bool rank_by_keys = false;  // deviation of K, before rotation, instead of V
  BlendMask mask = BlendMask::kByPosition;
};

struct BlendChunk {
  absl::Span<const int32_t> ids;
  absl::Span<const ConstTensorView> k, v;  // per layer [ids, Hkv, D], K not rotated
  // BOS or prefix tokens at its start: kept of the first chunk, dropped of the others.
  int64_t num_leading_tokens = 0;
};

class BlendSession {
 public:
  static absl::StatusOr<BlendSession> Create(const BlendConfig& config);

  // On failure the session is as it was.
  absl::Status AddChunk(const BlendChunk& chunk);
  // `suffix`: at least one token, because the last one's logits are wanted. `prompt`: the whole
  // prompt as the model will see it, or empty; it must be the chunks and the suffix.
  absl::Status Plan(absl::Span<const int32_t> suffix, absl::Span<const int32_t> prompt = {});

  const BlendConfig& config() const { return config_; }
  bool planned() const { return suffix_len_ > 0; }
  absl::Span<const int32_t> token_ids() const { return ids_; }
  int64_t num_tokens() const { return static_cast<int64_t>(ids_.size()); }
  int64_t suffix_len() const { return suffix_len_; }
  BlendState StateOf(int layer) const;

  // [n, Hkv, D] of a layer; rows of the suffix are zero. REQUIRES: planned.
  ConstTensorView old_k(int layer) const { return Rows(k_[layer]); }
  ConstTensorView old_v(int layer) const { return Rows(v_[layer]); }

 private:
  explicit BlendSession(const BlendConfig& config)
      : config_(config), k_(config.num_layers), v_(config.num_layers) {}
  ConstTensorView Rows(const std::vector<std::byte>& bytes) const;
  int64_t RowBytes() const;

  BlendConfig config_;
  std::vector<int32_t> ids_;
  int64_t suffix_len_ = 0;                     // 0: not planned yet
  std::vector<std::vector<std::byte>> k_, v_;  // [layer]: rows of all ids_
};

// The greatest key position that each selected row sees: its own, or with kCompatBottomRight
// r + n - M.
std::vector<int32_t> QueryLimits(absl::Span<const int32_t> imp, int64_t n, BlendMask mask);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_SESSION_H_
