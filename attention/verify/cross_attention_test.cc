// What the verifier finds about rows of encoders, to which decoders attend.

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "attention/testing/says.h"
#include "attention/testing/verified_steps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::attention {
namespace {

// A decoder's own rows and those of its encoder, blocks of 4.
VerifierOptions CrossOptions(const AttentionOps* ops = &CpuReference()) {
  VerifierOptions options;
  options.num_blocks = 40;
  options.groups = {{.name = "own", .block_size = 4},
                    {.name = "encoder's", .block_size = 4, .is_cross = true}};
  options.ops = ops;
  return options;
}

TEST(CrossTest, EveryQuerySeesAllOfTheEncodersRows) {
  VerifiedSteps cross(CrossOptions());
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9, 10};
  ASSERT_TRUE(cross.Run({{1, 0, 3, {{1}, {21, 22}}, speech}}).ok());
  // B comes in beside A's decode, with another input, and C without any.
  ASSERT_TRUE(cross
                  .Run({{1, 3, 1, {{1}, {21, 22}}, speech},
                        {2, 0, 5, {{2, 3}, {25}}, {1, 2, 3}},
                        {3, 0, 1, {{4}, {}}, {}}})
                  .ok());
  ASSERT_TRUE(cross.Run({{2, 5, 1, {{2, 3}, {25}}, {1, 2, 3}}}).ok());
  const VerifierStats& stats = cross.verifier->stats();
  EXPECT_EQ(stats.num_rows_written, 3 + 1 + 5 + 1 + 1 + 6 + 3);
  EXPECT_EQ(stats.num_rows_attended, 11 + 10);
  // Own: 1 + 2 + 3, 4, 1 to 5, 1, 6; of the encoder 4 queries at 6 rows, 6 at 3.
  EXPECT_EQ(stats.num_keys_attended, 6 + 4 + 15 + 1 + 6 + 4 * 6 + 6 * 3);
}

TEST(CrossTest, AnotherEncodersRowsAreAWrongNumber) {
  VerifiedSteps cross(CrossOptions());
  ASSERT_TRUE(cross.Run({{1, 0, 3, {{1}, {21, 22}}, {5, 6, 7, 8, 9}}}).ok());
  ASSERT_TRUE(cross.Run({{2, 0, 3, {{2}, {22}}, {1, 2}}}).ok());  // takes A's second block
  const absl::Status status = cross.Run({{1, 3, 1, {{1}, {21, 22}}, {5, 6, 7, 8, 9}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(cross.verifier->failure()->layer, 1);
  EXPECT_EQ(cross.verifier->failure()->key_position, 4);
  EXPECT_EQ(cross.verifier->failure()->block, 22);
}

TEST(CrossTest, ATableThatIsTooShortIsNamed) {
  VerifiedSteps cross(CrossOptions());
  const absl::Status status = cross.Run({{1, 0, 3, {{1}, {21}}, {5, 6, 7, 8, 9}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status, Says("entry 1 of the block table is missing"));
  VerifiedSteps other(CrossOptions());
  ASSERT_TRUE(other.Run({{1, 0, 3, {{1}, {21}}, {5, 6}}}).ok());
  EXPECT_THAT(other.Run({{1, 3, 1, {{1}, {21}}, {5}}}),
              Says("got 1 tokens of the encoder, but it came in with 2"));
}

TEST(CrossTest, BlocksThatAreTakenAgainAreNamed) {
  VerifiedSteps cross(CrossOptions());
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
  ASSERT_TRUE(cross.Run({{1, 0, 3, {{1}, {21, 22}}, speech}}).ok());
  const absl::Status status = cross.Run({{1, 3, 1, {{1}, {21, 22, 23, 24}}, speech}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status, Says("the block table has 4 entries, but the 5 rows of the encoder take 2"));
  EXPECT_EQ(cross.verifier->failure()->block, 23);
  // Other blocks have nothing of what the first step wrote.
  VerifiedSteps moved(CrossOptions());
  ASSERT_TRUE(moved.Run({{1, 0, 3, {{1}, {21, 22}}, speech}}).ok());
  EXPECT_THAT(moved.Run({{1, 3, 1, {{1}, {21, 23}}, speech}}),
              Says("what the encoder wrote in the request's first step is not there: row 0 of "
                   "block 23, where token 4 should be, holds poison"));
}

TEST(CrossTest, BlocksThatAreGivenBackEarlyAreNamed) {
  int32_t freed = -1;
  VerifierOptions options = CrossOptions();
  options.use_of_block = [&freed](int32_t block) {
    return block == freed ? BlockUse::kFree : BlockUse::kHeld;
  };
  VerifiedSteps cross(options);
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
  ASSERT_TRUE(cross.Run({{1, 0, 3, {{1}, {21, 22}}, speech}}).ok());
  freed = 22;
  EXPECT_THAT(cross.Run({{1, 3, 1, {{1}, {21, 22}}, speech}}),
              Says("token 4 of the encoder is in reach of every query, but entry 1 of the block "
                   "table is 22, which the engine counts as free"));
}

// Writes the encoder's first value once more in the second step: the next number, or the same.
class WritingTwiceOps final : public AttentionOps {
 public:
  explicit WritingTwiceOps(bool same) : same_(same) {}
  const char* name() const override { return "WRITING_TWICE"; }
  absl::Status Run(const Checked<ReshapeAndCacheArgs>& call) const override {
    const ReshapeAndCacheArgs& with = call.args();
    if (++num_writes_ == 2) first_ = *reinterpret_cast<const float*>(with.k.data);
    if (num_writes_ != 4) return sound_.Run(call);
    std::byte* const block =
        with.cache.k.data + 21 * with.cache.k.stride[0] * static_cast<int64_t>(sizeof(float));
    *reinterpret_cast<float*>(block) = same_ ? first_ : std::nextafter(first_, 4.0f);
    return absl::OkStatus();
  }
  absl::Status Run(const Checked<PagedDecodeArgs>& call) const override { return sound_.Run(call); }
  absl::Status Run(const Checked<PagedPrefillArgs>& call) const override {
    return sound_.Run(call);
  }

 private:
  const AttentionOps& sound_ = CpuReference();
  const bool same_;
  mutable int num_writes_ = 0;
  mutable float first_ = 0;
};

// Far less than what shows in the output.
TEST(CrossTest, RowsAreReadBackBitByBit) {
  for (const bool same : {true, false}) {
    const WritingTwiceOps ops(same);
    VerifiedSteps cross(CrossOptions(&ops));
    const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
    ASSERT_TRUE(cross.Run({{1, 0, 3, {{1}, {21, 22}}, speech}}).ok());
    const absl::Status status = cross.Run({{1, 3, 1, {{1}, {21, 22}}, speech}});
    EXPECT_EQ(status.ok(), same) << status;
    EXPECT_EQ(cross.verifier->stats().num_encoder_rows_read, same ? 5 : 1);
    if (same) continue;
    EXPECT_THAT(status, Says("row 0 of block 21, where token 0 should be, holds other numbers"));
  }
}

}  // namespace
}  // namespace kvblocks::attention
