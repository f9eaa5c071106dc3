// Plans as tensors: worked addresses, refusals, and layers that attend through all three layouts.

#include "kvblocks/memory/planned_memory.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/backends/backend_registry.h"
#include "kvblocks/attention/backends/cpu_backends.h"
#include "kvblocks/attention/testing/dense_oracle.h"
#include "kvblocks/specs/planning/testing/plan_test_helpers.h"

namespace kvblocks {
namespace {

using attention::CommonAttentionMetadata;
using attention::KvLayout;
using attention::RequestInput;
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

Plan PlanIn(PoolLayout layout, const std::vector<LayerCache>& caches, int64_t num_blocks = 61) {
  PlanOptions options = Exact(layout, 1 << 20, 64, 64);
  options.num_blocks_override = num_blocks;
  options.max_chunk_bytes = 5000;
  return PlanOf(caches, options);
}

// --- Addresses ---

// The example of the header.
TEST(PagePlaceTest, TheExampleOfTheHeader) {
  attention::PagePlace place = {.page_bytes = 96,
                                .block_stride = 96,
                                .ids_per_chunk = 5,
                                .pages_per_chunk = 2,
                                .chunk_bytes = 200,
                                .null_offset = 400};
  std::vector<std::byte> bytes(496);
  const TensorView memory = ViewOf(absl::MakeSpan(bytes));
  for (const auto& [stride, pages, at] :
       {std::tuple<int64_t, int64_t, int64_t>(96, 2, 296), {40, 5, 240}}) {
    place.page_bytes = place.block_stride = stride;
    place.pages_per_chunk = pages;
    const auto placed = PlacePages(place, 11, 1, memory);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(place.PageOffset(7), at);
    EXPECT_EQ(placed->pages.At(placed->blocks.First(7)) - bytes.data(), at);
    EXPECT_EQ(placed->pages.At(placed->blocks.First(0)) - bytes.data(), 400);
    EXPECT_TRUE(placed->overlapping == (stride == 96));
    EXPECT_EQ(placed->blocks.IsPage(8), stride == 40);
  }
}

TEST(PagePlaceTest, WhatContradictsItselfIsRefused) {
  std::vector<std::byte> bytes(1000);
  const auto message = [&](attention::PagePlace place, int64_t num_blocks = 11, int64_t split = 1) {
    const auto placed = PlacePages(place, num_blocks, split, ViewOf(absl::MakeSpan(bytes)));
    return std::string(placed.status().message());
  };
  const attention::PagePlace even = {.page_bytes = 90, .block_stride = 90};
  EXPECT_EQ(message(even), "");
  EXPECT_THAT(message(even, 0), HasSubstr("num_blocks is 0"));
  EXPECT_THAT(message(even, 12), HasSubstr("end at byte 1080 of the memory, which has 1000"));
  EXPECT_THAT(message(even, 11, 4), HasSubstr("split is 4; it must divide the 90"));
  EXPECT_THAT(message({.page_bytes = 90, .block_stride = 89}), HasSubstr("89 bytes apart"));
  EXPECT_THAT(message({.offset = INT64_MAX, .page_bytes = 1, .block_stride = 1}),
              HasSubstr("beyond 2^63"));
  const attention::PagePlace chunks = {.page_bytes = 40,
                                       .block_stride = 40,
                                       .ids_per_chunk = 5,
                                       .pages_per_chunk = 4,
                                       .chunk_bytes = 170,
                                       .null_offset = 340};
  EXPECT_EQ(message(chunks), "");
  EXPECT_THAT(message(chunks, 12), HasSubstr("ids_per_chunk is 5; the 11 ids"));
  attention::PagePlace bad = chunks;
  bad.pages_per_chunk = 5;
  EXPECT_THAT(message(bad), HasSubstr("pages_per_chunk is 5"));
  bad = chunks;
  bad.null_offset = 970;
  EXPECT_THAT(message(bad), HasSubstr("end at byte 1010"));
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
  EXPECT_THAT(std::string(made({view(0, bytes - 1)}).status().message()),
              HasSubstr("tensors[0]: it has"));
  EXPECT_THAT(std::string(made({view(0, bytes), view(0, bytes)}).status().message()),
              HasSubstr("tensors has 2 entries; the plan has 1"));
  EXPECT_THAT(std::string(made({view(2, bytes)}).status().message()),
              HasSubstr("align the memory"));
}

TEST(PlannedMemoryTest, BadPlansAndOptionsAreRefused) {
  const Plan plan = PlanIn(PoolLayout::kSlab, Model());
  const auto message = [](const Plan& p, const PlannedMemoryOptions& options) {
    return std::string(PlannedMemory::Create(p, options).status().message());
  };
  EXPECT_THAT(message(plan, {.worker = 1}), HasSubstr("worker is 1; the plan has 1"));
  EXPECT_THAT(message(plan, {.kernel_blocks = {1}}), HasSubstr("kernel_blocks has 1"));
  EXPECT_THAT(message(plan, {.kernel_blocks = {3, 1}}), HasSubstr("kernel_blocks[0] is 3"));
  EXPECT_THAT(message(plan, {.layout = KvLayout::kPagedX}), HasSubstr("layout is"));
  Plan bad = plan;
  bad.workers[0].descriptors[2].offset -= 4;  // full.1 over the end of full.0
  EXPECT_THAT(message(bad, {}), HasSubstr("full.0 and full.1 of group 0 share bytes"));
  bad = plan;
  bad.workers[0].descriptors[2].offset += 4;
  EXPECT_THAT(message(bad, {}), HasSubstr("reaches into the next block's"));
  bad = plan;
  bad.workers[0].descriptors[0].tensor = 1;
  EXPECT_THAT(message(bad, {}), HasSubstr("tensor 1"));
  // Uniform tensors must be apart.
  const Plan uniform = PlanIn(PoolLayout::kUniform, Model());
  std::vector<float> memory(1 << 18);
  const TensorView whole = ViewOf(absl::MakeSpan(memory));
  EXPECT_THAT(message(uniform, {.tensors = {uniform.workers[0].tensors.size(), whole}}),
              HasSubstr("tensors[1]: it shares memory with tensors[0]"));
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
      const bool mla = spec.kind() == KvCacheSpecKind::kMlaAttention;
      const int64_t rank = kDim, rotary = mla ? spec.head_size() - rank : 0;
      const int64_t kv_heads = mla ? 1 : spec.num_kv_heads(), key = kDim + rotary;
      const int64_t window = planned.declared.sliding_window().value_or(0);
      attention::LayerConfig config = {.name = layer.name,
                                       .num_heads = kHeads,
                                       .num_kv_heads = kv_heads,
                                       .head_size = kDim,
                                       .window = window};
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
      const int64_t k_width = mla ? rank : kv_heads * kDim, v_width = mla ? rotary : kv_heads * kDim;
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
      std::vector<float> out(static_cast<size_t>(n * kHeads * kDim));
      attention::LayerTensors tensors;
      tensors.q = ViewOf(absl::MakeConstSpan(q), {n, kHeads * key});
      tensors.k = ViewOf(absl::MakeConstSpan(k), {n, k_width});
      tensors.v = ViewOf(absl::MakeConstSpan(v), {n, v_width});
      tensors.cache = mla ? *layer.LatentCache(rank) : layer.cache;
      tensors.out = ViewOf(absl::MakeSpan(out), {n, kHeads * kDim});
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
        dense.value_dim = kDim;
        const auto queries = Rows(who, 0, step.computed, step.tokens, kHeads * key);
        dense.q.assign(queries.begin(), queries.end());
        for (int64_t t = 0; t < length; ++t) {
          const auto one_k = Rows(who, 1, t, 1, k_width), one_v = Rows(who, 2, t, 1, v_width);
          dense.k.insert(dense.k.end(), one_k.begin(), one_k.end());
          if (mla) dense.k.insert(dense.k.end(), one_v.begin(), one_v.end());
          const auto& value = mla ? one_k : one_v;
          dense.v.insert(dense.v.end(), value.begin(), value.end());
        }
        attention::DenseParams params;
        params.scale = 1 / std::sqrt(double{kDim});
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
  EXPECT_THAT(std::string(build(last + 1).message()), HasSubstr("of its chunk; pages of this"));
}

}  // namespace
}  // namespace kvblocks
