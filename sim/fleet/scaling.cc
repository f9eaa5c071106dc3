#include "sim/fleet/scaling.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/fleet/router.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr int32_t kMostSlots = 4096;  // as Fleet::kMostReplicas
constexpr std::string_view kActions[] = {"start", "stop", "crash"};  // by ScaleAction

// A whole number in decimal digits, up to `most`.
std::optional<int32_t> ParseCount(std::string_view text, int32_t least, int32_t most) {
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  const auto value = ParseScaledDecimal(text, 0);
  if (!value.ok() || *value < least || *value > most) return std::nullopt;
  return static_cast<int32_t>(*value);
}

absl::StatusOr<ScaleEntry> ParseEntry(std::string_view text) {
  const absl::Status bad = InvalidArgument(
      "got \"", std::string(text),
      "\", expected TIME:ACTION, with start, stop or crash as ACTION, then nothing, =COUNT (1 to ",
      kMostSlots, ") or @REPLICA (0 to ", kMostSlots - 1, "), such as 10s:start=2 or 1min:crash@3");
  ScaleEntry entry;
  const size_t colon = text.find(':');
  if (colon == text.npos) return bad;
  const auto time = ParseDuration(text.substr(0, colon));
  if (!time.ok() || *time < 0) return bad;
  entry.time = *time;
  text.remove_prefix(colon + 1);
  const size_t mark = text.find_first_of("=@");
  const auto* action = std::find(std::begin(kActions), std::end(kActions), text.substr(0, mark));
  if (action == std::end(kActions)) return bad;
  entry.action = static_cast<ScaleAction>(action - kActions);
  if (mark == text.npos) return entry;
  const bool is_count = text[mark] == '=';
  const auto number =
      ParseCount(text.substr(mark + 1), is_count ? 1 : 0, is_count ? kMostSlots : kMostSlots - 1);
  if (!number) return bad;
  (is_count ? entry.count : entry.replica) = *number;
  return entry;
}

}  // namespace

std::string_view KindName(ScaleRecord::Kind kind) {
  constexpr std::string_view kNames[] = {"start", "live", "stop", "off", "crash"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<std::vector<ScaleEntry>> ParseSchedule(std::string_view text) {
  std::vector<ScaleEntry> schedule;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto entry, ParseEntry(part));
    schedule.push_back(entry);
  }
  return schedule;
}

absl::Status ParseRule(std::string_view text, ScaleRule* rule) {
  const absl::Status bad =
      InvalidArgument("got \"", std::string(text),
                      "\", expected queue:LOW:HIGH with waiting requests per replica, or "
                      "ttft:LIMIT:LOW:HIGH with shares from "
                      "0 to 1, such as queue:1:8 or ttft:2s:0.9:0.99; LOW is at most HIGH");
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ':');
  const bool is_queue = parts.size() == 3 && parts[0] == "queue";
  if (!is_queue && (parts.size() != 4 || parts[0] != "ttft")) return bad;
  const auto low = ParseScaledDecimal(parts[parts.size() - 2], 6);
  const auto high = ParseScaledDecimal(parts.back(), 6);
  if (!low.ok() || !high.ok() || *low > *high) return bad;
  rule->measure = is_queue ? ScaleRule::Measure::kQueue : ScaleRule::Measure::kTtft;
  rule->low = *low;
  rule->high = *high;
  if (is_queue) return absl::OkStatus();
  const auto limit = ParseDuration(parts[1]);
  if (!limit.ok() || *limit <= 0 || *high > kMillion) return bad;
  rule->limit = *limit;
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Scaler::NumReplicas(const ScalingOptions& options, int32_t num_live) {
  if (options.start_time < 0) {
    return InvalidArgument("start_time is ", options.start_time, " ps, expected at least 0");
  }
  int64_t most = num_live;
  for (const ScaleEntry& entry : options.schedule) {
    if (entry.time < 0 || entry.count < 1 || entry.replica < -1 || entry.replica >= kMostSlots) {
      return InvalidArgument(
          "schedule: an entry at ", entry.time, " ps with count ", entry.count, " and replica ",
          entry.replica,
          ", expected a time of at least 0, a count of at least 1 and a replica below ",
          kMostSlots);
    }
    if (entry.action == ScaleAction::kStart && entry.replica < 0) most += entry.count;
  }
  for (const ScaleEntry& entry : options.schedule) {
    if (entry.action == ScaleAction::kStart) most = std::max<int64_t>(most, entry.replica + 1);
  }
  if (options.rule) {
    const ScaleRule& rule = *options.rule;
    if (rule.least < 1 || rule.least > num_live || rule.most < num_live) {
      return InvalidArgument("rule: from ", rule.least, " to ", rule.most,
                             " replicas, expected limits of at "
                             "least 1 with the ",
                             num_live, " of the beginning between them");
    }
    if (rule.interval <= 0 || rule.cool_down < 0) {
      return InvalidArgument("rule: interval ", rule.interval, " ps and cool_down ", rule.cool_down,
                             " ps, expected above 0 and at least 0");
    }
    most = std::max<int64_t>(most, rule.most);
  }
  if (most > kMostSlots) {
    return InvalidArgument("scaling needs ", most, " replicas, expected at most ", kMostSlots,
                           "; name those that start again by number");
  }
  return static_cast<int32_t>(most);
}

