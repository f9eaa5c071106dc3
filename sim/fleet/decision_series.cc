#include "kvblocks/sim/fleet/decision_series.h"

#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {
namespace {

void Sum(const DecisionSeries::Counts& counts, DecisionSeries::Counts* sum) {
  sum->routed += counts.routed;
  sum->oracle_more_tokens += counts.oracle_more_tokens;
  sum->missing_tokens += counts.missing_tokens;
  sum->unknown_tokens += counts.unknown_tokens;
}

}  // namespace

void DecisionSeries::Add(SimTime at, const Counts& counts) {
  while (at / tick_ >= static_cast<SimTime>(kMostPoints)) {
    tick_ *= 2;
    for (size_t i = 0; i < points_.size(); i += 2) {
      Counts merged = points_[i];
      if (i + 1 < points_.size()) Sum(points_[i + 1], &merged);
      points_[i / 2] = merged;
    }
    points_.resize((points_.size() + 1) / 2);
  }
  const auto index = static_cast<size_t>(at / tick_);
  if (index >= points_.size()) points_.resize(index + 1);
  Sum(counts, &points_[index]);
}

void DecisionSeries::Fill(::kvblocks::fleet::v1::DecisionSeries* out) const {
  out->set_tick_s(Seconds(tick_));
  for (size_t i = 0; i < points_.size(); ++i) {
    auto* point = out->add_points();
    point->set_start_s(Seconds(tick_) * static_cast<double>(i));
    point->set_routed(points_[i].routed);
    point->set_oracle_more_tokens(points_[i].oracle_more_tokens);
    point->set_missing_tokens(points_[i].missing_tokens);
    point->set_unknown_tokens(points_[i].unknown_tokens);
  }
}

}  // namespace kvblocks::sim
