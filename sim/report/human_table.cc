#include "kvblocks/sim/report/human_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/report/tier_section.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kMaxLines = 45;
constexpr int kMaxNotes = 6;

std::string Rate(const pb::Ratio& ratio) {
  return ratio.denominator() == 0 ? "n/a" : Percent(ratio.value());
}

std::string Gigabytes(double bytes) {
  const double gigabytes = bytes / 1e9;
  return gigabytes < 10 ? absl::StrFormat("%.3g GB", gigabytes)
                        : absl::StrFormat("%.1f GB", gigabytes);
}

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

std::string Short(double value) {
  return value >= 1e4 ? WithThousands(std::llround(value)) : GroupThousands(absl::StrFormat("%.4g", value));
}

// Parts of a step's time that do not come from where most of it does.
void AddTimeParts(const pb::Setup& setup, TextPage& page) {
  std::string estimated;
  for (const pb::TimePart& part : setup.time_parts()) {
    if (part.source() != "roofline") continue;
    absl::StrAppend(&estimated, estimated.empty() ? "" : ", ", part.part());
  }
  if (!estimated.empty()) page.Text("", absl::StrCat("by the roofline: ", estimated));
}

void AddHead(const pb::Report& report, TextPage& page) {
  const auto& workload = report.workload();
  const auto& setup = report.setup();
  const auto& config = report.config();
  page.Text("workload", absl::StrCat(workload.name(), " (", workload.format(), "): ",
                                     Plural(workload.requests_arrived(), "request"), ", ",
                                     WithThousands(workload.input_tokens()), " prompt + ",
                                     WithThousands(workload.requested_output_tokens()),
                                     " output tokens, arriving over ",
                                     Span(workload.last_arrival_s() - workload.first_arrival_s())));
  std::string size = absl::StrCat(WithThousands(setup.num_blocks()), " blocks of ",
                                  setup.block_tokens(), " tokens");
  if (setup.num_chunks() > 0) {
    size = absl::StrCat(WithThousands(setup.num_chunks()), " chunks of ",
                        WithThousands(setup.chunk_bytes()), " bytes");
  }
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
  page.Text("pool",
            absl::StrCat(
                size,
                report.groups_size() > 1
                    ? absl::StrCat(" in ", report.groups_size(), " KV-cache groups, ", setup.plan(),
                                   " plan")
                    : absl::StrCat(" = ", WithThousands(setup.capacity_tokens()), " tokens"),
                memory, ", ", config.free_order(),
                config.eviction_policy().empty() || config.eviction_policy() == "lru"
                    ? std::string()
                    : absl::StrCat(", evicts by ", config.eviction_policy()),
                config.retain().empty()
                    ? std::string()
                    : absl::StrCat(", retains ",
                                   absl::StrReplaceAll(config.retain(), {{",", ", "}})),
                ", ", config.policy(), "; ", setup.num_blocks_source()));
  page.Text("engine", absl::StrCat(config.engine(), config.async() ? ", async" : ", sync",
                                   "; at most ", WithThousands(config.max_num_batched_tokens()),
                                   " tokens and ", WithThousands(config.max_num_seqs()),
                                   " requests per step, ", setup.limits_source()));
  if (config.max_encoder_tokens() > 0) {
    page.Text("encoder", absl::StrCat(WithThousands(report.totals().encoder_tokens()),
                                      " tokens of its inputs entered, at most ",
                                      WithThousands(config.max_encoder_tokens()), " per request"));
  }
  page.Text("time", setup.latency_is_meaningful()
                        ? absl::StrCat(setup.time_source(), ": ", config.model(), " on ",
                                       config.tensor_parallel(), " x ", config.device(),
                                       config.pipeline_parallel() > 1
                                           ? absl::StrCat(" per stage, ", config.pipeline_parallel(),
                                                          " stages")
                                           : "")
                        : absl::StrCat(setup.time_source(), ": every step takes ",
                                       config.step_time(), ", so read no latency from this run"));
  AddTimeParts(setup, page);
  page.Blank();
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
  const pb::Ratio& possible = whole.possible_hit_rate();
  page.Text("hit rate", absl::StrCat(Rate(whole.token_hit_rate()), " of prompt tokens: ",
                                     WithThousands(whole.token_hit_rate().numerator()), " of ",
                                     WithThousands(whole.token_hit_rate().denominator())));
  if (possible.denominator() > 0) {
    page.Text("", absl::StrCat("that is ", Rate(possible), " of the ",
                               WithThousands(possible.denominator()),
                               " tokens that an infinite cache would have served"));
  } else {
    page.Text("", "no prompt shares a full block with an earlier one: no cache could help");
  }
  AddPossiblePools(report.possible_pools(), page);
  page.Line("", absl::StrCat("blocks ", Rate(whole.full_block_hit_rate()), "   requests ",
                             Rate(whole.request_hit_rate()), "   mean of ratios ",
                             Percent(whole.mean_of_ratios())));
  page.Line("", absl::StrCat("after warm-up ", Rate(report.after_warmup().token_hit_rate()),
                             "   last ", WithThousands(report.rolling_window().requests()),
                             " requests ", Rate(report.rolling_window().token_hit_rate())));
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
      page.Line("", absl::StrCat("  last used ", Span(reuse.p50_age_s()), " / ",
                                 WithThousands(reuse.p50_distance_blocks()),
                                 " blocks earlier at the median"));
    }
  }
  row("partial blocks", prompt.partial_blocks(), "behind the last full block: never cached");
  page.Blank();
}

