#include "kvblocks/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/backends/layer_params.h"
#include "attention/testing/layer_fixture.h"
#include "attention/testing/layer_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using ::testing::ElementsAre;

// Prefills, extends, decodes and mixtures of them; each step reads what itself stored.
void ExpectStepsMatch(LayerFixture& fixture) {
  const std::vector<std::vector<std::pair<int, int64_t>>> steps = {
      {{0, 7}, {1, 1}},          {{0, 1}, {1, 5}, {2, 9}}, {{0, 1}, {1, 1}, {2, 1}},
      {{2, 6}, {0, 1}, {3, 13}}, {{0, 1}, {3, 1}},         {{1, 2}, {2, 3}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    ASSERT_EQ(fixture.Step(steps[i]), absl::OkStatus()) << "step " << i;
    EXPECT_EQ(fixture.Mismatch(), "") << "step " << i;
  }
}

TEST(AttentionLayerTest, StepsEqualDenseAttentionOnAllBackends) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    SCOPED_TRACE(backend->name());
    LayerFixture fixture({}, backend);
    ExpectStepsMatch(fixture);
  }
}

TEST(AttentionLayerTest, FeaturesOfTheLayerReachTheOperations) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0}, slopes = {0.5f, 0.25f, 0.125f, 0};
  const ConstTensorView sinks_view = ViewOf(absl::MakeConstSpan(sinks));
  const ConstTensorView slopes_view = ViewOf(absl::MakeConstSpan(slopes));
  const LayerConfig layers[] = {{.soft_cap = 2},
                                {.window = 3},
                                {.window = 6, .sinks = sinks_view},
                                {.chunk = 8},
                                {.sinks = sinks_view},
                                {.alibi_slopes = slopes_view},
                                {.chunk = 4, .sinks = sinks_view}};
  for (const LayerConfig& layer : layers) {
    SCOPED_TRACE(&layer - layers);
    LayerFixture fixture(layer, &CpuReferenceBackend());
    ExpectStepsMatch(fixture);
  }
}

