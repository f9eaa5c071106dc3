// SM-51, SM-53: random numbers by place, fixed functions, and what the shapes of numbers come to.

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "sim/gen/distributions.h"
#include "sim/gen/fixed_math.h"
#include "sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

using workload::v1::Distribution;

// The vectors that come with the authors' own implementation (Random123, kat_vectors).
TEST(PhiloxTest, GivesThePublishedNumbers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EntitiesStreamsAndSeedsAreApart) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {1, 2}) {
    for (const char* stream : {"gap", "user", "user0"}) {
      for (const uint64_t entity : {0, 1, 2}) {
        Draws draws(seed, stream, entity);
        for (int i = 0; i < 10; ++i) EXPECT_TRUE(seen.insert(draws.Bits()).second);
      }
    }
  }
}

TEST(PhiloxTest, ShufflesEverySize) {
  for (const int64_t size : {1, 2, 3, 5, 16, 17, 1000}) {
    std::set<int64_t> places;
    int64_t unmoved = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = Shuffled(i, size, StreamKey(1, "order"));
      EXPECT_TRUE(place >= 0 && place < size);
      places.insert(place);
      unmoved += place == i ? 1 : 0;
    }
    EXPECT_EQ(static_cast<int64_t>(places.size()), size);
    if (size >= 16) {
      EXPECT_LT(unmoved, size / 2);
    }
  }
}

TEST(FixedMathTest, IsTheExactFunctionToThirteenDigits) {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    EXPECT_NEAR(FixedLn(x), std::log(x), 1e-13 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
  for (double x = -690; x < 690; x += 0.7) {
    EXPECT_NEAR(FixedExp(x) / std::exp(x), 1, 1e-13) << x;
  }
  for (double x = -3; x < 3; x += 0.01) {
    EXPECT_NEAR(FixedSinTurns(x), std::sin(x * 2 * M_PI), 1e-13) << x;
  }
  EXPECT_EQ(FixedExp(-1000), 0);
  EXPECT_NEAR(FixedPow(2, 0.5), std::sqrt(2.0), 1e-15);
}

// Percentage points as tables have them.
TEST(FixedMathTest, KnowsTheNormalDistribution) {
  EXPECT_EQ(NormalQuantile(0.5), 0);
  EXPECT_NEAR(NormalQuantile(0.9), 1.2815515655446004, 1e-14);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(NormalQuantile(0.001), -3.090232306167814, 1e-13);
  EXPECT_NEAR(NormalQuantile(1e-12), -7.034483825301131, 1e-11);
}

TEST(BucketsTest, HoldEachNumberOnce) {
  int64_t end = 0;
  for (int32_t bucket = 0; bucket <= kMostBucket; ++bucket) {
    EXPECT_EQ(BucketLow(bucket), end);
    end = BucketLow(bucket + 1);
    EXPECT_EQ(BucketOf(BucketLow(bucket)), bucket);
    EXPECT_EQ(BucketOf(end - 1), bucket);
  }
}

struct Sample {
  double mean = 0, variance = 0;
};

Sample SampleOf(const Distribution& shape, int64_t least, int count = 40000) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) {
    Draws draws(1, "sample", static_cast<uint64_t>(i));
    const auto value = static_cast<double>(DrawWhole(shape, draws, least));
    sum += value;
    squares += value * value;
  }
  return {sum / count, squares / count - sum / count * sum / count};
}

// Their moments against formulas: mean and variance, then six standard errors of the mean.
void ExpectMoments(const Distribution& shape, double mean, double variance) {
  const Sample sample = SampleOf(shape, 0);
  EXPECT_NEAR(sample.mean, mean, 6 * std::sqrt(variance / 40000) + 1e-9)
      << shape.ShortDebugString();
  EXPECT_NEAR(sample.variance, variance, 0.1 * variance + 1e-9) << shape.ShortDebugString();
  const Moments moments = WholeMoments(shape, 0);
  EXPECT_NEAR(moments.mean, mean, 0.002 * mean) << shape.ShortDebugString();
}

TEST(DistributionsTest, HaveTheMomentsOfTheirFormulas) {
  Distribution shape;
  shape.set_fixed(7);
  ExpectMoments(shape, 7, 0);
  shape.mutable_uniform()->set_low(100);
  shape.mutable_uniform()->set_high(1100);
  ExpectMoments(shape, 600, 1000.0 * 1000 / 12);
  shape.set_exponential(5000);
  ExpectMoments(shape, 5000, 5000.0 * 5000);
  shape.set_geometric(4);
  ExpectMoments(shape, 4, 12);
  const double sigma = std::log(2) / 1.2815515655446004;
  shape.mutable_lognormal()->set_median(1000);
  shape.mutable_lognormal()->set_p90(2000);
  ExpectMoments(shape, 1000 * std::exp(sigma * sigma / 2),
                1e6 * std::exp(sigma * sigma) * (std::exp(sigma * sigma) - 1));
}

