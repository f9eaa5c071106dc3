// The tables of a request: how they grow, whose blocks they take and copy, and what they give back.

#include <algorithm>
#include <utility>

#include "tests/oracle/manager.h"

namespace kvblocks::oracle {

int64_t GroupTable::leading_nulls() const {
  return std::find_if(blocks.begin(), blocks.end(), [](BlockId id) { return id != kNullBlockId; }) -
         blocks.begin();
}

int64_t GroupTable::num_real() const {
  return size() - std::count(blocks.begin(), blocks.end(), kNullBlockId);
}

int64_t Manager::TotalComputed(const Request& request, const AllocateParams& params) const {
  const int64_t total =
      request.num_computed + (params.hits ? params.hits->tokens : 0) + params.num_external;
  return options_.semantics.is_025 ? total : std::min(total, options_.max_model_len);  // V-41
}

std::vector<BlockId> Manager::Take(int64_t k, size_t group) {
  if (pool_.is_native()) return pool_.TakePromised(k, static_cast<GroupId>(group));
  return pool_.Take(k).value();
}

std::vector<BlockId> Manager::Adopted(size_t g, const Request& request,
                                      const AllocateParams& params) const {  // BM-58, BM-59
  const int64_t total = TotalComputed(request, params);
  std::vector<BlockId> blocks(static_cast<size_t>(groups_[g].BlocksNotAdopted(total)),
                              kNullBlockId);
  if (params.hits && g < params.hits->lists.size()) {
    const std::vector<BlockId>& list = params.hits->lists[g];
    for (size_t i = blocks.size(); i < list.size(); ++i) blocks.push_back(list[i]);
  }
  if (params.num_external == 0 || groups_[g].SkippedTokens(total) >= total) return blocks;
  if (groups_[g].is_ring()) return blocks;  // V-46: its one block is taken with the slots
  while (static_cast<int64_t>(blocks.size()) < CeilDiv(total, groups_[g].block_size())) {
    blocks.push_back(kNew);
  }
  return blocks;
}

int64_t Manager::UsableStateEnd(int64_t num_prompt) const {
  const int64_t unit = hash_block_size_;
  if (any_drops_) return RoundDown(num_prompt, unit) - unit;
  const int64_t unusable = std::max<int64_t>(1, options_.num_hash_lookahead_tokens);
  return RoundDown(std::max<int64_t>(0, num_prompt - unusable), unit);
}

int64_t Manager::CheckpointOf(const GroupRules& rules, const GroupTable& table,
                              const Step& step) const {
  if (!options_.enable_caching || !rules.is_mamba()) return 0;
  if (rules.spec.options().num_checkpoint_blocks == 0) return 0;
  const int64_t begin = step.num_computed;
  const int64_t end = step.num_main;
  const int64_t boundary = UsableStateEnd(step.num_prompt);
  // It lies strictly inside, at least a hash block behind a start on a hash boundary, and so far as
  // the backend can export it.
  if (boundary >= end || boundary - begin < hash_block_size_) return 0;
  if (begin % hash_block_size_ != 0) return 0;
  if ((boundary - begin) % options_.checkpoint_alignment != 0) return 0;
  // With an interval of 0 only the step that reaches the prompt's end has one.
  if (options_.semantics.retention_interval == 0 && end < step.num_prompt) return 0;
  // Its column is the one before that of the step's own state, and holds neither a state nor
  // anything that is computed.
  const int64_t column = CeilDiv(boundary, rules.block_size()) - 1;
  if (column != CeilDiv(end, rules.block_size()) - 2) return 0;
  const int64_t taken = table.size() - (step.has_scratch ? rules.num_scratch() : 0);
  return column < taken ? 0 : boundary;
}

std::vector<BlockId> Manager::Grown(const GroupRules& rules, const GroupTable& table,
                                    const Step& step) const {
  std::vector<BlockId> blocks = table.blocks;
  const auto size = [&] { return static_cast<int64_t>(blocks.size()); };
  int64_t target = CeilDiv(step.num_slots, rules.block_size());
  if (rules.is_cross()) target = CeilDiv(step.num_encoder, rules.block_size());  // BM-112
  if (rules.is_ring()) target = 1;                                               // V-46
  if (rules.is_mamba()) target += rules.num_scratch();                      // BM-106
  if (rules.is_mamba() && rules.mode() == MambaCacheMode::kAlign) {         // BM-109
    target = CeilDiv(step.num_main, rules.block_size()) + rules.num_scratch();
    const int64_t state = target - rules.num_scratch() - 1;
    if (target > size()) {
      const int64_t old_size = size();
      while (size() < state) blocks.push_back(kNullBlockId);
      for (int64_t i = old_size - rules.num_scratch(); step.has_scratch && i < old_size; ++i) {
        if (i < 0 || i >= state || blocks[static_cast<size_t>(i)] == kNullBlockId) continue;
        blocks.push_back(blocks[static_cast<size_t>(i)]);
        blocks[static_cast<size_t>(i)] = kNullBlockId;
      }
    }
    if (CheckpointOf(rules, table, step) > 0) blocks[static_cast<size_t>(state - 1)] = kNew;
  }
  while (size() < target) blocks.push_back(kNew);
  return blocks;
}

void Manager::Adopt(Request& request, const AllocateParams& params) {  // BM-86
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupTable& table = request.tables[g];
    table.blocks = Adopted(g, request, params);
    std::vector<BlockId> hits;
    for (BlockId id : table.blocks) {
      if (id != kNew) hits.push_back(id);
    }
    table.num_cached = static_cast<int64_t>(hits.size());
    pool_.Touch(hits);
  }
  for (size_t g = 0; g < groups_.size(); ++g) TakeNew(request.tables[g], g);
}

