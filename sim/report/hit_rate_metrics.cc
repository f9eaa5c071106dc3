#include "kvblocks/sim/report/hit_rate_metrics.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int64_t kMillion = 1'000'000;

void FillRatio(int64_t numerator, int64_t denominator, pb::Ratio* out) {
  out->set_numerator(numerator);
  out->set_denominator(denominator);
  out->set_value(Ratio(numerator, denominator));
}

size_t HistogramIndex(int64_t tokens) { return std::bit_width(static_cast<uint64_t>(tokens)); }

}  // namespace

absl::StatusOr<Warmup> ParseWarmup(std::string_view text, const char* name) {
  Warmup warmup;
  if (const auto time = ParseDuration(text); time.ok()) {
    warmup.kind = Warmup::Kind::kTime;
    warmup.time = *time;
    return warmup;
  }
  if (text.find('.') == std::string_view::npos && text != "0" && text != "1") {
    if (const auto requests = ParseScaledDecimal(text, 0); requests.ok()) {
      warmup.kind = Warmup::Kind::kRequests;
      warmup.requests = *requests;
      return warmup;
    }
  } else if (const auto ppm = ParseScaledDecimal(text, 6); ppm.ok() && *ppm <= kMillion) {
    warmup.share_ppm = *ppm;
    return warmup;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is \"", absl::string_view(text.data(), text.size()),
      "\", expected a share of the requests from 0 to 1 (0.5, six digits at most), a number of "
      "requests (1000) or a time (60s)"));
}

std::string DescribeWarmup(const Warmup& warmup) {
  switch (warmup.kind) {
    case Warmup::Kind::kShare:
      return absl::StrCat("without the first ", static_cast<double>(warmup.share_ppm) / 1e4,
                          " % of the requests");
    case Warmup::Kind::kRequests:
      return absl::StrCat("without the first ", warmup.requests, " requests");
    case Warmup::Kind::kTime:
      return absl::StrCat("without admissions before ", FormatDuration(warmup.time));
  }
  return "";
}

void HitRateMetrics::Sums::Add(const Sample& sample) {
  ++requests;
  queried += sample.queried;
  hit += sample.hit;
  possible += sample.possible;
  full_blocks += sample.full_blocks;
  hit_blocks += sample.hit_blocks;
  requests_with_hit += sample.hit_blocks > 0;
  ratios += static_cast<double>(sample.hit) / static_cast<double>(sample.queried);
}

void HitRateMetrics::Sums::Fill(const std::string& window, pb::HitRates* out) const {
  out->set_requests(requests);
  FillRatio(hit, queried, out->mutable_token_hit_rate());
  FillRatio(hit_blocks, full_blocks, out->mutable_full_block_hit_rate());
  FillRatio(hit, possible, out->mutable_possible_hit_rate());
  FillRatio(requests_with_hit, requests, out->mutable_request_hit_rate());
  out->set_mean_of_ratios(requests == 0 ? 0.0 : ratios / static_cast<double>(requests));
  out->set_window(window);
}

void HitRateMetrics::Reuse::Add(absl::Span<const EvictedRun> runs) {
  for (const EvictedRun& run : runs) {
    age.Add(run.age, run.num_blocks);
    distance.Add(run.distance, run.num_blocks);
  }
}

void HitRateMetrics::Reuse::Fill(pb::EvictedReuse* out) {
  out->set_blocks(age.count());
  out->set_mean_age_s(Seconds(age.mean()));
  out->set_p50_age_s(Seconds(age.Percentile(5000)));
  out->set_p90_age_s(Seconds(age.Percentile(9000)));
  out->set_max_age_s(Seconds(age.max()));
  out->set_mean_distance_blocks(distance.mean());
  out->set_p50_distance_blocks(distance.Percentile(5000));
  out->set_p90_distance_blocks(distance.Percentile(9000));
  out->set_max_distance_blocks(distance.max());
  for (const int64_t value : distance.Percentiles()) out->add_distance_quantiles_blocks(value);
  out->set_method(age.is_exact() ? distance.method() : age.method());
}

void HitRateMetrics::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  // Repeats are made in vain; they count only where that is asked for.
  if (record.is_repeat && !options_.legacy_counters) return;
  ++attempts_;
  attempt_queried_ += record.num_queried_tokens;
  attempt_hit_ += record.num_hit_tokens;
}

void HitRateMetrics::OnRunStart(const RunInfo& info) {
  const KvCacheManagerOptions& options = info.manager->options();
  if (!options.partial_hits || !options.enable_caching) return;
  has_partial_hits_ = true;
  whole_block_tokens_ = info.manager->scheduler_block_size();
}

void HitRateMetrics::CountPartialHit(const AdmissionRecord& record) {
  const int64_t tokens = record.num_hit_tokens % whole_block_tokens_;
  if (tokens == 0) return;
  PartialSums& sums = record.is_resume ? resume_partial_ : first_partial_;
  ++sums.hits;
  sums.tokens += tokens;
}

