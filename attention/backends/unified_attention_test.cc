// T-29: order and failures of hooks; and the look-up of layers and metadata by name.

#include "kvblocks/attention_layer.h"

#include "attention/testing/layer_fixture.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"

namespace kvblocks::attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Writes down when it was called relative to the operations.
class RecordingHooks : public LayerHooks {
 public:
  explicit RecordingHooks(RecordingBackend* backend) : backend_(backend) {}
  absl::Status WaitForLayer(const std::string& layer, const ExecContext&) override {
    TakeCalls();
    events.push_back("wait " + layer);
    return wait_result;
  }
  absl::Status SaveLayer(const std::string& layer, const ConstKvCacheView& cache,
                         const CommonAttentionMetadata& metadata, const ExecContext&) override {
    TakeCalls();
    events.push_back("save " + layer);
    saved_cache = cache.k.data;
    saved_metadata = &metadata;
    return save_result;
  }
  void TakeCalls() {
    for (const std::string& call : backend_->calls()) events.push_back(call);
    backend_->ClearCalls();
  }

  absl::Status wait_result, save_result;
  std::vector<std::string> events;
  const std::byte* saved_cache = nullptr;
  const CommonAttentionMetadata* saved_metadata = nullptr;

 private:
  RecordingBackend* backend_;
};

class UnifiedAttentionTest : public ::testing::Test {
 protected:
  UnifiedAttentionTest() : fixture_({}, &backend_), hooks_(&backend_) {
    fixture_.Prepare({{0, 5}});
    AddLayer("layer0", "");
    AddLayer("layer1", "layer0");
    forward_.SetMetadata(&fixture_.metadata());
    forward_.SetHooks(&hooks_, /*has_connector_metadata=*/true);
  }
  void AddLayer(const char* name, const char* shares) {
    auto layer = backend_.MakeImpl({.name = name,
                                    .num_heads = 4,
                                    .num_kv_heads = 2,
                                    .head_size = 8,
                                    .shares_cache_of = shares});
    ASSERT_TRUE(layer.ok());
    // A layer that shares must not need a cache of its own.
    const KvCacheView cache = *shares == '\0' ? fixture_.cache() : KvCacheView();
    ASSERT_EQ(forward_.AddLayer(*std::move(layer), cache), absl::OkStatus());
  }
  absl::Status Attend(const std::string& name) {
    const LayerTensors t = fixture_.tensors();
    return UnifiedAttention({}, forward_, name, t.q, t.k, t.v, t.out);
  }

  RecordingBackend backend_;
  LayerFixture fixture_;
  RecordingHooks hooks_;
  ForwardContext forward_;
};

TEST_F(UnifiedAttentionTest, WaitWriteAttendSavePerLayer) {
  ASSERT_EQ(Attend("layer0"), absl::OkStatus());
  ASSERT_EQ(Attend("layer1"), absl::OkStatus());
  EXPECT_THAT(hooks_.events,
              ElementsAre("wait layer0", "ReshapeAndCache", "PagedPrefill", "save layer0",
                          "wait layer1", "PagedPrefill", "save layer1"));
  EXPECT_EQ(hooks_.saved_cache, fixture_.cache().k.data);
  EXPECT_EQ(hooks_.saved_metadata, &fixture_.metadata());
  fixture_.Commit();
  EXPECT_EQ(fixture_.Mismatch(), "");  // layer1 found the keys of layer0
}

TEST_F(UnifiedAttentionTest, FailedWaitStopsTheLayer) {
  hooks_.wait_result = absl::DeadlineExceededError("load of layer0 took too long");
  EXPECT_EQ(Attend("layer0"), hooks_.wait_result);
  hooks_.TakeCalls();
  EXPECT_THAT(hooks_.events, ElementsAre("wait layer0"));
}

TEST_F(UnifiedAttentionTest, FailedAttentionIsNotSaved) {
  LayerTensors t = fixture_.tensors();
  EXPECT_FALSE(UnifiedAttention({}, forward_, "layer0", *t.q.Slice(0, 0, 2), t.k, t.v, t.out).ok());
  EXPECT_THAT(hooks_.events, ElementsAre("wait layer0"));
}

TEST_F(UnifiedAttentionTest, FailedSaveIsTheResult) {
  hooks_.save_result = absl::UnavailableError("store is gone");
  EXPECT_EQ(Attend("layer0"), hooks_.save_result);
}

TEST_F(UnifiedAttentionTest, HooksAreSkippedWhenProfilingOrWithoutConnectorMetadata) {
  forward_.SetMetadata(static_cast<const CommonAttentionMetadata*>(nullptr));
  EXPECT_EQ(Attend("layer0"), absl::OkStatus());
  for (double value : ValuesOf(fixture_.tensors().out)) EXPECT_EQ(value, 0);
  EXPECT_THAT(hooks_.events, IsEmpty());
  forward_.SetMetadata(&fixture_.metadata());
  forward_.SetHooks(&hooks_, /*has_connector_metadata=*/false);
  EXPECT_EQ(Attend("layer0"), absl::OkStatus());
  EXPECT_THAT(hooks_.events, IsEmpty());
}

TEST_F(UnifiedAttentionTest, MetadataPerLayerAndPerModel) {
  ForwardContext::MetadataByLayer by_layer = {{"layer0", &fixture_.metadata()}};
  forward_.SetMetadata(by_layer);
  EXPECT_EQ(Attend("layer0"), absl::OkStatus());
  EXPECT_EQ(Attend("layer1").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Attend("layer1"), Says("layer1"));
  // Element 0 is the base model's.
  const ForwardContext::MetadataByLayer draft = {{"layer1", nullptr}};
  forward_.SetMetadata(std::vector<ForwardContext::MetadataByLayer>{by_layer, draft});
  EXPECT_EQ(Attend("layer0"), absl::OkStatus());
  EXPECT_EQ(Attend("layer1").code(), absl::StatusCode::kNotFound);
  forward_.SetMetadata(std::vector<ForwardContext::MetadataByLayer>{});
  EXPECT_EQ(Attend("layer0").code(), absl::StatusCode::kNotFound);
}

