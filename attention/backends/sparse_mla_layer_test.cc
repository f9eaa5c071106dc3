// What sparse layers refuse, and what they leave alone. That they are right: tests/deepseek_v4.

#include "kvblocks/attention_layer.h"

#include <string>
#include <vector>

#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

LayerConfig OfV32() {
  LayerConfig config{.name = "l", .num_heads = 2, .latent_rank = 6, .rotary_dim = 2};
  config.sparse = {.topk = 2, .index_heads = 1, .index_dim = 4};
  return config;
}

TEST(SparseMlaLayerTest, ConfigsThatContradictThemselvesAreRefused) {
  EXPECT_TRUE(CpuBackend().MakeImpl(OfV32()).ok());
  const auto refuse = [](auto change, const char* words) {
    LayerConfig config = OfV32();
    change(config);
    EXPECT_THAT(CpuBackend().MakeImpl(config).status(), Says(words));
  };
  refuse([](auto& c) { c.window = 8; }, "layer l: window 8; a sparse layer");
  refuse([](auto& c) { c.sparse.compress_ratio = 4; }, "window 0");
  refuse([](auto& c) { c.window = 8, c.sparse.compress_ratio = 1; },
         "topk 2 with compress_ratio 1");
  refuse([](auto& c) { c.sparse.index_heads = 0; }, "0 heads of 4");
  refuse([](auto& c) { c.sparse.overlap = true; }, "overlap");
  refuse([](auto& c) { c.latent_rank = 0; }, "latent rank of 0");
  refuse([](auto& c) { c.sparse.topk = -1; }, "layer l: ");
  refuse([](auto& c) { c.soft_cap = 1; }, "no other feature");
  refuse([](auto& c) { c.scale = -1; }, "scale -1");
  refuse([](auto& c) { c.row_format = KvRowFormat::kMlaNvfp4; },
         "head size 8/6 not the 576/512 of mla_nvfp4_352");
  refuse([](auto& c) { c.sparse.compressed_row_format = KvRowFormat::kElements; },
         "compressed_row_format with compress_ratio 0");
}

