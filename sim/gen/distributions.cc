#include "sim/gen/distributions.h"

#include <algorithm>
#include <cmath>

#include "sim/gen/fixed_math.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

constexpr double kNormal90 = 1.2815515655446004;  // the normal distribution's p90

double LogNormalQuantile(const pb::Distribution::LogNormal& shape, double u) {
  if (shape.p90() == shape.median()) return shape.median();
  const double sigma = FixedLn(shape.p90() / shape.median()) / kNormal90;
  return shape.median() * FixedExp(sigma * NormalQuantile(u));
}

double CutTo(const pb::Distribution& shape, double value) {
  if (shape.has_min()) value = std::max(value, shape.min());
  if (shape.has_max()) value = std::min(value, shape.max());
  return value;
}

int64_t Whole(double value, int64_t least) {
  constexpr double kMost = 1e15;
  return std::max(least, static_cast<int64_t>(std::floor(std::min(value, kMost) + 0.5)));
}

// The quantile `u`, before it is cut.
double UncutQuantile(const pb::Distribution& shape, double u) {
  switch (shape.shape_case()) {
    case pb::Distribution::kFixed:
      return shape.fixed();
    case pb::Distribution::kUniform:
      return shape.uniform().low() + u * (shape.uniform().high() - shape.uniform().low());
    case pb::Distribution::kLognormal:
      return LogNormalQuantile(shape.lognormal(), u);
    case pb::Distribution::kExponential:
      return -shape.exponential() * FixedLn(1 - u);
    case pb::Distribution::kGeometric:
      if (shape.geometric() <= 1) return 1;
      return 1 + std::floor(FixedLn(1 - u) / FixedLn(1 - 1 / shape.geometric()));
    case pb::Distribution::kMixture: {
      const double first = 1 - shape.mixture().second();
      if (u < first) return LogNormalQuantile(shape.mixture().a(), u / first);
      // Not 0, where u is just `first`.
      return LogNormalQuantile(shape.mixture().b(),
                               std::max((u - first) / (1 - first), 0x1p-54));
    }
    case pb::Distribution::kHistogram:
      return static_cast<double>(HistogramValue(
          shape.histogram(), u * static_cast<double>(HistogramTotal(shape.histogram()))));
    case pb::Distribution::kZipf:  // Draw's own
    case pb::Distribution::SHAPE_NOT_SET:
      break;
  }
  return 0;
}

// After about 30 years nothing arrives later.
constexpr double kLatestSeconds = 1e9;

double Exponential(double rate, Draws& draws) { return -FixedLn(draws.Uniform()) / rate; }

}  // namespace

double Quantile(const pb::Distribution& shape, double u) {
  return CutTo(shape, UncutQuantile(shape, u));
}

double Draw(const pb::Distribution& shape, Draws& draws) {
  if (shape.has_zipf()) {
    const ZipfDistribution zipf(shape.zipf().alpha(), shape.zipf().n());
    return CutTo(shape, static_cast<double>(zipf(draws)));
  }
  return Quantile(shape, draws.Uniform());
}

int64_t DrawWhole(const pb::Distribution& shape, Draws& draws, int64_t least) {
  return Whole(Draw(shape, draws), least);
}

int64_t WholeQuantile(const pb::Distribution& shape, double u, int64_t least) {
  return Whole(Quantile(shape, u), least);
}

Moments WholeMoments(const pb::Distribution& shape, int64_t least) {
  double mean = 0, square = 0;
  const auto add = [&](double value, double weight) {
    const double whole = static_cast<double>(Whole(CutTo(shape, value), least));
    mean += weight * whole;
    square += weight * whole * whole;
  };
  if (shape.has_zipf()) {
    const ZipfDistribution zipf(shape.zipf().alpha(), shape.zipf().n());
    for (int64_t k = 1; k <= shape.zipf().n(); ++k) {
      add(static_cast<double>(k), zipf.Probability(k));
    }
  } else {
    constexpr int kPoints = 65536;
    for (int i = 0; i < kPoints; ++i) add(UncutQuantile(shape, (i + 0.5) / kPoints), 1.0 / kPoints);
  }
  return {mean, square};
}

