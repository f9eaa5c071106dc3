#include "attention/testing/random_cache.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention {
namespace {

using Random = std::mt19937_64;

int64_t Below(Random& random, int64_t bound) { return static_cast<int64_t>(random() % bound); }

void FillRandom(std::vector<std::byte>& memory, Random& random) {
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

// Strides for the extents, the last `num_dense` dimensions as in a contiguous tensor, the others in
// any order and with any gaps. If dimension `interleaved` is not -1, strides outside it are
// multiples of the first one: argument checks recognise such interleaving as free of overlap.
// Strides that are not dense are multiples of `alignment`. `span` becomes the elements that all of
// it spans.
std::vector<int64_t> RandomStrides(const std::vector<int64_t>& extents, int num_dense,
                                   int interleaved, int64_t alignment, Random& random,
                                   int64_t* span) {
  const int rank = static_cast<int>(extents.size());
  std::vector<int64_t> strides(rank, 1);
  int64_t next = 1, unit = 1;
  bool is_inside = interleaved >= 0;
  for (int i = rank - 1; i >= rank - num_dense; --i) {
    strides[i] = next;
    next *= extents[i];
  }
  next = RoundUp(next, alignment);
  std::vector<int> order(rank - num_dense);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const int dim : order) {
    if (Below(random, 2) == 0) next += Below(random, 4) * std::max(unit, alignment);
    strides[dim] = next;
    next *= extents[dim];
    if (dim == interleaved) {
      is_inside = false;
    } else if (interleaved >= 0 && !is_inside && unit == 1 && extents[dim] > 1) {
      unit = strides[dim];
    }
  }
  *span = next;
  return strides;
}

struct Placed {
  std::vector<int64_t> extents, strides;
  int64_t begin = 0;  // element
};

}  // namespace

RandomCache::RandomCache(const RandomCacheShape& shape, uint64_t seed) {
  Random random(seed);
  const int64_t bytes = ElementBytes(shape.dtype);
  const int64_t nb = shape.num_blocks, bs = shape.block_size, heads = shape.num_kv_heads;
  const int64_t d = shape.key_dim, dv = shape.value_dim;
  Placed k, v;
  int k_dense = 1, v_dense = 1;
  switch (shape.layout) {
    case KvLayout::kPagedX:
      k_dense = 3, v_dense = 2;
      [[fallthrough]];
    case KvLayout::kNhd:
    case KvLayout::kHnd:
      k.extents = CacheExtents(true, shape.layout, shape.dtype, nb, bs, heads, d);
      v.extents = CacheExtents(false, shape.layout, shape.dtype, nb, bs, heads, dv);
      break;
    case KvLayout::kMlaLatent:
      k.extents = {nb, bs, d};
      break;
    case KvLayout::kMlaSplit:
      k.extents = {nb, bs, dv};
      v.extents = {nb, bs, d - dv};
      break;
    case KvLayout::kMlaFp8_656:
      k.extents = {nb, bs, kMla656Bytes};
      k_dense = 2;
      break;
    case KvLayout::kMlaFp8_584:
      k.extents = {nb, MlaFp8_584BlockBytes(bs)};
      break;
  }
  const int64_t before = Below(random, 3) * shape.alignment;
  int64_t span = 0;
  k.begin = v.begin = before;
  const bool interleavable =
      (shape.layout == KvLayout::kNhd || shape.layout == KvLayout::kHnd) && d == dv;
  if (interleavable && Below(random, 2) == 0) {
    // K and V as a dimension of their own, of any place in the order.
    std::vector<int64_t> both = k.extents;
    both.insert(both.begin(), 2);
    std::vector<int64_t> strides = RandomStrides(both, 1, 0, shape.alignment, random, &span);
    v.begin += strides[0];
    strides.erase(strides.begin());
    k.strides = v.strides = strides;
  } else {
    k.strides = RandomStrides(k.extents, k_dense, -1, shape.alignment, random, &span);
    if (!v.extents.empty()) {
      int64_t v_span;
      v.begin += span + Below(random, 3) * shape.alignment;
      v.strides = RandomStrides(v.extents, v_dense, -1, shape.alignment, random, &v_span);
      span = v.begin - before + v_span;
    }
  }
  memory_.resize((before + span + Below(random, 3)) * bytes);
  FillRandom(memory_, random);
  const auto view = [&](const Placed& placed) {
    return *TensorView::Make(memory_.data() + placed.begin * bytes, shape.dtype, placed.extents,
                             placed.strides);
  };
  view_.layout = shape.layout;
  view_.k = view(k);
  if (!v.extents.empty()) view_.v = view(v);
  if (shape.layout == KvLayout::kMlaLatent) view_.v = *view_.k.Slice(2, 0, dv);
  if (shape.layout == KvLayout::kMlaFp8_584) view_.planar_block_size = bs;
}

