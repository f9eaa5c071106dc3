// What the verifier finds about rows of encoders, to which decoders attend.

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::attention {
namespace {

using ::testing::HasSubstr;

// A decoder's own rows and those of its encoder, blocks of 4.
class Cross {
 public:
  explicit Cross(const AttentionOps* ops = &CpuReference(),
                 std::function<BlockUse(int32_t block)> use_of_block = nullptr) {
    for (int64_t i = 0; i < 64; ++i) tokens_.push_back(i);
    VerifierOptions options;
    options.num_blocks = 40;
    options.groups = {{.name = "own", .block_size = 4},
                      {.name = "encoder's", .block_size = 4, .is_cross = true}};
    options.ops = ops;
    options.use_of_block = std::move(use_of_block);
    verifier = KvCacheVerifier::Create(options).value();
  }
  struct Part {
    uint64_t id;
    int64_t num_computed, num_scheduled;
    std::vector<int32_t> own, encoder;
    std::vector<int64_t> encoder_tokens;
  };
  absl::Status Step(const std::vector<Part>& parts) {
    std::vector<absl::Span<const int32_t>> tables;
    for (const Part& part : parts) {
      tables.push_back(part.own);
      tables.push_back(part.encoder);
    }
    std::vector<VerifiedRequest> requests;
    for (size_t i = 0; i < parts.size(); ++i) {
      requests.push_back({.id = parts[i].id,
                          .name = parts[i].id == 1 ? "A" : "B",
                          .num_computed = parts[i].num_computed,
                          .num_scheduled = parts[i].num_scheduled,
                          .tokens = tokens_,
                          .block_tables = absl::MakeConstSpan(tables).subspan(2 * i, 2),
                          .encoder_tokens = parts[i].encoder_tokens});
    }
    return verifier->OnStep(requests);
  }
  std::unique_ptr<KvCacheVerifier> verifier;

 private:
  std::vector<int64_t> tokens_;
};

TEST(CrossTest, EveryQuerySeesAllOfTheEncodersRows) {
  Cross cross;
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9, 10};
  ASSERT_TRUE(cross.Step({{1, 0, 3, {1}, {21, 22}, speech}}).ok());
  // B comes in beside A's decode, with another input, and C without any.
  ASSERT_TRUE(cross
                  .Step({{1, 3, 1, {1}, {21, 22}, speech},
                         {2, 0, 5, {2, 3}, {25}, {1, 2, 3}},
                         {3, 0, 1, {4}, {}, {}}})
                  .ok());
  ASSERT_TRUE(cross.Step({{2, 5, 1, {2, 3}, {25}, {1, 2, 3}}}).ok());
  const VerifierStats& stats = cross.verifier->stats();
  EXPECT_EQ(stats.num_rows_written, 3 + 1 + 5 + 1 + 1 + 6 + 3);
  EXPECT_EQ(stats.num_rows_attended, 11 + 10);
  // Own: 1 + 2 + 3, 4, 1 to 5, 1, 6; of the encoder 4 queries at 6 rows, 6 at 3.
  EXPECT_EQ(stats.num_keys_attended, 6 + 4 + 15 + 1 + 6 + 4 * 6 + 6 * 3);
}

TEST(CrossTest, AnotherEncodersRowsAreAWrongNumber) {
  Cross cross;
  ASSERT_TRUE(cross.Step({{1, 0, 3, {1}, {21, 22}, {5, 6, 7, 8, 9}}}).ok());
  ASSERT_TRUE(cross.Step({{2, 0, 3, {2}, {22}, {1, 2}}}).ok());  // takes A's second block
  const absl::Status status = cross.Step({{1, 3, 1, {1}, {21, 22}, {5, 6, 7, 8, 9}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(cross.verifier->failure()->layer, 1);
  EXPECT_EQ(cross.verifier->failure()->key_position, 4);
  EXPECT_EQ(cross.verifier->failure()->block, 22);
}

TEST(CrossTest, ATableThatIsTooShortIsNamed) {
  Cross cross;
  const absl::Status status = cross.Step({{1, 0, 3, {1}, {21}, {5, 6, 7, 8, 9}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("entry 1 of the block table is missing"));
  Cross other;
  ASSERT_TRUE(other.Step({{1, 0, 3, {1}, {21}, {5, 6}}}).ok());
  EXPECT_THAT(std::string(other.Step({{1, 3, 1, {1}, {21}, {5}}}).message()),
              HasSubstr("got 1 tokens of the encoder, but it came in with 2"));
}

TEST(CrossTest, BlocksThatAreTakenAgainAreNamed) {
  Cross cross;
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
  ASSERT_TRUE(cross.Step({{1, 0, 3, {1}, {21, 22}, speech}}).ok());
  const absl::Status status = cross.Step({{1, 3, 1, {1}, {21, 22, 23, 24}, speech}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the block table has 4 entries, but the 5 rows of the encoder take 2"));
  EXPECT_EQ(cross.verifier->failure()->block, 23);
  // Other blocks have nothing of what the first step wrote.
  Cross moved;
  ASSERT_TRUE(moved.Step({{1, 0, 3, {1}, {21, 22}, speech}}).ok());
  EXPECT_THAT(std::string(moved.Step({{1, 3, 1, {1}, {21, 23}, speech}}).message()),
              HasSubstr("what the encoder wrote in the request's first step is not there: row 0 of "
                        "block 23, where token 4 should be, holds poison"));
}

TEST(CrossTest, BlocksThatAreGivenBackEarlyAreNamed) {
  int32_t freed = -1;
  Cross cross(&CpuReference(), [&freed](int32_t block) {
    return block == freed ? BlockUse::kFree : BlockUse::kHeld;
  });
  const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
  ASSERT_TRUE(cross.Step({{1, 0, 3, {1}, {21, 22}, speech}}).ok());
  freed = 22;
  EXPECT_THAT(
      std::string(cross.Step({{1, 3, 1, {1}, {21, 22}, speech}}).message()),
      HasSubstr("token 4 of the encoder is in reach of every query, but entry 1 of the block "
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
    Cross cross(&ops);
    const std::vector<int64_t> speech = {5, 6, 7, 8, 9};
    ASSERT_TRUE(cross.Step({{1, 0, 3, {1}, {21, 22}, speech}}).ok());
    const absl::Status status = cross.Step({{1, 3, 1, {1}, {21, 22}, speech}});
    EXPECT_EQ(status.ok(), same) << status;
    EXPECT_EQ(cross.verifier->stats().num_encoder_rows_read, same ? 5 : 1);
    if (same) continue;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("row 0 of block 21, where token 0 should be, holds other numbers"));
  }
}

}  // namespace
}  // namespace kvblocks::attention
