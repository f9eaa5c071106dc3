#include "sim/report/time_series.h"

#include <algorithm>
#include <string>

namespace kvblocks::sim {
void TimeSeries::Add(const Counts& counts, Counts& sum) {
  sum.prefill_tokens += counts.prefill_tokens;
  sum.decode_tokens += counts.decode_tokens;
  sum.output_tokens += counts.output_tokens;
  sum.queried_tokens += counts.queried_tokens;
  sum.hit_tokens += counts.hit_tokens;
  sum.evictions += counts.evictions;
  sum.preemptions += counts.preemptions;
  sum.steps += counts.steps;
  sum.first_tokens += counts.first_tokens;
  sum.ttft += counts.ttft;
  for (size_t i = 0; i < counts.missed_blocks.size(); ++i) {
    sum.missed_blocks[i] += counts.missed_blocks[i];
  }
}

TimeSeries::Point& TimeSeries::PointAt(SimTime time) {
  while (time / tick_ >= static_cast<int64_t>(max_points_)) {
    // The last merge of a very long run may leave the grid's last tick beyond the clock's end.
    tick_ = tick_ > kMaxSimTime / 2 ? kMaxSimTime : 2 * tick_;
    for (size_t i = 0; i < points_.size(); i += 2) {
      Point merged = points_[i];
      if (i + 1 < points_.size()) {
        const Point& other = points_[i + 1];
        for (size_t k = 0; k < Point::kNumIntegrals; ++k) {
          merged.integrals[k] += other.integrals[k];
        }
        Add(other.counts, merged.counts);
      }
      points_[i / 2] = merged;
    }
    points_.resize((points_.size() + 1) / 2);
  }
  const auto index = static_cast<size_t>(time / tick_);
  if (index >= points_.size()) points_.resize(index + 1);
  return points_[index];
}

void TimeSeries::AddInterval(SimTime from, SimTime to, const Gauges& gauges) {
  if (from >= to) return;
  // Settles the tick for the whole interval.
  PointAt(to - 1);
  while (from < to) {
    const SimTime index = from / tick_;
    const SimTime end = index >= kMaxSimTime / tick_ ? to : std::min(to, (index + 1) * tick_);
    const Integral dt = end - from;
    Point& point = PointAt(from);
    const int64_t held[] = {gauges.running, gauges.waiting, gauges.referenced, gauges.resident,
                            gauges.is_busy};
    for (size_t k = 0; k < std::size(held); ++k) point.integrals[k] += dt * held[k];
    if (gauges.is_busy && gauges.step_time > 0) {
      point.integrals[Point::kStepsRun] += dt * kOneStep / gauges.step_time;
    }
    from = end;
  }
}

void TimeSeries::AddCounts(SimTime at, const Counts& counts) { Add(counts, PointAt(at).counts); }

void TimeSeries::Fill(SimTime end, int64_t usable_blocks,
                      ::kvblocks::report::v1::Series* out) const {
  out->set_tick_s(Seconds(tick_));
  for (const MissReason reason : kClassifiedReasons) {
    out->add_miss_causes(std::string(MissReasonName(reason)));
  }
  for (size_t i = 0; i < points_.size(); ++i) {
    const Point& point = points_[i];
    const SimTime start = static_cast<SimTime>(i) * tick_;
    // Events at the very end may open a tick of no length.
    const SimTime length = std::clamp<SimTime>(end - start, 1, tick_);
    const auto mean = [&](size_t which) { return Ratio(point.integrals[which], length); };
    auto* p = out->add_points();
    p->set_start_s(Seconds(start));
    p->set_running(mean(Point::kRunning));
    p->set_waiting(mean(Point::kWaiting));
    if (usable_blocks > 0) {
      p->set_usage(mean(Point::kReferenced) / static_cast<double>(usable_blocks));
      p->set_resident(mean(Point::kResident) / static_cast<double>(usable_blocks));
    }
    p->set_prefill_tokens(point.counts.prefill_tokens);
    p->set_decode_tokens(point.counts.decode_tokens);
    p->set_output_tokens(point.counts.output_tokens);
    p->set_queried_tokens(point.counts.queried_tokens);
    p->set_hit_tokens(point.counts.hit_tokens);
    p->set_evictions(point.counts.evictions);
    p->set_preemptions(point.counts.preemptions);
    p->set_steps(point.counts.steps);
    const auto& missed = point.counts.missed_blocks;
    if (std::ranges::any_of(missed, [](int64_t blocks) { return blocks > 0; })) {
      for (const int64_t blocks : missed) p->add_missed_blocks(blocks);
    }
    p->set_first_tokens(point.counts.first_tokens);
    if (point.counts.first_tokens > 0) {
      p->set_ttft_ms(static_cast<double>(point.counts.ttft) /
                     static_cast<double>(point.counts.first_tokens) /
                     static_cast<double>(kMillisecond));
    }
    p->set_busy_share(mean(Point::kBusy));
    if (point.integrals[Point::kStepsRun] > 0) {
      const double steps = Ratio(point.integrals[Point::kStepsRun], kOneStep);
      p->set_step_time_ms(static_cast<double>(point.integrals[Point::kBusy]) / steps /
                          static_cast<double>(kMillisecond));
    }
  }
}

void SeriesSection::OnInterval(SimTime from, SimTime to) {
  gauges_.referenced = pool_->gauges().referenced;
  gauges_.resident = pool_->gauges().resident;
  series_.AddInterval(from, to, gauges_);
}

void SeriesSection::OnArrival(const SimRequest&, SimTime) { ++gauges_.waiting; }

void SeriesSection::OnRejection(const SimRequest&, SimTime) { --gauges_.waiting; }

void SeriesSection::CountTokens(const AdmissionRecord& record) {
  counts_.queried_tokens += record.num_queried_tokens;
  counts_.hit_tokens += record.num_hit_tokens;
}

void SeriesSection::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  if (count_attempts_) CountTokens(record);
}

