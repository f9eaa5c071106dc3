#include "sim/report/human_table.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "sim/cost/step_time_model.h"
#include "sim/report/tier_section.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kMaxLines = 45;
constexpr int kMaxNotes = 6;

std::string Rate(const pb::Ratio& ratio) {
  return ratio.denominator() == 0 ? "n/a" : Percent(ratio.value());
}

std::string NameOf(const std::string& name) { return name.empty() ? "(none)" : Printable(name); }

// The unit in which a latency is read with least effort.
struct TimeUnit {
  const char* name;
  double ms;
};
TimeUnit UnitFor(double ms) {
  if (ms < 1e4) return {"ms", 1};
  if (ms < 6e5) return {"s", 1e3};
  return {"min", 6e4};
}

std::string Decimal(double value) {
  if (value >= 1e9) return absl::StrFormat("%.3e", value);
  return value >= 1e3 ? WithThousands(std::llround(value)) : absl::StrFormat("%.1f", value);
}

// Parts of a step's time that do not come from where most of it does.
void AddTimeParts(const pb::Setup& setup, TextPage& page) {
  if (setup.has_time_shares()) {
    std::string text;
    for (const auto& [share, source] : {std::pair(setup.time_shares().kernels(), "kernel tables"),
                                        std::pair(setup.time_shares().roofline(), "the roofline"),
                                        std::pair(setup.time_shares().constants(), "constants")}) {
      if (share == 0) continue;
      absl::StrAppend(&text, text.empty() ? "from " : ", ", source, " ", Percent(share));
    }
    page.Text("", text);
  }
  std::string estimated;
  for (const pb::TimePart& part : setup.time_parts()) {
    if (part.source() != "roofline") continue;
    absl::StrAppend(&estimated, estimated.empty() ? "" : ", ", part.part());
  }
  if (!estimated.empty()) page.Text("", absl::StrCat("by the roofline: ", estimated));
  for (const pb::TimePart& part : setup.time_parts()) {
    if (part.part() != kMeasuredErrorPart) continue;
    page.Text("", absl::StrCat(part.part(), ": ", part.source()));
  }
}

void AddWorkload(const pb::Workload& workload, TextPage& page) {
  page.Text("workload",
            Say("$0 ($1): $2, $3 prompt + $4 output tokens, arriving over $5", workload.name(),
                workload.format(), Plural(workload.requests_arrived(), "request"),
                workload.input_tokens(), workload.requested_output_tokens(),
                Span(workload.last_arrival_s() - workload.first_arrival_s())));
}

// What a replica is, where all are the same.
void AddSetup(const pb::Report& report, TextPage& page) {
  const auto& setup = report.setup();
  const auto& config = report.config();
  const std::string size =
      setup.num_chunks() > 0
          ? Say("$0 chunks of $1 bytes", setup.num_chunks(), setup.chunk_bytes())
          : Say("$0 blocks of $1 tokens", setup.num_blocks(), absl::StrCat(setup.block_tokens()));
  const double bytes = static_cast<double>(setup.num_blocks()) *
                           static_cast<double>(setup.block_bytes()) +
                       static_cast<double>(setup.num_chunks()) *
                           static_cast<double>(setup.chunk_bytes());
  std::string memory;
  if (bytes > 0) {
    memory = absl::StrCat(", ", Gigabytes(bytes));
    if (config.pipeline_parallel() > 1) {
      absl::StrAppend(&memory, " on a device of the largest stage");
    } else if (config.tensor_parallel() > 1) {
      const auto ranks = static_cast<double>(config.tensor_parallel());
      absl::StrAppend(&memory, " per device and ", Gigabytes(ranks * bytes), " in all");
    }
  }
  const std::string capacity =
      report.groups_size() > 1
          ? absl::StrCat(" in ", report.groups_size(), " KV-cache groups, ", setup.plan(), " plan")
          : Say(" = $0 tokens", setup.capacity_tokens());
  const bool is_lru = config.eviction_policy().empty() || config.eviction_policy() == "lru";
  page.Text(report.replicas().empty() ? "pool" : "pool of each",
            Say("$0$1$2, $3$4$5, $6; $7", size, capacity, memory, config.free_order(),
                is_lru ? "" : absl::StrCat(", evicts by ", config.eviction_policy()),
                config.retain().empty()
                    ? ""
                    : ", retains " + absl::StrReplaceAll(config.retain(), {{",", ", "}}),
                config.policy(), setup.num_blocks_source()));
  page.Text("engine", Say("$0$1; at most $2 tokens and $3 requests per step, $4", config.engine(),
                          config.async() ? ", async" : ", sync", config.max_num_batched_tokens(),
                          config.max_num_seqs(), setup.limits_source()));
  if (config.max_encoder_tokens() > 0) {
    page.Text("encoder", Say("$0 tokens of its inputs entered, at most $1 per request",
                             report.totals().encoder_tokens(), config.max_encoder_tokens()));
  }
}

