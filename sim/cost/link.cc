#include "sim/cost/link.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMostBytesPerSecond = 1'000'000'000'000'000;
constexpr SimTime kLongestLatency = 3600 * kSecond;

SimTime AddOrMost(SimTime a, SimTime b) { return CheckedAdd(a, b).value_or(kMaxSimTime); }

}  // namespace

absl::StatusOr<Link> Link::Create(const LinkOptions& options) {
  if (options.bytes_per_second < 1 || options.bytes_per_second > kMostBytesPerSecond) {
    return InvalidArgument("bytes_per_second: got ", options.bytes_per_second, ", expected 1 to ",
                           kMostBytesPerSecond);
  }
  if (options.latency < 0 || options.latency > kLongestLatency) {
    return InvalidArgument("latency: got ", options.latency, " ps, expected 0 to ",
                           FormatDuration(kLongestLatency));
  }
  return Link(options);
}

// --- Progress ---

void Link::Progress::MoveTo(SimTime to, int64_t bytes_per_second) {
  const Service served = static_cast<Service>(to - time) * bytes_per_second + part;
  service += served / num_parts;
  part = served % num_parts;
  time = to;
}

void Link::Progress::SetParts(int64_t n) {
  if (part > 0) ++service;
  part = 0;
  num_parts = n;
}

SimTime Link::Progress::TimeOf(Service end, int64_t bytes_per_second) const {
  if (end <= service) return time;
  const Service missing = (end - service) * num_parts - part;
  const Service steps = (missing + bytes_per_second - 1) / bytes_per_second;
  return steps > kMaxSimTime - time ? kMaxSimTime : time + static_cast<SimTime>(steps);
}

// --- Transfers coming and going ---

SimTime Link::JoinTime(SimTime start) const { return AddOrMost(start, options_.latency); }

int64_t Link::Start(SimTime now, int64_t bytes) {
  KVBLOCKS_CHECK(bytes >= 0 && bytes <= kMaxBytes, absl::StrCat("a transfer of ", bytes, " bytes"));
  Run(now);
  const int64_t id = totals_.num_started++;
  transfers_.emplace(id, Transfer{.start = now, .join = JoinTime(now), .bytes = bytes});
  joining_.push_back(id);
  totals_.peak_under_way = std::max(totals_.peak_under_way, num_under_way());
  return id;
}

void Link::Join(int64_t id) {
  Transfer& transfer = transfers_.at(id);
  if (moving_.empty()) progress_.service = progress_.part = 0;
  if (IsShared()) progress_.SetParts(static_cast<int64_t>(moving_.size()) + 1);
  const Service from =
      IsShared() || moving_.empty() ? progress_.service : moving_.rbegin()->first;
  transfer.is_moving = true;
  transfer.end = from + static_cast<Service>(transfer.bytes) * kSecond;
  moving_.emplace(transfer.end, id);
}

// Those that have all their bytes by now.
void Link::EndReached() {
  reached_.clear();
  while (!moving_.empty() && moving_.begin()->first <= progress_.service) {
    reached_.push_back(moving_.begin()->second);
    moving_.erase(moving_.begin());
  }
  std::sort(reached_.begin(), reached_.end());
  for (const int64_t id : reached_) {
    const auto found = transfers_.find(id);
    const Transfer& transfer = found->second;
    const SimTime taken = progress_.time - transfer.start;
    const SimTime queued = std::max<SimTime>(taken - TimeAlone(transfer.bytes), 0);
    ++totals_.num_ended;
    totals_.bytes = AddOrMost(totals_.bytes, transfer.bytes);
    totals_.transfer_time = AddOrMost(totals_.transfer_time, taken);
    totals_.queue_time = AddOrMost(totals_.queue_time, queued);
    unreported_.push_back({id, progress_.time, queued});
    transfers_.erase(found);
  }
  if (IsShared()) progress_.SetParts(std::max<int64_t>(static_cast<int64_t>(moving_.size()), 1));
}

// --- Time ---

void Link::Move(SimTime to) {
  if (!moving_.empty()) totals_.busy_time += to - progress_.time;
  progress_.MoveTo(to, options_.bytes_per_second);
}

void Link::Run(SimTime now) {
  KVBLOCKS_CHECK(now >= progress_.time, absl::StrCat("a link's time goes back from ",
                                                     progress_.time, " to ", now, " ps"));
  while (!moving_.empty() || !joining_.empty()) {
    const SimTime join = joining_.empty() ? kMaxSimTime : transfers_.at(joining_.front()).join;
    const SimTime end = moving_.empty() ? kMaxSimTime
                                        : progress_.TimeOf(moving_.begin()->first,
                                                           options_.bytes_per_second);
    if (std::min(join, end) > now) break;
    // A transfer that ends makes room for one that joins at the same time.
    if (!moving_.empty() && end <= join) {
      Move(end);
      EndReached();
    } else {
      Move(join);
      Join(joining_.front());
      joining_.pop_front();
    }
  }
  Move(now);
}

void Link::Advance(SimTime now, std::vector<Ended>* ended) {
  Run(now);
  ended->insert(ended->end(), unreported_.begin(), unreported_.end());
  unreported_.clear();
}

std::optional<SimTime> Link::NextEnd() const {
  if (!unreported_.empty()) return unreported_.front().time;
  const int64_t speed = options_.bytes_per_second;
  Progress progress = progress_;
  auto num_moving = static_cast<int64_t>(moving_.size());
  std::optional<Service> first, last;
  if (num_moving > 0) {
    first = moving_.begin()->first;
    last = moving_.rbegin()->first;
  }
  for (const int64_t id : joining_) {
    const Transfer& transfer = transfers_.at(id);
    if (first && progress.TimeOf(*first, speed) <= transfer.join) break;
    progress.MoveTo(transfer.join, speed);
    if (IsShared()) progress.SetParts(++num_moving);
    const Service from = IsShared() || !last ? progress.service : *last;
    last = from + static_cast<Service>(transfer.bytes) * kSecond;
    first = first ? std::min(*first, *last) : *last;
  }
  if (!first) return std::nullopt;
  const SimTime time = progress.TimeOf(*first, speed);
  if (time == kMaxSimTime) return std::nullopt;
  return time;
}

SimTime Link::TimeAlone(int64_t bytes) const {
  const Progress alone;
  return AddOrMost(options_.latency, alone.TimeOf(static_cast<Service>(bytes) * kSecond,
                                                  options_.bytes_per_second));
}

SimTime Link::EndIfStarted(SimTime now, int64_t bytes) const {
  Link link = *this;
  const int64_t id = link.Start(now, bytes);
  std::vector<Ended> ended;
  for (std::optional<SimTime> time = now; time; time = link.NextEnd()) {
    ended.clear();
    link.Advance(*time, &ended);
    for (const Ended& end : ended) {
      if (end.id == id) return end.time;
    }
  }
  return kMaxSimTime;
}

}  // namespace kvblocks::sim