ZipfDistribution::ZipfDistribution(double alpha, int64_t n)
    : alpha_(alpha), n_(static_cast<double>(n)) {
  low_ = Integral(1.5) - 1;
  high_ = Integral(n_ + 0.5);
  sure_ = 2 - InverseIntegral(Integral(2.5) - FixedPow(2, -alpha_));
}

double ZipfDistribution::Integral(double x) const {
  const double log = FixedLn(x);
  const double power = 1 - alpha_;
  if (std::abs(power) < 1e-8) return log;
  return (FixedExp(power * log) - 1) / power;
}

double ZipfDistribution::InverseIntegral(double y) const {
  const double power = 1 - alpha_;
  if (std::abs(power) < 1e-8) return FixedExp(y);
  return FixedExp(FixedLn(std::max(1 + power * y, 1e-300)) / power);
}

int64_t ZipfDistribution::operator()(Draws& draws) const {
  while (true) {
    const double y = high_ + draws.Uniform() * (low_ - high_);
    const double x = InverseIntegral(y);
    const double k = std::clamp(std::floor(x + 0.5), 1.0, n_);
    if (k - x <= sure_ || y >= Integral(k + 0.5) - FixedPow(k, -alpha_)) {
      return static_cast<int64_t>(k);
    }
  }
}

double ZipfDistribution::Probability(int64_t k) const {
  if (sum_ == 0) {
    for (double i = n_; i >= 1; --i) sum_ += FixedPow(i, -alpha_);
  }
  return FixedPow(static_cast<double>(k), -alpha_) / sum_;
}

