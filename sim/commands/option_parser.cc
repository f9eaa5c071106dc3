#include "sim/commands/option_parser.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checks/field_error.h"
#include "sim/cost/sim_time.h"
#include "sim/trace/decimal.h"

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

// The name that messages use: the first of several.
std::string FirstName(const OptionText& option) {
  return option.name.substr(0, option.name.find(','));
}

// Empty: the number is in `value`.
std::string SetInteger(const std::string& text, int64_t low, int64_t high, int64_t* value) {
  const auto number = ParseCount(text);
  if (!number) {
    return absl::StrCat("got \"", text, "\", expected a whole number, like 131072 or 128K");
  }
  if (*number < low || *number > high) {
    return absl::StrCat("got ", *number, ", expected ", low, " to ", high);
  }
  *value = *number;
  return "";
}

// A setter of texts that are one of the option's few values, if it has such.
OptionParser::Setter CheckedText(const OptionText& option,
                                 std::function<void(const std::string&)> store) {
  std::vector<std::string> choices;
  if (absl::StrContains(option.unit, '|')) choices = absl::StrSplit(option.unit, '|');
  return [choices, store = std::move(store)](const std::string& text) -> std::string {
    if (!choices.empty() && std::count(choices.begin(), choices.end(), text) == 0) {
      return absl::StrCat("got \"", text, "\", expected one of ", absl::StrJoin(choices, ", "));
    }
    store(text);
    return "";
  };
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

// Null: there is none of this name.
const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  const auto found =
      app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

bool AsksForAll(int argc, char** argv) {
  for (int i = 1; i < argc && argv[i] != std::string_view("--"); ++i) {
    if (argv[i] == std::string_view("--help=all")) return true;
  }
  return false;
}

// What the library would take without a word: "--csv= x" as the value x, "--csv --json" as the
// value
// --json, "--json=maybe" as an exception of another kind.
std::string BadValue(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") return "";
    const size_t equals = argument.substr(0, 2) == "--" ? argument.find('=') : std::string::npos;
    const std::string name = argument.substr(0, equals);
    if (name.empty() || name[0] != '-') {
      const CLI::App* chosen = command == &app ? FindCommand(app, name) : nullptr;
      if (chosen != nullptr) command = chosen;
      continue;
    }
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option == nullptr || !option->nonpositional()) continue;  // reported elsewhere
    const std::string unit = option->get_type_name();
    const std::string expected = unit.empty() ? "a value" : unit;
    if (option->get_expected_max() == 0) {
      if (equals == std::string::npos) continue;
      const std::string value = argument.substr(equals + 1);
      if (value == "true" || value == "false") continue;
      return absl::StrCat(name, ": got \"", value, "\", expected no value");
    }
    if (equals != std::string::npos) {
      if (equals + 1 < argument.size()) continue;
      return absl::StrCat(name, ": got an empty value, expected ", expected);
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (i == argc) return absl::StrCat(name, ": got no value, expected ", expected);
    if (value.size() > 2 && value.substr(0, 2) == "--") {
      return absl::StrCat(name, ": got no value before ", value, ", expected ", expected, " (",
                          name, "=", value, " if that is meant)");
    }
  }
  return "";
}

std::string NameOf(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name()
                        : absl::StrCat(app.get_name(), " ", chosen.front()->get_name());
}

std::string WithHint(const std::string& name, const std::string& message) {
  return absl::StrCat(name, ": ", message, "\n(", name, " --help=all lists all options)\n");
}

std::string Message(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string message = error.what();
  const std::vector<std::string> known = KnownFlags(command);
  const std::string unknown = UnknownFlag(argc, argv, known);
  if (!unknown.empty()) {
    message = absl::StrCat("unknown option ", unknown);
    const std::string suggestion = SuggestName(unknown, known);
    if (!suggestion.empty()) absl::StrAppend(&message, "; ", suggestion);
  }
  return WithHint(NameOf(app), message);
}

}  // namespace

struct OptionParser::Impl {
  CLI::App* app = nullptr;
  std::unique_ptr<CLI::App> owned = nullptr;  // of the program; it owns those of the commands
  std::vector<std::unique_ptr<OptionParser>> children = {};
  std::vector<RunFile> files = {};
  std::vector<DeclaredOption> declared = {};
  std::vector<CLI::Option*> made = {};  // beside them
  std::function<void()> later = nullptr;
  std::string more = {}, footer = {};

  void AddAll() {
    if (const auto add = std::exchange(later, nullptr)) add();
  }

  void Declare(const OptionText& text, CLI::Option* option, bool takes_value, bool is_negatable) {
    declared.push_back({text, takes_value, is_negatable});
    made.push_back(option);
  }

