#include "kvblocks/sim/fleet/scaling_report.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/latency_metrics.h"

namespace kvblocks::sim {
namespace {

constexpr int kMostLines = 12;

}  // namespace

void FillScaling(const FleetOptions& options, const FleetResult& result,
                 ::kvblocks::fleet::v1::Scaling* out) {
  const ScalingResult& scaling = result.scaling;
  __int128 on_time = 0;
  for (const SimTime time : scaling.on_time) on_time += time;
  out->set_replica_s(Ratio(on_time, kSecond));
  out->set_mean_on(Ratio(on_time, result.end_time));
  out->set_most_live(scaling.most_live);
  out->set_starts(scaling.num_starts);
  out->set_restarts(scaling.num_restarts);
  out->set_stops(scaling.num_stops);
  out->set_crashes(scaling.num_crashes);
  out->set_refused(scaling.num_refused);
  out->set_requests_lost(scaling.num_lost);
  out->set_requests_retried(scaling.num_retried);
  out->set_requests_failed(scaling.num_failed);
  out->set_lost_tokens(scaling.num_lost_tokens);
  out->set_requests_held(scaling.num_held);
  auto num_live = options.num_live > 0 ? options.num_live : static_cast<int32_t>(result.replicas.size());
  std::vector<bool> is_live(result.replicas.size());
  for (int32_t r = 0; r < num_live; ++r) is_live[static_cast<size_t>(r)] = true;
  for (const ScaleRecord& record : scaling.timeline) {
    const auto r = static_cast<size_t>(record.replica);
    const bool was_live = is_live[r];
    if (record.kind == ScaleRecord::Kind::kLive) is_live[r] = true;
    if (record.kind == ScaleRecord::Kind::kStop || record.kind == ScaleRecord::Kind::kCrash) {
      is_live[r] = false;
    }
    num_live += is_live[r] - was_live;
    auto* event = out->add_timeline();
    event->set_time_s(Seconds(record.time));
    event->set_replica(record.replica);
    event->set_kind(std::string(KindName(record.kind)));
    event->set_live(num_live);
  }
}

void AddScaling(const ::kvblocks::fleet::v1::Scaling& scaling,
                std::vector<std::pair<std::string, std::string>>* figures) {
  std::string text = absl::StrFormat("%s replica-seconds, %.4g replicas on average, %d live at most; ",
                                     WithThousands(static_cast<int64_t>(scaling.replica_s() + 0.5)),
                                     scaling.mean_on(), scaling.most_live());
  absl::StrAppend(&text, Plural(scaling.starts(), "start"), " (", scaling.restarts(), " again), ",
                  Plural(scaling.stops(), "stop"), ", ", scaling.crashes(),
                  scaling.crashes() == 1 ? " crash" : " crashes");
  if (scaling.refused() > 0) {
    absl::StrAppend(&text, "; ", Plural(scaling.refused(), "change"),
                    " found no replica in the right state");
  }
  figures->emplace_back("scaling", text);
  if (scaling.requests_lost() > 0) {
    figures->emplace_back("lost", absl::StrCat(Plural(scaling.requests_lost(), "request"), " by crashes: ",
                                   WithThousands(scaling.requests_retried()), " sent again, ",
                                   WithThousands(scaling.requests_failed()), " failed; ",
                                   WithThousands(scaling.lost_tokens()), " tokens computed in vain"));
  }
  if (scaling.requests_held() > 0) {
    figures->emplace_back("held", absl::StrCat(Plural(scaling.requests_held(), "request"),
                                   " found no live replica and waited for one"));
  }
}

void AddTimeline(const ::kvblocks::fleet::v1::Scaling& scaling, TextPage& page) {
  const int lines = std::min(scaling.timeline_size(), kMostLines);
  for (int i = 0; i < lines; ++i) {
    const auto& event = scaling.timeline(i);
    page.Line(i == 0 ? "timeline" : "",
              absl::StrFormat("%10.6g s  replica %d %-5s  %d live", event.time_s(), event.replica(),
                              event.kind(), event.live()));
  }
  if (lines < scaling.timeline_size()) {
    page.Line("", absl::StrCat("and ", scaling.timeline_size() - lines, " more, see --json"));
  }
}

}  // namespace kvblocks::sim
