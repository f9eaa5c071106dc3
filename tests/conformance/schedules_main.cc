// schedules: replays recorded schedules of a serving engine in the simulator and says whether it
// does the same.
//
//   schedules [--exact-steps] FILE...
//
// With --exact-steps the simulator looks at every request in every step; the
// result is the same.
//
// Prints "FILE: N steps, ok", or the first line that differs with both sides. Exit status: 0 all
// files agree, 1 some differ, 2 some cannot be read.

#include <algorithm>
#include <iostream>
#include <string_view>

#include "tests/conformance/schedule_replayer.h"

int main(int argc, char** argv) {
  using namespace kvblocks::conformance;
  ScheduleReplayOptions options;
  int first = 1;
  for (; first < argc; ++first) {
    const std::string_view argument = argv[first];
    if (argument == "--exact-steps") {
      options.exact_steps = true;
    } else if (argument.substr(0, 2) == "--") {
      std::cerr << "schedules: unknown option " << argument << "\n";
      return 2;
    } else {
      break;
    }
  }
  if (argc <= first) {
    std::cerr << "usage: schedules [--exact-steps] FILE...\n";
    return 2;
  }
  int exit_status = 0;
  for (int i = first; i < argc; ++i) {
    const auto result = ReplayScheduleFile(argv[i], options);
    if (!result.ok()) {
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
