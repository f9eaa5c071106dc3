// The rule of Setting.needs: an option that would do nothing is refused, with what it needs.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/option_table.h"

namespace kvblocks::sim {
namespace {

using ::google::protobuf::FieldDescriptor;
// "a, b or c".
std::string Enumerated(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    absl::StrAppend(&text, i + 1 < words.size() ? ", " : " or ", words[i]);
  }
  return text;
}

// One of the conditions between "or".
struct Term {
  Term(std::string_view text) {
    is_not = text.front() == '!';
    if (is_not) text.remove_prefix(1);
    const size_t end = std::min(text.find_first_of("=>~"), text.size());
    name = std::string(text.substr(0, end));
    if (end == text.size()) return;
    sign = text[end];
    wanted = std::string(text.substr(end + 1));
  }

  bool Holds(const ReplayConfig& config) const {
    const std::string value = ValueIn(config);
    if (sign == '=') {
      const std::vector<std::string> choices = absl::StrSplit(wanted, '|');
      return std::ranges::count(choices, value) > 0;
    }
    if (sign == '~') return absl::StrContains(value, wanted);
    double number = 0, limit = 0;
    if (sign == '>') {
      return absl::SimpleAtod(value, &number) && absl::SimpleAtod(wanted, &limit) && number > limit;
    }
    const bool is_set = !value.empty() && value != "0" && value != "false";
    return is_set != is_not;
  }

  std::string ValueIn(const ReplayConfig& config) const {
    const google::protobuf::Message* message = &config;
    const std::vector<std::string> path = absl::StrSplit(name, '.');
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      message = &message->GetReflection()->GetMessage(*message, FieldOf(*message, path[i]));
    }
    return ValueText(*message, FieldOf(*message, path.back()));
  }

  // "--plan=exact".
  std::string Words() const {
    const std::string flag = FlagName(name.substr(0, name.find('.')));
    if (is_not) return absl::StrCat("no ", flag);
    if (sign == '=') {
      const std::vector<std::string> choices = absl::StrSplit(wanted, '|');
      return absl::StrCat(flag, "=", Enumerated(choices));
    }
    return sign == '~'   ? absl::StrCat(flag, " with ", wanted)
           : sign == '>' ? absl::StrCat(flag, " above ", wanted)
                         : flag;
  }

  static const FieldDescriptor* FieldOf(const google::protobuf::Message& message,
                                        const std::string& name) {
    return message.GetDescriptor()->FindFieldByName(name);
  }

  std::string name, wanted;
  char sign = ' ';
  bool is_not = false;
};

std::vector<Term> TermsOf(const std::string& condition) {
  const std::vector<std::string> texts = absl::StrSplit(condition, " or ");
  return {texts.begin(), texts.end()};
}

// The first condition that does not hold; null: all do.
const std::string* Missing(const ReplayOption& option, const ReplayConfig& config) {
  for (const std::string& condition : option.setting->needs()) {
    const std::vector<Term> terms = TermsOf(condition);
    if (std::ranges::none_of(terms, [&](const Term& t) { return t.Holds(config); })) {
      return &condition;
    }
  }
  return nullptr;
}

absl::Status Refuse(const ReplayOption& option, const std::string& condition,
                    const ReplayConfig& config) {
  const std::vector<Term> terms = TermsOf(condition);
  std::vector<std::string> words;
  for (const Term& term : terms) words.push_back(term.Words());
  std::string text = absl::StrCat(FlagName(option.name()), " needs ", Enumerated(words));
  const std::string got = terms.front().ValueIn(config);
  if (terms.size() == 1) absl::StrAppend(&text, " (got ", got.empty() ? "none" : got, ")");
  return InvalidArgument(text);
}

bool IsChanged(const ReplayConfig& config, const ReplayOption& option) {
  return ValueText(config, option.field) != DefaultText(option);
}

// "host:4TiB:read=24GB/s:shared".
bool HasSharedTier(const ReplayConfig& config) {
  const std::vector<std::string> tiers = absl::StrSplit(config.tier(), ',');
  return std::ranges::any_of(tiers, [](const std::string& tier) {
    const std::vector<std::string> parts = absl::StrSplit(tier, ':');
    return std::ranges::count(parts, "shared") > 0;
  });
}

}  // namespace

absl::Status CheckOptionUses(const ReplayConfig& config, const ReplayConfig& given) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto kinds, ReplicaKinds(config));
  const auto* reflection = given.GetReflection();
  for (const ReplayOption& option : ReplayOptions()) {
    bool is_used = false;
    for (const ReplicaKind& kind : kinds) {
      const std::string* missing = Missing(option, kind.config);
      if (missing != nullptr && reflection->HasField(kind.given, option.field)) {
        return Refuse(option, *missing, kind.config);
      }
      is_used |= missing == nullptr;
    }
    if (is_used) continue;
    if (reflection->HasField(given, option.field) || IsChanged(config, option)) {
      const ReplayConfig& first = kinds.front().config;
      return Refuse(option, *Missing(option, first), first);
    }
  }
  if (HasSharedTier(config) && !IsFleet(config)) {
    return BadOption(
        "--tier", config.tier(),
        "no shared tier with one replica: --replicas of at least 2 share, or leave out "
        ":shared");
  }
  return absl::OkStatus();
}

absl::Status CheckOptionUses(const std::vector<const ReplayConfig*>& configs,
                             const ReplayConfig& asked) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (!asked.GetReflection()->HasField(asked, option.field) || !IsChanged(asked, option))
      continue;
    const bool is_used = std::ranges::any_of(configs, [&](const ReplayConfig* config) {
      const auto kinds = ReplicaKinds(*config);
      if (!kinds.ok()) return true;  // reported elsewhere
      return std::ranges::any_of(
          *kinds, [&](const ReplicaKind& kind) { return Missing(option, kind.config) == nullptr; });
    });
    if (!is_used) return Refuse(option, *Missing(option, *configs.front()), *configs.front());
  }
  return absl::OkStatus();
}

void DropUselessOptions(ReplayConfig* config) {
  for (const ReplayOption& option : ReplayOptions()) {
    // A grid over seeds asks for as many points.
    if (option.name() == "seed" || !IsChanged(*config, option)) continue;
    if (Missing(option, *config) == nullptr) continue;
    SetOption(option.name(), DefaultText(option), config).IgnoreError();
  }
}

}  // namespace kvblocks::sim
