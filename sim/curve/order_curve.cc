#include "sim/curve/order_curve.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "checks/status_macros.h"

namespace kvblocks::sim {

// What a look-up finds in a run of blocks that were released together.
void OrderCurve::TakeRun(const BlockPaths::Run& run) {
  if (history_.is_plain()) {
    found_.push_back({run.begin, run.end, history_.SizeFor(run.use, run.begin)});
    return;
  }
  for (int64_t depth = run.begin; depth < run.end; ++depth) {
    found_.push_back({depth, depth + 1, history_.SizeFor(run.use, depth)});
  }
}

// Of the blocks found, some may have older copies. Pools that still hold an older one hand it out
// and leave the newer one where it is.
void OrderCurve::TakeCopies(int64_t num_found) {
  for (const BlockPaths::Segment& segment : segments_) {
    const auto of_piece = copies_.find(segment.piece);
    if (of_piece == copies_.end()) continue;
    const int64_t end =
        std::min(num_found, paths_.depth(segment.piece) + static_cast<int64_t>(segment.num_blocks));
    std::vector<Copies>& list = of_piece->second;
    for (Copies& copies : list) {
      if (copies.depth >= end) continue;
      Batch newer = 0;
      for (const BlockPaths::Run& run : runs_) {
        if (run.begin <= copies.depth && copies.depth < run.end) newer = run.use;
      }
      for (const Batch older : copies.older) {
        history_.TakeOneOf(older, newer, copies.depth);
        newer = older;
      }
      copies.older.clear();
    }
    std::erase_if(list, [](const Copies& copies) { return copies.older.empty(); });
    if (list.empty()) copies_.erase(of_piece);
  }
}

// Blocks begin .. end - 1 are cached and computed again all the same: the old copies stay.
void OrderCurve::LeaveCopies(int64_t begin, int64_t end) {
  for (const BlockPaths::Segment& segment : segments_) {
    const int64_t first = paths_.depth(segment.piece);
    const int64_t last = first + static_cast<int64_t>(segment.num_blocks);
    for (int64_t depth = std::max(begin, first); depth < std::min(end, last); ++depth) {
      Batch newest = 0;
      for (const BlockPaths::Run& run : runs_) {
        if (run.begin <= depth && depth < run.end) newest = run.use;
      }
      std::vector<Copies>& list = copies_[segment.piece];
      auto at = std::find_if(list.begin(), list.end(),
                             [&](const Copies& copies) { return copies.depth == depth; });
      if (at == list.end()) at = list.insert(list.end(), {depth, {}});
      at->older.insert(at->older.begin(), newest);
    }
  }
}

void OrderCurve::Add(const CurveRequest& request) {
  found_.clear();
  runs_.clear();
  const int64_t num_seen = paths_.Follow(request.keys, &segments_);
  const int64_t num_found = std::min(num_seen, request.num_eligible);
  paths_.ForEachRun(segments_, num_seen, [&](const BlockPaths::Run& run) { runs_.push_back(run); });

  if (!copies_.empty()) TakeCopies(num_found);
  for (const BlockPaths::Run& run : runs_) {
    if (run.begin >= num_found) break;
    TakeRun({run.begin, std::min(run.end, num_found), run.use});
  }
  for (const FoundRun& run : found_) {
    // With a drop, the look-up hits a block where it finds the one behind it.
    const int64_t skipped = options_.drops_last_hit && run.begin == 0 ? 1 : 0;
    curve_.AddRun(run.first_size + skipped, run.end - run.begin - skipped);
  }
  for (const BlockPaths::Run& run : runs_) {
    if (run.begin >= num_found) break;
    history_.AddToNewer(run.use, std::min(run.end, num_found) - run.begin);
  }
  if (num_found < num_seen) LeaveCopies(num_found, num_seen);
  const auto num_keyed = static_cast<int64_t>(request.keys.size());
  history_.AddToAll(request.num_blocks() - num_found);
  if (options_.free_order == FreeOrder::kUnhashedFirst) history_.AddToAll(-request.num_unkeyed);
  if (num_keyed > 0) {
    paths_.Append(request.keys, &segments_);
    paths_.Touch(segments_, history_.Push(0));
  }
  history_.Settle();

  ++sums_.num_requests;
  sums_.num_prompt_tokens += request.num_prompt_tokens;
  sums_.num_prompt_blocks += request.num_prompt_blocks;
  sums_.num_references += num_keyed;
  sums_.smallest_pool = std::max(sums_.smallest_pool, request.smallest_pool);
  if (num_found > 0) ++sums_.num_requests_with_hit;
  sums_.num_distinct = paths_.num_blocks();
}

HitCurve OrderCurve::Finish() {
  curve_.Finish();
  return std::move(curve_);
}

RequestFeed FeedFrom(TraceReader* reader, std::function<void()> progress) {
  return [reader, progress = std::move(progress),
          request = std::make_shared<TraceRequest>()]() -> absl::StatusOr<TraceRequest*> {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, reader->Next(*request));
    if (progress) progress();
    return more ? request.get() : nullptr;
  };
}

