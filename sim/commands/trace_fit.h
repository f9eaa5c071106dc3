// TraceFit: how a trace reuses prefixes, as a workload that can be made anew (workload.proto, Fit),
// and how near to it what is made comes.
//
// Kept of the trace, for each of at most 16 parts in the order of arrival: the number of requests;
// histograms of gaps, new tokens and outputs in eighths of an octave; the rank correlation of the
// last two; and how often a request found how many blocks, used how long ago. No content id, no
// request's place in its part, no session, no name.
//
// Memory: about 100 bytes per distinct block and per request.

#ifndef KVBLOCKS_SIM_COMMANDS_TRACE_FIT_H_
#define KVBLOCKS_SIM_COMMANDS_TRACE_FIT_H_

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/curve/order_curve.h"
#include "sim/gen/workload.pb.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

// Reads the trace to its end. Requests that never run are left out. Blocks are those of the trace,
// or of 16 tokens where it has none.
absl::StatusOr<workload::v1::Workload> FitTrace(TraceReader& reader);

// Hit rates of two traces in pools of one size, in order mode, in blocks of 16 tokens.
struct CurvePair {
  int64_t num_blocks;
  double first;
  double second;

  double off() const { return std::abs(second - first); }
};
struct CurveDifference {
  std::vector<CurvePair> sizes;  // powers of 2, up to where neither curve rises any more
  CurvePair greatest;            // of all sizes; of equal ones the smallest
};
// `first` is the order-mode run of the first trace, with the options that RunOrder has by default.
absl::StatusOr<CurveDifference> CompareCurves(const OrderRun& first, TraceReader& second);
std::string FormatCurveDifference(const CurveDifference& difference);

// A fit with a larger error cannot replace its trace. Then: how many requests are few.
inline constexpr double kGoodFit = 0.02;
inline constexpr int64_t kFewRequests = 2'000;
// What a user should know of a fit that is off by so much; empty: nothing.
std::string NoteOfPoorFit(const CurvePair& greatest, int64_t num_requests);

// Gives the workload the seed, of the first 8 or for small traces up to 256, with which its curve
// comes next to that of the trace, and says where it is farthest then. Makes the workload once for
// each; `wrap` may put a reader before it.
absl::StatusOr<CurvePair> ChooseSeed(
    const OrderRun& trace, workload::v1::Workload* workload,
    const std::function<std::unique_ptr<TraceReader>(std::unique_ptr<TraceReader>)>& wrap);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_TRACE_FIT_H_
