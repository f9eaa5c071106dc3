// CacheBlend's operations and GatherCache of CUDA against those of the CPU.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/cuda/kernels/blend.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {
namespace {

Tensor Normal(DType dtype, std::vector<int64_t> extents, std::mt19937_64& random) {
  Tensor tensor(dtype, std::move(extents));
  tensor.Set(NormalDraws(random, tensor.view.num_elements()));
  return tensor;
}

void ExpectSelectionOfTheCpu(const Tensor& now, const Tensor& then, int64_t suffix,
                             const std::vector<double>& ratios) {
  const int64_t tokens = now.view.extent[0];
  for (const double ratio : ratios) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, ratio " << ratio);
    Tensor imp(DType::kI32, {tokens}), diffs(DType::kF32, {tokens - suffix});
    imp.Set(std::vector<double>(tokens, 0));
    const SelectHkvdArgs args = {now.view, then.view, ratio, suffix, imp.view, diffs.view};
    Flagged cpu, cuda;
    ASSERT_TRUE(CpuReference().SelectHkvd(cpu.context, args).ok());
    const std::vector<double> imp_expected = imp.Get(), diffs_expected = diffs.Get();
    FillWithPoison(imp);
    FillWithPoison(diffs);
    ASSERT_EQ(RowsOnDevice().SelectHkvd(cuda.context, args), absl::OkStatus());
    EXPECT_EQ(imp.Get(), imp_expected);
    const std::vector<double> diffs_actual = diffs.Get();
    for (size_t i = 0; i < diffs_actual.size(); ++i) {
      if (diffs_expected[i] != diffs_actual[i]) {
        EXPECT_NEAR(diffs_actual[i], diffs_expected[i], 2e-7 * diffs_expected[i]) << i;
      }
    }
    EXPECT_EQ(cuda.bits, cpu.bits);
  }
}
// ... of rows of these values against zeros, all tokens but the last `suffix`.
void ExpectSelectionOfTheCpu(DType dtype, int64_t dim, int64_t suffix,
                             const std::vector<double>& values, const std::vector<double>& ratios) {
  const auto tokens = static_cast<int64_t>(values.size()) / dim;
  Tensor now(dtype, {tokens, 1, dim}), then(dtype, {tokens, 1, dim});
  now.Set(values);
  then.Set(std::vector<double>(values.size(), 0.0));
  ExpectSelectionOfTheCpu(now, then, suffix, ratios);
}

TEST(CudaBlendOpsTest, SelectionIsThatOfTheCpu) {
  std::mt19937_64 random(3);
  for (const int64_t n : {2, 33, 700, 3000}) {
    const Tensor now = Normal(DType::kBF16, {n, 2, 24}, random);
    const Tensor then = Normal(DType::kF32, {n, 2, 24}, random);
    for (const int64_t suffix : {1, 2}) {
      if (suffix < n) ExpectSelectionOfTheCpu(now, then, suffix, {0.0, 0.16, 0.5, 1.0});
    }
  }
}

// More tokens than a block keeps in registers, many of them equal.
TEST(CudaBlendOpsTest, SelectionOfManyTokensIsThatOfTheCpu) {
  std::mt19937_64 random(5);
  std::vector<double> values = NormalDraws(random, 9001 * 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i / 8 % 3 == 0) values[i] = static_cast<double>(i % 8);
  }
  ExpectSelectionOfTheCpu(DType::kBF16, 8, 5, values, {0.001, 0.16, 0.99});
}

// Many in little of the range: the interval in which the last of them lies is found in several
// steps, or by the last bits of the sums.
TEST(CudaBlendOpsTest, SelectionAmongSumsOfVeryDifferentSizesIsThatOfTheCpu) {
  std::mt19937_64 random(6);
  for (const bool alike : {false, true}) {
    SCOPED_TRACE(alike);
    std::vector<double> values(3000 * 2, 0.0);
    for (int64_t t = 0; t < 3000; ++t) {
      const auto draw = static_cast<double>(random() % 4096);
      // The second value is in the lower word of the sum only.
      values[2 * t] = alike ? 1 : t % 100 == 0 ? std::ldexp(1.0, t % 61) : 1 + draw / (1 << 20);
      values[2 * t + 1] = alike ? std::ldexp(draw, -36) : 0;
      if (!alike && t % 7 == 0) values[2 * t] = 0;
    }
    // 1: down to the tokens that do not differ.
    ExpectSelectionOfTheCpu(DType::kF32, 2, 1, values, {0.004, 0.1, 0.5, 0.86, 0.95, 1.0});
  }
}

