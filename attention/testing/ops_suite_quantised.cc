// Caches whose vectors have scales of their own: writing, decoding, prefilling and gathering them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/ops_suite.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Kind {
  KvRowFormat format;
  DType code;
  bool packed() const { return ValuesPerElement(format) > 1; }
};
constexpr Kind kKinds[] = {{KvRowFormat::kPerTokenHead, DType::kI8},
                           {KvRowFormat::kPerTokenHead, DType::kF8E4M3},
                           {KvRowFormat::kInt4PerTokenHead, DType::kU8},
                           {KvRowFormat::kNvfp4, DType::kU8}};

// Calls test(options) for every kind and layout that the backend has.
void ForEachCache(const PagedCaseOptions& like,
                  const std::function<void(const PagedCaseOptions&)>& test) {
  for (const Kind& kind : kKinds) {
    for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      SCOPED_TRACE(absl::StrCat(Name(kind.format), " ", Name(kind.code), " ", Name(layout)));
      PagedCaseOptions options = like;
      options.format = kind.format;
      options.cache_dtype = kind.code;
      options.layout = layout;
      test(options);
    }
  }
}

PagedCaseOptions DecodeOptions() {
  PagedCaseOptions options = VariedDecodeOptions();
  options.key_dim = 48, options.value_dim = 32;
  options.scales = PagedCaseOptions::Scales::kPerHead;  // of nvfp4
  return options;
}

// AT-44.
TEST(QuantisedRowsTest, DecodeIsExact) {
  ForEachCache(DecodeOptions(), [](PagedCaseOptions options) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      options.q_dtype = type;
      PagedCase paged(options);
      ExpectDecodeIsExact(paged);
    }
    options.q_dtype = DType::kF32;
    options.num_heads = options.num_kv_heads = 3;
    options.scales = PagedCaseOptions::Scales::kPerRequest;
    PagedCase alone(options);
    alone.params.split = SplitPolicy::Fixed(32);
    alone.params.window_left = 40;
    ExpectDecodeIsExact(alone);
  });
}

// Few and many rows, which are loaded in different ways.
TEST(QuantisedRowsTest, PrefillIsExact) {
  PagedCaseOptions like = DecodeOptions();
  like.lengths = {40, 7, 0, 90};
  like.q_lens = {40, 1, 0, 33};
  ForEachCache(like, [](const PagedCaseOptions& options) {
    PagedCase paged(options);
    paged.params.soft_cap = 20;
    ExpectPrefillIsExact(paged);
  });
}

// AT-14: what is not read may be anything, and blocks may be anywhere.
TEST(QuantisedRowsTest, PlacesOfBlocksDoNotCount) {
  ForEachCache(DecodeOptions(), [](const PagedCaseOptions& options) {
    PagedCase paged(options);
    paged.params.window_left = 19;
    RunDecode(paged);
    const std::vector<std::byte> before = OutputBytes(paged);
    paged.KillBlocks(
        [&](int64_t b, int64_t column) {
          return (column + 1) * options.block_size <= options.lengths[b] - 20;
        },
        /*null_block=*/true);
    std::mt19937_64 random(7);
    paged.PermuteBlocks(random);
    RunDecode(paged);
    EXPECT_EQ(OutputBytes(paged), before);
  });
}

// That the comparison with the oracle sees what readers get wrong: another vector's scale, halves
// of bytes the wrong way round, exponents off by one.
TEST(QuantisedRowsTest, FaultsAreNoticed) {
  ForEachCache(DecodeOptions(), [](const PagedCaseOptions& options) {
    const auto notices = [&](const char* fault, auto change) {
      PagedCase paged(options);
      const KvCacheView cache = paged.cache();
      for (const bool key : {true, false}) {
        const TensorView& codes = key ? cache.k : cache.v;
        const TensorView& scales = key ? cache.k_scales : cache.v_scales;
        for (int64_t block = 0; block < codes.extent[0]; ++block) {
          for (int64_t i = 0; i < codes.extent[1]; ++i) {
            change(codes, scales, block, i, codes.extent[2]);
          }
        }
      }
      RunDecode(paged);
      EXPECT_NE(paged.Mismatch(ToleranceUnderTest(options.q_dtype)), "") << fault;
    };
    notices("a neighbour's scale", [](auto&, auto& scales, int64_t block, int64_t i, int64_t n) {
      const int64_t bytes = scales.dtype == DType::kF32 ? 4 : scales.extent[3];
      std::vector<std::byte> first(scales.At(block, i, 0), scales.At(block, i, 0) + bytes);
      for (int64_t j = 0; j + 1 < n; ++j) {
        std::memcpy(scales.At(block, i, j), scales.At(block, i, j + 1), bytes);
      }
      std::memcpy(scales.At(block, i, n - 1), first.data(), bytes);
    });
    if (options.cache_dtype != DType::kU8) return;
    notices("swapped halves", [](auto& codes, auto&, int64_t block, int64_t i, int64_t n) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t d = 0; d < codes.extent[3]; ++d) {
          std::byte* at = codes.At(block, i, j, d);
          *at = (*at << 4) | (*at >> 4);
        }
      }
    });
    notices("another exponent", [](auto&, auto& scales, int64_t block, int64_t i, int64_t n) {
      const bool wide = scales.dtype == DType::kF32;
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t d = 0; d < (wide ? 1 : scales.extent[3]); ++d) {
          std::byte* at = scales.At(block, i, j) + d;
          // The lowest bit of the exponent.
          wide ? at[2] ^= std::byte{0x80} : *at ^= std::byte{0x08};
        }
      }
    });
  });
}

