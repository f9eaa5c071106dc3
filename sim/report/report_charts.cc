#include "kvblocks/sim/report/report_charts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/report/human_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using PointValue = std::function<double(const pb::Point&)>;

// The unit in which a run's times are read best.
struct TimeUnit {
  const char* name;
  double seconds;
};

TimeUnit UnitFor(double longest_s) {
  if (longest_s < 300) return {"s", 1};
  if (longest_s < 3 * 3600) return {"min", 60};
  return {"h", 3600};
}

// Stored reports may hold any number.
int64_t Sum(int64_t a, int64_t b) { return CheckedAdd(a, b).value_or(INT64_MAX); }

// The series in few enough points to be told apart on a page: neighbours are merged as the report
// merges ticks, counts added up and gauges averaged.
pb::Series Drawn(const pb::Series& series) {
  constexpr int kMostPoints = 200;
  pb::Series drawn;
  const int step = (series.points_size() + kMostPoints - 1) / kMostPoints;
  drawn.set_tick_s(series.tick_s() * std::max(step, 1));
  *drawn.mutable_miss_causes() = series.miss_causes();
  for (int first = 0; first < series.points_size(); first += step) {
    const int last = std::min(first + step, series.points_size());
    const double weight = 1.0 / (last - first);
    pb::Point* sum = drawn.add_points();
    sum->set_start_s(series.points(first).start_s());
    double step_time = 0, ttft = 0;
    for (int i = first; i < last; ++i) {
      const pb::Point& p = series.points(i);
      sum->set_running(sum->running() + weight * p.running());
      sum->set_waiting(sum->waiting() + weight * p.waiting());
      sum->set_usage(sum->usage() + weight * p.usage());
      sum->set_resident(sum->resident() + weight * p.resident());
      sum->set_busy_share(sum->busy_share() + weight * p.busy_share());
      step_time += weight * p.busy_share() * p.step_time_ms();
      ttft += static_cast<double>(p.first_tokens()) * p.ttft_ms();
      sum->set_first_tokens(Sum(sum->first_tokens(), p.first_tokens()));
      sum->set_prefill_tokens(Sum(sum->prefill_tokens(), p.prefill_tokens()));
      sum->set_decode_tokens(Sum(sum->decode_tokens(), p.decode_tokens()));
      sum->set_queried_tokens(Sum(sum->queried_tokens(), p.queried_tokens()));
      sum->set_hit_tokens(Sum(sum->hit_tokens(), p.hit_tokens()));
      sum->set_evictions(Sum(sum->evictions(), p.evictions()));
      sum->set_preemptions(Sum(sum->preemptions(), p.preemptions()));
      if (p.missed_blocks_size() == 0) continue;
      if (sum->missed_blocks_size() == 0) {
        sum->mutable_missed_blocks()->Resize(p.missed_blocks_size(), 0);
      }
      for (int cause = 0; cause < std::min(p.missed_blocks_size(), sum->missed_blocks_size());
           ++cause) {
        sum->set_missed_blocks(cause, Sum(sum->missed_blocks(cause), p.missed_blocks(cause)));
      }
    }
    if (sum->first_tokens() > 0) {
      sum->set_ttft_ms(ttft / static_cast<double>(sum->first_tokens()));
    }
    if (sum->busy_share() > 0) sum->set_step_time_ms(step_time / sum->busy_share());
  }
  return drawn;
}

double PerHundred(const pb::Ratio& ratio) { return 100 * ratio.value(); }

class Charts {
 public:
  Charts(const std::vector<DrawnRun>& runs, HtmlPage* page) : runs_(runs), page_(*page) {
    double longest = 0;
    for (const DrawnRun& run : runs_) {
      const pb::Series& series = series_.emplace_back(Drawn(run.report->series()));
      if (series.points_size() > 0) {
        longest = std::max(longest, series.points(series.points_size() - 1).start_s());
      }
      is_meaningful_ |= run.report->setup().latency_is_meaningful();
    }
    unit_ = UnitFor(longest);
  }

  void AddAll() {
    page_.AddHeading("Over time");
    AddMissBands();
    AddHitRate();
    AddGauges();
    AddRates();
    page_.AddHeading("Latency");
    if (!is_meaningful_) {
      page_.AddNote("Every step took the same time in this run, so it says nothing about latency.");
    } else {
      AddLatencies();
    }
    page_.AddHeading("Prefix cache");
    AddHitsByTurn();
    AddPrefixLengths();
    AddReuse();
    AddHitPlaces();
    AddKvGroups();
    AddOccupancy();
  }