TEST(CudaBlendOpsTest, TiesGoToTheLowerIndexAndNanComesFirst) {
  std::vector<double> values(2500 * 8, 0.0);
  // Few distinct differences: nearly everything ties; two rows are NaN.
  for (int64_t t = 0; t < 2500; ++t) values[t * 8] = static_cast<double>(t * 7 % 3);
  values[8 * 1200 + 3] = values[8 * 40 + 3] = std::numeric_limits<double>::quiet_NaN();
  ExpectSelectionOfTheCpu(DType::kF32, 8, 1, values, {0.0004, 0.1, 0.3, 0.3333, 0.5, 0.9});
}

TEST(CudaBlendOpsTest, GatheredRowsAreThoseOfTheCpuAndBadIndicesAreSkipped) {
  std::mt19937_64 random(8);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kI32, DType::kI64, DType::kI8}) {
    // Rows of 16 bytes and more, of odd sizes, and single elements.
    for (const std::vector<int64_t>& row : std::vector<std::vector<int64_t>>{{2, 24}, {37}, {}}) {
      SCOPED_TRACE(testing::Message() << Name(type) << ", rank " << row.size());
      std::vector<int64_t> from = {50}, to = {21};
      from.insert(from.end(), row.begin(), row.end());
      to.insert(to.end(), row.begin(), row.end());
      Tensor in = Normal(type, from, random), index(DType::kI32, {21});
      std::vector<double> rows;
      for (int r = 0; r < 21; ++r) rows.push_back(static_cast<double>(random() % 50));
      index.Set(rows);
      Tensor expected(type, to), actual(type, to);
      const GatherRowsArgs args{in.view, index.view, expected.view};
      ASSERT_TRUE(CpuReference().GatherRows({}, args).ok());
      Flagged cuda;
      ASSERT_EQ(RowsOnDevice().GatherRows(cuda.context, {in.view, index.view, actual.view}),
                absl::OkStatus());
      EXPECT_EQ(actual.bytes, expected.bytes);
      EXPECT_EQ(cuda.bits, 0u);
      rows[3] = 50, rows[20] = -1;
      index.Set(rows);
      std::fill(actual.bytes.begin(), actual.bytes.end(), std::byte{0x5A});
      ASSERT_TRUE(RowsOnDevice().GatherRows(cuda.context, {in.view, index.view, actual.view}).ok());
      EXPECT_EQ(cuda.bits, kBadIndex);
      const auto row_bytes = static_cast<int64_t>(actual.bytes.size()) / 21;
      for (int64_t i = 0; i < 21 * row_bytes; ++i) {
        const int64_t r = i / row_bytes;
        EXPECT_EQ(actual.bytes[i], r == 3 || r == 20 ? std::byte{0x5A} : expected.bytes[i]);
      }
    }
  }
}

TEST(CudaBlendOpsTest, RowsThatAreNotDenseAreRefused) {
  Tensor in(DType::kF32, {4, 3, 2}), index(DType::kI32, {1}), out(DType::kF32, {1, 3});
  index.Set({0});
  const absl::Status status =
      RowsOnDevice().GatherRows({}, {*in.view.Select(2, 0), index.view, out.view});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status, Says("the elements of a row follow each other"));
}

