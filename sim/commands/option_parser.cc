#include "kvblocks/sim/commands/option_parser.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kvblocks::sim {
namespace {

constexpr int kHelpColumn = 36;

// Writes a flag and its negation as one name: --[no-]spread.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const size_t negative = name.find(",--no-");
    return negative == std::string::npos ? name : "--[no-]" + name.substr(2, negative - 2);
  }
};

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The name that messages use: the first of several.
std::string FirstName(const OptionText& option) {
  return option.name.substr(0, option.name.find(','));
}

// Empty: the number is in `value`.
std::string SetInteger(const std::string& text, int64_t low, int64_t high, int64_t* value) {
  int64_t number;
  if (!absl::SimpleAtoi(text, &number)) {
    return absl::StrCat("got \"", text, "\", expected a whole number");
  }
  if (number < low || number > high) {
    return absl::StrCat("got ", number, ", expected ", low, " to ", high);
  }
  *value = number;
  return "";
}

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

std::string Message(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string name = app.get_name();
  if (!chosen.empty()) absl::StrAppend(&name, " ", command.get_name());
  std::string message = error.what();
  const std::vector<std::string> known = KnownFlags(command);
  const std::string unknown = UnknownFlag(argc, argv, known);
  if (!unknown.empty()) {
    message = absl::StrCat("unknown option ", unknown);
    const std::string suggestion = SuggestName(unknown, known);
    if (!suggestion.empty()) absl::StrAppend(&message, "; ", suggestion);
  }
  return absl::StrCat(name, ": ", message, "\n(", name, " --help lists all options)\n");
}

}  // namespace

class OptionParser::Impl {
 public:
  explicit Impl(CLI::App* app) : app_(app) {}
  explicit Impl(std::unique_ptr<CLI::App> app) : owned_(std::move(app)), app_(owned_.get()) {}

  CLI::App* app() const { return app_; }

  // Calls `set` for each value given.
  CLI::Option* Add(const OptionText& option, Setter set) {
    CLI::callback_t callback = [name = FirstName(option),
                                set = std::move(set)](const CLI::results_t& texts) {
      for (const std::string& text : texts) {
        const std::string wrong = set(text);
        if (!wrong.empty()) throw CLI::ValidationError(absl::StrCat(name, ": ", wrong));
      }
      return true;
    };
    return app_->add_option(option.name, std::move(callback), option.help)
        ->type_name(option.unit)
        ->group(option.group)
        ->required(option.is_required);
  }

  OptionParser* AddChild(std::unique_ptr<OptionParser> child) {
    children_.push_back(std::move(child));
    return children_.back().get();
  }

 private:
  std::unique_ptr<CLI::App> owned_;  // of the program; it owns those of the commands
  CLI::App* app_;
  std::vector<std::unique_ptr<OptionParser>> children_;
};

OptionParser::OptionParser(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OptionParser::~OptionParser() = default;

OptionParser::OptionParser(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>(std::make_unique<CLI::App>(description, name))) {
  const auto formatter = std::make_shared<Formatter>();
  formatter->column_width(kHelpColumn);
  impl_->app()->formatter(formatter);
  impl_->app()->require_subcommand(0, 1);
}

OptionParser* OptionParser::AddCommand(const std::string& name, const std::string& description) {
  auto impl = std::make_unique<Impl>(impl_->app()->add_subcommand(name, description));
  return impl_->AddChild(std::unique_ptr<OptionParser>(new OptionParser(std::move(impl))));
}

void OptionParser::Add(const OptionText& option, Setter set) { impl_->Add(option, std::move(set)); }

void OptionParser::Add(const OptionText& option, std::string* value) {
  std::vector<std::string> choices;
  if (absl::StrContains(option.unit, '|')) choices = absl::StrSplit(option.unit, '|');
  impl_->Add(option, [value, choices](const std::string& text) -> std::string {
    if (!choices.empty() && std::count(choices.begin(), choices.end(), text) == 0) {
      return absl::StrCat("got \"", text, "\", expected one of ", absl::StrJoin(choices, ", "));
    }
    *value = text;
    return "";
  });
}

void OptionParser::Add(const OptionText& option, std::optional<std::string>* value) {
  impl_->Add(option, [value](const std::string& text) {
    *value = text;
    return std::string();
  });
}

void OptionParser::Add(const OptionText& option, int64_t low, int64_t high, int64_t* value) {
  impl_->Add(option, [=](const std::string& text) { return SetInteger(text, low, high, value); });
}

void OptionParser::AddRepeated(const OptionText& option, std::vector<std::string>* values) {
  AddRepeated(option, [values](const std::string& text) {
    values->push_back(text);
    return std::string();
  });
}

void OptionParser::AddRepeated(const OptionText& option, Setter set) {
  impl_->Add(option, std::move(set))->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void OptionParser::AddList(const OptionText& option, int64_t low, int64_t high,
                           std::vector<int64_t>* values) {
  impl_
      ->Add(option,
            [=](const std::string& text) {
              return SetInteger(text, low, high, &values->emplace_back());
            })
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args();
}

void OptionParser::AddFlag(const OptionText& option, bool* value) {
  impl_->app()
      ->add_flag_callback(option.name, [value] { *value = true; }, option.help)
      ->group(option.group);
}

void OptionParser::AddFlag(const OptionText& option, std::function<void(bool)> set) {
  impl_->app()
      ->add_flag_function(
          absl::StrCat(option.name, ",!--no-", option.name.substr(2)),
          [set = std::move(set)](int64_t count) { set(count > 0); }, option.help)
      ->group(option.group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void OptionParser::set_footer(const std::string& footer) { impl_->app()->footer(footer); }

ParseOutcome OptionParser::Parse(int argc, char** argv, std::string* text) {
  CLI::App& app = *impl_->app();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    *text = chosen.empty() ? app.help() : chosen.front()->help(app.get_name());
    return ParseOutcome::kHelp;
  } catch (const CLI::ParseError& error) {
    *text = Message(error, app, argc, argv);
    return ParseOutcome::kRefused;
  }
  return ParseOutcome::kParsed;
}

bool OptionParser::is_chosen() const { return impl_->app()->parsed(); }

std::string OptionParser::Help() const { return impl_->app()->help(); }

std::string SuggestName(std::string_view unknown, const std::vector<std::string>& known) {
  const std::string_view name = unknown.substr(0, unknown.find('='));
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 4) + 1;
  for (const std::string& flag : known) {
    const size_t distance = EditDistance(name, flag);
    if (distance < best_distance) {
      best_distance = distance;
      best = flag;
    }
  }
  return best.empty() ? best : absl::StrCat("did you mean ", best, "?");
}

}  // namespace kvblocks::sim
