#include "sim/report/request_life.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "kvblocks/check.h"
#include "sim/report/report_section.h"
#include "sim/report/tier_section.h"

namespace kvblocks::sim {

absl::StatusOr<RequestSelector> RequestSelector::Parse(std::string_view text) {
  RequestSelector selector;
  const auto bad = [&](const auto&... expected) {
    return InvalidArgument("got \"", std::string(text), "\", expected ", expected...);
  };
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon == text.npos ? 0 : colon);
  selector.id_ = std::string(kind == "id" ? text.substr(colon + 1) : text);
  if (kind == "row" || kind == "line") {
    selector.kind_ = kind == "row" ? Kind::kRow : Kind::kLine;
    selector.id_.clear();
    const int64_t low = selector.kind_ == Kind::kLine ? 1 : 0;
    const std::string number(text.substr(colon + 1));
    if (!absl::SimpleAtoi(number, &selector.number_) || selector.number_ < low) {
      return bad("a whole number of ", low, " or more behind the colon");
    }
  } else if (selector.id_.empty()) {
    return bad("an id, row:N or line:N");
  }
  return selector;
}

namespace {

namespace pb = ::kvblocks::report::v1;

void FillName(const SimRequest& request, pb::RequestName* out) {
  out->set_id(request.spec.id);
  out->set_row(request.spec.row);
  out->set_line(request.spec.line);
}

void FillLastUse(SimTime age, int64_t distance, pb::LastUse* out) {
  out->set_age_s(Seconds(age));
  out->set_distance_blocks(distance);
}

void FillVeto(GroupId group, int64_t block, const std::optional<Absence>& absence,
              pb::GroupVeto* out) {
  out->set_group(group);
  out->set_block(block);
  if (absence) out->set_why(Describe(*absence));
}

}  // namespace

void WorstMisses::OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                           const RequestProgress&, SimTime now) {
  const int64_t evicted = misses.blocks[static_cast<size_t>(MissReason::kEvicted)];
  if (record.is_resume || evicted == 0 || num_requests_ == 0) return;
  const Key key(-evicted, record.request->spec.row);
  if (entries_.size() == num_requests_ && key > entries_.rbegin()->first) return;
  pb::WorstRequest& worst = entries_[key];
  FillName(*record.request, worst.mutable_name());
  worst.set_admitted_s(Seconds(now));
  worst.set_known_tokens(record.num_queried_tokens);
  worst.set_hit_tokens(record.num_hit_tokens);
  worst.set_evicted_tokens(evicted * misses.block_tokens);
  worst.set_other_missed_tokens((misses.num_full_blocks - misses.num_hit_blocks - evicted) *
                                misses.block_tokens);
  worst.set_partial_tokens(record.num_queried_tokens -
                           misses.num_full_blocks * misses.block_tokens);
  const auto largest = std::ranges::max_element(misses.evicted, {}, &EvictedRun::num_blocks);
  if (largest != misses.evicted.end()) {
    FillLastUse(largest->age, largest->distance, worst.mutable_last_use());
  }
  if (entries_.size() > num_requests_) entries_.erase(std::prev(entries_.end()));
}

void WorstMisses::Fill(pb::Explanation* out) const {
  for (const auto& [key, worst] : entries_) *out->add_worst() = worst;
}

void RequestLife::Note(const SimRequest& request) {
  const TraceRequest& spec = request.spec;
  if (seen_.requests++ == 0) {
    seen_.first_row = seen_.last_row = spec.row;
    seen_.first_line = seen_.last_line = spec.line;
  }
  seen_.first_row = std::min(seen_.first_row, spec.row);
  seen_.last_row = std::max(seen_.last_row, spec.row);
  seen_.first_line = std::min(seen_.first_line, spec.line);
  seen_.last_line = std::max(seen_.last_line, spec.line);
  ids_.push_back(spec.id);
  if (!selector_.Matches(spec)) return;
  if (is_found()) {
    life_.set_namesakes(life_.namesakes() + 1);
    return;
  }
  target_row_ = spec.row;
  FillName(request, life_.mutable_name());
  life_.set_tenant(spec.tenant);
  life_.set_slo_class(spec.slo_class);
  life_.set_adapter(spec.adapter);
  life_.set_session(static_cast<int64_t>(spec.session));
  life_.set_turn(spec.turn);
  life_.set_prompt_tokens(spec.input_length);
  life_.set_requested_output_tokens(request.max_output);
  life_.set_end("none");
}

