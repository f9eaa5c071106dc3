#include "kvblocks/sim/gen/arrival_process.h"

#include <algorithm>
#include <cmath>

#include "kvblocks/sim/gen/distributions.h"
#include "kvblocks/sim/gen/fixed_math.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

// After about 30 years nothing arrives later.
constexpr double kLatestSeconds = 1e9;

double Exponential(double rate, Draws& draws) { return -FixedLn(draws.Uniform()) / rate; }

}  // namespace

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
