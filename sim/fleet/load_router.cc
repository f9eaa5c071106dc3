#include "kvblocks/sim/fleet/load_router.h"

#include <algorithm>

#include "kvblocks/sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

using Loads = absl::Span<const ReplicaLoad>;

int32_t LeastBy(Loads loads, int64_t ReplicaLoad::* measure) {
  const auto least =
      std::min_element(loads.begin(), loads.end(), [&](const ReplicaLoad& a, const ReplicaLoad& b) {
        return a.*measure < b.*measure;
      });
  return static_cast<int32_t>(least - loads.begin());
}

int32_t OfTwo(Loads loads, Draws draws) {
  const auto count = static_cast<int64_t>(loads.size());
  const int64_t first = draws.Below(count);
  if (count == 1) return 0;
  int64_t second = draws.Below(count - 1);
  if (second >= first) ++second;
  const bool is_second_better = loads[static_cast<size_t>(second)].num_requests <
                                loads[static_cast<size_t>(first)].num_requests;
  return static_cast<int32_t>(is_second_better ? second : first);
}

}  // namespace

RouteAnswer LoadRouter::Route(const RouteQuestion& question) {
  const RouteAnswer answer = {.replica = Choose(question)};
  ++num_routed_;
  return answer;
}

int32_t LoadRouter::Choose(const RouteQuestion& question) {
  const auto count = static_cast<int64_t>(question.loads.size());
  const Draws draws(options_.seed, "router", static_cast<uint64_t>(question.request.spec.row));
  switch (options_.kind) {
    case RouterKind::kRandom:
      return static_cast<int32_t>(Draws(draws).Below(count));
    case RouterKind::kLeastRequests:
      return LeastBy(question.loads, &ReplicaLoad::num_requests);
    case RouterKind::kLeastTokens:
      return LeastBy(question.loads, &ReplicaLoad::num_tokens);
    case RouterKind::kTwoChoices:
      return OfTwo(question.loads, draws);
    case RouterKind::kSession:
      return OfSession(question);
    default:
      return static_cast<int32_t>(num_routed_ % count);
  }
}

int32_t LoadRouter::OfSession(const RouteQuestion& question) {
  const uint64_t session = question.request.spec.session;
  if (session == 0) return LeastBy(question.loads, &ReplicaLoad::num_requests);
  const auto count = static_cast<int64_t>(question.loads.size());
  const auto [home, is_new] = homes_.try_emplace(session, 0);
  if (is_new) home->second = static_cast<int32_t>(Draws(options_.seed, "session", session).Below(count));
  if (options_.session_factor > 0) {
    int64_t sum = 1;
    for (const ReplicaLoad& load : question.loads) sum += load.num_requests;
    const int64_t there = question.loads[static_cast<size_t>(home->second)].num_requests + 1;
    // Rounded up, so that one request alone is never too many.
    const __int128 limit =
        (static_cast<__int128>(options_.session_factor) * sum + kMillion * count - 1) /
        (kMillion * count);
    if (there > limit) home->second = LeastBy(question.loads, &ReplicaLoad::num_requests);
  }
  return home->second;
}

}  // namespace kvblocks::sim
