#include "tests/property/harness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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
      model_(scenario.config, scenario.options),
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
  ExpectEmpty(oracle::PoolDifference(manager_->pool(), model_.pool(), numbers_));
  for (const LiveRequest& request : requests_) {
    ExpectEmpty(oracle::TableDifference(*manager_, *request.real, request.model));
  }
  if (!has_stale_tables_) ExpectEmpty(BrokenInvariant(*manager_, requests_));
  ExpectEmpty(oracle::EventDifference(manager_->TakeEvents(), model_.TakeEvents(), numbers_));
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
  // Often a prompt is one that came before, or begins like it.
  if (!prompts_.empty() && numbers.OneIn(3)) {
    content = prompts_[static_cast<size_t>(numbers.Below(std::ssize(prompts_)))];
    const int64_t more = numbers.Below(std::min<int64_t>(limit - content.num_tokens(), 9));
    for (int64_t p = 0; p < more; ++p) {
      content.tokens.push_back(static_cast<TokenId>(200000 + 100 * num_created_ + p));
    }
    return AddRequest(std::move(content), /*skip=*/false);
  }
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
  AddRequest(std::move(content), numbers.OneIn(10));
}

void Harness::AddRequest(oracle::Content content, bool skip) {
  LiveRequest request;
  const std::string id = absl::StrCat("r", num_created_++);
  Log(absl::StrCat("new ", id, ": ", absl::StrJoin(content.tokens, ","), ", salt ",
                   content.cache_salt, ", lora ", content.lora_name, ", features ",
                   content.features.size(), ", skip ", skip));
  prompts_.push_back(content);
  auto real = manager_->NewRequest({.id = id,
                                    .content = {.token_ids = content.tokens,
                                                .lora_name = content.lora_name,
                                                .cache_salt = content.cache_salt,
                                                .features = content.features},
                                    .skip_reading_prefix_cache = skip});
  Expect(real.ok(), real.status().ToString());
  request.real = *std::move(real);
  request.model = model_.NewRequest(std::move(content), skip);
  Expect(numbers_.Add(request.real->content().hashes(), request.model.prefix_names),
         "INV-29: hashes and contents are not a bijection");
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
  ExpectEmpty(oracle::HitDifference(*real, *model));
  ExpectEmpty(oracle::HitDifference(*again, *model));  // INV-15
  ExpectEmpty(BrokenHitInvariant(*manager_, *request.real, *real));
  const bool any_draft = std::any_of(model_.groups().begin(), model_.groups().end(),
                                     [](const oracle::GroupRules& g) { return g.is_draft; });
  if (scenario_.options.enable_caching && !request.model.skip_reading && !any_draft) {
    const int64_t longest = model_.LongestHit(request.model);
    Expect(real->num_tokens() == longest,
           absl::StrCat("the longest length that all groups can serve is ", longest));
  }
  (model->tokens > 0 ? counts_.replays : counts_.lost_hits) += model->replayed > 0;
  request.real_hits = *real;
  request.model_hits = *model;
}

int64_t Harness::TokensToTail(const LiveRequest& request, int64_t computed,
                              Numbers& numbers) const {
  if (!scenario_.options.partial_hits || !numbers.OneIn(2)) return 0;
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
  if (special == 1 && !semantics().is_025) params.num_external = scenario_.options.max_model_len;
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
  Expect(numbers_.Add(request.real->content().hashes(), request.model.prefix_names),
         "INV-29: hashes and contents are not a bijection");
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
  ExpectEmpty(oracle::StatsDifference(real, model));
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