TEST(CudaBlendOpsTest, FusedRowsAreBitsOfTheNewOnesAndBadIndicesAreSkipped) {
  std::mt19937_64 random(4);
  for (const int64_t dim : {16, 20}) {
    Tensor k_new = Normal(DType::kF32, {3, 2, dim}, random);
    Tensor v_new = Normal(DType::kBF16, {3, 2, 16}, random);
    Tensor k_old = Normal(DType::kF32, {6, 2, dim}, random);
    Tensor v_old = Normal(DType::kBF16, {6, 2, 16}, random);
    Tensor imp(DType::kI32, {3});
    imp.Set({4, 9, 1});
    std::vector<double> k_expected = k_old.Get(), v_expected = v_old.Get();
    const std::vector<double> k_from = k_new.Get(), v_from = v_new.Get();
    for (const auto& [row, token] : {std::pair{0, 4}, std::pair{2, 1}}) {
      for (int64_t i = 0; i < 2 * dim; ++i)
        k_expected[token * 2 * dim + i] = k_from[row * 2 * dim + i];
      for (int64_t i = 0; i < 32; ++i) v_expected[token * 32 + i] = v_from[row * 32 + i];
    }
    Flagged cuda;
    ASSERT_EQ(RowsOnDevice().FuseKv(cuda.context,
                                    {imp.view, k_new.view, v_new.view, k_old.view, v_old.view}),
              absl::OkStatus());
    EXPECT_EQ(k_old.Get(), k_expected);
    EXPECT_EQ(v_old.Get(), v_expected);
    EXPECT_EQ(cuda.bits, kBadIndex);
  }
}

TEST(CudaBlendOpsTest, RotationIsThatOfTheCpu) {
  std::mt19937_64 random(5);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool interleaved : {false, true}) {
      for (const bool delta : {false, true}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(testing::Message() << Name(dtype) << interleaved << delta << in_place);
          const int64_t n = 9, dim = 40, rotary = 24;
          Tensor in = Normal(dtype, {n, 2, dim}, random), out(dtype, {n, 2, dim});
          Tensor positions(DType::kI64, {n}), from(DType::kI32, {n});
          positions.Set({0, 1, 2, 1000, 100000, 7, 8, 9, 131071});
          from.Set({0, 1, 5, 999, 3, 7, 0, 1, 2});
          RotateKeysArgs args;
          args.in = in.view;
          args.positions = positions.view;
          if (delta) args.from_positions = from.view;
          args.rotary_dim = rotary;
          args.pairs = interleaved ? RotaryPairs::kInterleaved : RotaryPairs::kHalves;
          args.out = out.view;
          ASSERT_TRUE(CpuReference().RotateKeys({}, args).ok());
          const std::vector<double> expected = out.Get();
          FillWithPoison(out);
          if (in_place) args.out = in.view;
          ASSERT_EQ(RowsOnDevice().RotateKeys({}, args), absl::OkStatus());
          const std::vector<double> actual = in_place ? in.Get() : out.Get();
          const double unit = dtype == DType::kF32 ? 2e-7 : 8e-3;
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(actual[i], expected[i], unit * std::max(1.0, std::abs(expected[i]))) << i;
          }
        }
      }
    }
  }
}

TEST(CudaGatherTest, RowsAreThoseOfTheCpu) {
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX}) {
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI8}) {
      SCOPED_TRACE(testing::Message() << Name(layout) << " " << Name(dtype));
      PagedCase paged({.block_size = 16,
                       .layout = layout,
                       .cache_dtype = dtype,
                       .scales = PagedCaseOptions::Scales::kPerRequest});
      const DType out_dtype = IsQuantizedCode(dtype) ? DType::kF32 : dtype;
      const int64_t requests = paged.num_requests();
      Tensor lengths(DType::kI32, {requests});
      lengths.Set({1, 3, 16, 9, 0, 40});
      Tensor out(out_dtype, {requests, 44, 2, 16}), out_v(out_dtype, {requests, 44, 2, 16});
      GatherCacheArgs args;
      args.cache = paged.cache();
      args.block_table = paged.block_table.view;
      args.seq_lens = paged.seq_lens.view;
      args.lengths = lengths.view;
      args.row_offset = 3;
      args.scales = paged.params.scales;
      args.out = out.view;
      args.out_v = out_v.view;
      FillWithPoison(out);
      FillWithPoison(out_v);
      ExpectBytesOfTheCpu({&out, &out_v}, [&](const auto& ops, const auto& context) {
        return ops.GatherCache(context, args);
      });
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