 private:
  static const pb::Report& Of(const DrawnRun& run) { return *run.report; }

  std::string Name(const std::string& line, const DrawnRun& run) const {
    return run.name.empty() ? line : absl::StrCat(line, ", ", run.name);
  }
  static ChartLine::Style StyleOf(size_t run) {
    return run == 0 ? ChartLine::Style::kLine : ChartLine::Style::kDashed;
  }

  Chart OverTime(const std::string& title, const std::string& caption,
                 const std::string& y_label) const {
    return {.title = title,
            .caption = caption,
            .x_label = absl::StrCat("simulated time, ", unit_.name),
            .y_label = y_label};
  }

  // One line per run. NaN is a gap.
  void AddLines(const std::string& name, int color, const PointValue& value, Chart* chart) const {
    for (size_t i = 0; i < runs_.size(); ++i) {
      ChartLine line = {.name = Name(name, runs_[i]), .style = StyleOf(i), .color = color};
      for (const pb::Point& point : series_[i].points()) {
        const double y = value(point);
        if (!std::isnan(y)) line.points.emplace_back(point.start_s() / unit_.seconds, y);
      }
      chart->lines.push_back(std::move(line));
    }
  }

  // Of one run: two runs' bands cannot lie on each other.
  void AddMissBands() {
    if (runs_.size() != 1 || !Of(runs_[0]).config().prefix_caching()) return;
    const pb::Report& report = Of(runs_[0]);
    const pb::Series& series = series_[0];
    const auto block_tokens = static_cast<double>(report.setup().block_tokens());
    Chart chart =
        OverTime("Where prompt tokens went",
                 "Tokens of first admissions per second: found in the cache, or computed and why.",
                 "tokens per second");
    const auto band = [&](const std::string& name, const PointValue& tokens) {
      ChartLine line = {.name = name, .style = ChartLine::Style::kBand};
      bool is_empty = true;
      for (const pb::Point& point : series.points()) {
        const double y = std::max(0.0, tokens(point));
        is_empty &= y == 0;
        line.points.emplace_back(point.start_s() / unit_.seconds, y / series.tick_s());
      }
      if (!is_empty) chart.lines.push_back(std::move(line));
    };
    const auto missed = [&](const pb::Point& point, int cause) {
      return cause < point.missed_blocks_size()
                 ? block_tokens * static_cast<double>(point.missed_blocks(cause))
                 : 0.0;
    };
    band("hit", [](const pb::Point& p) { return static_cast<double>(p.hit_tokens()); });
    for (int cause = 0; cause < series.miss_causes_size(); ++cause) {
      band(series.miss_causes(cause), [&](const pb::Point& p) { return missed(p, cause); });
    }
    band("partial blocks", [&](const pb::Point& p) {
      double rest = static_cast<double>(p.queried_tokens()) - static_cast<double>(p.hit_tokens());
      for (int cause = 0; cause < series.miss_causes_size(); ++cause) rest -= missed(p, cause);
      return rest;
    });
    page_.AddChart(chart);
  }

  void AddHitRate() {
    Chart chart = OverTime("Hit rate", "Token hit rate of the admissions of each point.", "%");
    chart.y_max = 100;
    AddLines(
        "hit rate", 0,
        [](const pb::Point& p) {
          if (p.queried_tokens() == 0) return std::nan("");
          return 100 * static_cast<double>(p.hit_tokens()) /
                 static_cast<double>(p.queried_tokens());
        },
        &chart);
    page_.AddChart(chart);
  }

  void AddGauges() {
    Chart pool = OverTime("Block pool",
                          "Referenced blocks, which is the gauge of serving engines, and those "
                          "that hold reusable content as well.",
                          "% of the pool");
    pool.y_max = 100;
    AddLines(
        "referenced", 0, [](const pb::Point& p) { return 100 * p.usage(); }, &pool);
    AddLines(
        "with cached", 2, [](const pb::Point& p) { return 100 * p.resident(); }, &pool);
    page_.AddChart(pool);
    Chart requests =
        OverTime("Requests", "Running, and waiting for a place or for blocks.", "requests");
    AddLines(
        "running", 0, [](const pb::Point& p) { return p.running(); }, &requests);
    AddLines(
        "waiting", 1, [](const pb::Point& p) { return p.waiting(); }, &requests);
    page_.AddChart(requests);
  }

