// kvsim: replays request traces through the scheduler and the KV-cache block pool of an LLM server.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kFooter = R"(Start here
  kvsim replay                      replay the workload that comes with kvsim
  kvsim replay trace.jsonl.gz       hit rate, pool use and latency of your own
  kvsim plan --model=NAME           what its layers store and how many requests a device holds
  kvsim explain trace.jsonl.gz      why prompts missed the cache; --request=ID for one of them
  kvsim verify trace.jsonl.gz       the same with real tensors: every wrong number is a bug
  kvsim compare a.json b.json       what differs between two runs, and from which step on
  kvsim validate trace.jsonl.gz     everything that is wrong with it, in one run
  kvsim stats trace.jsonl.gz        what the trace holds; the most a cache can reach
  kvsim COMMAND --help              all options, with units and defaults)";

// The flags that `app` knows.
std::vector<std::string> KnownFlags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back(absl::StrCat("--", name));
  }
  return flags;
}

// The first argument that looks like a flag nobody knows.
std::string UnknownFlag(int argc, char** argv, const std::vector<std::string>& known) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (std::find(known.begin(), known.end(), name) == known.end()) return name;
  }
  return "";
}

ExitStatus ParseFailed(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string name = "kvsim";
  if (!chosen.empty()) absl::StrAppend(&name, " ", command.get_name());
  std::string message = error.what();
  const std::vector<std::string> known = KnownFlags(command);
  const std::string unknown = UnknownFlag(argc, argv, known);
  if (!unknown.empty()) {
    message = absl::StrCat("unknown option ", unknown);
    const std::string suggestion = SuggestFlag(unknown, known);
    if (!suggestion.empty()) absl::StrAppend(&message, "; ", suggestion);
  }
  std::fprintf(stderr, "%s: %s\n(%s --help lists all options)\n", name.c_str(), message.c_str(),
               name.c_str());
  return kBadInput;
}

// Writes a flag and its negation as one name: --[no-]spread.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const size_t negative = name.find(",--no-");
    return negative == std::string::npos ? name : "--[no-]" + name.substr(2, negative - 2);
  }
};

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("kvsim replays request traces through an LLM server's scheduler and KV-cache pool.");
  app.name("kvsim");
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  const auto formatter = std::make_shared<Formatter>();
  formatter->column_width(36);
  app.formatter(formatter);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(AddReplayCommand(&app));
  commands.push_back(AddPlanCommand(&app));
  commands.push_back(AddExplainCommand(&app));
  commands.push_back(AddStatsCommand(&app));
  commands.push_back(AddConvertCommand(&app));
  commands.push_back(AddValidateCommand(&app));
  commands.push_back(AddVerifyCommand(&app));
  commands.push_back(AddCompareCommand(&app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return WriteStdout(chosen.empty() ? app.help() : chosen.front()->help("kvsim")) ? kDone
                                                                                    : kBadInput;
  } catch (const CLI::ParseError& error) {
    return ParseFailed(error, app, argc, argv);
  }
  for (const std::unique_ptr<Command>& command : commands) {
    if (command->app()->parsed()) return command->Run();
  }
  return WriteStdout(app.help()) ? kDone : kBadInput;
}

}  // namespace
}  // namespace kvblocks::sim

int main(int argc, char** argv) { return kvblocks::sim::Main(argc, argv); }
