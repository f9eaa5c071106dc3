// Plans as tensors: worked addresses, refusals, and layers that attend through all three layouts.

#include "kvblocks/planned_memory.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attention/cache/quantised_rows.h"
#include "attention/testing/dense_oracle.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "specs/planning/testing/plan_test_helpers.h"

namespace kvblocks {
namespace {

using attention::CommonAttentionMetadata;
using attention::KvLayout;
using attention::RequestInput;
using attention::Says;
using attention::TensorView;
using attention::ViewOf;
using ::testing::HasSubstr;

constexpr int64_t kDim = 8;

// Full attention with two heads and a window with one, and latent rows if asked for: three page
// sizes, float32.
std::vector<LayerCache> Model(bool with_latent = false) {
  const KvCacheSpec full = *FullAttentionSpec::Create(
      {.block_size = 8, .num_kv_heads = 2, .head_size = kDim, .dtype = DataType::kFloat32});
  const KvCacheSpec window = *SlidingWindowSpec::Create({.block_size = 4,
                                                         .num_kv_heads = 1,
                                                         .head_size = kDim,
                                                         .sliding_window = 6,
                                                         .dtype = DataType::kFloat32});
  std::vector<LayerCache> caches;
  for (int i = 0; i < 2; ++i) {
    caches.push_back({.name = "full." + std::to_string(i), .spec = full});
    caches.push_back({.name = "window." + std::to_string(i), .spec = window});
  }
  if (with_latent) {
    const KvCacheSpec latent = *MlaAttentionSpec::Create(
        {.block_size = 4, .head_size = 12, .dtype = DataType::kFloat32});
    caches.push_back({.name = "latent", .spec = latent});
  }
  return caches;
}

// Heads, a window and vectors of V of another size in a mode with scales in the page; of the modes
// of latent rows a full cache and, of V4.1, its window, of V3.2, a plain one.
std::vector<LayerCache> QuantisedModel(QuantMode mode, ModelVersion version = ModelVersion::kNone) {
  const DataType storage = mode == QuantMode::kInt8PerTokenHead  ? DataType::kInt8
                           : mode == QuantMode::kFp8PerTokenHead ? DataType::kFp8E4m3
                                                                 : DataType::kUint8;
  if (IsDsMla(mode)) {
    const bool v41 = version == ModelVersion::kDeepseekV41;
    std::vector<LayerCache> caches = {
        {.name = "latent",
         .spec = *MlaAttentionSpec::Create({.block_size = 8,
                                            .head_size = v41 ? 512 : 576,
                                            .dtype = storage,
                                            .quant_mode = mode,
                                            .model_version = version})}};
    if (v41) {
      caches.push_back({.name = "latent_window",
                        .spec = *SlidingWindowMlaSpec::Create({.block_size = 4,
                                                               .head_size = 512,
                                                               .sliding_window = 6,
                                                               .dtype = storage,
                                                               .quant_mode = mode,
                                                               .model_version = version})});
    } else {
      caches.push_back({.name = "plain_window",
                        .spec = *SlidingWindowSpec::Create({.block_size = 4,
                                                            .num_kv_heads = 1,
                                                            .head_size = kDim,
                                                            .sliding_window = 6,
                                                            .dtype = DataType::kFloat32})});
    }
    return caches;
  }
  const KvCacheSpecOptions full = {.block_size = 8,
                                   .num_kv_heads = 2,
                                   .head_size = 16,
                                   .dtype = storage,
                                   .quant_mode = mode};
  KvCacheSpecOptions window = full;
  window.num_kv_heads = 1, window.sliding_window = 6;
  KvCacheSpecOptions values = full;
  values.head_size = 32, values.head_size_v = 16;
  return {{.name = "full", .spec = *FullAttentionSpec::Create(full)},
          {.name = "window", .spec = *SlidingWindowSpec::Create(window)},
          {.name = "values", .spec = *FullAttentionSpec::Create(values)}};
}

Plan PlanIn(PoolLayout layout, const std::vector<LayerCache>& caches, int64_t num_blocks = 61) {
  PlanOptions options = Exact(layout, 1 << 20, 64, 64);
  options.num_blocks_override = num_blocks;
  options.max_chunk_bytes = 5000;
  return PlanOf(caches, options);
}

TEST(PlannedMemoryTest, CallersMemoryIsUsedAndChecked) {
  const Plan plan = PlanIn(PoolLayout::kSlab, Model());
  const int64_t bytes = plan.workers[0].tensors[0].bytes;
  std::vector<float> memory(static_cast<size_t>(bytes) / sizeof(float) + 1);
  auto* const data = reinterpret_cast<std::byte*>(memory.data());
  const auto made = [&](std::vector<TensorView> tensors) {
    return PlannedMemory::Create(plan, {.tensors = std::move(tensors)});
  };
  const auto view = [&](int64_t offset, int64_t size) {
    return TensorView::Contiguous(data + offset, attention::DType::kU8, {size});
  };
  const auto used = made({view(0, bytes)});
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(used->Find("full.0")->cache.k.data, data);
  // Two layers of a group lie one behind the other in a block; groups begin at the same byte.
  EXPECT_EQ(used->Find("full.1")->cache.k.data, data + 2 * 8 * 2 * kDim * 4);
  EXPECT_EQ(used->Find("window.0")->cache.k.data, data);
  EXPECT_EQ(used->Find("nobody"), nullptr);
  EXPECT_THAT(made({view(0, bytes - 1)}).status(), Says("tensors[0]: it has"));
  EXPECT_THAT(made({view(0, bytes), view(0, bytes)}).status(),
              Says("tensors has 2 entries; the plan has 1"));
  EXPECT_THAT(made({view(2, bytes)}).status(), Says("align the memory"));
}

TEST(PlannedMemoryTest, BadPlansAndOptionsAreRefused) {
  const Plan plan = PlanIn(PoolLayout::kSlab, Model());
  const auto refuse = [](const Plan& p, const PlannedMemoryOptions& options, const char* words) {
    EXPECT_THAT(PlannedMemory::Create(p, options).status(), Says(words));
  };
  refuse(plan, {.worker = 1}, "worker is 1; the plan has 1");
  refuse(plan, {.kernel_blocks = {1}}, "kernel_blocks has 1");
  refuse(plan, {.kernel_blocks = {3, 1}}, "kernel_blocks[0] is 3");
  refuse(plan, {.layout = KvLayout::kPagedX}, "layout is");
  Plan bad = plan;
  bad.workers[0].descriptors[2].offset -= 4;  // full.1 over the end of full.0
  refuse(bad, {}, "full.0 and full.1 of group 0 share bytes");
  bad = plan;
  bad.workers[0].descriptors[2].offset += 4;
  refuse(bad, {}, "reaches into the next block's");
  bad = plan;
  bad.workers[0].descriptors[0].tensor = 1;
  refuse(bad, {}, "tensor 1");
  // Uniform tensors must not overlap.
  const Plan uniform = PlanIn(PoolLayout::kUniform, Model());
  std::vector<float> memory(1 << 18);
  const TensorView whole = ViewOf(absl::MakeSpan(memory));
  refuse(uniform, {.tensors = {uniform.workers[0].tensors.size(), whole}},
         "tensors[1]: it shares memory with tensors[0]");
}

// --- Attending ---

// A value that says where it comes from.
float Value(int64_t layer, int64_t kind, int64_t token, int64_t index) {
  return static_cast<float>(
      std::sin(1.0 + 0.7 * static_cast<double>(layer) + 1.3 * static_cast<double>(kind) +
               0.37 * static_cast<double>(token) + 2.1 * static_cast<double>(index)));
}
std::vector<float> Rows(int64_t layer, int64_t kind, int64_t first, int64_t tokens, int64_t width) {
  std::vector<float> rows;
  for (int64_t t = first; t < first + tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) rows.push_back(Value(layer, kind, t, i));
  }
  return rows;
}

// Block ids that no other group uses, and that the layout lets the group use, in no order.
std::vector<int32_t> IdsOf(const Plan& plan, int group, int64_t count) {
  std::vector<int32_t> ids;
  const auto num_groups = static_cast<int64_t>(plan.groups.size());
  for (int64_t id = plan.num_blocks() - 1; id > 0; --id) {
    int64_t unit = id;
    if (plan.config.native) {
      const NativeLayout& native = *plan.config.native;
      unit = (id - 1) / native.ids_per_chunk();  // a chunk belongs to one class
      const auto page_class =
          static_cast<size_t>(plan.groups[static_cast<size_t>(group)].page_class);
      if ((id - 1) % native.ids_per_chunk() >= native.pages_per_chunk[page_class]) continue;
    }
    if (unit % num_groups == group) ids.push_back(static_cast<int32_t>(id));
  }
  for (size_t i = 0; i + 1 < ids.size(); i += 2) std::swap(ids[i], ids[i + 1]);
  EXPECT_GE(static_cast<int64_t>(ids.size()), count);
  ids.resize(static_cast<size_t>(count));
  return ids;
}

// What a cache gives back of vectors of `dim` values.
std::vector<double> Stored(const attention::KvCacheView& cache, const std::vector<float>& rows,
                           int64_t dim) {
  std::vector<double> values(rows.begin(), rows.end());
  if (cache.format == attention::KvRowFormat::kElements) return values;
  std::vector<std::byte> codes(1024), scales(1024);
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(dim)) {
    double* const row = values.data() + at;
    if (attention::IsMlaRecord(cache.format)) {
      attention::EncodeMlaRecord(cache.format, row, codes.data());
      attention::DecodeMlaRecord(cache.format, codes.data(), row);
    } else {
      attention::EncodeQuantisedRow(cache.format, cache.k.dtype, row, dim, 1, codes.data(),
                                    scales.data());
      attention::DecodeQuantisedRow(cache.format, cache.k.dtype, codes.data(), scales.data(), dim,
                                    row);
    }
  }
  return values;
}

