#include "sim/fleet/router.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

constexpr std::array<const char*, 10> kNames = {
    "round-robin", "random",  "least-requests", "least-tokens",       "two-choices",
    "session",     "prefix",  "prefix-approximate", "oracle",
    "data-parallel"};

absl::Status Between(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument(field, " is ", value, ", expected ", least, " to ", most);
}

}  // namespace

std::string_view RouterName(RouterKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<RouterKind> ParseRouter(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<RouterKind>(i);
  }
  return InvalidArgument("got \"", std::string(name), "\", expected one of ",
                         absl::StrJoin(kNames, ", "));
}

absl::Status Validate(const RouterOptions& options) {
  constexpr int64_t kMostWeight = 1'000'000 * kMillion;
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>("hit_weight", options.hit_weight),
        {"load_weight", options.load_weight},
        {"queue_weight", options.queue_weight},
        {"temperature", options.temperature},
        {"session_factor", options.session_factor}}) {
    KVBLOCKS_RETURN_IF_ERROR(Between(field, value, 0, kMostWeight));
  }
  if (options.session_factor > 0 && options.session_factor < kMillion) {
    return InvalidArgument(
        "session_factor is ", options.session_factor,
        " millionths, expected at least 1000000 (the mean itself), or 0 for no bound");
  }
  if (options.stats_interval < 0) {
    return InvalidArgument("stats_interval is ", options.stats_interval,
                           " ps, expected at least 0");
  }
  return Between("tree_blocks", options.tree_blocks, 1, int64_t{1} << 31);
}

std::unique_ptr<Router> MakeRouter(const RouterOptions& options, int32_t num_replicas,
                                   GroupId group, const std::vector<RankGroup>& ranks) {
  if (options.kind == RouterKind::kDataParallel) {
    return MakeRankRouter(options, num_replicas, ranks);
  }
  if (UsesContent(options.kind)) return MakeScoreRouter(options, num_replicas, group);
  return MakeLoadRouter(options);
}

// LoadRouter: the routers that use load, order and sessions alone.

namespace {

class LoadRouter final : public Router {
 public:
  // REQUIRES: !UsesContent(options.kind).
  explicit LoadRouter(const RouterOptions& options) : options_(options) {}

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnGone(int32_t replica) override;

 private:
  int32_t Choose(const RouteQuestion& question);
  int32_t Next();
  int32_t OfSession(const RouteQuestion& question);

