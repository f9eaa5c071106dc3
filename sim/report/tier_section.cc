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

// Adds up the whole numbers of two messages.
void AddUp(const google::protobuf::Message& one, google::protobuf::Message* sum) {
  const auto* reflection = one.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(one, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != field->CPPTYPE_INT64) continue;
    reflection->SetInt64(sum, field,
                         reflection->GetInt64(*sum, field) + reflection->GetInt64(one, field));
  }
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
    pb::Tier one;
    one.set_capacity_chunks(tier.capacity().num_slots);
    one.set_capacity_bytes(tier.capacity().bytes);
    one.set_used_chunks(tier.num_used_slots());
    one.set_used_bytes(tier.bytes_taken());
    one.set_hit_tokens(totals.num_hit_tokens);
    one.set_loads(totals.num_loads);
    one.set_read_chunks(stats.num_read);
    one.set_read_bytes(stats.bytes_read);
    one.set_written_chunks(stats.num_written);
    one.set_written_bytes(stats.bytes_written);
    one.set_evicted_chunks(stats.num_evicted);
    one.set_moved_down_chunks(stats.num_moved_down);
    one.set_refused_chunks(stats.num_refused);
    one.set_awaiting_second_use_chunks(stats.num_awaiting_second_use);
    AddUp(one, out);
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
  SimTime load_time = 0, compute_time = 0;
  for (const TierConnector* one : of_replicas) {
    const LoadTotals& totals = one->load_totals();
    load_time = CheckedAdd(load_time, totals.load_time).value_or(kMaxSimTime);
    compute_time = CheckedAdd(compute_time, totals.compute_time).value_or(kMaxSimTime);
    pb::Tiers counted;
    counted.set_known_tokens(totals.num_known_tokens);
    counted.set_device_hit_tokens(totals.num_device_tokens);
    counted.set_loaded_tokens(totals.num_loaded_tokens);
    counted.set_loads(totals.num_loads);
    counted.set_loaded_bytes(totals.num_bytes);
    counted.set_not_worth_loading(totals.num_not_worth_it);
    counted.set_failed_loads(totals.num_failed);
    counted.set_lost_tokens(totals.num_lost_tokens);
    AddUp(counted, out);
  }
  out->set_load(options.mode == LoadMode::kSync    ? "sync"
                : options.mode == LoadMode::kAsync ? "async"
                                                   : "layerwise");
  out->set_load_if(options.load_if_faster ? "faster" : "always");
  out->set_hit_rate(Ratio(out->device_hit_tokens() + out->loaded_tokens(), out->known_tokens()));
  out->set_mean_load_ms(MeanMs(load_time, out->loads()));
  out->set_mean_compute_ms(MeanMs(compute_time, out->loads()));
  if (compute_time > 0) {
    out->set_break_even_bytes_per_s(static_cast<double>(out->loaded_bytes()) /
                                    (Milliseconds(compute_time) / 1e3));
  }
  if (options.load_failures > 0) {
    out->set_load_failure_policy(tiers.fails_lost() ? "fail" : "recompute");
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
