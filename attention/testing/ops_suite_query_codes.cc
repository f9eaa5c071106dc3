// Queries in e4m3 with a scale of their own, over caches of any type and over contiguous keys.

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/ops_suite.h"

namespace kvblocks::attention {
namespace {

using Scales = PagedCaseOptions::Scales;

PagedCaseOptions CodesOptions(DType cache, DType out, Scales scales, int64_t dim) {
  PagedCaseOptions options = VariedDecodeOptions();
  options.q_dtype = DType::kF8E4M3;
  options.out_dtype = out;
  options.cache_dtype = cache;
  options.scales = scales;
  options.key_dim = options.value_dim = dim;
  return options;
}

struct Kind {
  DType cache, out;
  Scales scales;
  int64_t dim;
  KvLayout layout;
};
const Kind kKinds[] = {
    {DType::kF8E4M3, DType::kBF16, Scales::kPerHead, 64, KvLayout::kNhd},
    {DType::kF8E4M3, DType::kF16, Scales::kOne, 128, KvLayout::kHnd},
    {DType::kF8E4M3, DType::kF32, Scales::kPerRequest, 48, KvLayout::kPagedX},
    {DType::kI8, DType::kBF16, Scales::kPerHead, 112, KvLayout::kHnd},
    {DType::kF8E5M2, DType::kF16, Scales::kOne, 256, KvLayout::kNhd},
    {DType::kBF16, DType::kBF16, Scales::kPerHead, 64, KvLayout::kNhd},
    {DType::kF32, DType::kF32, Scales::kOne, 32, KvLayout::kHnd},
};
std::string NameOf(const Kind& kind) {
  return absl::StrCat("over ", Name(kind.cache), " to ", Name(kind.out), ", D ", kind.dim);
}

TEST(QueryCodesTest, DecodeIsExact) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(NameOf(kind));
    PagedCaseOptions options = CodesOptions(kind.cache, kind.out, kind.scales, kind.dim);
    options.layout = kind.layout;
    PagedCase paged(options);
    ExpectDecodeIsExact(paged);
    paged.params.split = SplitPolicy::Fixed(32);
    paged.params.window_left = 40;
    ExpectDecodeIsExact(paged);
    paged.params.soft_cap = 5;
    ExpectDecodeIsExact(paged);
  }
}

TEST(QueryCodesTest, PrefillIsExact) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(NameOf(kind));
    PagedCaseOptions options = CodesOptions(kind.cache, kind.out, kind.scales, kind.dim);
    options.layout = kind.layout;
    options.lengths = {40, 7, 0, 90};
    options.q_lens = {40, 1, 0, 33};
    PagedCase paged(options);
    ExpectPrefillIsExact(paged);
    paged.params.soft_cap = 5;
    ExpectPrefillIsExact(paged);
  }
}

TEST(QueryCodesTest, ContiguousKeysMayBeCodes) {
  for (const DType query : {DType::kF8E4M3, DType::kBF16, DType::kF32}) {
    for (const Scales scales : {Scales::kOne, Scales::kPerHead, Scales::kPerRequest}) {
      SCOPED_TRACE(absl::StrCat(Name(query), " ", static_cast<int>(scales)));
      PagedCaseOptions options = CodesOptions(DType::kF8E4M3, DType::kF16, scales, 64);
      options.q_dtype = query;
      options.lengths = {40, 7, 0, 90};
      options.q_lens = {40, 1, 0, 33};
      PagedCase paged(options);
      ExpectVarlenIsExact(paged);
    }
  }
  PagedCaseOptions options = CodesOptions(DType::kF16, DType::kF16, Scales::kPerHead, 64);
  options.lengths = {40, 7, 0, 90};
  options.q_lens = {40, 1, 0, 33};
  PagedCase floats(options);
  ExpectVarlenIsExact(floats);
}

TEST(QueryCodesTest, CascadeIsExact) {
  for (const DType out : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Scales scales : {Scales::kOne, Scales::kPerHead}) {
      SCOPED_TRACE(absl::StrCat(Name(out), " ", static_cast<int>(scales)));
      PagedCaseOptions options = CodesOptions(DType::kF8E4M3, out, scales, 64);
      options.lengths = {60, 49, 0, 100};
      options.q_lens = {1, 1, 0, 17};
      PagedCase paged(options);
      paged.SharePrefix(2);
      CascadeArgs args{paged.PrefillArgs(), 2 * options.block_size};
      paged.ClearOutputs();
      ASSERT_EQ(OpsUnderTest().Cascade({}, args), absl::OkStatus());
      EXPECT_EQ(paged.Mismatch(PrefillTolerance(paged)), "");
    }
  }
}

// Exactly rounded quotients, beyond the largest code saturated.
TEST(QueryCodesTest, QuantizedQueriesAreExactQuotients) {
  std::mt19937_64 random(11);
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const double scale : {0.0371, 1.0, 3e-4}) {
      Tensor q(from, {5, 3, 48}), codes(DType::kF8E4M3, {5, 4, 48});
      q.Set(NormalDraws(random, 5 * 3 * 48));
      FillWithPoison(codes);
      const std::byte poison = codes.bytes[0];
      const Tensor one = FloatTensor({scale});
      QuantizeQueriesArgs args{q.view, one.view, codes.view.Slice(1, 0, 3).value()};
      if (scale == 1) args.scale = {};
      ASSERT_EQ(OpsUnderTest().QuantizeQueries({}, args), absl::OkStatus());
      const std::vector<double> values = q.Get(), got = ValuesOf(args.codes);
      const double by = one.Get()[0];
      for (size_t i = 0; i < values.size(); ++i) {
        std::byte code;
        StoreElement(DType::kF8E4M3, values[i] / by, &code);
        EXPECT_EQ(got[i], LoadElement(DType::kF8E4M3, &code)) << Name(from) << " " << by;
      }
      for (int64_t t = 0; t < 5; ++t) {  // what is no head's stays
        EXPECT_EQ(*codes.view.At(t, 3, 0), poison) << t;
      }
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
