#include "attention/testing/layer_suite.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/cache/quantised_rows.h"
#include "attention/testing/latent_case.h"
#include "attention/testing/layer_fixture.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using Steps = std::vector<std::vector<std::pair<int, int64_t>>>;

// Prefills, extends, decodes, and mixtures of them.
const Steps kSteps = {{{0, 7}, {1, 2}}, {{0, 1}, {1, 5}, {2, 9}}, {{0, 1}, {1, 1}, {2, 1}}};

// A prefix language model: the first six tokens see each other, the rest what came before. Not
// causal, so that a causal rule beside it would show.
bool PrefixLmHides(int64_t i, int64_t j) { return j > i && !(i < 6 && j < 6); }

// The mask of the step as ragged bits, as beyond kLongestWholeMask.
absl::StatusOr<MaskRef> StepBits(AttentionMaskBuilder& masks, const MaskRule& rule,
                                 const CommonAttentionMetadata& metadata) {
  std::vector<MaskRows> rows;
  for (int32_t b = 0; b < metadata.num_reqs; ++b) {
    const int64_t length = metadata.host_seq_lens[b];
    const int64_t num_new = metadata.host_query_start_loc[b + 1] - metadata.host_query_start_loc[b];
    rows.push_back({length - num_new, num_new, length});
  }
  return masks.Bits(rule, rows);
}

// Outputs of queries [q_len][heads][dim] over rows whose first values are those of V.
std::vector<double> DenseOverRows(const std::vector<std::vector<double>>& rows,
                                  const std::vector<double>& q, int64_t heads, int64_t value_dim,
                                  const DenseParams& params) {
  std::vector<const std::vector<double>*> keys;
  for (const std::vector<double>& row : rows) keys.push_back(&row);
  const auto q_len = static_cast<int64_t>(q.size() / (heads * rows[0].size()));
  return DenseAttention(RequestOverRows(keys, q, q_len, heads, value_dim), params).out;
}

}  // namespace

void ExpectCustomMasksAreHonoured(const AttentionBackend& backend, const ExecContext& context) {
  for (const bool as_bits : {false, true}) {
    for (const LayerConfig& layer : {LayerConfig(), LayerConfig{.window = 3}}) {
      SCOPED_TRACE(testing::Message() << "bits " << as_bits << ", window " << layer.window);
      AttentionMaskBuilder masks;
      ASSERT_TRUE(masks
                      .Register("prefix_lm", [](int64_t i, int64_t j,
                                                std::string_view) { return PrefixLmHides(i, j); })
                      .ok());
      LayerFixture fixture(layer, &backend);
      fixture.context = context;
      fixture.hides = PrefixLmHides;
      for (const auto& step : kSteps) {
        fixture.Prepare(step);
        CommonAttentionMetadata metadata = fixture.metadata();
        // As an embedder attaches it for this backend.
        MaskNeeds needs{.explicit_masks = backend.flags().wants_explicit_masks,
                        .window = layer.window};
        needs.custom = {.enabled = true, .name = "prefix_lm"};
        ASSERT_EQ(AttachMasks(masks, needs, &metadata), absl::OkStatus());
        if (as_bits) {
          auto bits = StepBits(masks, *masks.RuleOf("prefix_lm", {}), metadata);
          ASSERT_TRUE(bits.ok()) << bits.status();
          metadata.custom_mask = *bits;
        }
        ASSERT_EQ(fixture.layer().Forward(context, fixture.tensors(), &metadata), absl::OkStatus());
        fixture.Commit();
        EXPECT_EQ(fixture.Mismatch(), "");
      }
      // Without a cache, where all tokens are new.
      fixture.Prepare({{3, 8}, {4, 5}});
      CommonAttentionMetadata metadata = fixture.metadata();
      auto mask = as_bits ? StepBits(masks, *masks.RuleOf("prefix_lm", {}), metadata)
                          : masks.Custom({.name = "prefix_lm", .rows = 8, .columns = 8});
      ASSERT_TRUE(mask.ok()) << mask.status();
      metadata.custom_mask = *mask;
      LayerTensors tensors = fixture.tensors();
      tensors.cache = {};
      ASSERT_EQ(fixture.layer().Forward(context, tensors, &metadata), absl::OkStatus());
      fixture.Commit();
      EXPECT_EQ(fixture.Mismatch(), "");
    }
  }
}

