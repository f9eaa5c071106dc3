// Lengths and sums of lengths that kernels compute for others, emulated.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/cuda/kernels/attend_rows.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

// Of requests with so many keys each, among `num_keys`.
std::vector<int32_t> Starts(const std::vector<int32_t>& lengths, int64_t num_keys,
                            uint32_t expected_flags) {
  std::vector<int32_t> starts(lengths.size() + 1, -1);
  uint32_t flags = 0;
  LaunchContext context;
  context.error_flags = &flags;
  KeyStartsParams params;
  params.seq_lens = lengths.data();
  params.num_requests = static_cast<int32_t>(lengths.size());
  params.num_keys = num_keys;
  params.starts = starts.data();
  EXPECT_EQ(LaunchKeyStarts(context, params), 0);
  EXPECT_EQ(flags, expected_flags);
  return starts;
}

TEST(KeyLengthsTest, StartsAreSumsOfTheLengthsBefore) {
  EXPECT_EQ(Starts({}, 0, 0), std::vector<int32_t>{0});
  std::vector<int32_t> lengths, expected = {0};
  for (int32_t b = 0; b < 100; ++b) {
    lengths.push_back(b % 7 == 0 ? 0 : 1000 + b);
    expected.push_back(expected.back() + lengths.back());
  }
  EXPECT_EQ(Starts(lengths, expected.back(), 0), expected);
}

TEST(KeyLengthsTest, StartsBeyondTheKeysAreClampedAndFlagged) {
  EXPECT_EQ(Starts({3, 9, 2}, 10, kLengthClamped), (std::vector<int32_t>{0, 3, 10, 10}));
  EXPECT_EQ(Starts({3, -5, 2}, 10, kLengthClamped), (std::vector<int32_t>{0, 3, 3, 5}));
  const std::vector<int32_t> longest(70, INT32_MAX);
  const std::vector<int32_t> starts = Starts(longest, INT32_MAX, kLengthClamped);
  EXPECT_EQ(starts[0], 0);
  EXPECT_EQ(std::count(starts.begin() + 1, starts.end(), INT32_MAX), 70);
}

TEST(KeyLengthsTest, LengthsBehindAPrefixAreFlaggedWhereQueriesDoNotFit) {
  const std::vector<int32_t> query_starts = {0, 1, 1, 4}, lengths = {33, 0, 34};
  std::vector<int32_t> suffixes(3, -1);
  uint32_t flags = 0;
  LaunchContext context;
  context.error_flags = &flags;
  SuffixLengthsParams params;
  params.query_start_loc = query_starts.data();
  params.seq_lens = lengths.data();
  params.num_requests = 3;
  params.prefix = 31;
  params.suffix_lens = suffixes.data();
  EXPECT_EQ(LaunchSuffixLengths(context, params), 0);
  EXPECT_EQ(suffixes, (std::vector<int32_t>{2, 0, 3}));
  EXPECT_EQ(flags, 0u);
  params.prefix = 32;
  EXPECT_EQ(LaunchSuffixLengths(context, params), 0);
  EXPECT_EQ(suffixes, (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(flags, static_cast<uint32_t>(kLengthClamped));
}

TEST(KeyLengthsTest, MaskBitsAreCountedRequestByRequest) {
  std::vector<int32_t> starts = {0}, lengths;
  std::vector<int64_t> expected, bits(100, -1);
  int64_t sum = 0;
  for (int b = 0; b < 100; ++b) {
    lengths.push_back(b % 7 == 0 ? 0 : 1000000 + b);
    starts.push_back(starts.back() + b % 5);
    expected.push_back(sum);
    sum += int64_t{b % 5} * lengths.back();
  }
  MaskBitsParams params;
  params.num_requests = 100;
  params.query_start_loc = starts.data();
  params.seq_lens = lengths.data();
  params.bits_before = bits.data();
  EXPECT_EQ(LaunchMaskBits({}, params), 0);
  EXPECT_EQ(bits, expected);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
