#include "kvblocks/sim/commands/curve_points.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kvblocks/sim/curve/order_run.h"
#include "kvblocks/sim/run_in_parallel.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;

namespace {

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

double Gib(int64_t num_blocks, int64_t block_bytes) {
  return static_cast<double>(num_blocks) * static_cast<double>(block_bytes) / 1073741824.0;
}

}  // namespace

std::vector<CurveSize> ChooseSizes(const CurveOptions& options, int64_t asked_blocks,
                                   const pb::CurveReport& report) {
  std::map<int64_t, CurveSize> sizes;
  const auto add = [&](int64_t num_blocks, bool is_row, const std::string& label) {
    if (num_blocks < 1) return;
    CurveSize& size = sizes.try_emplace(num_blocks, CurveSize{num_blocks, false, ""}).first->second;
    size.is_row |= is_row;
    if (!label.empty()) size.label = label;
  };
  const int64_t smallest = std::max<int64_t>(report.smallest_pool(), 1);
  const int64_t full = std::max(report.full_pool(), smallest);
  for (const int64_t size : options.sizes) add(size, true, "");
  if (options.sizes.empty()) {
    for (int64_t power = 1; power <= full; power *= 10) {
      for (const int64_t step : {1, 2, 5}) {
        if (step * power >= smallest && step * power < full) add(step * power, true, "");
      }
    }
    add(full, true, "<- all hits");
  }
  const bool has_device = report.device_blocks() > 0;
  if (has_device && 2 * report.device_blocks() < full) {
    add(2 * report.device_blocks(), options.sizes.empty(), "");
  }
  if (has_device) {
    add(report.device_blocks(), true, "<- device");
  }
  if (asked_blocks > 0) add(asked_blocks, true, "<- given");
  if (options.num_points > 1 && full > smallest) {
    const double ratio = std::log(static_cast<double>(full) / static_cast<double>(smallest));
    for (int64_t i = 0; i < options.num_points; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(options.num_points - 1);
      add(std::llround(static_cast<double>(smallest) * std::exp(share * ratio)), false, "");
    }
  }
  std::vector<CurveSize> list;
  for (const auto& [num_blocks, size] : sizes) list.push_back(size);
  return list;
}

void FillPoint(int64_t hits, const pb::CurveReport& report, pb::CurvePoint* point) {
  const int64_t num_blocks = point->num_blocks();
  point->set_tokens(num_blocks * report.block_tokens());
  point->set_gib(Gib(num_blocks, report.block_bytes()));
  point->set_hits(hits);
  point->set_hit_rate(report.counted_blocks() == "ids"
                          ? Ratio(hits, report.prompt_blocks())
                          : Ratio(hits * report.block_tokens(), report.prompt_tokens()));
  point->set_share_of_possible(Ratio(hits, report.possible_hits()));
  point->set_too_small_for_some(num_blocks < report.smallest_pool());
}

void AddPoints(const std::vector<CurveSize>& sizes, const std::function<int64_t(int64_t)>& hits,
               const CurveBounds& bounds, int num_threads, ProgressLine* progress,
               pb::CurveReport* report) {
  std::vector<std::function<void()>> tasks;
  for (const CurveSize& size : sizes) {
    pb::CurvePoint* point = report->add_points();
    point->set_num_blocks(size.num_blocks);
    point->set_is_row(size.is_row);
    point->set_label(size.label);
    FillPoint(hits(size.num_blocks), *report, point);
    if (bounds.fixed != nullptr) point->set_static_hits(bounds.fixed->Hits(size.num_blocks));
    if (bounds.belady == nullptr) continue;
    tasks.push_back([bound = bounds.belady, point] {
      point->set_belady_hits(bound->Hits(point->num_blocks(), Bypass::kNo));
      point->set_belady_bypass_hits(bound->Hits(point->num_blocks(), Bypass::kYes));
      point->set_lru_share_of_belady(Ratio(point->hits(), point->belady_hits()));
    });
  }
  if (tasks.empty()) return;
  RunInParallel(num_threads, tasks, [&](int64_t num_done) {
    progress->UpdateCount(num_done, static_cast<int64_t>(tasks.size()), "bounds");
  });
  progress->Clear();
}

void AddAnswers(int64_t possible_hits, int64_t block_tokens, int64_t block_bytes,
                int64_t device_blocks, const std::function<int64_t(int64_t)>& smallest_pool,
                google::protobuf::RepeatedPtrField<pb::CurveAnswer>* answers) {
  for (const int64_t percent : {50, 90, 95, 99, 100}) {
    pb::CurveAnswer* answer = answers->Add();
    answer->set_share_of_possible(static_cast<double>(percent) / 100);
    const int64_t num_blocks = smallest_pool((possible_hits * percent + 99) / 100);
    answer->set_num_blocks(num_blocks);
    answer->set_tokens(num_blocks * block_tokens);
    answer->set_gib(Gib(num_blocks, block_bytes));
    answer->set_devices(device_blocks > 0 ? Ratio(num_blocks, device_blocks) : 0.0);
  }
}

std::vector<int64_t> Ascending(std::vector<int64_t> sizes) {
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

pb::CurveTiers* AddTierSizes(int64_t first_blocks, int64_t second_blocks,
                             pb::CurveReport* report) {
  const auto gib = [&](int64_t num_blocks) {
    return static_cast<double>(num_blocks) * static_cast<double>(report->block_bytes()) /
           1073741824.0;
  };
  pb::CurveTiers* tiers = report->add_tiers();
  tiers->set_first_blocks(first_blocks);
  tiers->set_second_blocks(second_blocks);
  tiers->set_first_gib(gib(first_blocks));
  tiers->set_second_gib(gib(second_blocks));
  return tiers;
}

}  // namespace kvblocks::sim
