#include "kvblocks/tensor_view.h"

#include <limits>
#include <vector>

#include "attention/testing/says.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::vector<int64_t> Strides(const ConstTensorView& view) {
  return {view.stride.begin(), view.stride.begin() + view.rank};
}

class TensorViewTest : public ::testing::Test {
 protected:
  TensorViewTest() : numbers_(1000) {
    for (int i = 0; i < 1000; ++i) numbers_[i] = static_cast<float>(i);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(numbers_.data()); }
  TensorView View(std::initializer_list<int64_t> extents,
                  std::initializer_list<int64_t> strides = {}) {
    return *TensorView::Make(data(), DType::kF32, {extents.begin(), extents.size()},
                             {strides.begin(), strides.size()});
  }
  static absl::Status MakeStatus(std::initializer_list<int64_t> extents,
                                 std::initializer_list<int64_t> strides = {},
                                 std::byte* data = nullptr) {
    return TensorView::Make(data, DType::kF32, {extents.begin(), extents.size()},
                            {strides.begin(), strides.size()})
        .status();
  }
  std::vector<float> numbers_;
};

TEST_F(TensorViewTest, StridesOfSingleElementsAreCanonical) {
  EXPECT_EQ(Strides(View({2, 1, 4}, {20, 977, 1})), (std::vector<int64_t>{20, 4, 1}));
  EXPECT_EQ(Strides(View({1, 1}, {5, 7})), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(Strides(*View({4, 5}).Slice(0, 2, 3)), (std::vector<int64_t>{5, 1}));
}

TEST_F(TensorViewTest, MakeNamesWhatItRefuses) {
  const auto expect = [](const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status, Says(text));
  };
  expect(MakeStatus({1, 1, 1, 1, 1, 1, 1}), "rank 7");
  expect(MakeStatus({2, -3}), "extent -3 of dimension 1");
  expect(MakeStatus({2, 3}, {3, -1}, data()), "stride -1 of dimension 1");
  expect(MakeStatus({2, 3}, {3}, data()), "1 strides for 2 extents");
  expect(MakeStatus({int64_t{1} << 32, int64_t{1} << 31}, {}, data()), "2^63");
  expect(MakeStatus({2}, {kHuge}, data()), "2^63");
  expect(MakeStatus({2, 3}), "null data");
}

TEST_F(TensorViewTest, EmptyViewsNeedNoDataAndMayBeHugeOtherwise) {
  EXPECT_TRUE(MakeStatus({0, 3}).ok());
  const int64_t big = int64_t{1} << 40;
  const auto view = TensorView::Make(nullptr, DType::kF32, {big, big, 0}, {});
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(view->empty());
  EXPECT_EQ(view->num_elements(), 0);
  EXPECT_TRUE(view->contiguous());
  EXPECT_EQ(*view->SpanBytes(), 0);
  EXPECT_TRUE(view->Validate(0).ok());
  const auto tokens = AsTokens(*TensorView::Make(nullptr, DType::kF32, {big, big, 0, 4}, {}),
                               TokenLayout::kBSND, 0);
  EXPECT_FALSE(tokens.ok());
}

TEST_F(TensorViewTest, EmptyViewsStayWhereTheyAre) {
  // Where nothing is, strides may be of any size: stepping along them would overflow.
  const TensorView view = View({0, 5}, {1, kHuge / 2});
  const auto slice = view.Slice(1, 3, 4);
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->data, data());
  const auto row = view.Select(1, 4);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->data, data());
}

