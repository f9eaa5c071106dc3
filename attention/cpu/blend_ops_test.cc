// Selection, fusing and rotation on the host: EX-25, EX-32, and T-25 of the selection.

#include "kvblocks/attention_cpu.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Values of one head and one dimension whose squared differences from 0 are the squares of
// `values`.
std::vector<int32_t> Select(const std::vector<float>& values, double ratio, int64_t suffix_len,
                            uint32_t* flags = nullptr) {
  const int64_t n = static_cast<int64_t>(values.size());
  const std::vector<float> zeros(values.size());
  std::vector<int32_t> imp(HkvdCount(n, suffix_len, ratio) + suffix_len, -7);
  SelectHkvdArgs args;
  args.v_new = ViewOf(absl::MakeConstSpan(values), {n, 1, 1});
  args.v_old = ViewOf(absl::MakeConstSpan(zeros), {n, 1, 1});
  args.ratio = ratio;
  args.suffix_len = suffix_len;
  args.imp = ViewOf(absl::MakeSpan(imp));
  DeviceErrorFlags error_flags{flags};
  ExecContext context;
  context.error_flags = &error_flags;
  EXPECT_EQ(CpuReference().SelectHkvd(context, args), absl::OkStatus());
  return imp;
}

using Indices = std::vector<int32_t>;

TEST(SelectHkvdTest, Ex25Selection) {
  // Two heads of one dimension; V_new - V_old as (head 0, head 1).
  const std::vector<float> v_new = {0.5f, 0, 2, 0, 0, 0, 1, 1, 9, 9, 10, 0};
  const std::vector<float> v_old(12);
  std::vector<float> diffs(4);
  for (const auto& [ratio, expected] :
       {std::pair(0.16, Indices{4, 5}), {0.25, {1, 4, 5}}, {0.5, {1, 3, 4, 5}}}) {
    Indices imp(expected.size());
    SelectHkvdArgs args;
    args.v_new = ViewOf(absl::MakeConstSpan(v_new), {6, 2, 1});
    args.v_old = ViewOf(absl::MakeConstSpan(v_old), {6, 2, 1});
    args.ratio = ratio;
    args.suffix_len = 2;
    args.imp = ViewOf(absl::MakeSpan(imp));
    args.diffs = ViewOf(absl::MakeSpan(diffs));
    ASSERT_TRUE(CpuReference().SelectHkvd({}, args).ok());
    EXPECT_EQ(imp, expected) << ratio;
  }
  EXPECT_EQ(diffs, (std::vector<float>{0.25f, 4, 0, 2}));
}

TEST(SelectHkvdTest, Ex25CountsAreNotTruncated) {
  EXPECT_EQ(static_cast<int64_t>(0.29 * 100), 28);
  EXPECT_EQ(HkvdCount(101, 1, 0.29), 29);
  EXPECT_EQ(HkvdCount(2048, 64, 0.16), 317);
  EXPECT_EQ(HkvdCount(5, 5, 1.0), 0);
}

TEST(SelectHkvdTest, NanRanksAsInfinityAndIsFlagged) {
  uint32_t flags = 0;
  EXPECT_EQ(Select({1, 1e30f, kNan, kInf, 0, 0}, 0.4, 1, &flags), (Indices{2, 3, 5}));
  EXPECT_EQ(flags, kNonFiniteInput);
  flags = kBadSlot;
  EXPECT_EQ(Select({1, kInf, kNan, 0}, 0.34, 1, &flags), (Indices{1, 3}));
  EXPECT_EQ(flags, kBadSlot | kNonFiniteInput);
  flags = 0;
  // Flags may have no room.
  EXPECT_EQ(Select({1, kNan, 0}, 0.5, 1, nullptr), (Indices{1, 2}));
  // A NaN in the suffix is nobody's business.
  EXPECT_EQ(Select({1, 2, kNan}, 0.5, 1, &flags), (Indices{1, 2}));
  EXPECT_EQ(flags, 0);
}

