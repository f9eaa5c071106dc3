// The sizes of a curve, and the curve from a sample of the paths.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/curve_run.h"
#include "sim/curve/sampled_curve.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;

namespace {

constexpr uint64_t kNumSeeds = 8;

double RatioOf(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

double GibOf(int64_t num_blocks, int64_t block_bytes) {
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
  const int64_t device = report.device_blocks();
  if (2 * device < full) add(2 * device, options.sizes.empty(), "");
  add(device, true, "<- device");
  add(asked_blocks, true, "<- given");
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

CurveFunction SmallestPoolOf(const HitCurve& curve, int64_t smallest) {
  return [&curve, smallest](int64_t hits) {
    return hits == 0 ? 0 : std::max(curve.SmallestPool(hits), smallest);
  };
}

std::vector<int64_t> Ascending(std::vector<int64_t> sizes) {
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

void SetPossible(int64_t hits, int64_t full_pool, pb::CurveReport* report) {
  report->set_possible_hits(hits);
  report->set_possible_hit_tokens(hits * report->block_tokens());
  report->set_full_pool(full_pool);
}

void FillPoint(int64_t hits, const pb::CurveReport& report, pb::CurvePoint* point) {
  const int64_t num_blocks = point->num_blocks();
  point->set_tokens(num_blocks * report.block_tokens());
  point->set_gib(GibOf(num_blocks, report.block_bytes()));
  point->set_hits(hits);
  point->set_hit_rate(report.counted_blocks() == "ids"
                          ? RatioOf(hits, report.prompt_blocks())
                          : RatioOf(hits * report.block_tokens(), report.prompt_tokens()));
  point->set_share_of_possible(RatioOf(hits, report.possible_hits()));
  point->set_too_small_for_some(num_blocks < report.smallest_pool());
}

void AddPoints(const std::vector<CurveSize>& sizes, const CurveFunction& hits,
               pb::CurveReport* report) {
  for (const CurveSize& size : sizes) {
    pb::CurvePoint* point = report->add_points();
    point->set_num_blocks(size.num_blocks);
    point->set_is_row(size.is_row);
    point->set_label(size.label);
    FillPoint(hits(size.num_blocks), *report, point);
  }
}

void AddAnswers(int64_t possible_hits, int64_t block_tokens, int64_t block_bytes,
                int64_t device_blocks, const CurveFunction& smallest_pool,
                google::protobuf::RepeatedPtrField<pb::CurveAnswer>* answers) {
  for (const int64_t percent : {50, 90, 95, 99, 100}) {
    pb::CurveAnswer* answer = answers->Add();
    answer->set_share_of_possible(static_cast<double>(percent) / 100);
    const int64_t num_blocks = smallest_pool((possible_hits * percent + 99) / 100);
    answer->set_num_blocks(num_blocks);
    answer->set_tokens(num_blocks * block_tokens);
    answer->set_gib(GibOf(num_blocks, block_bytes));
    answer->set_devices(RatioOf(num_blocks, device_blocks));
  }
}

pb::CurveTiers* AddTierSizes(int64_t first_blocks, int64_t second_blocks,
                             pb::CurveReport* report) {
  pb::CurveTiers* tiers = report->add_tiers();
  tiers->set_first_blocks(first_blocks);
  tiers->set_second_blocks(second_blocks);
  tiers->set_first_gib(GibOf(first_blocks, report->block_bytes()));
  tiers->set_second_gib(GibOf(second_blocks, report->block_bytes()));
  return tiers;
}

// --- Samples ---

namespace {

// visit(request) for all; null: one that never runs.
absl::Status ForEach(const RequestBlocksOptions& options, TraceReader* reader,
                     ProgressLine* progress,
                     const std::function<void(const CurveRequest*)>& visit) {
  RequestBlocks blocks(reader->info(), options);
  CurveRequest request;
  int64_t num_rows = 0;
  const RequestFeed feed = FeedFrom(reader, [&] {
    if ((++num_rows & 255) == 0) progress->UpdateReading(reader->progress(), num_rows, 0);
  });
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(TraceRequest* const next, feed());
    if (next == nullptr) return absl::OkStatus();
    visit(blocks.Make(*next, &request) ? &request : nullptr);
  }
}

// Hits of a pool of one size, over all seeds.
struct SampledHits {
  double mean = 0, low = 0, high = 0;
};

SampledHits HitsOf(const std::vector<SampledCurve>& curves, int64_t num_blocks) {
  SampledHits all;
  all.low = all.high = curves[0].Hits(num_blocks);
  double sum = 0;
  for (const SampledCurve& curve : curves) {
    const double hits = curve.Hits(num_blocks);
    sum += hits;
    all.low = std::min(all.low, hits);
    all.high = std::max(all.high, hits);
  }
  all.mean = sum / kNumSeeds;
  return all;
}

}  // namespace

absl::Status RunSampledCurve(const CurveRun& run, const RequestBlocksOptions& blocks,
                             TraceReader* reader) {
  pb::CurveReport* report = run.report;
  HotPaths counted(static_cast<size_t>(run.options.hot));
  KVBLOCKS_RETURN_IF_ERROR(ForEach(blocks, reader, run.progress, [&](const CurveRequest* request) {
    if (request == nullptr) return;
    for (const uint64_t key : request->keys) counted.Add(key);
  }));
  const auto hot = counted.Take();
  KVBLOCKS_RETURN_IF_ERROR(reader->Restart());
  std::vector<SampledCurve> curves;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    curves.emplace_back(run.options.sample_paths, seed, &hot);
  }
  KVBLOCKS_RETURN_IF_ERROR(ForEach(blocks, reader, run.progress, [&](const CurveRequest* request) {
    if (request == nullptr) {
      report->set_left_out(report->left_out() + 1);
      return;
    }
    for (SampledCurve& curve : curves) curve.Add(*request);
    report->set_requests(report->requests() + 1);
    report->set_prompt_tokens(report->prompt_tokens() + request->num_prompt_tokens);
    report->set_prompt_blocks(report->prompt_blocks() + request->num_prompt_blocks);
    report->set_block_references(report->block_references() +
                                 static_cast<int64_t>(request->keys.size()));
    report->set_smallest_pool(std::max(report->smallest_pool(), request->smallest_pool));
  }));
  run.progress->Clear();
  if (report->requests() == 0) {
    return FailedPrecondition("the trace has no request that can run");
  }
  double references = 0;
  int64_t largest = 1;
  for (SampledCurve& curve : curves) {
    curve.Finish();
    references += static_cast<double>(curve.num_sampled()) / kNumSeeds;
    largest = std::max(largest, curve.largest_size());
  }
  const auto smallest_pool = [&](int64_t wanted) {
    int64_t below = 0, enough = largest;
    while (enough - below > 1) {
      const int64_t middle = below + (enough - below) / 2;
      const bool is_enough = HitsOf(curves, middle).mean >= static_cast<double>(wanted);
      (is_enough ? enough : below) = middle;
    }
    return std::max(enough, report->smallest_pool());
  };
  report->set_mode("sampled");
  report->set_exactness("requests one after the other, an estimate from a sample of the paths");
  const int64_t possible = std::llround(HitsOf(curves, largest).mean);
  SetPossible(possible, smallest_pool(possible), report);
  pb::CurveSampling* sampling = report->mutable_sampling();
  sampling->set_rate(run.options.sample_paths);
  sampling->set_hot_paths(static_cast<int64_t>(hot.size()));
  sampling->set_seeds(kNumSeeds);
  sampling->set_sampled_references(references);
  AddPoints(ChooseSizes(run.options, run.asked_blocks, *report),
            [&](int64_t size) { return std::llround(HitsOf(curves, size).mean); }, report);
  for (pb::CurvePoint& point : *report->mutable_points()) {
    const SampledHits hits = HitsOf(curves, point.num_blocks());
    const double rate_of_hit = hits.mean == 0 ? 0 : point.hit_rate() / hits.mean;
    point.set_low_hit_rate(hits.low * rate_of_hit);
    point.set_high_hit_rate(hits.high * rate_of_hit);
  }
  AddAnswers(possible, run.block_tokens, run.replay.block_bytes, run.device_blocks, smallest_pool,
             report->mutable_answers());
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