void RequestLife::OnArrival(const SimRequest& request, SimTime now) {
  Note(request);
  if (!IsTarget(request)) return;
  life_.set_arrival_s(Seconds(request.arrival));
  waiting_since_ = now;
}

void RequestLife::OnRejection(const SimRequest& request, SimTime now) {
  if (!IsTarget(request)) return;
  life_.set_rejection(request.finish_text);
  life_.set_end_s(Seconds(now));
  life_.set_end(std::string(FinishReasonName(request.finish_reason)));
}

void RequestLife::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  if (!IsTarget(*record.request) || record.is_repeat) return;
  ++attempts_;
  why_.reset();
  const Request& kv = *record.request->kv;
  if (kv.num_tokens() != record.num_queried_tokens) return;
  if (auto why = ExplainLookup(*manager_, kv); why.ok()) why_ = *std::move(why);
  taken_at_attempt_ = manager_->pool().num_blocks_taken();
}

SimTime RequestLife::TimeOfTaking(int64_t num_blocks_taken, SimTime now) const {
  const auto step = std::partition_point(
      clock_.begin(), clock_.end(),
      [&](const std::pair<int64_t, SimTime>& entry) { return entry.first <= num_blocks_taken; });
  return step == clock_.end() ? now : step->second;
}

void RequestLife::FillGone(int64_t from, int64_t to, SimTime now, RunLife* out) const {
  for (const MissedRun& missed : why_->missed) {
    if (missed.first_token >= to || missed.first_token + missed.num_tokens <= from) continue;
    if (!missed.absence || !missed.absence->num_blocks_since) continue;
    const int64_t since = *missed.absence->num_blocks_since;
    const double time = Seconds(TimeOfTaking(taken_at_attempt_ - since, now));
    const bool is_first = !out->has_gone();
    auto* gone = out->mutable_gone();
    gone->set_first_s(is_first ? time : std::min(gone->first_s(), time));
    gone->set_last_s(std::max(gone->last_s(), time));
    gone->set_min_blocks_since(is_first ? since : std::min(gone->min_blocks_since(), since));
    gone->set_max_blocks_since(std::max(gone->max_blocks_since(), since));
  }
}

void RequestLife::FillRun(const BlockRun& run, SimTime now, RunLife* out) const {
  const int64_t block_tokens = manager_->hit_alignment();
  const int64_t from = run.first_block * block_tokens;
  const int64_t to = from + run.num_blocks * block_tokens;
  out->set_cause(std::string(run.reason ? MissReasonName(*run.reason) : "hit"));
  out->set_first_token(from);
  out->set_tokens(to - from);
  out->set_first_block(run.first_block);
  out->set_blocks(run.num_blocks);
  if (run.owner >= 0) *out->mutable_first_computed_by() = names_[static_cast<size_t>(run.owner)];
  if (run.age >= 0) FillLastUse(run.age, run.distance, out->mutable_last_use());
  if (!why_) return;
  if (run.reason == MissReason::kEvicted) FillGone(from, to, now, out);
  if (run.reason != MissReason::kGroupVeto) return;
  for (const MissedRun& missed : why_->missed) {
    if (missed.reason == MissReason::kGroupVeto && missed.first_token < to &&
        missed.first_token + missed.num_tokens > from) {
      FillVeto(missed.group, missed.block, missed.absence, out->mutable_veto());
      return;
    }
  }
}