void AddTime(const pb::Report& report, TextPage& page) {
  const auto& setup = report.setup();
  const auto& config = report.config();
  std::string hardware;
  if (report.kinds().empty()) {
    hardware = absl::StrCat(": ", config.model(), " on ", config.tensor_parallel(), " x ",
                            config.device());
    if (config.pipeline_parallel() > 1) {
      absl::StrAppend(&hardware, " per stage, ", config.pipeline_parallel(), " stages");
    }
  }
  page.Text("time", setup.latency_is_meaningful()
                        ? Say("$0$1", setup.time_source(), hardware)
                        : Say("$0: every step takes $1, so read no latency from this run",
                              setup.time_source(), config.step_time()));
  AddTimeParts(setup, page);
}

// A line each for what was found and for why nothing was.
void AddPossiblePools(const pb::PossiblePools& pools, TextPage& page) {
  if (pools.answers().empty()) {
    if (!pools.not_known().empty() && pools.not_known().rfind("no cache", 0) != 0) {
      page.Text("", absl::StrCat("blocks for 50 / 90 / 99 % of these: n/a, ", pools.not_known()));
    }
    return;
  }
  std::string shares, blocks, gib;
  for (const auto& answer : pools.answers()) {
    const char* between = shares.empty() ? "" : " / ";
    absl::StrAppend(&shares, between, 100 * answer.share_of_possible());
    absl::StrAppend(&blocks, between, WithThousands(answer.num_blocks()));
    absl::StrAppend(&gib, between, Short(answer.gib()));
  }
  page.Text("", absl::StrCat(shares, " % of these need ", blocks, " blocks",
                             pools.answers(0).gib() > 0 ? absl::StrCat(" = ", gib, " GiB") : ""));
}

void AddHitRates(const pb::Report& report, TextPage& page) {
  const pb::HitRates& whole = report.whole_run();
  if (!report.config().prefix_caching()) {
    page.Line("hit rate", "prefix caching is off");
    page.Blank();
    return;
  }
  if (!report.has_whole_run()) return;  // replicas by role have theirs
  page.Text("hit rate", Say("$0 of prompt tokens: $1 of $2", Rate(whole.token_hit_rate()),
                            whole.token_hit_rate().numerator(),
                            whole.token_hit_rate().denominator()));
  if (whole.has_possible_hit_rate()) {
    const pb::Ratio& possible = whole.possible_hit_rate();
    page.Text("", possible.denominator() > 0
                      ? Say("that is $0 of the $1 tokens that an infinite cache would have served",
                            Rate(possible), possible.denominator())
                      : "no prompt shares a full block with an earlier one: no cache could help");
    AddPossiblePools(report.possible_pools(), page);
  }
  if (whole.has_full_block_hit_rate()) {
    page.Text("", Say("blocks $0, requests $1, mean of ratios $2",
                      Rate(whole.full_block_hit_rate()), Rate(whole.request_hit_rate()),
                      Percent(whole.mean_of_ratios())));
  }
  if (report.has_after_warmup()) {
    page.Text("", Say("after warm-up $0, last $1 requests $2",
                      Rate(report.after_warmup().token_hit_rate()),
                      report.rolling_window().requests(),
                      Rate(report.rolling_window().token_hit_rate())));
  }
  page.Blank();
}

