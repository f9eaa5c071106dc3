// How much a configuration serves within its objectives: the highest rate of one replica, how many
// replicas a rate needs, and what of several devices costs least.
//
// A rate is the trace's own, arrivals divided by a speed-up, so lengths, contents and sessions
// stay. Where requests wait for others, think times stay as well, and the rate is the one at which
// requests arrived in the replay.
// A rate is met if every objective's percentile of all requests is within its limit; a request that
// is rejected or aborted is within none. A probe of several replicas is a replay of all of them
// behind a router: that of the options, or else least-tokens, and for data-parallel ranks their own
// balancer. Where prefill and decode have replicas of their own, those asked for are one unit, of
// which several serve a rate.
//
// The search takes meeting as monotone: from a rate that is met and one that is not it closes in on
// the highest that is, to a tolerance; then it tries two rates above, which would show that it is
// not. Same input, same probes, whatever the number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_CAPACITY_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_CAPACITY_SEARCH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/sweep/point_runner.h"
#include "sim/sweep/sweep.pb.h"
#include "sim/sweep/sweep_metrics.h"

namespace kvblocks::sim {

struct CapacityOptions {
  ::kvblocks::config::v1::ReplayConfig asked;  // what is set, the objectives among it
  PricedDevices devices;                       // none: that of `asked`
  std::map<std::string, double> tier_prices = {};  // of a GiB for an hour, beside those of devices
  std::vector<int64_t> tensor_parallels;       // none: that of `asked`
  double goodput = 0;      // share of requests within all limits; 0: percentiles alone
  double target_rate = 0;  // requests/s; 0: none
  double tolerance = 0.02;
};

absl::StatusOr<::kvblocks::sweep::v1::CapacityReport> FindCapacity(const CapacityOptions& options,
                                                                   PointRunner* runner,
                                                                   DecodedTraces* traces,
                                                                   ContentHashes* hashes);

// What a planner must know beside the rates that were found. Of the trace: the time from the first
// to the last arrival, and the arrivals of requests that wait for none.
void AddCapacityNotes(double arrival_seconds, int64_t num_arrivals, int64_t num_arrival_times,
                      ::kvblocks::sweep::v1::CapacityReport* report);

// A screen for people.
std::string FormatCapacity(const ::kvblocks::sweep::v1::CapacityReport& report, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_CAPACITY_SEARCH_H_
