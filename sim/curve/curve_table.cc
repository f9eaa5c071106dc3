#include "sim/curve/curve_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/human_table.h"
#include "sim/report/text_page.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;


std::string Gib(double gib) {
  if (gib >= 100) return absl::StrCat(WithThousands(std::llround(gib)), " GiB");
  return absl::StrFormat("%.3g GiB", gib);
}

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

bool CountsIds(const pb::CurveReport& report) { return report.counted_blocks() == "ids"; }

void AddHead(const pb::CurveReport& report, TextPage& page) {
  const char* counted = report.counted_blocks() == "engine"   ? "full blocks of prompts and outputs"
                        : report.counted_blocks() == "prompt" ? "full blocks of prompts"
                                                              : "blocks, one per content id";
  std::string workload =
      absl::StrCat(report.trace(), " (", report.format(), "): ", WithThousands(report.requests()),
                   " requests, ", WithThousands(report.prompt_tokens()), " prompt tokens");
  if (report.block_references() > 0) {
    absl::StrAppend(&workload, "; ", WithThousands(report.block_references()), " ", counted);
  }
  if (report.distinct_blocks() > 0) {
    absl::StrAppend(&workload, ", ", WithThousands(report.distinct_blocks()), " of them distinct");
  }
  page.Text("workload", workload);
  page.Text("curve", absl::StrCat(report.mode(), " mode: ", report.exactness()));
  page.Text("blocks", absl::StrCat(WithThousands(report.block_tokens()), " tokens, ",
                                   WithThousands(report.block_bytes()), " bytes on each device: ",
                                   report.model(), " on ", report.tensor_parallel(), " x ",
                                   report.device(), "; ", report.free_order()));
  if (report.mode() == "replays") {
    page.Blank();
    return;
  }
  const std::string most =
      CountsIds(report)
          ? absl::StrCat(WithThousands(report.possible_hits()), " of ",
                         WithThousands(report.prompt_blocks()), " blocks (",
                         Percent(Ratio(report.possible_hits(), report.prompt_blocks())), ")")
          : absl::StrCat(WithThousands(report.possible_hit_tokens()), " of ",
                         WithThousands(report.prompt_tokens()), " prompt tokens (",
                         Percent(Ratio(report.possible_hit_tokens(), report.prompt_tokens())),
                         "), ", WithThousands(report.possible_hits()), " blocks");
  page.Text("possible", absl::StrCat(most, ", with ", WithThousands(report.full_pool()),
                                     " blocks or more: an infinite cache"));
  page.Blank();
}

void AddPoints(const pb::CurveReport& report, TextPage& page) {
  const bool has_belady = std::any_of(report.points().begin(), report.points().end(),
                                      [](const auto& point) { return point.belady_hits() > 0; });
  const bool is_sampled = report.has_sampling();
  page.Line(
      absl::StrFormat("%14s", "blocks"),
      absl::StrCat(absl::StrFormat("%15s%10s%11s%13s", "tokens", "GiB", "hit rate", "of possible"),
                   has_belady ? "   Belady  LRU of it" : "", is_sampled ? "      band" : ""));
  for (const pb::CurvePoint& point : report.points()) {
    if (!point.is_row()) continue;
    std::string line =
        absl::StrFormat("%15s%10s%11s%13s", WithThousands(point.tokens()),
                        point.gib() >= 100 ? WithThousands(std::llround(point.gib()))
                                           : GroupThousands(absl::StrFormat("%.4g", point.gib())),
                        Percent(point.hit_rate()), Percent(point.share_of_possible()));
    if (has_belady) {
      absl::StrAppend(
          &line, absl::StrFormat("%9s%11s",
                                 absl::StrFormat("%.1f %%", 100 * Ratio(point.belady_hits(),
                                                                        report.possible_hits())),
                                 Percent(point.lru_share_of_belady())));
    }
    if (is_sampled) {
      absl::StrAppend(&line, absl::StrFormat("   %.2f-%.2f", 100 * point.low_hit_rate(),
                                             100 * point.high_hit_rate()));
    }
    absl::StrAppend(&line, point.label().empty() ? "" : "  ", point.label(),
                    point.too_small_for_some() ? " *" : "");
    page.Line(absl::StrFormat("%14s", WithThousands(point.num_blocks())), line);
  }
  page.Blank();
}