void AddPromptTokens(const pb::Report& report, TextPage& page) {
  const pb::PromptTokens& prompt = report.prompt_tokens();
  if (!report.config().prefix_caching() || prompt.known() == 0) return;
  const auto share = [&](int64_t tokens) {
    return Percent(static_cast<double>(tokens) / static_cast<double>(prompt.known()));
  };
  const auto row = [&](const std::string& label, int64_t tokens, const std::string& meaning) {
    page.Line("", absl::StrFormat("%-17s %13s %9s  %s", label, WithThousands(tokens), share(tokens),
                                  meaning));
  };
  page.Line("prompt tokens",
            absl::StrFormat("%-17s %13s %9s  %s", "went to", "tokens", "share", ""));
  row("hit", prompt.hit(), "");
  for (const pb::MissCause& cause : report.first_admission_misses().causes()) {
    if (cause.blocks() == 0) continue;
    row(cause.cause(), cause.tokens(), cause.meaning());
    const pb::EvictedReuse& reuse = report.first_admission_misses().evicted();
    if (cause.cause() == "evicted" && reuse.blocks() > 0) {
      page.Line("", Say("  last used $0 / $1 blocks earlier at the median", Span(reuse.p50_age_s()),
                        reuse.p50_distance_blocks()));
    }
  }
  row("partial blocks", prompt.partial_blocks(), "behind the last full block: never cached");
  page.Blank();
}

// Two lines at most. A single group says nothing that the whole run does not.
void AddHitGroups(const std::string& label,
                  const google::protobuf::RepeatedPtrField<pb::HitGroup>& groups, TextPage& page) {
  constexpr int kMaxGroupLines = 2;
  constexpr size_t kRoomForRest = 18;
  if (groups.size() < 2) return;
  std::string line;
  int lines = 0;
  for (int i = 0; i < groups.size(); ++i) {
    const std::string text =
        absl::StrCat(NameOf(groups[i].name()), " ", Rate(groups[i].token_hit_rate()));
    if (line.size() + 3 + text.size() + kRoomForRest > TextPage::kWidth - TextPage::kLabelWidth) {
      if (lines + 1 == kMaxGroupLines) {
        absl::StrAppend(&line, "   and ", groups.size() - i, " more");
        break;
      }
      page.Line(lines++ == 0 ? label : "", line);
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : "   ", text);
  }
  page.Line(lines == 0 ? label : "", line);
}

void AddGroups(const pb::Report& report, TextPage& page) {
  const pb::HitGroups& groups = report.hit_groups();
  if (!report.config().prefix_caching()) return;
  AddHitGroups("by tenant", groups.tenants(), page);
  AddHitGroups("by class", groups.classes(), page);
  // ">= 16" is one word.
  auto turns = groups.turns();
  for (pb::HitGroup& turn : turns) {
    turn.mutable_name()->erase(
        std::remove(turn.mutable_name()->begin(), turn.mutable_name()->end(), ' '),
        turn.mutable_name()->end());
  }
  AddHitGroups("by turn", turns, page);
  const auto listed = static_cast<int>(
      std::min<int64_t>(report.config().top_prefixes(), groups.top_prefixes_size()));
  if (listed > 0) {
    page.Line("top prefixes", absl::StrFormat("%-17s %13s %9s %13s %9s", "first block",
                                              "hit tokens", "hit rate", "requests", "first row"));
  }
  for (int i = 0; i < listed; ++i) {
    const pb::PrefixGroup& prefix = groups.top_prefixes(i);
    page.Line("", absl::StrFormat("%-17s %13s %9s %13s %9d", prefix.hits().name(),
                                  WithThousands(prefix.hits().token_hit_rate().numerator()),
                                  Rate(prefix.hits().token_hit_rate()),
                                  WithThousands(prefix.hits().requests()), prefix.first_row()));
  }
  if (listed > 0 || groups.tenants_size() > 1 || groups.classes_size() > 1 || turns.size() > 1) {
    page.Blank();
  }
}

// A model with one group needs no rows per group.
void AddKvGroups(const pb::Report& report, TextPage& page) {
  constexpr int kMaxGroupLines = 8;
  if (report.groups_size() < 2) return;
  page.Line("KV groups", absl::StrFormat("%-25s %6s %6s %13s %11s %12s %7s", "", "layers", "block",
                                         "vetoed tokens", "hit blocks", "live, mean", "cached"));
  for (int i = 0; i < report.groups_size(); ++i) {
    if (i == kMaxGroupLines) {
      page.Line("", absl::StrCat("and ", report.groups_size() - i, " more"));
      break;
    }
    const pb::Group& group = report.groups(i);
    page.Line("", absl::StrFormat(
                      "%-25s %6d %6d %13s %11s %12s %7s", absl::StrCat(i, " ", group.kind()),
                      group.num_layers(), group.block_tokens(),
                      WithThousands(group.vetoed_tokens()), WithThousands(group.hit_blocks()),
                      Short(group.live_blocks().mean()), Short(group.cached_blocks().mean())));
  }
  page.Blank();
}