// A prompt in two parts and two decodes of two requests, through the layers of a plan.
void ExpectLayersAttend(const Plan& plan, const PlannedMemoryOptions& options) {
  const auto memory = PlannedMemory::Create(plan, options);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (const TensorView& tensor : memory->tensors()) {
    std::memset(tensor.data, 0xff, static_cast<size_t>(*tensor.SpanBytes()));  // NaN
  }
  const attention::AttentionBackend& backend = attention::CpuBackend();
  constexpr int64_t kRequests = 2, kHeads = 4;
  // Of all layers, a step at a time, as a model does.
  struct Step {
    int64_t computed, tokens;
  };
  for (const Step step : {Step{0, 11}, {11, 6}, {17, 1}, {18, 1}}) {
    for (const LayerMemory& layer : memory->layers()) {
      const PlannedLayer& planned = plan.layers[static_cast<size_t>(layer.layer)];
      const KvCacheSpec& spec = planned.stored;
      const bool mla = spec.has_one_vector_per_row();
      const attention::KvCacheView cache = layer.rows.absent() ? layer.cache
                                                               : *layer.LatentCache(kDim);
      const int64_t rank = !mla ? 0 : attention::CompressedValues(cache);
      const int64_t rotary = mla ? cache.key_dim() - rank : 0;
      const int64_t kv_heads = mla ? 1 : spec.num_kv_heads(), key = cache.key_dim();
      const int64_t value = cache.value_dim();
      const int64_t window = planned.declared.sliding_window().value_or(0);
      attention::LayerConfig config = {.name = layer.name,
                                       .num_heads = kHeads,
                                       .num_kv_heads = kv_heads,
                                       .head_size = mla ? kDim : key,
                                       .value_head_size = value,
                                       .window = window,
                                       .row_format = cache.format};
      if (mla) config.latent_rank = rank, config.rotary_dim = rotary;
      const auto impl = backend.MakeImpl(config);
      ASSERT_TRUE(impl.ok()) << impl.status();
      auto builder = backend.MakeMetadataBuilder({.groups = {memory->KvGroupOf(layer)},
                                                  .max_num_reqs = kRequests,
                                                  .max_num_tokens = 64,
                                                  .max_seq_len = 64});
      ASSERT_TRUE(builder.ok()) << builder.status();
      const int64_t per_request = 19 / spec.block_size() + 1;
      const std::vector<int32_t> ids = IdsOf(plan, layer.group, kRequests * per_request);
      std::vector<RequestInput> requests;
      std::vector<absl::Span<const int32_t>> tables;
      std::vector<float> q, k, v;
      const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      const int64_t k_width = mla ? rank : kv_heads * key;
      const int64_t v_width = mla ? rotary : kv_heads * value;
      for (int64_t r = 0; r < kRequests; ++r) {
        requests.push_back({step.computed, step.tokens});
        tables.push_back(absl::MakeConstSpan(ids).subspan(static_cast<size_t>(r * per_request),
                                                          static_cast<size_t>(per_request)));
        const int64_t who = 10 * layer.layer + r;
        append(q, Rows(who, 0, step.computed, step.tokens, kHeads * key));
        append(k, Rows(who, 1, step.computed, step.tokens, k_width));
        append(v, Rows(who, 2, step.computed, step.tokens, v_width));
      }
      ASSERT_TRUE(builder->Build({.requests = requests, .block_ids = tables}).ok());
      const int64_t n = kRequests * step.tokens;
      std::vector<float> out(static_cast<size_t>(n * kHeads * value));
      attention::LayerTensors tensors;
      tensors.q = ViewOf(absl::MakeConstSpan(q), {n, kHeads * key});
      tensors.k = ViewOf(absl::MakeConstSpan(k), {n, k_width});
      tensors.v = ViewOf(absl::MakeConstSpan(v), {n, v_width});
      tensors.cache = cache;
      tensors.out = ViewOf(absl::MakeSpan(out), {n, kHeads * value});
      const absl::Status status = (*impl)->Forward({}, tensors, &builder->metadata());
      ASSERT_TRUE(status.ok()) << layer.name << ": " << status;

      for (int64_t r = 0; r < kRequests; ++r) {
        const int64_t who = 10 * layer.layer + r, length = step.computed + step.tokens;
        attention::DenseRequest dense;
        dense.q_len = step.tokens;
        dense.kv_len = length;
        dense.num_heads = kHeads;
        dense.num_kv_heads = kv_heads;
        dense.key_dim = key;
        dense.value_dim = value;
        const auto queries = Rows(who, 0, step.computed, step.tokens, kHeads * key);
        dense.q.assign(queries.begin(), queries.end());
        for (int64_t t = 0; t < length; ++t) {
          auto one_k = Rows(who, 1, t, 1, k_width), one_v = Rows(who, 2, t, 1, v_width);
          if (mla) {
            one_k.insert(one_k.end(), one_v.begin(), one_v.end());
            const std::vector<double> row = Stored(cache, one_k, key);
            dense.k.insert(dense.k.end(), row.begin(), row.end());
            dense.v.insert(dense.v.end(), row.begin(), row.begin() + value);
            continue;
          }
          for (double x : Stored(cache, one_k, key)) dense.k.push_back(x);
          for (double x : Stored(cache, one_v, value)) dense.v.push_back(x);
        }
        attention::DenseParams params;
        params.scale = 1 / std::sqrt(static_cast<double>(config.head_size));
        if (window > 0) params.window_left = window - 1;
        const auto expected = DenseAttention(dense, params);
        for (size_t i = 0; i < expected.out.size(); ++i) {
          ASSERT_NEAR(out[static_cast<size_t>(r) * expected.out.size() + i], expected.out[i], 1e-5)
              << layer.name << ", request " << r << ", value " << i;
        }
      }
    }
  }
}

