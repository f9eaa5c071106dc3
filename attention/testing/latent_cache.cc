#include "kvblocks/attention/testing/latent_cache.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

// A finite e4m3 code.
std::byte DrawCode(std::mt19937_64& random) {
  std::byte code;
  do {
    code = static_cast<std::byte>(random());
  } while ((code & std::byte{0x7F}) == std::byte{0x7F});
  return code;
}

}  // namespace

std::vector<LatentCacheOptions> EveryLatentLayout() {
  std::vector<LatentCacheOptions> all = {
      {KvLayout::kMlaLatent, DType::kF32},
          {KvLayout::kMlaLatent, DType::kBF16},
          {.layout = KvLayout::kMlaLatent, .dtype = DType::kF8E4M3, .scale = 0.03125},
          {KvLayout::kMlaSplit, DType::kBF16},
          {KvLayout::kMlaFp8_656, DType::kU8},
          {KvLayout::kMlaFp8_584, DType::kU8}};
  for (const KvRowFormat format :
       {KvRowFormat::kMlaV41, KvRowFormat::kMlaV41Fp4, KvRowFormat::kMlaNvfp4}) {
    all.push_back({.layout = KvLayout::kMlaLatent, .dtype = DType::kU8, .format = format});
  }
  return all;
}

// A record of random codes and scales, and the values that these stand for.
void LatentCache::DrawRecord(std::mt19937_64& random, std::byte* at, std::vector<double>& row) {
  const auto e4m3 = [](std::byte code) { return E4M3ToDouble(static_cast<uint8_t>(code)); };
  for (int d = 0; d < 512; ++d) {
    if (options_.format == KvRowFormat::kMlaV41) {
      std::byte& scale = at[512 + d / 32];
      if (d % 32 == 0) scale = static_cast<std::byte>(IntegerDraw(random, 117, 121));
      at[d] = DrawCode(random);
      row.push_back(e4m3(at[d]) * std::ldexp(1, static_cast<int>(scale) - 127));
      continue;
    }
    const int group = d / 16;
    std::byte& scale = options_.format == KvRowFormat::kMlaV41Fp4
                           ? at[256 + group]
                           : at[320 + 8 * (group & 3) + (group >> 2)];
    if (d % 16 == 0) scale = static_cast<std::byte>(IntegerDraw(random, 0x20, 0x38));
    if (d % 2 == 0) at[d / 2] = static_cast<std::byte>(random());
    static constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int code = static_cast<int>(at[d / 2]) >> (d % 2 == 0 ? 0 : 4) & 15;
    row.push_back((code & 8 ? -1 : 1) * kE2M1[code & 7] * e4m3(scale));
  }
  if (options_.format != KvRowFormat::kMlaNvfp4) return;
  for (int d = 256; d < 320; ++d) {
    StoreElement(DType::kF8E4M3, NormalDraw(random), at + d);
    row.push_back(e4m3(at[d]));
  }
}

