#include "tests/exhaustive/world.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvblocks::exhaustive {
namespace {

constexpr TokenId kFirstOutputToken = 1000;

}  // namespace

World::World(const Setting& setting, oracle::ContentNumbers* numbers)
    : setting_(&setting),
      numbers_(numbers),
      real_(KvCacheManager::Create(setting.config, setting.options).value()),
      model_(setting.config, setting.options),
      slots_(setting.prompts.size()) {
  for (size_t i = 0; i < slots_.size(); ++i) Renew(i);
}

void World::Renew(size_t index) {
  Slot& slot = slots_[index];
  const oracle::Content& content = setting_->prompts[index];
  slot = Slot();
  slot.real = real_
                  ->NewRequest({.id = std::string(1, static_cast<char>('A' + index)),
                                .content = {.token_ids = content.tokens,
                                            .lora_name = content.lora_name,
                                            .cache_salt = content.cache_salt,
                                            .features = content.features}})
                  .value();
  slot.model = model_.NewRequest(content, /*skip_reading=*/false);
  AddNumbers(slot);
}

void World::AddNumbers(const Slot& slot) {
  Expect(numbers_->Add(slot.real->content().hashes(), slot.model.prefix_names),
         "hashes and contents are not a bijection");
}

void World::AppendToken(Slot& slot) {
  const TokenId token = kFirstOutputToken + static_cast<TokenId>(slot.model.content.num_tokens());
  model_.Append(slot.model, {token});
  Expect(slot.real->AppendOutputTokens({token}).ok(), "append refused");
  AddNumbers(slot);
}

void World::SetComputed(Slot& slot, int64_t computed, int64_t inflight) {
  slot.model.num_computed = computed;
  slot.model.num_inflight = inflight;
  slot.real->set_num_computed_tokens(computed);
  slot.real->set_num_inflight_tokens(inflight);
}

bool World::Apply(const Action& action) {
  const bool done = Do(action);
  // What a step copies is copied, and its states are ready, before the next one.
  const std::vector<BlockCopy> copies = real_->TakeBlockCopies();
  const std::vector<oracle::Copy> expected = model_.TakeCopies();
  Expect(copies.size() == expected.size(), "number of copies");
  std::vector<BlockId> ends;
  for (size_t i = 0; i < expected.size() && !failed(); ++i) {
    const oracle::Copy& want = expected[i];
    Expect(copies[i] == BlockCopy{want.group, want.source, want.target}, "copy");
    ends.insert(ends.end(), {want.source, want.target});
  }
  Expect(real_->ReleaseBlockCopies(copies).ok() && model_.FreeBlocks(ends), "copies refused");
  real_->NewStepStarts();
  model_.NewStepStarts();
  return done;
}

bool World::Do(const Action& action) {
  Slot& slot = slots_[static_cast<size_t>(action.request)];
  const bool known = slot.model.is_known;
  switch (action.kind) {
    case ActionKind::kAdmit:
    case ActionKind::kAdmitStrict:
    case ActionKind::kAdmitStale:
    case ActionKind::kAdopt:
      return !known && Admit(slot, action);
    case ActionKind::kExternal:
    case ActionKind::kDelayed:
      return !known && AdmitExternal(slot, action);
    case ActionKind::kLookUp:
      if (known) return false;
      LookUp(slot, slot.real_hits, slot.model_hits);
      slot.has_hits = true;
      slot.hits_epoch = real_->pool().removal_epoch();
      return true;
    case ActionKind::kStep:
    case ActionKind::kStepLagging:
    case ActionKind::kStepDrafting:
      return known && Step(slot, action);
    case ActionKind::kRegister: {
      if (!known) return false;
      const int64_t n = slot.model.num_computed;
      Expect(real_->CacheBlocks(*slot.real, n).ok() == model_.CacheBlocks(slot.model, n),
             "registration refused on one side");
      return true;
    }
    case ActionKind::kTrim: {
      if (!known) return false;
      const int64_t n = slot.model.num_computed - slot.model.num_inflight;
      Expect(real_->RemoveSkippedBlocks(*slot.real, n).ok() &&
                 model_.RemoveSkippedBlocks(slot.model, n),
             "trim refused");
      return true;
    }
    case ActionKind::kFree:
      if (!known) return false;
      // Destroying a request frees it, too.
      if (action.amount == 0) Expect(real_->Free(*slot.real).ok(), "free refused");
      model_.Free(slot.model);
      Renew(static_cast<size_t>(action.request));
      return true;
    case ActionKind::kPreempt:
      if (!known) return false;
      Expect(real_->Free(*slot.real).ok(), "free refused");
      model_.Free(slot.model);
      Preempt(slot);
      return true;
    case ActionKind::kPop:
      return known && popped_.empty() && Pop(slot);
    case ActionKind::kGiveBack: {
      if (popped_.empty()) return false;
      const std::vector<BlockId> list(popped_.rbegin(), popped_.rend());
      Expect(real_->FreeBlocks(list).ok() && model_.FreeBlocks(list), "list refused");
      popped_.clear();
      return true;
    }
    case ActionKind::kEvictHeld: {
      if (!known) return false;
      const auto& table = slot.model.tables[static_cast<size_t>(action.amount)].blocks;
      const auto block =
          std::find_if(table.begin(), table.end(), [](BlockId id) { return id != kNullBlockId; });
      return block != table.end() && Evict(*block);
    }
    case ActionKind::kEvictFirst:
      return EvictQueued(/*first=*/true);
    case ActionKind::kEvictLast:
      return EvictQueued(/*first=*/false);
    case ActionKind::kReset: {
      const bool done = real_->ResetPrefixCache();
      Expect(done == model_.Reset(), "reset on one side only");
      ExpectEmpty(oracle::StatsDifference(real_->MakePrefixCacheStats(), model_.MakeStats()));
      return true;
    }
  }
  return false;
}

