// What the benchmarks with options of their own share.

#ifndef KVBLOCKS_BENCH_COMMAND_LINE_H_
#define KVBLOCKS_BENCH_COMMAND_LINE_H_

#include <cstdio>
#include <optional>
#include <string>

#include "kvblocks/sim/commands/option_parser.h"

namespace kvblocks::bench {

// Prints the help that was asked for, or what is wrong. The status to end with; none: go on.
inline std::optional<int> ParseOrPrint(sim::OptionParser& options, int argc, char** argv) {
  std::string text;
  const sim::ParseOutcome parsed = options.Parse(argc, argv, &text);
  if (parsed == sim::ParseOutcome::kParsed) return std::nullopt;
  const bool is_help = parsed == sim::ParseOutcome::kHelp;
  std::fputs(text.c_str(), is_help ? stdout : stderr);
  return is_help ? 0 : 2;
}

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_COMMAND_LINE_H_
