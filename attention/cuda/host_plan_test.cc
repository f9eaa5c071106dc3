// PagedDecode with a plan made on the host: followed by the fast decode, or refused by name. Runs
// emulated and on GPUs.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/paged_decode_ops.h"
#include "attention/cuda/testing/decode_runner.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "attention/testing/tolerance.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

using testing::HasSubstr;

class HostPlanTest : public testing::Test {
 protected:
  // What the fast decode takes.
  SplitPlanInput InputOf(const PagedCase& paged, int64_t window = 0) {
    const std::vector<int64_t>& lengths = paged.options().lengths;
    lengths_.assign(lengths.begin(), lengths.end());
    SplitPlanInput input;
    input.type = {paged.options().block_size, window, 1};
    input.seq_lens = lengths_;
    return input;
  }
  absl::Status Decode(PagedCase& paged, const SplitPlan* plan) {
    PagedDecodeArgs args = paged.DecodeArgs();
    EXPECT_TRUE(TakesPagedDecode(PagedDecodeParamsOf(args)));
    args.plan = plan;
    paged.ClearOutputs();
    return OnDevice().PagedDecode({}, args);
  }
  void ExpectExact(PagedCase& paged, const SplitPlanInput& input) {
    ASSERT_EQ(planner_.Plan(input), absl::OkStatus());
    ASSERT_EQ(Decode(paged, &planner_.plan()), absl::OkStatus());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  }

  std::vector<int32_t> lengths_;
  SplitPlanner planner_{8, 64};
};

TEST_F(HostPlanTest, PiecesAreThoseOfThePlan) {
  PagedCase paged(DecodeOptions({700, 1, 0, 130}));
  for (const SplitPolicy policy : {SplitPolicy::Fixed(64), SplitPolicy::Fixed(80),
                                   SplitPolicy::Count(3), SplitPolicy::None()}) {
    SCOPED_TRACE(policy.value);
    SplitPlanInput input = InputOf(paged);
    input.policy = policy;
    ExpectExact(paged, input);
    const std::vector<std::byte> planned = paged.out.bytes;
    // To the bit what the same kernel gives that cuts by the policy itself.
    paged.params.split = policy;
    ASSERT_EQ(Decode(paged, nullptr), absl::OkStatus());
    EXPECT_EQ(paged.out.bytes, planned);
    paged.params.split = {};
  }
}

TEST_F(HostPlanTest, PartsOfEqualWorkAreExact) {
  for (const int64_t window : {0, 50}) {
    PagedCase paged(DecodeOptions({900, 1, 0, 64, 333}));
    if (window > 0) paged.params.window_left = window - 1;
    for (const int32_t parts : {1, 3, 40}) {
      SCOPED_TRACE(testing::Message() << window << " " << parts);
      SplitPlanInput input = InputOf(paged, window);
      input.num_parts = parts;
      ExpectExact(paged, input);
    }
    // A plan of all keys serves layers with a window, too.
    ExpectExact(paged, InputOf(paged));
  }
}

TEST_F(HostPlanTest, ManyPiecesTakeSeveralLaunches) {
  PagedCase paged(DecodeOptions({3000, 1100, 5}));
  SplitPlanInput input = InputOf(paged);
  input.policy = SplitPolicy::Fixed(16);
  ExpectExact(paged, input);
  EXPECT_GT(static_cast<int>(planner_.plan().ranges.size()), GivenPieces::kMost);
}

// Lengths are the device's: no key is left out, whatever the plan was made for.
TEST_F(HostPlanTest, PlansForShorterRequestsLoseNoKeys) {
  PagedCase paged(DecodeOptions({700, 90}));
  SplitPlanInput input = InputOf(paged);
  const std::vector<int32_t> shorter = {300, 1};
  input.seq_lens = shorter;
  input.num_parts = 5;
  ExpectExact(paged, input);
}

TEST_F(HostPlanTest, WhatTheFastDecodeCannotFollowIsRefused) {
  PagedCase paged(DecodeOptions({700, 90}));
  const auto message = [&](const SplitPlanInput& input) {
    EXPECT_EQ(planner_.Plan(input), absl::OkStatus());
    const absl::Status status = Decode(paged, &planner_.plan());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  SplitPlanInput input = InputOf(paged);
  input.tile = 12;
  EXPECT_THAT(message(input),
              HasSubstr("plan: it has tiles of 12 keys; CUDA takes multiples of 8"));
  input = InputOf(paged);
  input.policy = SplitPolicy::Fixed(512);
  const std::vector<int32_t> longer = {2000, 90};
  input.seq_lens = longer;
  EXPECT_THAT(message(input), HasSubstr("its last piece of request 0 begins at key 1536; the call "
                                        "has at most"));
  ASSERT_EQ(planner_.Plan(InputOf(paged)), absl::OkStatus());
  PagedDecodeArgs args = paged.DecodeArgs();
  DeviceDecodePlan device_plan;
  args.plan = &planner_.plan();
  args.device_plan = &device_plan;
  EXPECT_THAT(OnDevice().PagedDecode({}, args), Says("plan and device_plan are given; give one"));
}

}  // namespace
}  // namespace kvblocks::attention::cuda