TEST(QuantisedRowsTest, GatherMakesValues) {
  ForEachCache(DecodeOptions(), [](const PagedCaseOptions& options) {
    PagedCase paged(options);
    const int64_t requests = paged.num_requests(), most = 131;
    Tensor k(DType::kF32, {requests, most, options.num_kv_heads, options.key_dim});
    Tensor v(DType::kF32, {requests, most, options.num_kv_heads, options.value_dim});
    GatherCacheArgs args;
    args.cache = paged.cache();
    args.block_table = paged.block_table.view;
    args.seq_lens = args.lengths = paged.seq_lens.view;
    args.scales = paged.params.scales;
    args.out = k.view, args.out_v = v.view;
    ASSERT_EQ(OpsUnderTest().GatherCache({}, args), absl::OkStatus());
    for (int64_t b = 0; b < requests; ++b) {
      for (const bool key : {true, false}) {
        const std::vector<double>& plain = key ? paged.request(b).k : paged.request(b).v;
        const auto* got = (key ? k : v).view.Select(0, b)->as<float>();
        for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(plain[i]));
      }
    }
  });
}

// --- Writing -------------------------------------------------------------------------------------

// The code whose value is nearest, the even one of two as near.
int Nearest(double value, int first, int last, const std::function<double(int)>& decode) {
  int best = first;
  for (int code = first; code <= last; ++code) {
    const double here = std::abs(decode(code) - value), there = std::abs(decode(best) - value);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best;
}
int NearestMagnitude(double value, int last, const std::function<double(int)>& decode) {
  return Nearest(std::min(std::abs(value), decode(last)), 0, last, decode);
}

double Amax(const double* values, int64_t count) {
  double amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) amax = std::max(amax, std::abs(values[i]));
  }
  return amax;
}

// What a vector is stored as, by the rules of cache/quantised_rows.h, the naive way.
void StoreNaively(const Kind& kind, const std::vector<double>& row, double outer, std::byte* codes,
                  std::byte* scales) {
  const auto count = static_cast<int64_t>(row.size());
  std::vector<int> made(count);
  if (kind.format == KvRowFormat::kNvfp4) {
    for (int64_t d = 0; d < count; ++d) {
      const double amax = Amax(row.data() + d / 16 * 16, 16);
      const auto e4m3 = [](int code) { return E4M3ToDouble(static_cast<uint8_t>(code)); };
      const int scale = NearestMagnitude(amax / 6 / outer, 0x7e, e4m3);
      scales[d / 16] = static_cast<std::byte>(scale);
      if (e4m3(scale) == 0 || std::isnan(row[d])) continue;
      static constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      made[d] = NearestMagnitude(row[d] / (e4m3(scale) * outer), 7,
                                 [](int code) { return kE2M1[code]; }) +
                (std::signbit(row[d]) ? 8 : 0);
    }
  } else if (kind.format == KvRowFormat::kInt4PerTokenHead) {
    double low = 0, high = 0;
    for (const double value : row) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value), high = std::max(high, value);
    }
    uint32_t bits = std::bit_cast<uint32_t>(
        static_cast<float>(std::max((high / 15 - low / 15), static_cast<double>(1e-6f))));
    bits &= ~15u;
    const double scale = std::bit_cast<float>(bits);
    const auto integer = [](int code) { return code; };
    const int zero = Nearest(std::min(-low / scale, 15.0), 0, 15, integer);
    bits |= static_cast<uint32_t>(zero);
    std::memcpy(scales, &bits, sizeof(bits));
    for (int64_t d = 0; d < count; ++d) {
      made[d] = std::isnan(row[d])
                    ? zero
                    : Nearest(std::clamp(row[d] / scale + zero, 0.0, 15.0), 0, 15, integer);
    }
  } else {
    const bool int8 = kind.code == DType::kI8;
    const float scale = std::max(
        static_cast<float>(Amax(row.data(), count) / (int8 ? 127 : 448)), 1e-6f);
    std::memcpy(scales, &scale, sizeof(scale));
    for (int64_t d = 0; d < count; ++d) {
      const double value = row[d] / scale;
      if (int8) {
        made[d] = std::isnan(value) ? 0
                                    : Nearest(std::clamp(value, -127.0, 127.0), -127, 127,
                                              [](int code) { return code; });
      } else if (std::isnan(value)) {
        made[d] = 0x7f;
      } else {
        made[d] = NearestMagnitude(value, 0x7e, [](int code) {
                    return E4M3ToDouble(static_cast<uint8_t>(code));
                  }) + (std::signbit(value) ? 0x80 : 0);
      }
    }
  }
  for (int64_t d = 0; d < count; ++d) {
    if (!kind.packed()) {
      codes[d] = static_cast<std::byte>(made[d]);
    } else if (d % 2 == 1) {
      codes[d / 2] = static_cast<std::byte>(made[d - 1] | made[d] << 4);
    }
  }
}

