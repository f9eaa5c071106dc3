#include "kvblocks/sim/curve/curve_page.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/html_page.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr double kGib = 1073741824.0;

class CurveDrawing {
 public:
  CurveDrawing(const pb::CurveReport& report, HtmlPage* page) : report_(report), page_(*page) {}

  void AddAll() {
    for (const std::string& sentence : report_.sentences()) page_.AddNote(sentence);
    for (const std::string& note : report_.notes()) page_.AddNote(note);
    AddWorkload();
    // One curve, once in the unit of what is bought and once in that of what is configured.
    AddHitRate("Hit rate by memory", "GiB on each device",
               [](int64_t, double gib) { return gib; });
    AddHitRate("Hit rate by blocks", "usable blocks",
               [](int64_t num_blocks, double) { return static_cast<double>(num_blocks); });
    AddShares();
    AddVariants();
    AddPoints();
    AddAnswers();
    AddReplays();
    AddTiers();
  }

 private:
  bool CountsIds() const { return report_.counted_blocks() == "ids"; }
  static std::string Percent(double share) { return absl::StrFormat("%.2f %%", 100 * share); }
  static std::string GibText(double gib) { return GroupThousands(absl::StrFormat("%.4g", gib)); }
  static double Share(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
  double RateOf(int64_t hits) const {
    return CountsIds() ? Share(hits, report_.prompt_blocks())
                       : Share(hits * report_.block_tokens(), report_.prompt_tokens());
  }
  double GibOf(int64_t num_blocks) const {
    return static_cast<double>(num_blocks) * static_cast<double>(report_.block_bytes()) / kGib;
  }

  void AddWorkload() {
    HtmlTable table = {.title = "What was counted"};
    table.rows = {
        {"workload", absl::StrCat(report_.trace(), " (", report_.format(), "): ",
                                  WithThousands(report_.requests()), " requests, ",
                                  WithThousands(report_.prompt_tokens()), " prompt tokens")},
        {"curve", absl::StrCat(report_.mode(), " mode: ", report_.exactness())},
        {"blocks", absl::StrCat(WithThousands(report_.block_tokens()), " tokens, ",
                                WithThousands(report_.block_bytes()), " bytes on each device")}};
    if (report_.full_pool() > 0) {
      table.rows.push_back({"an infinite cache hits",
                            absl::StrCat(Percent(RateOf(report_.possible_hits())), ": ",
                                         WithThousands(report_.possible_hits()), " blocks, with ",
                                         WithThousands(report_.full_pool()), " blocks or more")});
    }
    page_.AddTable(table);
  }

  // `x` of blocks and GiB.
  template <typename X>
  void AddHitRate(const std::string& title, const std::string& x_label, const X& x) {
    const bool is_sampled = report_.has_sampling();
    Chart chart = {.title = title,
                   .caption = CountsIds() ? "Share of the prompts' blocks that are hit."
                                          : "Share of the prompt tokens that are hit.",
                   .x_label = x_label,
                   .y_label = "%",
                   .is_x_log = true};
    ChartLine pool = {.name = is_sampled ? "pool, mean of the samples" : "pool", .color = 0};
    ChartLine low = {.name = "lowest sample", .style = ChartLine::Style::kDashed, .color = 2};
    ChartLine high = {.name = "highest sample", .style = ChartLine::Style::kDashed, .color = 3};
    ChartLine bound = {.name = "Belady's bound", .color = 1};
    for (const pb::CurvePoint& point : report_.points()) {
      const double at = x(point.num_blocks(), point.gib());
      pool.points.emplace_back(at, 100 * point.hit_rate());
      if (is_sampled) {
        low.points.emplace_back(at, 100 * point.low_hit_rate());
        high.points.emplace_back(at, 100 * point.high_hit_rate());
      }
      if (point.belady_hits() > 0) {
        bound.points.emplace_back(at, 100 * RateOf(point.belady_hits()));
      }
    }
    ChartLine replays = {.name = "replays",
                         .style = report_.points().empty() ? ChartLine::Style::kLine
                                                           : ChartLine::Style::kDots,
                         .color = report_.points().empty() ? 0 : 4};
    for (const pb::CurveReplay& replay : report_.replays()) {
      if (!replay.problem().empty()) continue;
      replays.points.emplace_back(x(replay.num_blocks(), replay.gib()), 100 * replay.hit_rate());
    }
    for (ChartLine* line : {&pool, &low, &high, &bound, &replays}) {
      if (!line->points.empty()) chart.lines.push_back(std::move(*line));
    }
    if (report_.possible_hits() > 0) {
      chart.marks.push_back({.at = 100 * RateOf(report_.possible_hits()), .name = "infinite cache"});
    }
    if (report_.device_blocks() > 0) {
      chart.marks.push_back(
          {.at = x(report_.device_blocks(), GibOf(report_.device_blocks())),
           .name = absl::StrCat(report_.tensor_parallel(), " x ", report_.device()),
           .is_vertical = true});
    }
    page_.AddChart(chart);
  }

  // How much of what is possible, and what the last part of it costs.
  void AddShares() {
    Chart chart = {.title = "Memory for a share of the possible hits",
                   .caption = "The smallest pool that hits so much of what an infinite cache hits.",
                   .x_label = "share of the possible hits",
                   .y_label = "GiB on each device"};
    ChartLine line = {.name = "GiB"};
    for (const pb::CurveAnswer& answer : report_.answers()) {
      chart.categories.push_back(absl::StrFormat("%g %%", 100 * answer.share_of_possible()));
      line.bars.push_back(answer.gib());
    }
    chart.lines = {std::move(line)};
    if (!chart.categories.empty()) page_.AddChart(chart);
  }

  void AddVariants() {
    if (report_.variants().empty()) return;
    Chart hits = {.title = "What if: possible hits",
                  .caption = "What an infinite cache would hit.",
                  .y_label = CountsIds() ? "% of blocks" : "% of prompt tokens"};
    Chart memory = {.title = "What if: memory",
                    .caption = "The smallest pool that hits so much of what is possible there.",
                    .y_label = "GiB on each device"};
    ChartLine rate = {.name = "possible"}, half = {.name = "50 % of it"},
              most = {.name = "90 % of it"}, all = {.name = "99 % of it"};
    HtmlTable table = {.title = "What if",
                       .columns = {"", "possible", "blocks for 50 %", "90 %", "99 %", "100 %", ""}};
    for (const pb::CurveVariant& variant : report_.variants()) {
      hits.categories.push_back(variant.name());
      memory.categories.push_back(variant.name());
      const double possible = CountsIds() ? Share(variant.possible_hits(), variant.prompt_blocks())
                                          : Share(variant.possible_hit_tokens(),
                                                  report_.prompt_tokens());
      rate.bars.push_back(100 * possible);
      std::vector<std::string> row = {variant.name(), Percent(possible)};
      for (const pb::CurveAnswer& answer : variant.answers()) {
        const double share = answer.share_of_possible();
        if (share == 0.5) half.bars.push_back(answer.gib());
        if (share == 0.9) most.bars.push_back(answer.gib());
        if (share == 0.99) all.bars.push_back(answer.gib());
        if (share != 0.95) row.push_back(WithThousands(answer.num_blocks()));
      }
      row.push_back(variant.note());
      table.rows.push_back(std::move(row));
    }
    hits.lines = {std::move(rate)};
    memory.lines = {std::move(half), std::move(most), std::move(all)};
    page_.AddChart(hits);
    page_.AddChart(memory);
    page_.AddTable(table);
  }

  void AddPoints() {
    if (report_.points().empty()) return;
    HtmlTable table = {.title = "Pools",
                       .columns = {"usable blocks", "tokens", "GiB", "hit rate", "of possible"}};
    if (report_.points(0).belady_hits() > 0) {
      table.columns.insert(table.columns.end(), {"Belady, of possible", "pool, of Belady"});
    }
    table.columns.push_back("");
    for (const pb::CurvePoint& point : report_.points()) {
      if (!point.is_row()) continue;
      std::vector<std::string> row = {WithThousands(point.num_blocks()),
                                      WithThousands(point.tokens()), GibText(point.gib()),
                                      Percent(point.hit_rate()),
                                      Percent(point.share_of_possible())};
      if (table.columns.size() == 8) {
        row.push_back(Percent(Share(point.belady_hits(), report_.possible_hits())));
        row.push_back(Percent(point.lru_share_of_belady()));
      }
      std::string remark = point.label();
      if (remark.rfind("<- ", 0) == 0) remark.erase(0, 3);
      if (point.too_small_for_some()) {
        absl::StrAppend(&remark, remark.empty() ? "" : ", ", "see the note on small pools");
      }
      row.push_back(remark);
      table.rows.push_back(std::move(row));
    }
    page_.AddTable(table);
  }

  void AddAnswers() {
    if (report_.answers().empty()) return;
    HtmlTable table = {.title = "Smallest pools",
                       .columns = {"of the possible hits", "usable blocks", "tokens", "GiB",
                                   "of what the device holds"}};
    for (const pb::CurveAnswer& answer : report_.answers()) {
      table.rows.push_back({absl::StrFormat("%g %%", 100 * answer.share_of_possible()),
                            WithThousands(answer.num_blocks()), WithThousands(answer.tokens()),
                            GibText(answer.gib()),
                            answer.devices() > 0 ? Percent(answer.devices()) : "n/a"});
    }
    page_.AddTable(table);
  }

  void AddReplays() {
    if (report_.replays().empty()) return;
    HtmlTable table = {.title = "Replays",
                       .columns = {"usable blocks", "GiB", "hit tokens", "hit rate",
                                   "the curve's hit tokens", "preempted", "rejected", ""}};
    for (const pb::CurveReplay& replay : report_.replays()) {
      table.rows.push_back(
          {WithThousands(replay.num_blocks()), GibText(replay.gib()),
           WithThousands(replay.hit_tokens()), Percent(replay.hit_rate()),
           replay.curve_hit_tokens() > 0 ? WithThousands(replay.curve_hit_tokens()) : "n/a",
           WithThousands(replay.preemptions()), WithThousands(replay.rejected()),
           replay.problem()});
    }
    page_.AddTable(table);
  }

  void AddTiers() {
    if (report_.tiers().empty()) return;
    // A line per pool: solid if everything is written through, dashed on eviction.
    Chart chart = {.title = "Hit rate with a second tier",
                   .caption = "Of a pool and a tier behind it, both LRU, with free transfers.",
                   .x_label = "GiB of the second tier",
                   .y_label = "%",
                   .is_x_log = true};
    HtmlTable table = {.title = "Two tiers",
                       .columns = {"pool", "second tier", "GiB of it", "hit rate of the pool",
                                   "with both, written through", "with both, written on eviction",
                                   ""}};
    int color = -1;
    for (const pb::CurveTiers& tiers : report_.tiers()) {
      const std::string pool = absl::StrCat(WithThousands(tiers.first_blocks()), " blocks");
      if (chart.lines.empty() || chart.lines[chart.lines.size() - 2].name != pool) {
        chart.lines.push_back({.name = pool, .color = ++color});
        chart.lines.push_back({.name = absl::StrCat(pool, ", on eviction"),
                               .style = ChartLine::Style::kDashed,
                               .color = color});
      }
      if (tiers.problem().empty()) {
        chart.lines[chart.lines.size() - 2].points.emplace_back(tiers.second_gib(),
                                                                100 * tiers.inclusive_hit_rate());
        chart.lines.back().points.emplace_back(tiers.second_gib(),
                                               100 * tiers.exclusive_hit_rate());
      }
      table.rows.push_back({WithThousands(tiers.first_blocks()),
                            WithThousands(tiers.second_blocks()), GibText(tiers.second_gib()),
                            Percent(tiers.first_hit_rate()), Percent(tiers.inclusive_hit_rate()),
                            Percent(tiers.exclusive_hit_rate()), tiers.problem()});
    }
    page_.AddChart(chart);
    page_.AddTable(table);
  }

  const pb::CurveReport& report_;
  HtmlPage& page_;
};

}  // namespace

std::string CurvePage(const pb::CurveReport& report) {
  HtmlPage page(absl::StrCat("Hit rate of every pool: ", report.trace()),
                absl::StrCat(report.model(), " on ", report.tensor_parallel(), " x ",
                             report.device(), ", blocks of ", report.block_tokens(), " tokens"));
  CurveDrawing(report, &page).AddAll();
  return page.Finish();
}

}  // namespace kvblocks::sim
