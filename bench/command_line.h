// What the benchmarks with options of their own and on traces share.

#ifndef KVBLOCKS_BENCH_COMMAND_LINE_H_
#define KVBLOCKS_BENCH_COMMAND_LINE_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/commands/option_parser.h"
#include "sim/example/example_workload.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/trace_reader.h"

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

// The options that benchmarks on traces have in common; defaults are what the variables have.
inline void AddTrace(sim::OptionParser& options, std::string* trace) {
  options.Add({.name = "TRACE", .help = "trace file in any format kvsim reads; else the example"},
              trace);
}
inline void AddBlockSize(sim::OptionParser& options, int64_t* block_size) {
  options.Add({.name = "--block-size",
               .unit = "TOKENS",
               .help = absl::StrCat("tokens per block [", *block_size, "]")},
              1, 1 << 20, block_size);
}
inline void AddRounds(sim::OptionParser& options, int64_t* rounds) {
  options.Add({.name = "--rounds",
               .unit = "N",
               .help = absl::StrCat("of which the fastest counts [", *rounds, "]")},
              1, 10'000, rounds);
}

// The status to end with.
inline int Fail(const absl::Status& status) {
  absl::FPrintF(stderr, "%s\n", status.message());
  return 2;
}

// A trace, or with an empty path the workload that comes with the project.
inline auto OpenTraceOrExample(const std::string& path) {
  return path.empty() ? sim::OpenTraceString(sim::MakeExampleWorkload(), "the example workload", {})
                      : sim::OpenTrace(path, {});
}

// The prompts of a trace, or of the workload that comes with the project, as keys of full blocks.
// Calls take(request, keys) for each request in the order of arrival, until it returns an error. An
// empty path is the example workload.
template <typename Take>
absl::Status ForEachPrompt(const std::string& path, int64_t block_size, Take&& take) {
  auto reader = OpenTraceOrExample(path);
  if (!reader.ok()) return reader.status();
  sim::TraceRequest request;
  while (true) {
    const auto more = (*reader)->Next(request);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    std::vector<absl::uint128> keys;
    sim::ContentKeys((*reader)->info(), request, block_size)
        .AppendBlocks(request, request.input_length, &keys);
    if (absl::Status status = take(request, keys); !status.ok()) return status;
  }
}

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_COMMAND_LINE_H_