void Manager::TakeNew(GroupTable& table, size_t g) {
  const auto missing = std::count(table.blocks.begin(), table.blocks.end(), kNew);
  const std::vector<BlockId> taken = Take(missing, g);
  auto next = taken.begin();
  for (BlockId& id : table.blocks) {
    if (id == kNew) id = *next++;
  }
}

bool Manager::EndsInside(const AllocateParams& params, size_t g) const {
  return options_.partial_hits && params.hits && g < params.hits->lists.size() &&
         !params.hits->lists[g].empty() && params.hits->tokens % groups_[g].block_size() != 0;
}

BlockId Manager::OverwrittenState(const Request& request, size_t g, int64_t num_main) const {
  if (!request.is_known) return kNullBlockId;
  const GroupTable& table = request.tables[g];
  if (table.registered_state == 0 || num_main <= table.registered_state) return kNullBlockId;
  const int64_t position = (table.registered_state - 1) / groups_[g].block_size();
  return table.blocks[static_cast<size_t>(position)];
}

void Manager::TakeCopyFor(Request& request, size_t g, const AllocateParams& params, bool is_new,
                          int64_t num_main) {
  GroupTable& table = request.tables[g];
  Copy copy{.group = static_cast<GroupId>(g)};
  if (is_new && EndsInside(params, g)) {  // BM-121
    copy.target = Take(1, g).front();
    pool_.Touch({copy.target});
    copy.source = std::exchange(table.blocks.back(), copy.target);
    --table.num_cached;
  } else if (!is_new && OverwrittenState(request, g, num_main) != kNullBlockId) {  // BM-122
    copy.source = OverwrittenState(request, g, num_main);
    copy.target = Take(1, g).front();
    table.registered_state = 0;
    pool_.Touch({copy.source});
    const Block& source = pool_.blocks()[static_cast<size_t>(copy.source)];
    if (source.partial_tokens > 0 && source.further.empty()) {
      pool_.MoveKey(copy.source, copy.target);
    }
    NoteState(copy.target);  // V-118
  } else {
    return;
  }
  copies_.push_back(copy);
}

std::vector<Copy> Manager::TakeCopies() {  // V-116: by group, then by call
  std::vector<Copy> by_group;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const Copy& copy : copies_) {
      if (copy.group == static_cast<GroupId>(g)) by_group.push_back(copy);
    }
  }
  copies_ = std::move(by_group);
  for (const Copy& copy : copies_) {
    ++outside_references_[static_cast<size_t>(copy.source)];
    ++outside_references_[static_cast<size_t>(copy.target)];
  }
  return std::exchange(copies_, {});
}

void Manager::Trim(Request& request, int64_t num_processed) {  // BM-62
  if (!request.is_known) return;
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupTable& table = request.tables[g];
    std::vector<BlockId> freed;
    for (int64_t i = table.size() - 1; i >= 0; --i) {
      BlockId& id = table.blocks[static_cast<size_t>(i)];
      if (id == kNullBlockId) continue;
      if (!groups_[g].IsOldOutput(i, request.num_prompt, num_processed)) continue;
      freed.push_back(std::exchange(id, kNullBlockId));
    }
    for (int64_t i = std::min(groups_[g].SkippedBlocks(num_processed), table.size()) - 1; i >= 0;
         --i) {
      BlockId& id = table.blocks[static_cast<size_t>(i)];
      if (id == kNullBlockId && groups_[g].is_mamba()) continue;  // BM-110
      if (id == kNullBlockId) break;
      freed.push_back(std::exchange(id, kNullBlockId));
    }
    pool_.Free(freed);
  }
}

bool Manager::RemoveSkippedBlocks(Request& request, int64_t num_processed) {
  if (num_processed < 0) return false;
  Trim(request, num_processed);
  return true;
}

