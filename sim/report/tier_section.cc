#include "sim/report/tier_section.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "offload/tier.h"
#include "sim/report/report_section.h"
#include "sim/report/text_page.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

double MeanMs(SimTime sum, int64_t count) {
  return count == 0 ? 0 : Milliseconds(sum) / static_cast<double>(count);
}

void Add(const LinkTotals& link, LinkTotals* sum) {
  sum->num_ended += link.num_ended;
  sum->bytes += link.bytes;
  sum->busy_time += link.busy_time;
  sum->transfer_time += link.transfer_time;
  sum->queue_time += link.queue_time;
  sum->peak_under_way = std::max(sum->peak_under_way, link.peak_under_way);
}

void FillLink(const LinkTotals& totals, pb::LinkUse* out) {
  out->set_transfers(totals.num_ended);
  out->set_bytes(totals.bytes);
  out->set_busy_s(Milliseconds(totals.busy_time) / 1e3);
  out->set_mean_transfer_ms(MeanMs(totals.transfer_time, totals.num_ended));
  out->set_mean_queue_ms(MeanMs(totals.queue_time, totals.num_ended));
  out->set_peak_transfers(totals.peak_under_way);
}

// One tier of each replica, or the one that they share.
void FillTier(absl::Span<const TierConnector* const> of_replicas, size_t t, pb::Tier* out) {
  const SimTier& described = of_replicas.front()->options().tiers[t];
  if (described.is_shared) of_replicas = of_replicas.first(1);
  out->set_name(described.options.name);
  out->set_is_shared(described.is_shared);
  int64_t num_distinct = 0, num_useful = 0;
  std::array<int64_t, kNumTierMisses> missed_tokens = {};
  std::optional<LinkTotals> read, write;
  for (const TierConnector* tiers : of_replicas) {
    const offload::Tier& tier = tiers->offload().tier(static_cast<offload::TierId>(t));
    const offload::TierStats& stats = tier.stats();
    const TierTotals& totals = tiers->tier_totals(t);
    out->set_capacity_chunks(out->capacity_chunks() + tier.capacity().num_slots);
    out->set_capacity_bytes(out->capacity_bytes() + tier.capacity().bytes);
    out->set_used_chunks(out->used_chunks() + tier.num_used_slots());
    out->set_used_bytes(out->used_bytes() + tier.bytes_taken());
    out->set_hit_tokens(out->hit_tokens() + totals.num_hit_tokens);
    out->set_loads(out->loads() + totals.num_loads);
    out->set_read_chunks(out->read_chunks() + stats.num_read);
    out->set_read_bytes(out->read_bytes() + stats.bytes_read);
    out->set_written_chunks(out->written_chunks() + stats.num_written);
    out->set_written_bytes(out->written_bytes() + stats.bytes_written);
    out->set_evicted_chunks(out->evicted_chunks() + stats.num_evicted);
    out->set_moved_down_chunks(out->moved_down_chunks() + stats.num_moved_down);
    out->set_refused_chunks(out->refused_chunks() + stats.num_refused);
    out->set_awaiting_second_use_chunks(out->awaiting_second_use_chunks() +
                                        stats.num_awaiting_second_use);
    num_distinct += totals.num_distinct;
    num_useful += stats.num_useful;
    for (size_t i = 0; i < kNumTierMisses; ++i) missed_tokens[i] += totals.missed_tokens[i];
    for (auto [link, sum] : {std::pair(tiers->read_totals(t), &read),
                             std::pair(tiers->write_totals(t), &write)}) {
      if (link == nullptr) continue;
      if (!*sum) sum->emplace();
      Add(*link, &**sum);
    }
  }
  out->set_write_amplification(Ratio(out->written_chunks(), num_distinct));
  out->set_useful_share(Ratio(num_useful, out->written_chunks()));
  if (read) FillLink(*read, out->mutable_read_link());
  if (write) FillLink(*write, out->mutable_write_link());
  FillTierMisses(missed_tokens, out->mutable_misses());
}

LoadTotals SumOfLoads(absl::Span<const TierConnector* const> of_replicas) {
  LoadTotals sum;
  for (const TierConnector* tiers : of_replicas) {
    const LoadTotals& one = tiers->load_totals();
    sum.num_known_tokens += one.num_known_tokens;
    sum.num_device_tokens += one.num_device_tokens;
    sum.num_loaded_tokens += one.num_loaded_tokens;
    sum.num_loads += one.num_loads;
    sum.num_bytes += one.num_bytes;
    sum.num_not_worth_it += one.num_not_worth_it;
    sum.compute_time = CheckedAdd(sum.compute_time, one.compute_time).value_or(kMaxSimTime);
    sum.load_time = CheckedAdd(sum.load_time, one.load_time).value_or(kMaxSimTime);
    sum.num_failed += one.num_failed;
    sum.num_lost_tokens += one.num_lost_tokens;
  }
  return sum;
}

std::string Bytes(double bytes) {
  if (bytes >= 1e12) return absl::StrFormat("%.2f TB", bytes / 1e12);
  if (bytes >= 1e9) return absl::StrFormat("%.2f GB", bytes / 1e9);
  return absl::StrFormat("%.2f MB", bytes / 1e6);
}

