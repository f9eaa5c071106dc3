// The LRU curve and the bound of the published traces, exactly (section 13 of the specification).
// The traces are not part of the tree: KVBLOCKS_SHARED names the folder that has them.

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "sim/curve/order_curve.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

constexpr int kNumSizes = 8;
constexpr int64_t kSizes[kNumSizes] = {1'000, 2'000, 4'000, 5'859, 10'000, 20'000, 50'000, 97'656};

struct Expected {
  const char* trace;
  int64_t ids[kNumSizes];     // hits where every content id is a block
  int64_t full[kNumSizes];    // where full blocks alone are
  int64_t belady[kNumSizes];  // the bound of the first
};

constexpr Expected kConversation = {
    "conversation",
    {12'847, 15'665, 24'964, 39'258, 61'046, 83'035, 102'290, 104'870},
    {12'990, 15'944, 26'005, 40'644, 62'005, 84'692, 102'724, 104'926},
    {51'705, 71'949, 92'472, 101'431, 105'710, 105'710, 105'710, 105'710}};
constexpr Expected kSynthetic = {"synthetic",
                                 {10'252, 17'839, 28'577, 37'703, 51'669, 69'686, 77'953, 77'953},
                                 {10'370, 18'256, 30'217, 38'368, 52'952, 70'849, 77'740, 77'740},
                                 {32'803, 45'608, 60'063, 66'978, 75'241, 77'953, 77'953, 77'953}};

class PublishedCurveTest : public testing::TestWithParam<Expected> {
 protected:
  // Null if the trace is not here.
  std::unique_ptr<TraceReader> Open() {
    const char* shared = std::getenv("KVBLOCKS_SHARED");
    if (shared == nullptr) return nullptr;
    auto reader = OpenTrace(
        std::string(shared) + "/traces/mooncake/" + GetParam().trace + "_trace.jsonl.gz", {});
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  OrderRun Run(TraceReader* reader, CountedBlocks counted) {
    OrderRunOptions options;
    options.blocks.block_tokens = 512;
    options.blocks.counted = counted;
    options.with_bound = true;
    auto run = RunOrder(reader->info(), FeedFrom(reader), options);
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }
};

TEST_P(PublishedCurveTest, ContentIdsAsBlocks) {
  const auto reader = Open();
  if (reader == nullptr) GTEST_SKIP() << "KVBLOCKS_SHARED is not set";
  const OrderRun run = Run(reader.get(), CountedBlocks::kIds);
  for (int i = 0; i < kNumSizes; ++i) {
    EXPECT_EQ(run.curve.Hits(kSizes[i]), GetParam().ids[i]) << kSizes[i];
    EXPECT_EQ(run.bound->Hits(kSizes[i], Bypass::kNo), GetParam().belady[i]) << kSizes[i];
    EXPECT_GE(run.bound->Hits(kSizes[i], Bypass::kYes), GetParam().belady[i]) << kSizes[i];
  }
}

TEST_P(PublishedCurveTest, FullBlocks) {
  const auto reader = Open();
  if (reader == nullptr) GTEST_SKIP() << "KVBLOCKS_SHARED is not set";
  const OrderRun run = Run(reader.get(), CountedBlocks::kPrompt);
  for (int i = 0; i < kNumSizes; ++i) {
    EXPECT_EQ(run.curve.Hits(kSizes[i]), GetParam().full[i]) << kSizes[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Mooncake, PublishedCurveTest, testing::Values(kConversation, kSynthetic),
                         [](const auto& instance) { return std::string(instance.param.trace); });

}  // namespace
}  // namespace kvblocks::sim