void AddPool(const pb::Report& report, TextPage& page) {
  const pb::Pool& pool = report.pool();
  const auto gauge = [&](const pb::Gauge& g, const char* name) {
    page.Line("", absl::StrFormat("%-17s %13s %9s", name, Percent(g.mean()), Percent(g.peak())));
  };
  page.Line("pool use", absl::StrFormat("%-17s %13s %9s", "", "mean", "peak"));
  gauge(pool.usage(), "referenced");
  gauge(pool.resident(), "with cached");
  if (report.groups_size() == 1) gauge(pool.fragmentation(), "unused slots");
  page.Text("", Say("$0 of the time above 90 %; $1 cached blocks evicted; $2 duplicates at most",
                    Percent(pool.time_above_90_percent_share()), pool.evictions(),
                    pool.duplicate_blocks().peak()));
  if (pool.has_retention()) {
    const pb::Retention& retention = pool.retention();
    page.Text("retained", Say("at most $0 blocks of $1 allowed; $2 of retained blocks",
                              retention.peak(), retention.cap(), Plural(retention.hits(), "hit")));
    page.Text("", Say("$0 in all: $1 expired, $2 gave way to others, $3 were reused since nothing "
                      "else was free; $4 refused at the cap",
                      retention.begun(), retention.expired(), retention.displaced(),
                      retention.taken(), retention.refused()));
  }
}

void AddPreemptions(const pb::Preemption& preemption, TextPage& page) {
  if (preemption.preemptions() == 0) {
    page.Text("preemptions", "none");
  } else {
    page.Text("preemptions",
              Say("$0 of $1: $2 tokens recomputed, $3 found again, $4 lost; worst: request $5 ($6)",
                  preemption.preemptions(), Plural(preemption.requests_affected(), "request"),
                  preemption.recomputed_tokens(), preemption.resume_hit_tokens(),
                  Span(preemption.time_lost_s()), NameOf(preemption.worst_request()),
                  Plural(preemption.worst_request_preemptions(), "time")));
  }
  page.Blank();
}

void AddLatency(const pb::Report& report, TextPage& page) {
  const pb::Latency& latency = report.latency();
  if (report.setup().latency_is_meaningful() && latency.e2e().count() > 0) {
    const auto row = [&](const std::string& name, const pb::Distribution& d) {
      if (d.count() == 0) return;
      const TimeUnit unit = UnitFor(d.mean_ms());
      const auto value = [&](double ms) { return Decimal(ms / unit.ms); };
      page.Line("", absl::StrFormat("%-22s %10s %10s %10s %10s %10s",
                                    absl::StrCat(name, ", ", unit.name), value(d.mean_ms()),
                                    value(d.p50_ms()), value(d.p90_ms()), value(d.p99_ms()),
                                    value(d.max_ms())));
    };
    page.Line("latency", absl::StrFormat("%-22s %10s %10s %10s %10s %10s", "", "mean", "p50",
                                         "p90", "p99", "max"));
    row("queueing", latency.queueing());
    row("TTFT", latency.ttft());
    row("TPOT, ITL/request", latency.tpot());
    row("ITL per gap", latency.itl());
    row("E2E", latency.e2e());
    const pb::Handover& phases = report.handover();
    row("prefill", phases.prefill());
    row("hand-over", phases.handover());
    row("transfer", phases.transfer());
    row("decode", phases.decode());
  }
  const pb::Throughput& t = report.throughput();
  page.Text("throughput",
            Say("$0: $1 requests/s, $2 output tokens/s; $3 of $4 requests and $5 tokens; busy $6$7",
                Span(t.duration_s()), t.requests_per_s(), t.output_tokens_per_s(),
                Plural(report.totals().steps(), "step"), t.mean_batch_requests(),
                t.mean_step_tokens(), Percent(t.busy_share()),
                t.has_pipeline_bubbles()
                    ? Say(", of which stages stand idle $0", Percent(t.pipeline_bubbles()))
                    : ""));
  if (report.has_steady_throughput()) {
    const pb::Throughput& steady = report.steady_throughput();
    page.Text("  steady", Say("$0 requests/s, $1 output tokens/s from $2 to $3",
                              steady.requests_per_s(), steady.output_tokens_per_s(),
                              Span(steady.start_s()), Span(steady.end_s())));
  }
  if (const pb::Drafts& drafts = report.drafts(); drafts.verified() > 0) {
    page.Text("drafts", Say("$0 of $1 accepted, $2 per step", drafts.accepted(), drafts.verified(),
                            drafts.mean_accepted()));
  }
  if (report.has_goodput()) {
    const pb::Goodput& goodput = report.goodput();
    page.Text("goodput", Say("$0 of requests ($1/s) meet $2$3", Percent(goodput.good_share()),
                             goodput.good_requests_per_s(), report.config().slo(),
                             goodput.met() ? "" : "; a percentile misses its limit"));
    constexpr int kMaxClasses = 3;
    std::string classes;
    for (int i = 0; i < goodput.classes_size() && i < kMaxClasses; ++i) {
      absl::StrAppend(&classes, i == 0 ? "" : "   ", NameOf(goodput.classes(i).slo_class()), " ",
                      Percent(goodput.classes(i).good_share()));
    }
    if (goodput.classes_size() > kMaxClasses) {
      absl::StrAppend(&classes, "   and ", goodput.classes_size() - kMaxClasses, " more");
    }
    if (!classes.empty()) page.Text("", classes);
  }
}

