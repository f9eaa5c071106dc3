// PagedModel: a SmallTransformer with a paged cache per layer, and steps of batches over it, for
// tests of blending. Testonly.
//
// Blocks are handed out in shuffled order; whatever nobody stored is NaN. Everything follows from
// the seed.

#ifndef KVBLOCKS_ATTENTION_BLEND_TESTING_PAGED_MODEL_H_
#define KVBLOCKS_ATTENTION_BLEND_TESTING_PAGED_MODEL_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/testing/paged_case.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/cache_blend.h"

namespace kvblocks::attention {

struct PagedModelOptions {
  int64_t block_size = 4, num_blocks = 64;
  DType dtype = DType::kF32;  // of the caches; the model has f32
  uint64_t seed = 1;
};

// A request of a step. Without a session: its tokens up to the last of the step.
struct StepRequest {
  const BlendSession* session = nullptr;
  std::vector<int32_t> ids = {};
  int64_t num_computed = 0;
  std::vector<int32_t> blocks = {};
};

class PagedModel {
 public:
  PagedModel(const SmallTransformer& model, const PagedModelOptions& options);
  PagedModel(const PagedModel&) = delete;
  PagedModel& operator=(const PagedModel&) = delete;

  // Blocks for a prompt, which nobody else has.
  std::vector<int32_t> TakeBlocks(int64_t num_tokens);
  // Metadata, sessions and embeddings of a step, by row of the metadata.
  void Build(const std::vector<StepRequest>& requests);
  // The row of a request of the last Build.
  int64_t RowOf(int64_t request) const;
  BlendStep step();
  absl::StatusOr<BlendResult> Run(const AttentionOps& ops, const ExecContext& context,
                                  const BlendModel& model);
  // Build, and Run with the model's own callbacks.
  absl::StatusOr<BlendResult> Run(const AttentionOps& ops, const ExecContext& context,
                                  const std::vector<StepRequest>& requests);

  int64_t SlotOf(const std::vector<int32_t>& blocks, int64_t position) const {
    return blocks[position / options_.block_size] * options_.block_size +
           position % options_.block_size;
  }
  // K and V [Hkv, D] of a token in the cache.
  std::byte* KeyAt(int layer, int64_t slot) { return At(layers[layer].cache.k, slot); }
  std::byte* ValueAt(int layer, int64_t slot) { return At(layers[layer].cache.v, slot); }

  const SmallTransformer& model;
  std::vector<Tensor> k, v;  // per layer
  std::vector<BlendLayer> layers;
  AttentionMetadataBuilder builder;
  std::vector<const BlendSession*> sessions;
  std::vector<int64_t> num_registered_tokens;  // by row; 0 after Build
  std::vector<float> hidden;

 private:
  static AttentionMetadataBuilder MakeBuilder(const PagedModelOptions& options);
  std::byte* At(const TensorView& cache, int64_t slot) const {
    return cache.At(slot / options_.block_size, slot % options_.block_size);
  }

  PagedModelOptions options_;
  std::vector<int32_t> free_blocks_;
};

// Final rows of request b of a result.
std::vector<float> RowsOf(const BlendResult& result, int64_t b);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_TESTING_PAGED_MODEL_H_