void ExpectTemplatesAreHonoured(const AttentionBackend& backend, const ExecContext& context) {
  AttentionMaskBuilder masks;
  for (const int64_t window : {0, 3}) {
    // The layer knows no rule but that of the mask: what it hides shows.
    LayerFixture fixture({.window = window}, &backend);
    fixture.context = context;
    fixture.hides = [window](int64_t i, int64_t j) {
      return j > i || (window > 0 && i - j >= window);
    };
    for (const auto& step : kSteps) {
      fixture.Prepare(step);
      CommonAttentionMetadata metadata = fixture.metadata();
      ASSERT_EQ(AttachMasks(masks, {.explicit_masks = true, .window = window}, &metadata),
                absl::OkStatus());
      metadata.causal = false;
      ASSERT_EQ(fixture.layer().Forward(context, fixture.tensors(), &metadata), absl::OkStatus());
      fixture.Commit();
      EXPECT_EQ(fixture.Mismatch(), "");
    }
  }
}

void ExpectOtherMasksAreRefused(const AttentionBackend& backend, const ExecContext& context) {
  AttentionMaskBuilder masks;
  ASSERT_TRUE(
      masks.Register("none", [](int64_t, int64_t, std::string_view) { return false; }).ok());
  const auto custom = masks.Custom({.name = "none", .rows = 32, .columns = 32});
  const auto causal = masks.SplitFuse();
  ASSERT_TRUE(custom.ok() && causal.ok());
  const auto status_of = [&](LayerFixture& fixture, const CommonAttentionMetadata& metadata,
                             bool with_cache) {
    LayerTensors tensors = fixture.tensors();
    if (!with_cache) tensors.cache = {};
    const absl::Status status = fixture.layer().Forward(context, tensors, &metadata);
    for (double value : ValuesOf(fixture.tensors().out)) EXPECT_TRUE(std::isnan(value));
    return status;
  };
  LayerFixture cross({.type = AttentionType::kEncoderDecoder}, &backend);
  cross.Prepare({{0, 5}});
  CommonAttentionMetadata metadata = cross.metadata();
  metadata.custom_mask = *custom;
  EXPECT_THAT(status_of(cross, metadata, true), Says("of type encoder_decoder"));
  LayerFixture encoder({.type = AttentionType::kEncoder}, &backend);
  encoder.Prepare({{0, 5}});
  metadata = encoder.metadata();
  metadata.attn_mask = *causal;
  EXPECT_THAT(status_of(encoder, metadata, true), Says("has a causal mask"));

  LayerFixture decoder({}, &backend);
  decoder.context = context;
  ASSERT_EQ(decoder.Step({{0, 5}}), absl::OkStatus());
  decoder.Prepare({{0, 2}});
  metadata = decoder.metadata();
  metadata.custom_mask = *custom;
  EXPECT_THAT(status_of(decoder, metadata, false), Says("request 0 has 7 tokens, 2 of them new"));
  if (backend.support().on_cuda) return;  // operations cannot see lengths there
  metadata.custom_mask = *masks.Custom({.name = "none", .rows = 4, .columns = 4});
  EXPECT_THAT(status_of(decoder, metadata, true), Says("its S1 must be at least 7"));
}

