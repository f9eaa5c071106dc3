// Faults planted between manager and tensors, each of which the verifier finds in the very step and
// names: request, layer, position and block.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::testing {
namespace {

using attention::Says;
using ::testing::HasSubstr;

// A backend with one fault.
class FaultyOps final : public attention::AttentionOps {
 public:
  const char* name() const override { return "FAULTY"; }

  std::function<void(std::vector<int64_t>&)> change_slots = [](std::vector<int64_t>&) {};
  std::function<void(attention::AttnParams&)> change_params = [](attention::AttnParams&) {};

  template <typename Args>
  using Checked = attention::Checked<Args>;
  absl::Status Run(const Checked<attention::ReshapeAndCacheArgs>& call) const override {
    const attention::ReshapeAndCacheArgs& args = call.args();
    const auto* slots = reinterpret_cast<const int64_t*>(args.slot_mapping.data);
    std::vector<int64_t> changed(slots, slots + args.slot_mapping.num_elements());
    change_slots(changed);
    attention::ReshapeAndCacheArgs with = args;
    with.slot_mapping = attention::ViewOf(absl::MakeConstSpan(changed));
    return sound_.ReshapeAndCache(call.context(), with);
  }
  absl::Status Run(const Checked<attention::PagedDecodeArgs>& call) const override {
    attention::PagedDecodeArgs with = call.args();
    change_params(with.params);
    return sound_.PagedDecode(call.context(), with);
  }
  absl::Status Run(const Checked<attention::PagedPrefillArgs>& call) const override {
    attention::PagedPrefillArgs with = call.args();
    change_params(with.params);
    return sound_.PagedPrefill(call.context(), with);
  }

 private:
  const attention::AttentionOps& sound_ = attention::CpuReference();
};

// One full layer and one with a window of 6, blocks of 4; tables are written by hand. Group 0 takes
// blocks 1, 2, 3, ..., group 1 takes 11, 12, 13, ...
class PlantedFaultTest : public ::testing::Test {
 protected:
  PlantedFaultTest() {
    for (int64_t i = 0; i < 64; ++i) tokens_.push_back(i);
    attention::VerifierOptions options;
    options.num_blocks = 40;
    options.groups = {{.name = "full", .block_size = 4, .sinks = {0.5f, 1.5f}},
                      {.name = "window 6", .block_size = 4, .window = 6, .sinks = {0.5f, 1.5f}}};
    options.ops = &ops_;
    options.use_of_block = [this](int32_t block) {
      return std::find(freed_.begin(), freed_.end(), block) == freed_.end()
                 ? attention::BlockUse::kHeld
                 : freed_use_;
    };
    verifier_ = attention::KvCacheVerifier::Create(options).value();
  }

  std::vector<int32_t> Blocks(int32_t first, int64_t num_tokens) const {
    std::vector<int32_t> blocks;
    for (int64_t i = 0; i < (num_tokens + 3) / 4; ++i) {
      blocks.push_back(first + static_cast<int32_t>(i));
    }
    return blocks;
  }

  absl::Status Step(const std::string& name, int64_t num_computed, int64_t num_scheduled,
                    const std::vector<int32_t>& full, const std::vector<int32_t>& window) {
    const std::vector<absl::Span<const int32_t>> tables = {full, window};
    return verifier_->OnStep({{.id = std::hash<std::string>()(name),
                               .name = name,
                               .num_computed = num_computed,
                               .num_scheduled = num_scheduled,
                               .tokens = tokens_,
                               .block_tables = tables}});
  }
  // With the tables that a sound manager makes.
  absl::Status SoundStep(int64_t num_computed, int64_t num_scheduled) {
    const int64_t end = num_computed + num_scheduled;
    std::vector<int32_t> window = Blocks(11, end);
    for (int64_t i = 0; (i + 1) * 4 <= num_computed - 5; ++i) window[static_cast<size_t>(i)] = 0;
    return Step("A", num_computed, num_scheduled, Blocks(1, end), window);
  }

  void ExpectFailure(const absl::Status& status, const std::string& request, int64_t layer,
                     int64_t position, int64_t key_position, int32_t block) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    ASSERT_TRUE(verifier_->failure().has_value());
    const attention::VerifierFailure& failure = *verifier_->failure();
    EXPECT_EQ(failure.request, request) << failure.text;
    EXPECT_EQ(failure.layer, layer) << failure.text;
    EXPECT_EQ(failure.position, position) << failure.text;
    EXPECT_EQ(failure.key_position, key_position) << failure.text;
    EXPECT_EQ(failure.block, block) << failure.text;
    // The message names them, too, and the next call does not go on.
    EXPECT_THAT(failure.text, HasSubstr("request " + request + ", layer " + std::to_string(layer)));
    if (position >= 0) {
      EXPECT_THAT(failure.text, HasSubstr("position " + std::to_string(position)));
    }
    if (block >= 0) {
      EXPECT_THAT(failure.text, HasSubstr("block " + std::to_string(block)));
    }
    EXPECT_EQ(verifier_->OnStep({}), status);
  }
  const std::string& text() const { return verifier_->failure()->text; }