TEST(PlannedMemoryTest, LayersAttendInAllLayouts) {
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    for (const bool with_latent : {false, true}) {
      // Latent rows of 12 values are no fraction of the other pages.
      if (with_latent && layout == PoolLayout::kUniform) continue;
      SCOPED_TRACE(std::string(LayoutName(layout)) + (with_latent ? ", latent" : ""));
      const Plan plan = PlanIn(layout, Model(with_latent), with_latent ? 241 : 61);
      ASSERT_EQ(plan.layout, layout);
      ExpectLayersAttend(plan, {});
      ExpectLayersAttend(plan, {.layout = KvLayout::kHnd});
      ExpectLayersAttend(plan,
                         {.kernel_blocks = std::vector<int64_t>(plan.groups.size(), 2)});
    }
  }
}

TEST(PlannedMemoryTest, QuantisedLayersAttendInAllLayouts) {
  struct Case {
    QuantMode mode;
    ModelVersion version = ModelVersion::kNone;
  };
  const Case cases[] = {{QuantMode::kInt8PerTokenHead},
                        {QuantMode::kFp8PerTokenHead},
                        {QuantMode::kInt4PerTokenHead},
                        {QuantMode::kNvfp4},
                        {QuantMode::kFp8DsMla, ModelVersion::kDeepseekV41},
                        {QuantMode::kNvfp4DsMla, ModelVersion::kDeepseekV41},
                        {QuantMode::kNvfp4DsMla, ModelVersion::kDeepseekV32}};
  for (const Case& of : cases) {
    for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
      SCOPED_TRACE(std::string(LayoutName(layout)) + " " + std::string(QuantModeName(of.mode)) +
                   " " + std::string(ModelVersionName(of.version)));
      std::vector<LayerCache> caches = QuantisedModel(of.mode, of.version);
      // Uniform pages are of one size, or of multiples.
      if (layout == PoolLayout::kUniform) caches.erase(caches.begin() + 1, caches.end());
      const Plan plan = PlanIn(layout, caches, 241);
      ASSERT_EQ(plan.layout, layout);
      ExpectLayersAttend(plan, {});
      ExpectLayersAttend(plan, {.layout = KvLayout::kHnd});
      ExpectLayersAttend(plan, {.kernel_blocks = std::vector<int64_t>(plan.groups.size(), 2)});
    }
  }
}

