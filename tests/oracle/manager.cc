#include "tests/oracle/manager.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvblocks::oracle {
namespace {

// More than this is refused as a number of tokens or blocks.
constexpr int64_t kMaxTokens = int64_t{1} << 40;

bool InRange(int64_t n) { return n >= 0 && n <= kMaxTokens; }

// Callers may pass any number; no sum may wrap.
int64_t Add(int64_t a, int64_t b) {
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

}  // namespace

Manager::Manager(const KvCacheConfig& config, const KvCacheManagerOptions& options)
    : options_(options),
      watermark_base_(config.native ? config.native->num_chunks : config.num_blocks),
      pool_(config.num_blocks, options.enable_caching, options.enable_events,
            options.free_order == FreeOrder::kUnhashedFirst, config.native,
            options.semantics.one_event_per_registration),
      outside_references_(static_cast<size_t>(config.num_blocks)) {
  const int64_t in_flight = options.max_in_flight_tokens.value_or(options.max_model_len);
  const bool is_exact = options.block_count_formula == BlockCountFormula::kExact;
  bool any_draft = false;
  for (const KvCacheGroup& group : config.groups) any_draft = any_draft || group.is_draft;
  // V-10: lookahead hashes leave nothing to be dropped or computed again. V-13.
  const bool may_drop = options.num_hash_lookahead_tokens == 0 &&
                        (options.use_eagle || options.semantics.is_025);
  num_replayed_ = std::max<int64_t>(0, options.prefill_lookahead_tokens - 1);
  int64_t lcm = 1;
  int64_t gcd = 0;
  for (const KvCacheGroup& group : config.groups) {
    GroupRules rules{.spec = group.spec};
    // BM-3, BM-113: states and rings are on every rank.
    if (!rules.is_mamba() && !rules.is_ring()) {
      rules.num_ranks = options.decode_context_parallel * options.prefill_context_parallel;
    }
    // V-46, BM-112
    rules.is_looked_up = !options.enable_caching || !(rules.is_ring() || rules.is_cross() ||
                                                      group.spec.options().bounded_replay);
    groups_.push_back(
        {.spec = group.spec,
         .is_draft = may_drop && (group.is_draft || (options.use_eagle && !any_draft)),  // BM-80
         .num_ranks = rules.num_ranks,
         .is_looked_up = rules.is_looked_up,
         .admission_cap =
             AdmissionCapOf(group.spec, options.max_model_len, in_flight, is_exact),
         .num_kept = num_replayed_,
         .is_025 = options.semantics.is_025});
    groups_.back().output_cap =
        OutputCapOf(groups_.back(), options.max_model_len, in_flight, is_exact);
    if (rules.is_looked_up) {
      lcm = std::lcm(lcm, groups_.back().block_size());
      gcd = std::gcd(gcd, groups_.back().block_size());
    }
    if (group.spec.sink_length() > 0) {
      pool_.TakePermanent(group.spec.sink_length() / group.spec.block_size(),  // BM-70
                          static_cast<GroupId>(groups_.size()) - 1);
    }
  }
  // Siblings with an equal spec share the flag (BM-73, BM-82).
  for (GroupRules& a : groups_) {
    for (const GroupRules& b : groups_) a.is_draft = a.is_draft || (a.spec == b.spec && b.is_draft);
    any_drops_ = any_drops_ || a.is_draft;
  }
  scheduler_block_size_ = config.scheduler_block_size.value_or(lcm);  // BM-4
  hash_block_size_ = !options.enable_caching
                         ? scheduler_block_size_
                         : config.hash_block_size.value_or(std::max<int64_t>(gcd, 1));
  for (const GroupRules& rules : groups_) {
    if (rules.is_mamba() && rules.mode() != MambaCacheMode::kAlign) {
      hash_block_size_ = scheduler_block_size_;  // KS-92
    }
  }
  if (!options_.enable_caching) options_.partial_hits = false;
  for (GroupRules& rules : groups_) rules.fine_unit = options_.partial_hits ? hash_block_size_ : 0;
}

int64_t Manager::alignment() const {                   // BM-79
  if (options_.partial_hits) return hash_block_size_;  // BM-118
  return groups_.size() == 1 ? groups_[0].block_size() : scheduler_block_size_;
}

Request Manager::NewRequest(Content content, bool skip_reading) const {
  Request request;
  request.content = std::move(content);
  request.skip_reading = skip_reading;
  request.num_prompt = request.content.num_tokens();
  Append(request, {});
  return request;
}

void Manager::Append(Request& request, const std::vector<TokenId>& tokens) const {
  request.content.tokens.insert(request.content.tokens.end(), tokens.begin(), tokens.end());
  if (options_.enable_caching) {
    request.prefix_names =
        PrefixNames(request.content, hash_block_size_, options_.num_hash_lookahead_tokens);
  }
}

LookupQuery Manager::QueryFor(const Request& request, int64_t max_tokens) const {
  LookupQuery query{.prefix_names = &request.prefix_names,
                    .hash_block_size = hash_block_size_,
                    .max_tokens = max_tokens,
                    .alignment = alignment()};
  const bool may_be_last = !options_.semantics.is_025 && groups_.size() > 1;
  query.max_with_drop = may_be_last ? NumHashed(request) : query.max_tokens;  // V-12
  return query;
}

std::optional<Hits> Manager::GetComputedBlocks(const Request& request) const {  // BM-89
  if (request.content.num_tokens() == 0) return std::nullopt;
  if (!options_.enable_caching || request.skip_reading || groups_.empty()) {
    Hits none;
    none.lists.resize(groups_.size());
    return none;
  }
  const int64_t all_but_last = request.content.num_tokens() - 1;
  const Hits found = FindHits(pool_, groups_, QueryFor(request, all_but_last));
  if (NumToReplay() == 0 || found.tokens == 0) return found;
  const int64_t most = std::max<int64_t>(0, found.tokens - NumToReplay());
  Hits hits = FindHits(pool_, groups_, QueryFor(request, most));
  hits.replayed = found.tokens - hits.tokens;
  hits.boundary = std::max(found.tokens, found.boundary);  // BM-84: what some look-up found
  return hits;
}

int64_t Manager::LongestHit(const Request& request) const {
  const int64_t all_but_last = request.content.num_tokens() - 1;
  const int64_t longest = LongestCommonHit(pool_, groups_, QueryFor(request, all_but_last));
  if (NumToReplay() == 0 || longest == 0) return longest;
  const int64_t most = std::max<int64_t>(0, longest - NumToReplay());
  return LongestCommonHit(pool_, groups_, QueryFor(request, most));
}

int64_t Manager::NumToReplay() const {
  int64_t most = 0;
  for (const GroupRules& rules : groups_) {
    if (rules.spec.options().bounded_replay) most = std::max(most, *rules.spec.sliding_window());
  }
  return most;
}

int64_t Manager::MainTokens(const Request& request, const AllocateParams& params) const {
  return Add(TotalComputed(request, params), params.num_new);
}

bool Manager::IsValid(const Request& request, const AllocateParams& params) const {  // BM-91
  static const Hits kNoHits;
  const Hits& hits = params.hits ? *params.hits : kNoHits;
  for (int64_t n : {params.num_new, params.num_lookahead, params.num_external, params.reserved,
                    params.num_encoder, hits.tokens, request.num_computed, request.num_inflight}) {
    if (!InRange(n)) return false;
  }
  if (params.num_new == 0 && params.num_external == 0 &&
      !(hits.tokens > 0 && !options_.semantics.is_025)) {  // V-40
    return false;
  }
  if (request.status == Status::kFinished) return false;
  if (Add(Add(request.num_computed, hits.tokens), params.num_external) > options_.max_model_len &&
      options_.semantics.is_025) {  // V-41
    return false;
  }
  if (request.is_known && (hits.has_blocks() || hits.tokens > 0 || params.num_external > 0)) {
    return false;
  }
  if (!request.is_known && request.num_computed > 0) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {  // BM-112
    if (!groups_[g].is_cross()) continue;
    const int64_t most = options_.max_encoder_tokens.value_or(0);
    if (params.num_external > 0 || params.num_encoder > most) return false;
    const int64_t held = request.is_known ? request.tables[g].size() : 0;
    if (held > 0 && params.num_encoder > held * groups_[g].block_size()) return false;
  }
  if (hits.lists.empty() && hits.tokens == 0) return true;
  if (hits.lists.size() != groups_.size()) return false;
  if (options_.partial_hits && hits.tokens % hash_block_size_ != 0) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t bs = groups_[g].block_size();
    const std::vector<BlockId>& list = hits.lists[g];
    if (!groups_[g].is_looked_up) {
      if (!list.empty()) return false;
      continue;
    }
    if (options_.partial_hits && hits.tokens % bs != 0 && params.num_external > 0) return false;
    if (static_cast<int64_t>(list.size()) != CeilDiv(hits.tokens, bs)) return false;
    for (int64_t i = 0; i < static_cast<int64_t>(list.size()); ++i) {
      const BlockId id = list[static_cast<size_t>(i)];
      if (id == kNullBlockId) {
        // A hand-made or truncated list may lack what the next token needs.
        const int64_t total = TotalComputed(request, params);
        if (i >= groups_[g].UnneededBlocks(total)) return false;
        continue;
      }
      if (id < 0 || id >= static_cast<BlockId>(pool_.blocks().size())) return false;
      if (options_.semantics.trusts_hits) {  // V-36; never a page of another size
        if (pool_.ClassOf(id) != pool_.ClassOfGroup(static_cast<GroupId>(g))) return false;
      } else if (!HoldsHit(request, params, g, i)) {
        return false;
      }
    }
  }
  return true;
}