void RequestLife::OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                           const RequestProgress& progress, SimTime now) {
  const SimRequest& request = *record.request;
  if (progress.ordinal == static_cast<int64_t>(names_.size())) {
    FillName(request, &names_.emplace_back());
  }
  if (!IsTarget(request)) return;
  is_running_ = true;
  auto* admission = life_.add_admissions();
  admission->set_time_s(Seconds(now));
  admission->set_waited_s(Seconds(now - waiting_since_));
  admission->set_attempts(attempts_);
  attempts_ = 0;
  admission->set_is_resume(record.is_resume);
  admission->set_known_tokens(record.num_queried_tokens);
  admission->set_hit_tokens(record.num_hit_tokens);
  int64_t in_blocks = 0;
  for (const BlockRun& run : misses.runs) {
    FillRun(run, now, admission->add_runs());
    in_blocks += run.num_blocks * manager_->hit_alignment();
  }
  admission->set_partial_tokens(record.num_queried_tokens - in_blocks);
  FillTierLookup(record, now);
  if (!why_) return;
  for (const GroupReach& reach : why_->groups) {
    auto* group = admission->add_groups();
    group->set_group(reach.group);
    group->set_kind(reach.kind);
    group->set_hit_tokens(reach.num_hit_tokens);
    if (reach.stop_block) {
      FillVeto(reach.group, *reach.stop_block, reach.absence, group->mutable_stop());
    }
  }
}

void RequestLife::FillTierLookup(const AdmissionRecord& record, SimTime now) {
  if (tiers_ == nullptr) return;
  auto* lookup = life_.mutable_admissions(life_.admissions_size() - 1)->add_tier_lookups();
  lookup->set_time_s(Seconds(now));
  lookup->set_hit_tokens(record.num_hit_tokens);
  lookup->set_loaded_tokens(record.num_external_tokens);
  for (size_t t = 0; t < tiers_->last_lookup().size(); ++t) {
    const TierLookup& found = tiers_->last_lookup()[t];
    auto* tier = lookup->add_tiers();
    tier->set_name(tiers_->options().tiers[t].options.name);
    tier->set_loaded_tokens(found.loaded_tokens);
    FillTierMisses(found.missed_tokens, tier->mutable_misses());
  }
}

void RequestLife::OnReadmission(const AdmissionRecord& record, SimTime now) {
  if (IsTarget(*record.request)) FillTierLookup(record, now);
}

void RequestLife::OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) {
  if (!IsTarget(request) || tiers_ == nullptr) return;
  auto* admission = life_.mutable_admissions(life_.admissions_size() - 1);
  auto* lookup = admission->mutable_tier_lookups(admission->tier_lookups_size() - 1);
  lookup->set_load_end_s(Seconds(now));
  lookup->set_arrived_tokens(num_tokens);
}

void RequestLife::OnPreemption(const PreemptionRecord& record, SimTime now) {
  if (!IsTarget(*record.request)) return;
  is_running_ = false;
  waiting_since_ = now;
  auto* preemption = life_.add_preemptions();
  preemption->set_time_s(Seconds(now));
  preemption->set_lost_tokens(record.num_computed_lost);
  if (record.cause != nullptr) FillName(*record.cause, preemption->mutable_cause());
}

void RequestLife::OnStepScheduled(const StepRecord& step) {
  const int64_t taken = manager_->pool().num_blocks_taken();
  if (clock_.empty() || clock_.back().first != taken) clock_.emplace_back(taken, step.start);
}

void RequestLife::OnStepFinished(const StepRecord& step) {
  // The first token may come when the request was preempted meanwhile.
  if (life_.admissions_size() == 0 || life_.output_tokens() > 0) return;
  for (const OutputRecord& output : step.outputs) {
    if (output.num_emitted == 0 || !IsTarget(*output.request)) continue;
    life_.set_output_tokens(output.num_emitted);
    life_.set_first_token_s(Seconds(step.end));
  }
}

void RequestLife::OnFinish(const SimRequest& request, SimTime now) {
  if (!is_found() && selector_.Matches(request.spec)) {
    Note(request);
    life_.set_never_arrived(true);
  }
  if (!IsTarget(request)) return;
  is_running_ = false;
  life_.set_output_tokens(request.num_outputs());
  life_.set_end_s(Seconds(now));
  life_.set_end(std::string(FinishReasonName(request.finish_reason)));
}

}  // namespace kvblocks::sim
