// T-6: each row of the table of bad input, for each operation that has the argument: refused with
// the stated code and a message that names operation, argument, value and limit.

#include "attention/ops/checks.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/ops/valid_args.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kRange = absl::StatusCode::kOutOfRange;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One bad call: what is done to valid arguments, and what the refusal says.
template <typename Args>
struct Bad {
  std::function<void(Args&, TensorStore&)> spoil;
  absl::StatusCode code;
  std::vector<std::string> says;
};

template <typename Args>
void ExpectRefused(const char* op, const std::vector<Bad<Args>>& rows) {
  {
    TensorStore store;
    const Args args = Valid<Args>(store);
    EXPECT_EQ(Check({}, args), absl::OkStatus()) << op;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    TensorStore store;
    Args args = Valid<Args>(store);
    rows[i].spoil(args, store);
    const absl::Status status = Check({}, args);
    const std::string where = std::string(op) + " row " + std::to_string(i);
    EXPECT_EQ(status.code(), rows[i].code) << where << ": " << status;
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr(std::string(op) + ": ")) << where;
    for (const std::string& text : rows[i].says) EXPECT_THAT(message, HasSubstr(text)) << where;
    EXPECT_TRUE(store.OutputsUntouched()) << where;
  }
}

template <typename Args>
void ExpectAccepted(const std::function<void(Args&, TensorStore&)>& change) {
  TensorStore store;
  Args args = Valid<Args>(store);
  change(args, store);
  EXPECT_EQ(Check({}, args), absl::OkStatus());
}

TensorView OnCuda(TensorView view) {
  view.device = {DeviceKind::kCuda, 0};
  return view;
}
ConstTensorView OnCuda(ConstTensorView view) {
  view.device = {DeviceKind::kCuda, 0};
  return view;
}

// What is wrong in the same way for everything that has AttnParams; `at` finds them.
template <typename Args, typename At>
std::vector<Bad<Args>> ParamRows(At at, bool paged) {
  std::vector<Bad<Args>> rows = {
      {[=](Args& a, TensorStore&) { at(a).scale = kNan; }, kInvalid, {"scale", "nan", "above 0"}},
      {[=](Args& a, TensorStore&) { at(a).scale = 0; }, kInvalid, {"scale is 0"}},
      {[=](Args& a, TensorStore&) { at(a).scale = -1; }, kInvalid, {"scale is -1"}},
      {[=](Args& a, TensorStore&) { at(a).scale = kInf; }, kInvalid, {"scale is inf"}},
      {[=](Args& a, TensorStore&) { at(a).soft_cap = -2; }, kInvalid, {"soft_cap is -2"}},
      {[=](Args& a, TensorStore&) { at(a).soft_cap = kNan; }, kInvalid, {"soft_cap is nan"}},
      {[=](Args& a, TensorStore&) { at(a).window_left = -2; }, kInvalid, {"window_left", "-2"}},
      {[=](Args& a, TensorStore&) { at(a).window_right = -7; }, kInvalid, {"window_right", "-7"}},
      {[=](Args& a, TensorStore&) { at(a).window_right = 1; },
       kInvalid,
       {"window_right is 1", "causal"}},
      {[=](Args& a, TensorStore&) { at(a).chunk = -4; }, kInvalid, {"chunk is -4"}},
      {[=](Args& a, TensorStore& s) {
         at(a).alibi_slopes = s.Floats({1, 2});
       },
       kInvalid,
       {"alibi_slopes is f32[2]", "H = 4"}},
      {[=](Args& a, TensorStore& s) { at(a).alibi_slopes = s.Input(DType::kF64, {4}); },
       kInvalid,
       {"alibi_slopes is f64[4]", "f32"}},
      {[=](Args& a, TensorStore& s) {
         at(a).sinks = s.Floats({1, 2, 3});
       },
       kInvalid,
       {"sinks has 3", "H = 4"}},
      {[=](Args& a, TensorStore& s) {
         at(a).sinks = s.Floats({1, 2, kNan, 3});
       },
       kInvalid,
       {"sinks[2] is NaN"}},
      {[=](Args& a, TensorStore&) { at(a).split = SplitPolicy::Fixed(0); }, kInvalid, {"Fixed(0)"}},
      {[=](Args& a, TensorStore&) { at(a).split = SplitPolicy::Count(0); }, kInvalid, {"Count(0)"}},
      {[=](Args& a, TensorStore&) {
         at(a).block_sparse.vert_stride = 2;
         at(a).block_sparse.block_size = 0;
       },
       kInvalid,
       {"block_sparse.block_size is 0"}},
      {[=](Args& a, TensorStore&) {
         at(a).block_sparse.vert_stride = 2;
         at(a).block_sparse.local_blocks = -1;
       },
       kInvalid,
       {"local_blocks -1"}},
      {[=](Args& a, TensorStore&) { at(a).mask.sparse_mode = 5; }, kInvalid, {"sparse_mode is 5"}},
      {[=](Args& a, TensorStore&) { at(a).mask.sparse_mode = 3; },
       kInvalid,
       {"sparse_mode 3", "kTemplate"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kTemplate;
         at(a).mask.tensor = s.Input(DType::kI8, {8, 8});
       },
       kInvalid,
       {"template", "sparse_mode 1"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kTemplate;
         at(a).mask.sparse_mode = 2;
         at(a).mask.tensor = s.Input(DType::kI8, {8, 7});
       },
       kInvalid,
       {"params.mask is i8[8, 7]", "N = 8"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kShared;
         at(a).mask.tensor = s.Input(DType::kI8, {8, 5});
       },
       kInvalid,
       {"params.mask is i8[8, 5]", "S2 at least 6"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kShared;
         at(a).mask.rows_are_absolute = true;
         at(a).mask.tensor = s.Input(DType::kI8, {5, 8});
       },
       kInvalid,
       {"params.mask is i8[5, 8]", "S1 must be at least 6"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kPerRequest;
         at(a).mask.tensor = s.Input(DType::kI8, {3, 8, 8});
       },
       kInvalid,
       {"params.mask is i8[3, 8, 8]", "R = 2"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kPerHead;
         at(a).mask.tensor = s.Input(DType::kI8, {1, 3, 8, 8});
       },
       kInvalid,
       {"params.mask is for 1 requests and 3 heads", "H = 4"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kShared;
         at(a).mask.encoding = MaskEncoding::kAdditive;
         at(a).mask.tensor = s.Input(DType::kI8, {8, 8});
       },
       kInvalid,
       {"params.mask is i8[8, 8]", "f16"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kShared;
         at(a).mask.encoding = MaskEncoding::kAdditiveFinite;
         at(a).mask.tensor = s.Input(DType::kBF16, {8, 8});
       },
       kInvalid,
       {"params.mask is bf16[8, 8]", "f16"}},
      {[=](Args& a, TensorStore& s) {
         at(a).mask.form = MaskForm::kRaggedBits;
         at(a).mask.tensor = s.Input(DType::kU8, {1});
       },
       kInvalid,
       {"params.mask has 1 bytes", "bits take"}},
      {[=](Args& a, TensorStore&) {
         at(a).mask.sparse_mode = 0;
         at(a).mask.pre_tokens = -3;
         at(a).mask.next_tokens = 2;
       },
       kInvalid,
       {"pre_tokens + next_tokens is -3 + 2"}},
      {[=](Args& a, TensorStore&) {
         at(a).mask.sparse_mode = 0;
         at(a).mask.pre_tokens = -2;
       },
       kInvalid,
       {"pre_tokens is -2", "-S1"}},
      {[=](Args& a, TensorStore&) {
         at(a).mask.sparse_mode = 0;
         at(a).mask.next_tokens = -6;
       },
       kInvalid,
       {"next_tokens is -6", "-S2 = -6"}},
  };
  if (!paged) return rows;
  rows.push_back(
      {[=](Args& a, TensorStore&) { at(a).chunk = 6; }, kInvalid, {"chunk is 6", "block size 4"}});
  rows.push_back({[=](Args& a, TensorStore&) { at(a).split = SplitPolicy::Fixed(6); },
                  kInvalid,
                  {"Fixed(6)", "block size 4"}});
  rows.push_back({[=](Args& a, TensorStore&) {
                    at(a).block_sparse.vert_stride = 2;
                    at(a).block_sparse.block_size = 6;
                  },
                  kInvalid,
                  {"block_sparse.block_size is 6", "block size 4"}});
  rows.push_back({[=](Args& a, TensorStore& s) { at(a).scales.k = s.Floats({1}); },
                  kInvalid,
                  {"scales.k is given", "f32"}});
  return rows;
}

