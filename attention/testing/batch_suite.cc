#include "attention/testing/layer_suite.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "attention/testing/batch_sequences.h"
#include "attention/testing/dense_oracle.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention {
namespace {

using batch::BuilderOf;
using batch::Cache;
using batch::Grow;
using batch::kDense;
using batch::kHeads;
using batch::kLatent;
using batch::kLimit;
using batch::kNumBlocks;
using batch::Poisoned;
using batch::Sequence;
using batch::Sequences;
using batch::Shape;
using batch::StepRows;

#define MUST_BE_OK(expression)                    \
  do {                                            \
    const absl::Status must_be_ok = (expression); \
    ASSERT_TRUE(must_be_ok.ok()) << must_be_ok;   \
  } while (false)

void RanksMerge(const AttentionBackend& backend, const ExecContext& context, uint64_t seed,
                const Shape& shape) {
  std::mt19937_64 draws(seed);
  const auto num_ranks = static_cast<int32_t>(IntegerDraw(draws, 2, 5));
  const auto interleave = static_cast<int32_t>(IntegerDraw(draws, 1, 4));
  const int64_t rows = interleave * IntegerDraw(draws, 1, 3);  // per block and rank
  SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << num_ranks << " ranks, interleave "
                                  << interleave << ", blocks of " << rows);
  // Kernel blocks may be smaller than those of the manager.
  const int64_t kernel_rows = rows % 2 == 0 && IntegerDraw(draws, 0, 1) == 0 ? rows / 2 : rows;
  Sequences sequences(seed, shape, rows * num_ranks);
  std::vector<AttentionMetadataBuilder> builders;
  std::vector<Cache> caches;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    builders.push_back(BuilderOf(backend, {.manager_block_size = rows * num_ranks,
                                           .kernel_block_size = kernel_rows,
                                           .context_parallel = {num_ranks, rank, interleave}}));
    caches.emplace_back(shape, kNumBlocks * rows / kernel_rows, kernel_rows);
  }
  const auto layer = backend.MakeImpl(shape.Layer());
  ASSERT_TRUE(layer.ok()) << layer.status();

  for (int steps = 0; steps < 4; ++steps) {
    StepRows step = sequences.NextStep();
    for (AttentionMetadataBuilder& builder : builders) MUST_BE_OK(builder.Build(step.Input()));
    sequences.Fill(step, builders[0].permutation());
    const int64_t tokens = step.num_tokens;
    Tensor outs = Poisoned({num_ranks + 1, tokens, kHeads, shape.out_dim()});
    Tensor lses = Poisoned({num_ranks + 1, tokens, kHeads});
    LayerTensors tensors = {.q = step.q.view, .k = step.k.view, .v = step.v.view};
    for (int32_t rank = 0; rank <= num_ranks; ++rank) {
      tensors.cache = rank < num_ranks ? caches[static_cast<size_t>(rank)].view : KvCacheView();
      tensors.out = *outs.view.Select(0, rank);
      tensors.lse = *lses.view.Select(0, rank);
      const size_t metadata_of = static_cast<size_t>(std::min(rank, num_ranks - 1));
      MUST_BE_OK((*layer)->Forward(context, tensors, &builders[metadata_of].metadata()));
    }
    MergeStatesArgs merge;
    merge.outs = outs.view, merge.lses = lses.view;
    Tensor out = Poisoned({tokens, kHeads, shape.out_dim()}), lse = Poisoned({tokens, kHeads});
    merge.out = out.view, merge.lse = lse.view;
    MUST_BE_OK(backend.ops().MergeStates(context, merge));
    sequences.Expect(step, builders[0], out, lse, {});
    sequences.Commit(step);
  }
}

