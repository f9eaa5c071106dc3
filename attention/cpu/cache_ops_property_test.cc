// T-4 and T-20: whatever the layout, the strides, the types and the slots, writers change exactly
// the bytes that the layout's definition names, to exactly the elements that the rounding rules
// give; and what was written is read back through rows and gathers.

#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cache/cache_rows.h"
#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/random_cache.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "tests/property/check_property.h"

namespace kvblocks::attention {
namespace {

using property::CheckProperty;

int64_t Draw(int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); }
uint64_t DrawSeed() { return *rc::gen::noShrink(rc::gen::arbitrary<uint64_t>()); }

// Of a writer: the types of its inputs and of the cache.
struct Types {
  DType from, to;
};

Types DrawTypes() {
  static const DType wide[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
  static const DType narrow[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kF16,
                                 DType::kBF16};
  const int64_t choice = Draw(0, 3);
  if (choice == 0) {
    const DType same = wide[Draw(0, 3)];
    return {same, same};
  }
  if (choice == 1) {
    const DType same = narrow[Draw(0, 4)];
    return {same, same};
  }
  return {wide[Draw(0, 3)], narrow[Draw(0, 4)]};
}

// i64 [n]: distinct slots of the cache in any order, partly in runs, and some -1.
std::vector<int64_t> DrawSlots(int64_t n, int64_t num_slots) {
  std::mt19937_64 random(DrawSeed());
  std::vector<int64_t> slots(num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  if (random() % 2 == 0) std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(n, -1);
  for (int64_t& slot : slots) {
    if (random() % 6 == 0) slot = -1;
  }
  return slots;
}

// What an element has to become.
void ExpectElement(Types types, const std::byte* from, float scale, std::byte* to) {
  if (types.from == types.to) {
    std::memcpy(to, from, ElementBytes(types.to));
  } else {
    const double value = LoadElement(types.from, from);
    StoreElement(types.to, IsQuantizedCode(types.to) ? value / scale : value, to);
    if (types.to == DType::kI8) *to = static_cast<std::byte>(DoubleToInt8Code(value / scale));
  }
}

// For caches of codes no scales, one, one per head, or one expanded to all heads.
struct Scales {
  Scales(DType cache, int64_t num_heads) : kind(IsQuantizedCode(cache) ? Draw(0, 3) : 0) {
    std::mt19937_64 random(DrawSeed());
    for (int64_t i = 0; i < num_heads; ++i) {
      values.push_back(0.001f + static_cast<float>(random() % 4096) / 1024);
    }
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    if (kind == 1) view = ConstTensorView::Contiguous(data, DType::kF32, {1});
    if (kind == 2) view = ConstTensorView::Contiguous(data, DType::kF32, {num_heads});
    if (kind == 3) view = *ConstTensorView::Make(data, DType::kF32, {num_heads}, {0});
  }
  float Of(int64_t head) const { return kind == 0 ? 1 : values[kind == 2 ? head : 0]; }

  int64_t kind;
  std::vector<float> values;
  ConstTensorView view;
};

ExecContext ContextWith(bool threads) {
  static ThreadPool pool(3);
  ExecContext context;
  if (threads) context.threads = &pool;
  return context;
}

bool SameOrBothNaN(double a, double b) { return a == b || (a != a && b != b); }

RandomCacheShape DrawShape(KvLayout layout, DType dtype) {
  RandomCacheShape shape;
  shape.layout = layout;
  shape.dtype = dtype;
  shape.num_blocks = Draw(1, 6);
  shape.block_size = Draw(1, 9);
  shape.num_kv_heads = IsMla(layout) ? 1 : Draw(1, 3);
  shape.key_dim = layout == KvLayout::kPagedX ? 16 / ElementBytes(dtype) * Draw(1, 3) : Draw(2, 20);
  shape.value_dim = IsMla(layout) ? Draw(1, shape.key_dim - 1)
                    : Draw(0, 1)  ? shape.key_dim
                                  : Draw(1, 20);
  return shape;
}

TEST(CacheWritersPropertyTest, T4ReshapeAndCacheWritesExactlyItsElements) {
  CheckProperty(600, [] {
    const KvLayout layouts[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
    const Types types = DrawTypes();
    RandomCacheShape shape = DrawShape(layouts[Draw(0, 2)], types.to);
    RandomCache cache(shape, DrawSeed());
    const int64_t heads = shape.num_kv_heads;
    const int64_t n = Draw(0, 60), padding = Draw(0, 2);
    const RandomTensor k(types.from, {n + padding, heads, shape.key_dim}, DrawSeed());
    const RandomTensor v(types.from, {n + padding, heads, shape.value_dim}, DrawSeed());
    const std::vector<int64_t> slots = DrawSlots(n, cache.view().num_slots());
    const Scales k_scales(types.to, heads), v_scales(types.to, heads);

    std::vector<std::byte> image = cache.memory();
    for (int64_t t = 0; t < n; ++t) {
      if (slots[t] < 0) continue;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < shape.key_dim; ++d) {
          ExpectElement(types, k.view().At(t, h, d), k_scales.Of(h),
                        RandomCache::In(image, cache, cache.KeyElement(slots[t], h, d)));
        }
        for (int64_t d = 0; d < shape.value_dim; ++d) {
          ExpectElement(types, v.view().At(t, h, d), v_scales.Of(h),
                        RandomCache::In(image, cache, cache.ValueElement(slots[t], h, d)));
        }
      }
    }
    ReshapeAndCacheArgs args;
    args.k = k.view();
    args.v = v.view();
    args.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
    args.cache = cache.view();
    args.scales = {k_scales.view, v_scales.view};
    const absl::Status status = CpuReference().ReshapeAndCache(ContextWith(Draw(0, 1)), args);
    RC_ASSERT(status == absl::OkStatus());
    RC_ASSERT(cache.memory() == image);
  });
}

TEST(CacheWritersPropertyTest, T4ConcatAndCacheMlaWritesExactlyItsElements) {
  CheckProperty(300, [] {
    const Types types = DrawTypes();
    const RandomCacheShape shape =
        DrawShape(Draw(0, 1) ? KvLayout::kMlaLatent : KvLayout::kMlaSplit, types.to);
    RandomCache cache(shape, DrawSeed());
    const int64_t n = Draw(0, 40), padding = Draw(0, 2);
    const int64_t latent = shape.value_dim, rotary = shape.key_dim - latent;
    const RandomTensor kv_c(types.from, {n + padding, latent}, DrawSeed());
    const RandomTensor k_pe(types.from, {n + padding, rotary}, DrawSeed());
    const std::vector<int64_t> slots = DrawSlots(n, cache.view().num_slots());
    const Scales scale(types.to, 1);

    std::vector<std::byte> image = cache.memory();
    for (int64_t t = 0; t < n; ++t) {
      if (slots[t] < 0) continue;
      for (int64_t d = 0; d < shape.key_dim; ++d) {
        ExpectElement(types, d < latent ? kv_c.view().At(t, d) : k_pe.view().At(t, d - latent),
                      scale.Of(0), RandomCache::In(image, cache, cache.KeyElement(slots[t], 0, d)));
      }
    }
    ConcatAndCacheMlaArgs args;
    args.kv_c = kv_c.view();
    args.k_pe = k_pe.view();
    args.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
    args.cache = cache.view();
    args.scale = scale.view;
    RC_ASSERT(CpuReference().ConcatAndCacheMla(ContextWith(Draw(0, 1)), args) == absl::OkStatus());
    RC_ASSERT(cache.memory() == image);
  });
}

TEST(CacheWritersPropertyTest, T4Fp8LatentRowsAreTheEncodedOnes) {
  CheckProperty(60, [] {
    const bool planar = Draw(0, 1) == 1;
    RandomCacheShape shape =
        DrawShape(planar ? KvLayout::kMlaFp8_584 : KvLayout::kMlaFp8_656, DType::kU8);
    RandomCache cache(shape, DrawSeed());
    const DType wide[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
    const DType from = wide[Draw(0, 3)];
    const int64_t n = Draw(0, 20), latent = planar ? kMla584Values : kMla656Values;
    const RandomTensor kv_c(from, {n, latent}, DrawSeed());
    const RandomTensor k_pe(from, {n, kMlaRotaryValues}, DrawSeed());
    const std::vector<int64_t> slots = DrawSlots(n, cache.view().num_slots());

    std::vector<std::byte> image = cache.memory();
    for (int64_t t = 0; t < n; ++t) {
      if (slots[t] < 0) continue;
      std::vector<double> values(latent);
      for (int64_t d = 0; d < latent; ++d) values[d] = LoadElement(from, kv_c.view().At(t, d));
      std::vector<uint16_t> words(kMlaRotaryValues);
      for (int64_t d = 0; d < kMlaRotaryValues; ++d) {
        ExpectElement({from, DType::kBF16}, k_pe.view().At(t, d), 1,
                      reinterpret_cast<std::byte*>(&words[d]));
      }
      const int64_t bs = shape.block_size, block = slots[t] / bs, offset = slots[t] % bs;
      const TensorView& k = cache.view().k;
      if (planar) {
        EncodeMla584(values.data(), words.data(), RandomCache::In(image, cache, k.At(block)), bs,
                     offset);
      } else {
        EncodeMla656(values.data(), words.data(),
                     RandomCache::In(image, cache, k.At(block, offset)));
      }
    }
    ConcatAndCacheMlaArgs args;
    args.kv_c = kv_c.view();
    args.k_pe = k_pe.view();
    args.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
    args.cache = cache.view();
    RC_ASSERT(CpuReference().ConcatAndCacheMla(ContextWith(Draw(0, 1)), args) == absl::OkStatus());
    RC_ASSERT(cache.memory() == image);
  });
}

// Rows read slot by slot through the definition of the layout.
TEST(CacheRowsPropertyTest, T20EverySlotIsReadableInEveryLayout) {
  CheckProperty(400, [] {
    const Types types = DrawTypes();
    const RandomCacheShape shape = DrawShape(kAllLayouts[Draw(0, 4)], types.to);
    const RandomCache cache(shape, DrawSeed());
    std::vector<double> row(std::max(shape.key_dim, shape.value_dim));
    for (int64_t slot = 0; slot < cache.view().num_slots(); ++slot) {
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        ReadKeyRow(cache.view(), slot, h, row.data());
        for (int64_t d = 0; d < shape.key_dim; ++d) {
          RC_ASSERT(SameOrBothNaN(row[d], LoadElement(types.to, cache.KeyElement(slot, h, d))));
        }
        ReadValueRow(cache.view(), slot, h, row.data());
        for (int64_t d = 0; d < shape.value_dim; ++d) {
          RC_ASSERT(SameOrBothNaN(row[d], LoadElement(types.to, cache.ValueElement(slot, h, d))));
        }
      }
    }
  });
}

// A gather takes the last tokens of each request, wherever their blocks are, and touches nothing
// else of its outputs.
TEST(GatherCachePropertyTest, TakesTheLastTokensDequantised) {
  CheckProperty(400, [] {
    const KvLayout layout = kAllLayouts[Draw(0, 6)];
    const bool fp8_rows = layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
    const DType narrow[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kI8,
                            DType::kF16,    DType::kBF16,   DType::kF32};
    const DType wide[] = {DType::kF32, DType::kF16, DType::kBF16};
    const RandomCacheShape shape = DrawShape(layout, fp8_rows ? DType::kU8 : narrow[Draw(0, 5)]);
    const RandomCache cache(shape, DrawSeed());
    const KvCacheView& view = cache.view();
    const DType out_type = wide[Draw(0, 2)];
    const bool mla = IsMla(layout);
    const int64_t heads = view.num_kv_heads(), requests = Draw(0, 3), row_offset = Draw(0, 2);
    std::mt19937_64 random(DrawSeed());

    const int64_t columns = Draw(1, 4);
    std::vector<int32_t> table(requests * columns), seq_lens(requests), lengths(requests);
    for (int32_t& block : table) block = static_cast<int32_t>(random() % shape.num_blocks);
    for (int64_t b = 0; b < requests; ++b) {
      seq_lens[b] = static_cast<int32_t>(random() % (columns * shape.block_size + 1));
      lengths[b] = static_cast<int32_t>(random() % (seq_lens[b] + 1));
    }
    const int64_t rows = row_offset + columns * shape.block_size;
    const int64_t key_dim = view.key_dim(), value_dim = view.value_dim();
    RandomTensor out(out_type,
                     mla ? std::vector<int64_t>{requests, rows, key_dim}
                         : std::vector<int64_t>{requests, rows, heads, key_dim},
                     DrawSeed());
    RandomTensor out_v(out_type, {requests, rows, heads, value_dim}, DrawSeed());
    const Scales k_scales(shape.dtype, mla ? 1 : heads),
        v_scales(mla ? DType::kU8 : shape.dtype, heads);

    std::vector<std::byte> image = out.memory(), image_v = out_v.memory();
    std::vector<double> row(std::max(key_dim, value_dim));
    const auto expect = [&](DType from, float scale, double value, std::byte* to) {
      StoreElement(out_type, IsQuantizedCode(from) ? value * scale : value, to);
    };
    for (int64_t b = 0; b < requests; ++b) {
      for (int64_t i = 0; i < lengths[b]; ++i) {
        const int64_t position = seq_lens[b] - lengths[b] + i;
        const int64_t slot = table[b * columns + position / shape.block_size] * shape.block_size +
                             position % shape.block_size;
        const int64_t to = row_offset + i;
        for (int64_t h = 0; h < heads; ++h) {
          ReadKeyRow(view, slot, h, row.data());
          for (int64_t d = 0; d < key_dim; ++d) {
            std::byte* const element = mla ? out.view().At(b, to, d) : out.view().At(b, to, h, d);
            std::byte* const in_image = image.data() + (element - out.memory().data());
            if (view.k.dtype == out_type && layout != KvLayout::kMlaSplit) {
              std::memcpy(in_image, cache.KeyElement(slot, h, d), ElementBytes(out_type));
            } else {
              expect(view.k.dtype, k_scales.Of(h), row[d], in_image);
            }
          }
          if (mla) continue;
          ReadValueRow(view, slot, h, row.data());
          for (int64_t d = 0; d < value_dim; ++d) {
            std::byte* const element = out_v.view().At(b, to, h, d);
            std::byte* const in_image = image_v.data() + (element - out_v.memory().data());
            if (view.v.dtype == out_type) {
              std::memcpy(in_image, cache.ValueElement(slot, h, d), ElementBytes(out_type));
            } else {
              expect(view.v.dtype, v_scales.Of(h), row[d], in_image);
            }
          }
        }
      }
    }
    GatherCacheArgs args;
    args.cache = view;
    args.block_table = ViewOf(absl::MakeConstSpan(table), {requests, columns});
    args.seq_lens = ViewOf(absl::MakeConstSpan(seq_lens));
    args.lengths = ViewOf(absl::MakeConstSpan(lengths));
    args.row_offset = row_offset;
    args.scales.k = k_scales.view;
    if (!mla) args.scales.v = v_scales.view;
    args.out = out.view();
    if (!mla) args.out_v = out_v.view();
    RC_ASSERT(CpuReference().GatherCache(ContextWith(Draw(0, 1)), args) == absl::OkStatus());
    RC_ASSERT(out.memory() == image);
    RC_ASSERT(out_v.memory() == image_v);
  });
}

}  // namespace
}  // namespace kvblocks::attention
