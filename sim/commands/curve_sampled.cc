#include "kvblocks/sim/commands/curve_sampled.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kvblocks/sim/commands/curve_points.h"
#include "kvblocks/sim/curve/sampled_curve.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;

namespace {

constexpr uint64_t kNumSeeds = 8;

// visit(request) for all that run.
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
    const auto next = feed();
    if (!next.ok()) return next.status();
    if (*next == nullptr) return absl::OkStatus();
    visit(blocks.Make(**next, &request) ? &request : nullptr);
  }
}

}  // namespace

absl::Status RunSampledCurve(const CurveOptions& options, const CurveSetup& setup,
                             const RequestBlocksOptions& blocks, TraceReader* reader,
                             ProgressLine* progress, pb::CurveReport* report) {
  HotPaths counted(static_cast<size_t>(options.hot));
  if (absl::Status status = ForEach(blocks, reader, progress,
                                    [&](const CurveRequest* request) {
                                      if (request == nullptr) return;
                                      for (const uint64_t key : request->keys) counted.Add(key);
                                    });
      !status.ok()) {
    return status;
  }
  const auto hot = counted.Take();
  if (absl::Status status = reader->Restart(); !status.ok()) return status;
  std::vector<SampledCurve> curves;
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    curves.emplace_back(options.sample_paths, seed, &hot);
  }
  if (absl::Status status = ForEach(
          blocks, reader, progress,
          [&](const CurveRequest* request) {
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
          });
      !status.ok()) {
    return status;
  }
  progress->Clear();
  if (report->requests() == 0) {
    return absl::FailedPreconditionError("the trace has no request that can run");
  }
  double references = 0;
  int64_t largest = 1;
  for (SampledCurve& curve : curves) {
    curve.Finish();
    references += static_cast<double>(curve.num_sampled()) / kNumSeeds;
    largest = std::max(largest, curve.largest_size());
  }
  const auto hits_at = [&](int64_t num_blocks, double* low, double* high) {
    double sum = 0;
    *low = *high = curves[0].Hits(num_blocks);
    for (const SampledCurve& curve : curves) {
      const double hits = curve.Hits(num_blocks);
      sum += hits;
      *low = std::min(*low, hits);
      *high = std::max(*high, hits);
    }
    return sum / kNumSeeds;
  };
  double low = 0, high = 0;
  const double all = hits_at(largest, &low, &high);
  const auto smallest_pool = [&](int64_t wanted) {
    int64_t below = 0, enough = largest;
    while (enough - below > 1) {
      const int64_t middle = below + (enough - below) / 2;
      double unused_low = 0, unused_high = 0;
      const bool is_enough =
          hits_at(middle, &unused_low, &unused_high) >= static_cast<double>(wanted);
      (is_enough ? enough : below) = middle;
    }
    return std::max(enough, report->smallest_pool());
  };
  report->set_mode("sampled");
  report->set_exactness("requests one after the other, an estimate from a sample of the paths");
  report->set_possible_hits(std::llround(all));
  report->set_possible_hit_tokens(report->possible_hits() * report->block_tokens());
  report->set_full_pool(smallest_pool(report->possible_hits()));
  pb::CurveSampling* sampling = report->mutable_sampling();
  sampling->set_rate(options.sample_paths);
  sampling->set_hot_paths(static_cast<int64_t>(hot.size()));
  sampling->set_seeds(kNumSeeds);
  sampling->set_sampled_references(references);
  AddPoints(
      ChooseSizes(options, setup.asked_blocks, *report),
        [&](int64_t size) { return std::llround(hits_at(size, &low, &high)); }, {}, 1, progress,
        report);
  for (pb::CurvePoint& point : *report->mutable_points()) {
    const double hits = hits_at(point.num_blocks(), &low, &high);
    const double rate_of_hit = hits == 0 ? 0 : point.hit_rate() / hits;
    point.set_low_hit_rate(low * rate_of_hit);
    point.set_high_hit_rate(high * rate_of_hit);
  }
  AddAnswers(report->possible_hits(), setup.block_tokens, setup.replay.block_bytes,
             setup.device_blocks, smallest_pool, report->mutable_answers());
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
