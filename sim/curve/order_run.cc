#include "kvblocks/sim/curve/order_run.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvblocks::sim {

RequestFeed FeedFrom(TraceReader* reader, std::function<void()> progress) {
  return [reader, progress = std::move(progress),
          request = std::make_shared<TraceRequest>()]() -> absl::StatusOr<TraceRequest*> {
    const auto more = reader->Next(*request);
    if (!more.ok()) return more.status();
    if (progress) progress();
    return *more ? request.get() : nullptr;
  };
}

RequestFeed FeedFrom(const std::vector<TraceRequest>* requests) {
  return [requests, next = size_t{0},
          request = std::make_shared<TraceRequest>()]() mutable -> absl::StatusOr<TraceRequest*> {
    if (next == requests->size()) return nullptr;
    *request = (*requests)[next++];
    return request.get();
  };
}

RequestFeed ShuffledFeedFrom(const std::vector<TraceRequest>* requests, uint64_t seed) {
  // Every session's turns take the places that its shuffled turns drew, in order.
  std::vector<size_t> drawn(requests->size());
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = i;
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
  return [requests, drawn = std::move(drawn), next = size_t{0},
          request = std::make_shared<TraceRequest>()]() mutable -> absl::StatusOr<TraceRequest*> {
    if (next == drawn.size()) return nullptr;
    *request = (*requests)[drawn[next++]];
    return request.get();
  };
}

absl::StatusOr<std::vector<TraceRequest>> ReadAll(const RequestFeed& feed,
                                                  const TraceReader* reader) {
  std::vector<TraceRequest> requests;
  int64_t bytes = 0;
  while (true) {
    const auto request = feed();
    if (!request.ok()) return request.status();
    if (*request == nullptr) return requests;
    bytes += BytesOf(**request);
    if (reader != nullptr) {
      if (absl::Status status = CheckHeldBytes(bytes, *reader); !status.ok()) return status;
    }
    requests.push_back(std::move(**request));
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
    const auto next = feed();
    if (!next.ok()) return next.status();
    if (*next == nullptr) break;
    if (!blocks.Make(**next, &request)) {
      ++run.num_left_out;
      continue;
    }
    curve.Add(request);
    run.num_without_arrival += (*next)->has_arrival ? 0 : 1;
    if (!options.with_bound) continue;
    run.bound->Add(request, curve.segments());
    run.static_bound->Add(request, curve.segments());
  }
  run.curve = curve.Finish();
  run.num_requests = curve.num_requests();
  run.num_prompt_tokens = curve.num_prompt_tokens();
  run.num_prompt_blocks = curve.num_prompt_blocks();
  run.num_references = curve.num_references();
  run.num_distinct = curve.num_distinct();
  run.smallest_pool = curve.smallest_pool();
  run.num_requests_with_hit = curve.num_requests_with_hit();
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
    paths.Append(ids.keys, num_seen, &segments);
  }
  return loss;
}

}  // namespace kvblocks::sim