// Requests that did not finish.
void AddEnds(const pb::Totals& totals, TextPage& page) {
  if (totals.requests_rejected() > 0) {
    page.Text("rejected", Say("$0; first: $1", Plural(totals.requests_rejected(), "request"),
                              totals.first_rejection()));
  }
  if (totals.requests_aborted() > 0) {
    page.Text("aborted", Plural(totals.requests_aborted(), "request"));
  }
  if (totals.requests_failed() > 0) {
    page.Text("failed", absl::StrCat(Plural(totals.requests_failed(), "request"),
                                     " by a failed load (--load-failure-policy=fail)"));
  }
}

// What was replayed, and through what.
void AddRun(const pb::Report& report, TextPage& page) {
  AddWorkload(report.workload(), page);
  if (!report.replicas().empty()) AddFleet(report, page);
  if (report.kinds().empty()) AddSetup(report, page);
  AddTime(report, page);
}

void AddOutcome(const pb::Report& report, TextPage& page) {
  AddHitRates(report, page);
  AddPromptTokens(report, page);
  AddGroups(report, page);
  AddKvGroups(report, page);
  if (report.has_pool()) AddPool(report, page);
  AddPreemptions(report.preemption(), page);
  AddTiers(report.tiers(), page);
  AddLatency(report, page);
  if (!report.replicas().empty()) AddReplicas(report, page);
  AddEnds(report.totals(), page);
}

}  // namespace

std::string LatencyText(const pb::Distribution& latency) {
  return absl::StrFormat("mean %s, p50 %s, p90 %s, p99 %s", Span(latency.mean_ms() / 1e3),
                         Span(latency.p50_ms() / 1e3), Span(latency.p90_ms() / 1e3),
                         Span(latency.p99_ms() / 1e3));
}

pb::Facts FactsOf(const pb::Report& report) {
  TextPage setup(/*color=*/false), outcome(/*color=*/false);
  AddRun(report, setup);
  AddOutcome(report, outcome);
  pb::Facts facts;
  for (const auto& [page, out] : {std::pair(&setup, facts.mutable_setup()),
                                  std::pair(&outcome, facts.mutable_outcome())}) {
    for (const TextPage::Fact& fact : page->facts()) {
      pb::Facts::Fact* added = out->Add();
      added->set_label(fact.label);
      added->set_text(fact.text);
    }
  }
  return facts;
}

std::string FormatReport(const pb::Report& report, bool color) {
  TextPage page(color);
  AddRun(report, page);
  page.Blank();
  AddOutcome(report, page);
  for (int i = 0; i < report.notes_size() && i < kMaxNotes; ++i) {
    page.Text(i == 0 ? "note" : "", report.notes(i));
  }
  return page.Take(report.replicas().empty() ? kMaxLines : INT_MAX);
}

}  // namespace kvblocks::sim
