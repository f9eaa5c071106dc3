#include "sim/commands/trace_fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/gen/distributions.h"
#include "sim/gen/generator.h"
#include "sim/gen/reuse_tree.h"
#include "sim/gen/workload_spec.h"
#include "sim/report/human_table.h"

namespace kvblocks::sim {
namespace {

namespace wl = ::kvblocks::workload::v1;

constexpr int64_t kMostPhases = 16;
constexpr int64_t kRequestsOfPhase = 40;  // at least, unless the trace has fewer
// Seeds are tried until so many requests were made, so that small traces, of which each request
// moves the curve, have more to choose from.
constexpr uint64_t kFewestSeeds = 8;
constexpr uint64_t kMostSeeds = 256;
constexpr uint64_t kRequestsToTry = 100'000;
constexpr double kNearEnough = 0.005;  // of a hit rate

struct Seen {
  int64_t gap_ns, new_tokens, output;
  int64_t depth, distance, shared;  // depth 0: nothing found
};

void Fill(const std::vector<int64_t>& values, wl::Histogram* histogram) {
  std::map<int32_t, int64_t> counts;
  for (const int64_t value : values) ++counts[BucketOf(value)];
  for (const auto& [bucket, count] : counts) {
    histogram->add_bucket(bucket);
    histogram->add_count(count);
  }
}

// Ranks from 0 on; equal values share the mean of theirs.
std::vector<double> Ranks(const std::vector<int64_t>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    for (end = begin; end < order.size() && values[order[end]] == values[order[begin]]; ++end) {
    }
    for (size_t i = begin; i < end; ++i) {
      ranks[order[i]] = (static_cast<double>(begin) + static_cast<double>(end - 1)) / 2;
    }
  }
  return ranks;
}

double RankCorrelation(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const std::vector<double> x = Ranks(a), y = Ranks(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
    xy += (x[i] - mean) * (y[i] - mean);
  }
  if (xx <= 0 || yy <= 0) return 0;
  // Three digits say all that there is to it, and keep the text short.
  return std::clamp(std::floor(xy / std::sqrt(xx * yy) * 1000 + 0.5) / 1000, -1.0, 1.0);
}

void FillPhase(const Seen* begin, const Seen* end, wl::Phase* phase) {
  phase->set_requests(end - begin);
  std::vector<int64_t> gaps, lengths, outputs;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int64_t> reuse;
  for (const Seen* seen = begin; seen != end; ++seen) {
    gaps.push_back(seen->gap_ns);
    lengths.push_back(seen->new_tokens);
    outputs.push_back(seen->output);
    if (seen->depth == 0) continue;
    ++reuse[{BucketOf(seen->depth), BucketOf(seen->distance),
             SharedEighths(seen->shared, seen->depth)}];
  }
  Fill(gaps, phase->mutable_gap_ns());
  Fill(lengths, phase->mutable_new_tokens());
  Fill(outputs, phase->mutable_output());
  phase->set_rank_correlation(RankCorrelation(lengths, outputs));
  for (const auto& [row, count] : reuse) {
    phase->add_depth(std::get<0>(row));
    phase->add_distance(std::get<1>(row));
    phase->add_older(std::get<2>(row));
    phase->add_count(count);
  }
}

double Share(const OrderRun& run, int64_t size) {
  return run.num_prompt_blocks == 0 ? 0
                                    : static_cast<double>(run.curve.Hits(size)) /
                                          static_cast<double>(run.num_prompt_blocks);
}

}  // namespace

