#include "kvblocks/sim/report/hit_groups.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblocks::sim {
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

}  // namespace kvblocks::sim