TEST_F(UnifiedAttentionTest, UnknownAndDoubleLayersAreNamed) {
  EXPECT_EQ(Attend("layer9").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Attend("layer9"), Says("layer9"));
  AddLayer("orphan", "nobody");
  EXPECT_THAT(Attend("orphan"), Says("shares the cache of nobody"));
  AddLayer("grandchild", "layer1");
  EXPECT_EQ(Attend("grandchild").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Attend("grandchild"), Says("shares that of layer0"));
  AddLayer("narcissus", "narcissus");
  EXPECT_EQ(Attend("narcissus").code(), absl::StatusCode::kFailedPrecondition);
  auto again =
      backend_.MakeImpl({.name = "layer0", .num_heads = 4, .num_kv_heads = 2, .head_size = 8});
  EXPECT_EQ(forward_.AddLayer(*std::move(again), {}).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(UnifiedAttentionTest, SparseLayersAreFoundWithTheMetadataOfTheirGroups) {
  LayerConfig config{.name = "c4", .num_heads = 4, .window = 3, .latent_rank = 8};
  config.sparse = {.compress_ratio = 4, .names = {.compressed = "c4.rows", .states = "c4.states"}};
  ASSERT_EQ(forward_.AddLayer(*backend_.MakeImpl(config), fixture_.cache()), absl::OkStatus());
  config.name = "nameless", config.sparse.names = {};
  ASSERT_EQ(forward_.AddLayer(*backend_.MakeImpl(config), fixture_.cache()), absl::OkStatus());
  const auto status_of = [&](const char* name) { return forward_.Find(name).status(); };
  EXPECT_THAT(status_of("c4"), Says("layer c4 has caches of several groups"));
  CommonAttentionMetadata rows, states;
  ForwardContext::MetadataByLayer by_name = {{"c4", &fixture_.metadata()},
                                             {"nameless", &fixture_.metadata()},
                                             {"c4.rows", &rows}};
  forward_.SetMetadata(by_name);
  EXPECT_THAT(status_of("c4"), Says("no metadata for layer c4.states"));
  EXPECT_THAT(status_of("nameless"), Says("layer nameless has no sparse.names.compressed"));
  by_name["c4.states"] = &states;
  forward_.SetMetadata(by_name);
  const auto found = forward_.Find("c4");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->metadata, &fixture_.metadata());
  EXPECT_EQ(found->sparse.compressed, &rows);
  EXPECT_EQ(found->sparse.states, &states);
  EXPECT_THAT(Attend("c4"), Says("layer c4 is sparse; give"));
  const SparseInputs none;
  const LayerTensors t = fixture_.tensors();
  forward_.SetMetadata(&fixture_.metadata());
  EXPECT_THAT(UnifiedAttention({}, forward_, "layer0", t.q, t.k, t.v, t.out, 0, &none),
              Says("layer layer0 is not sparse; give"));
}

TEST_F(UnifiedAttentionTest, InputsAreNotMutated) {
  const LayerTensors t = fixture_.tensors();
  const auto q = ValuesOf(t.q), k = ValuesOf(t.k), v = ValuesOf(t.v);
  ASSERT_EQ(Attend("layer0"), absl::OkStatus());
  EXPECT_EQ(ValuesOf(t.q), q);
  EXPECT_EQ(ValuesOf(t.k), k);
  EXPECT_EQ(ValuesOf(t.v), v);
  EXPECT_THAT(kUnifiedAttentionMutates, ElementsAre(std::string("out"), std::string("cache")));
}

TEST(InferOutputTest, IsTheShapeOfQWithTheValueHeadSize) {
  const LayerConfig layer{
      .name = "a", .num_heads = 4, .num_kv_heads = 2, .head_size = 8, .value_head_size = 6};
  const auto flat = InferOutput(layer, {7, 32}, DType::kBF16);
  ASSERT_TRUE(flat.ok());
  EXPECT_THAT(flat->extents, ElementsAre(7, 24));
  EXPECT_EQ(flat->dtype, DType::kBF16);
  EXPECT_THAT(InferOutput(layer, {7, 4, 8}, DType::kF16)->extents, ElementsAre(7, 4, 6));
  EXPECT_THAT(InferOutput(layer, {7, 31}, DType::kF16).status(), Says("q of layer a is [7, 31]"));
}

TEST(InferOutputTest, OfAnMlaLayerIsWhatForwardTakes) {
  // Rows of kMlaFp8_656 have 512 values, of kMlaFp8_584 the rotary part as well.
  LayerConfig layer{.name = "a", .num_heads = 4, .head_size = 192};
  layer.latent_rank = 512, layer.rotary_dim = 64;
  EXPECT_THAT(InferOutput(layer, {7, 4, 576}, DType::kF16)->extents, ElementsAre(7, 4, 512));
  layer.latent_rank = 448, layer.value_head_size = 512;
  const auto impl = CpuReferenceBackend().MakeImpl(layer);
  ASSERT_TRUE(impl.ok());
  for (const LayerConfig& config : {layer, (*impl)->config()}) {
    EXPECT_THAT(InferOutput(config, {7, 4, 512}, DType::kF16)->extents, ElementsAre(7, 4, 512));
  }
}

}  // namespace
}  // namespace kvblocks::attention