  std::string Help(bool lists_all, const std::string& program) {
    int64_t num_hidden = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      const bool is_hidden = !lists_all && !declared[i].text.is_common;
      num_hidden += is_hidden;
      // The library leaves out what is in no group.
      made[i]->group(is_hidden ? "" : declared[i].text.group);
    }
    std::string end;
    if (num_hidden > 0) {
      const std::string what = num_hidden == 1 ? " more option (" : " more options (";
      end = more.empty()
                ? absl::StrCat(num_hidden, what, program, " ", app->get_name(), " --help=all)")
                : more;
      end = absl::StrCat("and ", end, "\n\n");
    }
    app->footer(absl::StrCat(end, footer));
    return app->help(program);
  }

  // Empty: whatever is given has what it needs.
  std::string MissingNeed() const {
    for (size_t i = 0; i < made.size(); ++i) {
      const OptionText& text = declared[i].text;
      if (text.needs.empty() || made[i]->count() == 0) continue;
      std::string missing;
      for (const std::string& name : std::vector<std::string>(absl::StrSplit(text.needs, ','))) {
        const CLI::Option* needed = app->get_option(name);
        if (needed->count() > 0) continue;
        const std::string unit = needed->get_type_name();
        absl::StrAppend(&missing, missing.empty() ? "" : " and ", name, unit.empty() ? "" : "=",
                        unit);
      }
      if (!missing.empty()) return absl::StrCat(FirstName(text), " needs ", missing);
    }
    return "";
  }

  // Calls `set` for each value given.
  CLI::Option* Add(const OptionText& option, Setter set, bool is_repeated = false) {
    CLI::callback_t callback = [this, name = FirstName(option), file = option.file, is_repeated,
                                set = std::move(set)](const CLI::results_t& texts) {
      if (!is_repeated && texts.size() > 1) {
        throw CLI::ValidationError(absl::StrCat(name, ": got ", texts.size(), " values, \"",
                                                texts[0], "\" and \"", texts[1],
                                                "\", expected one"));
      }
      for (const std::string& text : texts) {
        if (text.empty()) throw CLI::ValidationError(absl::StrCat(name, ": got an empty value"));
        if (file != FileUse::kNone) files.push_back({name, text, file});
        const std::string wrong = set(text);
        if (!wrong.empty()) throw CLI::ValidationError(absl::StrCat(name, ": ", wrong));
      }
      return true;
    };
    CLI::Option* added = app->add_option(option.name, std::move(callback), option.help)
                             ->type_name(option.unit)
                             ->group(option.group)
                             ->required(option.is_required);
    Declare(option, added, /*takes_value=*/true, /*is_negatable=*/false);
    if (option.name[0] == '-') added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return added;
  }
};

