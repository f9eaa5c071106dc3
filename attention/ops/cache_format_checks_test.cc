// T-6 for caches whose vectors have scales of their own.
//
// Operations run on checked arguments alone, which are checked once.

#include <cstring>
#include <type_traits>

#include "attention/cpu/block_ops.h"
#include "attention/ops/block_checks.h"
#include "attention/testing/refusals.h"
#include "attention/testing/says.h"
#include "attention/testing/valid_args.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

// The cache of valid arguments, of a format: 6 blocks of 4 tokens, 2 heads of 16 or, unpacked, 8.
KvCacheView Cache(TensorStore& s, KvRowFormat format, bool output = false) {
  const auto make = [&](DType dtype, absl::Span<const int64_t> extents) {
    return output ? s.Output(dtype, extents) : s.Input(dtype, extents);
  };
  KvCacheView cache;
  cache.format = format;
  const bool packed = ValuesPerElement(format) > 1;
  for (TensorView* codes : {&cache.k, &cache.v}) {
    *codes = make(packed ? DType::kU8 : DType::kI8, {6, 4, 2, 8});
  }
  for (TensorView* scales : {&cache.k_scales, &cache.v_scales}) {
    *scales = format == KvRowFormat::kNvfp4 ? make(DType::kF8E4M3, {6, 4, 2, 1})
                                            : make(DType::kF32, {6, 4, 2});
  }
  return cache;
}