// What no operation reads says so, and is memory still.
TEST(PlannedMemoryTest, RowsWithoutAViewSayWhy) {
  const auto why = [](const KvCacheSpec& spec) {
    const auto memory = PlannedMemory::Create(
        PlanIn(PoolLayout::kSlab, {{.name = "l", .spec = spec}}), {});
    EXPECT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(memory->layers()[0].cache.absent());
    EXPECT_FALSE(memory->layers()[0].placed.pages.absent());
    return memory->layers()[0].opaque;
  };
  EXPECT_THAT(why(*FullAttentionSpec::Create({.block_size = 4,
                                              .num_kv_heads = 1,
                                              .head_size = 6,
                                              .dtype = DataType::kInt8,
                                              .quant_mode = QuantMode::kInt8PerTokenHead})),
              HasSubstr("vectors of 6 values"));
  EXPECT_THAT(why(*MlaAttentionSpec::Create({.block_size = 4,
                                             .head_size = 16,
                                             .dtype = DataType::kInt8,
                                             .quant_mode = QuantMode::kInt8PerTokenHead})),
              HasSubstr("reads int8_per_token_head rows of mla_attention"));
  EXPECT_THAT(why(*SlidingWindowMlaSpec::Create({.block_size = 4,
                                                 .head_size = 512,
                                                 .sliding_window = 8,
                                                 .dtype = DataType::kUint8,
                                                 .quant_mode = QuantMode::kFp8DsMla})),
              HasSubstr("without a model_version"));
}