std::byte* RandomCache::KeyElement(int64_t slot, int64_t kv_head, int64_t d) const {
  const int64_t block = slot / view_.block_size(), offset = slot % view_.block_size();
  switch (view_.layout) {
    case KvLayout::kPagedX: {
      const int64_t x = 16 / ElementBytes(view_.k.dtype);
      return view_.k.At(block, kv_head, d / x, offset, d % x);
    }
    case KvLayout::kNhd:
      return view_.k.At(block, offset, kv_head, d);
    case KvLayout::kHnd:
      return view_.k.At(block, kv_head, offset, d);
    case KvLayout::kMlaSplit: {
      const int64_t latent = view_.value_dim();
      return d < latent ? view_.k.At(block, offset, d) : view_.v.At(block, offset, d - latent);
    }
    default:
      return view_.k.At(block, offset, d);
  }
}

std::byte* RandomCache::ValueElement(int64_t slot, int64_t kv_head, int64_t d) const {
  const int64_t block = slot / view_.block_size(), offset = slot % view_.block_size();
  switch (view_.layout) {
    case KvLayout::kPagedX:
      return view_.v.At(block, kv_head, d, offset);
    case KvLayout::kNhd:
      return view_.v.At(block, offset, kv_head, d);
    case KvLayout::kHnd:
      return view_.v.At(block, kv_head, offset, d);
    default:
      return view_.k.At(block, offset, d);
  }
}

RandomTensor::RandomTensor(DType dtype, std::vector<int64_t> extents, uint64_t seed) {
  Random random(seed);
  const int64_t bytes = ElementBytes(dtype);
  const int64_t before = Below(random, 3);
  int64_t span;
  const std::vector<int64_t> strides =
      RandomStrides(extents, static_cast<int>(Below(random, 4) != 0), -1, 1, random, &span);
  memory_.resize((before + span) * bytes);
  FillRandom(memory_, random);
  if (Info(dtype).is_float) {
    // Mostly ordinary numbers, ties of narrower formats among them; the rest stays any bits.
    std::normal_distribution<double> normal;
    for (size_t at = 0; at + bytes <= memory_.size(); at += bytes) {
      const int64_t kind = Below(random, 8);
      double value = std::ldexp(normal(random), static_cast<int>(Below(random, 24)) - 14);
      if (kind == 0) {
        // A NaN with any payload now and then.
        if (bytes > 1 && Below(random, 4) == 0) {
          memory_[at + bytes - 1] |= std::byte{0x7F};
          memory_[at + bytes - 2] |= std::byte{0xF0};
        }
        continue;
      }
      if (kind == 1)
        value = std::ldexp(static_cast<double>(Below(random, 513) - 256),
                           static_cast<int>(Below(random, 20)) - 16);
      StoreElement(dtype, value, memory_.data() + at);
    }
  }
  view_ = *TensorView::Make(memory_.data() + before * bytes, dtype, extents, strides);
}

RandomCacheShape DrawCacheShape(KvLayout layout, int64_t least_blocks, DrawNumber draw) {
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
  RandomCacheShape shape;
  shape.layout = layout;
  shape.dtype = layout >= KvLayout::kMlaFp8_656 ? DType::kU8 : dtypes[draw(0, 2)];
  shape.num_blocks = draw(least_blocks, 6);
  shape.block_size = draw(1, 5);
  shape.num_kv_heads = IsMla(layout) ? 1 : draw(1, 3);
  shape.key_dim = 16 / ElementBytes(shape.dtype) * draw(1, 2);
  shape.value_dim = IsMla(layout) ? draw(1, shape.key_dim - 1) : draw(1, 20);
  return shape;
}

std::vector<BlockPair> DrawBlockPairs(int64_t src_blocks, int64_t dst_blocks, bool one_cache,
                                      int64_t most, DrawNumber draw) {
  std::vector<BlockPair> pairs;
  std::set<int64_t> sources, destinations;
  for (int64_t i = draw(0, most); i > 0; --i) {
    const int64_t source = draw(0, src_blocks - 1), destination = draw(0, dst_blocks - 1);
    if (destinations.count(destination) > 0) continue;
    if (one_cache && (source == destination || sources.count(destination) > 0 ||
                      destinations.count(source) > 0)) {
      continue;
    }
    sources.insert(source);
    destinations.insert(destination);
    pairs.emplace_back(source, destination);
  }
  return pairs;
}

}  // namespace kvblocks::attention