void AddVariants(const pb::CurveReport& report, TextPage& page) {
  if (report.variants().empty()) return;
  page.Line("what if", absl::StrFormat("%26s%16s%11s%11s%11s", "possible hit tokens",
                                       "blocks for 50 %", "90 %", "99 %", "100 %"));
  for (const pb::CurveVariant& variant : report.variants()) {
    std::vector<std::string> cells = {
        WithThousands(variant.possible_hit_tokens()),
        Percent(Ratio(variant.possible_hit_tokens(), report.prompt_tokens()))};
    for (const pb::CurveAnswer& answer : variant.answers()) {
      if (answer.share_of_possible() != 0.95) cells.push_back(WithThousands(answer.num_blocks()));
    }
    page.Cells(variant.name(), cells, {16, 8, 15, 10, 10, 10});
    if (!variant.note().empty()) page.Text("", variant.note());
  }
  page.Blank();
}

void AddReplays(const pb::CurveReport& report, TextPage& page) {
  if (report.replays().empty()) return;
  const bool has_curve =
      std::any_of(report.replays().begin(), report.replays().end(),
                  [](const auto& replay) { return replay.curve_hit_tokens() > 0; });
  page.Line("replays", absl::StrCat(absl::StrFormat("%14s%12s%16s%11s", "blocks", "GiB",
                                                    "hit tokens", "hit rate"),
                                    has_curve ? "     the curve's" : ""));
  for (const pb::CurveReplay& replay : report.replays()) {
    std::string line =
        absl::StrFormat("%14s%12s%16s%11s", WithThousands(replay.num_blocks()),
                        GroupThousands(absl::StrFormat("%.4g", replay.gib())),
                        WithThousands(replay.hit_tokens()), Percent(replay.hit_rate()));
    if (has_curve) {
      absl::StrAppend(&line, absl::StrFormat("%16s", WithThousands(replay.curve_hit_tokens())));
    }
    if (replay.preemptions() > 0) {
      absl::StrAppend(&line, "  ", WithThousands(replay.preemptions()), " preempted");
    }
    if (replay.rejected() > 0) {
      absl::StrAppend(&line, "  ", WithThousands(replay.rejected()), " rejected");
    }
    page.Line("", line);
    if (!replay.problem().empty()) page.Text("", replay.problem());
  }
  page.Blank();
}

// The surface: a row per pool, a column per second tier, and a table per way of writing.
void AddTiers(const pb::CurveReport& report, TextPage& page) {
  if (report.tiers().empty()) return;
  constexpr size_t kMostColumns = 7;
  std::vector<int64_t> seconds;
  for (const pb::CurveTiers& tiers : report.tiers()) {
    if (tiers.first_blocks() == report.tiers(0).first_blocks())
      seconds.push_back(tiers.second_blocks());
  }
  const size_t num_columns = std::min(seconds.size(), kMostColumns);
  for (const bool is_inclusive : {true, false}) {
    page.Text(
        "two tiers",
        absl::StrCat("hit rate of a pool (rows, in blocks) with a second tier (columns) ",
                     is_inclusive ? "that everything is written through to"
                                  : "of what the pool evicts, which leaves it when it is loaded"));
    std::vector<size_t> widths(num_columns + 1, 10);
    widths[0] = 11;
    std::vector<std::string> head = {"alone"}, memory = {""};
    for (size_t c = 0; c < num_columns; ++c) {
      head.push_back(WithThousands(seconds[c]));
      memory.push_back(Gib(report.tiers(static_cast<int>(c)).second_gib()));
    }
    page.Cells("", head, widths);
    page.Cells("", memory, widths);
    for (size_t i = 0; i < static_cast<size_t>(report.tiers_size()); i += seconds.size()) {
      const auto at = [&](size_t c) -> const pb::CurveTiers& {
        return report.tiers(static_cast<int>(i + c));
      };
      std::vector<std::string> cells = {Percent(at(0).first_hit_rate())};
      for (size_t c = 0; c < num_columns; ++c) {
        const pb::CurveTiers& tiers = at(c);
        cells.push_back(!tiers.problem().empty() ? "n/a"
                        : is_inclusive           ? Percent(tiers.inclusive_hit_rate())
                                                 : Percent(tiers.exclusive_hit_rate()));
      }
      page.Cells(absl::StrFormat("%14s", WithThousands(at(0).first_blocks())), cells, widths);
    }
    page.Blank();
  }
  if (num_columns < seconds.size()) {
    page.Text("", absl::StrCat(seconds.size() - num_columns, " more second tiers: see --csv"));
  }
}

