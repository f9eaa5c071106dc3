// Actions in words, and the state of a World as a string: equal for states from which everything
// goes on alike.

#include <algorithm>
#include <array>
#include <string_view>

#include "tests/exhaustive/world.h"

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

std::string World::StateKey() const {
  std::string key;
  // Blocks are named by their first mention, so that states that differ in ids alone are equal.
  std::vector<char> names(model_.pool().blocks().size(), 0);
  std::vector<BlockId> mentioned;
  const auto put = [&](int64_t value) { key.push_back(static_cast<char>(value)); };
  const auto put_block = [&](BlockId id) {
    char& name = names[static_cast<size_t>(id)];
    if (id != kNullBlockId && name == 0) {
      mentioned.push_back(id);
      name = static_cast<char>(mentioned.size());
    }
    // With chunks, ids say which blocks go together and which come first.
    key.push_back(model_.pool().is_native() ? static_cast<char>(id) : name);
  };
  const auto put_list = [&](const std::vector<BlockId>& ids) {
    put(static_cast<int64_t>(ids.size()));
    for (BlockId id : ids) put_block(id);
  };
  for (const Slot& slot : slots_) {
    const oracle::Request& request = slot.model;
    put(request.content.num_tokens());  // output tokens follow from their positions
    put(request.num_computed);
    put(request.num_inflight);
    put(static_cast<int>(request.status));
    put(request.num_preemptions > 0);
    put(request.is_known);
    put(request.shared_boundary);
    for (const oracle::GroupTable& table : request.tables) {
      put(table.num_cached);
      put(table.chunk_end);
      put(table.checkpoint);
      put(table.is_tail_dealt_with);
      put(table.registered_state);
      put_list(table.blocks);
    }
  }
  put_list(popped_);
  put_list(model_.pool().queue());
  if (model_.pool().is_native()) {
    for (BlockId id : model_.pool().FreedInOrder()) put(id);
    for (BlockId id = 1; id < static_cast<BlockId>(names.size()); ++id) {
      put(model_.pool().ClassOf(id));
    }
  }
  for (const Slot& slot : slots_) {
    put(slot.has_hits);
    if (!slot.has_hits) continue;
    put(slot.model_hits.tokens);
    put(slot.model_hits.replayed);
    put(slot.hits_epoch == real_->pool().removal_epoch());
    for (const std::vector<BlockId>& list : slot.model_hits.lists) put_list(list);
  }
  for (BlockId id : mentioned) {
    const oracle::Block& block = model_.pool().blocks()[static_cast<size_t>(id)];
    if (!block.key) {
      put(-1);
      continue;
    }
    put(block.partial_tokens);
    std::vector<oracle::Key> keys = {*block.key};
    keys.insert(keys.end(), block.further.begin(), block.further.end());
    for (const oracle::Key& held : keys) {
      const std::vector<BlockId>& holders = model_.pool().table().at(held);
      const int content = numbers_->Of(held.prefix);
      put(content / 100);
      put(content % 100);
      put(held.group);
      put(std::find(holders.begin(), holders.end(), id) - holders.begin());
    }
    put(-2);
  }
  return key;
}

}  // namespace kvblocks::exhaustive
