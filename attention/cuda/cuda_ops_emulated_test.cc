// The suites of all backends, run with CUDA's kernels emulated on the host.

#include <cstddef>
#include <vector>

#include "attention/cuda/cuda_ops.h"
#include "attention/oracle/ops_suite.h"

namespace kvblocks::attention {
namespace {

// CUDA's operations with a workspace, which the suites know nothing of.
class WithWorkspace : public AttentionOps {
 public:
  const char* name() const override { return Cuda().name(); }

#define KVBLOCKS_WITH_WORKSPACE(Op)                                                  \
  absl::Status Op(const ExecContext& context, const Op##Args& args) const override { \
    static std::vector<std::byte>& memory =                                          \
        *new std::vector<std::byte>(size_t{32} << 20, std::byte{0xFF});              \
    Workspace workspace;                                                             \
    workspace.device = absl::MakeSpan(memory);                                       \
    ExecContext with = context;                                                      \
    with.workspace = &workspace;                                                     \
    return Cuda().Op(with, args);                                                    \
  }

  KVBLOCKS_WITH_WORKSPACE(PagedDecode)
  KVBLOCKS_WITH_WORKSPACE(PagedDecodePartial)
  KVBLOCKS_WITH_WORKSPACE(ReduceSplits)
  KVBLOCKS_WITH_WORKSPACE(PagedPrefill)
  KVBLOCKS_WITH_WORKSPACE(VarlenSelfAttention)
  KVBLOCKS_WITH_WORKSPACE(Cascade)
  KVBLOCKS_WITH_WORKSPACE(MlaDecode)
  KVBLOCKS_WITH_WORKSPACE(SparseMlaDecode)
  KVBLOCKS_WITH_WORKSPACE(SparseMlaPrefill)
  KVBLOCKS_WITH_WORKSPACE(MergeStates)

#undef KVBLOCKS_WITH_WORKSPACE
};

}  // namespace

const AttentionOps& OpsUnderTest() {
  static const WithWorkspace ops;
  return ops;
}
Tolerance ToleranceUnderTest(DType out) { return CudaTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance TileScaledToleranceUnderTest(DType out) { return CudaTileScaledTolerance(out); }

}  // namespace kvblocks::attention
