#include "sim/engine/retention_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_manager.h"
#include "sim/engine/sim_request.h"

namespace kvblocks::sim {
namespace {

using Kind = RetentionRule::Kind;

constexpr int64_t kMostUses = 1 << 30;

absl::Status Bad(const std::string& rule, const std::string& what) {
  return InvalidArgument("retain: got \"", rule, "\", expected ", what);
}

// Of 1 to `most`; empty: it is not.
std::optional<int64_t> ReadCount(const std::string& text, int64_t most) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > most) return std::nullopt;
  return value;
}

absl::StatusOr<RetentionRule> ParseRule(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{"first", Kind::kFirst},
                                                          {"shared", Kind::kShared},
                                                          {"session", Kind::kSession},
                                                          {"all", Kind::kAll}};
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const auto& named) { return named.first == parts[0]; });
  if (kind == std::end(kKinds)) {
    return Bad(text,
               "first:tokens=N, shared:uses=N, session or all, then :priority=P and :ttl=TIME");
  }
  RetentionRule rule{.kind = kind->second};
  bool has_amount = rule.kind != Kind::kFirst && rule.kind != Kind::kShared;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> field =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (field.first == "tokens" && rule.kind == Kind::kFirst) {
      const auto tokens = ReadCount(field.second, kMaxTraceLength);
      if (!tokens) return Bad(text, absl::StrCat("tokens=1 to ", kMaxTraceLength));
      rule.tokens = *tokens;
      has_amount = true;
    } else if (field.first == "uses" && rule.kind == Kind::kShared) {
      const auto uses = ReadCount(field.second, kMostUses);
      if (!uses) return Bad(text, absl::StrCat("uses=1 to ", kMostUses));
      rule.uses = *uses;
      has_amount = true;
    } else if (field.first == "priority") {
      const auto priority = ReadCount(field.second, kHighestPriority);
      if (!priority) return Bad(text, absl::StrCat("priority=1 to ", kHighestPriority));
      rule.priority = static_cast<int32_t>(*priority);
    } else if (field.first == "ttl") {
      const auto ttl = ParseDuration(field.second);
      if (!ttl.ok() || *ttl < 1) return Bad(text, "ttl=TIME above zero, such as ttl=5min");
      rule.ttl = *ttl;
    } else {
      return Bad(text, absl::StrCat(rule.kind == Kind::kFirst    ? "tokens=N, "
                                    : rule.kind == Kind::kShared ? "uses=N, "
                                                                 : "",
                                    "priority=P or ttl=TIME instead of \"", parts[i], "\""));
    }
  }
  if (!has_amount) return Bad(text, rule.kind == Kind::kFirst ? "tokens=N in it" : "uses=N in it");
  return rule;
}

}  // namespace

absl::StatusOr<std::vector<RetentionRule>> ParseRetentionRules(std::string_view text) {
  std::vector<RetentionRule> rules;
  if (text.empty()) return rules;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto rule, ParseRule(part));
    rules.push_back(rule);
  }
  return rules;
}

std::optional<RetainParams> ParamsOf(const RetentionRule& rule, const SimRequest& request) {
  RetainParams params{.num_tokens = request.kv->num_tokens(),
                      .priority = rule.priority,
                      .ttl = rule.ttl};
  switch (rule.kind) {
    case Kind::kFirst:
      params.num_tokens = std::min(*params.num_tokens, rule.tokens);
      return params;
    case Kind::kShared:
      params.min_uses = rule.uses;
      return params;
    case Kind::kSession:
      if (request.spec.session == 0) return std::nullopt;
      return params;
    case Kind::kAll:
      return params;
  }
  return std::nullopt;
}

}  // namespace kvblocks::sim
