// OptionParser: the command line of a program: its commands, and their options and arguments, each
// bound to the variable that its value lands in.
//
//   OptionParser program("kvsim", "replays request traces");
//   OptionParser* verify = program.AddCommand("verify", "check a replay");
//   verify->Add({.name = "--rows", .unit = "N", .help = "rows per step [32]"}, 0, 100, &rows);
//   std::string text;
//   if (program.Parse(argc, argv, &text) == ParseOutcome::kParsed && verify->is_chosen()) ...
//
// Always: only Parse writes the variables, which must outlive it. Messages name the option, the
// value and what is expected instead. No option is given an empty value or the next option as its
// value, and no file is both read and written. The library behind it takes seconds to compile
// wherever it is included; that is option_parser.cc alone.

#ifndef KVBLOCKS_SIM_COMMANDS_OPTION_PARSER_H_
#define KVBLOCKS_SIM_COMMANDS_OPTION_PARSER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/commands/run_files.h"

namespace kvblocks::sim {

struct OptionText {
  // "--rows", with an alias "--tensor-parallel,--tp"; without dashes it is an argument, taken by
  // its place.
  std::string name;
  // Shown after the name; of texts with few values all of them: "a|b|c".
  std::string unit = {};
  std::string help = {};
  std::string group = {};  // heading in the help; empty: that of BeginGroup
  bool is_required = false;
  bool is_common = true;    // listed by --help; --help=all lists all
  std::string needs = {};   // options with commas between them, without which this one does nothing
  FileUse file = FileUse::kNone;  // of a value that is a path
};

// An option as completion sees it.
struct DeclaredOption {
  OptionText text;
  bool takes_value = true;
  bool is_negatable = false;
};

enum class ParseOutcome { kParsed, kHelp, kRefused };

class OptionParser {
 public:
  // Takes a value and returns what is wrong with it, "got X, expected Y"; empty: nothing.
  using Setter = std::function<std::string(const std::string& text)>;

  OptionParser(const std::string& name, const std::string& description);
  ~OptionParser();
  OptionParser(const OptionParser&) = delete;
  OptionParser& operator=(const OptionParser&) = delete;

  // Lives as long as this. Of several commands one is chosen.
  OptionParser* AddCommand(const std::string& name, const std::string& description);

  // The heading of options that are added from now on; at first "Options".
  void BeginGroup(const std::string& group);
  // Each gives what was declared, until the next one is added:
  //   options->Add({"--steps", "FILE", "one row per step"}, &steps).file = FileUse::kWritten;
  // Options with one value.
  OptionText& Add(const OptionText& option, Setter set);
  OptionText& Add(const OptionText& option, std::string* value);
  OptionText& Add(const OptionText& option, std::optional<std::string>* value);
  OptionText& Add(const OptionText& option, int64_t low, int64_t high, int64_t* value);
  OptionText& Add(const OptionText& option, double low, double high, double* value);
  // A time with its unit, "500ms".
  OptionText& AddSeconds(const OptionText& option, double low, double high, double* seconds);
  // An option with one value that may be given several times.
  OptionText& AddRepeated(const OptionText& option, std::vector<std::string>* values);
  OptionText& AddRepeated(const OptionText& option, Setter set);
  // An option with one value or more.
  OptionText& AddList(const OptionText& option, int64_t low, int64_t high,
                      std::vector<int64_t>* values);
  // Options without a value. The one with a setter can be negated, too: --spread, --no-spread.
  OptionText& AddFlag(const OptionText& option, bool* value);
  OptionText& AddFlag(const OptionText& option, std::function<void(bool)> set);

  // Calls `add` when the command is chosen, before anything else is done: hundreds of options of
  // commands that are not need not be made.
  void AddLater(std::function<void()> add);
  // Of the options so far --help lists these only.
  void ShowOnly(const std::vector<std::string>& names);

  // What --help says in place of options that only --help=all lists; without it, how many they are.
  void set_more(const std::string& more);
  // What the help ends with.
  void set_footer(const std::string& footer);

  // kHelp: `text` is the help that was asked for. kRefused: it is the message.
  ParseOutcome Parse(int argc, char** argv, std::string* text);
  // Of a command: whether the command line names it.
  bool is_chosen() const;
  std::string Help() const;
  const std::string& name() const;
  // All options of a command, those that were to be added later included.
  const std::vector<DeclaredOption>& Declared();
  std::vector<OptionParser*> commands() const;
  // Of a command: the files that the command line named.
  const std::vector<RunFile>& files() const;

 private:
  struct Impl;
  explicit OptionParser(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// "did you mean --num-blocks?" for a name that is none of `known`; empty if nothing is close.
std::string SuggestName(std::string_view unknown, const std::vector<std::string>& known);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_OPTION_PARSER_H_
