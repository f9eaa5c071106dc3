// replay: replays transcripts of a reference KV-cache manager and says whether this library answers
// the same, through its C interface.
//
//   replay [--engine=vllm-0.33|vllm-0.25] FILE...
//
// Without --engine as recorded by vLLM 0.33, and where that differs by 0.25.
//
// Prints "FILE: N lines, ok (vllm-0.33)", or the first line that differs with both answers. Exit
// status: 0 all files agree, 1 some differ, 2 some cannot be read.

#include <algorithm>
#include <iostream>
#include <optional>
#include <string_view>

#include "tests/conformance/replayer.h"

int main(int argc, char** argv) {
  using namespace kvblocks::conformance;
  std::optional<Recorder> recorder;
  int first = 1;
  for (; first < argc && std::string_view(argv[first]).starts_with("--"); ++first) {
    const std::string_view option = argv[first];
    if (option == "--engine=vllm-0.33") {
      recorder = Recorder::kVllm033;
    } else if (option == "--engine=vllm-0.25") {
      recorder = Recorder::kVllm025;
    } else {
      std::cerr << "unknown option " << option << "\n";
      return 2;
    }
  }
  if (argc <= first) {
    std::cerr << "usage: replay [--engine=vllm-0.33|vllm-0.25] FILE...\n";
    return 2;
  }
  int exit_status = 0;
  for (int i = first; i < argc; ++i) {
    const auto result = ReplayFile(argv[i], recorder);
    if (!result.ok()) {
      std::cerr << result.status().message() << "\n";
      exit_status = 2;
      continue;
    }
    const char* engine = result->recorder == Recorder::kVllm033 ? "vllm-0.33" : "vllm-0.25";
    if (result->differing_line > 0) {
      std::cout << argv[i] << ":" << result->differing_line << ": " << result->difference << " ("
                << engine << ")\n";
      exit_status = std::max(exit_status, 1);
    } else {
      std::cout << argv[i] << ": " << result->num_lines << " lines, ok (" << engine << ")\n";
    }
  }
  return exit_status;
}
