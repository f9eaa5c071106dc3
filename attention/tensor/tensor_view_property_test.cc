// The view algebra against lists of addresses: a view is the list of its elements' addresses in
// row-major order, and each operation is what it does to that list.

#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/tensor_view.h"
#include "tests/property/check_property.h"

namespace kvblocks::attention {
namespace {

using property::CheckProperty;
using Index = std::vector<int64_t>;

int64_t Draw(int64_t low, int64_t high) { return *rc::gen::inRange<int64_t>(low, high + 1); }

// Memory that views point into but nobody reads.
alignas(16) std::byte g_memory[1 << 16];

std::vector<int64_t> ExtentsOf(const ConstTensorView& view) {
  return {view.extent.begin(), view.extent.begin() + view.rank};
}

// Calls visit(index) for every index of the extents in row-major order.
template <typename Visit>
void ForEachIndex(const std::vector<int64_t>& extents, const Visit& visit) {
  for (const int64_t extent : extents) {
    if (extent == 0) return;
  }
  Index index(extents.size(), 0);
  while (true) {
    visit(index);
    int dim = static_cast<int>(extents.size()) - 1;
    while (dim >= 0 && ++index[dim] == extents[dim]) index[dim--] = 0;
    if (dim < 0) return;
  }
}

// Bytes from g_memory to an element.
int64_t AddressOf(const ConstTensorView& view, const Index& index) {
  int64_t elements = 0;
  for (size_t i = 0; i < index.size(); ++i) elements += index[i] * view.stride[i];
  return view.data - g_memory + elements * ElementBytes(view.dtype);
}

std::vector<int64_t> Addresses(const ConstTensorView& view) {
  std::vector<int64_t> addresses;
  ForEachIndex(ExtentsOf(view),
               [&](const Index& index) { addresses.push_back(AddressOf(view, index)); });
  return addresses;
}

// What always holds of a view that an operation returns.
void ExpectCanonical(const ConstTensorView& view) {
  int64_t dense = 1;
  for (int i = kMaxRank - 1; i >= view.rank; --i) {
    RC_ASSERT(view.extent[i] == 1);
    RC_ASSERT(view.stride[i] == 0);
  }
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.extent[i] == 1) RC_ASSERT(view.stride[i] == dense);
    dense = view.extent[i] * view.stride[i];
  }
}

// Strides that make sense and strides that do not, broadcasts among them.
TensorView DrawView() {
  const DType dtypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64};
  const int rank = static_cast<int>(Draw(0, 5));
  std::vector<int64_t> extents(rank), strides(rank);
  for (int64_t& extent : extents) extent = Draw(0, 9) == 0 ? 0 : Draw(1, 4);
  if (Draw(0, 1) == 0) {
    for (int64_t& stride : strides) stride = Draw(0, 8);
  } else {
    int64_t next = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (Draw(0, 3) == 0) next += Draw(0, 2);
      strides[i] = Draw(0, 7) == 0 ? 0 : next;
      next *= std::max<int64_t>(extents[i], 1);
    }
  }
  const auto view =
      TensorView::Make(g_memory + 8 * Draw(0, 2), dtypes[Draw(0, 3)], extents, strides);
  RC_ASSERT(view.ok());
  ExpectCanonical(*view);
  return *view;
}

TEST(TensorViewPropertyTest, SliceAndSelectKeepTheirIndices) {
  CheckProperty(1000, [] {
    const TensorView view = DrawView();
    RC_PRE(view.rank > 0);
    const int dim = static_cast<int>(Draw(0, view.rank - 1));
    const int64_t begin = Draw(0, view.extent[dim]), end = Draw(begin, view.extent[dim]);
    std::vector<int64_t> sliced, selected;
    ForEachIndex(ExtentsOf(view), [&](const Index& index) {
      if (index[dim] >= begin && index[dim] < end) sliced.push_back(AddressOf(view, index));
      if (index[dim] == begin) selected.push_back(AddressOf(view, index));
    });
    const auto slice = view.Slice(dim, begin, end);
    RC_ASSERT(slice.ok());
    ExpectCanonical(*slice);
    RC_ASSERT(Addresses(*slice) == sliced);
    const auto select = view.Select(dim, begin);
    RC_ASSERT(select.ok() == (begin < view.extent[dim]));
    if (!select.ok()) return;
    ExpectCanonical(*select);
    RC_ASSERT(select->rank == view.rank - 1);
    RC_ASSERT(Addresses(*select) == selected);
  });
}