bool Manager::HoldsHits(const Request& request, const AllocateParams& params) const {
  for (size_t g = 0; params.hits != nullptr && g < params.hits->lists.size(); ++g) {
    for (int64_t i = 0; i < static_cast<int64_t>(params.hits->lists[g].size()); ++i) {
      const bool is_null = params.hits->lists[g][static_cast<size_t>(i)] == kNullBlockId;
      if (!is_null && !HoldsHit(request, params, g, i)) return false;
    }
  }
  return true;
}

bool Manager::HoldsHit(const Request& request, const AllocateParams& params, size_t g,
                       int64_t i) const {
  const int64_t bs = groups_[g].block_size();
  const Hits& hits = *params.hits;
  const BlockId id = hits.lists[g][static_cast<size_t>(i)];
  if (EndsInside(params, g) && (i + 1) * bs > hits.tokens) {
    // A longer prefix will do, but a state is that of its last token.
    for (int64_t end = hits.tokens; end <= (i + 1) * bs; end += hash_block_size_) {
      const auto at = static_cast<size_t>(end / hash_block_size_ - 1);
      if (at >= request.prefix_names.size() || (groups_[g].is_mamba() && end > hits.tokens)) {
        continue;
      }
      if (pool_.HasKey(id, {request.prefix_names[at], static_cast<GroupId>(g)})) return true;
    }
    return false;
  }
  const int64_t last = (i + 1) * bs / hash_block_size_ - 1;
  return last < static_cast<int64_t>(request.prefix_names.size()) &&
         pool_.HasKey(id,
                      {request.prefix_names[static_cast<size_t>(last)], static_cast<GroupId>(g)});
}