  void AddRates() {
    Chart tokens = OverTime("Computed tokens", "Tokens that steps computed.", "tokens per second");
    const auto per_second = [&](const std::string& name, int color, auto count, Chart* chart) {
      for (size_t i = 0; i < runs_.size(); ++i) {
        const pb::Series& series = series_[i];
        ChartLine line = {.name = Name(name, runs_[i]), .style = StyleOf(i), .color = color};
        for (const pb::Point& p : series.points()) {
          line.points.emplace_back(p.start_s() / unit_.seconds,
                                   static_cast<double>(count(p)) / series.tick_s());
        }
        chart->lines.push_back(std::move(line));
      }
    };
    per_second(
        "prefill", 0, [](const pb::Point& p) { return p.prefill_tokens(); }, &tokens);
    per_second(
        "decode", 1, [](const pb::Point& p) { return p.decode_tokens(); }, &tokens);
    page_.AddChart(tokens);
    if (is_meaningful_) {
      Chart steps = OverTime("Step time", "Mean of the steps of each point.", "ms");
      AddLines(
          "step", 0,
          [](const pb::Point& p) { return p.busy_share() > 0 ? p.step_time_ms() : std::nan(""); },
          &steps);
      page_.AddChart(steps);
    }
    if (is_meaningful_) {
      Chart ttft = OverTime("Time to first token, over time",
                            "Mean of the first tokens of each point.", "ms");
      AddLines(
          "TTFT", 0,
          [](const pb::Point& p) { return p.first_tokens() > 0 ? p.ttft_ms() : std::nan(""); },
          &ttft);
      for (const pb::Objective& objective : Of(runs_[0]).goodput().objectives()) {
        if (objective.metric() == "ttft") ttft.marks.push_back({objective.limit_ms(), "SLO"});
      }
      page_.AddChart(ttft);
    }
    const auto any = [&](const std::function<bool(const pb::Report&)>& has) {
      return std::any_of(runs_.begin(), runs_.end(),
                         [&](const DrawnRun& run) { return has(Of(run)); });
    };
    if (any([](const pb::Report& r) { return r.pool().evictions() > 0; })) {
      Chart chart = OverTime("Evictions", "Cached blocks lost to reuse.", "blocks per second");
      per_second(
          "evictions", 0, [](const pb::Point& p) { return p.evictions(); }, &chart);
      page_.AddChart(chart);
    }
    if (any([](const pb::Report& r) { return r.preemption().preemptions() > 0; })) {
      Chart chart = OverTime("Preemptions", "Requests that lost their blocks.", "per second");
      per_second(
          "preemptions", 1, [](const pb::Point& p) { return p.preemptions(); }, &chart);
      page_.AddChart(chart);
    }
  }

  // A distribution as the share of values up to each.
  void AddCurve(const std::string& name, int color, size_t run, const pb::Distribution& values,
                Chart* chart) const {
    ChartLine line = {.name = Name(name, runs_[run]), .style = StyleOf(run), .color = color};
    const int last = values.quantiles_ms_size() - 1;
    for (int i = 0; i <= last; ++i) {
      // A logarithmic axis has no 0.
      if (values.quantiles_ms(i) <= 0) continue;
      line.points.emplace_back(values.quantiles_ms(i), 100.0 * i / last);
    }
    chart->lines.push_back(std::move(line));
  }

  void AddLatencies() {
    struct Curve {
      const char* name;
      const pb::Distribution& (pb::Latency::*values)() const;
    };
    const auto add = [&](const std::string& title, const std::string& caption,
                         const std::vector<Curve>& curves, const std::string& metric) {
      Chart chart = {.title = title,
                     .caption = caption,
                     .x_label = "ms",
                     .y_label = "% of values up to it",
                     .is_x_log = true,
                     .y_max = 100};
      for (size_t c = 0; c < curves.size(); ++c) {
        for (size_t run = 0; run < runs_.size(); ++run) {
          AddCurve(curves[c].name, static_cast<int>(c), run,
                   (Of(runs_[run]).latency().*curves[c].values)(), &chart);
        }
      }
      for (const pb::Objective& objective : Of(runs_[0]).goodput().objectives()) {
        if (objective.metric() != metric) continue;
        chart.marks.push_back({.at = objective.limit_ms(), .name = "SLO", .is_vertical = true});
        if (objective.percentile() > 0) {
          chart.marks.push_back(
              {.at = objective.percentile(), .name = absl::StrCat("p", objective.percentile())});
        }
      }
      page_.AddChart(chart);
    };
    add("Time to first token", "Of requests that finished.", {{"TTFT", &pb::Latency::ttft}},
        "ttft");
    add("Time per output token",
        "TPOT is one value per request, its mean gap (AIPerf calls that inter-token latency); ITL "
        "is every gap between two tokens.",
        {{"TPOT, ITL per request", &pb::Latency::tpot}, {"ITL per gap", &pb::Latency::itl}},
        "tpot");
    add("Whole requests", "Arrival to last token, and the part of it before the first scheduling.",
        {{"E2E", &pb::Latency::e2e}, {"queueing", &pb::Latency::queueing}}, "e2e");
  }