  std::vector<int64_t> tokens_;
  FaultyOps ops_;
  std::vector<int32_t> freed_;  // in the books of the pool
  attention::BlockUse freed_use_ = attention::BlockUse::kFree;
  std::unique_ptr<attention::KvCacheVerifier> verifier_;
};

TEST_F(PlantedFaultTest, NoFaultNoFailure) {
  EXPECT_TRUE(SoundStep(0, 13).ok());
  for (int64_t p = 13; p < 40; ++p) ASSERT_TRUE(SoundStep(p, 1).ok()) << p;
  EXPECT_EQ(verifier_->stats().num_rows_attended, 2 * 40);
  EXPECT_LT(verifier_->stats().max_error, 1e-6);
}

// --- Slot mapping ---

TEST_F(PlantedFaultTest, ARowThatIsNotWrittenIsFoundAsPoison) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  ops_.change_slots = [](std::vector<int64_t>& slots) {
    if (slots[0] / 4 == 3) slots[0] = -1;  // of the full layer
  };
  ExpectFailure(SoundStep(9, 1), "A", 0, 9, 9, 3);
  EXPECT_THAT(text(), HasSubstr("row 1 of block 3, where token 9 should be, holds poison"));
  EXPECT_THAT(text(), HasSubstr("last handed out to request A in step 0"));
}

TEST_F(PlantedFaultTest, RowsThatChangePlacesAreFoundAtTheFirstOfThem) {
  ops_.change_slots = [](std::vector<int64_t>& slots) { std::swap(slots[5], slots[6]); };
  // Of the queries that see either, the first is at 5.
  ExpectFailure(SoundStep(0, 9), "A", 0, 5, 5, 2);
  EXPECT_THAT(text(), HasSubstr("row 1 of block 2, where token 5 should be, holds other numbers"));
}

TEST_F(PlantedFaultTest, ASlotInAnotherBlockIsFound) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  ops_.change_slots = [](std::vector<int64_t>& slots) {
    if (slots[0] / 4 == 13) slots[0] -= 4;  // of the window layer: over token 5
  };
  ExpectFailure(SoundStep(9, 1), "A", 1, 9, 5, 12);
}

// --- Blocks given away ---

TEST_F(PlantedFaultTest, ABlockReclaimedTooEarlyIsMissingInTheTable) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  std::vector<int32_t> window = Blocks(11, 10);
  window[1] = 0;  // the query at 9 sees tokens 4 to 9
  ExpectFailure(Step("A", 9, 1, Blocks(1, 10), window), "A", 1, 9, 4, 0);
  EXPECT_THAT(text(), HasSubstr("entry 1 of the block table is the null block"));
}

TEST_F(PlantedFaultTest, ABlockHandedToTwoIsFoundWhereItIsReadNext) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  // B gets block 12 anew, as if A's window had left it.
  ASSERT_TRUE(Step("B", 0, 1, {20}, {12}).ok());
  ExpectFailure(SoundStep(9, 1), "A", 1, 9, 4, 12);
  EXPECT_THAT(text(), HasSubstr("last handed out to request B in step 1"));
  EXPECT_THAT(text(), HasSubstr("tables of live requests name it 2 times"));
}

TEST_F(PlantedFaultTest, ABlockOfTwoGroupsIsFoundInTheSameStep) {
  ExpectFailure(Step("A", 0, 4, {1}, {1}), "A", 0, 0, 0, 1);
}

TEST_F(PlantedFaultTest, AFreedBlockThatIsHitAgainIsFoundWhenItIsReadBack) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  freed_ = {1, 2, 3, 11, 12, 13};
  ASSERT_TRUE(verifier_->Release(std::hash<std::string>()("A")).ok());
  freed_ = {};
  // Nothing is cached, so B's prefix of 8 tokens cannot be there.
  ExpectFailure(Step("B", 8, 1, {1, 2, 20}, {11, 12, 21}), "B", 0, -1, 0, 1);
  EXPECT_THAT(text(),
              HasSubstr("the prefix of 8 tokens that the request came in with is not there"));
  EXPECT_THAT(text(), HasSubstr("was left by its last holder before the end of step 1"));
}

TEST_F(PlantedFaultTest, ABlockFreedTooEarlyIsFoundBeforeItIsReused) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  freed_ = {11};  // token 3 is out of sight from 9 on
  ASSERT_TRUE(SoundStep(9, 1).ok());
  freed_ = {11, 12};
  freed_use_ = attention::BlockUse::kCached;
  ExpectFailure(SoundStep(10, 1), "A", 1, 10, 5, 12);
  EXPECT_THAT(text(), HasSubstr("is 12, which the engine counts as free and cached"));
}