TEST(TensorViewPropertyTest, PermuteMovesDimensionsAndUnsqueezeAddsNone) {
  CheckProperty(1000, [] {
    const TensorView view = DrawView();
    std::vector<int> order(view.rank);
    std::iota(order.begin(), order.end(), 0);
    for (int i = view.rank - 1; i > 0; --i) std::swap(order[i], order[Draw(0, i)]);
    const auto permuted = view.Permute(order);
    RC_ASSERT(permuted.ok());
    ExpectCanonical(*permuted);
    std::vector<int64_t> expected;
    ForEachIndex(ExtentsOf(*permuted), [&](const Index& index) {
      Index original(index.size());
      for (int i = 0; i < view.rank; ++i) original[order[i]] = index[i];
      expected.push_back(AddressOf(view, original));
    });
    RC_ASSERT(Addresses(*permuted) == expected);

    const auto wider = view.Unsqueeze(static_cast<int>(Draw(0, view.rank)));
    RC_ASSERT(wider.ok());
    ExpectCanonical(*wider);
    RC_ASSERT(wider->rank == view.rank + 1);
    RC_ASSERT(Addresses(*wider) == Addresses(view));
  });
}

// Extents with the given product, of at most kMaxRank dimensions.
std::vector<int64_t> DrawFactors(int64_t product) {
  std::vector<int64_t> extents;
  while (extents.size() + 1 < kMaxRank && (product > 1 || Draw(0, 2) == 0)) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= product; ++d) {
      if (product % d == 0) divisors.push_back(d);
    }
    if (divisors.empty()) divisors.push_back(0);
    const int64_t factor = divisors[Draw(0, divisors.size() - 1)];
    extents.push_back(factor);
    if (factor == 0) break;
    product /= factor;
  }
  if (product != 1) extents.push_back(product);
  return extents;
}

// Both ways: what is a view is found, what is not is refused.
TEST(TensorViewPropertyTest, ReshapeSucceedsExactlyIfStridesExist) {
  CheckProperty(3000, [] {
    const TensorView view = DrawView();
    const std::vector<int64_t> extents = DrawFactors(view.num_elements());
    const auto reshaped = view.Reshape(extents);
    const std::vector<int64_t> addresses = Addresses(view);
    // If strides exist, they are the distances from the first element to the next in each
    // dimension.
    bool exists = true;
    if (!addresses.empty()) {
      Index step(extents.size());
      int64_t dense = 1;
      for (int i = static_cast<int>(extents.size()) - 1; i >= 0; --i) {
        step[i] = extents[i] > 1 ? addresses[dense] - addresses[0] : 0;
        exists = exists && step[i] >= 0;
        dense *= extents[i];
      }
      size_t at = 0;
      ForEachIndex(extents, [&](const Index& index) {
        int64_t address = addresses[0];
        for (size_t i = 0; i < index.size(); ++i) address += index[i] * step[i];
        exists = exists && address == addresses[at++];
      });
    }
    RC_ASSERT(reshaped.ok() == exists);
    if (!exists) return;
    ExpectCanonical(*reshaped);
    RC_ASSERT(ExtentsOf(*reshaped) == extents);
    RC_ASSERT(Addresses(*reshaped) == addresses);
  });
}

