// Steps that need no block and fill none take a short cut through AllocateSlots. It must not
// swallow what the long way refuses or withholds.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

class QuietStepTest : public testing::Test {
 protected:
  // Five of 40 known tokens are computed: slots 5 to 6 of the second block are quiet.
  void SetUp() override { ASSERT_TRUE(Step(*manager_, *request_, 5)); }

  // The answer to a step inside the second block: "ok N" with N new blocks, "full", or an error.
  std::string Answer(const AllocateSlotsParams& params) {
    const auto slots = manager_->AllocateSlots(*request_, params);
    if (!slots.ok()) return std::string(slots.status().message());
    return slots->has_value() ? absl::StrCat("ok ", (*slots)->num_blocks()) : "full";
  }

  std::unique_ptr<KvCacheManager> manager_ = Manager(9, {Full(4)}, {.watermark = 0.5});
  std::unique_ptr<Request> request_ = NewRequest(*manager_, Tokens(40), "r");
};

TEST_F(QuietStepTest, NothingIsTakenAndNothingIsNew) {
  const std::string before = State(*manager_, {request_.get()});
  EXPECT_EQ(Answer({.num_new_tokens = 1}), "ok 0");
  EXPECT_EQ(Answer({.num_new_tokens = 1, .num_lookahead_tokens = 1}), "ok 0");
  EXPECT_EQ(State(*manager_, {request_.get()}), before);
  EXPECT_EQ(Answer({.num_new_tokens = 3, .num_lookahead_tokens = 1}), "ok 1");
}

// vLLM's rules register the end of a prompt inside a block of several hashes; then a step inside a
// block may have something to do.
TEST_F(QuietStepTest, StepsAreQuietUnlessTailsAreRegistered) {
  KvCacheManagerOptions options{.max_model_len = 100};
  options.semantics = *Semantics::ByName("vllm-0.33-exactly");
  const auto quiet_slots = [&](std::vector<KvCacheSpec> specs) {
    const auto manager = Manager(30, std::move(specs), options);
    const auto request = NewRequest(*manager, Tokens(14));
    EXPECT_TRUE(Step(*manager, *request, 13));
    return request->quiet_slots();
  };
  EXPECT_EQ(quiet_slots({Full(4)}), 15);
  EXPECT_EQ(quiet_slots({Full(4), Full(8)}), 0);
}

TEST_F(QuietStepTest, LastResultIsGone) {
  ASSERT_EQ(Answer({.num_new_tokens = 4}), "ok 1");
  request_->set_num_computed_tokens(9);
  EXPECT_EQ(Answer({.num_new_tokens = 1}), "ok 0");
}

TEST_F(QuietStepTest, FilledBlockIsRegistered) {
  EXPECT_EQ(manager_->pool().num_keys(), 1);
  EXPECT_EQ(Answer({.num_new_tokens = 3}), "ok 0");
  EXPECT_EQ(manager_->pool().num_keys(), 2);
}

TEST_F(QuietStepTest, DelayedRegistrationIsMadeUpFor) {
  EXPECT_EQ(Answer({.num_new_tokens = 3, .delay_cache_blocks = true}), "ok 0");
  EXPECT_EQ(manager_->pool().num_keys(), 1);
  request_->set_num_computed_tokens(8);
  EXPECT_EQ(Answer({.num_new_tokens = 1}), "ok 1");
  EXPECT_EQ(manager_->pool().num_keys(), 2);
}

