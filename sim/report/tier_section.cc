#include "kvblocks/sim/report/tier_section.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

double MeanMs(SimTime sum, int64_t count) {
  return count == 0 ? 0 : Milliseconds(sum) / static_cast<double>(count);
}

void FillLink(const LinkTotals& totals, pb::LinkUse* out) {
  out->set_transfers(totals.num_ended);
  out->set_bytes(totals.bytes);
  out->set_busy_s(Milliseconds(totals.busy_time) / 1e3);
  out->set_mean_transfer_ms(MeanMs(totals.transfer_time, totals.num_ended));
  out->set_mean_queue_ms(MeanMs(totals.queue_time, totals.num_ended));
  out->set_peak_transfers(totals.peak_under_way);
}

void FillTier(const TierConnector& tiers, size_t t, pb::Tier* out) {
  const offload::Tier& tier = tiers.offload().tier(static_cast<offload::TierId>(t));
  const offload::TierStats& stats = tier.stats();
  const TierTotals& totals = tiers.tier_totals()[t];
  out->set_name(tier.options().name);
  out->set_capacity_chunks(tier.capacity().num_slots);
  out->set_capacity_bytes(tier.capacity().bytes);
  out->set_used_chunks(tier.num_used_slots());
  out->set_used_bytes(tier.bytes_taken());
  out->set_hit_tokens(totals.num_hit_tokens);
  out->set_loads(totals.num_loads);
  out->set_read_chunks(stats.num_read);
  out->set_read_bytes(stats.bytes_read);
  out->set_written_chunks(stats.num_written);
  out->set_written_bytes(stats.bytes_written);
  out->set_evicted_chunks(stats.num_evicted);
  out->set_moved_down_chunks(stats.num_moved_down);
  out->set_refused_chunks(stats.num_refused);
  out->set_awaiting_second_use_chunks(stats.num_awaiting_second_use);
  out->set_write_amplification(Ratio(stats.num_written, totals.num_distinct));
  out->set_useful_share(Ratio(stats.num_useful, stats.num_written));
  if (const LinkTotals* link = tiers.read_totals(t)) FillLink(*link, out->mutable_read_link());
  if (const LinkTotals* link = tiers.write_totals(t)) FillLink(*link, out->mutable_write_link());
  FillTierMisses(totals.missed_tokens, out->mutable_misses());
}

std::string Percent(double share) { return absl::StrFormat("%.2f %%", 100.0 * share); }

std::string Bytes(double bytes) {
  if (bytes >= 1e12) return absl::StrFormat("%.2f TB", bytes / 1e12);
  if (bytes >= 1e9) return absl::StrFormat("%.2f GB", bytes / 1e9);
  return absl::StrFormat("%.2f MB", bytes / 1e6);
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

void FillTiers(const TierConnector& tiers, pb::Tiers* out) {
  const TierConnector::Options& options = tiers.options();
  const LoadTotals& totals = tiers.load_totals();
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
  for (size_t t = 0; t < options.tiers.size(); ++t) FillTier(tiers, t, out->add_tiers());
}

void AddTiers(const pb::Tiers& tiers, TextPage& page) {
  if (tiers.tiers().empty()) return;
  page.Text("tiers",
            absl::StrCat(Percent(tiers.hit_rate()), " of prompt tokens hit with them: ",
                         WithThousands(tiers.device_hit_tokens()), " on the device, ",
                         WithThousands(tiers.loaded_tokens()), " loaded (", tiers.load(), ", ",
                         tiers.load_if(), ")"));
  if (tiers.loads() > 0) {
    page.Text("", absl::StrFormat("%s of %s; one took %.3g ms, computing would %.3g ms: break-even "
                                  "at %s/s",
                                  Plural(tiers.loads(), "load"),
                                  Bytes(static_cast<double>(tiers.loaded_bytes())),
                                  tiers.mean_load_ms(), tiers.mean_compute_ms(),
                                  Bytes(tiers.break_even_bytes_per_s())));
  }
  if (!tiers.load_failure_policy().empty()) {
    page.Text("", absl::StrCat(Plural(tiers.failed_loads(), "load"), " failed, and ",
                               WithThousands(tiers.lost_tokens()), " tokens of them were of no use (",
                               tiers.load_failure_policy(), ")"));
  }
  for (const pb::Tier& tier : tiers.tiers()) {
    page.Text(tier.name(),
              absl::StrCat(WithThousands(tier.hit_tokens()), " tokens loaded; ",
                           WithThousands(tier.written_chunks()), " chunks written (",
                           Bytes(static_cast<double>(tier.written_bytes())), "), ",
                           WithThousands(tier.evicted_chunks()), " evicted, ",
                           Percent(tier.useful_share()), " were read"));
    const std::string misses = DescribeTierMisses(tier.misses());
    if (!misses.empty()) page.Text("", absl::StrCat("tokens missed: ", misses));
    if (tier.has_read_link() && tier.read_link().transfers() > 0) {
      page.Text("", absl::StrFormat("a read took %.3g ms, %.3g of them behind others; busy %.4g s",
                                    tier.read_link().mean_transfer_ms(),
                                    tier.read_link().mean_queue_ms(), tier.read_link().busy_s()));
    }
  }
  page.Blank();
}

}  // namespace kvblocks::sim