TEST(SelectHkvdTest, LongerOutputKeepsItsRest) {
  const std::vector<float> v(4);
  std::vector<int32_t> imp(4, -7);
  SelectHkvdArgs args;
  args.v_new = args.v_old = ViewOf(absl::MakeConstSpan(v), {4, 1, 1});
  args.ratio = 0;
  args.imp = ViewOf(absl::MakeSpan(imp));
  ASSERT_TRUE(CpuReference().SelectHkvd({}, args).ok());
  EXPECT_EQ(imp, (Indices{3, -7, -7, -7}));
}

// T-25: selecting more rows never leaves a previously selected row unselected; and the selection is
// that of a plain sort, with any number of threads.
RC_GTEST_PROP(SelectHkvdPropertyTest, LargerRatiosKeepWhatSmallerOnesSelected, ()) {
  const auto codes = *rc::gen::container<std::vector<int>>(200, rc::gen::inRange(0, 12));
  const int64_t n = *rc::gen::inRange<int64_t>(1, 200);
  const int64_t suffix_len = *rc::gen::inRange<int64_t>(1, n + 1);
  std::vector<float> values(n);
  for (int64_t t = 0; t < n; ++t) values[t] = codes[t] == 11 ? kNan : static_cast<float>(codes[t]);
  const int64_t prefix = n - suffix_len;
  std::vector<int32_t> ranked(prefix);
  for (int64_t t = 0; t < prefix; ++t) ranked[t] = static_cast<int32_t>(t);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](int32_t a, int32_t b) { return codes[a] > codes[b]; });
  std::set<int32_t> before;
  for (const double ratio : {0.0, 0.05, 0.16, 0.29, 0.5, 0.9, 1.0}) {
    const std::vector<int32_t> imp = Select(values, ratio, suffix_len);
    const int64_t k = HkvdCount(n, suffix_len, ratio);
    RC_ASSERT(std::is_sorted(imp.begin(), imp.end()));
    const std::set<int32_t> now(imp.begin(), imp.end());
    RC_ASSERT(static_cast<int64_t>(now.size()) == k + suffix_len);
    RC_ASSERT(std::includes(now.begin(), now.end(), before.begin(), before.end()));
    std::set<int32_t> expected(ranked.begin(), ranked.begin() + k);
    for (int64_t t = prefix; t < n; ++t) expected.insert(static_cast<int32_t>(t));
    RC_ASSERT(now == expected);
    before = now;
  }
}

TEST(FuseKvTest, ReplacesSelectedRowsAndNothingElse) {
  std::vector<float> k_old(10), v_old(5);
  for (int i = 0; i < 10; ++i) k_old[i] = static_cast<float>(i);
  const std::vector<float> k_new = {100, 101, 102, 103}, v_new = {kNan, 200};
  const std::vector<int32_t> imp = {1, 4};
  FuseKvArgs args;
  args.imp = ViewOf(absl::MakeConstSpan(imp));
  args.k_new = ViewOf(absl::MakeConstSpan(k_new), {2, 2, 1});
  args.v_new = ViewOf(absl::MakeConstSpan(v_new), {2, 1, 1});
  args.k_old = ViewOf(absl::MakeSpan(k_old), {5, 2, 1});
  args.v_old = ViewOf(absl::MakeSpan(v_old), {5, 1, 1});
  // K and V have the same heads.
  EXPECT_EQ(CpuReference().FuseKv({}, args).code(), absl::StatusCode::kInvalidArgument);
  args.k_new = ViewOf(absl::MakeConstSpan(k_new), {2, 1, 2});
  args.k_old = ViewOf(absl::MakeSpan(k_old), {5, 1, 2});
  ASSERT_TRUE(CpuReference().FuseKv({}, args).ok());
  EXPECT_EQ(k_old, (std::vector<float>{0, 1, 100, 101, 4, 5, 6, 7, 102, 103}));
  EXPECT_TRUE(std::isnan(v_old[1]));
  EXPECT_EQ(v_old[4], 200);
  EXPECT_EQ(v_old[0], 0);
}

