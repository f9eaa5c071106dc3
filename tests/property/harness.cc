#include "kvblocks/tests/property/harness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/tests/property/invariants.h"

namespace kvblocks::property {
namespace {

constexpr size_t kMaxRequests = 6;

}  // namespace

std::unique_ptr<Harness> Harness::Create(const Scenario& scenario) {
  auto manager = KvCacheManager::Create(scenario.config, scenario.options);
  if (!manager.ok()) return nullptr;
  return std::unique_ptr<Harness>(new Harness(scenario, *std::move(manager)));
}

Harness::Harness(const Scenario& scenario, std::unique_ptr<KvCacheManager> manager)
    : scenario_(scenario),
      manager_(std::move(manager)),
      model_(scenario.config, scenario.oracle_options),
      outside_(static_cast<size_t>(scenario.config.num_blocks), 0) {
  Expect(manager_->scheduler_block_size() == model_.scheduler_block_size(), "scheduler block size");
  CheckAll();
}

void Harness::Expect(bool condition, const std::string& message) const {
  if (condition) return;
  RC_FAIL(absl::StrCat(message, "\n", scenario_.ToString(), "\n", absl::StrJoin(log_, "\n")));
}

void Harness::Run(const Operation& operation) {
  Numbers numbers(operation.numbers);
  const int kind = operation.kind;
  if (operation.numbers >> 61 != 0) {
    Log("new step");
    manager_->NewStepStarts();
    model_.NewStepStarts();
    TakeCopies();
  }
  if (requests_.empty() || (kind < 12 && requests_.size() < kMaxRequests)) {
    NewRequest(numbers);
  } else {
    LiveRequest& request = Pick(numbers);
    const size_t index = static_cast<size_t>(&request - requests_.data());
    if (kind < 12) {
      Free(index, /*preempt=*/false);
    } else if (kind < 16) {
      LookUp(request);
    } else if (kind < 36) {
      Admit(request, numbers);
    } else if (kind < 66) {
      Step(request, numbers);
    } else if (kind < 69) {
      Append(request, numbers.Below(6));
    } else if (kind < 73) {
      Free(index, /*preempt=*/false);
    } else if (kind < 76) {
      Free(index, /*preempt=*/true);
    } else if (kind < 78) {
      Pop(request);
    } else if (kind < 80) {
      FreePopped(numbers);
    } else if (kind < 81) {
      Pin(request, numbers);
    } else if (kind < 83) {
      Trim(request, numbers);
    } else if (kind < 86) {
      CacheBlocks(request, numbers);
    } else if (kind < 88) {
      Evict(numbers);
    } else if (kind < 89) {
      Reset();
    } else if (kind < 91) {
      Truncate(request, numbers);
    } else if (kind < 93) {
      Stats(request, numbers);
    } else if (kind < 95) {
      Query(request, numbers);
    } else if (kind < 98) {
      Misuse(request, numbers);
    } else if (kind < 99) {
      MisuseLists(request, numbers);
    } else {
      MisuseForeign();
    }
  }
  CheckAll();
}

void Harness::CheckAll() {
  ExpectEmpty(Difference(*manager_, model_, requests_, names_));
  std::vector<int> outside = outside_;
  for (const oracle::Copy& copy : model_.copies()) {
    ++outside[static_cast<size_t>(copy.source)];
    ++outside[static_cast<size_t>(copy.target)];
  }
  if (!has_stale_tables_) ExpectEmpty(BrokenInvariant(*manager_, requests_, outside));
  const std::vector<KvEvent> events = manager_->TakeEvents();
  Expect(Translate(events, names_) == model_.TakeEvents(), "events differ");
  if (scenario_.options.enable_events) {
    ExpectEmpty(mirror_.Apply(events, semantics().one_event_per_registration));
    ExpectEmpty(mirror_.Difference(manager_->pool()));
  } else {
    Expect(events.empty(), "events although they are disabled");
  }
  for (const LiveRequest& request : requests_) {
    for (size_t g = 0; g < request.model.tables.size() && !has_stale_tables_; ++g) {
      const oracle::GroupTable& table = request.model.tables[g];
      Expect(table.num_cached <= table.size() &&
                 table.num_cached * model_.groups()[g].block_size() <=
                     std::max(request.model.content.num_tokens(), request.max_processed),
             "INV-21");
    }
  }
}

void Harness::NewRequest(Numbers numbers) {
  oracle::Content content;
  const int64_t limit = scenario_.options.max_model_len;
  const int64_t shared = numbers.Below(limit);
  const int64_t document = numbers.Below(2);
  for (int64_t p = 0; p < shared; ++p) {
    content.tokens.push_back(static_cast<TokenId>(1000 * document + p));
  }
  const int64_t tail = numbers.Below(std::min<int64_t>(limit - shared, 9));
  for (int64_t p = 0; p < tail; ++p) {
    content.tokens.push_back(static_cast<TokenId>(100000 + 100 * num_created_ + p));
  }
  if (numbers.OneIn(6)) content.cache_salt = absl::StrCat("salt", numbers.Below(2));
  if (numbers.OneIn(6)) content.lora_name = absl::StrCat("lora", numbers.Below(2));
  if (numbers.OneIn(4)) {
    const int64_t offset = numbers.Below(12);
    const int64_t length = 1 + numbers.Below(9);
    content.features.push_back({absl::StrCat("image", numbers.Below(2)), offset, length});
    if (numbers.OneIn(2)) {
      content.features.push_back(
          {"sound", offset + length + numbers.Below(4), 1 + numbers.Below(20)});
    }
  }
  const bool skip = numbers.OneIn(10);
  LiveRequest request;
  const std::string id = absl::StrCat("r", num_created_++);
  Log(absl::StrCat("new ", id, ": document ", document, " to ", shared, ", tail ", tail, ", salt ",
                   content.cache_salt, ", lora ", content.lora_name, ", features ",
                   content.features.size(), ", skip ", skip));
  auto real = manager_->NewRequest({.id = id,
                                    .content = {.token_ids = content.tokens,
                                                .lora_name = content.lora_name,
                                                .cache_salt = content.cache_salt,
                                                .features = content.features},
                                    .skip_reading_prefix_cache = skip});
  Expect(real.ok(), real.status().ToString());
  request.real = *std::move(real);
  request.model = model_.NewRequest(std::move(content), skip);
  ExpectEmpty(names_.Add(request));
  requests_.push_back(std::move(request));
}

void Harness::LookUp(LiveRequest& request) {
  const Snapshot before = Take(*manager_, requests_);
  const auto real = manager_->GetComputedBlocks(*request.real);
  const auto again = manager_->GetComputedBlocks(*request.real);
  const auto model = model_.GetComputedBlocks(request.model);
  Log(absl::StrCat("look up ", request.real->id(), " -> ", real.ok() ? real->num_tokens() : -1));
  Expect(real.ok() == model.has_value(), "look-up refused on one side");
  Expect(before == Take(*manager_, requests_), "INV-15: a look-up changed something");
  if (!real.ok()) {
    Expect(absl::IsInvalidArgument(real.status()), real.status().ToString());
    return;
  }
  Expect(real->num_tokens() == model->tokens, absl::StrCat("oracle hits ", model->tokens));
  Expect(real->shared_prefix_boundary() == model->boundary,
         absl::StrCat("boundary ", real->shared_prefix_boundary(), ", oracle ", model->boundary));
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const std::vector<BlockId> list(real->blocks(g).begin(), real->blocks(g).end());
    const std::vector<BlockId>& expected = model->lists[static_cast<size_t>(g)];
    Expect(list == expected, absl::StrCat("hits ", Show(list), ", oracle ", Show(expected)));
    Expect(real->blocks(g) == again->blocks(g), "INV-15: a second look-up differs");
  }
  ExpectEmpty(BrokenHitInvariant(*manager_, *request.real, *real));
  const bool any_draft = std::any_of(model_.groups().begin(), model_.groups().end(),
                                     [](const oracle::GroupRules& g) { return g.is_draft; });
  if (scenario_.options.enable_caching && !request.model.skip_reading && !any_draft) {
    const int64_t longest =
        LongestCommonHit(model_.pool(), model_.groups(), model_.QueryFor(request.model));
    Expect(real->num_tokens() == longest,
           absl::StrCat("the longest length that all groups can serve is ", longest));
  }
  request.real_hits = *real;
  request.model_hits = *model;
}