// The most states that a request holds at once: its own, the one before it, those of drafts, one
// that a step exports, and where hits may end inside blocks the one that gives way to the next.
int64_t Manager::MostStates(const GroupRules& rules) const {
  if (options_.max_model_len <= rules.block_size()) return 1 + rules.num_scratch();
  const bool exports =
      options_.enable_caching && rules.spec.options().num_checkpoint_blocks > 0;
  return 2 + rules.num_scratch() + (exports ? 1 : 0) + (MovesStates(rules) ? 1 : 0);
}

bool Manager::MovesStates(const GroupRules& rules) const {  // BM-122, V-115
  const Semantics& semantics = options_.semantics;
  return rules.is_fine() ||
         (options_.enable_caching && !semantics.is_025 &&
          semantics.registers_unusable_tails && rules.block_size() > hash_block_size_);
}

std::vector<PageNeed> Manager::Needs(const Request& request, const AllocateParams& params,
                                     int64_t num_slots, bool apply_cap) const {  // BM-56
  const int64_t processed =
      std::max<int64_t>(0, TotalComputed(request, params) - request.num_inflight);
  std::vector<PageNeed> needs;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupRules& rules = groups_[g];
    std::vector<BlockId> hits;
    if (!request.is_known && params.hits && g < params.hits->lists.size()) {
      hits = params.hits->lists[g];
    }
    // Positions that get no block.
    int64_t skipped = rules.BlocksNotAdopted(TotalComputed(request, params));
    while (skipped < static_cast<int64_t>(hits.size()) &&
           hits[static_cast<size_t>(skipped)] == kNullBlockId) {
      ++skipped;
    }
    // Real blocks that it has, or is about to adopt.
    int64_t num_held = request.is_known ? request.tables[g].num_real() : 0;
    for (size_t i = static_cast<size_t>(skipped); i < hits.size(); ++i) {
      num_held += hits[i] != kNullBlockId;
    }
    int64_t have = static_cast<int64_t>(hits.size());
    if (request.is_known) {
      skipped = request.tables[g].leading_nulls();
      have = request.tables[g].size();
    }
    // Hits aside.
    const auto pages_for = [&](int64_t slots, bool capped, bool is_gate) {
      if (rules.has_own_layout()) {  // BM-111, BM-112, V-46
        const int64_t main = capped ? slots : MainTokens(request, params);
        GroupTable table = request.is_known ? request.tables[g] : GroupTable();
        if (!request.is_known) table.blocks = Adopted(g, request, params);
        const Step step{.has_scratch = request.is_known,
                        .num_computed = TotalComputed(request, params),
                        .num_slots = slots,
                        .num_main = std::min(main, options_.max_model_len),
                        .num_encoder = params.num_encoder,
                        .num_prompt = request.num_prompt};
        const std::vector<BlockId> grown = Grown(rules, table, step);
        const int64_t taken = std::count(grown.begin(), grown.end(), kNew);
        if (!capped || !request.is_known || !rules.is_mamba() ||
            rules.mode() != MambaCacheMode::kAlign) {
          return taken;
        }
        // BM-110: of more than 2 + k, and a checkpoint, one is given back first.
        const int64_t most =
            2 + rules.num_scratch() + (CheckpointOf(rules, table, step) > 0 ? 1 : 0);
        return std::min(taken, std::max<int64_t>(0, most - table.num_real()));
      }
      std::optional<int64_t> cap = rules.admission_cap;
      if (rules.output_cap) {  // BM-116: the prompt stays
        cap = CeilDiv(request.num_prompt, rules.block_size()) + *rules.output_cap;
      }
      const int64_t required = CeilDiv(slots, rules.block_size());
      if (is_gate && cap && !options_.semantics.is_025) {  // V-42
        return std::max<int64_t>(std::min(required, *cap) - std::max(have, skipped), 0);
      }
      const int64_t missing = std::max<int64_t>(required - std::max(have, skipped), 0);
      if (!capped || !cap) return missing;
      return std::min(missing, std::max<int64_t>(*cap - num_held, 0));
    };
    PageNeed need;
    need.pages = pages_for(num_slots, apply_cap, /*is_gate=*/apply_cap);
    need.later = std::max<int64_t>(0, pages_for(options_.max_model_len, true, false) - need.pages);
    const int64_t main = apply_cap ? num_slots : MainTokens(request, params);
    // Only the gate comes before the trim, which may give the state back.
    const bool is_trimmed =
        !apply_cap && request.is_known &&
        request.tables[g].registered_state <= rules.SkippedBlocks(processed) * rules.block_size();
    if ((!request.is_known && EndsInside(params, g)) ||
        (OverwrittenState(request, g, std::min(main, options_.max_model_len)) != kNullBlockId &&
         !is_trimmed)) {
      ++need.pages;  // the copy
    }
    if (rules.is_mamba() && rules.mode() == MambaCacheMode::kAlign) {
      need.later = std::max<int64_t>(0, MostStates(rules) - num_held - need.pages);
    }
    for (size_t i = static_cast<size_t>(skipped); i < hits.size(); ++i) {
      if (hits[i] != kNullBlockId && pool_.blocks()[static_cast<size_t>(hits[i])].ref_count == 0) {
        need.unreferenced_hits.push_back(hits[i]);
      }
    }
    needs.push_back(std::move(need));
  }
  return needs;
}

