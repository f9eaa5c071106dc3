// The loop of a serving engine around a KvCacheManager: admission with prefix hits and external KV,
// chunked prefill, decode, preemption when memory is short, events for a router. Start from here.
//
// The model is left out: a step "computes" its tokens at once, and every sampled token is 7.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kvblocks/kv_cache.h"

namespace {

using namespace kvblocks;

constexpr int64_t kBlockSize = 16, kNumBlocks = 21, kTokensPerStep = 128;

// Ends the program on what a correct engine never sees: a call that the manager refuses.
void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

struct Sequence {
  std::unique_ptr<Request> kv;  // the tokens, and the block tables that the manager keeps
  int64_t max_tokens = 0;       // prompt and output
  int64_t num_scheduled = 0;    // tokens that this step computes
  bool is_loading = false;      // external KV is on its way into its blocks
};

class Engine {
 public:
  explicit Engine(std::vector<TokenId> stored) : stored_(std::move(stored)) {
    const KvCacheSpec spec = Require(
        FullAttentionSpec::Create({.block_size = kBlockSize, .num_kv_heads = 8, .head_size = 128}));
    manager_ = Require(KvCacheManager::Create(
        {.num_blocks = kNumBlocks, .groups = {{.spec = spec}}},
        {.max_model_len = 1024,
         .enable_events = true,
         .watermark = 0.05,
         .hash_seed = "example",
         .report_new_blocks = true}));
  }

  void Add(std::string id, std::vector<TokenId> prompt, int64_t max_tokens) {
    auto kv = Require(
        manager_->NewRequest({.id = std::move(id), .content = {.token_ids = std::move(prompt)}}));
    waiting_.push_back({.kv = std::move(kv), .max_tokens = max_tokens});
  }

  // False when nothing is left to do.
  bool Step() {
    if (running_.empty() && waiting_.empty()) return false;
    budget_ = kTokensPerStep;
    manager_->NewStepStarts();
    bool preempted = false;
    for (size_t i = 0; i < running_.size(); ++i) preempted |= ScheduleRunning(i);
    while (!preempted && !waiting_.empty() && budget_ > 0 && Admit()) {
    }
    std::printf("step %2d: %zu running, %zu waiting, %3d tokens, %3.0f %% of the blocks in use\n",
                ++num_steps_, running_.size(), waiting_.size(), int(kTokensPerStep - budget_),
                100 * manager_->usage());
    if (running_.empty()) Require(absl::ResourceExhaustedError("a request does not fit the pool"));
    ZeroNewBlocks();
    Compute();
    TellRouter();
    Require(manager_->CheckInvariants());  // O(blocks): for tests and debugging
    return true;
  }

  void Report() {
    const PrefixCacheStats stats = manager_->MakePrefixCacheStats();
    std::printf("%d of %d prompt tokens hit, %d of %d after preemptions\n", int(stats.hits),
                int(stats.queries), int(stats.preempted_hits), int(stats.preempted_queries));
    std::printf("cached blocks: %d here, %d by the router's count; %d blocks zeroed before use\n",
                int(manager_->pool().num_keyed_blocks()), int(router_blocks_), int(num_zeroed_));
  }

 private:
  // Slots for a running request's next tokens; the request that came last makes room. Returns
  // whether one had to.
  bool ScheduleRunning(size_t i) {
    Request& kv = *running_[i].kv;
    const int64_t n = std::min(kv.num_tokens() - kv.num_computed_tokens(), budget_);
    running_[i].num_scheduled = n;
    if (n == 0) return false;
    bool preempted = false;
    while (!Require(manager_->AllocateSlots(kv, {.num_new_tokens = n}))) {
      PreemptLast();
      preempted = true;
      if (i == running_.size()) return true;  // it was the last itself
    }
    budget_ -= n;
    return preempted;
  }

  void PreemptLast() {
    Sequence& last = running_.back();
    budget_ += last.num_scheduled;
    last.num_scheduled = 0;
    Require(manager_->Free(*last.kv));  // what is cached of it may be hit again
    last.kv->MarkPreempted();
    std::printf("         %s is preempted\n", last.kv->id().c_str());
    waiting_.push_front(std::move(last));
    running_.pop_back();
  }

