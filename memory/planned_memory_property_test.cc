// Views of random plans: every row where the rules of the specification put it, inside the
// allocation, and no two live rows in one place.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "rapidcheck/gtest.h"
#include "specs/planning/testing/check_plans.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using attention::KvCacheView;
using attention::KvLayout;
using attention::TensorView;

// Any of them from the first case on; RapidCheck by itself begins with small ranges.
int64_t Number(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}
bool Coin() { return Number(0, 1) == 1; }

KvCacheSpec AnySpec() {
  const int64_t block = Coin() ? 4 : 8;
  const int64_t heads = Number(1, 3);
  switch (Number(0, 13)) {
    case 0:
      return FullSpec(block, heads, 16, Coin() ? QuantMode::kNone : QuantMode::kFp8PerTensor);
    case 1:
      return WindowSpec(block, heads, 16, Coin() ? 8 : 12);
    case 2:
      return ChunkedSpec(block, heads, 16, 16);
    case 3:
      return DeepseekV4("4")[static_cast<size_t>(Number(0, 4))].spec;
    case 4:
      return StateSpec(block, 64, 128 * Number(1, 3));
    case 5:  // K and V of different sizes
      return *FullAttentionSpec::Create({.block_size = block,
                                         .num_kv_heads = heads,
                                         .head_size = 24,
                                         .head_size_v = 16,
                                         .indexes_kv_by_block_stride = true});
    case 6:
      return *RingSpec::Create({.block_size = block, .head_size = 16 * Number(1, 4)});
    case 7:
      return *HiddenStateSpec::Create({.block_size = block, .head_size = 8 * Number(1, 4)});
    case 8:
      return *CrossAttentionSpec::Create(
          {.block_size = block, .num_kv_heads = heads, .head_size = 16});
    case 9:
      return LatentSpec(block, Coin() ? QuantMode::kNone : QuantMode::kFp8DsMla);
    case 10: {
      const QuantMode modes[] = {QuantMode::kInt8PerTokenHead, QuantMode::kFp8PerTokenHead,
                                 QuantMode::kInt4PerTokenHead, QuantMode::kNvfp4};
      return FullSpec(block, heads, 16, modes[Number(0, 3)]);
    }
    case 13: {
      const bool fp4 = Coin();
      KvCacheSpecOptions rows = {.block_size = block,
                                 .head_size = 512,
                                 .dtype = DataType::kUint8,
                                 .quant_mode = fp4 ? QuantMode::kNvfp4DsMla : QuantMode::kFp8DsMla,
                                 .model_version = ModelVersion::kDeepseekV41};
      if (Coin()) {
        if (fp4 && Coin()) rows.model_version = ModelVersion::kDeepseekV32, rows.head_size = 576;
        return *MlaAttentionSpec::Create(rows);
      }
      rows.sliding_window = 8;
      return *SlidingWindowMlaSpec::Create(rows);
    }
    case 11:
      return *MlaAttentionSpec::Create(
          {.block_size = block, .head_size = 48, .dtype = DataType::kFloat32, .compress_ratio = 2});
    default:
      return *SinkFullAttentionSpec::Create(
          {.block_size = block, .num_kv_heads = heads, .head_size = 16, .sink_length = block * 2});
  }
}

PlanResult AnyPlan() {
  std::vector<KvCacheSpec> palette;
  for (int64_t n = Number(1, 3); n > 0; --n) palette.push_back(AnySpec());
  std::vector<LayerCache> caches;
  for (int64_t i = 0, n = Number(1, 8); i < n; ++i) {
    caches.push_back(
        {.name = "layer" + std::to_string(i),
         .spec =
             palette[static_cast<size_t>(Number(0, static_cast<int64_t>(palette.size()) - 1))]});
  }
  PlanOptions options = {.policy = Number(0, 3) == 0 ? PlanPolicy::kUpstream : PlanPolicy::kExact,
                         .limits = {.max_in_flight_tokens = 4},
                         .longest_automatic_len = 64,
                         .num_blocks_override = Number(60, 90)};
  if (options.policy == PlanPolicy::kExact) {
    options.layout = static_cast<PoolLayout>(Number(0, 2));
  }
  return MakePlan(caches, options);
}

// The rule of the layouts, walked: chunk by chunk, page by page.
int64_t NaivePage(const Plan& plan, const LayerDescriptor& d, int64_t block) {
  if (plan.layout != PoolLayout::kNative) return d.offset + block * d.block_stride;
  const NativeLayout& native = *plan.config.native;
  if (block == 0) return native.num_chunks * d.chunk_bytes + d.offset;
  int64_t chunk = 0, page = block - 1;
  for (; page >= native.ids_per_chunk(); page -= native.ids_per_chunk()) ++chunk;
  return chunk * d.chunk_bytes + page * d.block_stride + d.offset;
}

struct Bytes {
  int tensor;
  int64_t begin, size;
};