// A table with an id that is no page of the group's size is refused before anything is written.
TEST(PlannedMemoryTest, IdsBehindTheLastPageOfAChunkAreRefused) {
  const Plan plan = PlanIn(PoolLayout::kNative, Model());
  const auto memory = PlannedMemory::Create(plan, {});
  ASSERT_TRUE(memory.ok());
  const NativeLayout& native = *plan.config.native;
  const auto& pages = native.pages_per_chunk;
  const LayerMemory* largest = &memory->layers()[0];
  for (const LayerMemory& layer : memory->layers()) {
    if (layer.place.pages_per_chunk < largest->place.pages_per_chunk) largest = &layer;
  }
  ASSERT_LT(largest->place.pages_per_chunk, *std::max_element(pages.begin(), pages.end()));
  auto builder = attention::AttentionMetadataBuilder::Create(
      {.groups = {memory->KvGroupOf(*largest)}, .max_num_reqs = 1, .max_num_tokens = 4,
       .max_seq_len = 8});
  ASSERT_TRUE(builder.ok()) << builder.status();
  const RequestInput request = {.num_computed_tokens = 0, .num_scheduled_tokens = 1};
  const auto build = [&](int64_t id) {
    const int32_t block = static_cast<int32_t>(id);
    const absl::Span<const int32_t> table(&block, 1);
    return builder->Build({.requests = {&request, 1}, .block_ids = {&table, 1}});
  };
  const int64_t last = largest->place.pages_per_chunk;
  EXPECT_TRUE(build(last).ok());
  EXPECT_THAT(build(last + 1), Says("of its chunk; pages of this"));
}

}  // namespace
}  // namespace kvblocks