oracle::Outcome Harness::Allocate(LiveRequest& request, oracle::AllocateParams params,
                                  const LiveRequest* from) {
  if (from != nullptr) params.hits = &from->model_hits;
  AllocateSlotsParams real;
  real.num_new_tokens = params.num_new;
  real.computed_blocks = from == nullptr ? nullptr : &from->real_hits;
  real.num_lookahead_tokens = params.num_lookahead;
  real.num_external_computed_tokens = params.num_external;
  real.delay_cache_blocks = params.delay;
  real.full_sequence_must_fit = params.gate;
  real.reserved_blocks = params.reserved;
  real.has_scheduled_requests = params.has_scheduled;
  real.num_encoder_tokens = params.num_encoder;

  const Snapshot before = Take(*manager_, requests_);
  const oracle::Request old_model = request.model;
  const int64_t hit_tokens = from == nullptr ? 0 : from->model_hits.tokens;
  // Nonsense is refused, so no slots need to be predicted for it.
  const auto sane = [](int64_t n) { return n >= 0 && n < (int64_t{1} << 40); };
  const bool predictable = sane(params.num_new) && sane(params.num_lookahead) &&
                           sane(params.num_external) && sane(request.model.num_computed);
  const int64_t total = predictable ? model_.TotalComputed(request.model, params) : 0;
  const bool is_stale = !request.model.is_known && !model_.HoldsHits(request.model, params);
  const int64_t slots = predictable ? std::min(total + params.num_new + params.num_lookahead,
                                               scenario_.options.max_model_len)
                                    : 0;
  std::vector<std::vector<BlockId>> expected;
  const int64_t need_before = predictable ? model_.Need(request.model, params, slots, false) : 0;
  const size_t copies_before = model_.copies().size();
  const oracle::Outcome outcome = model_.Allocate(request.model, params, &expected);
  const auto result = manager_->AllocateSlots(*request.real, real);
  Log(absl::StrCat("alloc ", request.real->id(), ": new ", params.num_new, ", hit ", hit_tokens,
                   from != nullptr && from != &request ? " of another" : "", ", lookahead ",
                   params.num_lookahead, ", external ", params.num_external, ", delay ",
                   params.delay, ", gate ", params.gate, ", reserved ", params.reserved,
                   ", scheduled ", params.has_scheduled, ", computed ", request.model.num_computed,
                   ", inflight ", request.model.num_inflight, ", tokens ",
                   request.model.content.num_tokens(), " -> ",
                   !result.ok()          ? "refused"
                   : result->has_value() ? "ok"
                                         : "no space"));
  Expect(result.ok() == (outcome != oracle::Outcome::kInvalid),
         absl::StrCat("refused on one side: ", result.status().ToString()));
  if (!result.ok()) {
    Expect(absl::IsInvalidArgument(result.status()), result.status().ToString());
    Expect(before == Take(*manager_, requests_), "INV-17: a refused call changed something");
    return outcome;
  }
  Expect(result->has_value() == (outcome == oracle::Outcome::kOk), "no space on one side");
  num_no_space_ += !result->has_value();
  has_stale_tables_ = has_stale_tables_ || (is_stale && result->has_value());
  if (old_model.is_known || result->has_value()) {
    const int64_t processed = std::max<int64_t>(0, total - request.model.num_inflight);
    const int64_t counted = old_model.is_known ? processed : total;
    const bool trimmed = !params.gate || outcome == oracle::Outcome::kOk ||
                         Take(*manager_, requests_).tables != before.tables;
    if (trimmed) request.max_processed = std::max(request.max_processed, counted);
  }
  if (result->has_value()) {
    const NewBlocks& blocks = **result;
    Expect(blocks.num_groups() == expected.size(), "number of groups in the result");
    int64_t sum = 0;
    for (size_t g = 0; g < expected.size(); ++g) {
      const auto got = blocks.blocks(static_cast<GroupId>(g));
      Expect(std::equal(got.begin(), got.end(), expected[g].begin(), expected[g].end()),
             absl::StrCat("new blocks of group ", g));
      sum += static_cast<int64_t>(got.size());
    }
    Expect(blocks.num_blocks() == sum, "NewBlocks::num_blocks");
    request.max_slots = std::max(request.max_slots, slots);
    if (request.model.status != oracle::Status::kFinished) {
      request.SetStatus(oracle::Status::kRunning);
    }
  }
  const size_t num_copies = model_.copies().size() - copies_before;
  (old_model.is_known ? num_state_copies_ : num_hit_copies_) += static_cast<int64_t>(num_copies);
  if (!has_stale_tables_) CheckAllocation(request, params, before, need_before, num_copies);
  return outcome;
}