double DrawGamma(double shape, Draws& draws) {
  if (shape < 1) {
    const double boosted = DrawGamma(shape + 1, draws);
    return boosted * FixedPow(draws.Uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double z = NormalQuantile(draws.Uniform());
    const double root = 1 + c * z;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (FixedLn(draws.Uniform()) < 0.5 * z * z + d - d * v + d * FixedLn(v)) return d * v;
  }
}

double GammaFunction(double x) {
  // Lanczos, g = 7.
  static constexpr double kTerms[] = {676.5203681218851,     -1259.1392167224028,
                                      771.32342877765313,    -176.61502916214059,
                                      12.507343278686905,    -0.13857109526572012,
                                      9.9843695780195716e-6, 1.5056327351493116e-7};
  constexpr double kSqrtTwoPi = 2.506628274631000502416;
  double sum = 0.99999999999980993;
  for (int i = 0; i < 8; ++i) sum += kTerms[i] / (x + i);
  const double t = x + 6.5;
  return kSqrtTwoPi * FixedPow(t, x - 0.5) * FixedExp(-t) * sum;
}

int64_t HistogramValue(const pb::Histogram& histogram, double slot) {
  for (int i = 0; i < histogram.bucket_size(); ++i) {
    const double count = static_cast<double>(histogram.count(i));
    if (slot >= count && i + 1 < histogram.bucket_size()) {
      slot -= count;
      continue;
    }
    const int64_t low = BucketLow(histogram.bucket(i));
    const int64_t width = BucketLow(histogram.bucket(i) + 1) - low;
    const auto within = static_cast<int64_t>(slot / count * static_cast<double>(width));
    return low + std::clamp<int64_t>(within, 0, width - 1);
  }
  return 0;
}

int64_t HistogramTotal(const pb::Histogram& histogram) {
  int64_t total = 0;
  for (const int64_t count : histogram.count()) total += count;
  return total;
}

ArrivalProcess::ArrivalProcess(const pb::Arrivals& arrivals, uint64_t seed)
    : arrivals_(arrivals), gaps_(StreamKey(seed, "gap")), stays_(StreamKey(seed, "stay")) {
  if (arrivals.has_weibull()) {
    const auto& weibull = arrivals.weibull();
    weibull_scale_ = 1 / (weibull.rate() * GammaFunction(1 + 1 / weibull.shape()));
  }
  if (arrivals.has_diurnal()) {
    most_rate_ = arrivals.diurnal().rate() * (1 + arrivals.diurnal().swing());
  }
  if (arrivals.has_ramp()) {
    most_rate_ = std::max(arrivals.ramp().from_rate(), arrivals.ramp().to_rate());
  }
  for (const pb::Arrivals::Step& step : arrivals.steps().step()) {
    most_rate_ = std::max(most_rate_, step.rate());
    cycle_s_ += step.for_s();
  }
}

double ArrivalProcess::RateAt(double seconds) const {
  if (arrivals_.has_diurnal()) {
    const auto& diurnal = arrivals_.diurnal();
    return diurnal.rate() *
           (1 + diurnal.swing() * FixedSinTurns(seconds / diurnal.period_s()));
  }
  if (arrivals_.has_ramp()) {
    const auto& ramp = arrivals_.ramp();
    const double part = std::min(1.0, seconds / ramp.over_s());
    return ramp.from_rate() + part * (ramp.to_rate() - ramp.from_rate());
  }
  double within = seconds - std::floor(seconds / cycle_s_) * cycle_s_;
  for (const pb::Arrivals::Step& step : arrivals_.steps().step()) {
    if (within < step.for_s()) return step.rate();
    within -= step.for_s();
  }
  return arrivals_.steps().step(arrivals_.steps().step_size() - 1).rate();
}

double ArrivalProcess::Thinned() {
  double at = seconds_;
  while (at < kLatestSeconds) {
    Draws draws(gaps_, candidate_++);
    at += Exponential(most_rate_, draws);
    if (draws.Uniform() * most_rate_ < RateAt(at)) break;
  }
  return at - seconds_;
}

double ArrivalProcess::OnOffGap() {
  const auto& onoff = arrivals_.onoff();
  double at = seconds_;
  while (at < kLatestSeconds) {
    if (at >= stay_ends_) {
      Draws draws(stays_, stay_);
      stay_ends_ += Exponential(1 / (stay_ % 2 == 0 ? onoff.on_s() : onoff.off_s()), draws);
      ++stay_;
      continue;
    }
    const double rate = stay_ % 2 == 1 ? onoff.on_rate() : onoff.off_rate();
    Draws draws(gaps_, candidate_++);
    // An exponential gap that would cross the end of the stay is drawn anew there.
    const double next = rate > 0 ? at + Exponential(rate, draws) : stay_ends_;
    if (next < stay_ends_) return next - seconds_;
    at = stay_ends_;
  }
  return at - seconds_;
}

double ArrivalProcess::Gap() {
  Draws draws(gaps_, session_);
  switch (arrivals_.process_case()) {
    case pb::Arrivals::kPoisson:
      return Exponential(arrivals_.poisson().rate(), draws);
    case pb::Arrivals::kGamma: {
      const auto& gamma = arrivals_.gamma();
      const double shape = 1 / (gamma.cv() * gamma.cv());
      return DrawGamma(shape, draws) / (shape * gamma.rate());
    }
    case pb::Arrivals::kWeibull:
      return weibull_scale_ *
             FixedPow(-FixedLn(draws.Uniform()), 1 / arrivals_.weibull().shape());
    case pb::Arrivals::kConstant:
      return 1 / arrivals_.constant().rate();
    case pb::Arrivals::kOnoff:
      return OnOffGap();
    case pb::Arrivals::kDiurnal:
    case pb::Arrivals::kRamp:
    case pb::Arrivals::kSteps:
      return Thinned();
    case pb::Arrivals::kReplay:  // in whole nanoseconds
    case pb::Arrivals::kClosed:
    case pb::Arrivals::PROCESS_NOT_SET:
      break;
  }
  return 0;
}

int64_t ArrivalProcess::Next() {
  constexpr double kMostNs = kLatestSeconds * 1e9;
  if (arrivals_.has_replay()) {
    const auto& gaps = arrivals_.replay().gap_ns();
    const int64_t gap = gaps[static_cast<int>(session_++ % static_cast<uint64_t>(gaps.size()))];
    replay_ns_ = std::min(replay_ns_ + gap, static_cast<int64_t>(kMostNs));
    has_ended_ = replay_ns_ == static_cast<int64_t>(kMostNs);
    return replay_ns_;
  }
  seconds_ = std::min(seconds_ + Gap(), kLatestSeconds);
  has_ended_ = seconds_ == kLatestSeconds;
  ++session_;
  return static_cast<int64_t>(std::floor(seconds_ * 1e9 + 0.5));
}

}  // namespace kvblocks::sim
