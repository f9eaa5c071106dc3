// LayerFixture: steps of an attention layer over a paged cache of its own, against dense attention
// on the whole history of each request. Testonly.
//
// Requests are numbered; each has a random q, k and v row per token. A step gives some requests new
// tokens; only those rows are handed to the layer, so that whatever is not stored in time, or
// stored in the wrong place, shows.

#ifndef KVBLOCKS_ATTENTION_TESTING_LAYER_FIXTURE_H_
#define KVBLOCKS_ATTENTION_TESTING_LAYER_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "attention/testing/dense_oracle.h"
#include "attention/testing/paged_case.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention {

// CPU_REFERENCE that writes down which operations it checked and ran.
class RecordingBackend : public AttentionBackend {
 public:
  RecordingBackend();
  const char* name() const override { return "RECORDING"; }
  const AttentionOps& ops() const override;
  const BackendSupport& support() const override;
  BackendFlags flags() const override { return flags_; }

  std::vector<std::string> calls() const;
  // "check PagedDecode", "run PagedDecode".
  const std::vector<std::string>& log() const;
  void ClearCalls();
  BackendFlags flags_;

 private:
  class Ops;
  std::shared_ptr<Ops> ops_;
};

class LayerFixture {
 public:
  static constexpr int64_t kBlockSize = 4, kNumBlocks = 64;

  // Makes the layer; `layer` with num_heads 4, num_kv_heads 2, head_size 8 unless it says
  // otherwise. Of a row_format with scales cache_dtype is that of the codes; what the codes stand
  // for then is what Mismatch compares with.
  LayerFixture(LayerConfig layer, const AttentionBackend* backend, DType cache_dtype = DType::kF32);

  // New tokens per request, in order; requests of none take no part. Returns the layer's status.
  absl::Status Step(const std::vector<std::pair<int, int64_t>>& new_tokens);
  // The step's rows against dense attention: empty, or the first that is off.
  std::string Mismatch(double limit = 1e-5) const;

  // The pieces of the next step, for tests that call the layer themselves.
  void Prepare(const std::vector<std::pair<int, int64_t>>& new_tokens);
  LayerTensors tensors() const { return {q_.view, k_.view, v_.view, cache_, out_.view, 0}; }
  const CommonAttentionMetadata& metadata() const { return builder_->metadata(0); }
  void Commit();  // counts the prepared tokens as computed

  AttentionImpl& layer() { return *layer_; }
  KvCacheView cache() const { return cache_; }

  Tensor k_cache, v_cache;
  ExecContext context;  // of Step
  // Instead of the layer's causal rule, window and chunk: what Mismatch takes for hidden, by
  // positions.
  std::function<bool(int64_t i, int64_t j)> hides;

 private:
  struct RequestState {
    int64_t computed = 0;
    std::vector<double> q, k, v;  // [tokens][heads][8]
    std::vector<int32_t> blocks;
  };
  RequestState& Request(int index);
  // What the cache makes of k or v rows [tokens][heads][8].
  std::vector<double> Stored(std::vector<double> rows, const ConstTensorView& scales) const;
  void Grow(RequestState& request, int64_t tokens);

  LayerConfig config_;
  std::unique_ptr<AttentionImpl> layer_;
  KvCacheView cache_;
  std::optional<AttentionMetadataBuilder> builder_;
  std::vector<RequestState> requests_;
  std::vector<int32_t> free_blocks_;
  std::mt19937_64 random_{1};
  Tensor q_, k_, v_, out_;
  std::vector<std::pair<int, int64_t>> prepared_;  // in the order of rows
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_LAYER_FIXTURE_H_