  void AddHitsByTurn() {
    Chart chart = {.title = "Hit rate by turn of a session",
                   .caption = "Token hit rate of first admissions.",
                   .x_label = "turn",
                   .y_label = "%",
                   .y_max = 100};
    for (const DrawnRun& run : runs_) {
      for (const pb::HitGroup& turn : Of(run).hit_groups().turns()) {
        if (std::count(chart.categories.begin(), chart.categories.end(), turn.name()) == 0) {
          chart.categories.push_back(turn.name());
        }
      }
    }
    if (chart.categories.size() < 2) return;
    for (size_t i = 0; i < runs_.size(); ++i) {
      ChartLine line = {.name = Name("hit rate", runs_[i])};
      line.bars.assign(chart.categories.size(), std::numeric_limits<double>::quiet_NaN());
      for (const pb::HitGroup& turn : Of(runs_[i]).hit_groups().turns()) {
        const auto it = std::find(chart.categories.begin(), chart.categories.end(), turn.name());
        line.bars[static_cast<size_t>(it - chart.categories.begin())] =
            PerHundred(turn.token_hit_rate());
      }
      chart.lines.push_back(std::move(line));
    }
    page_.AddChart(chart);
  }

  void AddPrefixLengths() {
    Chart chart = {.title = "Length of the prefix that was hit",
                   .caption = "Requests by the tokens that they found at their first admission.",
                   .x_label = "tokens",
                   .y_label = "requests"};
    // Buckets are powers of two; their lower ends order and name them.
    std::vector<std::pair<int64_t, std::string>> buckets;
    for (const DrawnRun& run : runs_) {
      for (const auto& bucket : Of(run).hit_prefix_length().buckets()) {
        const int64_t last = Sum(bucket.to_tokens(), -1);
        const std::pair<int64_t, std::string> named = {
            bucket.from_tokens(),
            last == bucket.from_tokens()
                ? WithThousands(last)
                : absl::StrCat(WithThousands(bucket.from_tokens()), " to ", WithThousands(last))};
        if (std::count(buckets.begin(), buckets.end(), named) == 0) buckets.push_back(named);
      }
    }
    std::sort(buckets.begin(), buckets.end());
    for (const auto& [from, name] : buckets) chart.categories.push_back(name);
    for (const DrawnRun& run : runs_) {
      ChartLine line = {.name = Name("requests", run)};
      for (const auto& [from, name] : buckets) {
        double count = 0;
        for (const auto& bucket : Of(run).hit_prefix_length().buckets()) {
          if (bucket.from_tokens() == from) count = static_cast<double>(bucket.count());
        }
        line.bars.push_back(count);
      }
      chart.lines.push_back(std::move(line));
    }
    page_.AddChart(chart);
  }

  // Of what was hit, and of what was missed since it was gone; the larger the pool, the further the
  // first reaches and the less there is of the second.
  void AddReuse() {
    Chart chart = {.title = "Reuse distance",
                   .caption = "Blocks that the pool handed out between two uses of a block: of hit "
                              "blocks (in samples), and of evicted blocks that were missed. A pool "
                              "of so many blocks more would have kept the latter, roughly.",
                   .x_label = "blocks",
                   .y_label = "% of blocks up to it",
                   .is_x_log = true,
                   .y_max = 100};
    const auto add = [&](const std::string& name, int color, size_t run, const auto& quantiles) {
      ChartLine line = {.name = Name(name, runs_[run]), .style = StyleOf(run), .color = color};
      const int last = quantiles.size() - 1;
      for (int i = 0; i <= last; ++i) {
        if (quantiles[i] <= 0) continue;
        line.points.emplace_back(static_cast<double>(quantiles[i]), 100.0 * i / last);
      }
      chart.lines.push_back(std::move(line));
    };
    for (size_t i = 0; i < runs_.size(); ++i) {
      const pb::Report& report = Of(runs_[i]);
      add("hit", 0, i, report.hit_reuse().distance_quantiles_blocks());
      add("evicted", 1, i,
          report.first_admission_misses().evicted().distance_quantiles_blocks());
      if (report.setup().usable_blocks() > 0) {
        chart.marks.push_back({.at = static_cast<double>(report.setup().usable_blocks()),
                               .name = Name("pool", runs_[i]),
                               .is_vertical = true});
      }
    }
    page_.AddChart(chart);
  }

