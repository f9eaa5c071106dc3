#include "kvblocks/sim/sweep/capacity_notes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"

namespace kvblocks::sim {

void AddCapacityNotes(const CapacityNoteFacts& facts,
                      ::kvblocks::sweep::v1::CapacityReport* report) {
  double fastest = report->target_rate();
  std::string met_if_spread;
  for (const auto& candidate : report->candidates()) {
    fastest = std::max(fastest, candidate.highest_rate());
    const std::string name = absl::StrCat(candidate.tensor_parallel(), " x ", candidate.device());
    if (!candidate.is_monotone()) {
      report->add_notes(absl::StrCat(
          name, ": a rate above the highest one shown meets the limits again; look at the curve with "
                "kvsim sweep --grid speedup=..."));
    }
    if (candidate.met_if_spread()) {
      absl::StrAppendFormat(&met_if_spread, "%s%s at %.4g requests/s",
                            met_if_spread.empty() ? "" : ", ", name, candidate.failing_rate());
    }
  }
  if (!met_if_spread.empty()) {
    report->add_notes(absl::StrCat(
        Plural(facts.num_arrivals, "request"), " arrive at ",
        Plural(facts.num_arrival_times, "time"),
        ", so that they march in step, perhaps only because of how they were recorded. Spread over "
        "the time up to the next ones (--spread) they are served within the limits where they miss "
        "them here: ",
        met_if_spread));
  }
  constexpr double kShort = 120;
  const double seconds = fastest > 0
                             ? facts.arrival_seconds * report->trace_rate() / fastest
                             : facts.arrival_seconds;
  if (seconds < kShort) {
    report->add_notes(
        absl::StrCat("at the highest rate here the trace arrives within ", Span(seconds),
                     ": a burst that ends before queues are as long as they would get; a longer "
                     "trace gives a lower rate"));
  }
  if (report->target_rate() > 0 && report->router().empty()) {
    report->add_notes(
        "replicas are independent and get conversations round robin; a router that looks at caches "
        "or load may need fewer (--router)");
  }
  report->add_notes(absl::StrFormat(
      "rates are searched to %.1f %%; the two next higher ones that were tried miss, unless a note "
      "says otherwise",
      100 * report->tolerance()));
}

}  // namespace kvblocks::sim
