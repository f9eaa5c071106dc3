// kvsim: replays request traces through the scheduler and the KV-cache block pool of an LLM server.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/version.h"
#include "sim/commands/commands.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/output.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kFooter = R"(Start here
  kvsim replay                      replay the workload that comes with kvsim
  kvsim replay trace.jsonl.gz       hit rate, pool use and latency of your own
  kvsim curve trace.jsonl.gz        the hit rate of every pool size; how much cache is enough
  kvsim plan --model=NAME           what its layers store and how many requests a device holds
  kvsim sweep trace.jsonl.gz        many combinations of options, on all cores
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99    the highest rate within limits; how many GPUs
  kvsim capacity trace.jsonl.gz --smallest num-blocks=500:50000 --where "hit-rate>=0.6"
  kvsim explain trace.jsonl.gz      why prompts missed the cache; --request=ID for one of them
  kvsim verify trace.jsonl.gz       the same with real tensors: every wrong number is a bug
  kvsim compare a.json b.json       what differs between two runs, and from which step on
  kvsim serve --replicas=4          a server that behaves like vLLM, for routers and gateways
  kvsim events tcp://HOST:5557      the KV events of a running engine, checked and recorded
  kvsim validate trace.jsonl.gz     everything that is wrong with it, in one run
  kvsim gen --rate=10 -o work.kvt   make a workload; --like=TRACE: one that is like a trace
  kvsim stats trace.jsonl.gz        what the trace holds; the most a cache can reach
  kvsim COMMAND --help              its options, with units and defaults; --help=all: all of them
  source <(kvsim completion bash)   commands, options and values by the Tab key

Exit status of all commands: 0 done, 1 a limit was missed, 2 bad input or options, 3 no progress,
4 internal check failed, 130 interrupted (SIGINT), 143 terminated (SIGTERM).)";

// Ends the process by the signal, as its sender expects, and leaves no partial file.
// Calls only what a signal handler may call.
void EndBySignal(int signal) {
  RemoveUnfinishedFiles();
  const char* message = signal == SIGINT    ? "\nkvsim: interrupted, no output file is finished\n"
                        : signal == SIGTERM ? "\nkvsim: terminated, no output file is finished\n"
                                            : "\nkvsim: hung up, no output file is finished\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, message, std::strlen(message));
  written = write(STDERR_FILENO, InterruptNote(), std::strlen(InterruptNote()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void HandleSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // nohup and a shell's background jobs ignore some; that stays.
    if (std::signal(signal, EndBySignal) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

void EndWithoutMemory() {
  RemoveUnfinishedFiles();
  constexpr std::string_view kMessage =
      "kvsim: out of memory for the input, what is counted over it, or a pool\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(kBadInput);
}

struct RemovedCommand {
  std::string_view name;
  const char* instead;
};
constexpr RemovedCommand kRemovedCommands[] = {
    {"tune",
     "kvsim capacity --largest OPTION=FIRST:LAST --where CONDITION for one option, or kvsim sweep "
     "--grid OPTION=VALUES --pareto=METRIC --where CONDITION for several"},
    {"break-even",
     "kvsim capacity --smallest \"tier=NAME:SIZE:read={0.1:100}GB/s\" --baseline tier= --where "
     "\"ttft-mean<=baseline\""},
};

int Main(int argc, char** argv) {
  HandleSignals();
  for (const RemovedCommand& removed : kRemovedCommands) {
    if (argc < 2 || argv[1] != removed.name) continue;
    std::fprintf(stderr, "kvsim: got the command %s, which there is no longer; use %s\n", argv[1],
                 removed.instead);
    return kBadInput;
  }
  std::set_new_handler(EndWithoutMemory);
  OptionParser program(
      "kvsim", "kvsim replays request traces through an LLM server's scheduler and KV-cache pool.");
  program.set_footer(kFooter);
  bool show_version = false;
  program.AddFlag({.name = "--version", .help = "print the version"}, &show_version);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(AddReplayCommand(&program));
  commands.push_back(AddCurveCommand(&program));
  commands.push_back(AddPlanCommand(&program));
  commands.push_back(AddSweepCommand(&program));
  commands.push_back(AddCapacityCommand(&program));
  commands.push_back(AddExplainCommand(&program));
  commands.push_back(AddGenCommand(&program));
  commands.push_back(AddStatsCommand(&program));
  commands.push_back(AddConvertCommand(&program));
  commands.push_back(AddValidateCommand(&program));
  commands.push_back(AddVerifyCommand(&program));
  commands.push_back(AddCompareCommand(&program));
  commands.push_back(AddCalibrateCommand(&program));
  commands.push_back(AddEventsCommand(&program));
  commands.push_back(AddServeCommand(&program));
  commands.push_back(AddPointCommand(&program));
  commands.push_back(AddCompletionCommand(&program));
  std::string text;
  switch (program.Parse(argc, argv, &text)) {
    case ParseOutcome::kHelp:
      return WriteStdout(text) ? kDone : kBadInput;
    case ParseOutcome::kRefused:
      std::fputs(text.c_str(), stderr);
      return kBadInput;
    case ParseOutcome::kParsed:
      break;
  }
  if (show_version) return WriteStdout("kvsim " KVBLOCKS_VERSION "\n") ? kDone : kBadInput;
  for (const std::unique_ptr<Command>& command : commands) {
    if (command->options().is_chosen()) return command->Run();
  }
  return WriteStdout(program.Help()) ? kDone : kBadInput;
}

}  // namespace
}  // namespace kvblocks::sim

int main(int argc, char** argv) { return kvblocks::sim::Main(argc, argv); }
