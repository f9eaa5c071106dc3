// Cascades in two parts, emulated: prefixes in one piece and in several, against the dense oracle.

#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "attention/cuda/attend_launch.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kDim = 64;

class CascadeTest : public testing::Test {
 protected:
  // Requests over 16-bit caches whose first 1024 keys are those of request 0.
  static PagedCaseOptions Options(std::vector<int64_t> lengths, std::vector<int64_t> q_lens) {
    PagedCaseOptions options;
    options.q_dtype = options.cache_dtype = DType::kBF16;
    options.num_heads = 4;
    options.num_kv_heads = 1;
    options.key_dim = options.value_dim = kDim;
    options.lengths = std::move(lengths);
    options.q_lens = std::move(q_lens);
    return options;
  }

  // With a workspace of so many bytes.
  bool Run(PagedCase& paged, size_t bytes = size_t{8} << 20) {
    memory_.assign(bytes, std::byte{0xFF});
    Workspace workspace;
    workspace.device = absl::MakeSpan(memory_);
    DeviceErrorFlags flags{&flag_bits_};
    ExecContext context;
    context.workspace = &workspace;
    context.error_flags = &flags;
    paged.ClearOutputs();
    const absl::StatusOr<CudaCall> call = CudaCall::Begin("Cascade", context);
    const absl::StatusOr<bool> done = RunCascadeInParts(*call, {paged.PrefillArgs(), kPrefix});
    EXPECT_TRUE(done.ok()) << done.status();
    return done.ok() && *done;
  }
  void ExpectExact(PagedCase& paged, size_t bytes = size_t{8} << 20) {
    ASSERT_TRUE(Run(paged, bytes));
    EXPECT_EQ(paged.Mismatch(CudaTolerance(paged.out.view.dtype)), "");
    EXPECT_EQ(flag_bits_, 0u);
  }

  static constexpr int64_t kPrefix = 1024;
  std::vector<std::byte> memory_;
  uint32_t flag_bits_ = 0;
};

TEST_F(CascadeTest, DecodesAreExact) {
  PagedCase paged(Options({1100, 1041, 1025, 0, 1200}, {1, 1, 1, 0, 1}));
  paged.SharePrefix(kPrefix / 16);
  ExpectExact(paged);
  Tensor sinks(DType::kF32, {4});
  sinks.Set({0.5, 8, -1, -INFINITY});
  paged.params.sinks = sinks.view;
  paged.params.soft_cap = 3;
  ExpectExact(paged);
}

TEST_F(CascadeTest, QueriesMayBeCodes) {
  for (const bool decodes : {true, false}) {
    PagedCaseOptions options =
        decodes ? Options({1100, 1041}, {1, 1}) : Options({1100, 1041}, {40, 3});
    options.q_dtype = options.cache_dtype = DType::kF8E4M3;
    options.out_dtype = decodes ? DType::kBF16 : DType::kF16;
    options.scales = PagedCaseOptions::Scales::kPerHead;
    options.num_kv_heads = 2;
    PagedCase paged(options);
    paged.SharePrefix(kPrefix / 16);
    // Scales per KV head, not per request: the rows that requests share stay the same.
    ExpectExact(paged);
  }
}

TEST_F(CascadeTest, ThePrefixIsCutAsFarAsTheWorkspaceGoes) {
  PagedCase paged(Options({1030, 1041, 1050}, {1, 1, 1}));
  paged.SharePrefix(kPrefix / 16);
  ASSERT_TRUE(Run(paged));
  const std::vector<std::byte> cut = paged.out.bytes;
  // Of one piece there are two states of 3 rows of 4 heads, one of them float32, and decode's part.
  size_t least = 0;
  for (size_t bytes = 4096; bytes < size_t{4} << 20 && least == 0; bytes += 4096) {
    if (Run(paged, bytes)) least = bytes;
  }
  ASSERT_GT(least, 0u);
  EXPECT_NE(paged.out.bytes, cut);  // in fewer pieces
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  ExpectExact(paged, least + 4096);
}

TEST_F(CascadeTest, ALengthWithinThePrefixIsFlagged) {
  PagedCase paged(Options({1030, 1041, 1050}, {1, 1, 1}));
  paged.SharePrefix(kPrefix / 16);
  ExpectExact(paged);
  paged.seq_lens.view.as<int32_t>()[1] = 700;
  ASSERT_TRUE(Run(paged));
  EXPECT_EQ(flag_bits_, uint32_t{kLengthClamped});
}

TEST_F(CascadeTest, WhatTensorCoresDoNotServeIsLeft) {
  PagedCaseOptions options = Options({1030, 1041}, {1, 1});
  options.q_dtype = options.cache_dtype = DType::kF32;
  PagedCase floats(options);
  EXPECT_FALSE(Run(floats));
  options.q_dtype = DType::kBF16;
  options.cache_dtype = DType::kF8E4M3;
  options.scales = PagedCaseOptions::Scales::kPerRequest;
  PagedCase scaled(options);
  EXPECT_FALSE(Run(scaled));
  options.cache_dtype = DType::kBF16;
  options.scales = PagedCaseOptions::Scales::kOne;
  PagedCase paged(options);
  EXPECT_TRUE(Run(paged));  // but for what follows it would be
  Tensor slopes(DType::kF32, {4});
  slopes.Set({0.5, 0.25, 0.125, 0});
  paged.params.alibi_slopes = slopes.view;
  EXPECT_FALSE(Run(paged));
  paged.params.alibi_slopes = {};
  paged.query_positions = {1029, 1040};
  EXPECT_FALSE(Run(paged));
  paged.query_positions = {};
  EXPECT_FALSE(Run(paged, 4096));
  // Nothing was enqueued.
  for (const double value : paged.out.Get()) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace kvblocks::attention::cuda