int64_t Manager::Need(const Request& request, const AllocateParams& params, int64_t num_slots,
                      bool apply_cap) const {
  int64_t sum = 0;
  for (const PageNeed& need : Needs(request, params, num_slots, apply_cap)) {
    sum += need.pages + static_cast<int64_t>(need.unreferenced_hits.size());
  }
  return sum;
}

bool Manager::Fits(const Request& request, const AllocateParams& params, int64_t num_slots,
                   bool apply_cap, int64_t watermark, int64_t reserved) {
  if (pool_.is_native()) {
    return pool_.Promise(Needs(request, params, num_slots, apply_cap), watermark, reserved);
  }
  return Need(request, params, num_slots, apply_cap) + watermark <= pool_.num_free() - reserved;
}

Outcome Manager::Allocate(Request& request, const AllocateParams& params,
                          std::vector<std::vector<BlockId>>* out) {  // BM-92 to BM-99
  if (!IsValid(request, params)) return Outcome::kInvalid;
  const int64_t total = TotalComputed(request, params);
  const int64_t main = MainTokens(request, params);
  const int64_t num_slots = std::min(Add(main, params.num_lookahead), options_.max_model_len);
  const int64_t processed = std::max<int64_t>(0, total - request.num_inflight);
  const bool is_admission =
      request.status == Status::kWaiting || request.status == Status::kPreempted;
  const int64_t watermark = params.has_scheduled && is_admission
                                ? static_cast<int64_t>(std::floor(
                                      options_.watermark * static_cast<double>(watermark_base_)))
                                : 0;

  if (UsesStateOfThisStep(request, params)) return Outcome::kNoSpace;
  if (params.gate) {
    const int64_t known = std::min(request.content.num_tokens(), options_.max_model_len);
    if (!Fits(request, params, known, /*apply_cap=*/true, watermark, 0)) return Outcome::kNoSpace;
  }
  Trim(request, processed);
  if (!Fits(request, params, num_slots, /*apply_cap=*/false, watermark, params.reserved)) {
    return Outcome::kNoSpace;
  }
  const bool was_known = std::exchange(request.is_known, true);
  const Step step{.has_scratch = was_known,
                  .num_computed = total,
                  .num_slots = num_slots,
                  .num_main = std::min(main, options_.max_model_len),
                  .num_encoder = params.num_encoder,
                  .num_prompt = request.num_prompt};
  if (!was_known) {
    request.tables.assign(groups_.size(), {});
    Adopt(request, params);
  }
  out->assign(groups_.size(), {});
  for (size_t g = 0; g < groups_.size(); ++g) {  // BM-60, V-117
    GroupTable& table = request.tables[g];
    TakeCopyFor(request, g, params, !was_known, step.num_main);
    const auto old_size = static_cast<std::ptrdiff_t>(table.blocks.size());
    table.checkpoint = CheckpointOf(groups_[g], table, step);
    table.blocks = Grown(groups_[g], table, step);
    table.chunk_end = step.num_main;
    TakeNew(table, g);
    // BM-99: the copy of a hit's end counts as new.
    const bool has_copy = !was_known && EndsInside(params, g);
    (*out)[g].assign(table.blocks.begin() + old_size - (has_copy ? 1 : 0), table.blocks.end());
  }
  if (!params.delay) {
    Register(request, std::min({main, request.content.num_tokens(), options_.max_model_len}));
  }
  return Outcome::kOk;
}

