// SM-62 for profiles of whole engines.

#include "kvblocks/sim/cost/step_tables.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

StepTableTexts Small() {
  return {.dense =
              "layer,tokens,time_us\nqkv,1,10\nqkv,101,110\nmlp,1,20\nmlp,101,20\n"
              "embedding,1,3\nembedding,101,3\n",
          .attention =
              "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
              "0,0,1,16,4\n0,0,1,48,12\n0,0,3,16,8\n0,0,3,48,24\n"
              "100,0,0,0,50\n100,1000,0,0,150\n"
              "100,0,1,16,54\n100,0,1,48,62\n100,1000,1,16,154\n100,1000,1,48,162\n",
          .per_sequence = "layer,sequences,time_us\nlm_head,1,100\nlm_head,3,120\nsampler,1,7\n",
          .allreduce = "bytes,ranks,time_us\n64,2,5\n6464,2,5\n64,4,9\n"};
}

std::unique_ptr<StepTimeModel> Clock(const StepTableOptions& options) {
  auto clock = ParseStepTables(Small(), "DIR", options);
  EXPECT_TRUE(clock.ok()) << clock.status();
  return *std::move(clock);
}

SequenceWork DecodeAt(int64_t context) {
  return {.num_context = context, .num_new = 1, .num_sampled = 1};
}

TEST(StepTablesTest, SM62ADecodeStep) {
  const auto clock = Clock({.num_layers = 10});
  // 10 x (30 + attention at (1, 32) 8) + 3 + 107
  EXPECT_EQ(*clock->StepTime({DecodeAt(32)}), 490 * kMicrosecond);
  // Two decodes with a mean context of 32: 10 x (31 + (8 + 16) / 2) + 3 + 117
  EXPECT_EQ(*clock->StepTime({DecodeAt(16), DecodeAt(48)}), 550 * kMicrosecond);
  EXPECT_EQ(*clock->StepTime({DecodeAt(16)}, {.num_sequences = 1, .sum_context = 48}),
            550 * kMicrosecond);
  // Below the first context its time holds.
  EXPECT_EQ(*clock->StepTime({DecodeAt(2)}), *clock->StepTime({DecodeAt(16)}));
  EXPECT_EQ(clock->num_outside(), 0);
}

TEST(StepTablesTest, SM62AMixedStep) {
  const auto clock = Clock({.num_layers = 10});
  const SequenceWork chunk{.num_context = 500, .num_new = 100};
  // 101 tokens: 10 x (110 + 20 + 108) + 3 + 107
  EXPECT_EQ(*clock->StepTime({chunk, DecodeAt(32)}), 2490 * kMicrosecond);
  // Half a chunk: between no prompt, which has no context, and a chunk of 100.
  const SequenceWork half{.num_context = 500, .num_new = 50};
  EXPECT_EQ(*clock->StepTime({half, DecodeAt(32)}), (10 * (60 + 20 + 58) + 110) * kMicrosecond);
}

TEST(StepTablesTest, ConstantsAndRanksAdd) {
  const auto clock = Clock({.num_layers = 10,
                            .hidden_size = 32,
                            .num_ranks = 2,
                            .fixed_time = kMicrosecond,
                            .time_per_layer = 2 * kMicrosecond,
                            .time_per_sequence = 3 * kMicrosecond});
  EXPECT_EQ(*clock->StepTime({DecodeAt(32)}), (490 + 10 * 2 * 5 + 1 + 20 + 3) * kMicrosecond);
  EXPECT_EQ(clock->source(), "step tables, uncalibrated");
}

TEST(StepTablesTest, SM62OutsideGoesOnAndIsCounted) {
  const auto clock = Clock({.num_layers = 10});
  EXPECT_EQ(*clock->StepTime({DecodeAt(80)}), (10 * (30 + 20) + 110) * kMicrosecond);
  EXPECT_EQ(clock->num_outside(), 1);
}

TEST(StepTablesTest, SM62ACornerThatMattersAndWasNotMeasuredIsAnError) {
  const auto clock = Clock({.num_layers = 10});
  const SequenceWork chunk{.num_context = 0, .num_new = 100};
  EXPECT_THAT(
      clock->StepTime({chunk, DecodeAt(16), DecodeAt(16)}).status().message(),
      HasSubstr("not measured at prefill_chunk 100, kv_prefill 0, n_decode 3, kv_decode 16"));
  EXPECT_TRUE(clock->StepTime({chunk, DecodeAt(16)}).ok());
}

TEST(StepTablesTest, BadFilesAreRefused) {
  struct {
    const char* dense;
    const char* message;
  } const cases[] = {
      {"", "DIR/dense.csv:1: got \"\", expected the header layer,tokens,time_us"},
      {"layer,tokens,time_us\n", "DIR/dense.csv: no rows"},
      {"layer,tokens,time_us\nqkv,1\n", "DIR/dense.csv:2: got \"qkv,1\", expected 3 columns"},
      {"layer,tokens,time_us\nqkv,-1,3\n", "DIR/dense.csv:2: got \"-1\", expected a count"},
      {"layer,tokens,time_us\nqkv,1,nan\n", "DIR/dense.csv:2: got \"nan\", expected a time"},
      {"layer,tokens,time_us\nembedding,1,3\n", "DIR/dense.csv: no layers"},
  };
  for (const auto& c : cases) {
    StepTableTexts texts = Small();
    texts.dense = c.dense;
    EXPECT_THAT(ParseStepTables(texts, "DIR", {}).status().message(), HasSubstr(c.message));
  }
  EXPECT_THAT(LoadStepTables("/nonexistent", {}).status().message(),
              HasSubstr("--step-tables: /nonexistent: cannot be opened"));
}

}  // namespace
}  // namespace kvblocks::sim
