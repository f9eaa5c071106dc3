#include "tests/attention_engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::testing {
namespace {

constexpr int64_t kNumFamilies = 3;  // of prompts that begin alike
constexpr int64_t kMaxDrafts = 3;

KvCacheConfig ConfigOf(const EngineOptions& options) {
  KvCacheConfig config{.num_blocks = options.num_blocks};
  for (size_t g = 0; g < options.specs.size(); ++g) {
    config.groups.push_back({.spec = options.specs[g], .layer_names = {absl::StrCat("layer", g)}});
  }
  return config;
}

}  // namespace

std::vector<attention::VerifiedGroup> GroupsOf(const KvCacheManager& manager,
                                               std::vector<float> sinks) {
  std::vector<attention::VerifiedGroup> groups;
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    const KvCacheSpec& spec = manager.group(g).spec();
    const bool is_mla = spec.kind() == KvCacheSpecKind::kMlaAttention ||
                        spec.kind() == KvCacheSpecKind::kSlidingWindowMla;
    const auto sink_blocks = manager.group(g).sink_blocks();
    groups.push_back({.name = std::string(spec.kind_name()),
                      .is_mla = is_mla,
                      .block_size = spec.block_size(),
                      .window = spec.sliding_window().value_or(0),
                      .chunk = spec.attention_chunk_size().value_or(0),
                      .compress_ratio = spec.compress_ratio(),
                      .sinks = is_mla ? std::vector<float>() : sinks,
                      .sink_blocks = {sink_blocks.begin(), sink_blocks.end()}});
  }
  return groups;
}

attention::BlockUse UseOfBlock(const KvCacheManager& manager, int32_t block) {
  const KvCacheBlock& record = manager.pool().block(block);
  if (record.ref_count > 0) return attention::BlockUse::kHeld;
  return record.has_key() ? attention::BlockUse::kCached : attention::BlockUse::kFree;
}

Engine::Engine(const EngineOptions& options, const attention::AttentionOps& ops)
    : options_(options), random_(options.seed) {
  auto manager = KvCacheManager::Create(
      ConfigOf(options), {.max_model_len = options.max_model_len, .hash_seed = "engine"});
  KVBLOCKS_CHECK(manager.ok(), manager.status().ToString());
  manager_ = *std::move(manager);
  auto verifier = attention::KvCacheVerifier::Create(
      {.num_blocks = options.num_blocks,
       .groups = GroupsOf(*manager_, {-1.0f, 0.5f}),
       .ops = &ops,
       .use_of_block = [this](int32_t block) { return UseOfBlock(*manager_, block); },
       .seed = options.seed});
  KVBLOCKS_CHECK(verifier.ok(), verifier.status().ToString());
  verifier_ = *std::move(verifier);
}

// What the scheduler knows as numbers, the manager wants as token ids.
std::vector<TokenId> Engine::TokenIds(const Live& live, int64_t begin, int64_t end) const {
  std::vector<TokenId> ids;
  for (int64_t i = begin; i < end; ++i) {
    ids.push_back(static_cast<TokenId>(live.tokens[static_cast<size_t>(i)]));
  }
  return ids;
}

absl::Status Engine::Step() {
  ++counts_.steps;
  if (waiting_.size() < 3 && OneIn(3)) Arrive();
  for (const auto& live : running_) live->scheduled = live->drafts = 0;
  ScheduleRunning();
  if (status_.ok()) Admit();
  if (status_.ok()) status_ = Verify();
  if (status_.ok()) status_ = Settle();
  if (status_.ok() && OneIn(20)) status_ = Evict();
  return status_;
}

void Engine::Arrive() {
  auto live = std::make_unique<Live>();
  live->id = next_id_++;
  const int64_t prompt = 1 + Below(options_.max_model_len / 2);
  if (!running_.empty() && OneIn(4)) {
    // Goes on where another one is, and then its own way.
    const Live& parent =
        *running_[static_cast<size_t>(Below(static_cast<int64_t>(running_.size())))];
    live->tokens.assign(parent.tokens.begin(),
                        parent.tokens.begin() + parent.request->num_tokens());
    ++counts_.forks;
  } else {
    const int64_t family = Below(kNumFamilies), shared = Below(prompt + 1);
    for (int64_t i = 0; i < prompt; ++i) {
      live->tokens.push_back(i < shared ? family * 1000 + i : 5000 + Below(1000));
    }
  }
  const int64_t known = static_cast<int64_t>(live->tokens.size());
  live->end = std::min(options_.max_model_len - kMaxDrafts - 1, known + 1 + Below(30));
  if (live->end <= known) return;
  while (static_cast<int64_t>(live->tokens.size()) < options_.max_model_len) {
    live->tokens.push_back(5000 + Below(1000));
  }
  live->request = manager_
                      ->NewRequest({.id = absl::StrCat("r", live->id),
                                    .content = {.token_ids = TokenIds(*live, 0, known)}})
                      .value();
  waiting_.push_back(std::move(live));
}