// What is wrong in the same way with a block table and lengths 6 and 3 of block size 4.
template <typename Args>
std::vector<Bad<Args>> TableRows() {
  return {
      {[](Args& a, TensorStore& s) {
         a.seq_lens = s.Ints({6, 3, 1});
       },
       kInvalid,
       {"R ="}},
      {[](Args& a, TensorStore& s) {
         a.seq_lens = s.Slots({6, 3});
       },
       kInvalid,
       {"seq_lens is i64[2]", "i32"}},
      {[](Args& a, TensorStore& s) {
         a.seq_lens = s.Ints({6, -1});
       },
       kInvalid,
       {"seq_lens[1] is -1"}},
      {[](Args& a, TensorStore&) { a.max_seq_len = 5; },
       kInvalid,
       {"max_seq_len is 5", "seq_lens[0] = 6"}},
      {[](Args& a, TensorStore&) { a.max_seq_len = -1; }, kInvalid, {"max_seq_len is -1"}},
      {[](Args& a, TensorStore& s) {
         a.seq_lens = s.Ints({9, 3});
         a.max_seq_len = 9;
       },
       kRange,
       {"block_table has 2 columns", "length 9", "needs 3"}},
      {[](Args& a, TensorStore& s) {
         a.block_table = s.Values<int32_t>({1, 6, 3, 0}, {2, 2});
       },
       kRange,
       {"block_table[0][1] is 6", "0 to 5"}},
      {[](Args& a, TensorStore& s) {
         a.block_table = s.Values<int32_t>({1, 2, -1, 0}, {2, 2});
       },
       kRange,
       {"block_table[1][0] is -1", "0 to 5"}},
      {[](Args& a, TensorStore& s) {
         a.block_table = s.Ints({1, 2});
       },
       kInvalid,
       {"block_table is i32[2]", "[R, columns]"}},
      {[](Args& a, TensorStore&) { a.cache.k.extent[0] = 0; }, kInvalid, {"cache.v", "NB = 0"}},
      {[](Args& a, TensorStore&) { a.cache.k = {}; }, kInvalid, {"cache.k is absent"}},
  };
}