OptionParser::OptionParser(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OptionParser::~OptionParser() = default;

OptionParser::OptionParser(const std::string& name, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->owned = std::make_unique<CLI::App>(description, name);
  impl_->app = impl_->owned.get();
  const auto formatter = std::make_shared<Formatter>();
  formatter->column_width(kHelpColumn);
  impl_->app->formatter(formatter);
  impl_->app->set_help_flag("-h,--help", "print this help; --help=all lists all options");
  impl_->app->require_subcommand(0, 1);
}

OptionParser* OptionParser::AddCommand(const std::string& name, const std::string& description) {
  auto impl = std::make_unique<Impl>();
  impl->app = impl_->app->add_subcommand(name, description);
  impl_->children.push_back(std::unique_ptr<OptionParser>(new OptionParser(std::move(impl))));
  return impl_->children.back().get();
}

void OptionParser::Add(const OptionText& option, Setter set) { impl_->Add(option, std::move(set)); }

void OptionParser::Add(const OptionText& option, std::string* value) {
  impl_->Add(option, CheckedText(option, [value](const std::string& text) { *value = text; }));
}

void OptionParser::Add(const OptionText& option, std::optional<std::string>* value) {
  impl_->Add(option, CheckedText(option, [value](const std::string& text) { *value = text; }));
}

void OptionParser::Add(const OptionText& option, int64_t low, int64_t high, int64_t* value) {
  impl_->Add(option, [=](const std::string& text) { return SetInteger(text, low, high, value); });
}

void OptionParser::Add(const OptionText& option, double low, double high, double* value) {
  impl_->Add(option, [=](const std::string& text) -> std::string {
    double number;
    if (!absl::SimpleAtod(text, &number) || !(number >= low && number <= high)) {
      return absl::StrCat("got \"", text, "\", expected a number from ", low, " to ", high);
    }
    *value = number;
    return "";
  });
}

void OptionParser::AddSeconds(const OptionText& option, double low, double high, double* seconds) {
  impl_->Add(option, [=](const std::string& text) -> std::string {
    const auto time = ParseDuration(text);
    const double value =
        time.ok() ? static_cast<double>(*time) / static_cast<double>(kSecond) : -1.0;
    if (!(value >= low && value <= high)) {
      return absl::StrCat("got \"", text, "\", expected a time with a unit, like 500ms or 10s, of ",
                          low, "s to ", high, "s");
    }
    *seconds = value;
    return "";
  });
}

void OptionParser::AddRepeated(const OptionText& option, std::vector<std::string>* values) {
  AddRepeated(option, CheckedText(option, [values](const std::string& text) {
                values->push_back(text);
              }));
}

void OptionParser::AddRepeated(const OptionText& option, Setter set) {
  impl_->Add(option, std::move(set), /*is_repeated=*/true);
}

void OptionParser::AddList(const OptionText& option, int64_t low, int64_t high,
                           std::vector<int64_t>* values) {
  impl_
      ->Add(option,
            [=](const std::string& text) {
              return SetInteger(text, low, high, &values->emplace_back());
            },
            /*is_repeated=*/true)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args();
}

void OptionParser::AddFlag(const OptionText& option, bool* value) {
  CLI::Option* added = impl_->app
                           ->add_flag_callback(
                               option.name, [value] { *value = true; }, option.help)
                           ->group(option.group);
  impl_->Declare(option, added, /*takes_value=*/false, /*is_negatable=*/false);
}

void OptionParser::AddFlag(const OptionText& option, std::function<void(bool)> set) {
  CLI::Option* added =
      impl_->app
          ->add_flag_function(
              absl::StrCat(option.name, ",!--no-", option.name.substr(2)),
              [set = std::move(set)](int64_t count) { set(count > 0); }, option.help)
          ->group(option.group)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  impl_->Declare(option, added, /*takes_value=*/false, /*is_negatable=*/true);
}

void OptionParser::AddLater(std::function<void()> add) { impl_->later = std::move(add); }

void OptionParser::ShowOnly(const std::vector<std::string>& names) {
  for (DeclaredOption& option : impl_->declared) {
    option.text.is_common = std::count(names.begin(), names.end(), FirstName(option.text)) > 0;
  }
}

void OptionParser::set_more(const std::string& more) { impl_->more = more; }

void OptionParser::set_footer(const std::string& footer) { impl_->footer = footer; }

const std::vector<DeclaredOption>& OptionParser::Declared() {
  impl_->AddAll();
  return impl_->declared;
}

std::vector<OptionParser*> OptionParser::commands() const {
  std::vector<OptionParser*> commands;
  for (const auto& child : impl_->children) commands.push_back(child.get());
  return commands;
}

const std::string& OptionParser::name() const { return impl_->app->get_name(); }

ParseOutcome OptionParser::Parse(int argc, char** argv, std::string* text) {
  CLI::App& app = *impl_->app;
  OptionParser* chosen = this;
  for (int i = 1; i < argc && chosen == this; ++i) {
    for (const auto& child : impl_->children) {
      if (child->name() == argv[i]) chosen = child.get();
    }
  }
  chosen->impl_->AddAll();
  const std::string program = chosen == this ? "" : app.get_name();
  if (AsksForAll(argc, argv)) {
    *text = chosen->impl_->Help(/*lists_all=*/true, program);
    return ParseOutcome::kHelp;
  }
  if (const std::string bad = BadValue(app, argc, argv); !bad.empty()) {
    *text = WithHint(
        chosen == this ? app.get_name() : absl::StrCat(app.get_name(), " ", chosen->name()), bad);
    return ParseOutcome::kRefused;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *text = chosen->impl_->Help(/*lists_all=*/false, program);
    return ParseOutcome::kHelp;
  } catch (const CLI::ParseError& error) {
    *text = Message(error, app, argc, argv);
    return ParseOutcome::kRefused;
  }
  if (const std::string missing = chosen->impl_->MissingNeed(); !missing.empty()) {
    *text = WithHint(NameOf(app), missing);
    return ParseOutcome::kRefused;
  }
  if (absl::Status status = CheckRunFiles(chosen->files()); !status.ok()) {
    *text = WithHint(NameOf(app), std::string(status.message()));
    return ParseOutcome::kRefused;
  }
  return ParseOutcome::kParsed;
}

bool OptionParser::is_chosen() const { return impl_->app->parsed(); }

std::string OptionParser::Help() const { return impl_->Help(/*lists_all=*/false, ""); }

const std::vector<RunFile>& OptionParser::files() const { return impl_->files; }

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