void Harness::CheckAllocation(const LiveRequest& request, const oracle::AllocateParams& params,
                              const Snapshot& before, int64_t need, size_t num_copies) {
  const Snapshot after = Take(*manager_, requests_);
  const size_t index = static_cast<size_t>(&request - requests_.data());
  const bool ok = request.model.is_known && !(after == before) &&
                  (after.refs != before.refs || after.tables != before.tables);
  int64_t trimmed = 0;
  if (before.holds[index]) {
    ExpectEmpty(BrokenTableInvariant(before.tables[index], after.tables[index]));
    for (size_t g = 0; g < before.tables[index].size(); ++g) {
      for (size_t i = 0; i < before.tables[index][g].size(); ++i) {
        const BlockId id = before.tables[index][g][i];
        const std::vector<BlockId>& now = after.tables[index][g];
        const oracle::GroupRules& rules = model_.groups()[g];
        const bool moved =
            rules.is_mamba() && static_cast<int64_t>(i) + rules.num_scratch() >=
                                    static_cast<int64_t>(before.tables[index][g].size());
        trimmed += id != kNullBlockId && now[i] == kNullBlockId && !moved &&
                   before.refs[static_cast<size_t>(id)] == 1;
      }
    }
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    Expect(i == index || before.tables[i] == after.tables[i], "INV-17: another table changed");
  }
  const bool grew = after.holds[index] && after.tables[index] != before.tables[index];
  const bool took = after.num_free() < before.num_free() + trimmed || (ok && grew);
  if (!took && trimmed == 0) return;
  if (after.num_free() == before.num_free() + trimmed && need > 0) {  // no space
    for (size_t b = 0; b < after.refs.size(); ++b) {
      Expect(after.refs[b] <= before.refs[b], "INV-17: a reference rose without success");
    }
    Expect(after.key_groups == before.key_groups, "INV-17: keys changed without success");
    return;
  }
  Expect(before.num_free() + trimmed - after.num_free() == need,
         absl::StrCat("INV-16: ", need, " blocks predicted, ", before.num_free() + trimmed,
                      " free became ", after.num_free()));
  for (size_t g = 0; g < after.tables[index].size(); ++g) {
    const oracle::GroupRules& rules = model_.groups()[g];
    const int64_t size = static_cast<int64_t>(after.tables[index][g].size());
    const int64_t old_size = static_cast<int64_t>(before.tables[index][g].size());
    const bool has_own_layout = rules.is_mamba() || rules.is_cross();
    Expect(size >= std::max(old_size, has_own_layout
                                          ? 0
                                          : oracle::CeilDiv(request.max_slots, rules.block_size())),
           "INV-18: a table is too short");
    const int64_t span = request.max_slots - request.max_processed;
    const int64_t real = request.model.tables[g].num_real();
    Expect(!rules.admission_cap || span > *scenario_.options.max_in_flight_tokens ||
               real <= *rules.admission_cap,
           absl::StrCat("INV-24: ", real, " real blocks in group ", g));
  }
  // INV-22: without a trim, and apart from adopted hits, blocks come off the front of the queue.
  // (Pages in chunks do not always: the oracle says which.)
  if (trimmed > 0 || params.num_external > 0 || !before.page_classes.empty()) return;
  std::vector<BlockId> taken;
  std::vector<BlockId> adopted;
  std::vector<BlockId> copied;
  for (size_t g = 0; g < after.tables[index].size(); ++g) {
    const std::vector<BlockId>& table = after.tables[index][g];
    size_t first_new = before.holds[index] ? before.tables[index][g].size()
                       : params.hits && g < params.hits->lists.size() ? params.hits->lists[g].size()
                                                                      : 0;
    // The copy of the hit's end.
    if (!before.holds[index] && first_new > 0 && table[first_new - 1] != kNullBlockId &&
        table[first_new - 1] != params.hits->lists[g].back()) {
      copied.push_back(table[--first_new]);
      adopted.push_back(params.hits->lists[g].back());  // the source
    }
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i] == kNullBlockId) continue;
      // Scratch blocks of states move to the end of their table.
      const bool moved = before.holds[index] && before.refs[static_cast<size_t>(table[i])] > 0;
      if (!copied.empty() && i == first_new && copied.back() == table[i]) continue;
      (i < first_new || moved ? adopted : taken).push_back(table[i]);
    }
  }
  taken.insert(taken.begin(), copied.begin(), copied.end());  // before all others
  // Blocks that take over a registered state are in no table.
  if (before.holds[index] && num_copies > 0) return;
  std::vector<BlockId> queue;
  for (BlockId id : before.queue) {
    if (before.holds[index] || std::find(adopted.begin(), adopted.end(), id) == adopted.end()) {
      queue.push_back(id);
    }
  }
  Expect(taken.size() <= queue.size() && std::equal(taken.begin(), taken.end(), queue.begin()),
         "INV-22: blocks were not taken from the front of the queue");
}