Scaler::Scaler(const ScalingOptions& options, int32_t num_live, int32_t num_replicas)
    : options_([&] {
        ScalingOptions sorted = options;
        std::stable_sort(
            sorted.schedule.begin(), sorted.schedule.end(),
            [](const ScaleEntry& a, const ScaleEntry& b) { return a.time < b.time; });
        return sorted;
      }()),
      slots_(static_cast<size_t>(num_replicas)),
      next_check_(options.rule ? options.rule->interval : kNever) {
  for (int32_t r = 0; r < num_live; ++r) {
    slots_[static_cast<size_t>(r)] = {.state = State::kLive, .was_live = true, .was_on = true};
  }
  result_.on_time.resize(slots_.size());
  RefreshLive();
}

void Scaler::RefreshLive() {
  live_.clear();
  for (size_t r = 0; r < slots_.size(); ++r) {
    if (slots_[r].state == State::kLive) live_.push_back(static_cast<int32_t>(r));
  }
  result_.most_live = std::max(result_.most_live, static_cast<int32_t>(live_.size()));
}

SimTime Scaler::NextTime() const {
  SimTime next = next_check_;
  if (next_entry_ < options_.schedule.size()) {
    next = std::min(next, options_.schedule[next_entry_].time);
  }
  for (const Slot& slot : slots_) {
    if (slot.state == State::kStarting) next = std::min(next, slot.live_at);
  }
  return next;
}

absl::Span<const Scaler::Change> Scaler::Take(SimTime now, const Measures& measures) {
  changes_.clear();
  for (size_t r = 0; r < slots_.size(); ++r) {
    if (slots_[r].state != State::kStarting || slots_[r].live_at > now) continue;
    slots_[r].state = State::kLive;
    slots_[r].was_live = true;
    Record(now, static_cast<int32_t>(r), ScaleRecord::Kind::kLive);
  }
  for (; next_entry_ < options_.schedule.size() && options_.schedule[next_entry_].time <= now;
       ++next_entry_) {
    Apply(options_.schedule[next_entry_], now);
  }
  if (next_check_ <= now) {
    CheckRule(now, measures);
    next_check_ = CheckedAdd(now, options_.rule->interval).value_or(kNever);
  }
  if (!changes_.empty()) RefreshLive();
  return changes_;
}

void Scaler::Record(SimTime now, int32_t replica, ScaleRecord::Kind kind) {
  result_.timeline.push_back({now, replica, kind});
  if (kind != ScaleRecord::Kind::kOff) changes_.push_back({kind, replica});
}

void Scaler::Apply(const ScaleEntry& entry, SimTime now) {
  for (int32_t i = 0; i < entry.count; ++i) {
    const int32_t replica = entry.replica >= 0 ? entry.replica : Pick(entry.action);
    if (!ChangeOne(entry.action, replica, now)) ++result_.num_refused;
  }
}

bool Scaler::Suits(ScaleAction action, int32_t replica) const {
  if (replica < 0 || replica >= static_cast<int32_t>(slots_.size())) return false;
  const State state = StateOf(replica);
  switch (action) {
    case ScaleAction::kStart:
      return state == State::kOff;
    case ScaleAction::kStop:
      return state == State::kLive || state == State::kStarting;
    case ScaleAction::kCrash:
      return state != State::kOff;
  }
  return false;
}