// Of one latent row; V4's lie in two pieces.
int64_t RecordBytes(const KvCacheSpec& spec) {
  const bool fp4 = spec.quant_mode() == QuantMode::kNvfp4DsMla;
  const bool full = spec.kind() == KvCacheSpecKind::kMlaAttention;
  if (spec.options().model_version == ModelVersion::kDeepseekV41) return fp4 && full ? 288 : 528;
  return fp4 ? 352 : 656;
}

// What one block of a layer holds, by the spec alone: all rows and states, `split` kernel blocks.
void AddNaive(const Plan& plan, const LayerDescriptor& d, int64_t block, int64_t split, bool hnd,
              std::vector<Bytes>* out) {
  const KvCacheSpec& spec = plan.layers[static_cast<size_t>(d.layer)].stored;
  const int64_t page = NaivePage(plan, d, block);
  if (spec.kind() == KvCacheSpecKind::kMamba) {
    int64_t at = page;
    for (const MambaState& state : spec.options().states) {
      int64_t bytes = ElementBytes(state.dtype);
      for (const int64_t extent : state.shape) bytes *= extent;
      out->push_back({d.tensor, at, bytes});
      at += bytes;
    }
    return;
  }
  const int64_t rows = spec.storage_block_size() / split;
  const int64_t element =
      spec.quant_mode() == QuantMode::kFp8PerTensor ? 1 : ElementBytes(spec.dtype());
  const int64_t heads = spec.num_kv_heads(), d_k = spec.head_size(), d_v = spec.head_size_v();
  const QuantMode mode = spec.quant_mode();
  const bool packed = mode == QuantMode::kInt4PerTokenHead || mode == QuantMode::kNvfp4;
  const int64_t codes_k = packed ? d_k / 2 : d_k, codes_v = packed ? d_v / 2 : d_v;
  for (int64_t s = 0; s < split; ++s) {
    const int64_t base = page + s * (spec.unpadded_page_bytes() / split);
    for (int64_t t = 0; t < rows; ++t) {
      if (IsDsMla(mode)) {
        const int64_t record = RecordBytes(spec);
        out->push_back({d.tensor, base + t * record, record});
        continue;
      }
      if (spec.has_one_vector_per_row()) {
        out->push_back({d.tensor, base + t * d_k * element, d_k * element});
        continue;
      }
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t i = hnd ? h * rows + t : t * heads + h;
        const auto add = [&](int64_t at, int64_t bytes) {
          out->push_back({d.tensor, base + at, bytes});
        };
        if (HasPerTokenHeadScales(mode)) {
          const int64_t at = i * (codes_k + 4 + codes_v + 4);
          add(at, codes_k), add(at + codes_k, 4);
          add(at + codes_k + 4, codes_v), add(at + codes_k + 4 + codes_v, 4);
          continue;
        }
        if (mode == QuantMode::kNvfp4) {
          const int64_t n = rows * heads, k = codes_k + d_k / 16, of_k = d_k / 16, of_v = d_v / 16;
          add(i * codes_k, codes_k), add(n * codes_k + i * of_k, of_k);
          add(n * k + i * codes_v, codes_v), add(n * (k + codes_v) + i * of_v, of_v);
          continue;
        }
        if (d_k != d_v && !hnd) {
          out->push_back({d.tensor, base + i * (d_k + d_v) * element, d_k * element});
          out->push_back({d.tensor, base + (i * (d_k + d_v) + d_k) * element, d_v * element});
        } else {
          out->push_back({d.tensor, base + i * d_k * element, d_k * element});
          out->push_back(
              {d.tensor, base + (rows * heads * d_k + i * d_v) * element, d_v * element});
        }
      }
    }
  }
}

// The same by the views. Appends nothing where there is no view of rows.
void AddFromViews(const PlannedMemory& memory, const LayerMemory& layer, int32_t block,
                  int64_t split, std::vector<Bytes>* out) {
  const std::byte* const base = memory.tensors()[static_cast<size_t>(layer.tensor)].data;
  const auto add = [&](const TensorView& view, const std::byte* at, int64_t elements) {
    out->push_back({layer.tensor, at - base, elements * attention::ElementBytes(view.dtype)});
  };
  const attention::BlockMap& map = layer.placed.blocks;
  RC_ASSERT(map.IsPage(block));
  for (const TensorView& state : layer.states) {
    add(state, state.At(map.First(block)), state.num_elements() / state.extent[0]);
  }
  for (int64_t s = 0; s < split; ++s) {
    const int64_t number = map.First(block) + s * map.block_stride;
    RC_ASSERT(number < layer.placed.pages.extent[0]);
    if (!layer.rows.absent()) {
      for (int64_t t = 0; t < layer.rows.extent[1]; ++t) {
        add(layer.rows, layer.rows.At(number, t), layer.rows.extent[2]);
      }
    }
    const KvCacheView& cache = layer.cache;
    if (cache.absent() || cache.layout == KvLayout::kMlaFp8_584) continue;
    if (attention::IsMla(cache.layout)) {
      for (int64_t t = 0; t < cache.block_size(); ++t) {
        add(cache.k, cache.k.At(number, t), cache.k.extent[2]);
      }
      continue;
    }
    for (int64_t t = 0; t < cache.block_size(); ++t) {
      for (int64_t h = 0; h < cache.num_kv_heads(); ++h) {
        for (const TensorView* view : {&cache.k, &cache.k_scales, &cache.v, &cache.v_scales}) {
          if (view->absent()) continue;
          const bool nhd = cache.layout == KvLayout::kNhd;
          add(*view, view->At(number, nhd ? t : h, nhd ? h : t),
              view->rank == 4 ? view->extent[3] : 1);
        }
      }
    }
  }
}