int64_t Harness::TokensToTail(const LiveRequest& request, int64_t computed,
                              Numbers& numbers) const {
  if (!scenario_.options.partial_hits || !numbers.OneIn(3)) return 0;
  const int64_t unit = model_.hash_block_size();
  const int64_t tail = oracle::RoundDown(request.model.num_prompt - 1, unit);
  return std::max<int64_t>(0, tail - unit * numbers.Below(2) - computed);
}

void Harness::Admit(LiveRequest& request, Numbers numbers) {
  const bool fresh = !numbers.OneIn(5);
  const int64_t variant = numbers.Below(16);
  const LiveRequest* from = &request;
  if (fresh) LookUp(request);
  if (variant == 15) from = &Pick(numbers);
  if (variant == 14) from = nullptr;
  const int64_t tokens = request.model.content.num_tokens();
  const int64_t hit = from == nullptr ? 0 : from->model_hits.tokens;
  oracle::AllocateParams params;
  const int64_t rest = std::max<int64_t>(0, tokens - hit);
  if (numbers.OneIn(4)) params.num_external = numbers.Below(rest);
  const int64_t left = std::max<int64_t>(0, rest - params.num_external);
  params.num_new = numbers.OneIn(3) ? std::min<int64_t>(left, 1 + numbers.Below(8)) : left;
  if (params.num_external > 0 && numbers.OneIn(2)) {
    params.delay = true;
    params.num_new = 0;
  }
  if (numbers.OneIn(5)) params.num_lookahead = numbers.Below(6);
  params.gate = numbers.OneIn(3);
  if (numbers.OneIn(6)) params.reserved = numbers.Below(6);
  params.has_scheduled = numbers.OneIn(2);
  if (numbers.OneIn(20)) params.delay = true;
  if (numbers.OneIn(3)) params.num_encoder = numbers.Below(26);
  const int64_t to_tail = TokensToTail(request, hit + params.num_external, numbers);
  if (to_tail > 0 && !params.delay) params.num_new = std::min(params.num_new, to_tail);
  const int64_t special = numbers.Below(12);
  if (special == 0) params.num_new = params.num_external = 0;  // takes the hits only, or is refused
  if (special == 1 && semantics().clamps_external_tokens) {
    params.num_external = scenario_.options.max_model_len;
  }
  request.SetSharedBoundary(numbers.OneIn(3) ? 0 : request.model_hits.boundary);
  // The scheduler advances n_comp only when the allocation worked.
  const int64_t old_computed = request.model.num_computed;
  if (Allocate(request, params, from) != oracle::Outcome::kOk) return;
  const int64_t computed = old_computed + hit + params.num_external + params.num_new;
  request.SetComputed(std::min(computed, tokens), 0);
  if (computed == tokens && params.num_new > 0 && numbers.OneIn(2)) Append(request, 1);
}

