// The suites of all backends, run with CUDA's kernels emulated on the host; and what CUDA's
// operations refuse.

#include <cstddef>
#include <string>
#include <vector>

#include "attention/testing/ops_suite.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention {
namespace {

// CUDA's operations with a workspace, which the suites know nothing of.
class WithWorkspace : public AttentionOps {
 public:
  const char* name() const override { return Cuda().name(); }

#define KVBLOCKS_WITH_WORKSPACE(Op)                                            \
  absl::Status Run(const Checked<Op##Args>& checked) const override {          \
    static std::vector<std::byte>& memory =                                    \
        *new std::vector<std::byte>(size_t{32} << 20, std::byte{0xFF});        \
    Workspace workspace;                                                       \
    workspace.device = absl::MakeSpan(memory);                                 \
    ExecContext with = checked.context();                                      \
    with.workspace = &workspace;                                               \
    return Cuda().Op(with, checked.args());                                    \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_WITH_WORKSPACE)
#undef KVBLOCKS_WITH_WORKSPACE
};

}  // namespace

const AttentionOps& OpsUnderTest() {
  static const WithWorkspace ops;
  return ops;
}
Tolerance ToleranceUnderTest(DType out) { return CudaTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance CodeProductsToleranceUnderTest(DType out) { return CudaTolerance(out); }
Tolerance TileScaledToleranceUnderTest(DType out) { return CudaTileScaledTolerance(out); }

namespace {

TEST(CudaOpsTest, RefusesWhatIsNotBuilt) {
  PagedCaseOptions options;
  options.lengths = {3, 20};
  options.q_dtype = options.cache_dtype = DType::kF64;
  PagedCase doubles(options);
  absl::Status status = Cuda().PagedDecode({}, doubles.DecodeArgs());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status, Says("PagedDecode: q is f64"));

  options.q_dtype = options.cache_dtype = DType::kF32;
  options.key_dim = 577;
  PagedCase wide(options);
  status = Cuda().PagedPrefill({}, wide.PrefillArgs());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status, Says("at most 576"));

  options.key_dim = 16;
  PagedCase paged(options);
  PagedDecodeArgs args = paged.DecodeArgs();
  Tensor lengths(DType::kI32, {2, 2});
  lengths.Set({1, 1, 1, 1});
  args.seq_lens = lengths.view.Select(1, 0).value();
  status = Cuda().PagedDecode({}, args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status, Says("seq_lens has stride 2"));
}

TEST(CudaOpsTest, NoHeadsAndNoRequestsAreNoWork) {
  PagedCase none({.lengths = {}, .q_lens = {}});
  EXPECT_TRUE(Cuda().PagedDecode({}, none.DecodeArgs()).ok());
  EXPECT_TRUE(Cuda().PagedPrefill({}, none.PrefillArgs()).ok());
  PagedCase paged(PagedCaseOptions{});
  PagedDecodeArgs args = paged.DecodeArgs();
  args.q = args.q.Slice(1, 0, 0).value();
  args.out = args.out.Slice(1, 0, 0).value();
  args.lse = args.lse.Slice(1, 0, 0).value();
  EXPECT_EQ(Cuda().PagedDecode({}, args), absl::OkStatus());
}

TEST(CudaOpsTest, PiecesNeedAWorkspaceAndAutoTakesWhatThereIs) {
  PagedCase paged({.lengths = {700}, .num_heads = 1, .num_kv_heads = 1});
  PagedDecodeArgs args = paged.DecodeArgs();
  args.params.split = SplitPolicy::Fixed(64);
  const std::vector<std::byte> before = paged.out.bytes;
  const absl::Status status = Cuda().PagedDecode({}, args);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // 11 pieces of 16 values.
  EXPECT_THAT(status, Says("PagedDecode: the operation needs a workspace of 704 bytes"));
  EXPECT_EQ(paged.out.bytes, before);

  args.params.split = SplitPolicy::None();
  ASSERT_TRUE(Cuda().PagedDecode({}, args).ok());
  const std::vector<std::byte> whole = paged.out.bytes;
  args.params.split = SplitPolicy::Auto();
  ASSERT_TRUE(Cuda().PagedDecode({}, args).ok());
  EXPECT_EQ(paged.out.bytes, whole);

  std::vector<std::byte> memory(4096);
  Workspace workspace;
  workspace.device = absl::MakeSpan(memory);
  ExecContext context;
  context.workspace = &workspace;
  paged.ClearOutputs();
  ASSERT_TRUE(Cuda().PagedDecode(context, args).ok());
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kF32)), "");
  EXPECT_NE(memory, std::vector<std::byte>(4096));  // it was cut
}

}  // namespace

}  // namespace kvblocks::attention
