// Operations run on checked arguments alone, which are checked once.

#include "kvblocks/attention/ops/checked.h"

#include <type_traits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/testing/valid_args.h"

namespace kvblocks::attention {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(std::string(all.RotateKeys({}, args).message()),
              HasSubstr("COUNTING has no RotateKeys"));
}

}  // namespace
}  // namespace kvblocks::attention