TEST(TensorViewPropertyTest, SplitLastKeepsElements) {
  CheckProperty(500, [] {
    const TensorView view = DrawView();
    RC_PRE(view.rank > 0);
    const int64_t inner = Draw(1, 4);
    const auto split = view.SplitLast(inner);
    RC_ASSERT(split.ok() == (view.extent[view.rank - 1] % inner == 0));
    if (!split.ok()) return;
    ExpectCanonical(*split);
    RC_ASSERT(split->extent[split->rank - 1] == inner);
    RC_ASSERT(Addresses(*split) == Addresses(view));
  });
}

TEST(TensorViewPropertyTest, BitcastKeepsBytes) {
  CheckProperty(1500, [] {
    const TensorView view = DrawView();
    const DType dtypes[] = {DType::kU8, DType::kF8E4M3, DType::kF16, DType::kF32, DType::kI64};
    const DType to = dtypes[Draw(0, 4)];
    const auto cast = view.Bitcast(to);
    if (ElementBytes(to) == ElementBytes(view.dtype)) RC_ASSERT(cast.ok());
    if (!cast.ok()) return;
    RC_ASSERT(cast->dtype == to);
    RC_ASSERT(cast->rank == view.rank);
    const auto bytes_of = [](const ConstTensorView& of) {
      std::vector<int64_t> bytes;
      for (const int64_t address : Addresses(of)) {
        for (int64_t i = 0; i < ElementBytes(of.dtype); ++i) bytes.push_back(address + i);
      }
      return bytes;
    };
    RC_ASSERT(bytes_of(*cast) == bytes_of(view));
  });
}

// Extents and strides of any size: the answer is that of 128-bit arithmetic.
TEST(TensorViewPropertyTest, ValidateAndMakeAgreeWithWideArithmetic) {
  CheckProperty(5000, [] {
    const auto wild = [] {
      const int64_t kind = Draw(0, 9);
      if (kind < 4) return Draw(0, 5);
      if (kind < 8) return (int64_t{1} << Draw(0, 62)) - Draw(0, 1);
      if (kind == 8) return std::numeric_limits<int64_t>::max() - Draw(0, 3);
      return -Draw(0, 2);
    };
    const int rank = static_cast<int>(Draw(0, kMaxRank));
    std::vector<int64_t> extents(rank), strides(rank);
    for (int64_t& extent : extents) extent = wild();
    for (int64_t& stride : strides) stride = wild();
    const DType dtypes[] = {DType::kU8, DType::kF16, DType::kF64};
    const DType dtype = dtypes[Draw(0, 2)];

    using Wide = __int128;
    constexpr Wide kMost = std::numeric_limits<int64_t>::max();
    bool negative = false, empty = false;
    // Saturated far above 2^63 and far below 2^127.
    Wide elements = 1, last = 0;
    for (int i = 0; i < rank; ++i) {
      negative = negative || extents[i] < 0 || strides[i] < 0;
      empty = empty || extents[i] == 0;
    }
    if (!negative && !empty) {
      for (int i = 0; i < rank; ++i) {
        elements = std::min<Wide>(elements * extents[i], kMost + 1);
        last += std::min<Wide>(Wide{extents[i] - 1} * strides[i], 8 * kMost);
      }
    }
    const Wide span = empty ? 0 : (last + 1) * ElementBytes(dtype);
    const bool legal = !negative && (empty || (elements <= kMost && span <= kMost));

    const auto made = TensorView::Make(g_memory, dtype, extents, strides);
    RC_ASSERT(made.ok() == legal);
    if (legal) {
      // Canonical strides never reach farther.
      RC_ASSERT(made->Validate(static_cast<int64_t>(span)).ok());
      RC_ASSERT(*made->SpanBytes() == static_cast<int64_t>(span));
      if (span > 0) RC_ASSERT(!made->Validate(static_cast<int64_t>(span) - 1).ok());
      RC_ASSERT(made->empty() == empty);
      RC_ASSERT(made->num_elements() == (empty ? 0 : static_cast<int64_t>(elements)));
      // None of these may overflow on the way to its answer.
      (void)made->Reshape({made->num_elements()});
      if (rank > 0) (void)made->SplitLast(2);
      for (int i = 0; i < rank; ++i) {
        (void)made->Slice(i, extents[i] / 2, extents[i]);
        (void)made->Select(i, extents[i] - 1);
      }
      (void)made->Bitcast(DType::kU8);
      (void)made->DebugString();
      for (const TokenLayout layout :
           {TokenLayout::kTND, TokenLayout::kBSND, TokenLayout::kBSH, TokenLayout::kBNSD}) {
        (void)AsTokens(*made, layout, Draw(0, 3));
      }
    }
    // A view put together by hand, as Validate may get it.
    TensorView view;
    view.data = g_memory;
    view.dtype = dtype;
    view.rank = static_cast<int8_t>(rank);
    for (int i = 0; i < rank; ++i) {
      view.extent[i] = extents[i];
      view.stride[i] = strides[i];
    }
    RC_ASSERT(view.Validate(std::numeric_limits<int64_t>::max()).ok() == legal);
  });
}