TEST(AttentionLayerTest, KeysAreStoredBeforeTheyAreRead) {
  RecordingBackend backend;
  LayerFixture fixture({}, &backend);
  ASSERT_EQ(fixture.Step({{0, 5}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedPrefill"));
  backend.ClearCalls();
  ASSERT_EQ(fixture.Step({{0, 1}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedDecode"));
  backend.ClearCalls();
  ASSERT_EQ(fixture.Step({{1, 3}, {0, 1}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedDecode", "PagedPrefill"));
}

TEST(AttentionLayerTest, LayerThatSharesACacheStoresNothing) {
  RecordingBackend backend;
  LayerFixture owner({}, &CpuReferenceBackend());
  ASSERT_EQ(owner.Step({{0, 5}, {1, 2}}), absl::OkStatus());
  const std::vector<std::byte> before = owner.k_cache.bytes;
  auto sharer = backend.MakeImpl({.name = "sharer",
                                  .num_heads = 4,
                                  .num_kv_heads = 2,
                                  .head_size = 8,
                                  .shares_cache_of = "layer"});
  ASSERT_TRUE(sharer.ok());
  LayerTensors tensors = owner.tensors();
  Tensor other_k(DType::kF32, {7, 16});  // zeros: would show if stored or read
  tensors.k = other_k.view;
  ASSERT_EQ((*sharer)->Forward({}, tensors, &owner.metadata()), absl::OkStatus());
  EXPECT_EQ(owner.Mismatch(), "");
  EXPECT_EQ(owner.k_cache.bytes, before);
  EXPECT_THAT(backend.calls(), ElementsAre("PagedPrefill"));
}

TEST(AttentionLayerTest, ProfilingFillsZeros) {
  RecordingBackend backend;
  LayerFixture fixture({}, &backend);
  fixture.Prepare({{0, 5}});
  const std::vector<std::byte> before = fixture.k_cache.bytes;
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), nullptr), absl::OkStatus());
  for (double value : ValuesOf(fixture.tensors().out)) EXPECT_EQ(value, 0);
  EXPECT_EQ(fixture.k_cache.bytes, before);
  EXPECT_TRUE(backend.calls().empty());
}

TEST(AttentionLayerTest, ZerosOfAStridedOutputLeaveTheRestAlone) {
  Tensor wide(DType::kF32, {3, 6});
  FillWithPoison(wide);
  const TensorView columns = *wide.view.Slice(1, 2, 5);
  ASSERT_EQ(CpuReferenceBackend().FillZeros({}, columns), absl::OkStatus());
  const std::vector<double> values = wide.Get();
  for (int i = 0; i < 18; ++i) EXPECT_EQ(values[i] == 0, i % 6 >= 2 && i % 6 < 5) << i;
}

TEST(AttentionLayerTest, WithoutACacheItAttendsToTheNewKeysAlone) {
  RecordingBackend backend;
  LayerFixture fixture({.window = 3}, &backend);
  fixture.Prepare({{0, 5}, {1, 4}});
  LayerTensors tensors = fixture.tensors();
  tensors.cache = {};
  ASSERT_EQ(fixture.layer().Forward({}, tensors, &fixture.metadata()), absl::OkStatus());
  fixture.Commit();
  EXPECT_EQ(fixture.Mismatch(), "");
  EXPECT_THAT(backend.calls(), ElementsAre("VarlenSelfAttention"));
  // An empty block table means the same.
  backend.ClearCalls();
  CommonAttentionMetadata metadata = fixture.metadata();
  metadata.block_table = {};
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), &metadata), absl::OkStatus());
  EXPECT_EQ(fixture.Mismatch(), "");
  EXPECT_THAT(backend.calls(), ElementsAre("VarlenSelfAttention"));
}

TEST(AttentionLayerTest, EncodersSeeBothSidesAndStoreNothing) {
  for (const AttentionType type : {AttentionType::kEncoder, AttentionType::kEncoderOnly}) {
    for (const int64_t window : {0, 2}) {
      RecordingBackend backend;
      LayerFixture fixture({.type = type, .window = window}, &backend);
      const std::vector<std::byte> before = fixture.k_cache.bytes;
      ASSERT_EQ(fixture.Step({{0, 5}, {1, 3}}), absl::OkStatus());
      EXPECT_EQ(fixture.Mismatch(), "");
      EXPECT_EQ(fixture.k_cache.bytes, before);
      EXPECT_THAT(backend.calls(), ElementsAre("VarlenSelfAttention"));
    }
  }
}

// Two decoder tokens against an encoder of one token and of five, then decodes that bring no keys.
TEST(AttentionLayerTest, CrossAttentionSeesAllKeysOfTheEncoder) {
  RecordingBackend backend;
  LayerFixture encoder({.type = AttentionType::kEncoderDecoder}, &backend);
  encoder.Prepare({{0, 1}, {1, 5}});  // its metadata stores the encoders' six keys
  const CommonAttentionMetadata keys = encoder.metadata();
  const std::vector<int32_t> starts = {0, 2, 3};
  CommonAttentionMetadata metadata = keys;
  metadata.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
  metadata.host_query_start_loc = starts;
  metadata.num_actual_tokens = 3;
  metadata.max_query_len = 2;
  Tensor q(DType::kF32, {3, 32}), out(DType::kF32, {3, 32});
  std::mt19937_64 random(5);
  q.Set(NormalDraws(random, 96));
  LayerTensors tensors = encoder.tensors();
  tensors.q = q.view, tensors.out = out.view;

  const auto expect_dense = [&] {
    const std::vector<double> got = out.Get(), all_q = q.Get();
    const std::vector<double> all_k = ValuesOf(tensors.k), all_v = ValuesOf(tensors.v);
    size_t at = 0;
    for (int b = 0; b < 2; ++b) {
      DenseRequest dense;
      dense.q_len = starts[b + 1] - starts[b];
      dense.kv_len = keys.host_seq_lens[b];
      dense.num_heads = 4, dense.num_kv_heads = 2, dense.key_dim = dense.value_dim = 8;
      dense.q.assign(all_q.begin() + starts[b] * 32, all_q.begin() + starts[b + 1] * 32);
      const int64_t first = keys.host_query_start_loc[b];
      dense.k.assign(all_k.begin() + first * 16, all_k.begin() + (first + dense.kv_len) * 16);
      dense.v.assign(all_v.begin() + first * 16, all_v.begin() + (first + dense.kv_len) * 16);
      DenseParams params;
      params.scale = 1 / std::sqrt(8.0);
      params.causal = false;
      for (double expected : DenseAttention(dense, params).out) {
        EXPECT_NEAR(got[at++], expected, 1e-5);
      }
    }
  };
  ASSERT_EQ(encoder.layer().Forward({}, tensors, &metadata), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedPrefill"));
  expect_dense();
  // Later steps find the keys in the cache.
  backend.ClearCalls();
  FillWithPoison(out);
  LayerTensors later = tensors;
  later.k = {}, later.v = {};
  ASSERT_EQ(encoder.layer().Forward({}, later, &metadata), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("PagedPrefill"));
  expect_dense();
  // And without a cache.
  FillWithPoison(out);
  tensors.cache = {};
  ASSERT_EQ(encoder.layer().Forward({}, tensors, &metadata), absl::OkStatus());
  expect_dense();
}

TEST(AttentionLayerTest, PaddingRowsAreNotStoredAndComeOutZero) {
  LayerFixture fixture({}, &CpuReferenceBackend());
  fixture.Prepare({{0, 5}});
  LayerTensors tensors = fixture.tensors();
  Tensor q(DType::kF32, {8, 32}), k(DType::kF32, {8, 16}), v(DType::kF32, {8, 16});
  Tensor out(DType::kF32, {8, 32});
  for (Tensor* tensor : {&q, &k, &v, &out}) FillWithPoison(*tensor);
  std::memcpy(q.bytes.data(), tensors.q.data, 5 * 32 * 4);
  std::memcpy(k.bytes.data(), tensors.k.data, 5 * 16 * 4);
  std::memcpy(v.bytes.data(), tensors.v.data, 5 * 16 * 4);
  const LayerTensors padded = {q.view, k.view, v.view, tensors.cache, out.view, 0};
  ASSERT_EQ(fixture.layer().Forward({}, padded, &fixture.metadata()), absl::OkStatus());
  fixture.Commit();
  std::memcpy(tensors.out.data, out.bytes.data(), 5 * 32 * 4);
  EXPECT_EQ(fixture.Mismatch(), "");
  const std::vector<double> values = out.Get();
  for (size_t i = 5 * 32; i < values.size(); ++i) EXPECT_EQ(values[i], 0) << i;
}

TEST(AttentionLayerTest, EmptyBatchZeroesPaddingAndNoMore) {
  RecordingBackend backend;
  LayerFixture fixture({.shares_cache_of = "other"}, &backend);
  fixture.Prepare({});
  Tensor q(DType::kF32, {2, 32}), out(DType::kF32, {2, 32});
  FillWithPoison(out);
  const LayerTensors tensors = {q.view, {}, {}, fixture.cache(), out.view, 0};
  ASSERT_EQ(fixture.layer().Forward({}, tensors, &fixture.metadata()), absl::OkStatus());
  for (double value : out.Get()) EXPECT_EQ(value, 0);
  EXPECT_TRUE(backend.calls().empty());
}

TEST(AttentionLayerTest, ScalesOfTheFirstBatchAreKept) {
  RecordingBackend backend;
  Tensor k_scale(DType::kF32, {2}), v_scale(DType::kF32, {2});
  KvScaleState state({}, k_scale.view, v_scale.view);
  LayerConfig layer{.scale_state = &state};
  layer.scale_divisors.k_divisor = layer.scale_divisors.v_divisor = 127;
  LayerFixture fixture(layer, &backend, DType::kI8);
  ASSERT_EQ(fixture.Step({{0, 9}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ScaleAndCache", "PagedPrefill"));
  EXPECT_EQ(fixture.Mismatch(/*limit=*/0.1), "");  // 8-bit keys and values of about 3
  const std::vector<double> first = k_scale.Get();
  backend.ClearCalls();
  ASSERT_EQ(fixture.Step({{0, 1}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedDecode"));
  EXPECT_EQ(k_scale.Get(), first);
  EXPECT_EQ(fixture.Mismatch(0.1), "");
}

// By the state's scale, where the backend can and the layer wants it; codes that come in codes give
// the same bits.
TEST(AttentionLayerTest, QueriesAreQuantisedWhereTheBackendCan) {
  Tensor q_scale(DType::kF32, {1}), k_scale(DType::kF32, {2}), v_scale(DType::kF32, {1});
  Tensor codes(DType::kF8E4M3, {5, 4 * 8});
  const auto run = [&](bool can, bool wants, bool in_codes, RecordingBackend& backend) {
    KvScaleState state(q_scale.view, k_scale.view, v_scale.view);
    backend.flags_.supports_quantized_query = can;
    LayerFixture fixture({.scale_state = &state, .quantize_queries = wants}, &backend,
                         DType::kF8E4M3);
    fixture.Prepare({{0, 5}});
    LayerTensors tensors = fixture.tensors();
    if (wants) tensors.q_codes = codes.view;
    if (in_codes) tensors.q = codes.view;
    const absl::Status status = fixture.layer().Forward({}, tensors, &fixture.metadata());
    EXPECT_EQ(status, absl::OkStatus());
    fixture.Commit();
    EXPECT_EQ(fixture.Mismatch(/*limit=*/0.4), "");
    return ValuesOf(tensors.out);
  };
  RecordingBackend plain, quantising, given, cannot;
  const std::vector<double> as_is = run(true, false, false, plain);
  EXPECT_THAT(plain.calls(), ElementsAre("ScaleAndCache", "PagedPrefill"));
  EXPECT_GT(q_scale.Get()[0], 0);
  const std::vector<double> quantised = run(true, true, false, quantising);
  EXPECT_THAT(quantising.calls(), ElementsAre("ScaleAndCache", "QuantizeQueries", "PagedPrefill"));
  EXPECT_NE(quantised, as_is);
  EXPECT_EQ(run(true, false, true, given), quantised);
  EXPECT_EQ(run(false, true, false, cannot), as_is);
  EXPECT_THAT(cannot.calls(), ElementsAre("ScaleAndCache", "PagedPrefill"));
}

TEST(AttentionLayerTest, MasksReachTheOperationsOrAreRefused) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    SCOPED_TRACE(backend->name());
    ExpectCustomMasksAreHonoured(*backend, {});
    ExpectTemplatesAreHonoured(*backend, {});
    ExpectOtherMasksAreRefused(*backend, {});
  }
}

// A decode at 131,072 tokens asks about its own row; a mask with bounds about next to nothing.
TEST(AttentionLayerTest, LongCustomMasksAskAboutNewTokensOnly) {
  constexpr int64_t kLength = 131'072;
  int64_t num_asked = 0;
  const auto hides = [&](int64_t i, int64_t j, std::string_view) {
    ++num_asked;
    return j > i || (j < i - 1 && j != 77);
  };
  // Key 77, and the last two.
  const auto bounds = [](int64_t i, std::string_view) {
    return MaskRowBounds{77, i + 1, i - 1, i + 1};
  };
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    for (const bool with_bounds : {false, true}) {
      AttentionMaskBuilder masks;
      ASSERT_TRUE(
          masks.Register("sparse", hides, "", with_bounds ? MaskBounds(bounds) : nullptr).ok());
      // Blocks of 32,768 tokens: queries and keys are zeros, value j is j.
      Tensor k(DType::kF32, {5, 32'768, 1, 1}), v(DType::kF32, {5, 32'768, 1, 1});
      std::vector<double> values(5 * 32'768);
      for (size_t i = 32'768; i < values.size(); ++i) values[i] = static_cast<double>(i - 32'768);
      v.Set(values);
      MetadataBuilderOptions options;
      options.groups = {
          {.manager_block_size = 32'768, .kernel_block_size = 32'768, .num_blocks = 5}};
      options.max_num_reqs = 1, options.max_num_tokens = 8, options.max_seq_len = kLength;
      options.attach_masks = [&](const KvGroupConfig&, CommonAttentionMetadata* metadata) {
        MaskNeeds needs;
        needs.custom = {.enabled = true, .name = "sparse"};
        return AttachMasks(masks, needs, metadata);
      };
      auto builder = backend->MakeMetadataBuilder(options);
      ASSERT_TRUE(builder.ok()) << builder.status();
      num_asked = 0;
      const std::vector<int32_t> blocks = {1, 2, 3, 4};
      const std::vector<RequestInput> requests = {
          {.num_computed_tokens = kLength - 2, .num_scheduled_tokens = 2}};
      const std::vector<absl::Span<const int32_t>> tables = {blocks};
      ASSERT_EQ(builder->Build({.requests = requests, .block_ids = tables}), absl::OkStatus());
      EXPECT_EQ(num_asked, with_bounds ? 2 * kLength - 2 * 77 - 5 : 2 * kLength);
      EXPECT_EQ(builder->metadata().custom_mask.view.extent[0], 2 * kLength / 8);

      auto layer = backend->MakeImpl({.name = "layer",
                                      .num_heads = 1,
                                      .num_kv_heads = 1,
                                      .head_size = 1,
                                      .shares_cache_of = "x"});
      ASSERT_TRUE(layer.ok());
      Tensor q(DType::kF32, {2, 1}), out(DType::kF32, {2, 1});
      q.Set({0, 0});
      ASSERT_EQ((*layer)->Forward({}, {q.view, {}, {}, {KvLayout::kNhd, k.view, v.view}, out.view},
                                  &builder->metadata()),
                absl::OkStatus());
      EXPECT_NEAR(out.Get()[0], (77.0 + kLength - 3 + kLength - 2) / 3, 0.1);
      EXPECT_NEAR(out.Get()[1], (77.0 + kLength - 2 + kLength - 1) / 3, 0.1);
    }
  }
}

TEST(AttentionLayerTest, PiecesOfRequestsAreChunks) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    ExpectPiecesAreChunks(*backend, {});
  }
  // And the operations are those of plain causal attention.
  RecordingBackend backend;
  LayerFixture fixture({.chunk = 8}, &backend);
  ASSERT_EQ(fixture.Step({{0, 8}}), absl::OkStatus());
  fixture.Prepare({{0, 1}});
  VirtualBatches pieces;
  ASSERT_EQ(pieces.Build(fixture.metadata(), 8), absl::OkStatus());
  const CommonAttentionMetadata metadata = pieces.metadata();
  backend.ClearCalls();
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), &metadata), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedDecode"));
}

TEST(AttentionLayerTest, BlockSparseRulesAreHonoured) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    ExpectBlockSparseRulesAreHonoured(*backend, {});
  }
}

TEST(AttentionLayerTest, CascadeIsTakenWhereItPays) {
  RecordingBackend backend;
  LayerFixture fixture({.num_heads = 4, .num_kv_heads = 4, .cascade = CascadeChoice::kIfItPays},
                       &backend);
  fixture.Prepare({{0, 1}});
  CommonAttentionMetadata metadata = fixture.metadata();
  metadata.common_prefix_len = 4;  // too short, and one request
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), &metadata), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "PagedDecode"));
  const LayerConfig& layer = fixture.layer().config();
  metadata.common_prefix_len = 256, metadata.num_reqs = 8;
  EXPECT_TRUE(IsCascade(layer, metadata, {}, 1));
  AttnParams masked;
  masked.mask.sparse_mode = 0;
  EXPECT_FALSE(IsCascade(layer, metadata, masked, 1));
}