void Engine::ScheduleRunning() {
  int64_t budget = options_.max_step_tokens;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    if (OneIn(8)) continue;  // sits this step out
    Live& live = *running_[i];
    Request& request = *live.request;
    const int64_t left = request.num_tokens() - request.num_computed_tokens();
    live.drafts = left == 1 && OneIn(3) ? std::min(1 + Below(kMaxDrafts), budget - 1) : 0;
    int64_t num_tokens = std::min(left, budget);
    if (num_tokens > 1 && OneIn(2)) num_tokens = 1 + Below(num_tokens);
    num_tokens += live.drafts;
    while (true) {
      const auto slots = manager_->AllocateSlots(request, {.num_new_tokens = num_tokens});
      KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
      if (slots->has_value()) {
        live.scheduled = num_tokens;
        budget -= num_tokens;
        break;
      }
      const bool is_itself = running_.size() == i + 1;
      status_ = Preempt(running_.size() - 1);
      if (is_itself || !status_.ok()) return;
    }
    if (OneIn(60) && i + 1 < running_.size()) {
      status_ = Preempt(running_.size() - 1);
      if (!status_.ok()) return;
    }
  }
}

void Engine::Admit() {
  int64_t budget = options_.max_step_tokens;
  for (const auto& live : running_) budget -= live->scheduled;
  while (!waiting_.empty() && budget > 0 &&
         static_cast<int64_t>(running_.size()) < options_.max_running) {
    Live& live = *waiting_.front();
    Request& request = *live.request;
    const ComputedBlocks hits = manager_->GetComputedBlocks(request).value();
    int64_t num_tokens = std::min(request.num_tokens() - hits.num_tokens(), budget);
    if (OneIn(2)) num_tokens = 1 + Below(num_tokens);
    const auto slots =
        manager_->AllocateSlots(request, {.num_new_tokens = num_tokens, .computed_blocks = &hits});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (!slots->has_value()) return;
    request.set_num_computed_tokens(hits.num_tokens());
    live.scheduled = num_tokens;
    live.drafts = 0;
    budget -= num_tokens;
    ++counts_.admissions;
    counts_.hits += hits.num_tokens() > 0;
    counts_.resumes += request.num_preemptions() > 0;
    running_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
  }
}

absl::Status Engine::Preempt(size_t index) {
  std::unique_ptr<Live> live = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  if (absl::Status status = manager_->Free(*live->request); !status.ok()) return status;
  live->request->MarkPreempted();
  live->scheduled = 0;
  const uint64_t id = live->id;
  waiting_.insert(waiting_.begin(), std::move(live));
  ++counts_.preemptions;
  return verifier_->Release(id);
}

absl::Status Engine::Verify() {
  std::vector<std::vector<absl::Span<const int32_t>>> tables(running_.size());
  std::vector<attention::VerifiedRequest> step;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Live& live = *running_[i];
    if (live.scheduled == 0) continue;
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      tables[i].push_back(manager_->GetBlocks(*live.request, g));
      counts_.nulls += !tables[i].back().empty() && tables[i].back().front() == kNullBlockId;
    }
    step.push_back({.id = live.id,
                    .name = live.request->id(),
                    .num_computed = live.request->num_computed_tokens(),
                    .num_scheduled = live.scheduled,
                    .tokens = live.tokens,
                    .block_tables = tables[i]});
  }
  return verifier_->OnStep(step);
}

// Computed tokens move on, drafts are accepted or not, new tokens become known.
absl::Status Engine::Settle() {
  for (size_t i = 0; i < running_.size();) {
    Live& live = *running_[i];
    Request& request = *live.request;
    if (live.scheduled == 0) {
      ++i;
      continue;
    }
    const int64_t rejected = live.drafts == 0 ? 0 : Below(live.drafts + 1);
    const int64_t computed = request.num_computed_tokens() + live.scheduled - rejected;
    request.set_num_computed_tokens(computed);
    if (rejected > 0) {
      counts_.rejected_drafts += rejected;
      if (absl::Status status = verifier_->Rollback(live.id, computed); !status.ok()) return status;
    }
    if (computed >= request.num_tokens()) {
      const auto output = TokenIds(live, request.num_tokens(), computed + 1);
      if (absl::Status status = request.AppendOutputTokens(output); !status.ok()) return status;
    }
    if (request.num_tokens() < live.end && !OneIn(200)) {
      ++i;
      continue;
    }
    if (absl::Status status = manager_->Free(request); !status.ok()) return status;
    if (absl::Status status = verifier_->Release(live.id); !status.ok()) return status;
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    ++counts_.finished;
  }
  return absl::OkStatus();
}

absl::Status Engine::Evict() {
  if (running_.empty() && manager_->ResetPrefixCache()) {
    ++counts_.resets;
    std::vector<int32_t> all;
    for (int32_t id = 1; id < manager_->pool().num_blocks(); ++id) {
      if (UseOfBlock(*manager_, id) == attention::BlockUse::kFree) all.push_back(id);
    }
    return verifier_->Drop(all);
  }
  const BlockId id = static_cast<BlockId>(1 + Below(manager_->pool().num_blocks() - 1));
  if (absl::Status status = manager_->EvictBlocks({id}); !status.ok()) return status;
  if (UseOfBlock(*manager_, id) != attention::BlockUse::kFree) return absl::OkStatus();
  ++counts_.evicted;
  return verifier_->Drop({id});
}

absl::Status Engine::Drain() {
  while (!running_.empty()) {
    Live& live = *running_.back();
    if (absl::Status status = manager_->Free(*live.request); !status.ok()) return status;
    if (absl::Status status = verifier_->Release(live.id); !status.ok()) return status;
    running_.pop_back();
  }
  waiting_.clear();
  return Evict();
}

}  // namespace kvblocks::testing