// Vectors one after another: edges, then random ones of very different sizes.
std::vector<double> EdgesAndDraws(std::mt19937_64& random, int64_t vectors, int64_t dim) {
  std::vector<double> values;
  for (int64_t n = 0; n < vectors; ++n) {
    const double size = std::ldexp(1.0, static_cast<int>(IntegerDraw(random, -12, 12)));
    std::vector<double> row = NormalDraws(random, dim);
    for (double& value : row) value *= size;
    switch (n) {
      case 0:  // nothing but zeros of both signs
        for (int64_t d = 0; d < dim; ++d) row[d] = d % 2 == 0 ? 0.0 : -0.0;
        break;
      case 1:  // ties of int8 (scale 1) and, in halves and quarters, of the narrower codes
        for (int64_t d = 0; d < dim; ++d) row[d] = (d % 7) + 0.5 - 3 * (d % 2);
        row[0] = 127, row[1] = -1.25, row[2] = 2.5, row[3] = -3.5, row[4] = 0.25;
        break;
      case 2:  // what is no number
        row[0] = kNaN, row[1] = kInfinity, row[2] = -kInfinity;
        break;
      case 3:  // too small for a scale
        for (double& value : row) value = std::ldexp(value, -60);
        break;
      case 4:  // ties of e2m1 and int4 at scales that are exact
        for (int64_t d = 0; d < dim; ++d) row[d] = 0.25 * static_cast<double>(d % 49 - 24);
        break;
      case 5:  // all of one sign
        for (double& value : row) value = 5 + std::abs(value);
        break;
      case 6:  // one giant
        row[5] = 60000;
        break;
      case 7:  // subnormals of float32, lost in 16 bits
        for (double& value : row) value = std::ldexp(value, -130);
        break;
      default:
        break;
    }
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

// AT-40, AT-44.
TEST(QuantisedRowsTest, WritersStoreWhatANaiveQuantiserDoes) {
  ForEachCache({}, [](const PagedCaseOptions& options) {
    const Kind kind = {options.format, options.cache_dtype};
    for (const DType source : {DType::kF32, DType::kF16, DType::kBF16}) {
      std::mt19937_64 random(static_cast<int>(source));
      KvCacheGeometry geometry;
      geometry.layout = options.layout;
      geometry.dtype = options.cache_dtype;
      geometry.format = options.format;
      geometry.placement = KvPlacement::kInterleaved;
      geometry.num_blocks = 4, geometry.block_size = 5, geometry.num_kv_heads = 3;
      geometry.key_dim = 48, geometry.value_dim = 80;
      geometry.block_padding_bytes = 12;
      constexpr int64_t kTokens = 9;
      Tensor memory(DType::kU8, {KvCacheBytes(geometry).value()});
      std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0x5a});
      std::vector<std::byte> expected = memory.bytes;
      Tensor k(source, {kTokens, 3, 48}), v(source, {kTokens, 3, 80});
      k.Set(EdgesAndDraws(random, kTokens * 3, 48));
      v.Set(EdgesAndDraws(random, kTokens * 3, 80));
      Tensor slots(DType::kI64, {kTokens});
      const std::vector<double> places = {19, 3, -1, 4, 5, 6, 0, 12, -1};
      slots.Set(places);
      Tensor k_scale = FloatTensor({0.5, 0.375, 2}), v_scale = FloatTensor({0.01});

      ReshapeAndCacheArgs args;
      args.k = k.view, args.v = v.view;
      args.slot_mapping = slots.view;
      args.cache = MakeKvCacheView(geometry, memory.view).value();
      if (args.cache.takes_scale()) args.scales = {k_scale.view, v_scale.view};
      const auto store = [&](const ConstTensorView& from, const TensorView& codes,
                             const TensorView& scales,
                             const std::function<double(int64_t)>& outer) {
        for (int64_t t = 0; t < kTokens; ++t) {
          const auto slot = static_cast<int64_t>(places[t]);
          if (slot < 0) continue;
          for (int64_t h = 0; h < 3; ++h) {
            const bool nhd = options.layout == KvLayout::kNhd;
            const int64_t second = nhd ? slot % 5 : h, third = nhd ? h : slot % 5;
            const auto in_expected = [&](const TensorView& view) {
              return expected.data() + (view.At(slot / 5, second, third) - memory.bytes.data());
            };
            StoreNaively(kind, ValuesOf(*from.Select(0, t)->Select(0, h)),
                         args.cache.takes_scale() ? outer(h) : 1, in_expected(codes),
                         in_expected(scales));
          }
        }
      };
      store(k.view, args.cache.k, args.cache.k_scales,
            [&](int64_t h) { return k_scale.Get()[h]; });
      store(v.view, args.cache.v, args.cache.v_scales, [&](int64_t) { return v_scale.Get()[0]; });

      ASSERT_EQ(OpsUnderTest().ReshapeAndCache({}, args), absl::OkStatus());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(memory.bytes[i], expected[i]) << Name(source) << ", byte " << i;
      }
    }
  });
}