template <typename Args>
std::vector<Bad<Args>> Join(std::vector<Bad<Args>> a, const std::vector<Bad<Args>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ChecksTest, ReshapeAndCacheRefuses) {
  using Args = ReshapeAndCacheArgs;
  ExpectRefused<Args>(
      "ReshapeAndCache",
      {{[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 16});
        },
        kInvalid,
        {"k is f32[3, 16]", "[T, Hkv, D]"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 4, 8});
        },
        kInvalid,
        {"k is f32[3, 4, 8]", "Hkv = 2", "the cache"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 2, 6});
        },
        kInvalid,
        {"dimension 2 must be D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kF32, {2, 2, 8});
        },
        kInvalid,
        {"v is f32[2, 2, 8]", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kI32, {3, 2, 8});
        },
        kInvalid,
        {"k is i32", "bf16"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kI8, {3, 2, 8});
        },
        kInvalid,
        {"k is i8 and the cache f32"}},
       {[](Args& a, TensorStore&) { a.k = OnCuda(a.k); }, kInvalid, {"k is on cuda:0", "host"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Ints({1, 2, 3});
        },
        kInvalid,
        {"slot_mapping is i32[3]", "i64"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 2, 3, 4});
        },
        kInvalid,
        {"slot_mapping has 4", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 24, 3});
        },
        kRange,
        {"slot_mapping[1] is 24", "below 24"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({7, -1, 7});
        },
        kInvalid,
        {"slot_mapping has 7 twice"}},
       {[](Args& a, TensorStore&) { a.cache.v.extent[3] = 9; }, kInvalid, {"v is", "Dv = 9"}},
       {[](Args& a, TensorStore&) { a.cache.v = a.cache.k; },
        kInvalid,
        {"cache.k shares memory with cache.v"}},
       {[](Args& a, TensorStore&) {
          a.k = *ConstTensorView(a.cache.k).Reshape({24, 2, 8})->Slice(0, 2, 5);
        },
        kInvalid,
        {"shares memory with k"}},
       {[](Args& a, TensorStore&) { a.cache.k.stride[0] = 0; },
        kInvalid,
        {"cache.k", "strides let elements share memory"}},
       {[](Args& a, TensorStore&) { a.cache.k.stride[2] = -8; },
        kInvalid,
        {"cache.k has stride -8 in dimension 2"}},
       // NB * BS * Hkv * D beyond int64.
       {[](Args& a, TensorStore&) { a.cache.k.extent[0] = a.cache.v.extent[0] = int64_t{1} << 60; },
        kInvalid,
        {"cache.k", "2^63"}},
       {[](Args& a, TensorStore& s) { a.scales.k = s.Floats({1}); },
        kInvalid,
        {"scales.k is given", "cache is f32"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kF8E4M3, true);
          a.scales.v = s.Floats({1, 0});
        },
        kInvalid,
        {"scales.v[1] is 0"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({kNan});
        },
        kInvalid,
        {"scales.k[0] is nan"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({1, kInf});
        },
        kInvalid,
        {"scales.k[1] is inf"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({1, 1, 1});
        },
        kInvalid,
        {"scales.k is f32[3]", "Hkv = 2"}},
       {[](Args& a, TensorStore& s) { a.cache = LatentCache(s); },
        kInvalid,
        {"cache has layout mla_latent"}},
       // D mod x.
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kPagedX, s.Output(DType::kF32, {6, 2, 4, 4, 2}),
                     s.Output(DType::kF32, {6, 2, 8, 4})};
        },
        kInvalid,
        {"cache.k is f32[6, 2, 4, 4, 2]", "x = 4", "16 bytes"}},
       {[](Args& a, TensorStore& s) {
          a.cache.k = s.Output(DType::kF32, {6, 0, 2, 8});
          a.cache.v = s.Output(DType::kF32, {6, 0, 2, 8});
        },
        kInvalid,
        {"blocks of 0 tokens"}},
       {[](Args& a, TensorStore& s) {
          a.cache.v = s.Output(DType::kF16, {6, 4, 2, 8});
        },
        kInvalid,
        {"cache.v is f16", "f32"}}});
  // Padding rows, a non-contiguous k cut out of a fused projection, K and V in one allocation.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({5}); });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    const TensorView qkv = s.Input(DType::kF32, {3, 8, 8});
    a.k = *qkv.Slice(1, 4, 6);
    a.v = *qkv.Slice(1, 6, 8);
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    const TensorView both = s.Output(DType::kF32, {6, 2, 4, 2, 8});
    a.cache.k = *both.Select(1, 0);
    a.cache.v = *both.Select(1, 1);
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.k = s.Input(DType::kF32, {0, 2, 8});
    a.v = s.Input(DType::kF32, {0, 2, 8});
    a.slot_mapping = s.Slots({});
  });
}

TEST(ChecksTest, ConcatAndCacheMlaRefuses) {
  using Args = ConcatAndCacheMlaArgs;
  ExpectRefused<Args>(
      "ConcatAndCacheMla",
      {{[](Args& a, TensorStore& s) {
          a.kv_c = s.Input(DType::kF32, {3, 5});
        },
        kInvalid,
        {"kv_c is f32[3, 5]", "R_kv = 6"}},
       {[](Args& a, TensorStore& s) {
          a.k_pe = s.Input(DType::kF32, {3, 3});
        },
        kInvalid,
        {"k_pe is f32[3, 3]", "R_pe = 2"}},
       {[](Args& a, TensorStore& s) {
          a.k_pe = s.Input(DType::kF32, {2, 2});
        },
        kInvalid,
        {"T = 3"}},
       {[](Args& a, TensorStore&) { a.k_pe = OnCuda(a.k_pe); }, kInvalid, {"k_pe is on cuda:0"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 1});
        },
        kInvalid,
        {"1 twice"}},
       {[](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({25}); },
        kRange,
        {"slot_mapping[0] is 25"}},
       {[](Args& a, TensorStore& s) { a.scale = s.Floats({1}); }, kInvalid, {"scale is given"}},
       {[](Args& a, TensorStore& s) {
          a.cache = LatentCache(s, DType::kF8E4M3, true);
          a.scale = s.Floats({-1});
        },
        kInvalid,
        {"scale[0] is -1"}},
       {[](Args& a, TensorStore& s) { a.cache = NhdCache(s); },
        kInvalid,
        {"cache has layout nhd", "MLA"}},
       {[](Args& a, TensorStore& s) {
          a.cache.v = s.Output(DType::kF32, {6, 4, 6});
        },
        kInvalid,
        {"cache.v is not the first 6 columns"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_656, s.Output(DType::kU8, {6, 4, 576})};
        },
        kInvalid,
        {"cache.k is u8[6, 4, 576]", "656"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 4};
        },
        kInvalid,
        {"blocks of 2304 bytes", "4 tokens take 2880"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 0};
        },
        kInvalid,
        {"planar_block_size is 0"}},
       {[](Args& a, TensorStore&) { a.cache.k.extent[2] = int64_t{1} << 62; },
        kInvalid,
        {"cache.k", "2^63"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {6, 2880}), {}, 4};
    a.kv_c = s.Input(DType::kBF16, {3, 448});
    a.k_pe = s.Input(DType::kBF16, {3, 64});
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {KvLayout::kMlaFp8_656, s.Output(DType::kU8, {6, 4, 656})};
    a.kv_c = s.Input(DType::kBF16, {3, 512});
    a.k_pe = s.Input(DType::kBF16, {3, 64});
  });
}