  // Admits the first waiting request. False if it does not fit now.
  bool Admit() {
    Sequence& next = waiting_.front();
    const ComputedBlocks hits = Require(manager_->GetComputedBlocks(*next.kv));
    next.kv->set_shared_prefix_boundary(hits.shared_prefix_boundary());
    const int64_t external = std::max<int64_t>(0, TokensInStore(*next.kv) - hits.num_tokens());
    const int64_t computed = hits.num_tokens() + external;
    const int64_t n = std::min(next.kv->num_tokens() - computed, budget_);
    const auto slots =
        Require(manager_->AllocateSlots(*next.kv, {.num_new_tokens = n,
                                                   .computed_blocks = &hits,
                                                   .num_external_computed_tokens = external,
                                                   .delay_cache_blocks = external > 0,
                                                   .full_sequence_must_fit = true,
                                                   .has_scheduled_requests = !running_.empty()}));
    if (!slots) return false;
    std::printf("         %s: %d tokens hit, %d loaded, %d new blocks\n", next.kv->id().c_str(),
                int(hits.num_tokens()), int(external), int(slots->num_blocks()));
    manager_->RecordPrefixCacheStats(*next.kv, hits.num_tokens());
    next.kv->set_num_computed_tokens(computed);
    next.kv->set_status(RequestStatus::kRunning);
    next.num_scheduled = n;
    next.is_loading = external > 0;
    budget_ -= n;
    running_.push_back(std::move(next));
    waiting_.pop_front();
    return true;
  }

  // Tokens whose KV another machine holds: whole blocks, and never the last token of a request.
  int64_t TokensInStore(const Request& kv) const {
    const std::vector<TokenId>& tokens = kv.content().token_ids();
    const auto end =
        std::mismatch(tokens.begin(), tokens.end() - 1, stored_.begin(), stored_.end()).first;
    return (end - tokens.begin()) / kBlockSize * kBlockSize;
  }

  // Some cache formats must not begin with another's bytes (NeedsZeroedBlocks); blocks that a load
  // fills are among these, too. The list is taken once per step, behind all allocations.
  void ZeroNewBlocks() {
    for (const BlockId block : manager_->TakeNewBlockIds()) {
      num_zeroed_ += block != kNullBlockId;  // an engine clears the block's memory on the device
    }
  }

  // Where an engine runs the model: slot of token t = table[t / block size] and t % block size.
  void Compute() {
    for (Sequence& sequence : running_) {
      Request& kv = *sequence.kv;
      kv.set_num_computed_tokens(kv.num_computed_tokens() + sequence.num_scheduled);
      sequence.num_scheduled = 0;
      // The load has arrived: from now on others may hit these blocks.
      if (sequence.is_loading) Require(manager_->CacheBlocks(kv, kv.num_computed_tokens()));
      sequence.is_loading = false;
      if (kv.num_computed_tokens() < kv.num_tokens()) continue;  // the prompt is not done yet
      const TokenId sampled = 7;
      Require(kv.AppendOutputTokens({&sampled, 1}));
    }
    std::erase_if(running_, [&](Sequence& sequence) {
      if (sequence.kv->num_tokens() < sequence.max_tokens) return false;
      std::printf("         %s is done\n", sequence.kv->id().c_str());
      Require(manager_->Free(*sequence.kv));
      sequence.kv->set_status(RequestStatus::kFinished);
      return true;
    });
  }

  // A router counts which contents are cached here. Events are values and may go to any thread.
  void TellRouter() {
    for (const KvEvent& event : manager_->TakeEvents()) {
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        router_blocks_ += static_cast<int64_t>(stored->block_hashes.size());
      } else if (std::holds_alternative<BlockRemoved>(event)) {
        --router_blocks_;
      } else {
        router_blocks_ = 0;  // AllBlocksCleared
      }
    }
  }

  std::unique_ptr<KvCacheManager> manager_;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;  // in order of admission
  std::vector<TokenId> stored_;    // whose KV the external store has
  int64_t budget_ = 0;             // tokens that this step may still compute
  int64_t router_blocks_ = 0;
  int64_t num_zeroed_ = 0;
  int num_steps_ = 0;
};

}  // namespace

int main() {
  std::vector<TokenId> document(64, /*token=*/1);
  Engine engine(/*stored=*/document);
  for (int r = 0; r < 5; ++r) {
    std::vector<TokenId> prompt = document;  // then a question of its own
    prompt.insert(prompt.end(), 20 + 8 * static_cast<size_t>(r), /*token=*/100 + r);
    engine.Add("request " + std::to_string(r), prompt, static_cast<int64_t>(prompt.size()) + 16);
  }
  while (engine.Step()) {
  }
  engine.Report();
}