void HitRateMetrics::OnAdmission(const AdmissionRecord& record, SimTime now) {
  if (has_partial_hits_) CountPartialHit(record);
  const AdmissionMisses& misses = facts_->misses;
  const int64_t block_tokens = block_tokens_ = misses.block_tokens;
  auto& causes = record.is_resume ? resume_misses_ : first_misses_;
  for (size_t i = 0; i < kNumMissReasons; ++i) causes[i] += misses.blocks[i];
  (record.is_resume ? resume_reuse_ : first_reuse_).Add(misses.evicted);
  if (record.is_resume) {
    ++resumes_;
    resume_queried_ += record.num_queried_tokens;
    resume_hit_ += record.num_hit_tokens;
    return;
  }
  const Sample sample = {static_cast<uint32_t>(record.num_queried_tokens),
                         static_cast<uint32_t>(record.num_hit_tokens),
                         static_cast<uint32_t>(misses.num_possible_blocks * block_tokens),
                         static_cast<uint32_t>(misses.num_full_blocks),
                         static_cast<uint32_t>(misses.num_hit_blocks)};
  whole_.Add(sample);
  switch (options_.warmup.kind) {
    case Warmup::Kind::kShare:
      samples_.push_back(sample);
      break;
    case Warmup::Kind::kRequests:
      if (admissions_ >= options_.warmup.requests) after_warmup_.Add(sample);
      break;
    case Warmup::Kind::kTime:
      if (now >= options_.warmup.time) after_warmup_.Add(sample);
      break;
  }
  if (last_.size() < kRollingRequests) {
    last_.push_back(sample);
  } else {
    last_[next_last_] = sample;
    next_last_ = (next_last_ + 1) % kRollingRequests;
  }
  ++hit_lengths_[HistogramIndex(record.num_hit_tokens)];
  if (misses.num_hit_blocks < misses.num_full_blocks) {
    ++missing_at_[HistogramIndex(misses.num_hit_blocks * block_tokens)];
  }
  ++admissions_;
}

void HitRateMetrics::FillHistogram(const Histogram& counts, pb::LengthHistogram* out) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    auto* bucket = out->add_buckets();
    bucket->set_from_tokens(i == 0 ? 0 : int64_t{1} << (i - 1));
    bucket->set_to_tokens(int64_t{1} << i);
    bucket->set_count(counts[i]);
  }
}

void HitRateMetrics::FillMisses(const MissCounts& blocks, int64_t block_tokens,
                                pb::MissCauses* out) {
  int64_t sum = 0;
  for (const MissReason reason : kClassifiedReasons) {
    const int64_t missed = blocks[static_cast<size_t>(reason)];
    sum += missed;
    auto* cause = out->add_causes();
    cause->set_cause(std::string(MissReasonName(reason)));
    cause->set_blocks(missed);
    cause->set_tokens(missed * block_tokens);
    cause->set_meaning(std::string(MissReasonMeaning(reason)));
  }
  out->set_missed_blocks(sum);
  out->set_missed_tokens(sum * block_tokens);
}

void HitRateMetrics::Fill(const ReplayEnd& end, pb::Report* out) {
  if (has_partial_hits_) {
    auto* partial = out->mutable_partial_hits();
    partial->set_hits(first_partial_.hits);
    partial->set_tokens(first_partial_.tokens);
    partial->set_resume_hits(resume_partial_.hits);
    partial->set_resume_tokens(resume_partial_.tokens);
    partial->set_block_copies(end.result.scheduler.num_block_copies);
    partial->set_copied_bytes(end.result.copied_bytes);
    partial->set_copy_time_ms(Milliseconds(end.result.copy_time));
  }
  whole_.Fill("all requests", out->mutable_whole_run());
  Sums after = after_warmup_;
  if (options_.warmup.kind == Warmup::Kind::kShare) {
    const auto first = static_cast<size_t>(static_cast<__int128>(samples_.size()) *
                                           options_.warmup.share_ppm / kMillion);
    for (size_t i = first; i < samples_.size(); ++i) after.Add(samples_[i]);
  }
  after.Fill(DescribeWarmup(options_.warmup), out->mutable_after_warmup());

  Sums last;
  for (const Sample& sample : last_) last.Add(sample);
  auto* rolling = out->mutable_rolling_window();
  rolling->set_max_requests(kRollingRequests);
  rolling->set_requests(last.requests);
  FillRatio(last.hit, last.queried, rolling->mutable_token_hit_rate());

  auto* counters = out->mutable_counters();
  counters->set_admissions(admissions_);
  counters->set_resumes(resumes_);
  counters->set_attempts(attempts_);
  if (options_.legacy_counters) {
    counters->set_counting("vllm-legacy");
    counters->set_queried_tokens(attempt_queried_);
    counters->set_hit_tokens(attempt_hit_);
  } else {
    counters->set_counting("admission");
    counters->set_queried_tokens(whole_.queried);
    counters->set_hit_tokens(whole_.hit);
    counters->set_resume_queried_tokens(resume_queried_);
    counters->set_resume_hit_tokens(resume_hit_);
  }

  FillMisses(first_misses_, block_tokens_, out->mutable_first_admission_misses());
  FillMisses(resume_misses_, block_tokens_, out->mutable_resume_misses());
  first_reuse_.Fill(out->mutable_first_admission_misses()->mutable_evicted());
  resume_reuse_.Fill(out->mutable_resume_misses()->mutable_evicted());
  auto* prompt = out->mutable_prompt_tokens();
  prompt->set_known(whole_.queried);
  prompt->set_hit(whole_.hit);
  prompt->set_missed_full_blocks(out->first_admission_misses().missed_tokens());
  prompt->set_partial_blocks(prompt->known() - prompt->hit() - prompt->missed_full_blocks());
  FillHistogram(hit_lengths_, out->mutable_hit_prefix_length());
  FillHistogram(missing_at_, out->mutable_first_missing_block());
}

}  // namespace kvblocks::sim