  const RouterOptions options_;
  int32_t next_ = 0;           // who is next, with room
  std::vector<int32_t> open_;  // that may have the request, ascending
  absl::flat_hash_map<uint64_t, int32_t> homes_;  // of sessions
};

int32_t LeastBy(const RouteQuestion& question, absl::Span<const int32_t> open,
                int64_t ReplicaLoad::* measure) {
  return *std::min_element(open.begin(), open.end(), [&](int32_t a, int32_t b) {
    return question.loads[static_cast<size_t>(a)].*measure <
           question.loads[static_cast<size_t>(b)].*measure;
  });
}

int32_t OfTwo(const RouteQuestion& question, absl::Span<const int32_t> open, Draws draws) {
  const auto count = static_cast<int64_t>(open.size());
  const int64_t first = draws.Below(count);
  if (count == 1) return open.front();
  int64_t second = draws.Below(count - 1);
  if (second >= first) ++second;
  const int32_t a = open[static_cast<size_t>(first)], b = open[static_cast<size_t>(second)];
  const bool is_second_better = question.loads[static_cast<size_t>(b)].num_requests <
                                question.loads[static_cast<size_t>(a)].num_requests;
  return is_second_better ? b : a;
}

RouteAnswer LoadRouter::Route(const RouteQuestion& question) {
  open_.clear();
  for (size_t r = 0; r < question.loads.size(); ++r) {
    if (MayHave(question, r)) open_.push_back(static_cast<int32_t>(r));
  }
  return {.replica = Choose(question)};
}

void LoadRouter::OnGone(int32_t replica) {
  absl::erase_if(homes_, [&](const auto& home) { return home.second == replica; });
}

int32_t LoadRouter::Choose(const RouteQuestion& question) {
  const Draws draws(options_.seed, "router", static_cast<uint64_t>(question.request.spec.row));
  switch (options_.kind) {
    case RouterKind::kRandom:
      return open_[static_cast<size_t>(
          Draws(draws).Below(static_cast<int64_t>(open_.size())))];
    case RouterKind::kLeastRequests:
      return LeastBy(question, open_, &ReplicaLoad::num_requests);
    case RouterKind::kLeastTokens:
      return LeastBy(question, open_, &ReplicaLoad::num_tokens);
    case RouterKind::kTwoChoices:
      return OfTwo(question, open_, draws);
    case RouterKind::kSession:
      return OfSession(question);
    default:
      return Next();
  }
}

int32_t LoadRouter::Next() {
  const auto place = std::lower_bound(open_.begin(), open_.end(), next_);
  const int32_t replica = place == open_.end() ? open_.front() : *place;
  next_ = replica + 1;
  return replica;
}

int32_t LoadRouter::OfSession(const RouteQuestion& question) {
  const uint64_t session = question.request.spec.session;
  if (session == 0) return LeastBy(question, open_, &ReplicaLoad::num_requests);
  const auto count =
      static_cast<int64_t>(question.live.empty() ? question.loads.size() : question.live.size());
  const auto live = [&](int64_t i) {
    return question.live.empty() ? static_cast<int32_t>(i) : question.live[static_cast<size_t>(i)];
  };
  const auto [home, is_new] = homes_.try_emplace(session, 0);
  if (is_new) home->second = live(Draws(options_.seed, "session", session).Below(count));
  if (options_.session_factor > 0) {
    int64_t sum = 1;
    for (int64_t i = 0; i < count; ++i) {
      sum += question.loads[static_cast<size_t>(live(i))].num_requests;
    }
    const int64_t there = question.loads[static_cast<size_t>(home->second)].num_requests + 1;
    // Rounded up, so that one request alone is never too many.
    const __int128 limit =
        (static_cast<__int128>(options_.session_factor) * sum + kMillion * count - 1) /
        (kMillion * count);
    if (there > limit || !MayHave(question, static_cast<size_t>(home->second))) {
      home->second = LeastBy(question, open_, &ReplicaLoad::num_requests);
    }
  }
  if (MayHave(question, static_cast<size_t>(home->second))) return home->second;
  // One that never moves only visits.
  return LeastBy(question, open_, &ReplicaLoad::num_requests);
}

}  // namespace

std::unique_ptr<Router> MakeLoadRouter(const RouterOptions& options) {
  return std::make_unique<LoadRouter>(options);
}

// --- RouterQueue ---

absl::Status Validate(const RouterQueueOptions& options) {
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>("max_requests", options.max_requests),
        {"max_tokens", options.max_tokens},
        {"max_waiting", options.max_waiting}}) {
    if (value >= 0) continue;
    return InvalidArgument(field, " is ", value, ", expected at least 0");
  }
  return absl::OkStatus();
}

bool HasRoom(const RouterQueueOptions& options, const ReplicaLoad& load, int64_t num_prompt) {
  if (load.num_requests == 0) return true;
  if (options.max_requests > 0 && load.num_requests >= options.max_requests) return false;
  return options.max_tokens == 0 || load.num_tokens + num_prompt <= options.max_tokens;
}

void RouterQueue::Push(SimRequest* request, std::optional<SimTime> deadline) {
  const Place place = {options_.by_priority ? request->spec.priority : 0, num_pushed_++};
  const bool is_new = places_.try_emplace(request->spec.row, Known{place, deadline}).second;
  KVBLOCKS_CHECK(is_new, absl::StrCat("row ", request->spec.row, " waits already"));
  order_.insert({place, request});
  if (deadline) deadlines_.insert({*deadline, place, request});
}

void RouterQueue::Remove(const SimRequest& request) {
  const auto known = places_.find(request.spec.row);
  KVBLOCKS_CHECK(known != places_.end(), absl::StrCat("row ", request.spec.row, " does not wait"));
  const auto place = order_.lower_bound({known->second.place, nullptr});
  if (known->second.deadline) {
    deadlines_.erase({*known->second.deadline, known->second.place, place->second});
  }
  order_.erase(place);
  places_.erase(known);
}

std::optional<SimTime> RouterQueue::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return std::get<0>(*deadlines_.begin());
}

SimRequest* RouterQueue::FirstExpired(SimTime now) const {
  if (deadlines_.empty() || std::get<0>(*deadlines_.begin()) > now) return nullptr;
  return std::get<2>(*deadlines_.begin());
}

}  // namespace kvblocks::sim