TEST_F(PlantedFaultTest, APrefixOfOtherTokensIsNotAHit) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  tokens_[2] = 77;
  ExpectFailure(Step("B", 8, 1, {1, 2, 20}, {11, 12, 21}), "B", 0, -1, 2, 1);
  EXPECT_THAT(text(), HasSubstr("holds other numbers"));
}

TEST_F(PlantedFaultTest, ATableThatIsTooShortIsFound) {
  ExpectFailure(Step("A", 0, 9, Blocks(1, 8), Blocks(11, 9)), "A", 0, 0, 8, -1);
  EXPECT_THAT(text(),
              HasSubstr("token 8 is computed in this step, but entry 2 of the block table is "
                        "missing: it has 2"));
}

TEST_F(PlantedFaultTest, RejectedDraftsMustBeComputedAgain) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  ASSERT_TRUE(verifier_->Rollback(std::hash<std::string>()("A"), 7).ok());
  ops_.change_slots = [](std::vector<int64_t>& slots) { slots[1] = -1; };
  ExpectFailure(SoundStep(7, 2), "A", 0, 8, 8, 3);
}

TEST_F(PlantedFaultTest, EntriesOutOfSightMayBeAnythingInARollback) {
  ASSERT_TRUE(SoundStep(0, 13).ok());
  std::vector<int32_t> window = Blocks(11, 14);
  window[0] = -1, window[1] = 1 << 30;
  ASSERT_TRUE(Step("A", 13, 1, Blocks(1, 14), window).ok());
  ASSERT_TRUE(verifier_->Rollback(std::hash<std::string>()("A"), 2).ok());
  EXPECT_FALSE(verifier_->failure().has_value());
}

// --- Window edge ---

TEST_F(PlantedFaultTest, AWindowThatIsOneShorterIsFound) {
  ops_.change_params = [](attention::AttnParams& params) {
    if (params.window_left > 0) --params.window_left;
  };
  ASSERT_TRUE(SoundStep(0, 5).ok());
  ExpectFailure(SoundStep(5, 1), "A", 1, 5, 0, 11);
  EXPECT_THAT(text(), HasSubstr("it is the result with token 1 as the first in sight, not 0"));
}

TEST_F(PlantedFaultTest, AWindowThatIsOneLongerIsFound) {
  ops_.change_params = [](attention::AttnParams& params) {
    if (params.window_left > 0) ++params.window_left;
  };
  ASSERT_TRUE(SoundStep(0, 6).ok());
  ExpectFailure(SoundStep(6, 1), "A", 1, 6, 0, 11);
  EXPECT_THAT(text(), HasSubstr("it is the result with token 0 as the first in sight, not 1"));
}

TEST_F(PlantedFaultTest, AWindowThatReachesIntoReclaimedBlocksIsFound) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  ops_.change_params = [](attention::AttnParams& params) {
    if (params.window_left > 0) ++params.window_left;
  };
  // The query at 9 sees from token 4 on; block 11 with token 3 was given back.
  ExpectFailure(SoundStep(9, 1), "A", 1, 9, 3, 0);
  EXPECT_THAT(text(),
              HasSubstr("void rows out of sight were read, of which the nearest is token 3"));
}

// --- Sink ---

TEST_F(PlantedFaultTest, AnIgnoredSinkIsFound) {
  ops_.change_params = [](attention::AttnParams& params) { params.sinks = {}; };
  ExpectFailure(SoundStep(0, 1), "A", 0, 0, -1, 1);
  EXPECT_THAT(text(), HasSubstr("it is the result without the sinks"));
}

TEST_F(PlantedFaultTest, ASinkOfTheWrongHeadIsFound) {
  const std::vector<float> swapped = {1.5f, 0.5f};
  ASSERT_TRUE(SoundStep(0, 9).ok());
  ops_.change_params = [&](attention::AttnParams& params) {
    if (params.window_left > 0) params.sinks = attention::ViewOf(absl::MakeConstSpan(swapped));
  };
  ExpectFailure(SoundStep(9, 1), "A", 1, 9, -1, 13);
  EXPECT_THAT(text(), HasSubstr("all rows are right, the attention over them is not"));
}

// --- Misuse is distinguished ---

TEST_F(PlantedFaultTest, WhatCannotBeAStepIsRefusedAndNotAFailure) {
  ASSERT_TRUE(SoundStep(0, 9).ok());
  const absl::Status status = SoundStep(10, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status, Says("got 10 computed tokens"));
  EXPECT_THAT(status, Says("call Rollback or Release"));
  EXPECT_FALSE(verifier_->failure().has_value());
  EXPECT_THAT(Step("B", INT64_MAX, INT64_MAX, {}, {}), Says("got 64 token ids"));
  EXPECT_TRUE(SoundStep(9, 1).ok());
}

}  // namespace
}  // namespace kvblocks::testing