std::string UseOf(const pb::Tier& tier) {
  if (tier.capacity_bytes() == 0)
    return Say("$0 of $1", tier.used_chunks(), tier.capacity_chunks());
  return absl::StrCat(Bytes(static_cast<double>(tier.used_bytes())), " of ",
                      Bytes(static_cast<double>(tier.capacity_bytes())));
}

}  // namespace

void FillTierMisses(absl::Span<const int64_t> missed_tokens,
                    google::protobuf::RepeatedPtrField<pb::TierMiss>* out) {
  constexpr const char* kCauses[kNumTierMisses] = {"never stored", "evicted", "being written",
                                                   "not loaded"};
  for (size_t i = 0; i < kNumTierMisses; ++i) {
    if (missed_tokens[i] == 0) continue;
    pb::TierMiss* miss = out->Add();
    miss->set_cause(kCauses[i]);
    miss->set_tokens(missed_tokens[i]);
  }
}

std::string DescribeTierMisses(const google::protobuf::RepeatedPtrField<pb::TierMiss>& misses) {
  std::string text;
  for (const pb::TierMiss& miss : misses) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", WithThousands(miss.tokens()), " ",
                    miss.cause());
  }
  return text;
}

void FillTiers(absl::Span<const TierConnector* const> of_replicas, pb::Tiers* out) {
  const TierConnector& tiers = *of_replicas.front();
  const TierConnector::Options& options = tiers.options();
  const LoadTotals totals = SumOfLoads(of_replicas);
  out->set_load(options.mode == LoadMode::kSync    ? "sync"
                : options.mode == LoadMode::kAsync ? "async"
                                                   : "layerwise");
  out->set_load_if(options.load_if_faster ? "faster" : "always");
  out->set_known_tokens(totals.num_known_tokens);
  out->set_device_hit_tokens(totals.num_device_tokens);
  out->set_loaded_tokens(totals.num_loaded_tokens);
  out->set_hit_rate(
      Ratio(totals.num_device_tokens + totals.num_loaded_tokens, totals.num_known_tokens));
  out->set_loads(totals.num_loads);
  out->set_loaded_bytes(totals.num_bytes);
  out->set_not_worth_loading(totals.num_not_worth_it);
  out->set_mean_load_ms(MeanMs(totals.load_time, totals.num_loads));
  out->set_mean_compute_ms(MeanMs(totals.compute_time, totals.num_loads));
  if (totals.compute_time > 0) {
    out->set_break_even_bytes_per_s(static_cast<double>(totals.num_bytes) /
                                    (Milliseconds(totals.compute_time) / 1e3));
  }
  if (options.load_failures > 0) {
    out->set_load_failure_policy(tiers.fails_lost() ? "fail" : "recompute");
    out->set_failed_loads(totals.num_failed);
    out->set_lost_tokens(totals.num_lost_tokens);
  }
  for (size_t t = 0; t < options.tiers.size(); ++t) FillTier(of_replicas, t, out->add_tiers());
}

void AddTiers(const pb::Tiers& tiers, TextPage& page) {
  if (tiers.tiers().empty()) return;
  page.Text("tiers",
            Say("$0 of prompt tokens hit with them: $1 on the device, $2 loaded ($3, $4)",
                Percent(tiers.hit_rate()), tiers.device_hit_tokens(), tiers.loaded_tokens(),
                tiers.load(), tiers.load_if()));
  if (tiers.loads() > 0) {
    std::string text = absl::StrFormat("%s of %s; one took %s", Plural(tiers.loads(), "load"),
                                       Bytes(static_cast<double>(tiers.loaded_bytes())),
                                       Span(tiers.mean_load_ms() / 1e3));
    if (tiers.mean_compute_ms() > 0) {
      absl::StrAppendFormat(&text, ", computing would %s: break-even at %s/s",
                            Span(tiers.mean_compute_ms() / 1e3),
                            Bytes(tiers.break_even_bytes_per_s()));
    }
    page.Text("", text);
  }
  if (!tiers.load_failure_policy().empty()) {
    page.Text("", Say("$0 failed, and $1 tokens of them were of no use ($2)",
                      Plural(tiers.failed_loads(), "load"), tiers.lost_tokens(),
                      tiers.load_failure_policy()));
  }
  for (const pb::Tier& tier : tiers.tiers()) {
    page.Text(tier.name(),
              Say("$0$1 used; $2 tokens loaded; $3 chunks written ($4), $5 evicted, $6 were read",
                  tier.is_shared() ? "shared; " : "", UseOf(tier), tier.hit_tokens(),
                  tier.written_chunks(),
                  Bytes(static_cast<double>(tier.written_bytes())), tier.evicted_chunks(),
                  Percent(tier.useful_share())));
    const std::string misses = DescribeTierMisses(tier.misses());
    if (!misses.empty()) page.Text("", absl::StrCat("tokens missed: ", misses));
    if (tier.has_read_link() && tier.read_link().transfers() > 0) {
      page.Text("", absl::StrFormat("a read took %s, %s of it behind others; busy %.4g s",
                                    Span(tier.read_link().mean_transfer_ms() / 1e3),
                                    Span(tier.read_link().mean_queue_ms() / 1e3),
                                    tier.read_link().busy_s()));
    }
  }
  page.Blank();
}

}  // namespace kvblocks::sim
