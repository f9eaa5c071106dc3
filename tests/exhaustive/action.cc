#include "kvblocks/tests/exhaustive/action.h"

#include <array>
#include <string_view>

namespace kvblocks::exhaustive {
namespace {

constexpr std::array<std::string_view, 20> kNames = {"admit",         "admit strictly",
                                                     "look up",       "admit with kept hits",
                                                     "adopt",         "admit with external",
                                                     "admit delayed", "register",
                                                     "step",          "step lagging",
                                                     "step drafting", "trim",
                                                     "free",          "preempt",
                                                     "pop",           "give back",
                                                     "evict held",    "evict first",
                                                     "evict last",    "reset"};
static_assert(kNames.size() == static_cast<size_t>(ActionKind::kReset) + 1);

}  // namespace

std::string ToString(const Action& action) {
  std::string text(kNames[static_cast<size_t>(action.kind)]);
  if (action.kind < ActionKind::kGiveBack || action.kind == ActionKind::kEvictHeld) {
    text += " " + std::string(1, static_cast<char>('A' + action.request));
    if (action.amount != 0) text += "/" + std::to_string(action.amount);
  }
  return text;
}

std::string ToString(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) text += (text.empty() ? "" : ", ") + ToString(action);
  return text;
}

}  // namespace kvblocks::exhaustive