// The last prompt's rows of each rank, by positions and by the explicit mask of its shard.
void ExpectMasksOfShards(const AttentionBackend& backend, const ExecContext& context,
                         const StepRows& step, const CommonAttentionMetadata& meta,
                         const std::vector<PrefillShard>& shards) {
  if (meta.num_prefills == 0) return;
  const int32_t b = meta.num_reqs - 1;
  const int32_t first = meta.host_query_start_loc[b], end = meta.host_query_start_loc[b + 1];
  AttentionMaskBuilder masks;
  for (int32_t rank = 0; rank < static_cast<int32_t>(shards.size()); ++rank) {
    const PrefillShard& shard = shards[static_cast<size_t>(rank)];
    const ContextParallelShard prompt = {end - first, static_cast<int32_t>(shards.size()), rank};
    const int32_t begin = shard.query_start_loc()[b], rows = shard.query_start_loc()[b + 1] - begin;
    const auto positions = ContextParallelPositions(prompt);
    ASSERT_TRUE(positions.ok()) << positions.status();
    const auto mine = shard.query_positions().subspan(begin, rows);
    ASSERT_EQ(std::vector<int64_t>(mine.begin(), mine.end()), *positions);
    if (rows == 0) continue;
    const auto mask = masks.PrefillContextParallel(prompt, {});
    ASSERT_TRUE(mask.ok()) << mask.status();
    Tensor q(DType::kF32, {rows, kHeads, 8}), outs[2];
    const std::vector<double> all = step.q.Get();
    std::vector<double> values;
    for (int32_t i = begin; i < begin + rows; ++i) {
      const double* row = &all[shard.rows()[i] * kHeads * 8];
      values.insert(values.end(), row, row + kHeads * 8);
    }
    q.Set(values);
    const std::vector<int32_t> starts = {0, rows}, key_starts = {0, end - first};
    VarlenSelfAttentionArgs args;
    args.q = q.view;
    args.k = *step.k.view.Slice(0, first, end), args.v = *step.v.view.Slice(0, first, end);
    args.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
    args.kv_start_loc = ViewOf(absl::MakeConstSpan(key_starts));
    for (const bool masked : {false, true}) {
      outs[masked] = Poisoned({rows, kHeads, 8});
      args.query_positions = masked ? ConstTensorView() : ViewOf(mine);
      args.params.causal = !masked;
      if (masked) args.params.mask = mask->ToExplicit(/*sparse_mode=*/1);
      args.out = outs[masked].view;
      MUST_BE_OK(backend.ops().VarlenSelfAttention(context, args));
    }
    ExpectNear(outs[0].Get(), outs[1].Get(), kLimit);
  }
}

}  // namespace

void ExpectRanksMergeToTheWhole(const AttentionBackend& backend, const ExecContext& context,
                                uint64_t seed) {
  RanksMerge(backend, context, seed, kDense);
  RanksMerge(backend, context, seed, kLatent);
}

void ExpectShardsAreThePrompt(const AttentionBackend& backend, const ExecContext& context,
                              uint64_t seed) {
  std::mt19937_64 draws(seed);
  const auto num_ranks = static_cast<int32_t>(IntegerDraw(draws, 1, 5));
  SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << num_ranks << " ranks");
  Sequences sequences(seed, kDense, 4);
  AttentionMetadataBuilder builder = BuilderOf(backend, {.manager_block_size = 4,
                                                         .kernel_block_size = 4});
  // All tokens are new: a step of prompts, those of one token as decodes.
  for (int i = 0; i < 4; ++i) sequences.Commit(sequences.NextStep());
  StepRows step;
  for (size_t s = 0; s < sequences.all.size(); ++s) {
    sequences.all[s].computed = 0;
    const auto tokens = static_cast<int64_t>(sequences.all[s].k.size()) / 16;
    step.sequences.push_back(s);
    step.requests.push_back({0, tokens});
    step.tables.push_back(sequences.all[s].blocks);
    step.num_tokens += tokens;
  }
  MUST_BE_OK(builder.Build(step.Input()));
  sequences.Fill(step, builder.permutation());
  const CommonAttentionMetadata& meta = builder.metadata();
  const std::vector<double> q = step.q.Get();

  std::vector<PrefillShard> shards(static_cast<size_t>(num_ranks));
  std::vector<double> gathered;
  std::vector<int> seen(static_cast<size_t>(step.num_tokens));
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    PrefillShard& shard = shards[static_cast<size_t>(rank)];
    MUST_BE_OK(shard.Build(meta, num_ranks, rank));
    ASSERT_EQ(shard.num_rows(), shards[0].num_rows());
    Tensor mine(DType::kF32, {shard.num_rows(), kHeads, 8});
    std::vector<double> rows;
    for (const int32_t row : shard.rows()) {
      for (int64_t i = 0; i < kHeads * 8; ++i)
        rows.push_back(row < 0 ? 0 : q[row * kHeads * 8 + i]);
      if (row >= 0) ++seen[static_cast<size_t>(row)];
    }
    mine.Set(rows);
    Tensor out(DType::kF32, {shard.num_rows(), kHeads, 8});
    const int64_t tokens = shard.num_tokens();
    VarlenSelfAttentionArgs args;
    args.q = *mine.view.Slice(0, 0, tokens);
    args.k = step.k.view, args.v = step.v.view;
    args.query_start_loc = ViewOf(shard.query_start_loc());
    args.kv_start_loc = *meta.query_start_loc.Slice(0, 0, meta.num_reqs + 1);
    args.query_positions = ViewOf(shard.query_positions());
    args.params.scale = static_cast<float>(1 / std::sqrt(8.0));
    args.out = *out.view.Slice(0, 0, tokens);
    MUST_BE_OK(backend.ops().VarlenSelfAttention(context, args));
    const std::vector<double> values = out.Get();
    gathered.insert(gathered.end(), values.begin(), values.end());
  }
  EXPECT_THAT(seen, testing::Each(1));  // each token on one rank
  ExpectMasksOfShards(backend, context, step, meta, shards);
  Tensor restored(DType::kF32, {step.num_tokens, kHeads, 8});
  std::vector<double> values;
  ASSERT_EQ(static_cast<int64_t>(shards[0].restore().size()), step.num_tokens);
  for (const int32_t at : shards[0].restore()) {
    values.insert(values.end(), gathered.begin() + at * kHeads * 8,
                  gathered.begin() + (at + 1) * kHeads * 8);
  }
  restored.Set(values);
  sequences.Expect(step, builder, restored, {}, {});
}