// One head; positions may be empty.
std::vector<float> Rotate(const std::vector<float>& rows, int64_t dim,
                          const std::vector<int32_t>& positions,
                          const std::vector<int32_t>& from = {}, double theta = 10000,
                          RotaryPairs pairs = RotaryPairs::kHalves, int64_t rotary_dim = 0) {
  std::vector<float> out(rows.size());
  const int64_t n = static_cast<int64_t>(positions.size());
  RotateKeysArgs args;
  args.in = ViewOf(absl::MakeConstSpan(rows), {n, 1, dim});
  args.positions = ViewOf(absl::MakeConstSpan(positions));
  if (!from.empty()) args.from_positions = ViewOf(absl::MakeConstSpan(from));
  args.theta = theta;
  args.pairs = pairs;
  args.rotary_dim = rotary_dim;
  args.out = ViewOf(absl::MakeSpan(out), {n, 1, dim});
  EXPECT_EQ(CpuReference().RotateKeys({}, args), absl::OkStatus());
  return out;
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6) << i;
}

TEST(RotateKeysTest, Ex32RopeDelta) {
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
    const std::vector<float> three = Rotate({1, 0}, 2, {3}, {}, 1, pairs);
    const std::vector<float> five = {0.2836622f, -0.9589243f};
    ExpectNear(Rotate(three, 2, {2}, {}, 1, pairs), five);
    ExpectNear(Rotate({1, 0}, 2, {5}, {}, 1, pairs), five);
    ExpectNear(Rotate(three, 2, {5}, {3}, 1, pairs), five);  // the delta form
    ExpectNear(Rotate({1, 0}, 2, {2}, {}, 1, pairs), {-0.4161468f, 0.9092974f});
  }
}

TEST(GatherRowsTest, TakesRowsOfAnyTypeAndStride) {
  const std::vector<float> in = {0, 1, 2, 3, 4, 5, 6, 7, 8, kNan, -0.0f, 11};
  const std::vector<int32_t> index = {2, 0, 2};
  std::vector<float> out(6, -1);
  GatherRowsArgs args;
  args.index = ViewOf(absl::MakeConstSpan(index));
  // Rows of two elements with a stride of two.
  args.in = *ViewOf(absl::MakeConstSpan(in), {3, 2, 2}).Select(2, 1);
  args.out = ViewOf(absl::MakeSpan(out), {3, 2});
  ASSERT_EQ(CpuReference().GatherRows({}, args), absl::OkStatus());
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[4]));
  EXPECT_EQ((std::vector<float>{out[1], out[2], out[3], out[5]}),
            (std::vector<float>{11, 1, 3, 11}));
  const std::vector<int64_t> slots = {70, 80, int64_t{9} << 40};
  std::vector<int64_t> taken(3);
  args.in = ViewOf(absl::MakeConstSpan(slots));
  args.out = ViewOf(absl::MakeSpan(taken));
  ASSERT_EQ(CpuReference().GatherRows({}, args), absl::OkStatus());
  EXPECT_EQ(taken, (std::vector<int64_t>{int64_t{9} << 40, 70, int64_t{9} << 40}));
}

TEST(RotateKeysTest, PairLayoutsAndFrequencies) {
  // theta 100 and four columns: angles p and p / 10.
  const float c0 = std::cos(2.0), s0 = std::sin(2.0), c1 = std::cos(0.2), s1 = std::sin(0.2);
  ExpectNear(Rotate({1, 0, 0, 0}, 4, {2}, {}, 100), {c0, 0, s0, 0});
  ExpectNear(Rotate({0, 1, 0, 0}, 4, {2}, {}, 100), {0, c1, 0, s1});
  ExpectNear(Rotate({0, 0, 0, 1}, 4, {2}, {}, 100), {0, -s1, 0, c1});
  const RotaryPairs interleaved = RotaryPairs::kInterleaved;
  ExpectNear(Rotate({1, 0, 0, 0}, 4, {2}, {}, 100, interleaved), {c0, s0, 0, 0});
  ExpectNear(Rotate({0, 0, 1, 0}, 4, {2}, {}, 100, interleaved), {0, 0, c1, s1});
}

TEST(RotateKeysTest, ColumnsPastTheRotaryPartAreCopiedBitForBit) {
  const std::vector<float> out =
      Rotate({1, 0, 7, -0.0f, 1e-42f}, 5, {3}, {}, 1, RotaryPairs::kHalves, /*rotary_dim=*/2);
  EXPECT_NEAR(out[0], std::cos(3.0), 1e-6);
  EXPECT_EQ(out[2], 7);
  EXPECT_TRUE(std::signbit(out[3]));
  EXPECT_EQ(out[4], 1e-42f);
}