// Token t of sequence t / s, by the definition of each input layout.
TEST(TensorViewPropertyTest, AsTokensFindsEveryElement) {
  CheckProperty(1000, [] {
    const int64_t b = Draw(1, 3), s = Draw(1, 3), heads = Draw(1, 3), dim = Draw(1, 3);
    const TokenLayout layouts[] = {TokenLayout::kTND, TokenLayout::kBSND, TokenLayout::kBSH,
                                   TokenLayout::kBNSD};
    const TokenLayout layout = layouts[Draw(0, 3)];
    std::vector<int64_t> extents;
    switch (layout) {
      case TokenLayout::kTND:
        extents = {b * s, heads, dim};
        break;
      case TokenLayout::kBSND:
        extents = {b, s, heads, dim};
        break;
      case TokenLayout::kBSH:
        extents = {b, s, heads * dim};
        break;
      case TokenLayout::kBNSD:
        extents = {b, heads, s, dim};
        break;
    }
    std::vector<int64_t> strides(extents.size());
    int64_t next = 1;
    for (int i = static_cast<int>(extents.size()) - 1; i >= 0; --i) {
      if (Draw(0, 3) == 0) next += Draw(0, 2);
      strides[i] = next;
      next *= extents[i];
    }
    const auto input = *TensorView::Make(g_memory, DType::kF16, extents, strides);
    const auto tokens = AsTokens(input, layout, heads);
    // Tokens of different sequences must follow each other at one distance.
    const bool dense = b == 1 || s == 1 || input.stride[0] == s * input.stride[1];
    RC_ASSERT(tokens.ok() == (layout == TokenLayout::kTND || dense) ||
              layout == TokenLayout::kBNSD);
    if (layout == TokenLayout::kBNSD) RC_ASSERT(tokens.ok() == (b == 1));
    if (!tokens.ok()) return;
    RC_ASSERT(ExtentsOf(*tokens) == (std::vector<int64_t>{b * s, heads, dim}));
    ForEachIndex({b * s, heads, dim}, [&](const Index& index) {
      const int64_t t = index[0], h = index[1], d = index[2];
      Index in;
      switch (layout) {
        case TokenLayout::kTND:
          in = {t, h, d};
          break;
        case TokenLayout::kBSND:
          in = {t / s, t % s, h, d};
          break;
        case TokenLayout::kBSH:
          in = {t / s, t % s, h * dim + d};
          break;
        case TokenLayout::kBNSD:
          in = {t / s, h, t % s, d};
          break;
      }
      RC_ASSERT(AddressOf(*tokens, index) == AddressOf(input, in));
    });
  });
}

}  // namespace
}  // namespace kvblocks::attention