void ExpectSinkRowsAreSeen(const AttentionBackend& backend, const ExecContext& context,
                           uint64_t seed) {
  std::mt19937_64 draws(seed);
  for (const int64_t window : {int64_t{0}, IntegerDraw(draws, 1, 20)}) {
    for (const bool cascade : {false, true}) {
      if (cascade && window > 0) continue;
      const int64_t rows = 2 * IntegerDraw(draws, 1, 3);  // of a block of the manager
      const auto num_sinks = static_cast<int32_t>(IntegerDraw(draws, 1, 3));
      SCOPED_TRACE(testing::Message() << "seed " << seed << ": window " << window << ", "
                                      << num_sinks << " sink blocks of " << rows);
      KvGroupConfig group = {.manager_block_size = rows,
                             .kernel_block_size = IntegerDraw(draws, 0, 1) == 0 ? rows : rows / 2,
                             .window = window};
      for (int32_t block = num_sinks; block > 0; --block) group.sink_blocks.push_back(block);
      AttentionMaskBuilder masks;
      AttentionMetadataBuilder builder = BuilderOf(
          backend, group, [&masks](const KvGroupConfig& config, CommonAttentionMetadata* metadata) {
            return AttachMasks(masks, {.window = config.window}, metadata);
          });
      group = builder.config(0);
      Sequences sequences(seed, kDense, rows, num_sinks + 1);
      Cache cache(kDense, kNumBlocks * group.expansion(), group.kernel_block_size);

      // The learned rows, once.
      Sequence sinks;
      Grow(sequences.random, group.num_sink_rows() * 16, sinks.k);
      Grow(sequences.random, group.num_sink_rows() * 16, sinks.v);
      Tensor sink_k(DType::kF32, {group.num_sink_rows(), 2, 8});
      Tensor sink_v(DType::kF32, {group.num_sink_rows(), 2, 8});
      sink_k.Set(sinks.k), sink_v.Set(sinks.v);
      std::vector<int64_t> slots(static_cast<size_t>(group.num_sink_rows()));
      FillSinkSlots(group, slots.data());
      ReshapeAndCacheArgs store;
      store.k = sink_k.view, store.v = sink_v.view;
      store.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
      store.cache = cache.view;
      MUST_BE_OK(backend.ops().ReshapeAndCache(context, store));

      LayerConfig config = kDense.Layer();
      config.window = window;
      if (cascade) config.cascade = CascadeChoice::kAlways;
      const auto layer = backend.MakeImpl(config);
      ASSERT_TRUE(layer.ok()) << layer.status();
      DenseParams params;
      const int64_t sink_rows = group.num_sink_rows();
      for (int steps = 0; steps < 4; ++steps) {
        StepRows step = sequences.NextStep();
        BatchInput input = step.Input();
        const std::vector<int64_t> common = {0};
        if (cascade) input.num_common_prefix_blocks = common;
        MUST_BE_OK(builder.Build(input));
        const CommonAttentionMetadata& meta = builder.metadata();
        ASSERT_EQ(meta.common_prefix_len, cascade ? sink_rows : 0);
        ASSERT_EQ(meta.sink_rows, sink_rows);
        sequences.Fill(step, builder.permutation());
        Tensor out = Poisoned({step.num_tokens, kHeads, 8});
        MUST_BE_OK((*layer)->Forward(context,
                                     {.q = step.q.view,
                                      .k = step.k.view,
                                      .v = step.v.view,
                                      .cache = cache.view,
                                      .out = out.view},
                                     &meta));
        const absl::Span<const int32_t> starts = meta.host_query_start_loc;
        for (size_t b = 0; b < builder.permutation().size(); ++b) {
          const auto request = static_cast<size_t>(builder.permutation()[b]);
          const int64_t first = sink_rows + step.requests[request].num_computed_tokens;
          params.hide = [=](int64_t i, int64_t j, int64_t) {
            return window > 0 && j >= sink_rows && first + i - j >= window;
          };
          const DenseResult expected = sequences.Dense(step, request, starts[b], params, sinks);
          SCOPED_TRACE(testing::Message() << "row " << b);
          ExpectNear(
              Part(out.Get(), starts[b] * kHeads * 8, static_cast<int64_t>(expected.out.size())),
              expected.out, kLimit);
        }
        sequences.Commit(step);
      }
    }
  }
}