absl::StatusOr<wl::Workload> FitTrace(TraceReader& reader) {
  const int64_t traced = reader.info().block_tokens;
  const int64_t block_tokens = traced > 1 ? traced : kDefaultBlockTokens;
  RequestBlocks blocks(reader.info(),
                       {.block_tokens = block_tokens, .counted = CountedBlocks::kPrompt});
  ReuseTree tree(false);
  absl::flat_hash_map<uint64_t, int> block_of_key;
  std::vector<Seen> all;
  std::vector<int> path;
  CurveRequest keys;
  int64_t before_ns = 0;
  const RequestFeed feed = FeedFrom(&reader);
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto request, feed());
    if (request == nullptr) break;
    if (!blocks.Make(*request, &keys) || request->input_length > kMostPromptTokens) continue;
    path.clear();
    int64_t depth = 0;
    for (const uint64_t key : keys.keys) {
      const auto [place, is_new] = block_of_key.try_emplace(key, 0);
      if (is_new) {
        place->second = tree.Add(path.empty() ? ReuseTree::kNoBlock : path.back());
      } else {
        ++depth;
      }
      path.push_back(place->second);
    }
    Seen seen{};
    seen.gap_ns = all.empty() ? 0 : request->arrival_ns - before_ns;
    before_ns = request->arrival_ns;
    seen.depth = depth;
    seen.new_tokens = request->input_length - depth * block_tokens;
    seen.output = std::min(request->output_length, kMostPromptTokens);
    if (depth > 0) {
      const int deepest = path[static_cast<size_t>(depth) - 1];
      seen.distance = tree.Distance(deepest);
      seen.shared = tree.Shared(deepest);
    }
    tree.Use(path);
    all.push_back(seen);
  }
  if (all.empty()) {
    return InvalidArgument("got a trace without a request that runs, expected one");
  }
  wl::Workload workload;
  workload.set_workload("like-a-trace");
  workload.set_block_tokens(block_tokens);
  const auto size = static_cast<int64_t>(all.size());
  const int64_t phases = std::clamp<int64_t>(size / kRequestsOfPhase, 1, kMostPhases);
  for (int64_t i = 0; i < phases; ++i) {
    FillPhase(all.data() + size * i / phases, all.data() + size * (i + 1) / phases,
              workload.mutable_fit()->add_phase());
  }
  return workload;
}

absl::StatusOr<CurveDifference> CompareCurves(const OrderRun& first, TraceReader& second) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto b, RunOrder(second.info(), FeedFrom(&second), {}));
  CurveDifference difference;
  const auto pair = [&](int64_t size) {
    return CurvePair{size, Share(first, size), Share(b, size)};
  };
  difference.greatest = pair(0);
  // Between sizes where a slope changes, the difference is greatest at an end.
  std::vector<int64_t> sizes;
  for (const OrderRun* run : {&first, &b}) {
    for (const HitCurve::Piece& piece : run->curve.pieces()) sizes.push_back(piece.first - 1);
  }
  std::ranges::sort(sizes);
  for (const int64_t size : sizes) {
    const CurvePair at = pair(size);
    if (at.off() > difference.greatest.off()) difference.greatest = at;
  }
  for (int64_t size = 256; !sizes.empty() && size / 2 < sizes.back(); size *= 2) {
    difference.sizes.push_back(pair(size));
  }
  return difference;
}

std::string FormatCurveDifference(const CurveDifference& difference) {
  std::string text = "     blocks     trace      like   difference\n";
  const auto line = [&text](const CurvePair& at) {
    absl::StrAppendFormat(&text, "%11s  %7.2f %%  %7.2f %%  %+6.2f points\n",
                          WithThousands(at.num_blocks), 100 * at.first, 100 * at.second,
                          100 * (at.second - at.first));
  };
  for (const CurvePair& at : difference.sizes) line(at);
  absl::StrAppend(&text, "the greatest difference of all sizes:\n");
  line(difference.greatest);
  return text;
}

std::string NoteOfPoorFit(const CurvePair& greatest, int64_t num_requests) {
  if (greatest.off() <= kGoodFit) return "";
  std::string note = absl::StrFormat(
      "the hit rates differ by up to %.1f points, in a pool of %s blocks, which is more than %.0f: "
      "what was made is no stand-in for the trace in pools of about that size",
      100 * greatest.off(), WithThousands(greatest.num_blocks), 100 * kGoodFit);
  if (num_requests < kFewRequests) {
    absl::StrAppend(&note, ". Counts of ", WithThousands(num_requests),
                    " requests say little about the order in which prefixes come again");
  }
  return note;
}

absl::StatusOr<CurvePair> ChooseSeed(
    const OrderRun& trace, wl::Workload* workload,
    const std::function<std::unique_ptr<TraceReader>(std::unique_ptr<TraceReader>)>& wrap) {
  CurvePair least{};
  uint64_t best = 0;
  const auto requests = static_cast<uint64_t>(std::max<int64_t>(1, trace.num_requests));
  const uint64_t most = std::clamp(kRequestsToTry / requests, kFewestSeeds, kMostSeeds);
  for (uint64_t seed = 1; seed <= most && (best == 0 || least.off() > kNearEnough); ++seed) {
    workload->set_seed(seed);
    KVBLOCKS_ASSIGN_OR_RETURN(auto made,
                              OpenTraceString(PrintWorkload(*workload), "the workload", {}));
    made = wrap(std::move(made));
    KVBLOCKS_ASSIGN_OR_RETURN(const auto difference, CompareCurves(trace, *made));
    if (best != 0 && difference.greatest.off() >= least.off()) continue;
    least = difference.greatest;
    best = seed;
  }
  workload->set_seed(best);
  return least;
}

}  // namespace kvblocks::sim