TEST(ChecksTest, ComputeKvScalesRefuses) {
  using Args = ComputeKvScalesArgs;
  ExpectRefused<Args>(
      "ComputeKvScales",
      {{[](Args& a, TensorStore&) { a.k = {}; }, kInvalid, {"k is absent"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kF32, {3, 3, 8});
        },
        kInvalid,
        {"Hkv = 2"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kI8, {3, 2, 8});
        },
        kInvalid,
        {"v is i8"}},
       {[](Args& a, TensorStore&) { a.k_divisor = 0; }, kInvalid, {"k_divisor is 0"}},
       {[](Args& a, TensorStore&) { a.v_divisor = kNan; }, kInvalid, {"v_divisor is nan"}},
       {[](Args& a, TensorStore&) { a.q = {}; }, kInvalid, {"q and q_scale go together"}},
       {[](Args& a, TensorStore& s) { a.k_scale = s.Output(DType::kF32, {3}); },
        kInvalid,
        {"k_scale is f32[3]"}},
       {[](Args& a, TensorStore& s) { a.q_scale = s.Output(DType::kF32, {2}); },
        kInvalid,
        {"q_scale is f32[2]"}},
       {[](Args& a, TensorStore&) { a.v_scale = *a.k_scale.Slice(0, 0, 1); },
        kInvalid,
        {"k_scale shares memory with v_scale"}},
       {[](Args& a, TensorStore&) { a.v_scale = OnCuda(a.v_scale); },
        kInvalid,
        {"v_scale is on cuda:0"}}});
}

TEST(ChecksTest, PagedDecodeRefuses) {
  using Args = PagedDecodeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedDecode", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "PagedDecode",
      {{[](Args& a, TensorStore& s) {
          a.q = s.Input(DType::kF32, {2, 3, 8});
        },
        kInvalid,
        {"H = 3", "Hkv = 2"}},
       {[](Args& a, TensorStore& s) {
          a.q = s.Input(DType::kI8, {2, 4, 8});
        },
        kInvalid,
        {"q is i8"}},
       {[](Args& a, TensorStore& s) {
          a.q = s.Input(DType::kF32, {2, 4, 16});
        },
        kInvalid,
        {"D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {2, 4, 4});
        },
        kInvalid,
        {"out is f32[2, 4, 4]", "Dv = 8"}},
       {[](Args& a, TensorStore& s) {
          a.lse = s.Output(DType::kF32, {4, 2});
        },
        kInvalid,
        {"lse is f32[4, 2]", "R = 2"}},
       {[](Args& a, TensorStore& s) {
          a.lse = s.Output(DType::kF16, {2, 4});
        },
        kInvalid,
        {"lse is f16"}},
       {[](Args& a, TensorStore&) { a.q = a.out; }, kInvalid, {"out shares memory with q"}},
       {[](Args& a, TensorStore&) { a.out.stride[0] = 0; }, kInvalid, {"out", "share memory"}},
       {[](Args& a, TensorStore&) { a.q = OnCuda(a.q); }, kInvalid, {"q is on cuda:0"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8);
          a.params.scales.k = s.Values<float>({1, 1, 1, -1}, {2, 2});
        },
        kInvalid,
        {"scales.k[3] is -1"}},
       {[](Args& a, TensorStore&) { a.q.data += 1; }, kInvalid, {"q begins 1 bytes past", "f32"}}});
  // Entries that no query may see: outside the window, past the length; the length needs columns.
  const auto garbage_before = [](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({2147480000, 2, 3, -7}, {2, 2});
  };
  ExpectAccepted<Args>([&](Args& a, TensorStore& s) {
    garbage_before(a, s);
    a.params.window_left = 1;
  });
  ExpectAccepted<Args>([&](Args& a, TensorStore& s) {
    garbage_before(a, s);
    a.params.chunk = 4;
  });
  TensorStore store;
  Args args = Valid<Args>(store);
  garbage_before(args, store);
  args.params.window_left = 2;  // reaches position 3, in block 0
  EXPECT_EQ(Check({}, args).code(), kRange);
}

TEST(ChecksTest, PagedDecodePartialRefuses) {
  using Args = PagedDecodePartialArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedDecodePartial", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "PagedDecodePartial",
      {{[](Args& a, TensorStore&) { a.partition_tokens = 6; },
        kInvalid,
        {"partition_tokens is 6", "block size 4"}},
       {[](Args& a, TensorStore&) { a.partition_tokens = 0; }, kInvalid, {"partition_tokens is 0"}},
       {[](Args& a, TensorStore&) { a.max_seq_len = 9; }, kExhausted, {"P = 2", "9 tokens take 3"}},
       {[](Args& a, TensorStore&) { a.partition_tokens = 8; },
        kInvalid,
        {"P = 2", "take 1 exactly"}},
       {[](Args& a, TensorStore& s) {
          a.exp_sums = s.Output(DType::kF32, {2, 4, 3});
        },
        kInvalid,
        {"exp_sums", "P = 2"}},
       {[](Args& a, TensorStore& s) {
          a.tmp_out = s.Output(DType::kF16, {2, 4, 2, 8});
        },
        kInvalid,
        {"tmp_out is f16"}},
       {[](Args& a, TensorStore&) { a.exp_sums = a.max_logits; },
        kInvalid,
        {"max_logits shares memory with exp_sums"}}});
}