TEST(RotateKeysTest, PositionZeroCopiesEvenInfinities) {
  const std::vector<float> out = Rotate({kInf, 1, 2, 3}, 2, {0, 4}, {0, 4});
  EXPECT_EQ(out, (std::vector<float>{kInf, 1, 2, 3}));
}

TEST(RotateKeysTest, InPlaceEqualsOutOfPlaceAndOverlapIsRefused) {
  std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<int32_t> positions = {7, 1};
  const std::vector<float> alone = Rotate({1, 2, 3, 4, 5, 6, 7, 8}, 4, positions);
  RotateKeysArgs args;
  args.out = ViewOf(absl::MakeSpan(rows).first(8), {2, 1, 4});
  args.positions = ViewOf(absl::MakeConstSpan(positions));
  args.in = ViewOf(absl::MakeConstSpan(rows).subspan(4, 8), {2, 1, 4});
  EXPECT_EQ(CpuReference().RotateKeys({}, args).code(), absl::StatusCode::kInvalidArgument);
  args.in = args.out;
  ASSERT_TRUE(CpuReference().RotateKeys({}, args).ok());
  EXPECT_EQ(std::vector<float>(rows.begin(), rows.begin() + 8), alone);
  EXPECT_EQ(rows[8], 9);
}

TEST(RotateKeysTest, PositionsMayBe64Bit) {
  const std::vector<float> in = {1, 0};
  const std::vector<int64_t> positions = {5};
  std::vector<float> out(2);
  RotateKeysArgs args;
  args.in = ViewOf(absl::MakeConstSpan(in), {1, 1, 2});
  args.positions = ViewOf(absl::MakeConstSpan(positions));
  args.out = ViewOf(absl::MakeSpan(out), {1, 1, 2});
  ASSERT_TRUE(CpuReference().RotateKeys({}, args).ok());
  ExpectNear(out, {0.2836622f, -0.9589243f});
  // Their difference may be beyond them.
  const std::vector<int64_t> last = {INT64_MAX}, first = {INT64_MIN};
  args.positions = ViewOf(absl::MakeConstSpan(last));
  args.from_positions = ViewOf(absl::MakeConstSpan(first));
  ASSERT_TRUE(CpuReference().RotateKeys({}, args).ok());
  ExpectNear(out, {static_cast<float>(std::cos(0x1p64)), static_cast<float>(std::sin(0x1p64))});
}

TEST(BlendOpsTest, ThreadsDoNotChangeResults) {
  constexpr int64_t kTokens = 300, kHeads = 2, kDim = 8;
  std::vector<float> now(kTokens * kHeads * kDim), then(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    now[i] = static_cast<float>(std::sin(0.37 * i));
    then[i] = static_cast<float>(std::cos(0.11 * i));
  }
  std::vector<int64_t> positions(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) positions[t] = 3 * t;
  ThreadPool pool(4);
  std::vector<int32_t> imp[2];
  std::vector<float> rotated[2];
  for (int i = 0; i < 2; ++i) {
    ExecContext context;
    if (i == 1) context.threads = &pool;
    imp[i].resize(HkvdCount(kTokens, 7, 0.3) + 7);
    rotated[i].resize(now.size());
    SelectHkvdArgs select;
    select.v_new = ViewOf(absl::MakeConstSpan(now), {kTokens, kHeads, kDim});
    select.v_old = ViewOf(absl::MakeConstSpan(then), {kTokens, kHeads, kDim});
    select.ratio = 0.3;
    select.suffix_len = 7;
    select.imp = ViewOf(absl::MakeSpan(imp[i]));
    ASSERT_TRUE(CpuReference().SelectHkvd(context, select).ok());
    RotateKeysArgs rotate;
    rotate.in = select.v_new;
    rotate.positions = ViewOf(absl::MakeConstSpan(positions));
    rotate.out = ViewOf(absl::MakeSpan(rotated[i]), {kTokens, kHeads, kDim});
    ASSERT_TRUE(CpuReference().RotateKeys(context, rotate).ok());
  }
  EXPECT_EQ(imp[0], imp[1]);
  EXPECT_EQ(rotated[0], rotated[1]);
}

}  // namespace
}  // namespace kvblocks::attention