void ExpectEncodersAreSeenWithoutCache(const AttentionBackend& backend, const ExecContext& context,
                                       uint64_t seed) {
  std::mt19937_64 draws(seed);
  LayerConfig config = kDense.Layer();
  config.type = AttentionType::kEncoderDecoder;
  config.soft_cap = IntegerDraw(draws, 0, 1) == 0 ? 0.0f : 1.5f;
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  const bool with_sinks = IntegerDraw(draws, 0, 1) == 0;
  if (with_sinks) config.sinks = ViewOf(absl::MakeConstSpan(sinks));
  const auto layer = backend.MakeImpl(config);
  ASSERT_TRUE(layer.ok()) << layer.status();
  AttentionMetadataBuilder builder = BuilderOf(backend, {.manager_block_size = 4,
                                                         .kernel_block_size = 4});
  Sequences sequences(seed, kDense, 4);
  for (int steps = 0; steps < 3; ++steps) {
    StepRows step = sequences.NextStep();
    BatchInput input = step.Input();
    input.padded_num_reqs = static_cast<int64_t>(step.requests.size()) + IntegerDraw(draws, 0, 2);
    input.padded_num_tokens = step.num_tokens + IntegerDraw(draws, 0, 2);
    // Encoders of any length, in the input's order.
    std::vector<int32_t> lens;
    std::vector<Sequence> encoders;
    std::vector<double> k, v;
    for (size_t i = 0; i < step.requests.size(); ++i) {
      lens.push_back(static_cast<int32_t>(IntegerDraw(draws, 0, 3) == 0
                                              ? 0
                                              : IntegerDraw(draws, 1, 40)));
    }
    input.encoder_lens = lens;
    MUST_BE_OK(builder.Build(input));
    sequences.Fill(step, builder.permutation());
    const CommonAttentionMetadata meta = builder.cross_metadata();
    for (const int32_t i : builder.permutation()) {
      Sequence& encoder = encoders.emplace_back();
      Grow(sequences.random, lens[static_cast<size_t>(i)] * 16, encoder.k);
      Grow(sequences.random, lens[static_cast<size_t>(i)] * 16, encoder.v);
      k.insert(k.end(), encoder.k.begin(), encoder.k.end());
      v.insert(v.end(), encoder.v.begin(), encoder.v.end());
    }
    const auto keys = static_cast<int64_t>(k.size()) / 16;
    Tensor all_k(DType::kF32, {keys, 2, 8}), all_v(DType::kF32, {keys, 2, 8});
    all_k.Set(k), all_v.Set(v);
    const int64_t rows = input.padded_num_tokens;
    Tensor q(DType::kF32, {rows, kHeads, 8}), out = Poisoned({rows, kHeads, 8});
    Tensor lse = Poisoned({rows, kHeads});
    std::vector<double> queries = step.q.Get();
    queries.resize(static_cast<size_t>(rows * kHeads * 8), 99);
    q.Set(queries);
    MUST_BE_OK((*layer)->Forward(context,
                                 {.q = q.view,
                                  .k = all_k.view,
                                  .v = all_v.view,
                                  .out = out.view,
                                  .lse = lse.view},
                                 &meta));
    const std::vector<double> got = out.Get(), got_lse = lse.Get();
    for (size_t b = 0; b < encoders.size(); ++b) {
      const int64_t first = meta.host_query_start_loc[b], end = meta.host_query_start_loc[b + 1];
      const int64_t rows_of_request = (end - first) * kHeads;
      const DenseRequest dense = RequestOf(end - first, kHeads, 2, 8, 8,
                                           Part(queries, first * kHeads * 8, rows_of_request * 8),
                                           encoders[b].k, encoders[b].v);
      DenseParams params;
      params.scale = 1 / std::sqrt(8.0);
      params.cap = config.soft_cap;
      params.causal = false;
      if (with_sinks) params.sinks.assign(sinks.begin(), sinks.end());
      const DenseResult expected = DenseAttention(dense, params);
      SCOPED_TRACE(testing::Message() << "row " << b);
      ExpectNear(Part(got, first * kHeads * 8, rows_of_request * 8), expected.out, kLimit);
      ExpectNear(Part(got_lse, first * kHeads, rows_of_request), expected.lse, kLimit);
    }
    for (size_t i = static_cast<size_t>(step.num_tokens * kHeads * 8); i < got.size(); ++i) {
      ASSERT_EQ(got[i], 0) << "padding";
    }
    sequences.Commit(step);
  }
}