// A name from the trace: short, and nothing that a terminal would obey.
std::string Printable(const std::string& name) {
  constexpr size_t kMaxName = 24;
  std::string text = name.empty() ? "(none)" : name;
  for (char& c : text) {
    if (c <= ' ' || c > '~') c = '?';
  }
  return text.size() <= kMaxName ? text : absl::StrCat(text.substr(0, kMaxName - 3), "...");
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
        absl::StrCat(Printable(groups[i].name()), " ", Rate(groups[i].token_hit_rate()));
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

// A model with one group has nothing to tell apart.
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
  const auto gauge = [&](const std::string& label, const pb::Gauge& g, const std::string& note) {
    page.Line(label, absl::StrFormat("%-17s %13s %9s  %s", note, Percent(g.mean()),
                                     Percent(g.peak()), ""));
  };
  page.Line("pool use", absl::StrFormat("%-17s %13s %9s", "", "mean", "peak"));
  gauge("", pool.usage(), "referenced");
  gauge("", pool.resident(), "with cached");
  if (report.groups_size() == 1) gauge("", pool.fragmentation(), "unused slots");
  page.Text("",
            absl::StrCat(Percent(pool.time_above_90_percent_share()), " of the time above 90 %; ",
                         WithThousands(pool.evictions()), " cached blocks evicted; ",
                         Short(pool.duplicate_blocks().peak()), " duplicates at most"));
  if (pool.has_retention()) {
    const pb::Retention& retention = pool.retention();
    page.Text("retained",
              absl::StrCat("at most ", WithThousands(retention.peak()), " blocks of ",
                           WithThousands(retention.cap()), " allowed; ",
                           Plural(retention.hits(), "hit"), " of retained blocks"));
    page.Text("", absl::StrCat(WithThousands(retention.begun()), " in all: ",
                               WithThousands(retention.expired()), " expired, ",
                               WithThousands(retention.displaced()), " gave way to others, ",
                               WithThousands(retention.taken()),
                               " were reused since nothing else was free; ",
                               WithThousands(retention.refused()), " refused at the cap"));
  }
  const pb::Preemption& preemption = report.preemption();
  if (preemption.preemptions() == 0) {
    page.Line("preemptions", "none");
  } else {
    page.Text("preemptions",
              absl::StrCat(WithThousands(preemption.preemptions()), " of ",
                           Plural(preemption.requests_affected(), "request"), ": ", WithThousands(preemption.recomputed_tokens()),
                           " tokens recomputed, ", WithThousands(preemption.resume_hit_tokens()),
                           " found again, ", Span(preemption.time_lost_s()),
                           " lost; worst: request ", Printable(preemption.worst_request()), " (",
                           Plural(preemption.worst_request_preemptions(), "time"), ")"));
  }
  page.Blank();
}

