// kvsim completion: what a shell needs to complete command lines of kvsim. The shell's function
// asks the program for the words that fit, so that they are those of its options, whatever version
// it is.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sim/commands/commands.h"
#include "sim/commands/output.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kBash = R"bash(_kvsim() {
  local word typed=
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do typed+=$word$'\n'; done
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion words --typed="$typed" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
  return 0
}
complete -o default -F _kvsim kvsim
)bash";

constexpr const char* kZsh = R"zsh(#compdef kvsim
_kvsim() {
  local -a found
  found=(${(f)"$(${words[1]} completion words --typed=${(pj:\n:)words[2,CURRENT]}$'\n' 2>/dev/null)"})
  if (( ${#found} == 0 )); then _files; return; fi
  compadd -S '' -- ${(M)found:#*=}
  compadd -- ${found:#*=}
}
compdef _kvsim kvsim
)zsh";

constexpr const char* kCompletionFooter = R"(Examples
  source <(kvsim completion bash)                      in this shell; in ~/.bashrc: in all
  kvsim completion zsh > ~/.zfunc/_kvsim               a folder of $fpath

Exit status: 0 done, 2 bad options.)";

// Shells may take "--plan=ex" as three words.
std::vector<std::string> JoinedAtEquals(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "=" || joined.empty()) {
      joined.push_back(words[i]);
      continue;
    }
    absl::StrAppend(&joined.back(), "=", i + 1 < words.size() ? words[i + 1] : "");
    ++i;
  }
  return joined;
}

std::vector<std::string> NamesOf(const DeclaredOption& option) {
  std::vector<std::string> names = absl::StrSplit(option.text.name, ',');
  if (option.is_negatable) names.push_back(absl::StrCat("--no-", names.front().substr(2)));
  return names;
}

// The few values of an option; none: it has others.
std::vector<std::string> ValuesOf(const std::vector<DeclaredOption>& options,
                                  std::string_view name) {
  for (const DeclaredOption& option : options) {
    const auto names = NamesOf(option);
    if (!option.takes_value || std::ranges::count(names, name) == 0) continue;
    std::vector<std::string> values = absl::StrSplit(option.text.unit, '|');
    return values.size() > 1 ? values : std::vector<std::string>();
  }
  return {};
}

class CompletionCommand final : public Command {
 public:
  explicit CompletionCommand(OptionParser* program)
      : Command(
            program->AddCommand("completion", "Print what completes command lines in a shell")),
        program_(program) {
    options_->Add(
        {.name = "SHELL", .unit = "bash|zsh|words", .help = "bash or zsh", .is_required = true},
        &shell_);
    options_->Add({"--typed", "LINES",
                   "of words: the words after kvsim, the one to complete last, a line each"},
                  &typed_);
    options_->set_footer(kCompletionFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override {
    if (shell_ == "words") return WriteStdout(Words()) ? kDone : kBadInput;
    return WriteStdout(shell_ == "bash" ? kBash : kZsh) ? kDone : kBadInput;
  }

 private:
  // Those that fit, a line each.
  std::string Words() const {
    const std::vector<std::string> typed =
        absl::StrSplit(std::string(absl::StripSuffix(typed_, "\n")), '\n');
    const std::vector<std::string> words = JoinedAtEquals(typed);
    const bool is_split = words.size() < typed.size();
    const std::string& last = words.back();
    std::vector<std::string> candidates;
    if (words.size() == 1) {
      for (const OptionParser* command : program_->commands())
        candidates.push_back(command->name());
      for (const char* flag : {"--help", "--version"}) candidates.push_back(flag);
    }
    for (OptionParser* command : program_->commands()) {
      if (words.size() > 1 && command->name() == words.front())
        candidates = OfCommand(command, words);
    }
    std::string text;
    for (const std::string& candidate : candidates) {
      if (!absl::StartsWith(candidate, last)) continue;
      // The shell's own word begins behind the sign.
      absl::StrAppend(&text, is_split ? candidate.substr(candidate.find('=') + 1) : candidate,
                      "\n");
    }
    return text;
  }

  static std::vector<std::string> OfCommand(OptionParser* command,
                                            const std::vector<std::string>& words) {
    const std::vector<DeclaredOption>& options = command->Declared();
    const std::string& last = words.back();
    if (const size_t equals = last.find('='); equals != std::string::npos) {
      std::vector<std::string> values = ValuesOf(options, last.substr(0, equals));
      for (std::string& value : values) value = absl::StrCat(last.substr(0, equals + 1), value);
      return values;
    }
    if (last.substr(0, 1) != "-") return ValuesOf(options, words[words.size() - 2]);
    std::vector<std::string> names = {"--help", "--help=all"};
    for (const DeclaredOption& option : options) {
      for (const std::string& name : NamesOf(option)) {
        if (name[0] == '-') names.push_back(absl::StrCat(name, option.takes_value ? "=" : ""));
      }
    }
    return names;
  }

  OptionParser* program_;
  std::string shell_, typed_;
};

}  // namespace

std::unique_ptr<Command> AddCompletionCommand(OptionParser* program) {
  return std::make_unique<CompletionCommand>(program);
}

}  // namespace kvblocks::sim
