#include "kvblocks/sim/report/steady_window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMillion = 1'000'000;

bool IsNone(const Warmup& part) {
  switch (part.kind) {
    case Warmup::Kind::kShare:
      return part.share_ppm == 0;
    case Warmup::Kind::kRequests:
      return part.requests == 0;
    case Warmup::Kind::kTime:
      return part.time == 0;
  }
  return true;
}

// Of `total` requests.
int64_t NumRequests(const Warmup& part, int64_t total) {
  if (part.kind == Warmup::Kind::kRequests) return std::min(part.requests, total);
  return static_cast<int64_t>(static_cast<__int128>(total) * part.share_ppm / kMillion);
}

}  // namespace

std::string DescribeWindow(const Warmup& warmup, const Warmup& cooldown) {
  const std::string start = DescribeWarmup(warmup);
  if (IsNone(cooldown)) return start;
  switch (cooldown.kind) {
    case Warmup::Kind::kShare:
      return absl::StrCat(start, " and the last ", static_cast<double>(cooldown.share_ppm) / 1e4,
                          " %");
    case Warmup::Kind::kRequests:
      return absl::StrCat(start, " and the last ", cooldown.requests, " requests");
    case Warmup::Kind::kTime:
      return absl::StrCat(start, " and the last ", FormatDuration(cooldown.time));
  }
  return start;
}

void SteadyWindow::Log::Add(const ThroughputSums& sums) {
  if (num_added++ % stride != 0) return;
  if (entries.size() == max_entries) {
    for (size_t i = 0; 2 * i < entries.size(); ++i) entries[i] = entries[2 * i];
    entries.resize((entries.size() + 1) / 2);
    stride *= 2;
    if ((num_added - 1) % stride != 0) return;
  }
  entries.push_back(sums);
}

std::optional<SteadyWindow::Edges> SteadyWindow::Find(const Warmup& warmup, const Warmup& cooldown,
                                                      const ThroughputSums& from,
                                                      const ThroughputSums& to) const {
  Edges edges = {from, to};
  const auto& admissions = admissions_.entries;
  const auto at_admission = [&](int64_t index) {
    return std::find_if(admissions.begin(), admissions.end(),
                        [&](const ThroughputSums& entry) { return entry.admissions >= index; });
  };
  if (!IsNone(warmup)) {
    const auto entry =
        warmup.kind == Warmup::Kind::kTime
            ? std::find_if(admissions.begin(), admissions.end(),
                           [&](const ThroughputSums& e) { return e.time >= warmup.time; })
            : at_admission(NumRequests(warmup, to.admissions));
    if (entry == admissions.end()) return std::nullopt;
    edges.from = *entry;
  }
  if (!IsNone(cooldown) && cooldown.kind == Warmup::Kind::kTime) {
    const auto& finishes = finishes_.entries;
    const auto after = std::find_if(finishes.begin(), finishes.end(), [&](const ThroughputSums& e) {
      return e.time > to.time - cooldown.time;
    });
    if (after == finishes.begin()) return std::nullopt;
    edges.to = *(after - 1);
  } else if (const int64_t left_out = NumRequests(cooldown, to.admissions);
             !IsNone(cooldown) && left_out > 0) {
    const auto entry = at_admission(to.admissions - left_out);
    if (entry != admissions.end()) edges.to = *entry;
  }
  if (edges.to.time <= edges.from.time) return std::nullopt;
  return edges;
}

}  // namespace kvblocks::sim