TEST_F(TensorViewTest, BroadcastsHaveACountOfElementsToo) {
  const int64_t big = int64_t{1} << 40;
  TensorView view = View({4}, {0});
  view.rank = 2;
  view.extent = {big, big, 1, 1, 1, 1};
  view.stride = {};
  EXPECT_EQ(view.Validate(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(View({big, 1 << 22}, {0, 1}).Bitcast(DType::kU8).ok());
}

TEST_F(TensorViewTest, AbsentIsNotEmpty) {
  EXPECT_TRUE(TensorView().absent());
  EXPECT_FALSE(TensorView().empty());
  EXPECT_FALSE(View({3}).absent());
  EXPECT_FALSE(TensorView::Make(nullptr, DType::kF32, {0}, {})->absent());
}

TEST_F(TensorViewTest, ValidateFindsTheFarthestElement) {
  const TensorView view = View({2, 3}, {100, 10});
  EXPECT_EQ(*view.SpanBytes(), 121 * 4);
  EXPECT_TRUE(view.Validate(121 * 4).ok());
  EXPECT_EQ(view.Validate(121 * 4 - 1).code(), absl::StatusCode::kOutOfRange);
  TensorView broken = view;
  broken.extent[0] = -1;
  EXPECT_FALSE(broken.Validate(1000).ok());
  broken = view;
  broken.stride[1] = kHuge;
  EXPECT_FALSE(broken.Validate(kHuge).ok());
  broken = view;
  broken.data = nullptr;
  EXPECT_FALSE(broken.Validate(1000).ok());
  broken = view;
  broken.rank = 9;
  EXPECT_FALSE(broken.Validate(1000).ok());
}

TEST_F(TensorViewTest, ReshapeNeverJoinsABroadcastWithMemory) {
  // Elements 0 0 1 1 2 2, which no stride of one dimension gives.
  const TensorView pairs = View({3, 2}, {1, 0});
  EXPECT_FALSE(pairs.Reshape({6}).ok());
  EXPECT_TRUE(pairs.Reshape({3, 1, 2}).ok());
  EXPECT_FALSE(View({2, 3}, {0, 1}).Reshape({6}).ok());
  const TensorView same = View({2, 3}, {0, 0});
  ASSERT_TRUE(same.Reshape({3, 2}).ok());
  EXPECT_EQ(Strides(*same.Reshape({3, 2})), (std::vector<int64_t>{0, 0}));
}

TEST_F(TensorViewTest, HugeStridesDoNotOverflowTheAlgebra) {
  const int64_t far = int64_t{1} << 60;
  const auto view = TensorView::Make(data(), DType::kF8E4M3, {2, 4}, {7 * far, 1});
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(view->Reshape({2, 2, 2}).ok());
  EXPECT_FALSE(view->Reshape({8}).ok());
  const auto last = TensorView::Make(data(), DType::kF8E4M3, {4}, {2 * far});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_TRUE(last->Reshape({2, 2}).ok());
  EXPECT_TRUE(last->Reshape({4, 1}).ok());
  // What would join the outer dimension is beyond 2^63.
  const auto inner = TensorView::Make(data(), DType::kF8E4M3, {2, 2}, {1, 4 * far});
  ASSERT_TRUE(inner.ok()) << inner.status();
  EXPECT_FALSE(inner->Reshape({4}).ok());
  EXPECT_EQ(last->SplitLast(4)->extent[0], 1);
  EXPECT_EQ(last->SplitLast(2)->stride[0], 4 * far);
}

TEST_F(TensorViewTest, OutOfRangeDimensionsAndIndicesAreRefused) {
  const TensorView view = View({2, 3});
  EXPECT_FALSE(view.Slice(2, 0, 1).ok());
  EXPECT_FALSE(view.Slice(-1, 0, 1).ok());
  EXPECT_FALSE(view.Slice(1, 2, 4).ok());
  EXPECT_FALSE(view.Slice(1, 2, 1).ok());
  EXPECT_FALSE(view.Slice(1, -1, 1).ok());
  EXPECT_FALSE(view.Select(1, 3).ok());
  EXPECT_FALSE(view.Select(0, -1).ok());
  EXPECT_FALSE(view.Permute({0}).ok());
  EXPECT_FALSE(view.Permute({0, 0}).ok());
  EXPECT_FALSE(view.Permute({0, 2}).ok());
  EXPECT_FALSE(view.Unsqueeze(3).ok());
  EXPECT_FALSE(View({1, 1, 1, 1, 1, 1}).Unsqueeze(0).ok());
  EXPECT_FALSE(view.Reshape({5}).ok());
  EXPECT_FALSE(view.Reshape({-6}).ok());
  EXPECT_FALSE(view.SplitLast(2).ok());
  EXPECT_FALSE(view.SplitLast(0).ok());
}

TEST_F(TensorViewTest, BitcastGoesThroughBytes) {
  const TensorView view = View({2, 6}, {10, 1});
  const TensorView bytes = *view.Bitcast(DType::kU8);
  EXPECT_EQ(bytes.DebugString(), "u8[2, 24] strides [40, 1]");
  EXPECT_EQ(bytes.Bitcast(DType::kF16)->DebugString(), "f16[2, 12] strides [20, 1]");
  EXPECT_EQ(view.Bitcast(DType::kI32)->DebugString(), "i32[2, 6] strides [10, 1]");
  EXPECT_FALSE(view.Bitcast(DType::kF16).ok());
  EXPECT_FALSE(View({2, 6}, {10, 2}).Bitcast(DType::kU8).ok());
  EXPECT_FALSE(bytes.Slice(1, 0, 6)->Bitcast(DType::kF32).ok());  // 6 bytes
  EXPECT_FALSE(bytes.Slice(1, 1, 5)->Bitcast(DType::kF32).ok());  // not aligned
  EXPECT_TRUE(bytes.Slice(1, 4, 12)->Bitcast(DType::kF32).ok());
}

TEST_F(TensorViewTest, InputsThatAreNoTokensAreRefused) {
  const auto refused = [&](const TensorView& view, TokenLayout layout, int64_t heads) {
    const auto tokens = AsTokens(view, layout, heads);
    return tokens.status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(View({2, 2, 6, 4}), TokenLayout::kBNSD, 2));  // two sequences
  EXPECT_TRUE(refused(View({6, 2, 4}), TokenLayout::kTND, 3));      // another number of heads
  EXPECT_TRUE(refused(View({6, 8}), TokenLayout::kTND, 2));
  EXPECT_TRUE(refused(View({3, 2, 9}), TokenLayout::kBSH, 2));
  EXPECT_TRUE(refused(View({3, 2, 8}), TokenLayout::kBSH, 0));
  EXPECT_TRUE(refused(View({3, 2, 8}), TokenLayout::kBSND, 2));
  EXPECT_TRUE(refused(View({3, 2, 8}, {20, 8, 1}), TokenLayout::kBSH, 2));  // gaps between them
}

TEST_F(TensorViewTest, DeviceAndTypeTravelAlong) {
  const DeviceId cuda{DeviceKind::kCuda, 1};
  const auto view = *TensorView::Make(data(), DType::kBF16, {2, 4}, {}, cuda);
  EXPECT_EQ(view.Slice(0, 0, 1)->device, cuda);
  EXPECT_EQ(view.Reshape({8})->device, cuda);
  EXPECT_EQ(ConstTensorView(view).DebugString(), "bf16[2, 4] on cuda:1");
  EXPECT_EQ(Name(DeviceId{DeviceKind::kPinnedHost}), "pinned host");
  EXPECT_TRUE((DeviceId{DeviceKind::kPinnedHost}).on_host());
}

}  // namespace
}  // namespace kvblocks::attention