void ExpectMlaWithoutCache(const AttentionBackend& backend, const ExecContext& context) {
  constexpr int64_t kLatent = 12, kRotary = 4, kHeads = 4, kTokens = 11;
  constexpr int64_t kRow = kHeads * (kLatent + kRotary);
  LayerFixture lengths({}, &backend);  // for its metadata
  lengths.Prepare({{0, 1}, {1, 7}, {2, 3}});
  Tensor q(DType::kF32, {kTokens, kHeads, kLatent + kRotary}),
      kv_c(DType::kF32, {kTokens, kLatent});
  Tensor k_pe(DType::kF32, {kTokens, kRotary});
  std::mt19937_64 random(3);
  for (Tensor* tensor : {&q, &kv_c, &k_pe}) {
    tensor->Set(NormalDraws(random, tensor->view.num_elements()));
  }
  const std::vector<double> queries = q.Get(), latent = kv_c.Get(), rotary = k_pe.Get();
  AttentionMaskBuilder masks;
  const MaskRule rule = {[](int64_t i, int64_t j, std::string_view) { return PrefixLmHides(i, j); },
                         nullptr, ""};
  CommonAttentionMetadata masked = lengths.metadata();
  masked.custom_mask = *StepBits(masks, rule, masked);
  for (const int64_t values : {kLatent, kLatent + kRotary}) {
    for (const int64_t window : {0, 3, -1}) {  // -1: none, but a custom mask
      SCOPED_TRACE(testing::Message() << values << " values, window " << window);
      auto layer = backend.MakeImpl({.name = "mla",
                                     .num_heads = kHeads,
                                     .head_size = 16,
                                     .value_head_size = values,
                                     .window = std::max<int64_t>(0, window),
                                     .latent_rank = kLatent,
                                     .rotary_dim = kRotary});
      ASSERT_TRUE(layer.ok()) << layer.status();
      Tensor out(DType::kF32, {kTokens + 1, kHeads, values});
      FillWithPoison(out);
      ASSERT_EQ((*layer)->Forward(context, {q.view, kv_c.view, k_pe.view, {}, out.view},
                                  window < 0 ? &masked : &lengths.metadata()),
                absl::OkStatus());
      DenseParams params;
      params.scale = 0.25;
      params.window_left = std::max<int64_t>(0, window) - 1;
      if (window < 0) {
        params.causal = false;
        params.hide = [](int64_t i, int64_t j, int64_t) { return PrefixLmHides(i, j); };
      }
      std::vector<double> expected;
      const absl::Span<const int32_t> starts = lengths.metadata().host_query_start_loc;
      for (size_t b = 0; b + 1 < starts.size(); ++b) {
        std::vector<std::vector<double>> keys;
        for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
          keys.push_back(Part(latent, t * kLatent, kLatent));
          const std::vector<double> turned = Part(rotary, t * kRotary, kRotary);
          keys.back().insert(keys.back().end(), turned.begin(), turned.end());
        }
        const std::vector<double> of_request =
            DenseOverRows(keys, Part(queries, starts[b] * kRow, (starts[b + 1] - starts[b]) * kRow),
                          kHeads, values, params);
        expected.insert(expected.end(), of_request.begin(), of_request.end());
      }
      expected.resize(expected.size() + kHeads * values);  // padding is zeros
      ExpectNear(out.Get(), expected, 1e-5);
    }
  }
}

void ExpectPiecesAreChunks(const AttentionBackend& backend, const ExecContext& context) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0}, slopes = {0.5f, 0.25f, 0.125f, 0};
  LayerFixture fixture({.chunk = 8,
                        .alibi_slopes = ViewOf(absl::MakeConstSpan(slopes)),
                        .sinks = ViewOf(absl::MakeConstSpan(sinks))},
                       &backend);
  fixture.context = context;
  VirtualBatches pieces;
  for (const auto& step : Steps{{{0, 21}, {1, 2}}, {{0, 1}, {1, 9}, {2, 16}}, {{0, 1}, {2, 1}}}) {
    fixture.Prepare(step);
    ASSERT_EQ(pieces.Build(fixture.metadata(), 8), absl::OkStatus());
    const CommonAttentionMetadata metadata = pieces.metadata();
    ASSERT_EQ(fixture.layer().Forward(context, fixture.tensors(), &metadata), absl::OkStatus());
    fixture.Commit();
    EXPECT_EQ(fixture.Mismatch(), "");
  }
  // A layer of another chunk, or of none, would see too little.
  for (const int64_t chunk : {0, 16}) {
    LayerFixture other({.chunk = chunk}, &backend);
    other.Prepare({{0, 9}});
    ASSERT_EQ(pieces.Build(other.metadata(), 8), absl::OkStatus());
    const CommonAttentionMetadata metadata = pieces.metadata();
    const absl::Status status = other.layer().Forward(context, other.tensors(), &metadata);
    EXPECT_THAT(status, Says("cut at multiples of 8"));
    EXPECT_EQ(pieces.Build(metadata, 8).code(), absl::StatusCode::kInvalidArgument);
  }
}

