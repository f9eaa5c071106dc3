#include "kvblocks/sim/engine/quiet_decodes.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

SimRequest With(int64_t admission, int64_t num_computed) {
  SimRequest request;
  request.admission = admission;
  request.num_computed = num_computed;
  return request;
}

class QuietDecodesTest : public ::testing::Test {
 protected:
  // Steps are scheduled one after the other.
  void Step() {
    quiet_.Advance();
    ++next_;
  }
  std::vector<SimRequest*> Due() {
    std::vector<SimRequest*> due;
    quiet_.TakeDue(next_, &due);
    return due;
  }
  QuietDecodes quiet_;
  int64_t next_ = 11;  // step 10 was the last one
};

TEST_F(QuietDecodesTest, MembersComeBackWhenTheyAreDue) {
  SimRequest a = With(1, 100), b = With(2, 200), c = With(3, 300);
  quiet_.Add(a, 10, 13);
  quiet_.Add(b, 10, 12);
  quiet_.Add(c, 10, 13);
  EXPECT_EQ(quiet_.latest_admission(), 3);
  EXPECT_EQ(quiet_.sum_computed(), 600);
  EXPECT_THAT(Due(), IsEmpty());
  Step();
  EXPECT_EQ(quiet_.sum_computed(), 603);
  EXPECT_THAT(Due(), ElementsAre(&b));
  EXPECT_EQ(quiet_.sum_computed(), 402);
  Step();
  EXPECT_EQ(QuietDecodes::NumComputed(a, next_), 102);
  EXPECT_THAT(Due(), UnorderedElementsAre(&a, &c));
  EXPECT_EQ(quiet_.size(), 0);
  EXPECT_EQ(quiet_.sum_computed(), 0);
  EXPECT_EQ(quiet_.latest_admission(), -1);
}

TEST_F(QuietDecodesTest, RemovedMemberDoesNotComeBack) {
  SimRequest a = With(1, 100), b = With(2, 200);
  quiet_.Add(a, 10, 12);
  quiet_.Add(b, 10, 12);
  quiet_.Remove(a, next_);
  EXPECT_EQ(quiet_.sum_computed(), 200);
  Step();
  EXPECT_THAT(Due(), ElementsAre(&b));
}

TEST_F(QuietDecodesTest, AllCanBeTakenAtOnce) {
  SimRequest a = With(1, 100), b = With(2, 200);
  quiet_.Add(a, 10, 10 + QuietDecodes::kHorizon);
  Step();
  quiet_.Add(b, 11, 13);
  std::vector<SimRequest*> all;
  quiet_.TakeAll(next_, &all);
  EXPECT_THAT(all, UnorderedElementsAre(&a, &b));
  EXPECT_EQ(quiet_.size(), 0);
  EXPECT_EQ(quiet_.sum_computed(), 0);
  quiet_.ForEach([](const SimRequest&) { FAIL(); });
}

TEST_F(QuietDecodesTest, WE30_SumsOfARunAreThoseOfTheClosedForm) {
  // 16 ms per step and 40 ns per context token, the new one included; 4 requests with 4,000 tokens
  // in all, 10 steps.
  SimRequest requests[] = {With(1, 500), With(2, 1500), With(3, 700), With(4, 1300)};
  for (SimRequest& request : requests) quiet_.Add(request, 10, 30);
  int64_t time = 0;
  for (int i = 0; i < 10; ++i) {
    time += 16'000'000'000 + 40'000 * (quiet_.sum_computed() + quiet_.size());
    Step();
  }
  EXPECT_EQ(time, 161'608'800'000);
}

}  // namespace
}  // namespace kvblocks::sim
