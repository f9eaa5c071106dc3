// Plans that the layers of a step share: one per shape, results as without them to the bit, also in
// graphs. Runs emulated and on GPUs.

#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/testing/device_mirror.h"
#include "attention/cuda/testing/replay.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kQHeads = 4, kKvHeads = 2, kBlockSize = 16, kPoolBlocks = 160, kRequests = 3;

Tensor Normals(std::vector<int64_t> extents, uint64_t seed) {
  Tensor tensor(DType::kBF16, std::move(extents));
  std::mt19937_64 random(seed);
  tensor.Set(NormalDraws(random, tensor.view.num_elements()));
  return tensor;
}

// Decodes through layers over caches of random rows. No fixture: GoogleTest makes those of tests
// that are skipped, too, and without a GPU this cannot be made.
class LayersOfAStep {
 protected:
  LayersOfAStep() {
    EXPECT_EQ(CreateStream(&context_.stream), 0);
    auto builder = AttentionMetadataBuilder::Create(
        {.groups = {{.manager_block_size = kBlockSize,
                     .kernel_block_size = kBlockSize,
                     .num_blocks = kPoolBlocks}},
         .max_num_reqs = kRequests,
         .max_num_tokens = kRequests,
         .max_seq_len = 800});
    builder_ = std::make_unique<AttentionMetadataBuilder>(*std::move(builder));
    uploaded_ = std::move(DeviceMetadata::Create(context_, builder_.get())).value();
  }
  ~LayersOfAStep() {
    EXPECT_EQ(Synchronize(context_.stream), 0);
    EXPECT_EQ(on_.flags(), 0u);
    uploaded_.reset();
    EXPECT_EQ(DestroyStream(context_.stream), 0);
  }

  void AddLayer(int64_t head_size, int64_t window, SplitPolicy split, bool split_as_vllm = false) {
    layers_.push_back(CudaBackend()
                          .MakeImpl({.name = "layer",
                                     .num_heads = kQHeads,
                                     .num_kv_heads = kKvHeads,
                                     .head_size = head_size,
                                     .window = window,
                                     .split = split,
                                     .split_as_vllm = split_as_vllm})
                          .value());
    outs_.push_back(std::make_unique<Mirror>(out_));
  }
  // A step of requests that have so many tokens before it.
  void Upload(const std::vector<int64_t>& computed) {
    std::vector<RequestInput> requests;
    for (const int64_t tokens : computed) requests.push_back({tokens, 1});
    std::vector<std::vector<int32_t>> blocks(computed.size());
    std::vector<absl::Span<const int32_t>> tables;
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (int32_t i = 0; i < 50; ++i) blocks[b].push_back(1 + 50 * static_cast<int32_t>(b) + i);
      tables.push_back(blocks[b]);
    }
    ASSERT_EQ(builder_->Build({.requests = requests, .block_ids = tables}), absl::OkStatus());
    ASSERT_EQ(uploaded_->Upload(context_), absl::OkStatus());
  }
  absl::Status Forward(const CommonAttentionMetadata& metadata) {
    absl::Status status;
    for (size_t i = 0; i < layers_.size() && status.ok(); ++i) {
      const int64_t dim = layers_[i]->config().head_size;
      const auto rows = [&](const Mirror& mirror, const TensorView& view) {
        return *(*mirror.Of(view).Slice(0, 0, metadata.num_actual_tokens)).Slice(2, 0, dim);
      };
      const TensorView cache = *cache_copy_.Of(rows_.view).Slice(4, 0, dim);
      status = layers_[i]->Forward(context_,
                                   {.q = rows(q_copy_, q_.view),
                                    .k = rows(k_copy_, k_.view),
                                    .v = rows(v_copy_, v_.view),
                                    .cache = {KvLayout::kNhd, *cache.Select(0, 0),
                                              *cache.Select(0, 1)},
                                    .out = rows(*outs_[i], out_.view)},
                                   &metadata);
    }
    return status;
  }
  std::vector<std::vector<std::byte>> Outputs() {
    EXPECT_EQ(Synchronize(context_.stream), 0);
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& out : outs_) bytes.push_back(out->Bytes());
    return bytes;
  }
  std::vector<std::vector<std::byte>> OutputsWithoutPlans() {
    CommonAttentionMetadata metadata = uploaded_->metadata();
    metadata.plans = nullptr;
    EXPECT_EQ(Forward(metadata), absl::OkStatus());
    return Outputs();
  }

  Tensor q_ = Normals({kRequests, kQHeads, 128}, 1), k_ = Normals({kRequests, kKvHeads, 128}, 2);
  Tensor v_ = Normals({kRequests, kKvHeads, 128}, 3), out_ = Normals({kRequests, kQHeads, 128}, 4);
  Tensor rows_ = Normals({2, kPoolBlocks, kBlockSize, kKvHeads, 128}, 5);
  const Mirror q_copy_{q_}, k_copy_{k_}, v_copy_{v_};
  DeviceContext on_;
  ExecContext context_ = on_.context;
  std::unique_ptr<AttentionMetadataBuilder> builder_;
  std::unique_ptr<DeviceMetadata> uploaded_;
  std::vector<std::unique_ptr<AttentionImpl>> layers_;
  std::vector<std::unique_ptr<Mirror>> outs_;
  const Mirror cache_copy_{rows_};
};

struct OnePlanServesTheLayersOfAType : LayersOfAStep {
  void Run() {
    for (int i = 0; i < 3; ++i) {
      AddLayer(64, 0, SplitPolicy::Fixed(32));
      AddLayer(64, 40, SplitPolicy::Fixed(32));
      AddLayer(128, 0, SplitPolicy::Count(3));
    }
    int64_t plans = 0;
    for (const std::vector<int64_t>& computed :
         std::vector<std::vector<int64_t>>{{100, 3, 150}, {101, 4, 151}, {102, 5}}) {
      Upload(computed);
      ASSERT_EQ(Forward(uploaded_->metadata()), absl::OkStatus());
      plans += 3;  // not 9
      EXPECT_EQ(uploaded_->plans().num_decode_plans(), plans);
      EXPECT_EQ(Outputs(), OutputsWithoutPlans());
    }
    // The same step again, as where it is captured behind a first run, plans again.
    ASSERT_EQ(Forward(uploaded_->metadata()), absl::OkStatus());
    EXPECT_EQ(uploaded_->plans().num_decode_plans(), plans + 3);
  }
};
TEST(StepPlansTest, OnePlanServesTheLayersOfAType) {  // AT-65
  OnePlanServesTheLayersOfAType().Run();
}

struct LayersSplitAsVllmDoes : LayersOfAStep {
  void Run() {
    // V1, one pass, of up to 512 keys; V2, partitions of 512, where there is little else to do.
    AddLayer(64, 0, {}, /*split_as_vllm=*/true);
    AddLayer(64, 0, SplitPolicy::None());
    AddLayer(64, 0, SplitPolicy::Fixed(512));
    for (const auto& [longest, policy] : {std::pair(511, 1), std::pair(700, 2)}) {
      Upload({longest, 3, 30});
      const int64_t before = uploaded_->plans().num_decode_plans();
      ASSERT_EQ(Forward(uploaded_->metadata()), absl::OkStatus());
      // It shares a plan with the layer of its policy.
      EXPECT_EQ(uploaded_->plans().num_decode_plans() - before, 2);
      const auto outputs = Outputs();
      EXPECT_EQ(outputs[0], outputs[policy]);
    }
  }
};
TEST(StepPlansTest, LayersSplitAsVllmDoes) {
  LayersSplitAsVllmDoes().Run();
}

struct FewRequestsNeedNone : LayersOfAStep {
  void Run() {
    AddLayer(64, 0, {});
    Upload({100, 3, 150});
    ASSERT_EQ(Forward(uploaded_->metadata()), absl::OkStatus());
    EXPECT_EQ(uploaded_->plans().num_decode_plans(), 0);
    EXPECT_EQ(Outputs(), OutputsWithoutPlans());
  }
};
TEST(StepPlansTest, FewRequestsNeedNone) {
  FewRequestsNeedNone().Run();
}

struct GraphsPlanForTheLengthsThatTheyFind : LayersOfAStep {
  void Run() {
    for (int i = 0; i < 2; ++i) AddLayer(64, 0, SplitPolicy::Fixed(32));
    Upload({20, 3, 30});
    CommonAttentionMetadata metadata = uploaded_->metadata();
    metadata.max_seq_len = 800;
    // As an engine does: a run, then the capture, in one step.
    ASSERT_EQ(Forward(metadata), absl::OkStatus());
    Replay replay(context_.stream);
    replay.Capture([&] { return Forward(metadata); });
    const int64_t plans = uploaded_->plans().num_decode_plans();
    EXPECT_EQ(plans, IsEmulation() ? 1 : 2);
    for (const std::vector<int64_t>& computed :
         std::vector<std::vector<int64_t>>{{100, 7, 150}, {101, 159, 12}}) {
      Upload(computed);
      replay.Run();
      EXPECT_EQ(Outputs(), OutputsWithoutPlans());
    }
  }
};
TEST(StepPlansTest, GraphsPlanForTheLengthsThatTheyFind) {  // AT-94
  GraphsPlanForTheLengthsThatTheyFind().Run();
}

struct WithoutMemoryLayersPlanForThemselves : LayersOfAStep {
  void Run() {
    for (int i = 0; i < 2; ++i) AddLayer(64, 0, SplitPolicy::Fixed(32));
    Upload({100, 3, 150});
    StepPlans none;
    CommonAttentionMetadata metadata = uploaded_->metadata();
    metadata.plans = &none;
    ASSERT_EQ(Forward(metadata), absl::OkStatus());
    EXPECT_EQ(none.num_decode_plans(), 0);
    EXPECT_EQ(Outputs(), OutputsWithoutPlans());
  }
};
TEST(StepPlansTest, WithoutMemoryLayersPlanForThemselves) {
  WithoutMemoryLayersPlanForThemselves().Run();
}

}  // namespace
}  // namespace kvblocks::attention::cuda