namespace {

// Copies, so that the caller may change them.
RequestFeed FeedInOrder(const std::vector<TraceRequest>* requests, std::vector<size_t> order) {
  return [requests, order = std::move(order), next = size_t{0},
          request = std::make_shared<TraceRequest>()]() mutable -> absl::StatusOr<TraceRequest*> {
    if (next == order.size()) return nullptr;
    *request = (*requests)[order[next++]];
    return request.get();
  };
}

std::vector<size_t> PlacesOf(const std::vector<TraceRequest>& requests) {
  std::vector<size_t> places(requests.size());
  std::iota(places.begin(), places.end(), size_t{0});
  return places;
}

}  // namespace

RequestFeed FeedFrom(const std::vector<TraceRequest>* requests) {
  return FeedInOrder(requests, PlacesOf(*requests));
}

RequestFeed ShuffledFeedFrom(const std::vector<TraceRequest>* requests, uint64_t seed) {
  // Every session's turns take the places that its shuffled turns drew, in order.
  std::vector<size_t> drawn = PlacesOf(*requests);
  std::mt19937_64 engine(seed);
  for (size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[engine() % i]);
  absl::flat_hash_map<uint64_t, std::vector<size_t>> places;
  for (size_t place = 0; place < drawn.size(); ++place) {
    const uint64_t session = (*requests)[drawn[place]].session;
    if (session != 0) places[session].push_back(place);
  }
  absl::flat_hash_map<uint64_t, size_t> turns;
  for (size_t i = 0; i < requests->size(); ++i) {
    const uint64_t session = (*requests)[i].session;
    if (session != 0) drawn[places[session][turns[session]++]] = i;
  }
  return FeedInOrder(requests, std::move(drawn));
}

absl::StatusOr<std::vector<TraceRequest>> ReadAll(const RequestFeed& feed,
                                                  const TraceReader* reader) {
  std::vector<TraceRequest> requests;
  int64_t bytes = 0;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(TraceRequest* const request, feed());
    if (request == nullptr) return requests;
    bytes += BytesOf(*request);
    if (reader != nullptr) KVBLOCKS_RETURN_IF_ERROR(CheckHeldBytes(bytes, *reader));
    requests.push_back(std::move(*request));
  }
}

absl::StatusOr<OrderRun> RunOrder(const TraceInfo& info, const RequestFeed& feed,
                                  const OrderRunOptions& options) {
  OrderRun run;
  RequestBlocks blocks(info, options.blocks);
  OrderCurve curve(
      {.free_order = options.free_order, .drops_last_hit = options.blocks.drops_last_hit});
  if (options.with_bound) {
    run.bound = std::make_unique<BeladyBound>();
    run.static_bound = std::make_unique<StaticBound>();
  }
  CurveRequest request;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(TraceRequest* const next, feed());
    if (next == nullptr) break;
    if (!blocks.Make(*next, &request)) {
      ++run.num_left_out;
      continue;
    }
    curve.Add(request);
    run.num_without_arrival += next->has_arrival ? 0 : 1;
    if (!options.with_bound) continue;
    run.bound->Add(request, curve.segments());
    run.static_bound->Add(request, curve.segments());
  }
  run.curve = curve.Finish();
  static_cast<OrderSums&>(run) = curve.sums();
  if (options.with_bound) {
    run.bound->Prepare(curve.TakePaths());
    run.static_bound->Prepare();
  }
  return run;
}

RoundingLoss LossByRounding(const TraceInfo& info, const std::vector<TraceRequest>& requests,
                            int64_t block_tokens) {
  RoundingLoss loss;
  if (info.block_tokens == 0) return loss;
  RequestBlocks blocks(info, {.block_tokens = info.block_tokens, .counted = CountedBlocks::kIds});
  BlockPaths paths;
  std::vector<BlockPaths::Segment> segments;
  CurveRequest ids;
  TraceRequest request;
  for (const TraceRequest& original : requests) {
    request = original;
    if (!blocks.Make(request, &ids)) continue;
    const int64_t num_seen = paths.Follow(ids.keys, &segments);
    const int64_t shared = std::min(num_seen * info.block_tokens, request.input_length);
    const int64_t hit = std::min(shared, request.input_length - 1) / block_tokens * block_tokens;
    loss.shared_tokens += shared;
    loss.lost_tokens += shared - hit;
    if (shared > 0 && hit == 0) {
      loss.short_tokens += shared;
      ++loss.short_requests;
    }
    paths.Append(ids.keys, &segments);
  }
  return loss;
}

}  // namespace kvblocks::sim