void Harness::Step(LiveRequest& request, Numbers numbers) {
  const int64_t limit = scenario_.options.max_model_len;
  const int64_t tokens = request.model.content.num_tokens();
  const int64_t computed = request.model.num_computed;
  if (!request.model.is_known) return Admit(request, numbers);
  if (computed >= tokens && tokens < limit) Append(request, 1);
  const int64_t known = request.model.content.num_tokens();
  oracle::AllocateParams params;
  const int64_t drafts = numbers.OneIn(3) ? numbers.Below(5) : 0;
  params.num_new = std::min(known - computed, numbers.OneIn(3) ? 1 + numbers.Below(8) : limit);
  if (const int64_t to_tail = TokensToTail(request, computed, numbers); to_tail > 0) {
    params.num_new = std::min(params.num_new, to_tail);
  }
  const bool reaches_end = computed + params.num_new == known;
  if (reaches_end) params.num_new = std::min(params.num_new + drafts, limit - computed);
  if (numbers.OneIn(4)) params.num_lookahead = numbers.Below(6);
  if (numbers.OneIn(8)) params.reserved = numbers.Below(4);
  if (numbers.OneIn(10)) params.gate = true;
  params.has_scheduled = numbers.OneIn(2);
  const bool lagging = numbers.OneIn(3);
  if (Allocate(request, params, nullptr) != oracle::Outcome::kOk) return;
  int64_t now = computed + params.num_new;
  if (reaches_end && known < limit) {
    // The step yields one token and accepts some of the drafts; the rest is taken back.
    const int64_t accepted = numbers.Below(std::max<int64_t>(0, now - known) + 1);
    Append(request, std::min(accepted + 1, limit - known));
    now = std::min(known + accepted, request.model.content.num_tokens());
  }
  now = std::min(now, request.model.content.num_tokens());
  request.SetComputed(now, lagging ? std::max<int64_t>(0, now - computed) : 0);
}