TEST(SparseMlaLayerTest, WorkIsWhatALayerNeeds) {
  LayerConfig config = OfV32();
  const SparseWorkBounds bounds{.max_tokens = 3, .max_seq_len = 100};
  std::vector<std::byte> memory(2000);
  const auto view = [&](int64_t bytes) {
    return TensorView::Contiguous(memory.data(), DType::kU8, {bytes});
  };
  const auto v32 = MakeSparseWork(config, bounds, view(SparseWorkBytes(config, bounds)));
  ASSERT_TRUE(v32.ok()) << v32.status();
  EXPECT_EQ(v32->chosen_slots.DebugString(), "i32[3, 2]");
  EXPECT_TRUE(v32->window_slots.absent() && v32->rows.absent() && v32->all_slots.absent());
  const absl::Status little =
      MakeSparseWork(config, bounds, view(SparseWorkBytes(config, bounds) - 1)).status();
  EXPECT_EQ(little.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(little, Says("works in 512 bytes; the memory has 511"));
  config.window = 5;
  config.sparse = {.compress_ratio = 8};
  const auto c8 = MakeSparseWork(config, bounds, view(2000));
  ASSERT_TRUE(c8.ok()) << c8.status();
  EXPECT_EQ(c8->window_slots.DebugString(), "i32[3, 5]");
  EXPECT_EQ(c8->all_slots.DebugString(), "i32[3, 12]");
  EXPECT_EQ(c8->rows.DebugString(), "f32[3, 8]");
  EXPECT_TRUE(c8->chosen_slots.absent() && c8->index_rows.absent());
}

TEST(SparseMlaLayerTest, RefusedCallsChangeNothingAndPaddingIsZero) {
  const LayerConfig config = OfV32();
  const auto layer = CpuBackend().MakeImpl(config);
  ASSERT_TRUE(layer.ok()) << layer.status();
  auto builder = AttentionMetadataBuilder::Create(
      {.groups = {{.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = 6}},
       .max_num_reqs = 1,
       .max_num_tokens = 4,
       .max_seq_len = 8});
  const std::vector<RequestInput> batch = {{.num_computed_tokens = 0, .num_scheduled_tokens = 3}};
  const std::vector<int32_t> blocks = {2};
  const std::vector<absl::Span<const int32_t>> tables = {blocks};
  ASSERT_TRUE(builder->Build({.requests = batch, .block_ids = tables}).ok());

  Tensor q(DType::kF32, {4, 2, 8}), k(DType::kF32, {4, 6}), v(DType::kF32, {4, 2});
  Tensor cache(DType::kF32, {6, 4, 8}), out(DType::kF32, {4, 2, 6});
  Tensor index_q(DType::kF32, {4, 1, 4}), weights(DType::kF32, {4, 1}),
      index_k(DType::kF32, {4, 4});
  Tensor index_cache(DType::kF32, {6, 4, 4});
  for (Tensor* tensor : {&q, &k, &v, &index_q, &weights, &index_k}) {
    tensor->Set(std::vector<double>(tensor->view.num_elements(), 1));
  }
  FillWithPoison(cache), FillWithPoison(index_cache), FillWithPoison(out);
  const SparseWorkBounds bounds{.max_tokens = 4, .max_seq_len = 8};
  std::vector<std::byte> memory(SparseWorkBytes(config, bounds));
  SparseTensors sparse;
  sparse.work = *MakeSparseWork(
      config, bounds,
      TensorView::Contiguous(memory.data(), DType::kU8, {static_cast<int64_t>(memory.size())}));
  sparse.index_q = index_q.view, sparse.index_weights = weights.view;
  sparse.index_k = index_k.view, sparse.index_cache = index_cache.view;
  LayerTensors tensors;
  tensors.q = q.view, tensors.k = k.view, tensors.v = v.view, tensors.out = out.view;
  tensors.cache = *MakeMlaLatentView(cache.view, 6);

  const std::vector<std::byte> before = cache.bytes, index_before = index_cache.bytes;
  const auto refuse = [&](const LayerTensors& given, const CommonAttentionMetadata& metadata,
                          const char* words) {
    EXPECT_THAT((*layer)->Forward({}, given, &metadata), Says(words));
    EXPECT_EQ(cache.bytes, before);
    EXPECT_EQ(index_cache.bytes, index_before);
  };
  const CommonAttentionMetadata& good = builder->metadata();
  refuse(tensors, good, "layer l: sparse is null");
  tensors.sparse = &sparse;
  LayerTensors bad = tensors;
  bad.q = *q.view.Slice(0, 0, 2);
  refuse(bad, good, "q is f32[2, 2, 8]; 3 dimensions and 3 rows");
  bad = tensors, bad.out_scale = 1;
  refuse(bad, good, "quantised output");
  CommonAttentionMetadata metadata = good;
  metadata.causal = false;
  refuse(tensors, metadata, "causality");
  // A bad block, found by the indexer's check before the first store runs.
  const std::vector<int32_t> table = {6};
  metadata = good, metadata.block_table = ViewOf(absl::MakeConstSpan(table), {1, 1});
  refuse(tensors, metadata, "block_table[0][0] is 6");
  SparseTensors without = sparse;
  without.index_cache = {};
  bad = tensors, bad.sparse = &without;
  refuse(bad, good, "no index_cache");

  // A KV connector.
  struct Hooks : LayerHooks {
    absl::Status WaitForLayer(const std::string& name, const ExecContext&) override {
      events += "wait " + name + ", ";
      return name == fails_at ? absl::DeadlineExceededError("too long") : absl::OkStatus();
    }
    absl::Status SaveLayer(const std::string& name, const ConstKvCacheView&,
                           const CommonAttentionMetadata&, const ExecContext&) override {
      events += "save " + name + ", ";
      return absl::OkStatus();
    }
    std::string events, fails_at;
  } hooks;
  bad = tensors, bad.hooks = &hooks;
  refuse(bad, good, "layer l: sparse.names.index is empty");
  EXPECT_EQ(hooks.events, "");
  LayerConfig named = config;
  named.sparse.names.index = "l.index";
  const auto with_names = CpuBackend().MakeImpl(named);
  ASSERT_TRUE(with_names.ok()) << with_names.status();
  hooks.fails_at = "l.index";
  EXPECT_EQ((*with_names)->Forward({}, bad, &good), absl::DeadlineExceededError("too long"));
  EXPECT_EQ(hooks.events, "wait l, wait l.index, ");
  EXPECT_EQ(cache.bytes, before);
  // These save keys and values only, which is said, and nothing is pretended.
  hooks.events = hooks.fails_at = "";
  const absl::Status unsaved = (*with_names)->Forward({}, bad, &good);
  EXPECT_EQ(unsaved.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(unsaved, Says("do not save l.index"));
  EXPECT_EQ(hooks.events, "wait l, wait l.index, save l, ");

  ASSERT_EQ((*layer)->Forward({}, tensors, &good), absl::OkStatus());
  const std::vector<double> rows = out.Get();
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(rows[i], i < 36 ? 1 : 0) << i;
  // Profiling.
  FillWithPoison(out);
  ASSERT_EQ((*layer)->Forward({}, tensors, nullptr), absl::OkStatus());
  EXPECT_EQ(out.Get(), std::vector<double>(48, 0));
}

// A layer with a window alone over tables that begin with sink rows. Queries of zeros weigh all
// rows alike, so the output is the mean of those that a token sees.
TEST(SparseMlaLayerTest, AWindowSeesTheSinkRowsBeforeIt) {
  constexpr int64_t kWindow = 3, kSinks = 4;
  LayerConfig config{.name = "l", .num_heads = 1, .latent_rank = 8};
  config.window = kWindow;
  config.sparse = {.compress_ratio = 1};
  const auto layer = CpuBackend().MakeImpl(config);
  ASSERT_TRUE(layer.ok()) << layer.status();
  auto builder = AttentionMetadataBuilder::Create({.groups = {{.manager_block_size = 4,
                                                               .kernel_block_size = 4,
                                                               .num_blocks = 6,
                                                               .window = kWindow,
                                                               .sink_blocks = {1}}},
                                                   .max_num_reqs = 1,
                                                   .max_num_tokens = 8,
                                                   .max_seq_len = 12});
  ASSERT_TRUE(builder.ok()) << builder.status();
  Tensor cache(DType::kF32, {6, 4, 8}), sinks(DType::kF32, {kSinks, 8});
  FillWithPoison(cache);
  const KvCacheView view = *MakeMlaLatentView(cache.view, 8);
  std::vector<double> learned;
  for (int64_t i = 0; i < kSinks * 8; ++i) learned.push_back(1000 + i / 8);
  sinks.Set(learned);
  std::vector<int64_t> slots(kSinks);
  FillSinkSlots(builder->config(0), slots.data());
  ConcatAndCacheMlaArgs store;
  store.kv_c = sinks.view, store.k_pe = *sinks.view.Slice(1, 8, 8);
  store.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
  store.cache = view;
  ASSERT_EQ(CpuBackend().ops().ConcatAndCacheMla({}, store), absl::OkStatus());

  const SparseWorkBounds bounds{.max_tokens = 8, .max_seq_len = 12, .sink_rows = kSinks};
  std::vector<std::byte> memory(SparseWorkBytes(config, bounds));
  SparseTensors sparse;
  sparse.work = *MakeSparseWork(
      config, bounds,
      TensorView::Contiguous(memory.data(), DType::kU8, {static_cast<int64_t>(memory.size())}));
  const std::vector<int32_t> blocks = {2, 3, 5};
  const absl::Span<const int32_t> table = blocks;
  for (const RequestInput& request : {RequestInput{0, 5}, {5, 1}, {6, 4}}) {
    ASSERT_EQ(builder->Build({.requests = {&request, 1}, .block_ids = {&table, 1}}),
              absl::OkStatus());
    const CommonAttentionMetadata& metadata = builder->metadata();
    ASSERT_EQ(BuildSparseLists(CpuBackend(), {}, config, metadata, nullptr, sparse.work),
              absl::OkStatus());
    const int64_t tokens = request.num_scheduled_tokens, first = request.num_computed_tokens;
    Tensor q(DType::kF32, {tokens, 1, 8}), k(DType::kF32, {tokens, 8}),
        out(DType::kF32, {tokens, 1, 8});
    q.Set(std::vector<double>(tokens * 8, 0));
    std::vector<double> rows;
    for (int64_t i = 0; i < tokens * 8; ++i) rows.push_back(first + i / 8);
    k.Set(rows);
    LayerTensors tensors;
    tensors.q = q.view, tensors.k = k.view, tensors.out = out.view;
    tensors.cache = view, tensors.sparse = &sparse;
    ASSERT_EQ((*layer)->Forward({}, tensors, &metadata), absl::OkStatus());
    const std::vector<double> got = out.Get();
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 1000 + 1001 + 1002 + 1003, count = kSinks;
      for (int64_t p = first + t; p >= 0 && p > first + t - kWindow; --p) sum += p, ++count;
      EXPECT_NEAR(got[t * 8], sum / count, 1e-3) << "token " << first + t;
    }
    Tensor lse(DType::kF32, {tokens, 1});
    tensors.lse = lse.view;
    EXPECT_THAT((*layer)->Forward({}, tensors, &metadata),
                Says("sparse MLA has one rank and returns no states"));
  }
}

}  // namespace
}  // namespace kvblocks::attention