void ExpectOtherRanksAndSinksAreRefused(const AttentionBackend& backend,
                                        const ExecContext& context) {
  const auto refusal = [&](KvGroupConfig group, auto change_layer, auto change_tensors) {
    AttentionMetadataBuilder builder = BuilderOf(backend, std::move(group));
    Sequences sequences(1, kDense, 8, 9);
    StepRows step = sequences.NextStep();
    EXPECT_TRUE(builder.Build(step.Input()).ok());
    sequences.Fill(step, builder.permutation());
    Cache cache(kDense, kNumBlocks, 4);
    const std::vector<std::byte> before = cache.k.bytes;
    Tensor out = Poisoned({step.num_tokens, kHeads, 8}), lse = Poisoned({step.num_tokens, kHeads});
    LayerConfig config = kDense.Layer();
    change_layer(config);
    const auto layer = backend.MakeImpl(config);
    EXPECT_TRUE(layer.ok()) << layer.status();
    LayerTensors tensors = {.q = step.q.view,
                            .k = step.k.view,
                            .v = step.v.view,
                            .cache = cache.view,
                            .out = out.view,
                            .lse = lse.view};
    CommonAttentionMetadata meta = builder.metadata();
    change_tensors(tensors, meta);
    const absl::Status status = (*layer)->Forward(context, tensors, &meta);
    EXPECT_EQ(cache.k.bytes, before);
    for (const double value : out.Get()) EXPECT_TRUE(std::isnan(value));
    return status;
  };
  const auto as_is = [](auto&&...) {};
  const KvGroupConfig rank = {
      .manager_block_size = 8, .kernel_block_size = 4, .context_parallel = {2, 1, 2}};
  const auto of_rank = [&](auto change) { return refusal(rank, change, as_is); };
  const std::vector<float> slopes = {1, 1, 1, 1};
  EXPECT_THAT(of_rank([](LayerConfig& c) { c.window = 3; }),
              Says("a rank of 2; a window cannot be spread over ranks; use one rank"));
  EXPECT_THAT(of_rank([](LayerConfig& c) { c.chunk = 4; }), Says("chunks cannot be spread"));
  EXPECT_THAT(
      of_rank([&](LayerConfig& c) { c.alibi_slopes = ViewOf(absl::MakeConstSpan(slopes)); }),
      Says("ALiBi cannot be spread"));
  EXPECT_THAT(of_rank([&](LayerConfig& c) { c.sinks = ViewOf(absl::MakeConstSpan(slopes)); }),
              Says("a sink; give it to MergeStates"));
  EXPECT_THAT(of_rank([](LayerConfig& c) { c.type = AttentionType::kEncoder; }),
              Says("other types than decoder cannot"));
  EXPECT_THAT(refusal(rank, as_is, [](LayerTensors& t, auto&) { t.lse = {}; }),
              Says("lse is absent; states of 2 ranks"));
  EXPECT_THAT(refusal(rank, as_is,
                      [](auto&, CommonAttentionMetadata& m) { m.host_local_context_lens = {}; }),
              Says("host_local_context_lens has 0"));
  EXPECT_THAT(refusal(rank, as_is, [](LayerTensors& t, auto&) { t.lse = *t.lse.Slice(0, 0, 0); }),
              testing::AllOf(Says("lse is f32[0, 4]"), Says("; the batch has")));

  KvGroupConfig sinks = {.manager_block_size = 8, .kernel_block_size = 4, .sink_blocks = {1}};
  EXPECT_THAT(refusal(
                  sinks, [](LayerConfig& c) { c.window = 3; }, as_is),
              Says("8 sink rows, which a window of 3 hides; let AttachMasks"));
  EXPECT_THAT(refusal(
                  sinks, [](LayerConfig& c) { c.chunk = 4; }, as_is),
              Says("8 sink rows, which chunks"));
  EXPECT_THAT(refusal(sinks, as_is, [](LayerTensors& t, auto&) { t.cache = {}; }),
              Says("8 sink rows, which are in the cache"));
}

}  // namespace kvblocks::attention
