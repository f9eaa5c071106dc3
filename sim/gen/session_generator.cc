// The generator of workloads that are made of sessions.

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sim/gen/distributions.h"
#include "sim/gen/generator.h"
#include "sim/gen/session_plan.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

// What plans of sessions under way may hold, in pieces of content of 16 bytes.
constexpr int64_t kMostHeldPieces = int64_t{1} << 26;

int64_t HeldPieces(const std::vector<PlannedRequest>& plan) {
  constexpr size_t kOfRequest = 8;  // without its content
  size_t pieces = 0;
  for (const PlannedRequest& request : plan) pieces += kOfRequest + request.content.size();
  return static_cast<int64_t>(pieces);
}

class SessionGenerator final : public Generator {
 public:
  explicit SessionGenerator(const pb::Workload& workload)
      : workload_(workload),
        seed_(workload.has_seed() ? workload.seed() : 1),
        planner_(workload_),
        arrivals_(workload_.arrivals(), seed_) {
    if (workload_.arrivals().has_closed()) {
      const int64_t users = workload_.arrivals().closed().users();
      for (int64_t user = 0; user < users && HasMore() && !HoldsTooMuch(); ++user) {
        Begin(0, {}, 0);
      }
    } else if (HasMore()) {
      next_start_ns_ = arrivals_.Next();
    }
  }

  absl::StatusOr<bool> Next(GeneratedRequest* out) override {
    if (workload_.requests() > 0 && row_ >= workload_.requests()) return false;
    // A session begins before what is due no earlier.
    while (!workload_.arrivals().has_closed() && HasMore() && !HoldsTooMuch() &&
           (due_.empty() || next_start_ns_ <= due_.top().arrival_ns)) {
      Begin(next_start_ns_, {}, 0);
      if (HasMore()) next_start_ns_ = arrivals_.Next();
    }
    if (HoldsTooMuch()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "sessions under way at once: got ", active_.size(), " with more than ", kMostHeldPieces,
          " pieces of content, expected fewer (a lower rate, or fewer users or turns)"));
    }
    if (due_.empty()) return false;
    const Due due = due_.top();
    due_.pop();
    Active& active = active_.at(due.session);
    Fill(due, active, out);
    active.rows[static_cast<size_t>(due.place)] = row_++;
    if (--active.num_left == 0) {
      if (workload_.arrivals().has_closed() && HasMore()) {
        GoOn(active, due.arrival_ns);
      }
      held_pieces_ -= HeldPieces(active.plan);
      active_.erase(due.session);
    }
    return true;
  }

 private:
  struct Due {
    int64_t arrival_ns;
    uint64_t session;
    int place;
    bool operator<(const Due& other) const {  // the earliest on top
      if (arrival_ns != other.arrival_ns) return arrival_ns > other.arrival_ns;
      if (session != other.session) return session > other.session;
      return place > other.place;
    }
  };
  struct Active {
    std::vector<PlannedRequest> plan;
    std::vector<int64_t> rows;
    std::vector<int64_t> starts_after;  // rows
    int64_t think_ns = 0;               // before its first request
    int num_left = 0;
  };

  // Each session has a request at its start, so that no more sessions than requests are needed.
  bool HasMore() const {
    const auto session = static_cast<int64_t>(session_);
    return (workload_.sessions() == 0 || session < workload_.sessions()) &&
           (workload_.requests() == 0 || session < workload_.requests()) && !arrivals_.has_ended();
  }

  bool HoldsTooMuch() const { return held_pieces_ > kMostHeldPieces; }

  void Begin(int64_t start_ns, std::vector<int64_t> starts_after, int64_t think_ns) {
    Active active;
    active.plan = planner_.Plan(session_, start_ns);
    held_pieces_ += HeldPieces(active.plan);
    active.num_left = static_cast<int>(active.plan.size());
    active.rows.resize(active.plan.size());
    active.starts_after = std::move(starts_after);
    active.think_ns = think_ns;
    for (size_t i = 0; i < active.plan.size(); ++i) {
      due_.push({active.plan[i].arrival_ns, session_, static_cast<int>(i)});
    }
    active_.emplace(session_++, std::move(active));
  }

  // The same user's next session.
  void GoOn(const Active& ended, int64_t now_ns) {
    const auto& closed = workload_.arrivals().closed();
    Draws draws(seed_, "closed", session_);
    const double seconds = closed.has_think_s() ? Draw(closed.think_s(), draws) : 0;
    const auto think_ns = static_cast<int64_t>(seconds * 1e9 + 0.5);
    Begin(now_ns + think_ns, ended.rows, think_ns);
  }

  void Fill(const Due& due, const Active& active, GeneratedRequest* out) {
    const PlannedRequest& from = active.plan[static_cast<size_t>(due.place)];
    out->arrival_ns = from.arrival_ns;
    out->input_length = from.input_length;
    out->output_length = from.output_length;
    BlockIds(from.content, BlockTokens(workload_), &out->content_ids);
    out->ids_cover_output = true;
    // Streams are numbered within their session; 2^20 is more than a session has.
    out->session = (due.session << 20) + static_cast<uint64_t>(from.stream) + 1;
    out->turn = from.turn;
    out->think_ns = from.think_ns;
    out->waits_for.clear();
    for (const int place : from.waits_for) {
      out->waits_for.push_back(active.rows[static_cast<size_t>(place)]);
    }
    if (from.waits_for.empty()) {
      out->waits_for = active.starts_after;
      if (!active.starts_after.empty()) out->think_ns = active.think_ns;
    }
    std::sort(out->waits_for.begin(), out->waits_for.end());
    out->tenant = workload_.kind(planner_.KindOf(due.session)).tenant();
  }

  const pb::Workload workload_;
  const uint64_t seed_;
  const SessionPlanner planner_;
  ArrivalProcess arrivals_;
  std::priority_queue<Due> due_;
  std::unordered_map<uint64_t, Active> active_;
  int64_t held_pieces_ = 0;
  uint64_t session_ = 0;  // next to begin
  int64_t next_start_ns_ = 0;
  int64_t row_ = 0;
};

}  // namespace

std::unique_ptr<Generator> MakeGenerator(const pb::Workload& workload) {
  if (workload.has_fit()) return MakeFittedGenerator(workload);
  return std::make_unique<SessionGenerator>(workload);
}

int64_t BlockTokens(const pb::Workload& workload) {
  return workload.has_block_tokens() ? workload.block_tokens() : kDefaultBlockTokens;
}

}  // namespace kvblocks::sim