TEST(ChecksTest, ReduceSplitsRefuses) {
  using Args = ReduceSplitsArgs;
  ExpectRefused<Args>(
      "ReduceSplits",
      {{[](Args& a, TensorStore& s) {
          a.exp_sums = s.Input(DType::kF32, {2, 4, 3});
        },
        kInvalid,
        {"P = 2"}},
       {[](Args& a, TensorStore& s) {
          a.tmp_out = s.Input(DType::kF32, {2, 4, 2});
        },
        kInvalid,
        {"[R, H, P, Dv]"}},
       {[](Args& a, TensorStore& s) { a.sinks = s.Floats({1}); }, kInvalid, {"sinks has 1"}},
       {[](Args& a, TensorStore& s) {
          a.sinks = s.Floats({kNan, 0, 0, 0});
        },
        kInvalid,
        {"sinks[0] is NaN"}},
       {[](Args& a, TensorStore&) {
          a.lse = {};
          a.out = {};
        },
        kInvalid,
        {"out is absent"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {1, 4, 8});
        },
        kInvalid,
        {"R = 2"}}});
}

TEST(ChecksTest, PagedPrefillRefuses) {
  using Args = PagedPrefillArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedPrefill", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "PagedPrefill",
      {{[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({1, 2, 3});
        },
        kInvalid,
        {"query_start_loc[0] is 1", "must be 0"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({0, 4, 3});
        },
        kInvalid,
        {"query_start_loc[2] is 3, below 4"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({0, 1, 2});
        },
        kInvalid,
        {"query_start_loc[2] is 2", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({0, 3});
        },
        kInvalid,
        {"query_start_loc is i32[2]", "R + 1 = 3"}},
       {[](Args& a, TensorStore& s) {
          a.seq_lens = s.Ints({1, 3});
        },
        kInvalid,
        {"seq_lens[0] is 1", "2 queries"}},
       {[](Args& a, TensorStore&) { a.max_query_len = 1; },
        kInvalid,
        {"max_query_len is 1", "2 queries"}},
       {[](Args& a, TensorStore& s) {
          a.query_positions = s.Ints({0, 6, 2});
        },
        kInvalid,
        {"query_positions[1] is 6", "length 6"}},
       {[](Args& a, TensorStore& s) {
          a.query_positions = s.Ints({0, 5, -1});
        },
        kInvalid,
        {"query_positions[2] is -1"}},
       {[](Args& a, TensorStore& s) {
          a.query_positions = s.Ints({0, 5});
        },
        kInvalid,
        {"T = 3"}},
       {[](Args& a, TensorStore&) { a.out_scale = kNan; }, kInvalid, {"out_scale is nan"}},
       {[](Args& a, TensorStore&) { a.out_scale = -1; }, kInvalid, {"out_scale is -1"}},
       {[](Args& a, TensorStore&) { a.out_scale = 1; }, kInvalid, {"out is f32", "f8e4m3"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF8E4M3, {3, 4, 8});
        },
        kInvalid,
        {"out is f8e4m3"}},
       {[](Args& a, TensorStore&) { a.out.data = const_cast<std::byte*>(a.cache.v.data); },
        kInvalid,
        {"out shares memory with cache.v"}},
       {[](Args& a, TensorStore& s) {
          a.q = s.Input(DType::kF32, {3, 5, 8});
          a.out = {};
        },
        kInvalid,
        {"out is absent"}}});
  // No query: the table is not read. Padding rows of a bucket: T repeated, length 0.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.query_start_loc = s.Ints({0, 3, 3, 3});
    a.seq_lens = s.Ints({6, 6, 0});
    a.max_query_len = 3;
    a.block_table = s.Values<int32_t>({1, 2, -1, -1, -1, -1}, {3, 2});
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.q = s.Input(DType::kF32, {0, 4, 8});
    a.out = s.Output(DType::kF32, {0, 4, 8});
    a.lse = {};
    a.query_start_loc = s.Ints({0});
    a.seq_lens = s.Ints({});
    a.block_table = s.Values<int32_t>({}, {0, 0});
  });
  // Under causal, blocks behind the last query are not seen.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.query_positions = s.Ints({1, 3, 2});
    a.block_table = s.Values<int32_t>({1, -1, 3, 0}, {2, 2});
  });
}