// By count; -1: none suits. What drains crashes by number only.
int32_t Scaler::Pick(ScaleAction action) const {
  const auto count = static_cast<int32_t>(slots_.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t replica = action == ScaleAction::kStart ? i : count - 1 - i;
    if (Suits(action, replica) && StateOf(replica) != State::kDraining) return replica;
  }
  return -1;
}

bool Scaler::ChangeOne(ScaleAction action, int32_t replica, SimTime now) {
  if (!Suits(action, replica)) return false;
  Slot& slot = slots_[static_cast<size_t>(replica)];
  switch (action) {
    case ScaleAction::kStart:
      ++result_.num_starts;
      result_.num_restarts += slot.was_live;
      slot.state = State::kStarting;
      slot.was_on = true;
      slot.since = now;
      slot.live_at = CheckedAdd(now, options_.start_time).value_or(kNever);
      Record(now, replica, ScaleRecord::Kind::kStart);
      if (slot.live_at > now) return true;
      slot.state = State::kLive;
      slot.was_live = true;
      Record(now, replica, ScaleRecord::Kind::kLive);
      return true;
    case ScaleAction::kStop:
      ++result_.num_stops;
      slot.state = State::kDraining;
      Record(now, replica, ScaleRecord::Kind::kStop);
      if (slot.num_requests == 0) TurnOff(replica, now);
      return true;
    case ScaleAction::kCrash:
      ++result_.num_crashes;
      result_.on_time[static_cast<size_t>(replica)] += now - slot.since;
      // The reader of this record takes its requests from it.
      slot.state = State::kOff;
      slot.num_requests = 0;
      Record(now, replica, ScaleRecord::Kind::kCrash);
      return true;
  }
  return false;
}

void Scaler::TurnOff(int32_t replica, SimTime now) {
  Slot& slot = slots_[static_cast<size_t>(replica)];
  slot.state = State::kOff;
  result_.on_time[static_cast<size_t>(replica)] += now - slot.since;
  Record(now, replica, ScaleRecord::Kind::kOff);
}

void Scaler::OnLeft(int32_t replica, SimTime now) {
  Slot& slot = slots_[static_cast<size_t>(replica)];
  if (slot.num_requests == 0) return;  // it crashed
  if (--slot.num_requests == 0 && slot.state == State::kDraining) TurnOff(replica, now);
}

// --- The rule ---

void Scaler::CheckRule(SimTime now, const Measures& measures) {
  const ScaleRule& rule = *options_.rule;
  int32_t num_live = 0, num_up = 0, num_on = 0;
  for (const Slot& slot : slots_) {
    num_live += slot.state == State::kLive;
    num_up += slot.state == State::kLive || slot.state == State::kStarting;
    num_on += slot.state != State::kOff;
  }
  const bool is_below = num_up < rule.least;
  if (now < cool_until_ && !is_below) return;
  bool wants_more = is_below, wants_less = false;
  if (!is_below && rule.measure == ScaleRule::Measure::kQueue) {
    const __int128 waiting = static_cast<__int128>(measures.num_waiting) * kMillion;
    const int64_t count = std::max(num_live, 1);
    wants_more = waiting > static_cast<__int128>(rule.high) * count;
    wants_less = waiting < static_cast<__int128>(rule.low) * count;
  } else if (!is_below && measures.num_first_tokens > 0) {
    const __int128 in_time = static_cast<__int128>(measures.num_in_time) * kMillion;
    wants_more = in_time < static_cast<__int128>(rule.low) * measures.num_first_tokens;
    wants_less = in_time > static_cast<__int128>(rule.high) * measures.num_first_tokens;
  }
  bool is_changed = false;
  if (wants_more && num_on < rule.most) {
    is_changed = ChangeOne(ScaleAction::kStart, Pick(ScaleAction::kStart), now);
  } else if (wants_less && num_up > rule.least) {
    is_changed = ChangeOne(ScaleAction::kStop, Pick(ScaleAction::kStop), now);
  }
  if (is_changed) cool_until_ = CheckedAdd(now, rule.cool_down).value_or(kNever);
}

int32_t Scaler::num_used() const {
  int32_t count = 0;
  for (size_t r = 0; r < slots_.size(); ++r) {
    if (slots_[r].was_on) count = static_cast<int32_t>(r) + 1;
  }
  return count;
}

void Scaler::Close(SimTime now) {
  for (size_t r = 0; r < slots_.size(); ++r) {
    if (slots_[r].state != State::kOff) result_.on_time[r] += now - slots_[r].since;
  }
}

}  // namespace kvblocks::sim
