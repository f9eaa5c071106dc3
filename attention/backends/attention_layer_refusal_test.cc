// Calls and layers that are refused: the status names what is wrong, and nothing has changed.
//
// A layer has each operation of a call checked once, all of them before the first runs.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/testing/layer_fixture.h"
#include "attention/testing/layer_suite.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_layer.h"

namespace kvblocks::attention {
namespace {

using ::testing::ElementsAre;

TEST(AttentionLayerRefusalTest, RefusedCallsChangeNothing) {
  RecordingBackend backend;
  LayerFixture fixture({}, &backend);
  fixture.Prepare({{0, 5}});
  const std::vector<std::byte> before = fixture.k_cache.bytes;
  const auto expect_refused = [&](const LayerTensors& tensors, const CommonAttentionMetadata& meta,
                                  const char* text) {
    const absl::Status status = fixture.layer().Forward({}, tensors, &meta);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status, Says(text));
    EXPECT_EQ(fixture.k_cache.bytes, before);
    for (double value : ValuesOf(fixture.tensors().out)) EXPECT_TRUE(std::isnan(value));
    EXPECT_TRUE(backend.calls().empty());
  };
  LayerTensors tensors = fixture.tensors();
  tensors.q = *tensors.q.Slice(0, 0, 4);
  expect_refused(tensors, fixture.metadata(), "the batch has 5 tokens");
  tensors = fixture.tensors();
  tensors.k = *tensors.k.Slice(1, 0, 8);
  expect_refused(tensors, fixture.metadata(), "k is f32[5, 8]");
  tensors = fixture.tensors();
  tensors.v = {};
  expect_refused(tensors, fixture.metadata(), "k and v go together");
  // A bad block table, found by the read's check before the store runs.
  const std::vector<int32_t> table = {1, 99};
  CommonAttentionMetadata metadata = fixture.metadata();
  metadata.block_table = ViewOf(absl::MakeConstSpan(table), {1, 2});
  expect_refused(fixture.tensors(), metadata, "block_table[0][1] is 99");
}

// Counts choose operations and never results; counts that cannot be are refused.
TEST(AttentionLayerRefusalTest, CountsOfTheMetadataAreNotTrusted) {
  LayerFixture fixture({}, &CpuReferenceBackend());
  ASSERT_EQ(fixture.Step({{0, 5}, {1, 3}}), absl::OkStatus());
  fixture.Prepare({{0, 1}, {1, 4}});
  const CommonAttentionMetadata good = fixture.metadata();
  ASSERT_EQ(good.num_decodes, 1);
  ASSERT_EQ(good.num_prefills, 1);
  const auto forward = [&](const CommonAttentionMetadata& metadata) {
    return fixture.layer().Forward({}, fixture.tensors(), &metadata);
  };
  CommonAttentionMetadata metadata = good;
  metadata.num_decodes = 3;
  EXPECT_THAT(forward(metadata), Says("layer layer: Forward: num_decodes is 3; 0 to 2"));
  metadata = good, metadata.num_decode_tokens = 6;
  EXPECT_THAT(forward(metadata), Says("num_decode_tokens is 6; 0 to 5"));
  metadata = good, metadata.num_reqs = -1;
  EXPECT_THAT(forward(metadata), Says("num_reqs is -1"));
  metadata = good, metadata.num_actual_tokens = -5;
  EXPECT_THAT(forward(metadata), Says("num_decode_tokens is 1; 0 to -5"));
  metadata = good, metadata.host_query_start_loc = {};
  EXPECT_THAT(forward(metadata), Says("host_query_start_loc has 0 elements"));
  metadata = good, metadata.host_seq_lens = metadata.host_seq_lens.first(1);
  EXPECT_FALSE(forward(metadata).ok());
  metadata = good, metadata.block_table = *metadata.block_table.Slice(0, 0, 0);
  metadata.block_table.extent[0] = 1, metadata.num_prefills = 0;
  EXPECT_FALSE(forward(metadata).ok());
  metadata = good, metadata.block_table.rank = 9;
  EXPECT_THAT(forward(metadata), Says("block_table has rank 9"));
  for (double value : ValuesOf(fixture.tensors().out)) EXPECT_TRUE(std::isnan(value));
  // No prefills counted, yet there are some.
  metadata = good, metadata.num_prefills = 0;
  EXPECT_EQ(forward(metadata), absl::OkStatus());
  fixture.Commit();
  EXPECT_EQ(fixture.Mismatch(), "");
}

TEST(AttentionLayerRefusalTest, ViewsThatAreNoTensorsAreRefused) {
  LayerFixture fixture({}, &CpuReferenceBackend());
  fixture.Prepare({{0, 5}});
  LayerTensors tensors = fixture.tensors();
  tensors.out.data = nullptr;
  for (const CommonAttentionMetadata* metadata :
       {&fixture.metadata(), static_cast<const CommonAttentionMetadata*>(nullptr)}) {
    EXPECT_THAT(fixture.layer().Forward({}, tensors, metadata),
                Says("out is f32[5, 32] with null data"));
  }
  tensors = fixture.tensors(), tensors.q.rank = 100;
  EXPECT_THAT(fixture.layer().Forward({}, tensors, &fixture.metadata()), Says("q has rank 100"));
  tensors = fixture.tensors(), tensors.cache.k.extent[0] = -1;
  EXPECT_THAT(fixture.layer().Forward({}, tensors, &fixture.metadata()),
              Says("cache.k has extent -1"));
}

TEST(AttentionLayerRefusalTest, EncoderLengthsBeyondTheirKeysAreRefused) {
  LayerFixture fixture({.type = AttentionType::kEncoderDecoder}, &CpuReferenceBackend());
  fixture.Prepare({{0, 2}, {1, 3}});
  LayerTensors tensors = fixture.tensors();
  tensors.cache = {};
  CommonAttentionMetadata metadata = fixture.metadata();
  const std::vector<int32_t> lengths = {INT32_MAX, INT32_MAX};
  metadata.host_seq_lens = lengths;
  EXPECT_THAT(fixture.layer().Forward({}, tensors, &metadata),
              Says("seq_lens of the encoder add up to 2147483647 keys or more; k has 5"));
}

// A layer that reads another's codes must not make scales of keys that nobody stores.
TEST(AttentionLayerRefusalTest, SharedCacheKeepsItsScales) {
  RecordingBackend backend;
  Tensor k_scale(DType::kF32, {1}), v_scale(DType::kF32, {1});
  KvScaleState state({}, k_scale.view, v_scale.view);
  LayerFixture fixture({.shares_cache_of = "other", .scale_state = &state}, &backend, DType::kI8);
  std::fill(fixture.k_cache.bytes.begin(), fixture.k_cache.bytes.end(), std::byte{1});
  std::fill(fixture.v_cache.bytes.begin(), fixture.v_cache.bytes.end(), std::byte{1});
  ASSERT_EQ(fixture.Step({{0, 5}}), absl::OkStatus());
  EXPECT_THAT(backend.calls(), ElementsAre("PagedPrefill"));
  EXPECT_FALSE(state.frozen());
  for (double value : ValuesOf(fixture.tensors().out)) EXPECT_EQ(value, 1);
}

TEST(AttentionLayerRefusalTest, QuantisedQueriesNeedRoomForCodes) {
  LayerFixture fixture({.quantize_queries = true}, &CpuReferenceBackend(), DType::kF8E4M3);
  fixture.Prepare({{0, 5}});
  LayerTensors tensors = fixture.tensors();
  const auto forward = [&] {
    return fixture.layer().Forward({}, tensors, &fixture.metadata());
  };
  EXPECT_THAT(forward(), Says("q_codes is absent; give it, e4m3 [T, 4, 8]"));
  Tensor few(DType::kF8E4M3, {4, 32}), floats(DType::kF32, {5, 32});
  tensors.q_codes = few.view;
  EXPECT_THAT(forward(), Says("q_codes is f8e4m3[4, 4, 8]; the batch has 5 tokens"));
  tensors.q_codes = floats.view;
  EXPECT_THAT(forward(), Says("codes is f32"));
  for (double value : ValuesOf(fixture.tensors().out)) EXPECT_TRUE(std::isnan(value));
  const absl::Status mla = CpuReferenceBackend()
                               .MakeImpl({.name = "a",
                                          .num_heads = 4,
                                          .head_size = 8,
                                          .latent_rank = 6,
                                          .rotary_dim = 2,
                                          .quantize_queries = true})
                               .status();
  EXPECT_THAT(mla, Says("quantised queries with MLA"));
}

TEST(AttentionLayerRefusalTest, BadLayersAreNamed) {
  const auto status_of = [](const LayerConfig& layer) {
    return CpuReferenceBackend().MakeImpl(layer).status();
  };
  LayerConfig good{.name = "a", .num_heads = 4, .num_kv_heads = 2, .head_size = 8};
  EXPECT_EQ(status_of(good), absl::OkStatus());
  LayerConfig bad = good;
  bad.num_kv_heads = 3;
  EXPECT_THAT(status_of(bad), Says("layer a: 4 heads, no multiple of 3"));
  bad = good, bad.head_size = 0;
  EXPECT_THAT(status_of(bad), Says("heads of size 0"));
  bad = good, bad.head_size = int64_t{1} << 40;
  EXPECT_THAT(status_of(bad), Says("a number of heads or values is 1099511627776"));
  bad = good, bad.latent_rank = -1;
  EXPECT_THAT(status_of(bad), Says("a number of heads or values is -1"));
  bad = good, bad.window = -1;
  EXPECT_THAT(status_of(bad), Says("window -1"));
  bad = good, bad.scale = NAN;
  EXPECT_THAT(status_of(bad), Says("scale nan"));
}

TEST(LayerChecksTest, OncePerOperationAndAllBeforeTheFirstRuns) {
  RecordingBackend backend;
  LayerFixture fixture({}, &backend);
  ASSERT_EQ(fixture.Step({{0, 7}, {1, 9}}), absl::OkStatus());
  backend.ClearCalls();
  ASSERT_EQ(fixture.Step({{0, 1}, {1, 4}}), absl::OkStatus());
  EXPECT_THAT(backend.log(), ElementsAre("check ReshapeAndCache", "check PagedDecode",
                                         "check PagedPrefill", "run ReshapeAndCache",
                                         "run PagedDecode", "run PagedPrefill"));
}

}  // namespace
}  // namespace kvblocks::attention