void SeriesSection::OnAdmission(const AdmissionRecord& record, SimTime) {
  if (!count_attempts_ && !record.is_resume) CountTokens(record);
  if (record.is_resume) return;
  for (size_t i = 0; i < counts_.missed_blocks.size(); ++i) {
    counts_.missed_blocks[i] +=
        facts_->misses.blocks[static_cast<size_t>(kClassifiedReasons[i])];
  }
}

void SeriesSection::OnPreemption(const PreemptionRecord&, SimTime) { ++counts_.preemptions; }

void SeriesSection::OnStepScheduled(const StepRecord& step) {
  gauges_.running = step.num_running;
  gauges_.waiting = step.num_waiting;
  steps_under_way_ += step.num_requests() > 0;
  gauges_.is_busy = steps_under_way_ > 0;
  counts_.evictions += step.pool.num_evictions - evictions_seen_;
  evictions_seen_ = step.pool.num_evictions;
  if (step.num_requests() > 0) return;
  series_.AddCounts(step.start, counts_);
  counts_ = {};
}

void SeriesSection::OnStepFinished(const StepRecord& step) {
  counts_.output_tokens += step.num_skipped;
  for (const OutputRecord& output : step.outputs) {
    counts_.output_tokens += output.num_emitted;
    if (output.num_emitted > 0 &&
        facts_->requests[*output.request].num_outputs == output.num_emitted) {
      ++counts_.first_tokens;
      counts_.ttft += step.end - output.request->arrival + client_rtt_;
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    // One that was preempted meanwhile may end with a token that was still to come.
    (facts_->requests[*output.request].is_running ? gauges_.running : gauges_.waiting) -= 1;
  }
  gauges_.is_busy = --steps_under_way_ > 0;
  counts_.prefill_tokens += step.num_prefill_tokens;
  counts_.decode_tokens += step.num_decode_tokens;
  ++counts_.steps;
  series_.AddCounts(step.end, counts_);
  counts_ = {};
}

void SeriesSection::OnFinish(const SimRequest& request, SimTime) {
  const RequestProgress* progress = facts_->Find(request);
  if (!request.was_cut_short() || progress == nullptr) return;
  // The next step sets both anew; until then nobody else comes or goes.
  (progress->is_running ? gauges_.running : gauges_.waiting) -= 1;
}

void SeriesSection::Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) {
  series_.Fill(end.last_event, pool_->usable_blocks(), out->mutable_series());
}

}  // namespace kvblocks::sim