void Manager::Free(Request& request) {  // BM-63, BM-101
  for (GroupTable& table : request.tables) {
    pool_.Free({table.blocks.rbegin(), table.blocks.rend()});
  }
  request.tables.clear();
  request.is_known = false;
}

std::vector<BlockId> Manager::Pop(Request& request) {
  std::vector<BlockId> popped;
  for (const GroupTable& table : request.tables) {
    // Nulls at the beginning are left out (V-32).
    bool is_leading = true;
    for (BlockId id : table.blocks) {
      is_leading = is_leading && id == kNullBlockId;
      if (!is_leading) popped.push_back(id);
    }
  }
  for (BlockId id : popped) {
    if (id != kNullBlockId) ++outside_references_[static_cast<size_t>(id)];
  }
  request.tables.clear();
  request.is_known = false;
  return popped;
}

void Manager::Pin(const std::vector<BlockId>& ids) {
  pool_.Touch(ids);
  for (BlockId id : ids) {
    if (id != kNullBlockId) ++outside_references_[static_cast<size_t>(id)];
  }
}

bool Manager::FreeBlocks(const std::vector<BlockId>& ids) {
  std::vector<int> left = outside_references_;
  for (BlockId id : ids) {
    if (id < 0 || id >= static_cast<BlockId>(left.size())) return false;
    if (id != kNullBlockId && --left[static_cast<size_t>(id)] < 0) return false;
  }
  outside_references_ = left;
  return pool_.Free(ids);
}

// What of a request's tokens is registered for reuse: how many of them, which positions, and the
// end of its prompt.

int64_t Manager::RegistrationBound(const GroupRules& rules, int64_t n) const {  // BM-85, V-14
  const int64_t is_final = std::max<int64_t>(0, n - num_replayed_);
  int64_t bound = is_final;
  if (groups_.size() > 1 && !options_.register_unreachable_blocks) {
    bound = options_.partial_hits ? n : RoundDown(n, alignment());  // BM-118
    if (rules.is_draft && n >= alignment()) {  // also of states, which drop nothing
      bound = std::min(is_final, RoundDown(is_final, alignment()) + rules.DropUnit());
    }
  }
  return bound;
}

void Manager::Register(Request& request, int64_t num_tokens) {  // BM-61, BM-73
  if (!options_.enable_caching) return;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupRules& rules = groups_[g];
    if (rules.is_mamba() && rules.mode() == MambaCacheMode::kNone) continue;
    if (!rules.is_looked_up) continue;
    const int64_t n = RegistrationBound(rules, num_tokens);
    GroupTable& table = request.tables[g];
    const bool looks_ahead = options_.num_hash_lookahead_tokens > 0;
    const int64_t hashed = looks_ahead ? std::min(n, NumHashed(request)) : n;
    const int64_t full = hashed / rules.block_size();  // V-11
    if (full <= table.num_cached) {
      RegisterTail(request, g, n);
      continue;
    }
    const std::vector<bool> mask = Mask(request, g, full);
    pool_.Register(RegistrationOf(request, g), table.blocks, table.num_cached, full, mask);
    const bool is_watched = rules.is_mamba() || (rules.is_full() && rules.is_fine());
    for (int64_t i = table.num_cached; i < full && is_watched; ++i) {
      const BlockId id = table.blocks[static_cast<size_t>(i)];
      if (id == kNullBlockId) continue;
      if (rules.is_mamba()) {
        NoteState(id);
      } else {
        registered_in_step_.insert(id);
      }
    }
    table.num_cached = full;
    RegisterTail(request, g, n);
  }
}

std::vector<int64_t> Manager::Boundaries(const GroupRules& rules, const Request& request) const {
  // BM-117: where a resend of the prompt can end its hit.
  std::vector<int64_t> boundaries = {request.num_prompt - 1};
  const bool for_drop = any_drops_ && !options_.semantics.is_025;
  const int64_t unit = scheduler_block_size_;
  if (for_drop) {  // V-3: and a longer prompt, each after the drop
    boundaries = {RoundDown(request.num_prompt - 1, unit) - unit,
                  RoundDown(request.num_prompt, unit) - unit};
  }
  if (request.shared_boundary > 0) {
    boundaries.push_back(request.shared_boundary);
    if (for_drop && rules.is_draft) {
      boundaries.push_back(request.shared_boundary - rules.block_size());
    }
  }
  for (int64_t& boundary : boundaries) boundary = std::max<int64_t>(0, boundary);
  return boundaries;
}