LatentCache::LatentCache(const LatentCacheOptions& options) : options_(options) {
  std::mt19937_64 random(options.seed);
  const int64_t NB = options.num_blocks, BS = options.block_size;
  view_.layout = options.layout;
  view_.format = options.format;
  rows_.resize(NB * BS);
  switch (options.layout) {
    case KvLayout::kMlaSplit:
      k_ = Tensor(options.dtype, {NB, BS, options.latent_dim});
      v_ = Tensor(options.dtype, {NB, BS, options.rotary_dim});
      view_.k = k_.view, view_.v = v_.view;
      break;
    case KvLayout::kMlaFp8_656:
      k_ = Tensor(DType::kU8, {NB, BS, 656});
      view_.k = k_.view;
      break;
    case KvLayout::kMlaFp8_584:
      k_ = Tensor(DType::kU8, {NB, MlaFp8_584BlockBytes(BS)});
      view_.k = k_.view;
      view_.planar_block_size = BS;
      break;
    default:
      if (IsMlaRecord(options.format)) {
        k_ = Tensor(DType::kU8, {NB, BS, ShapeOf(options.format).bytes});
        view_.k = k_.view;
        break;
      }
      k_ = Tensor(options.dtype, {NB, BS, options.latent_dim + options.rotary_dim});
      view_.k = k_.view;
      view_.v = k_.view.Slice(2, 0, options.latent_dim).value();
  }
  for (int64_t slot = 0; slot < NB * BS; ++slot) {
    const int64_t block = slot / BS, offset = slot % BS;
    std::vector<double>& row = rows_[slot];
    if (IsMlaRecord(options.format)) {
      DrawRecord(random, k_.view.At(block, offset), row);
    } else if (options.layout == KvLayout::kMlaFp8_656) {
      std::byte* at = k_.view.At(block, offset);
      for (int tile = 0; tile < 4; ++tile) {
        std::byte* scale_at = at + 512 + 4 * tile;
        StoreElement(DType::kF32, 0.002 + 0.01 * UniformDraw(random), scale_at);
        const double scale = LoadElement(DType::kF32, scale_at);
        for (int d = 128 * tile; d < 128 * (tile + 1); ++d) {
          at[d] = DrawCode(random);
          row.push_back(E4M3ToDouble(static_cast<uint8_t>(at[d])) * scale);
        }
      }
      for (int d = 0; d < 64; ++d) {
        StoreElement(DType::kBF16, NormalDraw(random), at + 528 + 2 * d);
        row.push_back(LoadElement(DType::kBF16, at + 528 + 2 * d));
      }
    } else if (options.layout == KvLayout::kMlaFp8_584) {
      std::byte* at = k_.view.At(block) + offset * 576;
      std::byte* scales = k_.view.At(block) + BS * 576 + offset * 8;
      for (int tile = 0; tile < 7; ++tile) {
        scales[tile] = static_cast<std::byte>(IntegerDraw(random, 117, 121));
        for (int d = 64 * tile; d < 64 * (tile + 1); ++d) {
          at[d] = DrawCode(random);
          row.push_back(E4M3ToDouble(static_cast<uint8_t>(at[d])) *
                        std::ldexp(1, static_cast<int>(scales[tile]) - 127));
        }
      }
      for (int d = 0; d < 64; ++d) {
        StoreElement(DType::kBF16, NormalDraw(random), at + 448 + 2 * d);
        row.push_back(LoadElement(DType::kBF16, at + 448 + 2 * d));
      }
    } else {
      SetRow(slot, NormalDraws(random, options.latent_dim + options.rotary_dim));
    }
  }
}

std::byte* LatentCache::ElementOf(int64_t slot, int64_t d) {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  if (options_.layout == KvLayout::kMlaSplit && d >= options_.latent_dim) {
    return v_.view.At(block, offset, d - options_.latent_dim);
  }
  return k_.view.At(block, offset, d);
}

void LatentCache::SetRow(int64_t slot, const std::vector<double>& values) {
  rows_[slot].resize(values.size());
  for (size_t d = 0; d < values.size(); ++d) {
    std::byte* at = ElementOf(slot, static_cast<int64_t>(d));
    StoreElement(options_.dtype, values[d] / options_.scale, at);
    rows_[slot][d] = LoadElement(options_.dtype, at) * options_.scale;
  }
}

void LatentCache::Poison(int64_t slot) {
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  if (options_.layout == KvLayout::kMlaFp8_656 || IsMlaRecord(options_.format)) {
    std::fill_n(k_.view.At(block, offset), k_.view.extent[2], std::byte{0xFF});
  } else if (options_.layout == KvLayout::kMlaFp8_584) {
    std::fill_n(k_.view.At(block) + offset * 576, 576, std::byte{0xFF});
    std::fill_n(k_.view.At(block) + options_.block_size * 576 + offset * 8, 8, std::byte{0xFF});
  } else {
    for (size_t d = 0; d < rows_[slot].size(); ++d) {
      std::fill_n(ElementOf(slot, static_cast<int64_t>(d)), ElementBytes(options_.dtype),
                  std::byte{0xFF});
    }
  }
}

DenseRequest RequestOverRows(const std::vector<const std::vector<double>*>& rows,
                             std::vector<double> q, int64_t q_len, int64_t num_heads,
                             int64_t value_dim) {
  DenseRequest request;
  request.q_len = q_len;
  request.kv_len = static_cast<int64_t>(rows.size());
  request.num_heads = num_heads;
  request.key_dim = static_cast<int64_t>(q.size()) / std::max<int64_t>(1, q_len * num_heads);
  request.value_dim = value_dim;
  request.q = std::move(q);
  for (const std::vector<double>* row : rows) {
    request.k.insert(request.k.end(), row->begin(), row->end());
    request.v.insert(request.v.end(), row->begin(), row->begin() + value_dim);
  }
  return request;
}

}  // namespace kvblocks::attention