void Harness::Append(LiveRequest& request, int64_t count) {
  const int64_t room = scenario_.options.max_model_len - request.model.content.num_tokens();
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < std::min(count, room); ++i) {
    // Outputs of requests with equal prompts are often equal, so that they can be shared, too.
    tokens.push_back(static_cast<TokenId>(1000 + request.model.content.num_tokens() + i));
  }
  Log(absl::StrCat("append ", tokens.size(), " to ", request.real->id()));
  model_.Append(request.model, tokens);
  const absl::Status status = request.real->AppendOutputTokens(tokens);
  Expect(status.ok(), status.ToString());
  ExpectEmpty(names_.Add(request));
}

void Harness::Stats(LiveRequest& request, Numbers numbers) {
  if (!numbers.OneIn(4)) {
    const int64_t hits = numbers.Below(request.model.content.num_tokens() + 1);
    Log(absl::StrCat("record ", request.real->id(), " ", hits));
    manager_->RecordPrefixCacheStats(*request.real, hits);
    model_.RecordStats(request.model, hits);
    return;
  }
  Log("drain stats");
  const PrefixCacheStats real = manager_->MakePrefixCacheStats();
  const oracle::Stats model = model_.MakeStats();
  Expect(real.hits <= real.queries && real.preempted_hits <= real.preempted_queries, "INV-30");
  Expect(real.requests == model.requests && real.queries == model.queries &&
             real.hits == model.hits && real.preempted_requests == model.preempted_requests &&
             real.preempted_queries == model.preempted_queries &&
             real.preempted_hits == model.preempted_hits && real.reset == model.reset,
         "stats differ");
  Expect(manager_->MakePrefixCacheStats() == PrefixCacheStats(), "drained stats are not zero");
}

void Harness::Query(LiveRequest& request, Numbers numbers) {
  const Snapshot before = Take(*manager_, requests_);
  std::vector<const oracle::Request*> all;
  for (const LiveRequest& other : requests_) all.push_back(&other.model);
  Expect(has_stale_tables_ || manager_->GetNumCommonPrefixBlocks(*request.real) ==
                                  model_.CommonPrefix(request.model, all),
         "INV-28: common prefix differs from the oracle's");
  const int64_t n = numbers.Below(scenario_.options.max_model_len + 1);
  const Tables clipped = manager_->GetBlockIds(*request.real, n);
  const Tables unhashed = manager_->GetUnhashedBlockIds(*request.real);
  bool any = false;
  for (size_t g = 0; g < model_.groups().size(); ++g) {
    std::vector<BlockId> table;
    if (request.model.is_known) table = request.model.tables[g].blocks;
    any = any || !table.empty();
    std::vector<BlockId> keyless = table;
    std::erase_if(keyless, [&](BlockId id) {
      return id == kNullBlockId || model_.pool().blocks()[static_cast<size_t>(id)].key.has_value();
    });
    Expect(unhashed[g] == keyless, "unhashed blocks");
    const int64_t length = oracle::CeilDiv(n, model_.groups()[g].block_size());
    if (length < static_cast<int64_t>(table.size())) table.resize(static_cast<size_t>(length));
    Expect(clipped[g] == table, "clipped blocks");
  }
  Expect(manager_->GetBlockIdsIfAny(*request.real).has_value() == any, "block ids if any");
  Expect(before == Take(*manager_, requests_), "INV-15: a query changed something");
}

void Harness::Finish() {
  while (!requests_.empty()) {
    Free(requests_.size() - 1, /*preempt=*/false);
    CheckAll();
  }
  TakeCopies();
  while (!popped_.empty()) FreePopped(Numbers(0));
  CheckAll();
  const BlockPool& pool = manager_->pool();
  if (pool.chunks() == nullptr) {
    Expect(pool.num_free() == pool.num_blocks() - 1 - pool.num_permanent(),
           "INV-27: blocks leaked");
  }
  Expect(pool.num_live() == 0 && pool.usage() < 1e-12, "INV-27: blocks leaked");
  Reset();
  CheckAll();
}

}  // namespace kvblocks::property