bool Manager::UsesStateOfThisStep(const Request& request, const AllocateParams& params) const {
  if (request.is_known || params.hits == nullptr) return false;
  for (size_t g = 0; g < groups_.size() && g < params.hits->lists.size(); ++g) {  // BM-108
    const std::vector<BlockId>& list = params.hits->lists[g];
    if (list.empty()) continue;
    if (groups_[g].is_mamba()) {
      const std::optional<Key>& key = pool_.blocks()[static_cast<size_t>(list.back())].key;
      if (key && state_keys_in_step_.count(*key) > 0) return true;
    } else if (!options_.semantics.trusts_hits && EndsInside(params, g) &&
               registered_in_step_.count(list.back()) > 0) {
      return true;  // BM-121: a copy is made before the step writes anything
    }
  }
  return false;
}

bool Manager::Reset() {
  if (!pool_.Reset()) return false;
  stats_.reset = true;
  return true;
}

std::optional<Hits> Manager::Truncate(const Hits& hits, int64_t num_tokens) const {  // BM-104
  if (num_tokens < 0 || num_tokens > hits.tokens || hits.lists.size() != groups_.size()) {
    return std::nullopt;
  }
  Hits cut;
  cut.tokens = num_tokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].is_looked_up) {
      cut.lists.emplace_back();
      continue;
    }
    if (num_tokens % groups_[g].block_size() != 0) return std::nullopt;
    const auto begin = hits.lists[g].begin();
    cut.lists.emplace_back(begin, begin + num_tokens / groups_[g].block_size());
  }
  return cut;
}

