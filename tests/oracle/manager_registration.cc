// What of a request's tokens is registered for reuse: how many of them, which positions, and the
// end of its prompt.

#include <algorithm>

#include "tests/oracle/manager.h"

namespace kvblocks::oracle {

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