void AddLatency(const pb::Report& report, TextPage& page) {
  const pb::Latency& latency = report.latency();
  if (report.setup().latency_is_meaningful() && latency.e2e().count() > 0) {
    const auto row = [&](const std::string& name, const pb::Distribution& d) {
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
  }
  const pb::Throughput& t = report.throughput();
  page.Text("throughput",
            absl::StrCat(Span(t.duration_s()), ": ", Short(t.requests_per_s()), " requests/s, ",
                         Short(t.output_tokens_per_s()), " output tokens/s; ",
                         Plural(report.totals().steps(), "step"), " of ",
                         Short(t.mean_batch_requests()), " requests and ",
                         Short(t.mean_step_tokens()), " tokens; busy ", Percent(t.busy_share()),
                         t.has_pipeline_bubbles()
                             ? absl::StrCat(", of which stages stand idle ",
                                            Percent(t.pipeline_bubbles()))
                             : ""));
  if (report.has_steady_throughput()) {
    const pb::Throughput& steady = report.steady_throughput();
    page.Line("  steady",
              absl::StrCat(Short(steady.requests_per_s()), " requests/s, ",
                           Short(steady.output_tokens_per_s()), " output tokens/s from ",
                           Span(steady.start_s()), " to ", Span(steady.end_s())));
  }
  if (report.drafts().verified() > 0) {
    const pb::Drafts& drafts = report.drafts();
    page.Line("drafts", absl::StrCat(WithThousands(drafts.accepted()), " of ",
                                     WithThousands(drafts.verified()), " accepted, ",
                                     Short(drafts.mean_accepted()), " per step"));
  }
  if (report.has_goodput()) {
    const pb::Goodput& goodput = report.goodput();
    page.Text("goodput",
              absl::StrCat(Percent(goodput.good_share()), " of requests (",
                           Short(goodput.good_requests_per_s()), "/s) meet ", report.config().slo(),
                           goodput.met() ? "" : "; a percentile misses its limit"));
    constexpr int kMaxClasses = 3;
    std::string classes;
    for (int i = 0; i < goodput.classes_size() && i < kMaxClasses; ++i) {
      absl::StrAppend(&classes, i == 0 ? "" : "   ", Printable(goodput.classes(i).slo_class()), " ",
                      Percent(goodput.classes(i).good_share()));
    }
    if (goodput.classes_size() > kMaxClasses) {
      absl::StrAppend(&classes, "   and ", goodput.classes_size() - kMaxClasses, " more");
    }
    if (!classes.empty()) page.Text("", classes);
  }
}

void AddNotes(const pb::Report& report, TextPage& page) {
  const pb::Totals& totals = report.totals();
  if (totals.requests_rejected() > 0) {
    page.Text("rejected", absl::StrCat(Plural(totals.requests_rejected(), "request"),
                                       "; first: ", totals.first_rejection()));
  }
  if (totals.requests_aborted() > 0) {
    page.Line("aborted", Plural(totals.requests_aborted(), "request"));
  }
  if (totals.requests_failed() > 0) {
    page.Line("failed", absl::StrCat(Plural(totals.requests_failed(), "request"),
                                     " by a failed load (--load-failure-policy=fail)"));
  }
  for (int i = 0; i < report.notes_size() && i < kMaxNotes; ++i) {
    page.Text(i == 0 ? "note" : "", report.notes(i));
  }
}

}  // namespace

std::string Span(double seconds) {
  if (seconds >= 3600) {
    const auto minutes = static_cast<int64_t>(seconds / 60);
    return absl::StrFormat("%d h %02d min", minutes / 60, minutes % 60);
  }
  if (seconds >= 120) {
    const auto whole = static_cast<int64_t>(seconds);
    return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  }
  if (seconds >= 1 || seconds == 0) return absl::StrFormat("%.2f s", seconds);
  return absl::StrFormat("%.3g ms", seconds * 1e3);
}

std::string Percent(double share) { return absl::StrFormat("%.2f %%", 100.0 * share); }

std::string LatencyText(const pb::Distribution& latency) {
  return absl::StrFormat("mean %s, p50 %s, p90 %s, p99 %s", Span(latency.mean_ms() / 1e3),
                         Span(latency.p50_ms() / 1e3), Span(latency.p90_ms() / 1e3),
                         Span(latency.p99_ms() / 1e3));
}

std::string WithThousands(int64_t value) { return GroupThousands(absl::StrCat(value)); }

std::string Plural(int64_t count, std::string_view noun) {
  return absl::StrCat(WithThousands(count), " ", std::string(noun), count == 1 ? "" : "s");
}

std::string FormatReport(const pb::Report& report, bool color) {
  TextPage page(color);
  AddHead(report, page);
  AddHitRates(report, page);
  AddPromptTokens(report, page);
  AddGroups(report, page);
  AddKvGroups(report, page);
  AddPool(report, page);
  AddTiers(report.tiers(), page);
  AddLatency(report, page);
  AddNotes(report, page);
  return page.Take(kMaxLines);
}

}  // namespace kvblocks::sim
