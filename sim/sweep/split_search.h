// Which division of replicas into prefill and decode keeps most requests within the limits (SM-103), and
// how many replicas a share of requests needs.
//
// Each division is replayed. With a share asked for, the search takes it that more replicas never keep
// fewer requests, and that of one number of replicas the divisions have one peak: it doubles and then
// halves the number, and climbs from the ratio that was best before. Same input, same replays, whatever the
// number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_SPLIT_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_SPLIT_SEARCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/split_input.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/sweep/decoded_trace.h"
#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

inline constexpr int64_t kMostSplitReplicas = 64;

struct SplitSearchOptions {
  ::kvblocks::config::v1::ReplayConfig config;  // effective, of each replica
  int64_t most_replicas = 2;
  double goodput = 0;  // share of requests; 0: divide most_replicas
};

// InvalidArgument without limits, and as a replay. What goes wrong in one replay is in its row.
absl::StatusOr<::kvblocks::sweep::v1::SplitSearchReport> FindSplit(const SplitSearchOptions& options,
                                                                   const SplitInput& split,
                                                                   int num_threads, bool quiet,
                                                                   DecodedTraces* traces);

// A screen for people.
std::string FormatSplitSearch(const ::kvblocks::sweep::v1::SplitSearchReport& report, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SPLIT_SEARCH_H_