const pb::CurveAnswer* AnswerAt(const pb::CurveReport& report, double share) {
  for (const pb::CurveAnswer& answer : report.answers()) {
    if (answer.share_of_possible() == share) return &answer;
  }
  return nullptr;
}

std::string Size(const pb::CurveAnswer& answer) {
  return absl::StrCat(WithThousands(answer.num_blocks()),
                      " blocks = ", WithThousands(answer.tokens()),
                      " tokens = ", Gib(answer.gib()));
}

std::string DevicesOf(const pb::CurveReport& report) {
  return absl::StrCat(report.tensor_parallel(), " x ", report.device());
}

// The surface contains the curve: its points replace the curve's.
std::string TiersCsv(const pb::CurveReport& report) {
  std::string rows =
      "num_blocks,gib,second_blocks,second_gib,hit_rate,inclusive_hit_rate,exclusive_hit_rate\n";
  for (const pb::CurveTiers& tiers : report.tiers()) {
    absl::StrAppendFormat(&rows, "%d,%.6g,%d,%.6g,%.6g,%.6g,%.6g\n", tiers.first_blocks(),
                          tiers.first_gib(), tiers.second_blocks(), tiers.second_gib(),
                          tiers.first_hit_rate(), tiers.inclusive_hit_rate(),
                          tiers.exclusive_hit_rate());
  }
  return rows;
}

}  // namespace

void AddSentences(pb::CurveReport* report) {
  if (report->possible_hits() == 0) {
    report->add_sentences("No cache of any size could hit a block of this workload.");
    return;
  }
  const double possible_rate = Ratio(report->possible_hit_tokens(), report->prompt_tokens());
  for (const double share : {0.5, 0.9, 0.99}) {
    const pb::CurveAnswer* answer = AnswerAt(*report, share);
    if (answer == nullptr) continue;
    // Said once, for the most that this pool reaches.
    if (share < 0.99 &&
        AnswerAt(*report, share == 0.5 ? 0.9 : 0.99)->num_blocks() == report->smallest_pool()) {
      continue;
    }
    // Smaller pools are not on the curve.
    std::string sentence = absl::StrFormat(
        "%g %% of the possible hits need %s%s for %s", 100 * share,
        answer->num_blocks() == report->smallest_pool() ? "no more than the smallest pool here, "
                                                        : "",
        Size(*answer), report->model());
    if (report->tensor_parallel() > 1) absl::StrAppend(&sentence, " on each device");
    if (answer->devices() > 0) {
      absl::StrAppend(&sentence, ": ",
                      answer->devices() <= 1
                          ? absl::StrFormat("%.3g %% of", 100 * answer->devices())
                          : absl::StrFormat("%.3g times", answer->devices()),
                      " what ", DevicesOf(*report), " leaves for the cache");
    }
    report->add_sentences(absl::StrCat(sentence, "."));
  }
  const pb::CurveAnswer* at_90 = AnswerAt(*report, 0.9);
  const pb::CurveAnswer* at_95 = AnswerAt(*report, 0.95);
  if (at_90 != nullptr && at_95 != nullptr && at_90->num_blocks() > report->smallest_pool()) {
    const double gib = at_95->gib() - at_90->gib();
    report->add_sentences(absl::StrFormat(
        "From 90 %% to 95 %% costs %s blocks = %s more, which saves %s prompt tokens per GiB.",
        WithThousands(at_95->num_blocks() - at_90->num_blocks()), Gib(gib),
        WithThousands(
            gib == 0
                ? 0
                : std::llround(0.05 * static_cast<double>(report->possible_hit_tokens()) / gib))));
  }
  for (const pb::CurvePoint& point : report->points()) {
    if (point.num_blocks() != report->device_blocks() || point.label().empty()) continue;
    if (point.too_small_for_some()) break;
    report->add_sentences(absl::StrFormat(
        "The cache of %s (%s blocks) hits %s of the prompt tokens, %s of what is possible.",
        DevicesOf(*report), WithThousands(point.num_blocks()), Percent(point.hit_rate()),
        Percent(point.share_of_possible())));
    for (const pb::CurvePoint& twice : report->points()) {
      if (twice.num_blocks() != 2 * point.num_blocks()) continue;
      report->add_sentences(absl::StrFormat("Twice as much memory adds %.2f points.",
                                            100 * (twice.hit_rate() - point.hit_rate())));
    }
    break;
  }
  if (!CountsIds(*report) && possible_rate > 0 && possible_rate < 1) {
    report->add_sentences(absl::StrFormat(
        "All possible hits leave %s of the prompt tokens to compute: at best %.3g times less "
        "prefill work. That is no end-to-end figure: decoding takes its time, too.",
        Percent(1 - possible_rate), 1 / (1 - possible_rate)));
  }
}