TEST(ChecksTest, VarlenSelfAttentionRefuses) {
  using Args = VarlenSelfAttentionArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("VarlenSelfAttention", ParamRows<Args>(at, false));
  ExpectRefused<Args>(
      "VarlenSelfAttention",
      {{[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {9, 3, 8});
        },
        kInvalid,
        {"Hkv = 3"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {9, 2, 6});
        },
        kInvalid,
        {"D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kF32, {8, 2, 8});
        },
        kInvalid,
        {"Tk = 9"}},
       {[](Args& a, TensorStore&) { a.kv_start_loc = {}; }, kInvalid, {"k has 9 tokens and q 3"}},
       {[](Args& a, TensorStore& s) {
          a.kv_start_loc = s.Ints({0, 6, 8});
        },
        kInvalid,
        {"kv_start_loc[2] is 8", "Tk = 9"}},
       {[](Args& a, TensorStore& s) {
          a.kv_start_loc = s.Ints({0, 9});
        },
        kInvalid,
        {"R + 1 = 3"}},
       {[](Args& a, TensorStore& s) {
          a.kv_start_loc = s.Ints({0, 1, 9});
        },
        kInvalid,
        {"2 queries"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({0, 2, 2});
        },
        kInvalid,
        {"query_start_loc[2] is 2", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({});
          a.kv_start_loc = {};
        },
        kInvalid,
        {"R + 1"}},
       {[](Args& a, TensorStore& s) { a.params.scales.v = s.Floats({1}); },
        kInvalid,
        {"params.scales"}},
       {[](Args& a, TensorStore& s) {
          a.query_positions = s.Ints({0, 1, 3});
        },
        kInvalid,
        {"query_positions[2] is 3"}},
       {[](Args& a, TensorStore&) { a.k = OnCuda(a.k); }, kInvalid, {"k is on cuda:0"}}});
  // Cross attention: more queries than keys.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.kv_start_loc = s.Ints({0, 1, 9});
    a.params.causal = false;
  });
}

TEST(ChecksTest, CascadeRefuses) {
  using Args = CascadeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.prefill.params; };
  ExpectRefused<Args>("Cascade", ParamRows<Args>(at, true));
  ExpectRefused<Args>(
      "Cascade", {{[](Args& a, TensorStore&) { a.common_prefix_len = 3; },
                   kInvalid,
                   {"common_prefix_len is 3", "block size 4"}},
                  {[](Args& a, TensorStore&) { a.common_prefix_len = -4; }, kInvalid, {"is -4"}},
                  {[](Args& a, TensorStore&) { a.common_prefix_len = 12; },
                   kRange,
                   {"2 columns", "12", "needs 3"}},
                  {[](Args& a, TensorStore& s) {
                     a.prefill.seq_lens = s.Ints({6, 4});
                   },
                   kInvalid,
                   {"request 1 has only 3"}},
                  {[](Args& a, TensorStore& s) {
                     a.prefill.block_table = s.Values<int32_t>({1, 2, 4, 3}, {2, 2});
                   },
                   kInvalid,
                   {"block_table[1][0] is 4", "whose block is 1"}},
                  {[](Args& a, TensorStore&) { a.prefill.params.window_left = 2; },
                   kUnimplemented,
                   {"window"}},
                  {[](Args& a, TensorStore& s) {
                     a.prefill.query_start_loc = s.Ints({0, 1, 2});
                   },
                   kInvalid,
                   {"query_start_loc"}}});
}

TEST(ChecksTest, MlaDecodeRefuses) {
  using Args = MlaDecodeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("MlaDecode", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "MlaDecode",
      {{[](Args& a, TensorStore& s) {
          a.q_lat = s.Input(DType::kF32, {3, 4, 8});
        },
        kInvalid,
        {"q_lat", "R_kv = 6"}},
       {[](Args& a, TensorStore& s) {
          a.q_pe = s.Input(DType::kF32, {3, 4, 3});
        },
        kInvalid,
        {"q_pe", "R_pe = 2"}},
       {[](Args& a, TensorStore&) { a.q_pe = {}; }, kInvalid, {"q_lat", "R_kv + R_pe = 8"}},
       {[](Args& a, TensorStore&) { a.query_start_loc = {}; }, kInvalid, {"T = 3", "R = 2"}},
       {[](Args& a, TensorStore& s) {
          a.query_start_loc = s.Ints({0, 3, 2});
        },
        kInvalid,
        {"query_start_loc[2] is 2, below 3"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {3, 4, 8});
        },
        kInvalid,
        {"Dv = 6"}},
       {[](Args& a, TensorStore& s) { a.cache = NhdCache(s); }, kInvalid, {"layout nhd", "MLA"}}});
}

