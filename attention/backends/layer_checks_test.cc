// A layer has each operation of a call checked once, all of them before the first runs.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/backends/cpu_backends.h"
#include "kvblocks/attention/testing/layer_fixture.h"

namespace kvblocks::attention {
namespace {

using ::testing::ElementsAre;

class LoggingBackend final : public AttentionBackend {
 public:
  const char* name() const override { return "LOGGING"; }
  const AttentionOps& ops() const override { return ops_; }
  const BackendSupport& support() const override { return CpuReferenceBackend().support(); }

  std::vector<std::string>& log() const { return ops_.log; }

 private:
  class Ops final : public AttentionOps {
   public:
    const char* name() const override { return "LOGGING"; }
#define KVBLOCKS_LOGGED_RUN(Op)                                      \
  absl::Status Run(const Checked<Op##Args>& call) const override {   \
    log.push_back("run " #Op);                                       \
    return CpuReferenceBackend().ops().Run(call);                    \
  }
    KVBLOCKS_ATTENTION_OPS(KVBLOCKS_LOGGED_RUN)
#undef KVBLOCKS_LOGGED_RUN
    mutable std::vector<std::string> log;

   protected:
#define KVBLOCKS_LOGGED_REFUSE(Op)                                                       \
  absl::Status Refuse(const ExecContext& context, const Op##Args& args) const override { \
    log.push_back("check " #Op);                                                         \
    return AttentionOps::Refuse(context, args);                                          \
  }
    KVBLOCKS_ATTENTION_OPS(KVBLOCKS_LOGGED_REFUSE)
#undef KVBLOCKS_LOGGED_REFUSE
  };
  Ops ops_;
};

TEST(LayerChecksTest, OncePerOperationAndAllBeforeTheFirstRuns) {
  LoggingBackend backend;
  LayerFixture fixture({}, &backend);
  ASSERT_EQ(fixture.Step({{0, 7}, {1, 9}}), absl::OkStatus());
  backend.log().clear();
  ASSERT_EQ(fixture.Step({{0, 1}, {1, 4}}), absl::OkStatus());
  EXPECT_THAT(backend.log(), ElementsAre("check ReshapeAndCache", "check PagedDecode",
                                         "check PagedPrefill", "run ReshapeAndCache",
                                         "run PagedDecode", "run PagedPrefill"));
}

}  // namespace
}  // namespace kvblocks::attention