// A group for each block id as a pool would give it; -1: nobody's.
std::vector<int> AnyOwners(const Plan& plan) {
  std::vector<int> owner(static_cast<size_t>(plan.num_blocks()), -1);
  const auto num_groups = static_cast<int64_t>(plan.groups.size());
  std::vector<int64_t> class_of_chunk;
  for (int64_t block = 1; block < plan.num_blocks(); ++block) {
    const int group = static_cast<int>(Number(0, num_groups - 1));
    if (plan.config.native) {
      const NativeLayout& native = *plan.config.native;
      const auto chunk = static_cast<size_t>((block - 1) / native.ids_per_chunk());
      if (chunk == class_of_chunk.size()) {
        class_of_chunk.push_back(
            Number(0, static_cast<int64_t>(native.pages_per_chunk.size()) - 1));
      }
      const int64_t page_class = plan.groups[static_cast<size_t>(group)].page_class;
      if (class_of_chunk[chunk] != page_class) continue;
      if ((block - 1) % native.ids_per_chunk() >=
          native.pages_per_chunk[static_cast<size_t>(page_class)]) {
        continue;
      }
    }
    owner[static_cast<size_t>(block)] = group;
  }
  return owner;
}

TEST(PlannedMemoryPropertyTest, RowsLieWhereTheRulesPutThem) {
  CheckPlans(40, [] {
    const PlanResult result = AnyPlan();
    if (!result.ok()) return false;
    const Plan& plan = *result.plan;
    PlannedMemoryOptions options;
    options.layout = Coin() ? KvLayout::kNhd : KvLayout::kHnd;
    const WorkerPlan& worker = plan.workers[0];
    // Sometimes pages of several kernel blocks, where all members of the group allow that.
    const bool splits = Coin();
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      bool even = splits;
      for (const int l : plan.groups[g].layers) {
        const KvCacheSpec& spec = plan.layers[static_cast<size_t>(l)].stored;
        even &= spec.kind() != KvCacheSpecKind::kMamba && spec.storage_block_size() % 2 == 0 &&
                spec.unpadded_page_bytes() % 2 == 0 && !IsDsMla(spec.quant_mode());
      }
      options.kernel_blocks.push_back(even ? 2 : 1);
    }
    const auto memory = PlannedMemory::Create(plan, options);
    RC_ASSERT(memory.ok());
    RC_ASSERT(memory->layers().size() == worker.descriptors.size());

    std::vector<int> owner = AnyOwners(plan);
    owner[0] = 0;  // the null block may be in any table: only one group's view of it is compared
    std::vector<Bytes> live;
    for (size_t i = 0; i < worker.descriptors.size(); ++i) {
      const LayerDescriptor& d = worker.descriptors[i];
      const LayerMemory& layer = memory->layers()[i];
      const int64_t split = options.kernel_blocks[static_cast<size_t>(d.group)];
      RC_ASSERT(!layer.cache.absent() || !layer.rows.absent() || !layer.states.empty() ||
                !layer.opaque.empty());
      for (int64_t block = 0; block < plan.num_blocks(); ++block) {
        if (owner[static_cast<size_t>(block)] != d.group) continue;
        const size_t first = live.size();
        AddFromViews(*memory, layer, static_cast<int32_t>(block), split, &live);
        if (live.size() == first) {  // no view of rows: the page as a whole
          const int64_t number = layer.placed.blocks.First(static_cast<int32_t>(block));
          const TensorView& pages = layer.placed.pages;
          live.push_back({d.tensor, pages.At(number) - memory->tensors()[d.tensor].data,
                          pages.extent[1]});
          RC_ASSERT(live.back().begin == NaivePage(plan, d, block));
          continue;
        }
        std::vector<Bytes> naive;
        AddNaive(plan, d, block, split, options.layout == KvLayout::kHnd, &naive);
        RC_ASSERT(naive.size() == live.size() - first);
        for (size_t k = 0; k < naive.size(); ++k) {
          RC_ASSERT(live[first + k].begin == naive[k].begin);
          RC_ASSERT(live[first + k].size == naive[k].size);
        }
      }
    }
    std::ranges::sort(live, {}, [](const Bytes& b) { return std::pair(b.tensor, b.begin); });
    for (size_t i = 0; i < live.size(); ++i) {
      const Bytes& b = live[i];
      RC_ASSERT(b.begin >= 0 && b.begin + b.size <= worker.tensors[b.tensor].bytes);
      if (i > 0 && live[i - 1].tensor == b.tensor) {
        RC_ASSERT(live[i - 1].begin + live[i - 1].size <= b.begin);
      }
    }
    return true;
  });
}

}  // namespace
}  // namespace kvblocks