std::string FormatCurve(const pb::CurveReport& report, bool color) {
  TextPage page(color);
  AddHead(report, page);
  if (report.points_size() > 0) AddPoints(report, page);
  AddReplays(report, page);
  AddVariants(report, page);
  AddTiers(report, page);
  if (report.has_sampling()) {
    page.Text("sampling",
              absl::StrFormat("%g of the paths, the %d hottest always; %s references sampled, mean "
                              "of %d hash seeds; the band is their lowest and highest",
                              report.sampling().rate(), report.sampling().hot_paths(),
                              WithThousands(std::llround(report.sampling().sampled_references())),
                              report.sampling().seeds()));
  }
  for (int i = 0; i < report.sentences_size(); ++i) {
    page.Text(i == 0 ? "answers" : "", report.sentences(i));
  }
  for (int i = 0; i < report.notes_size(); ++i) page.Text(i == 0 ? "notes" : "", report.notes(i));
  return page.Take();
}

std::string CurveCsv(const pb::CurveReport& report) {
  if (!report.tiers().empty()) return TiersCsv(report);
  if (report.mode() == "replays") {
    std::string rows =
        "num_blocks,gib,hit_tokens,prompt_tokens,hit_rate,preemptions,requests,rejected\n";
    for (const pb::CurveReplay& replay : report.replays()) {
      absl::StrAppendFormat(&rows, "%d,%.6g,%d,%d,%.6g,%d,%d,%d\n", replay.num_blocks(),
                            replay.gib(), replay.hit_tokens(), replay.prompt_tokens(),
                            replay.hit_rate(), replay.preemptions(), replay.requests(),
                            replay.rejected());
    }
    return rows;
  }
  std::string out =
      "num_blocks,tokens,gib,hits,hit_rate,share_of_possible,belady_hits,belady_bypass_hits,"
      "static_hits,too_small_for_some\n";
  for (const pb::CurvePoint& point : report.points()) {
    absl::StrAppendFormat(
        &out, "%d,%d,%.6g,%d,%.6g,%.6g,%d,%d,%d,%d\n", point.num_blocks(), point.tokens(),
        point.gib(), point.hits(), point.hit_rate(), point.share_of_possible(), point.belady_hits(),
        point.belady_bypass_hits(), point.static_hits(), point.too_small_for_some() ? 1 : 0);
  }
  return out;
}

}  // namespace kvblocks::sim