  void AddHitPlaces() {
    Chart chart = {.title = "LRU position at hit",
                   .caption = "Where hit blocks stood in the free queue, in samples: at 0 % what is "
                              "evicted next, at 100 % what was used last. \"in use\": held by "
                              "another request. Hits far left are lost in a smaller pool.",
                   .x_label = "place in the free queue, %",
                   .y_label = "% of hit blocks"};
    for (const DrawnRun& run : runs_) {
      const pb::HitReuse& reuse = Of(run).hit_reuse();
      if (reuse.hit_blocks() == 0 || reuse.blocks_by_place().empty()) continue;
      const int num_places = reuse.blocks_by_place_size();
      if (chart.categories.empty()) {
        for (int i = 0; i < num_places; ++i) {
          chart.categories.push_back(absl::StrCat(100 * i / num_places));
        }
        chart.categories.push_back("in use");
      }
      ChartLine line = {.name = Name("hit blocks", run)};
      const double percent = 100.0 / static_cast<double>(reuse.hit_blocks());
      for (const int64_t count : reuse.blocks_by_place()) {
        line.bars.push_back(percent * static_cast<double>(count));
      }
      line.bars.push_back(percent * static_cast<double>(reuse.in_use_blocks()));
      line.bars.resize(chart.categories.size());
      chart.lines.push_back(std::move(line));
    }
    if (!chart.categories.empty()) page_.AddChart(chart);
  }

  void AddKvGroups() {
    for (const DrawnRun& run : runs_) {
      if (Of(run).groups_size() < 2) continue;
      Chart chart = {.title = Name("KV-cache groups", run),
                     .caption = "Blocks that requests hold and cached ones that none does.",
                     .y_label = "blocks"};
      ChartLine live = {.name = "live, mean"}, peak = {.name = "live, peak"},
                cached = {.name = "cached, mean"};
      for (const pb::Group& group : Of(run).groups()) {
        chart.categories.push_back(absl::StrCat(group.id(), " ", group.kind()));
        live.bars.push_back(group.live_blocks().mean());
        peak.bars.push_back(group.live_blocks().peak());
        cached.bars.push_back(group.cached_blocks().mean());
      }
      chart.lines = {live, peak, cached};
      page_.AddChart(chart);
    }
  }

  void AddOccupancy() {
    for (const DrawnRun& run : runs_) {
      const pb::Report& report = Of(run);
      Chart chart = OverTime(Name("Blocks of KV-cache groups", run),
                             "Counted whenever a quarter of the pool was handed out: blocks that "
                             "requests hold, and cached ones that none does.",
                             "blocks");
      for (int g = 0; g < report.groups_size(); ++g) {
        const auto band = [&](const std::string& name, const auto& blocks) {
          ChartLine line = {.name = absl::StrCat(g, " ", report.groups(g).kind(), ", ", name),
                            .style = ChartLine::Style::kBand};
          for (const pb::GroupOccupancy& at : report.group_occupancy()) {
            // Stored reports may be cut.
            const auto& values = blocks(at);
            if (g >= values.size()) continue;
            line.points.emplace_back(at.time_s() / unit_.seconds, static_cast<double>(values[g]));
          }
          chart.lines.push_back(std::move(line));
        };
        band("live", [](const pb::GroupOccupancy& at) -> auto& { return at.live_blocks(); });
        band("cached", [](const pb::GroupOccupancy& at) -> auto& { return at.cached_blocks(); });
      }
      page_.AddChart(chart);
    }
  }

  const std::vector<DrawnRun>& runs_;
  std::vector<pb::Series> series_;  // of the runs, as drawn
  HtmlPage& page_;
  TimeUnit unit_ = {"s", 1};
  bool is_meaningful_ = false;
};

}  // namespace

void AddReportCharts(const std::vector<DrawnRun>& runs, HtmlPage* page) {
  Charts(runs, page).AddAll();
}

}  // namespace kvblocks::sim
