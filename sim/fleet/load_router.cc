#include "kvblocks/sim/fleet/load_router.h"

#include <algorithm>

#include "kvblocks/sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

int32_t LeastBy(const RouteQuestion& question, int64_t ReplicaLoad::* measure) {
  return *std::min_element(question.live.begin(), question.live.end(), [&](int32_t a, int32_t b) {
    return question.loads[static_cast<size_t>(a)].*measure <
           question.loads[static_cast<size_t>(b)].*measure;
  });
}

int32_t Drawn(absl::Span<const int32_t> live, Draws draws) {
  return live[static_cast<size_t>(draws.Below(static_cast<int64_t>(live.size())))];
}

int32_t OfTwo(const RouteQuestion& question, Draws draws) {
  const auto count = static_cast<int64_t>(question.live.size());
  const int64_t first = draws.Below(count);
  if (count == 1) return question.live.front();
  int64_t second = draws.Below(count - 1);
  if (second >= first) ++second;
  const int32_t a = question.live[static_cast<size_t>(first)];
  const int32_t b = question.live[static_cast<size_t>(second)];
  const bool is_second_better = question.loads[static_cast<size_t>(b)].num_requests <
                                question.loads[static_cast<size_t>(a)].num_requests;
  return is_second_better ? b : a;
}

}  // namespace

RouteAnswer LoadRouter::Route(const RouteQuestion& question) {
  return {.replica = Choose(question)};
}

void LoadRouter::OnGone(int32_t replica) {
  absl::erase_if(homes_, [&](const auto& home) { return home.second == replica; });
}

int32_t LoadRouter::Choose(const RouteQuestion& question) {
  const Draws draws(options_.seed, "router", static_cast<uint64_t>(question.request.spec.row));
  switch (options_.kind) {
    case RouterKind::kRandom:
      return Drawn(question.live, draws);
    case RouterKind::kLeastRequests:
      return LeastBy(question, &ReplicaLoad::num_requests);
    case RouterKind::kLeastTokens:
      return LeastBy(question, &ReplicaLoad::num_tokens);
    case RouterKind::kTwoChoices:
      return OfTwo(question, draws);
    case RouterKind::kSession:
      return OfSession(question);
    default:
      return InTurn(question.live);
  }
}

int32_t LoadRouter::InTurn(absl::Span<const int32_t> live) {
  const auto next = std::lower_bound(live.begin(), live.end(), next_);
  const int32_t replica = next == live.end() ? live.front() : *next;
  next_ = replica + 1;
  return replica;
}

int32_t LoadRouter::OfSession(const RouteQuestion& question) {
  const uint64_t session = question.request.spec.session;
  if (session == 0) return LeastBy(question, &ReplicaLoad::num_requests);
  const auto [home, is_new] = homes_.try_emplace(session, 0);
  if (is_new) home->second = Drawn(question.live, Draws(options_.seed, "session", session));
  if (options_.session_factor > 0) {
    const auto count = static_cast<int64_t>(question.live.size());
    int64_t sum = 1;
    for (const int32_t r : question.live) sum += question.loads[static_cast<size_t>(r)].num_requests;
    const int64_t there = question.loads[static_cast<size_t>(home->second)].num_requests + 1;
    // Rounded up, so that one request alone is never too many.
    const __int128 limit =
        (static_cast<__int128>(options_.session_factor) * sum + kMillion * count - 1) /
        (kMillion * count);
    if (there > limit) home->second = LeastBy(question, &ReplicaLoad::num_requests);
  }
  return home->second;
}

}  // namespace kvblocks::sim