TEST(DistributionsTest, AreCutToMinAndMax) {
  Distribution shape;
  shape.mutable_lognormal()->set_median(100);
  shape.mutable_lognormal()->set_p90(1000);
  shape.set_min(50);
  shape.set_max(300);
  int64_t lowest = 1000, highest = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    Draws draws(1, "cut", i);
    const int64_t value = DrawWhole(shape, draws, 1);
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  EXPECT_EQ(lowest, 50);
  EXPECT_EQ(highest, 300);
}

TEST(DistributionsTest, MixesTwoModes) {
  Distribution shape;
  auto& mixture = *shape.mutable_mixture();
  for (auto* mode : {mixture.mutable_a(), mixture.mutable_b()}) {
    mode->set_median(100);
    mode->set_p90(100);
  }
  mixture.mutable_b()->set_median(5000);
  mixture.mutable_b()->set_p90(5000);
  mixture.set_second(0.25);
  EXPECT_NEAR(SampleOf(shape, 0).mean, 0.75 * 100 + 0.25 * 5000, 6 * 2122 / 200.0);
}

// Every rank as often as it should be, for powers on both sides of 1.
TEST(DistributionsTest, ZipfHasItsChances) {
  for (const double alpha : {0.0, 0.5, 1.0, 1.3, 3.0}) {
    const ZipfDistribution zipf(alpha, 20);
    constexpr int kDraws = 50000;
    std::vector<int> counts(21);
    for (int i = 0; i < kDraws; ++i) {
      Draws draws(3, "zipf", static_cast<uint64_t>(i));
      ++counts[static_cast<size_t>(zipf(draws))];
    }
    double sum = 0;
    for (int64_t k = 1; k <= 20; ++k) sum += std::pow(static_cast<double>(k), -alpha);
    for (int64_t k = 1; k <= 20; ++k) {
      const double p = std::pow(static_cast<double>(k), -alpha) / sum;
      EXPECT_NEAR(zipf.Probability(k), p, 1e-12);
      EXPECT_NEAR(counts[static_cast<size_t>(k)], kDraws * p, 6 * std::sqrt(kDraws * p) + 1)
          << alpha << " " << k;
    }
  }
}

TEST(DistributionsTest, GammaHasItsMoments) {
  for (const double shape : {0.25, 1.0, 4.0}) {
    double sum = 0, squares = 0;
    constexpr int kDraws = 40000;
    for (uint64_t i = 0; i < kDraws; ++i) {
      Draws draws(5, "gamma", i);
      const double value = DrawGamma(shape, draws);
      sum += value;
      squares += value * value;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, shape, 6 * std::sqrt(shape / kDraws));
    EXPECT_NEAR(squares / kDraws - mean * mean, shape, 0.12 * shape + 0.02);
  }
  EXPECT_NEAR(GammaFunction(5), 24, 1e-10);
  EXPECT_NEAR(GammaFunction(1.5), std::sqrt(M_PI) / 2, 1e-13);
}

TEST(DistributionsTest, HistogramsGiveBackWhatWasCounted) {
  Distribution shape;
  auto& histogram = *shape.mutable_histogram();
  for (const auto& [value, count] : {std::pair(3, 1), std::pair(10, 2), std::pair(1000, 1)}) {
    histogram.add_bucket(BucketOf(value));
    histogram.add_count(count);
  }
  EXPECT_EQ(HistogramTotal(histogram), 4);
  EXPECT_EQ(HistogramValue(histogram, 0.9), 3);
  EXPECT_EQ(HistogramValue(histogram, 1), 10);
  EXPECT_EQ(HistogramValue(histogram, 2.9), 10);
  EXPECT_EQ(HistogramValue(histogram, 3), 960);  // 960 to 1023 are one bucket
  EXPECT_EQ(HistogramValue(histogram, 3.999), 1023);
  EXPECT_NEAR(SampleOf(shape, 0).mean, (3 + 10 + 10 + 991.5) / 4, 6 * 430 / 200.0);
}

}  // namespace
}  // namespace kvblocks::sim