void World::LookUp(const Slot& slot, ComputedBlocks& real, oracle::Hits& model) {
  Expect(real_->GetComputedBlocks(*slot.real, real).ok(), "look-up refused");
  model = model_.GetComputedBlocks(slot.model).value();
  ExpectEmpty(oracle::HitDifference(real, model));
}

oracle::Outcome World::Allocate(Slot& slot, const oracle::AllocateParams& params,
                                const ComputedBlocks* real_hits) {
  std::vector<std::vector<BlockId>> expected;
  const oracle::Outcome outcome = model_.Allocate(slot.model, params, &expected);
  const auto result =
      real_->AllocateSlots(*slot.real, {.num_new_tokens = params.num_new,
                                        .computed_blocks = real_hits,
                                        .num_lookahead_tokens = params.num_lookahead,
                                        .num_external_computed_tokens = params.num_external,
                                        .delay_cache_blocks = params.delay,
                                        .full_sequence_must_fit = params.gate,
                                        .reserved_blocks = params.reserved,
                                        .has_scheduled_requests = params.has_scheduled});
  Expect(result.ok() == (outcome != oracle::Outcome::kInvalid), "allocation refused on one side");
  if (!result.ok() || failed()) return oracle::Outcome::kInvalid;
  Expect(result->has_value() == (outcome == oracle::Outcome::kOk), "no space on one side");
  if (!result->has_value() || failed()) return oracle::Outcome::kNoSpace;
  for (size_t g = 0; g < expected.size(); ++g) {
    const auto blocks = (*result)->blocks(static_cast<GroupId>(g));
    Expect(std::equal(blocks.begin(), blocks.end(), expected[g].begin(), expected[g].end()),
           "new blocks");
  }
  slot.model.status = oracle::Status::kRunning;
  slot.real->set_status(RequestStatus::kRunning);
  return outcome;
}

bool World::Admit(Slot& slot, const Action& action) {
  if (action.kind == ActionKind::kAdmitStale) {
    if (!slot.has_hits) return false;
  } else {
    LookUp(slot, slot.real_hits, slot.model_hits);
  }
  slot.has_hits = false;
  if (failed()) return true;
  const int64_t hit = slot.model_hits.tokens;
  const int64_t rest = slot.model.content.num_tokens() - hit;
  oracle::AllocateParams params;
  params.hits = &slot.model_hits;
  params.num_new = action.amount == 0 ? rest : std::min(rest, action.amount);
  if (action.kind == ActionKind::kAdopt) params.num_new = 0;
  if (setting_->options.semantics.retention_interval) {  // V-4
    slot.model.shared_boundary = slot.model_hits.boundary;
    slot.real->set_shared_prefix_boundary(slot.model_hits.boundary);
  }
  if (action.kind == ActionKind::kAdmitStrict) {
    params.gate = params.has_scheduled = true;
    params.reserved = 1;
  }
  if (Allocate(slot, params, &slot.real_hits) != oracle::Outcome::kOk) return true;
  SetComputed(slot, hit + params.num_new, 0);
  real_->RecordPrefixCacheStats(*slot.real, hit);
  model_.RecordStats(slot.model, hit);
  ExpectEmpty(oracle::StatsDifference(real_->MakePrefixCacheStats(), model_.MakeStats()));
  return true;
}

