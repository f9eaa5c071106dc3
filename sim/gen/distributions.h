// Numbers of the shapes that a workload names (workload.proto), by inversion of one uniform number;
// Zipf's by rejection inversion (Hoermann and Derflinger, 1996), gamma's by Marsaglia and Tsang
// (2000).
//
// The standard library's distributions are not used: their algorithms differ from one to the next.
// REQUIRES, of every shape here: CheckDistribution (workload_spec.h) accepted it.

#ifndef KVBLOCKS_SIM_GEN_DISTRIBUTIONS_H_
#define KVBLOCKS_SIM_GEN_DISTRIBUTIONS_H_

#include <bit>
#include <cstdint>

#include "sim/gen/philox.h"
#include "sim/gen/workload.pb.h"

namespace kvblocks::sim {

// What has the share u below it, cut to min and max; not of Zipf. A mixture's second mode lies
// above `1 - second`. REQUIRES: 0 < u < 1.
double Quantile(const workload::v1::Distribution& shape, double u);

double Draw(const workload::v1::Distribution& shape, Draws& draws);
// Rounded to nearest, and at least `least`.
int64_t DrawWhole(const workload::v1::Distribution& shape, Draws& draws, int64_t least);

int64_t WholeQuantile(const workload::v1::Distribution& shape, double u, int64_t least);

// What DrawWhole comes to on average, and what its square does. Milliseconds: from 65,536
// quantiles, or all n of Zipf.
struct Moments {
  double mean;
  double mean_square;
};
Moments WholeMoments(const workload::v1::Distribution& shape, int64_t least);

// 1 ... n with chances as k^-alpha.
class ZipfDistribution {
 public:
  ZipfDistribution(double alpha, int64_t n);
  int64_t operator()(Draws& draws) const;
  // Of all n, in order; their sum is 1.
  double Probability(int64_t k) const;

 private:
  double Integral(double x) const;
  double InverseIntegral(double y) const;

  double alpha_, n_;
  double low_, high_, sure_;
  mutable double sum_ = 0;  // of all k^-alpha; 0: not asked for yet
};

double DrawGamma(double shape, Draws& draws);  // with scale 1
double GammaFunction(double x);                // x >= 0.5

// Buckets of whole numbers from 0 on: the first 16 alone, then eight to an octave.
//
// Bucket k holds [BucketLow(k), BucketLow(k + 1)). A value is known to within an eighth; integer
// arithmetic only.
inline constexpr int32_t kMostBucket = 16 + 8 * 57;  // from 2^61 on

// REQUIRES: 0 <= value < 2^62.
constexpr int32_t BucketOf(int64_t value) {
  if (value < 16) return static_cast<int32_t>(value);
  const int octave = static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - 1;
  return 16 + (octave - 4) * 8 + static_cast<int32_t>((value >> (octave - 3)) & 7);
}

constexpr int64_t BucketLow(int32_t bucket) {
  if (bucket < 16) return bucket;
  const int octave = 4 + (bucket - 16) / 8;
  return static_cast<int64_t>(8 + (bucket - 16) % 8) << (octave - 3);
}

// A value of a histogram: the one at place `slot` of its counts, alike within its bucket.
int64_t HistogramValue(const workload::v1::Histogram& histogram, double slot);
int64_t HistogramTotal(const workload::v1::Histogram& histogram);

// ArrivalProcess: when sessions begin, one after the other.
//
// Rates that change with time come from thinning: candidates at the highest rate, each kept with
// the chance that its time has. Of a closed loop nothing is drawn here.
class ArrivalProcess {
 public:
  // `arrivals` must outlive this.
  ArrivalProcess(const workload::v1::Arrivals& arrivals, uint64_t seed);

  // Of the next session, in ns since the start.
  int64_t Next();
  // Whether Next reached the latest time there is, from which on everything would arrive at once.
  bool has_ended() const { return has_ended_; }

 private:
  double Gap();
  double Thinned();
  double OnOffGap();
  double RateAt(double seconds) const;

  const workload::v1::Arrivals& arrivals_;
  const PhiloxKey gaps_, stays_;
  uint64_t session_ = 0;
  uint64_t candidate_ = 0;
  uint64_t stay_ = 0;
  double stay_ends_ = 0;
  double seconds_ = 0;       // of the last arrival or candidate
  double most_rate_ = 0;     // of a rate that changes
  double cycle_s_ = 0;       // of all steps
  double weibull_scale_ = 0;
  int64_t replay_ns_ = 0;
  bool has_ended_ = false;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_DISTRIBUTIONS_H_