void ExpectBlockSparseRulesAreHonoured(const AttentionBackend& backend,
                                       const ExecContext& context) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  const LayerConfig plain{
      .block_sparse = {.local_blocks = 2, .vert_stride = 3, .block_size = 4}};
  LayerConfig rich = plain;
  rich.sinks = ViewOf(absl::MakeConstSpan(sinks)), rich.soft_cap = 2;
  for (const LayerConfig& layer : {plain, rich}) {
    LayerFixture fixture(layer, &backend);
    fixture.context = context;
    // Of two local blocks and every third, the same for all heads.
    fixture.hides = [](int64_t i, int64_t j) {
      return j > i || (j / 4 <= i / 4 - 2 && (j / 4 + 1) % 3 != 0);
    };
    for (const auto& step : Steps{{{0, 21}, {1, 2}}, {{0, 1}, {1, 19}}, {{0, 1}, {1, 1}}}) {
      ASSERT_EQ(fixture.Step(step), absl::OkStatus());
      EXPECT_EQ(fixture.Mismatch(), "");
    }
  }
}

void ExpectRowFormatsAreHonoured(const AttentionBackend& backend, const ExecContext& context) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0}, slopes = {0.5f, 0.25f, 0.125f, 0};
  const std::vector<float> k_scales = {0.5f, 1.25f}, v_scale = {0.375f};
  using Format = KvRowFormat;
  for (const auto& [format, code] : {std::pair(Format::kPerTokenHead, DType::kI8),
                                     {Format::kPerTokenHead, DType::kF8E4M3},
                                     {Format::kInt4PerTokenHead, DType::kU8},
                                     {Format::kNvfp4, DType::kU8}}) {
    LayerConfig plain{.head_size = 16, .row_format = format};
    if (format == Format::kNvfp4) {
      plain.scales = {ViewOf(absl::MakeConstSpan(k_scales)), ViewOf(absl::MakeConstSpan(v_scale))};
    }
    LayerConfig window = plain;
    window.window = 3, window.sinks = ViewOf(absl::MakeConstSpan(sinks));
    LayerConfig chunk = plain;
    chunk.chunk = 4, chunk.alibi_slopes = ViewOf(absl::MakeConstSpan(slopes));
    LayerConfig capped = plain;
    capped.soft_cap = 2, capped.split = SplitPolicy::Fixed(4);
    for (const LayerConfig& layer : {plain, window, chunk, capped}) {
      SCOPED_TRACE(testing::Message() << Name(format) << " of " << Name(code) << ", window "
                                      << layer.window << ", chunk " << layer.chunk);
      LayerFixture fixture(layer, &backend, code);
      fixture.context = context;
      for (const auto& step : kSteps) {
        ASSERT_EQ(fixture.Step(step), absl::OkStatus());
        EXPECT_EQ(fixture.Mismatch(), "");
      }
    }

    LayerFixture other({.head_size = 16, .row_format = Format::kElements}, &backend);
    LayerFixture made(plain, &backend, code);
    made.Prepare({{0, 3}});
    LayerTensors tensors = made.tensors();
    tensors.cache = other.cache();
    const std::vector<std::byte> before = other.k_cache.bytes;
    const absl::Status status = made.layer().Forward(context, tensors, &made.metadata());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status,
                Says(std::string("the cache has rows of elements; the layer was made for ") +
                     Name(format)));
    EXPECT_EQ(other.k_cache.bytes, before);
    for (double value : ValuesOf(made.tensors().out)) EXPECT_TRUE(std::isnan(value));
  }
  const auto refusal = [&](LayerConfig config) {
    config.name = "l", config.num_heads = config.num_kv_heads = 1;
    return backend.MakeImpl(config).status();
  };
  EXPECT_THAT(refusal({.head_size = 24, .row_format = Format::kNvfp4}),
              Says("layer l: head size 24 no multiple of 16 for rows of nvfp4"));
  EXPECT_THAT(refusal({.head_size = 16, .row_format = Format::kMlaV41}),
              Says("rows of mla_v41_528 without mla"));
}

