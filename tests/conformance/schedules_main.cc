// schedules: replays recorded schedules of a serving engine in the simulator and says whether it
// does the same.
//
//   schedules [--gate=ours|upstream] [--exact-steps] FILE...
//
// --gate=upstream takes the engine's admission gate, which asks for too few blocks behind a hit in
// models with windows (V-88); without --gate, a file that differs is tried with it as well, and what
// is printed says so. With --exact-steps the simulator looks at every request in every step; the
// result is the same.
//
// Prints "FILE: N steps, ok", or the first line that differs with both sides. Exit status: 0 all
// files agree, 1 some differ, 2 some cannot be read.

#include <algorithm>
#include <iostream>
#include <string_view>

#include "kvblocks/tests/conformance/schedule_replayer.h"

int main(int argc, char** argv) {
  using namespace kvblocks::conformance;
  ScheduleReplayOptions options;
  bool tries_both_gates = true;
  int first = 1;
  for (; first < argc; ++first) {
    const std::string_view argument = argv[first];
    if (argument == "--exact-steps") {
      options.exact_steps = true;
    } else if (argument == "--gate=ours" || argument == "--gate=upstream") {
      options.upstream_gate = argument == "--gate=upstream";
      tries_both_gates = false;
    } else if (argument.substr(0, 2) == "--") {
      std::cerr << "schedules: unknown option " << argument << "\n";
      return 2;
    } else {
      break;
    }
  }
  if (argc <= first) {
    std::cerr << "usage: schedules [--gate=ours|upstream] [--exact-steps] FILE...\n";
    return 2;
  }
  int exit_status = 0;
  for (int i = first; i < argc; ++i) {
    const auto result = ReplayScheduleFile(argv[i], options);
    int64_t num_upstream_steps = -1;  // if it agrees with the upstream gate only
    if (tries_both_gates && result.ok() && result->differing_line > 0) {
      const auto upstream =
          ReplayScheduleFile(argv[i], {.upstream_gate = true, .exact_steps = options.exact_steps});
      if (upstream.ok() && upstream->differing_line == 0) num_upstream_steps = upstream->num_steps;
    }
    if (num_upstream_steps >= 0) {
      std::cout << argv[i] << ": " << num_upstream_steps
                << " steps, ok with --gate=upstream only\n";
    } else if (!result.ok()) {
      std::cerr << result.status().message() << "\n";
      exit_status = 2;
    } else if (result->differing_line > 0) {
      std::cout << argv[i] << ":" << result->differing_line << ": differs" << result->difference
                << "\n";
      exit_status = std::max(exit_status, 1);
    } else {
      std::cout << argv[i] << ": " << result->num_steps << " steps, ok\n";
    }
  }
  return exit_status;
}