// Records of latent caches: each token's, into its slot and nowhere else, and back as values.
TEST(QuantisedRowsTest, LatentRecordsAreWrittenAndGathered) {
  using Format = KvRowFormat;
  for (const auto& [format, source] : {std::pair(Format::kMlaV41, DType::kBF16),
                                       {Format::kMlaV41, DType::kF32},
                                       {Format::kMlaV41Fp4, DType::kF16},
                                       {Format::kMlaV41Fp4, DType::kF32},
                                       {Format::kMlaNvfp4, DType::kBF16},
                                       {Format::kMlaNvfp4, DType::kF32}}) {
    SCOPED_TRACE(absl::StrCat(Name(format), " from ", Name(source)));
    const MlaRecordShape shape = ShapeOf(format);
    constexpr int64_t kTokens = 9, kBlockSize = 4;
    std::mt19937_64 random(11);
    Tensor memory(DType::kU8, {4, kBlockSize, shape.bytes});
    std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0x5a});
    std::vector<std::byte> expected = memory.bytes;
    Tensor kv_c(source, {kTokens, shape.compressed}), k_pe(DType::kF32, {kTokens, 64});
    kv_c.Set(EdgesAndDraws(random, kTokens, shape.compressed));
    k_pe.Set(EdgesAndDraws(random, kTokens, 64));
    Tensor slots(DType::kI64, {kTokens});
    const std::vector<double> places = {4, 5, 6,  7, -1,
                                        1, 0, 13, 15};  // positions 0 to 3, then 5 and 4
    slots.Set(places);
    ConcatAndCacheMlaArgs args;
    args.kv_c = kv_c.view, args.k_pe = k_pe.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(KvLayout::kMlaLatent, memory.view);
    args.cache.format = format;
    ASSERT_EQ(OpsUnderTest().ConcatAndCacheMla({}, args), absl::OkStatus());
    std::vector<double> rows(16 * shape.key_dim);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto slot = static_cast<int64_t>(places[t]);
      if (slot < 0) continue;
      std::vector<double> values = Part(kv_c.Get(), t * shape.compressed, shape.compressed);
      const std::vector<double> rotary = Part(k_pe.Get(), t * 64, 64);
      values.insert(values.end(), rotary.begin(), rotary.end());
      EncodeMlaRecord(format, values.data(), expected.data() + slot * shape.bytes);
      DecodeMlaRecord(format, expected.data() + slot * shape.bytes,
                      rows.data() + slot * shape.key_dim);
    }
    EXPECT_EQ(memory.bytes, expected);

    Tensor table = IntTensor({1, 0}, {1, 2}), length = IntTensor({6}, {1});
    Tensor out(DType::kF32, {1, 6, shape.key_dim});
    GatherCacheArgs gather;
    gather.cache = args.cache;
    gather.block_table = table.view;
    gather.seq_lens = gather.lengths = length.view;
    gather.out = out.view;
    ASSERT_EQ(OpsUnderTest().GatherCache({}, gather), absl::OkStatus());
    const auto* got = out.view.as<float>();
    for (int64_t j = 0; j < 6; ++j) {
      const int64_t slot = j < 4 ? 4 + j : j - 4;
      for (int64_t d = 0; d < shape.key_dim; ++d) {
        const auto value = static_cast<float>(rows[slot * shape.key_dim + d]);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(got[j * shape.key_dim + d]));
        } else {
          ASSERT_EQ(got[j * shape.key_dim + d], value);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