TEST(AttentionLayerTest, DecodesSplitByTheRuleOfVllm) {
  LayerConfig layer{.num_heads = 32, .split = SplitPolicy::Count(3)};
  CommonAttentionMetadata metadata;
  metadata.max_seq_len = 4096;
  EXPECT_EQ(DecodeSplit(layer, metadata, 16).kind, SplitPolicy::Kind::kCount);
  layer.split_as_vllm = true;
  EXPECT_EQ(DecodeSplit(layer, metadata, 16).kind, SplitPolicy::Kind::kFixed);
  EXPECT_EQ(DecodeSplit(layer, metadata, 16).value, 512);
  EXPECT_EQ(DecodeSplit(layer, metadata, 17).kind, SplitPolicy::Kind::kNone);
}

TEST(AttentionLayerTest, CascadeServesACommonPrefix) {
  RecordingBackend backend;
  LayerFixture fixture({.cascade = CascadeChoice::kAlways}, &backend);
  fixture.Prepare({{0, 9}});
  CommonAttentionMetadata metadata = fixture.metadata();
  metadata.common_prefix_len = 0;
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), &metadata), absl::OkStatus());
  fixture.Commit();
  backend.ClearCalls();
  fixture.Prepare({{0, 2}});
  metadata = fixture.metadata();
  metadata.common_prefix_len = 8;
  ASSERT_EQ(fixture.layer().Forward({}, fixture.tensors(), &metadata), absl::OkStatus());
  fixture.Commit();
  EXPECT_EQ(fixture.Mismatch(), "");
  EXPECT_THAT(backend.calls(), ElementsAre("ReshapeAndCache", "Cascade"));
}

TEST(AttentionLayerTest, MlaLayerWithoutACacheAttendsToTheNewRows) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    SCOPED_TRACE(backend->name());
    ExpectMlaWithoutCache(*backend, {});
  }
}
// --- Batches that are not plain ---

TEST(AttentionLayerTest, BatchesOverRanksWithSinksAndOfEncodersAreDense) {
  for (const AttentionBackend* backend : {&CpuBackend(), &CpuReferenceBackend()}) {
    SCOPED_TRACE(backend->name());
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      ExpectRanksMergeToTheWhole(*backend, {}, seed);
      ExpectShardsAreThePrompt(*backend, {}, seed);
      ExpectSinkRowsAreSeen(*backend, {}, seed);
      ExpectEncodersAreSeenWithoutCache(*backend, {}, seed);
    }
    ExpectOtherRanksAndSinksAreRefused(*backend, {});
  }
}

TEST(AttentionLayerTest, RowFormatsAreHonoured) {
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    SCOPED_TRACE(backend->name());
    ExpectRowFormatsAreHonoured(*backend, {});
    ExpectLatentRecordsAreHonoured(*backend, {});
  }
}

}  // namespace
}  // namespace kvblocks::attention
