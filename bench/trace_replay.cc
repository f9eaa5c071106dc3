// A trace's requests through the block manager alone, one after the other: look up, allocate the
// prompt, take a decode step per output block, free. No scheduler and no clock; the trace is parsed
// and its content named before the clock starts.
//
//   bazel run -c opt //bench:trace_replay                    the example workload
//   bazel run -c opt //bench:trace_replay -- TRACE --block-size=512 --num-blocks=10000

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_format.h"
#include "bench/command_line.h"
#include "bench/library_engine.h"
#include "bench/naive_engine.h"
#include "bench/thread_time.h"
#include "kvblocks/check.h"
#include "sim/commands/option_parser.h"

namespace kvblocks::bench {
namespace {

struct Workload {
  struct Item {
    int64_t num_prompt_tokens;
    int64_t num_output_tokens;
    std::vector<BlockHash> hashes;  // of the prompt's full blocks
  };
  std::vector<Item> requests;
  int64_t num_prompt_blocks = 0;
};

absl::StatusOr<Workload> Read(const std::string& path, int64_t block_size) {
  Workload workload;
  const absl::Status status =
      ForEachPrompt(path, block_size,
                    [&](const sim::TraceRequest& request, const std::vector<absl::uint128>& keys) {
                      Workload::Item item{request.input_length, request.output_length, {}};
                      for (const absl::uint128 key : keys)
                        item.hashes.push_back(BlockHash::FromUint128(key));
                      workload.num_prompt_blocks += static_cast<int64_t>(keys.size());
                      workload.requests.push_back(std::move(item));
                      return absl::OkStatus();
                    });
  if (!status.ok()) return status;
  return workload;
}

struct Outcome {
  double seconds = 0;
  int64_t num_hit_tokens = 0;
};

template <typename Engine>
Outcome Replay(Workload workload, int64_t block_size, int64_t num_blocks) {
  Engine engine({.num_blocks = num_blocks, .block_size = block_size});
  Outcome outcome;
  const double start = ThreadSeconds();
  for (Workload::Item& item : workload.requests) {
    auto sequence = engine.New(item.num_prompt_tokens, std::move(item.hashes));
    const int64_t num_hit_tokens = engine.Lookup(sequence);
    outcome.num_hit_tokens += num_hit_tokens;
    // Does not fit: larger than the pool.
    if (!engine.AllocateFirst(sequence, item.num_prompt_tokens - num_hit_tokens)) continue;
    // Nobody else has the contents of output blocks, so they are not registered here.
    const int64_t end = item.num_prompt_tokens + item.num_output_tokens - 1;
    for (int64_t at = item.num_prompt_tokens; at < end; at += block_size) {
      if (!engine.Step(sequence, at, std::min(block_size, end - at))) break;
    }
    engine.Free(sequence);
  }
  outcome.seconds = ThreadSeconds() - start;
  return outcome;
}

template <typename Engine>
Outcome BestOf(int64_t rounds, const Workload& workload, int64_t block_size, int64_t num_blocks) {
  Outcome best;
  for (int64_t round = 0; round < rounds; ++round) {
    const Outcome outcome = Replay<Engine>(workload, block_size, num_blocks);
    if (round == 0 || outcome.seconds < best.seconds) best = outcome;
  }
  return best;
}

}  // namespace

int Main(int argc, char** argv) {
  sim::OptionParser options(
      "trace_replay",
      "Replays a trace's requests through the block manager alone, one after the other, and prints "
      "requests per second.");
  std::string trace;
  int64_t block_size = 16;
  int64_t num_blocks = 10'000;
  int64_t rounds = 5;
  AddTrace(options, &trace);
  AddBlockSize(options, &block_size);
  options.Add({.name = "--num-blocks", .unit = "BLOCKS", .help = "blocks in the pool [10000]"}, 2,
              1 << 30, &num_blocks);
  options.Add({.name = "--rounds",
               .unit = "N",
               .help = "replays with kvblocks, of which the fastest counts [5]"},
              1, 10'000, &rounds);
  if (const auto status = ParseOrPrint(options, argc, argv)) return *status;

  const auto workload = Read(trace, block_size);
  if (!workload.ok()) return Fail(workload.status());
  const auto requests = static_cast<double>(workload->requests.size());
  absl::PrintF("%zu requests, %d prompt blocks of %d tokens, pool of %d blocks\n",
               workload->requests.size(), workload->num_prompt_blocks, block_size, num_blocks);
  const auto print = [&](const char* name, const Outcome& outcome) {
    absl::PrintF("%-10s %12.0f requests/s %8.1f ns per prompt block, %d tokens hit\n", name,
                 requests / outcome.seconds,
                 outcome.seconds * 1e9 / static_cast<double>(workload->num_prompt_blocks),
                 outcome.num_hit_tokens);
    std::fflush(stdout);
  };
  const Outcome library = BestOf<LibraryEngine>(rounds, *workload, block_size, num_blocks);
  print("kvblocks", library);
  const Outcome naive = BestOf<NaiveEngine>(1, *workload, block_size, num_blocks);
  print("naive", naive);
  std::printf("%.1f times as fast\n", naive.seconds / library.seconds);
  KVBLOCKS_CHECK(naive.num_hit_tokens == library.num_hit_tokens, "the two hit differently");
  return 0;
}

}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
