// Steady state allocates nothing: every call of operator new is counted while a manager that has
// been running for a while looks up, admits, decodes, preempts and frees.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "managers/testing/test_models.h"
#include "tests/allocation_counter/allocation_counter.h"

namespace kvblocks {
namespace {

struct Model {
  std::string name;
  int64_t num_blocks = 0;  // few enough for preemptions
  std::vector<KvCacheSpec> specs;
  bool enable_caching = true;
};

class SteadyStateAllocationTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    manager_ = Manager(GetParam().num_blocks, GetParam().specs,
                       {.enable_caching = GetParam().enable_caching});
  }

  // Prompts share prefixes of some length and are of many lengths; what a request will have said in
  // the end is known to it from the start, so that appending to it is not part of the picture.
  std::unique_ptr<Request> MakeRequest() {
    const auto shared = static_cast<int64_t>(random_() % 12) * 16;
    const auto own = static_cast<int64_t>(20 + random_() % 180);
    return NewRequest(*manager_, Tokens(shared, static_cast<TokenId>(random_() % 3) * 10'000) +
                                     Tokens(own, static_cast<TokenId>(next_ += 1'000)));
  }

  // False: does not fit.
  bool Admit(Request& request) {
    ASSERT_OK(manager_->GetComputedBlocks(request, hits_));
    const int64_t num_new = std::max<int64_t>(1, request.num_tokens() * 2 / 3 - hits_.num_tokens());
    const auto slots =
        manager_->AllocateSlots(request, {.num_new_tokens = num_new, .computed_blocks = &hits_});
    ASSERT_OK(slots.status());
    if (!slots->has_value()) return false;
    request.set_num_computed_tokens(hits_.num_tokens() + num_new);
    return true;
  }

  // Some admissions, then decode steps of all; a request that finds no block preempts the last.
  void Round() {
    while (running_.size() < 8) {
      std::unique_ptr<Request> request;
      if (waiting_ != nullptr) {
        request = std::move(waiting_);
      } else {
        const CountAllocations not_counting(false);
        request = MakeRequest();
      }
      if (!Admit(*request)) {
        waiting_ = std::move(request);
        break;
      }
      ++num_admissions_;
      running_.push_back(std::move(request));
    }
    for (size_t i = 0; i < running_.size(); ++i) {
      Request& request = *running_[i];
      if (request.num_computed_tokens() == request.num_tokens()) {
        ASSERT_OK(manager_->Free(request));
        const CountAllocations not_counting(false);
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i--));
        continue;
      }
      while (true) {
        const auto slots = manager_->AllocateSlots(request, {.num_new_tokens = 1});
        ASSERT_OK(slots.status());
        if (slots->has_value()) {
          request.set_num_computed_tokens(request.num_computed_tokens() + 1);
          ++num_steps_;
          break;
        }
        std::unique_ptr<Request> victim = std::move(running_.back());
        running_.pop_back();
        ASSERT_OK(manager_->Free(*victim));
        victim->MarkPreempted();
        ++num_preemptions_;
        const bool was_this = victim.get() == &request;
        waiting_ = std::move(victim);
        if (was_this) break;
      }
    }
  }

  static void ASSERT_OK(const absl::Status& status) {
    if (status.ok()) return;
    ADD_FAILURE() << status;
    std::abort();
  }

  std::mt19937_64 random_{7};
  int64_t next_ = 100'000;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<std::unique_ptr<Request>> running_;
  std::unique_ptr<Request> waiting_;
  ComputedBlocks hits_;
  int64_t num_admissions_ = 0, num_steps_ = 0, num_preemptions_ = 0;
};

TEST_P(SteadyStateAllocationTest, NothingIsAllocated) {
  running_.reserve(16);
  for (int i = 0; i < 60'000; ++i) Round();
  num_admissions_ = num_steps_ = num_preemptions_ = 0;
  const int64_t before = NumAllocations();
  const int64_t evictions = manager_->pool().num_evictions();
  {
    const CountAllocations counting;
    for (int i = 0; i < 20'000; ++i) Round();
  }
  EXPECT_EQ(NumAllocations() - before, 0);
  // The run was long, and had everything in it.
  EXPECT_GT(num_admissions_, 1'000);
  EXPECT_GT(num_steps_, 50'000);
  EXPECT_GT(num_preemptions_, 10);
  if (GetParam().enable_caching) {
    EXPECT_GT(manager_->pool().num_evictions() - evictions, 1'000);
  }
  EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(Models, SteadyStateAllocationTest,
                         testing::Values(Model{"Full", 50, {Full(16)}},
                                         Model{"FullWithoutCache", 110, {Full(16)}, false},
                                         Model{"Window", 28, {Window(16, 40)}},
                                         Model{"Chunked", 19, {Chunked(16, 64)}},
                                         Model{"Hybrid", 70, {Full(16), Window(16, 40)}}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks
