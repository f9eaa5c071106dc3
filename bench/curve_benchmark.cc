// How fast the hits of all pool sizes are counted, trace parsed before the clock starts.
//
//   bazel run -c opt //bench:curve                              the example workload
//   bazel run -c opt //bench:curve -- TRACE --block-size=512
//   bazel run -c opt //bench:curve -- sessions.jsonl.gz --block-size=64 --copies=662
//
// --copies repeats the trace, each copy with sessions of its own, to make a long workload from a
// short one.

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/command_line.h"
#include "bench/thread_time.h"
#include "sim/commands/option_parser.h"
#include "sim/curve/order_curve.h"
#include "sim/example/example_workload.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::bench {
namespace {

// The requests of one copy, with their keys.
struct Keyed {
  std::vector<std::vector<uint64_t>> keys;
  std::vector<sim::CurveRequest> requests;
};

void Make(const sim::TraceInfo& info, const sim::RequestBlocksOptions& options,
          std::vector<sim::TraceRequest>& requests, uint64_t copy, Keyed* out) {
  sim::RequestBlocks blocks(info, options);
  out->keys.resize(requests.size());
  out->requests.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    sim::TraceRequest& request = requests[i];
    const uint64_t session = request.session;
    request.session = session + (copy << 32);
    sim::CurveRequest made;
    if (blocks.Make(request, &made)) {
      out->keys[i].assign(made.keys.begin(), made.keys.end());
      made.keys = out->keys[i];
      out->requests.push_back(made);
    }
    request.session = session;
  }
}

}  // namespace

int Main(int argc, char** argv) {
  sim::OptionParser options(
      "curve", "Counts the hits of all pool sizes, and prints block references per second.");
  std::string trace;
  int64_t block_size = 16, copies = 1, rounds = 5;
  AddTrace(options, &trace);
  AddBlockSize(options, &block_size);
  options.Add({.name = "--copies", .unit = "N", .help = "of the trace, one behind the other [1]"},
              1, 1'000'000, &copies);
  AddRounds(options, &rounds);
  if (const auto status = ParseOrPrint(options, argc, argv)) return *status;
  auto reader = OpenTraceOrExample(trace);
  if (!reader.ok()) return Fail(reader.status());
  auto requests = sim::ReadAll(sim::FeedFrom(reader->get()));
  if (!requests.ok()) return Fail(requests.status());
  sim::TraceInfo info = (*reader)->info();
  // Copies share nothing.
  if (copies > 1) info.scope = sim::ContentScope::kSession;
  sim::RequestBlocksOptions blocks;
  blocks.block_tokens = block_size;

  double best_keys = 0, best_curve = 0;
  int64_t references = 0, hits = 0, distinct = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    double in_keys = 0, in_curve = 0;
    sim::OrderCurve curve({});
    Keyed keyed;
    for (int64_t copy = 0; copy < copies; ++copy) {
      const double start = ThreadSeconds();
      Make(info, blocks, *requests, static_cast<uint64_t>(copy), &keyed);
      const double made = ThreadSeconds();
      for (const sim::CurveRequest& request : keyed.requests) curve.Add(request);
      in_keys += made - start;
      in_curve += ThreadSeconds() - made;
    }
    const double start = ThreadSeconds();
    references = curve.sums().num_references;
    distinct = curve.sums().num_distinct;
    hits = curve.Finish().max_hits();
    in_curve += ThreadSeconds() - start;
    if (round == 0 || in_keys + in_curve < best_keys + best_curve) {
      best_keys = in_keys;
      best_curve = in_curve;
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double millions = static_cast<double>(references) / 1e6;
  absl::PrintF("%d references to %d blocks of %d tokens, %d hits at most\n", references, distinct,
               block_size, hits);
  std::printf("names of blocks %10.3f s %10.1f M references/s\n", best_keys, millions / best_keys);
  std::printf("curve           %10.3f s %10.1f M references/s\n", best_curve,
              millions / best_curve);
  absl::PrintF("together        %10.3f s %10.1f M references/s, peak memory %d MB\n",
               best_keys + best_curve, millions / (best_keys + best_curve), usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