std::vector<int64_t> Manager::CommonPrefix(const Request& request,
                                           const std::vector<const Request*>& all) const {
  std::vector<int64_t> lengths(groups_.size(), 0);
  if (!options_.enable_caching || !request.is_known) return lengths;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].is_full()) continue;
    const std::vector<BlockId>& mine = request.tables[g].blocks;
    const auto shared_by_all = [&](int64_t i) {
      if (mine[static_cast<size_t>(i)] == kNullBlockId) return false;  // BM-69
      return std::all_of(all.begin(), all.end(), [&](const Request* other) {
        if (!other->is_known) return true;
        const GroupTable& theirs = other->tables[g];
        return i < theirs.size() &&
               theirs.blocks[static_cast<size_t>(i)] == mine[static_cast<size_t>(i)];
      });
    };
    while (lengths[g] < static_cast<int64_t>(mine.size()) && shared_by_all(lengths[g])) {
      ++lengths[g];
    }
  }
  return lengths;
}

void Manager::RecordStats(const Request& request, int64_t num_hit_tokens) {  // BM-105
  if (!options_.log_stats || !options_.enable_caching || request.skip_reading) return;
  const int64_t num_tokens = request.content.num_tokens();
  if (request.num_preemptions == 0) {
    stats_.requests += 1;
    stats_.queries += num_tokens;
    stats_.hits += num_hit_tokens;
  } else {
    stats_.preempted_requests += 1;
    stats_.preempted_queries += num_tokens;
    stats_.preempted_hits += num_hit_tokens;
  }
}

Stats Manager::MakeStats() { return std::exchange(stats_, {}); }

std::vector<Event> Manager::TakeEvents() {  // BM-52
  std::vector<Event> events = pool_.TakeEvents();
  for (Event& event : events) {
    if (event.kind != Event::Kind::kStored) continue;
    const KvCacheSpec& spec = groups_[static_cast<size_t>(event.group)].spec;
    event.spec_kind = std::string(spec.kind_name());
    event.sliding_window = spec.sliding_window();
  }
  return events;
}

}  // namespace kvblocks::oracle
