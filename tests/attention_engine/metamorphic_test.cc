// The block manager under a random engine for 10^4 steps per layer type: after each step, attention
// over the paged cache equals attention over plain lists of keys and values.

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "tests/attention_engine/engine.h"
#include "tests/group_specs.h"

namespace kvblocks::testing {
namespace {

constexpr int64_t kSteps = 10'000;

KvCacheSpec CompressedMla(int64_t block_size, int64_t ratio) {
  return MlaAttentionSpec::Create({.block_size = block_size,
                                   .head_size = 16,
                                   .compress_ratio = ratio,
                                   .model_version = ModelVersion::kDeepseekV4})
      .value();
}

struct Case {
  std::string name;
  std::vector<KvCacheSpec> specs;
  bool frees_on_the_way = false;  // windows and chunks
  bool sees_always = true;        // not so before the first row of a compressed layer is complete
};

std::vector<Case> Cases() {
  return {{"Full", {Full(4)}},
          {"Window", {Window(4, 10)}, true},
          {"WindowOfOneBlock", {Window(4, 4)}, true},
          {"ChunkedLocal", {Chunked(4, 16)}, true},
          {"Mla", {Mla(4)}},
          {"WindowMla", {WindowMla(4, 7)}, true},
          {"SinkTokens", {Sink(4, 8)}},
          {"CompressedMla", {CompressedMla(8, 4)}, false, false},
          {"FullAndWindow", {Full(4), Window(4, 9)}, true},
          {"FullAndChunked", {Full(4), Chunked(4, 8)}, true},
          {"FullAndWindowOfOtherBlocks", {Full(8), Window(4, 6)}, true},
          {"CompressedMlaAndWindowMla", {CompressedMla(16, 4), WindowMla(4, 8)}, true, false}};
}

class MetamorphicTest : public ::testing::TestWithParam<Case> {};

TEST_P(MetamorphicTest, PagedAttentionEqualsPlainAttentionAfterEachStep) {
  EngineOptions options{.specs = GetParam().specs};
  options.num_blocks = 30 * static_cast<int64_t>(options.specs.size());
  Engine engine(options, attention::CpuReference());
  for (int64_t i = 0; i < kSteps; ++i) {
    ASSERT_EQ(engine.Step(), absl::OkStatus());
  }
  const EngineCounts& counts = engine.counts();
  // Everything happened, and often.
  EXPECT_GT(counts.finished, 100);
  EXPECT_GT(counts.hits, 100);
  EXPECT_GT(counts.preemptions, 100);
  EXPECT_GT(counts.resumes, 100);
  EXPECT_GT(counts.forks, 50);
  EXPECT_GT(counts.rejected_drafts, 100);
  EXPECT_GT(counts.evicted, 10);
  EXPECT_EQ(counts.nulls > 100, GetParam().frees_on_the_way);
  const attention::VerifierStats& stats = engine.verifier().stats();
  const int64_t num_rows = stats.num_tokens * static_cast<int64_t>(options.specs.size());
  EXPECT_GT(stats.num_rows_attended, num_rows * 9 / 10);
  EXPECT_EQ(stats.num_rows_attended == num_rows, GetParam().sees_always);
  EXPECT_GT(stats.num_rows_read_back, 1000);
  EXPECT_GT(stats.num_blocks_poisoned, 1000);
  EXPECT_LT(stats.max_error, 1e-6);

  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_TRUE(engine.manager().CheckInvariants().ok());
}

INSTANTIATE_TEST_SUITE_P(LayerTypes, MetamorphicTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::testing
