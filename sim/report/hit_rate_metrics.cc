#include "sim/report/hit_rate_metrics.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/trace/decimal.h"

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

namespace {

namespace pb = ::kvblocks::report::v1;

}  // namespace

void HitGroups::OnAdmission(const AdmissionRecord& record, SimTime) {
  if (record.is_resume) return;
  const TraceRequest& spec = record.request->spec;
  const int64_t queried = record.num_queried_tokens;
  const int64_t hit = record.num_hit_tokens;
  tenants_[spec.tenant].Add(1, queried, hit);
  classes_[spec.slo_class].Add(1, queried, hit);
  const size_t turn = spec.session == 0 ? 0 : std::min<size_t>(spec.turn, kNumTurns - 1);
  turns_[turn].Add(1, queried, hit);
  if (!facts_->first_block) return;
  const auto [it, is_new] = prefixes_.try_emplace(*facts_->first_block);
  if (is_new) it->second.first_row = spec.row;
  it->second.sums.Add(1, queried, hit);
}

void HitGroups::FillOne(const std::string& name, const Sums& sums, pb::HitGroup* out) {
  out->set_name(name);
  out->set_requests(sums.requests);
  auto* rate = out->mutable_token_hit_rate();
  rate->set_numerator(sums.hit);
  rate->set_denominator(sums.queried);
  rate->set_value(Ratio(sums.hit, sums.queried));
}

void HitGroups::FillNames(const Names& names,
                          google::protobuf::RepeatedPtrField<pb::HitGroup>* out) {
  std::vector<const Names::value_type*> sorted;
  for (const auto& entry : names) sorted.push_back(&entry);
  // Equal ones stay in the order of their names.
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return a->second.queried > b->second.queried;
  });
  const size_t listed = sorted.size() <= kMaxNames ? sorted.size() : kMaxNames - 1;
  for (size_t i = 0; i < listed; ++i) FillOne(sorted[i]->first, sorted[i]->second, out->Add());
  if (listed == sorted.size()) return;
  Sums others;
  for (size_t i = listed; i < sorted.size(); ++i) {
    const Sums& sums = sorted[i]->second;
    others.Add(sums.requests, sums.queried, sums.hit);
  }
  FillOne(absl::StrCat("(", sorted.size() - listed, " others)"), others, out->Add());
}

void HitGroups::Fill(const ReplayEnd&, pb::Report* report) {
  pb::HitGroups* out = report->mutable_hit_groups();
  FillNames(tenants_, out->mutable_tenants());
  FillNames(classes_, out->mutable_classes());
  for (size_t turn = 0; turn < turns_.size(); ++turn) {
    if (turns_[turn].requests == 0) continue;
    FillOne(turn + 1 < turns_.size() ? absl::StrCat(turn) : absl::StrCat(">= ", turn), turns_[turn],
            out->add_turns());
  }

  out->set_distinct_prefixes(static_cast<int64_t>(prefixes_.size()));
  using Entry = std::pair<uint64_t, Prefix>;
  std::vector<Entry> hit;
  for (const auto& [key, prefix] : prefixes_) {
    if (prefix.sums.hit > 0) hit.emplace_back(key, prefix);
  }
  const size_t listed = std::min(hit.size(), std::max(top_prefixes_, kMinTopPrefixes));
  const auto middle = hit.begin() + static_cast<std::ptrdiff_t>(listed);
  // No two groups were seen first in the same row.
  std::partial_sort(hit.begin(), middle, hit.end(), [](const Entry& a, const Entry& b) {
    if (a.second.sums.hit != b.second.sums.hit) return a.second.sums.hit > b.second.sums.hit;
    return a.second.first_row < b.second.first_row;
  });
  hit.erase(middle, hit.end());
  for (const auto& [key, prefix] : hit) {
    auto* group = out->add_top_prefixes();
    FillOne(absl::StrFormat("%016x", key), prefix.sums, group->mutable_hits());
    group->set_first_row(prefix.first_row);
  }
}

void HitReuseSection::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  const BlockPool& pool = manager_->pool();
  // Pages of chunks are in no queue of blocks.
  if (!pool.enable_caching() || pool.chunks() != nullptr) return;
  for (GroupId g = 0; g < manager_->num_groups() && !group_; ++g) {
    const SingleTypeManager& group = manager_->group(g);
    if (group.is_full_type() && group.is_cacheable()) group_ = g;
  }
  has_places_ = pool.eviction_order() == nullptr;
}

void HitReuseSection::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  if (!group_ || record.is_repeat) return;
  is_staged_ = false;
  facts_->first_hit_use = INT64_MAX;
  const BlockPool& pool = manager_->pool();
  if (record.is_resume || num_hits_ + pool.num_blocks_taken() - num_taken_ < pool.num_blocks()) {
    return;
  }
  Sample(record);
  num_hits_ = 0;
  num_taken_ = pool.num_blocks_taken();
}

void HitReuseSection::Sample(const AdmissionRecord& record) {
  const BlockPool& pool = manager_->pool();
  const auto hits = record.hits->blocks(*group_);
  is_staged_ = true;
  // A request that holds a block holds those before it.
  staged_in_use_ =
      std::find_if(hits.begin(), hits.end(),
                   [&](BlockId id) { return pool.block(id).ref_count == 0; }) -
      hits.begin();
  const int64_t unit = manager_->hit_alignment();
  facts_->first_hit_use =
      (staged_in_use_ * manager_->group(*group_).block_size() + unit - 1) / unit;
  staged_places_ = {};
  if (!has_places_ || staged_in_use_ == static_cast<int64_t>(hits.size())) return;
  const FreeBlockQueue& queue = pool.free_queue();
  places_.resize(static_cast<size_t>(pool.num_blocks()));
  BlockId id = queue.front();
  for (int32_t place = 0; place < queue.size(); ++place, id = queue.next(id)) {
    places_[static_cast<size_t>(id)] = place;
  }
  for (const BlockId hit : hits.subspan(static_cast<size_t>(staged_in_use_))) {
    if (pool.block(hit).ref_count > 0) continue;
    ++staged_places_[static_cast<size_t>(int64_t{places_[static_cast<size_t>(hit)]} * kNumPlaces /
                                         queue.size())];
  }
}

void HitReuseSection::OnAdmission(const AdmissionRecord& record, SimTime) {
  if (!group_) return;
  const auto num_hits = static_cast<int64_t>(record.hits->blocks(*group_).size());
  num_hits_ += num_hits;
  facts_->first_hit_use = INT64_MAX;
  if (!is_staged_) return;
  is_staged_ = false;
  ++admissions_;
  hit_blocks_ += num_hits;
  in_use_blocks_ += staged_in_use_;
  for (size_t i = 0; i < staged_places_.size(); ++i) blocks_by_place_[i] += staged_places_[i];
  for (const EvictedRun& run : facts_->misses.hit_uses) {
    distance_.Add(run.distance, run.num_blocks);
  }
}

void HitReuseSection::Fill(const ReplayEnd&, ::kvblocks::report::v1::Report* out) {
  if (hit_blocks_ == 0) return;
  auto* reuse = out->mutable_hit_reuse();
  reuse->set_admissions(admissions_);
  reuse->set_hit_blocks(hit_blocks_);
  reuse->set_in_use_blocks(in_use_blocks_);
  if (has_places_) {
    for (const int64_t count : blocks_by_place_) reuse->add_blocks_by_place(count);
  }
  for (const int64_t value : distance_.Percentiles()) reuse->add_distance_quantiles_blocks(value);
}

}  // namespace kvblocks::sim
