// How a sweep scales with threads, trace decoded before the clock starts.
//
//   bazel run -c opt //bench:sweep                              the example workload
//   bazel run -c opt //bench:sweep -- TRACE --threads=8 --points=32
//
// Points differ in the number of blocks, as a planner's do. Speed-up is the time of one thread
// divided by that of several; a machine that does other work shows less.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/command_line.h"
#include "sim/commands/option_parser.h"
#include "sim/sweep/point_runner.h"

namespace kvblocks::bench {
int Main(int argc, char** argv) {
  sim::OptionParser options("sweep", "Replays the points of a sweep on one thread and on several.");
  std::string trace;
  int64_t num_threads = 2, num_points = 8, limit = 0, rounds = 3;
  AddTrace(options, &trace);
  options.Add({.name = "--threads", .unit = "N", .help = "most threads [2]"}, 1, 1024,
              &num_threads);
  options.Add({.name = "--points", .unit = "N", .help = "of the sweep [8]"}, 1, 100'000,
              &num_points);
  options.Add({.name = "--limit", .unit = "REQUESTS", .help = "of the trace; 0: all [0]"}, 0,
              1'000'000'000, &limit);
  AddRounds(options, &rounds);
  if (const auto status = ParseOrPrint(options, argc, argv)) return *status;
  sweep::v1::SweepSpec spec;
  spec.mutable_config()->set_trace(trace);
  spec.mutable_config()->set_limit(limit);
  auto axis =
      sim::ParseAxis(absl::StrCat("num-blocks=1000:", 1000 + 500 * (num_points - 1), ":+500"));
  if (!axis.ok()) return Fail(axis.status());
  *spec.add_grid() = *axis;
  sim::ContentHashes hashes;
  const auto points = sim::ExpandSweep(spec, &hashes);
  if (!points.ok()) return Fail(points.status());
  sim::DecodedTraces traces;
  if (const auto decoded = traces.Get(points->front().config); !decoded.ok()) {
    return Fail(decoded.status());
  }
  double one_thread = 0;
  for (int64_t threads = 1; threads <= num_threads; threads *= 2) {
    double best = 1e300;
    for (int64_t round = 0; round < rounds; ++round) {
      auto log = sim::ResultLog::Open("", false);
      sim::PointRunner runner(&traces, log->get(), static_cast<int>(threads), nullptr);
      const auto start = std::chrono::steady_clock::now();
      const auto results = runner.Run(*points);
      if (!results.ok()) return Fail(results.status());
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    if (threads == 1) one_thread = best;
    absl::PrintF("%3d threads: %8.3f s for %zu points, %6.1f points/s, speed-up %.2f\n", threads,
                 best, points->size(), static_cast<double>(points->size()) / best,
                 one_thread / best);
  }
  return 0;
}

}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
