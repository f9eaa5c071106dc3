#include "kvblocks/attention_cpu.h"

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

TEST(ThreadPoolTest, EveryItemRunsOnceWhateverTheThreads) {
  for (const int num_threads : {1, 2, 3, 16}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t num_items : {0, 1, 2, 15, 1000}) {
      std::vector<int> runs(static_cast<size_t>(num_items));
      pool.ParallelFor(num_items, [&](int64_t item, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, num_threads);
        ++runs[item];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(num_items), 1));
    }
  }
}

TEST(ThreadPoolTest, ThreadsHaveNumbersOfTheirOwn) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(4);  // not atomic: a number shared by two threads would be a race
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(50, [&](int64_t item, int thread) { sums[thread] += item; });
  }
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  EXPECT_EQ(total, 200 * 49 * 50 / 2);
}

TEST(ThreadPoolTest, ResultsAreThereWhenItReturns) {
  ThreadPool pool(3);
  std::vector<int64_t> squares(64);
  for (int64_t round = 0; round < 500; ++round) {
    pool.ParallelFor(64, [&](int64_t item, int) { squares[item] = item * item + round; });
    for (int64_t item = 0; item < 64; ++item) ASSERT_EQ(squares[item], item * item + round);
  }
}

TEST(ThreadPoolTest, SeveralPoolsWorkAtTheSameTime) {
  ThreadPool outer(3);
  std::atomic<int64_t> sum{0};
  outer.ParallelFor(6, [&](int64_t, int) {
    ThreadPool inner(2);
    inner.ParallelFor(10, [&](int64_t item, int) { sum += item; });
  });
  EXPECT_EQ(sum, 6 * 45);
}

TEST(ThreadPoolTest, CallersOfOnePoolTakeTurns) {
  constexpr int64_t kRounds = 500;
  ThreadPool pool(3);
  std::vector<std::vector<int64_t>> sums(3, std::vector<int64_t>(3));  // [caller][thread]
  std::latch start(3);
  std::vector<std::thread> callers;
  for (std::vector<int64_t>& sum : sums) {
    callers.emplace_back([&] {
      start.arrive_and_wait();
      for (int64_t round = 0; round < kRounds; ++round) {
        pool.ParallelFor(4, [&](int64_t item, int thread) {
          std::this_thread::yield();  // so that others come in the middle
          sum[thread] += item;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::vector<int64_t>& sum : sums) {
    EXPECT_EQ(sum[0] + sum[1] + sum[2], kRounds * (0 + 1 + 2 + 3));
  }
}

TEST(ThreadPoolTest, WithoutAPoolTheCallerDoesItInOrder) {
  std::vector<int64_t> order;
  ParallelFor(nullptr, 5, [&](int64_t item, int thread) {
    EXPECT_EQ(thread, 0);
    order.push_back(item);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(NumThreads(nullptr), 1);
}

}  // namespace
}  // namespace kvblocks::attention
