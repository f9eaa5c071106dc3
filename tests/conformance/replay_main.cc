// replay: replays transcripts of a reference KV-cache manager and says whether this library answers
// the same.
//
//   replay [--c] FILE...
//
// With --c through the C interface.
//
// Prints "FILE: N lines, ok", or the first line that differs with both answers. Exit status: 0 all
// files agree, 1 some differ, 2 some cannot be read.

#include <algorithm>
#include <iostream>
#include <string_view>

#include "kvblocks/tests/conformance/replayer.h"

int main(int argc, char** argv) {
  using namespace kvblocks::conformance;
  const bool in_c = argc > 1 && std::string_view(argv[1]) == "--c";
  const int first = in_c ? 2 : 1;
  if (argc <= first) {
    std::cerr << "usage: replay [--c] FILE...\n";
    return 2;
  }
  int exit_status = 0;
  for (int i = first; i < argc; ++i) {
    const auto result = ReplayFile(argv[i], in_c ? MakeCInterfaceCache : MakeLibraryCache);
    if (!result.ok()) {
      std::cerr << result.status().message() << "\n";
      exit_status = 2;
    } else if (result->differing_line > 0) {
      std::cout << argv[i] << ":" << result->differing_line << ": " << result->difference << "\n";
      exit_status = std::max(exit_status, 1);
    } else {
      std::cout << argv[i] << ": " << result->num_lines << " lines, ok\n";
    }
  }
  return exit_status;
}