std::vector<bool> Manager::Mask(const Request& request, size_t g, int64_t full) const {
  const GroupRules& rules = groups_[g];
  const GroupTable& table = request.tables[g];
  const std::optional<int64_t> interval = options_.semantics.retention_interval;
  std::vector<bool> mask;
  for (int64_t i = table.num_cached; i < full; ++i) {
    bool keep = groups_.size() == 1 || options_.register_unreachable_blocks ||
                rules.IsReachable(i, alignment());
    if (interval) {
      std::vector<int64_t> boundaries = Boundaries(rules, request);
      if (rules.is_mamba() && options_.semantics.registers_earlier_states) {  // V-6
        for (int64_t& boundary : boundaries) {
          boundary = RoundDown(RoundDown(boundary, alignment()), rules.block_size());
        }
      }
      keep = rules.IsRetained(i, *interval, alignment(), boundaries);
    }
    if (rules.keeps_nothing()) keep = false;                           // V-36
    if (rules.is_mamba() && rules.mode() == MambaCacheMode::kAlign &&
        !options_.semantics.registers_earlier_states) {  // BM-111, V-6
      keep = keep && (i + 1) * rules.block_size() == table.chunk_end;
    }
    keep = keep || (i + 1) * rules.block_size() == table.checkpoint;  // V-45
    mask.push_back(keep);
  }
  return mask;
}

bool Manager::CacheBlocks(Request& request, int64_t num_tokens) {  // BM-103
  if (!options_.enable_caching) return true;
  if (num_tokens < 0 || num_tokens > request.content.num_tokens()) return false;
  if (!request.is_known) return num_tokens == 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    // What others cannot use is registered nowhere.
    const int64_t covered = request.tables[g].size() * groups_[g].block_size();
    if (groups_[g].is_looked_up && num_tokens > covered) return false;
  }
  Register(request, num_tokens);
  return true;
}

Registration Manager::RegistrationOf(const Request& request, size_t g) const {
  return {.content = &request.content,
          .prefix_names = &request.prefix_names,
          .hash_block_size = hash_block_size_,
          .block_size = groups_[g].block_size(),
          .group = static_cast<GroupId>(g),
          .num_lookahead = options_.num_hash_lookahead_tokens};
}

int64_t Manager::TailOfPrompt(const GroupRules& rules, const Request& request) const {
  const int64_t prompt = request.num_prompt;
  int64_t tail = RoundDown(prompt, hash_block_size_);  // BM-120
  if (!options_.semantics.is_025) {     // V-20, V-21
    const int64_t unusable =
        rules.is_mamba() ? std::max<int64_t>(1, options_.num_hash_lookahead_tokens) : 1;
    if (!(rules.is_mamba() ? any_drops_ : rules.is_draft)) {
      tail = RoundDown(std::max<int64_t>(0, prompt - unusable), hash_block_size_);
    } else if (rules.is_mamba()) {
      tail -= hash_block_size_;
    }
  }
  return std::min(tail, NumHashed(request));
}

void Manager::RegisterTail(Request& request, size_t g, int64_t n) {  // BM-120, V-20, V-22
  const GroupRules& rules = groups_[g];
  GroupTable& table = request.tables[g];
  const bool is_usable = rules.is_fine();
  const bool is_state = rules.is_mamba() && rules.mode() == MambaCacheMode::kAlign &&
                        !options_.semantics.is_025;  // V-115
  const bool is_wanted =
      is_usable || is_state || (options_.semantics.registers_unusable_tails && rules.is_full() &&
                                rules.block_size() > hash_block_size_);
  const int64_t tail = TailOfPrompt(rules, request);
  if (!is_wanted || tail <= 0 || n < tail) return;
  if (rules.is_mamba() && table.checkpoint != tail) {  // V-115: in the call that ends there
    if (n != tail) return;
    if (table.chunk_end != tail && !options_.semantics.registers_earlier_states) return;
  }
  const bool again = !options_.semantics.is_025;
  const bool ends_inside = tail % rules.block_size() != 0;
  if (ends_inside && rules.is_mamba() && !MovesStates(rules)) return;
  const int64_t position = (tail - 1) / rules.block_size();
  if (position >= table.size()) return;
  if (!again && (table.is_tail_dealt_with || !ends_inside)) return;
  if (!again && position < table.num_cached) return;  // full already
  if (!ends_inside && !rules.is_mamba()) return;
  const BlockId id = table.blocks[static_cast<size_t>(position)];
  if (id == kNullBlockId) return;
  table.is_tail_dealt_with = true;
  const bool is_new = pool_.RegisterPartial(RegistrationOf(request, g), id, tail, again);
  if (!is_new) return;
  if (rules.is_mamba()) {
    NoteState(id);
  } else if (is_usable) {
    registered_in_step_.insert(id);
  }
  if (rules.is_mamba() && ends_inside && table.checkpoint != tail) table.registered_state = tail;
}

}  // namespace kvblocks::oracle