void ExpectLatentRecordsAreHonoured(const AttentionBackend& backend, const ExecContext& context) {
  constexpr int64_t kHeads = 2, kBlocks = LayerFixture::kNumBlocks;
  const std::vector<float> sinks = {0.5f, -1};
  for (const KvRowFormat format :
       {KvRowFormat::kMlaV41, KvRowFormat::kMlaV41Fp4, KvRowFormat::kMlaNvfp4}) {
    for (const int64_t window : {0, 3}) {
      SCOPED_TRACE(testing::Message() << Name(format) << ", window " << window);
      const MlaRecordShape shape = ShapeOf(format);
      LayerConfig config{.name = "mla",
                         .num_heads = kHeads,
                         .head_size = shape.key_dim,
                         .value_head_size = shape.value_dim,
                         .window = window,
                         .sinks = ViewOf(absl::MakeConstSpan(sinks)),
                         .latent_rank = shape.compressed,
                         .rotary_dim = 64,
                         .row_format = format};
      auto layer = backend.MakeImpl(config);
      ASSERT_TRUE(layer.ok()) << layer.status();
      Tensor rows(DType::kU8, {kBlocks, LayerFixture::kBlockSize, shape.bytes});
      std::fill(rows.bytes.begin(), rows.bytes.end(), std::byte{0xFF});
      KvCacheView cache(KvLayout::kMlaLatent, rows.view);
      cache.format = format;

      LayerFixture lengths({}, &backend);  // for its metadata
      std::mt19937_64 random(4);
      std::vector<std::vector<double>> history;  // as stored
      for (const int64_t tokens : {7, 1, 5}) {
        lengths.Prepare({{0, tokens}});
        Tensor q(DType::kF32, {tokens, kHeads, shape.key_dim});
        Tensor kv_c(DType::kF32, {tokens, shape.compressed}), k_pe(DType::kF32, {tokens, 64});
        Tensor out(DType::kF32, {tokens, kHeads, shape.value_dim});
        for (Tensor* tensor : {&q, &kv_c, &k_pe}) {
          tensor->Set(NormalDraws(random, tensor->view.num_elements()));
        }
        FillWithPoison(out);
        const LayerTensors tensors = {q.view, kv_c.view, k_pe.view, cache, out.view};
        ASSERT_EQ((*layer)->Forward(context, tensors, &lengths.metadata()), absl::OkStatus());
        lengths.Commit();
        for (int64_t t = 0; t < tokens; ++t) {
          std::vector<double> row = ValuesOf(*kv_c.view.Slice(0, t, t + 1));
          const std::vector<double> rotary = ValuesOf(*k_pe.view.Slice(0, t, t + 1));
          row.insert(row.end(), rotary.begin(), rotary.end());
          std::vector<std::byte> record(shape.bytes);
          EncodeMlaRecord(format, row.data(), record.data());
          DecodeMlaRecord(format, record.data(), row.data());
          history.push_back(std::move(row));
        }
        DenseParams params;
        params.scale = 1 / std::sqrt(static_cast<double>(shape.key_dim));
        params.window_left = window - 1;
        params.sinks = {0.5, -1};
        ExpectNear(out.Get(), DenseOverRows(history, q.Get(), kHeads, shape.value_dim, params),
                   2e-5);
      }
    }
  }
}

}  // namespace kvblocks::attention