TEST_F(QuietStepTest, FilledBlocksThatAreNeverRegisteredAreQuiet) {
  const auto request = *manager_->NewRequest({.id = "never",
                                              .content = {.token_ids = Tokens(14, 1'000)},
                                              .skip_writing_prefix_cache = true});
  ASSERT_TRUE(Step(*manager_, *request, 10));
  EXPECT_EQ(request->quiet_slots(), 12);
  for (int token = 0; token < 4; ++token) ASSERT_TRUE(Step(*manager_, *request, 1));
  EXPECT_EQ(manager_->pool().num_keys(), 1);
  EXPECT_EQ(manager_->CacheBlocks(*request, 12).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(manager_->pool().num_keys(), 1);
}

// The pool has 8 usable blocks, two of them held; 40 known tokens need 10.
TEST_F(QuietStepTest, GatesHold) {
  EXPECT_EQ(Answer({.num_new_tokens = 1, .full_sequence_must_fit = true}), "full");
  EXPECT_EQ(Answer({.num_new_tokens = 1, .reserved_blocks = 6}), "ok 0");
  EXPECT_EQ(Answer({.num_new_tokens = 1, .reserved_blocks = 7}), "full");
  const auto other = NewRequest(*manager_, Tokens(16, 1'000), "other");
  ASSERT_TRUE(Step(*manager_, *other, 16));
  ASSERT_EQ(manager_->num_free_blocks(), 2);  // fewer than the watermark's four
  request_->set_status(RequestStatus::kWaiting);
  EXPECT_EQ(Answer({.num_new_tokens = 1, .has_scheduled_requests = true}), "full");
  request_->set_status(RequestStatus::kRunning);
  EXPECT_EQ(Answer({.num_new_tokens = 1, .has_scheduled_requests = true}), "ok 0");
}

TEST_F(QuietStepTest, MisuseIsRefused) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (int64_t n : {kLeast, int64_t{-1}, kMost}) {
    EXPECT_THAT(Answer({.num_new_tokens = n}), HasSubstr("num_new_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .num_lookahead_tokens = n}),
                HasSubstr("num_lookahead_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .num_external_computed_tokens = n}),
                HasSubstr("num_external_computed_tokens is"));
    EXPECT_THAT(Answer({.num_new_tokens = 1, .reserved_blocks = n}),
                HasSubstr("reserved_blocks is"));
    request_->set_num_computed_tokens(n);
    EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("num_computed_tokens is"));
    request_->set_num_computed_tokens(5);
    request_->set_num_inflight_tokens(n);
    EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("num_inflight_tokens is"));
    request_->set_num_inflight_tokens(0);
  }
  EXPECT_THAT(Answer({.num_new_tokens = 0}), HasSubstr("num_new_tokens is 0"));
  EXPECT_THAT(Answer({.num_new_tokens = 1, .num_external_computed_tokens = 1}),
              HasSubstr("hits and external tokens are for a request that holds no blocks yet"));
  const ComputedBlocks hits({{1}}, 4);
  EXPECT_THAT(Answer({.num_new_tokens = 1, .computed_blocks = &hits}),
              HasSubstr("hits and external tokens are for a request that holds no blocks yet"));
  request_->set_status(RequestStatus::kFinished);
  EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("the request is finished"));
}

TEST_F(QuietStepTest, FreedRequestStartsAnew) {
  ASSERT_TRUE(manager_->Free(*request_).ok());
  EXPECT_THAT(Answer({.num_new_tokens = 1}), HasSubstr("num_computed_tokens is 5, expected 0"));
  request_->MarkPreempted();
  EXPECT_EQ(Answer({.num_new_tokens = 6}), "ok 2");
}

TEST(QuietStepWindowTest, WindowsAreTrimmedInEveryStep) {
  const auto manager = Manager(20, {Window(4, 3)});
  const auto request = NewRequest(*manager, Tokens(40));
  ASSERT_TRUE(Step(*manager, *request, 5));
  ASSERT_TRUE(Step(*manager, *request, 1));
  EXPECT_EQ(manager->GetBlocks(*request, 0)[0], 1);
  ASSERT_TRUE(Step(*manager, *request, 1));  // six tokens computed: the next needs the last two
  EXPECT_EQ(manager->GetBlocks(*request, 0)[0], kNullBlockId);
}

}  // namespace
}  // namespace kvblocks