bool World::AdmitExternal(Slot& slot, const Action& action) {
  ComputedBlocks real_hits;
  oracle::Hits model_hits;
  LookUp(slot, real_hits, model_hits);
  if (failed()) return true;
  const int64_t hit = model_hits.tokens;
  oracle::AllocateParams params;
  params.hits = &model_hits;
  params.num_external = std::min(action.amount, slot.model.content.num_tokens() - hit - 1);
  if (params.num_external < 1) return false;
  slot.has_hits = false;
  params.delay = action.kind == ActionKind::kDelayed;
  params.num_new = params.delay ? 0 : 1;
  if (Allocate(slot, params, &real_hits) == oracle::Outcome::kOk) {
    SetComputed(slot, hit + params.num_external + params.num_new, 0);
  }
  return true;
}

bool World::Step(Slot& slot, const Action& action) {
  const int64_t limit = setting_->options.max_model_len;
  int64_t computed = slot.model.num_computed;
  if (computed >= slot.model.content.num_tokens()) {
    if (slot.model.content.num_tokens() >= limit) return false;
    AppendToken(slot);
  }
  const int64_t tokens = slot.model.content.num_tokens();
  const int64_t verified =
      action.amount == 0 ? tokens - computed : std::min(tokens - computed, action.amount);
  oracle::AllocateParams params;
  params.num_new = verified;
  if (action.kind == ActionKind::kStepDrafting) {
    if (computed + verified < tokens) return false;
    params.num_new = std::min(verified + 2, limit - computed);
    params.num_lookahead = 1;
  }
  if (Allocate(slot, params, nullptr) != oracle::Outcome::kOk) return true;
  computed += verified;
  if (params.num_new > verified) {
    AppendToken(slot);
    ++computed;
  }
  SetComputed(slot, computed, action.kind == ActionKind::kStepLagging ? verified : 0);
  return true;
}

void World::Preempt(Slot& slot) {
  slot.real->MarkPreempted();
  slot.model.num_computed = slot.model.num_inflight = 0;
  slot.model.status = oracle::Status::kPreempted;
  ++slot.model.num_preemptions;
}

bool World::Pop(Slot& slot) {
  const auto list = real_->PopBlocksForFree(*slot.real);
  popped_ = model_.Pop(slot.model);
  Expect(list.ok() && *list == popped_, "popped list");
  Preempt(slot);
  return true;
}

bool World::Evict(BlockId id) {
  if (!model_.pool().blocks()[static_cast<size_t>(id)].key) return false;
  const std::vector<BlockId> ids = {id, kNullBlockId, id};
  Expect(real_->EvictBlocks(ids).ok() && model_.Evict(ids), "eviction refused");
  return true;
}

bool World::EvictQueued(bool first) {
  BlockId found = kNullBlockId;
  for (BlockId id : model_.pool().queue()) {
    if (!model_.pool().blocks()[static_cast<size_t>(id)].key) continue;
    found = id;
    if (first) break;
  }
  return found != kNullBlockId && Evict(found);
}

void World::DropEvents() {
  real_->TakeEvents();
  model_.TakeEvents();
}

void World::CompareState() {
  if (failed()) return;
  ExpectEmpty(oracle::PoolDifference(real_->pool(), model_.pool(), *numbers_));
  for (const Slot& slot : slots_) {
    ExpectEmpty(oracle::TableDifference(*real_, *slot.real, slot.model));
  }
  ExpectEmpty(oracle::EventDifference(real_->TakeEvents(), model_.TakeEvents(), *numbers_));
  if (failed()) return;
  ExpectEmpty(std::string(real_->CheckInvariants().message()));
}

void World::CompareAnswers() {
  if (failed()) return;
  const bool any_draft =
      std::any_of(model_.groups().begin(), model_.groups().end(),
                  [](const oracle::GroupRules& group) { return group.is_draft; });
  std::vector<const oracle::Request*> all;
  for (const Slot& slot : slots_) all.push_back(&slot.model);
  ComputedBlocks real;
  oracle::Hits model;
  for (const Slot& slot : slots_) {
    LookUp(slot, real, model);
    // Without draft groups, what a look-up must give can be said in one sentence.
    Expect(any_draft || !setting_->options.enable_caching ||
               model.tokens == model_.LongestHit(slot.model),
           "longest length that all groups can serve");
    Expect(real_->GetNumCommonPrefixBlocks(*slot.real) == model_.CommonPrefix(slot.model, all),
           "common prefix");
  }
  CompareState();  // none of this changes anything
}

// Actions in words, and the state of a World as a string: equal for states from which everything
// goes on alike.

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