TEST(CacheFormatChecksTest, DecodeRefuses) {
  using Args = PagedDecodeArgs;
  using Format = KvRowFormat;
  ExpectRefused<Args>("PagedDecode", {
    KVBLOCKS_BAD(kInvalid, "paged_x of format per_token_head|nhd and hnd",
                 a.cache = Cache(s, Format::kPerTokenHead);
                 a.cache.layout = KvLayout::kPagedX),
    KVBLOCKS_BAD(kInvalid, "cache.k_scales is absent",
                 a.cache = Cache(s, Format::kPerTokenHead);
                 a.cache.k_scales = {}),
    KVBLOCKS_BAD(kInvalid, "cache.v_scales|Hkv = 2", a.cache = Cache(s, Format::kPerTokenHead);
                 a.cache.v_scales = s.Input(DType::kF32, {6, 4, 3})),
    KVBLOCKS_BAD(kInvalid, "scales are given|per_token_head|leave them absent",
                 a.cache = Cache(s, Format::kPerTokenHead);
                 a.params.scales.k = s.Floats({2})),
    KVBLOCKS_BAD(kInvalid, "cache.k is u8|i8", a.cache = Cache(s, Format::kPerTokenHead);
                 a.cache.k = a.cache.v = s.Input(DType::kU8, {6, 4, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "cache.k is i8|u8", a.cache = Cache(s, Format::kInt4PerTokenHead);
                 a.cache.k = s.Input(DType::kI8, {6, 4, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "q is f32[2, 4, 8]|D = 16",
                 a.cache = Cache(s, Format::kInt4PerTokenHead)),
    KVBLOCKS_BAD(kInvalid, "nvfp4 with rows of 24 values|multiple of 16",
                 a.cache = Cache(s, Format::kNvfp4);
                 a.cache.k = s.Input(DType::kU8, {6, 4, 2, 12})),
    KVBLOCKS_BAD(kInvalid, "cache.k_scales|16 values per scale",
                 a.cache = Cache(s, Format::kNvfp4);
                 a.cache.k_scales = s.Input(DType::kF8E4M3, {6, 4, 2, 2})),
    KVBLOCKS_BAD(kInvalid, "cache.k_scales|set format",
                 a.cache.k_scales = s.Input(DType::kF32, {6, 4, 2})),
    KVBLOCKS_BAD(kInvalid, "format number 7", a.cache.format = static_cast<Format>(7)),
    KVBLOCKS_BAD(kInvalid, "nhd of format mla_v41_528|mla_latent",
                 a.cache.format = Format::kMlaV41)
  });
}

TEST(CacheFormatChecksTest, LatentRecordsAreRefusedWhereTheyDoNotFit) {
  using Args = ConcatAndCacheMlaArgs;
  const auto record = [](Args& a, TensorStore& s, KvRowFormat format) {
    a.cache = {KvLayout::kMlaLatent, s.Output(DType::kU8, {6, 4, ShapeOf(format).bytes})};
    a.cache.format = format;
    a.kv_c = s.Input(DType::kF32, {3, ShapeOf(format).compressed});
    a.k_pe = s.Input(DType::kF32, {3, 64});
  };
  for (const KvRowFormat format :
       {KvRowFormat::kMlaV41, KvRowFormat::kMlaV41Fp4, KvRowFormat::kMlaNvfp4}) {
    ExpectAccepted<Args>([&](Args& a, TensorStore& s) { record(a, s, format); });
    ExpectRefused<Args>("ConcatAndCacheMla", {
      KVBLOCKS_BAD(kInvalid, "cache.k is u8[6, 4, 584]|bytes of a record", record(a, s, format);
                   a.cache.k = s.Output(DType::kU8, {6, 4, 584})),
      KVBLOCKS_BAD(kInvalid, "cache.v is given|leave it absent", record(a, s, format);
                   a.cache.v = *a.cache.k.Slice(2, 0, 100)),
      KVBLOCKS_BAD(kInvalid, "kv_c is f32[3, 500]|R_kv = ", record(a, s, format);
                   a.kv_c = s.Input(DType::kF32, {3, 500})),
      KVBLOCKS_BAD(kInvalid, "kv_c is f8e4m3", record(a, s, format);
                   a.kv_c = s.Input(DType::kF8E4M3, {3, ShapeOf(format).compressed})),
      KVBLOCKS_BAD(kInvalid, "mla_split of format|mla_latent", record(a, s, format);
                   a.cache.layout = KvLayout::kMlaSplit)
    });
  }
}

TEST(CacheFormatChecksTest, WritersRefuse) {
  using Args = ReshapeAndCacheArgs;
  ExpectRefused<Args>("ReshapeAndCache", {
    KVBLOCKS_BAD(kInvalid, "k is i8",
                 a.cache = Cache(s, KvRowFormat::kPerTokenHead, /*output=*/true);
                 a.k = s.Input(DType::kI8, {3, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "cache.v_scales|cache.k_scales",
                 a.cache = Cache(s, KvRowFormat::kPerTokenHead, /*output=*/true);
                 a.cache.v_scales = a.cache.k_scales)
  });
}

// Codes and scales take turns within a token, tokens within a block, and blocks have gaps: that
// these do not overlap is seen, and so is a single byte that two of them share.
TEST(CacheFormatChecksTest, InterleavedCodesAndScalesAreApart) {
  KvCacheGeometry geometry;
  geometry.format = KvRowFormat::kPerTokenHead;
  geometry.dtype = DType::kI8;
  geometry.placement = KvPlacement::kInterleaved;
  geometry.num_blocks = 6, geometry.block_size = 4, geometry.num_kv_heads = 2;
  geometry.key_dim = geometry.value_dim = 8;
  geometry.block_padding_bytes = 12;
  const int64_t bytes = KvCacheBytes(geometry).value();
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
    geometry.layout = layout;
    const auto check = [&](auto change) {
      TensorStore store;
      ReshapeAndCacheArgs args = Valid<ReshapeAndCacheArgs>(store);
      args.cache = MakeKvCacheView(geometry, store.Output(DType::kU8, {bytes})).value();
      change(args.cache);
      return Check({}, args);
    };
    EXPECT_EQ(check([](KvCacheView&) {}), absl::OkStatus());
    for (const int bytes_off : {-4, 4}) {
      const absl::Status status =
          check([&](KvCacheView& cache) { cache.k_scales.data += bytes_off; });
      EXPECT_THAT(status, Says("shares memory"));
    }
  }
}

TEST(CacheFormatChecksTest, BlocksMoveWithTheirScales) {
  TensorStore store;
  const KvCacheView from = Cache(store, KvRowFormat::kNvfp4);
  const KvCacheView to = Cache(store, KvRowFormat::kNvfp4, /*output=*/true);
  ConstTensorView tensors[kMostCacheTensors];
  EXPECT_EQ(CacheTensors(ConstKvCacheView(from), tensors).size(), 4u);
  EXPECT_TRUE(CheckSwapBlocks({}, from, {}, to, {{1, 2}}).ok());
  const absl::Status other =
      CheckSwapBlocks({}, from, {}, Cache(store, KvRowFormat::kInt4PerTokenHead, true), {{1, 2}});
  EXPECT_THAT(other, Says("nvfp4, dst of int4_per_token_head"));
  KvCacheView hnd = to;
  hnd.layout = KvLayout::kHnd;
  for (TensorView* view : {&hnd.k, &hnd.v, &hnd.k_scales, &hnd.v_scales}) {
    *view = *view->Permute({0, 2, 1, 3});
  }
  LayoutConversion conversion;
  ASSERT_EQ(CheckConvertLayout({}, from, hnd, nullptr, &conversion), absl::OkStatus());
  EXPECT_EQ(conversion.num_tensors, 4);
  EXPECT_EQ(conversion.to[3].DebugString(), to.v_scales.DebugString());
  std::memset(from.v_scales.data, 7, static_cast<size_t>(*from.v_scales.SpanBytes()));
  ASSERT_EQ(ConvertLayout({}, from, hnd), absl::OkStatus());
  EXPECT_EQ(*hnd.v_scales.At(5, 1, 3), std::byte{7});
}

static_assert(!std::is_constructible_v<Checked<FuseKvArgs>, ExecContext, FuseKvArgs>);
static_assert(!std::is_default_constructible_v<Checked<FuseKvArgs>>);

// Refuses what has more than one new row, beside what all backends refuse.
class CountingOps final : public AttentionOps {
 public:
  const char* name() const override { return "COUNTING"; }
  absl::Status Run(const Checked<FuseKvArgs>& call) const override {
    ++num_runs;
    rows = call.args().imp.extent[0];
    return absl::OkStatus();
  }

  mutable int num_checks = 0, num_runs = 0;
  mutable int64_t rows = 0;

 protected:
  absl::Status Refuse(const ExecContext& context, const FuseKvArgs& args) const override {
    ++num_checks;
    absl::Status status = AttentionOps::Refuse(context, args);
    if (status.ok() && args.imp.extent[0] > 1) return absl::UnimplementedError("FuseKv: one row");
    return status;
  }
};

TEST(CheckedTest, ACallChecksOnceAndThenRuns) {
  const CountingOps ops;
  TensorStore store;
  FuseKvArgs args = Valid<FuseKvArgs>(store);
  EXPECT_TRUE(absl::IsUnimplemented(ops.FuseKv({}, args)));
  EXPECT_EQ(ops.num_runs, 0);
  for (ConstTensorView* view : {&args.imp, &args.k_new, &args.v_new}) {
    *view = *view->Slice(0, 0, 1);
  }
  EXPECT_EQ(ops.FuseKv({}, args), absl::OkStatus());
  EXPECT_EQ(ops.num_checks, 2);
  EXPECT_EQ(ops.num_runs, 1);
  args.imp.extent[0] = 0;
  args.k_new.rank = 100;
  EXPECT_TRUE(absl::IsInvalidArgument(ops.FuseKv({}, args)));
  EXPECT_EQ(ops.num_runs, 1);
}

TEST(CheckedTest, WhatWasCheckedRunsWithoutAnotherLook) {
  const CountingOps ops;
  TensorStore store;
  FuseKvArgs args = Valid<FuseKvArgs>(store);
  for (ConstTensorView* view : {&args.imp, &args.k_new, &args.v_new}) {
    *view = *view->Slice(0, 0, 1);
  }
  const ExecContext context;
  const absl::StatusOr<Checked<FuseKvArgs>> checked = ops.Check(context, args);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(&checked->args(), &args);
  EXPECT_EQ(&checked->context(), &context);
  EXPECT_EQ(ops.num_runs, 0);
  EXPECT_EQ(ops.Run(*checked), absl::OkStatus());
  EXPECT_EQ(ops.Run(*checked), absl::OkStatus());
  EXPECT_EQ(ops.rows, 1);
  EXPECT_EQ(ops.num_checks, 1);
}

TEST(CheckedTest, OperationsThatABackendHasNotAreNamed) {
  const CountingOps ops;
  TensorStore store;
  const RotateKeysArgs args = Valid<RotateKeysArgs>(store);
  const AttentionOps& all = ops;
  EXPECT_THAT(all.RotateKeys({}, args), Says("COUNTING has no RotateKeys"));
}

}  // namespace
}  // namespace kvblocks::attention