TEST(ChecksTest, SparseMlaDecodeRefuses) {
  using Args = SparseMlaDecodeArgs;
  ExpectRefused<Args>("SparseMlaDecode",
                      {{[](Args& a, TensorStore& s) {
                          a.q = s.Input(DType::kF32, {2, 4, 8});
                        },
                        kInvalid,
                        {"q is", "[B, s_q, H, D]"}},
                       {[](Args& a, TensorStore& s) {
                          a.q = s.Input(DType::kF32, {2, 2, 4, 8});
                        },
                        kInvalid,
                        {"s_q = 1"}},
                       {[](Args& a, TensorStore& s) {
                          a.main.indices = s.Input(DType::kI64, {2, 1, 3});
                        },
                        kInvalid,
                        {"indices is i64", "i32"}},
                       {[](Args& a, TensorStore& s) {
                          a.main.topk_len = s.Ints({4, 0});
                        },
                        kInvalid,
                        {"topk_len[0] is 4", "K = 3"}},
                       {[](Args& a, TensorStore& s) {
                          a.main.topk_len = s.Ints({-1, 0});
                        },
                        kInvalid,
                        {"topk_len[0] is -1"}},
                       {[](Args& a, TensorStore& s) {
                          const TensorView k = s.Input(DType::kF32, {6, 4, 10});
                          a.extra.cache = {KvLayout::kMlaLatent, k, *k.Slice(2, 0, 6)};
                        },
                        kInvalid,
                        {"extra.cache has rows of 10"}},
                       {[](Args& a, TensorStore&) { a.extra.cache = {}; },
                        kInvalid,
                        {"extra.indices is given without"}},
                       {[](Args& a, TensorStore&) {
                          a.extra.cache.k.rank = 2;
                          a.extra.cache.k.extent[2] = 1;
                        },
                        kInvalid,
                        {"extra.cache.k is"}},
                       {[](Args& a, TensorStore&) { a.scale = 0; }, kInvalid, {"scale is 0"}},
                       {[](Args& a, TensorStore& s) {
                          a.sinks = s.Floats({0, 0, 0, kNan});
                        },
                        kInvalid,
                        {"sinks[3] is NaN"}},
                       {[](Args& a, TensorStore& s) { a.kv_scale = s.Floats({1}); },
                        kInvalid,
                        {"kv_scale is given"}},
                       {[](Args& a, TensorStore& s) {
                          a.out = s.Output(DType::kF32, {2, 1, 4, 8});
                        },
                        kInvalid,
                        {"Dv = 6"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // K = 0
    a.main.indices = s.Input(DType::kI32, {2, 1, 0});
    a.main.topk_len = {};
  });
}

TEST(ChecksTest, SparseMlaPrefillRefuses) {
  using Args = SparseMlaPrefillArgs;
  ExpectRefused<Args>(
      "SparseMlaPrefill",
      {{[](Args& a, TensorStore& s) {
          a.kv = s.Input(DType::kF32, {5, 2, 8});
        },
        kInvalid,
        {"kv is", "one KV head"}},
       {[](Args& a, TensorStore& s) {
          a.kv = s.Input(DType::kF32, {5, 1, 6});
        },
        kInvalid,
        {"D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.indices = s.Input(DType::kI32, {3, 1, 3});
        },
        kInvalid,
        {"T = 2"}},
       {[](Args& a, TensorStore& s) {
          a.topk_len = s.Ints({0, 5});
        },
        kInvalid,
        {"topk_len[1] is 5"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {2, 4, 9});
        },
        kInvalid,
        {"rows of 9", "D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.max_logits = s.Output(DType::kF32, {2, 3});
        },
        kInvalid,
        {"max_logits", "H = 4"}},
       {[](Args& a, TensorStore&) { a.scale = kInf; }, kInvalid, {"scale is inf"}},
       {[](Args& a, TensorStore& s) { a.sinks = s.Floats({0}); }, kInvalid, {"sinks has 1"}}});
}

TEST(ChecksTest, MergeStatesRefuses) {
  using Args = MergeStatesArgs;
  ExpectRefused<Args>(
      "MergeStates",
      {{[](Args& a, TensorStore& s) {
          a.lses = s.Input(DType::kF32, {2, 4, 3});
        },
        kInvalid,
        {"outs", "T = 4"}},
       {[](Args& a, TensorStore& s) {
          a.lses = s.Input(DType::kF64, {2, 3, 4});
        },
        kInvalid,
        {"lses is f64"}},
       {[](Args& a, TensorStore& s) {
          a.outs = s.Input(DType::kF32, {0, 3, 4, 8});
          a.lses = s.Input(DType::kF32, {0, 3, 4});
        },
        kInvalid,
        {"number of states is 0"}},
       {[](Args& a, TensorStore&) { a.tokens_with_context = 4; },
        kInvalid,
        {"tokens_with_context is 4", "T = 3"}},
       {[](Args& a, TensorStore&) { a.tokens_with_context = -2; }, kInvalid, {"is -2"}},
       {[](Args& a, TensorStore& s) {
          const TensorView lses = s.Input(DType::kF32, {2, 3, 4});
          std::memcpy(lses.At(1, 0, 2), &kInf, sizeof(kInf));
          a.lses = lses;
        },
        kInvalid,
        {"lses[1][0][2] is infinity"}},
       {[](Args& a, TensorStore& s) {
          a.sinks = s.Floats({1, 1, 1});
        },
        kInvalid,
        {"sinks has 3"}},
       {[](Args& a, TensorStore&) { a.out_scale = kInf; }, kInvalid, {"out_scale is inf"}},
       {[](Args& a, TensorStore& s) {  // shifted by a row: no state
          const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
          a.outs = states;
          a.out = *states.Reshape({6, 4, 8})->Slice(0, 1, 4);
        },
        kInvalid,
        {"out shares memory with outs"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // in place
    const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
    a.outs = states;
    a.out = *states.Select(0, 1);
  });
}

TEST(ChecksTest, GatherCacheRefuses) {
  using Args = GatherCacheArgs;
  ExpectRefused<Args>(
      "GatherCache",
      {{[](Args& a, TensorStore& s) {
          a.lengths = s.Ints({7, 3});
        },
        kInvalid,
        {"lengths[0] is 7"}},
       {[](Args& a, TensorStore& s) {
          a.lengths = s.Ints({1, -3});
        },
        kInvalid,
        {"lengths[1] is -3"}},
       {[](Args& a, TensorStore& s) {
          a.seq_lens = s.Ints({6, -3});
        },
        kInvalid,
        {"seq_lens[1] is -3"}},
       {[](Args& a, TensorStore&) { a.row_offset = 2; }, kExhausted, {"M = 6", "needs 7"}},
       {[](Args& a, TensorStore&) { a.row_offset = INT64_MAX; }, kExhausted, {"M = 6"}},
       {[](Args& a, TensorStore&) { a.row_offset = -1; }, kInvalid, {"row_offset is -1"}},
       {[](Args& a, TensorStore& s) {
          a.seq_lens = s.Ints({9, 3});
        },
        kRange,
        {"needs 3"}},
       {[](Args& a, TensorStore& s) {
          a.block_table = s.Values<int32_t>({1, 9, 3, 0}, {2, 2});
        },
        kRange,
        {"block_table[0][1] is 9"}},
       {[](Args& a, TensorStore&) { a.out_v = {}; }, kInvalid, {"out_v is absent"}},
       {[](Args& a, TensorStore& s) { a.cache = LatentCache(s); }, kInvalid, {"out is"}},
       {[](Args& a, TensorStore&) { a.out_v = a.out; }, kInvalid, {"shares memory"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // blocks before the gathered tokens
    a.lengths = s.Ints({2, 3});
    a.block_table = s.Values<int32_t>({-1, 2, 3, -1}, {2, 2});
  });
}

TEST(ChecksTest, SelectHkvdRefuses) {
  using Args = SelectHkvdArgs;
  ExpectRefused<Args>(
      "SelectHkvd",
      {{[](Args& a, TensorStore&) { a.suffix_len = 0; }, kInvalid, {"suffix_len is 0"}},
       {[](Args& a, TensorStore&) { a.suffix_len = 6; }, kInvalid, {"suffix_len is 6", "n = 5"}},
       {[](Args& a, TensorStore&) { a.ratio = -0.1; }, kInvalid, {"ratio is -0.1"}},
       {[](Args& a, TensorStore&) { a.ratio = 1.5; }, kInvalid, {"ratio is 1.5"}},
       {[](Args& a, TensorStore&) { a.ratio = kNan; }, kInvalid, {"ratio is nan"}},
       {[](Args& a, TensorStore& s) {
          a.v_old = s.Input(DType::kF32, {4, 2, 8});
        },
        kInvalid,
        {"v_old", "n = 5"}},
       {[](Args& a, TensorStore& s) { a.imp = s.Output(DType::kI32, {2}); },
        kExhausted,
        {"imp has 2", "take 3"}},
       {[](Args& a, TensorStore& s) { a.imp = s.Output(DType::kI64, {3}); },
        kInvalid,
        {"imp is i64"}},
       {[](Args& a, TensorStore& s) { a.diffs = s.Output(DType::kF32, {5}); },
        kInvalid,
        {"diffs", "n - suffix_len = 4"}}});
}

TEST(ChecksTest, FuseKvRefuses) {
  using Args = FuseKvArgs;
  ExpectRefused<Args>("FuseKv",
                      {{[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({1, 5});
                        },
                        kRange,
                        {"imp[1] is 5", "n = 5"}},
                       {[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({-1, 2});
                        },
                        kRange,
                        {"imp[0] is -1"}},
                       {[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({2, 2});
                        },
                        kInvalid,
                        {"imp has 2 twice"}},
                       {[](Args& a, TensorStore& s) { a.imp = s.Ints({2}); }, kInvalid, {"M = 1"}},
                       {[](Args& a, TensorStore& s) {
                          a.v_old = s.Output(DType::kF32, {4, 2, 8});
                        },
                        kInvalid,
                        {"v_old", "n = 5"}},
                       {[](Args& a, TensorStore& s) {
                          a.k_new = s.Input(DType::kF16, {2, 2, 8});
                        },
                        kInvalid,
                        {"k_new is f16", "f32"}},
                       {[](Args& a, TensorStore&) { a.k_new = *a.k_old.Slice(0, 0, 2); },
                        kInvalid,
                        {"k_old shares memory with k_new"}}});
}

TEST(ChecksTest, RotateKeysRefuses) {
  using Args = RotateKeysArgs;
  ExpectRefused<Args>(
      "RotateKeys",
      {{[](Args& a, TensorStore& s) { a.positions = s.Ints({1}); }, kInvalid, {"n = 2"}},
       {[](Args& a, TensorStore& s) {
          a.from_positions = s.Floats({1, 2});
        },
        kInvalid,
        {"from_positions is f32"}},
       {[](Args& a, TensorStore&) { a.theta = 0; }, kInvalid, {"theta is 0"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = 3; }, kInvalid, {"rotary_dim is 3"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = 10; }, kInvalid, {"rotary_dim is 10", "D = 8"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = -2; }, kInvalid, {"rotary_dim is -2"}},
       {[](Args& a, TensorStore& s) {
          const TensorView keys = s.Output(DType::kF32, {3, 2, 8});
          a.in = *keys.Slice(0, 0, 2);
          a.out = *keys.Slice(0, 1, 3);
        },
        kInvalid,
        {"out shares memory with in"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore&) { a.in = a.out; });
}

// AT-5: only for tensors on a CUDA device, where indices are not read.
TEST(ChecksTest, CudaNeedsAlignedTensors) {
  TensorStore store;
  alignas(16) static std::byte buffer[4096];
  PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
  const DeviceId cuda = {DeviceKind::kCuda, 0};
  int64_t at = 0;
  const auto place = [&](auto view) {
    if (view.absent()) return view;
    view.data = buffer + at;
    view.device = cuda;
    at += (view.num_elements() * ElementBytes(view.dtype) + 15) / 16 * 16;
    return view;
  };
  for (ConstTensorView* view : {&args.q, &args.cache.k, &args.cache.v}) *view = place(*view);
  args.block_table = place(args.block_table);
  args.seq_lens = place(args.seq_lens);
  args.out = place(args.out);
  args.lse = place(args.lse);
  ASSERT_LE(at, static_cast<int64_t>(sizeof(buffer)));
  args.max_seq_len = 1;  // lengths are on the device: nobody can tell
  const ExecContext context = {.device = cuda};
  EXPECT_EQ(Check(context, args), absl::OkStatus());
  EXPECT_THAT(std::string(Check({}, args).message()), HasSubstr("the context is on host"));

  PagedDecodeArgs bad = args;
  bad.q.data += 4;
  EXPECT_THAT(std::string(Check(context, bad).message()),
              HasSubstr("q begins 4 bytes past a multiple of 16"));
  bad = args;
  bad.q.stride[1] = 7;
  EXPECT_THAT(std::string(Check(context, bad).message()),
              HasSubstr("q has stride 7 in dimension 1"));
  bad = args;
  bad.out.device.ordinal = 1;
  EXPECT_THAT(std::string(Check(context, bad).message()),
              HasSubstr("out is on cuda:1; the context is on cuda:0"));
}

}  // namespace
}  // namespace kvblocks::attention
