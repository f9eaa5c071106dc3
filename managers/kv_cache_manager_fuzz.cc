// A manager with bytes for a caller: up to three groups, bad ones among them, then operations,
// misuse among them. After every call the manager's invariants must hold and the event stream must
// make sense and, now and then, describe the prefix table; a refused call must have changed
// nothing.

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/lookup_explanation.h"
#include "tests/events/event_mirror.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks;
using kvblocks::fuzz::FuzzInput;

// What a caller could observe, as one row of numbers.
using State = std::vector<int64_t>;

absl::StatusOr<KvCacheSpec> MakeSpec(FuzzInput& input) {
  const uint8_t kind = input.Byte();
  const uint8_t size = input.Byte();
  const int64_t block_size = size > 240 ? input.Wild(0, 64) : int64_t{2} << size % 4;
  const int64_t window = input.Wild(1, 60);
  const bool is_usual = block_size >= 1 && block_size <= 64;
  switch (kind % 6) {
    case 0:
      return FullAttentionSpec::Create(
          {.block_size = block_size, .num_kv_heads = 1, .head_size = 16});
    case 1:
      return SlidingWindowSpec::Create(
          {.block_size = block_size, .num_kv_heads = 1, .head_size = 16, .sliding_window = window});
    case 2:
      return ChunkedLocalAttentionSpec::Create(
          {.block_size = block_size,
           .num_kv_heads = 1,
           .head_size = 16,
           .attention_chunk_size =
               (kind & 128) != 0 || !is_usual ? window : block_size * (1 + window % 4)});
    case 3:
      return MlaAttentionSpec::Create({.block_size = block_size, .head_size = 16});
    case 4:
      return SlidingWindowMlaSpec::Create(
          {.block_size = block_size, .head_size = 16, .sliding_window = window});
    default:
      return SinkFullAttentionSpec::Create(
          {.block_size = block_size,
           .num_kv_heads = 1,
           .head_size = 16,
           .sink_length = is_usual ? block_size * (1 + window % 2) : window});
  }
}

class Caller {
 public:
  static constexpr size_t kMostRequests = 8;

  explicit Caller(FuzzInput& input) : input_(input) {}

  bool Start() {
    KvCacheConfig config;
    config.num_blocks = input_.Wild(1, 48);
    for (int64_t g = input_.Small(0, 255) % 4; g > 0; --g) {
      const auto spec = MakeSpec(input_);
      if (!spec.ok()) return false;
      const bool is_draft = input_.Byte() > 220;
      config.groups.push_back({.spec = *spec, .is_draft = is_draft});
    }
    if (input_.Byte() > 240) config.scheduler_block_size = input_.Wild(1, 64);
    if (input_.Byte() > 240) config.hash_block_size = input_.Wild(1, 16);
    KvCacheManagerOptions options;
    options.max_model_len = input_.Wild(1, 250);
    if (input_.Bool()) options.max_in_flight_tokens = input_.Wild(1, 100);
    options.enable_caching = input_.Byte() % 8 != 1;
    options.use_eagle = input_.Byte() > 220;
    options.enable_events = input_.Byte() % 4 != 1;
    options.watermark = input_.Byte() > 200 ? 0.1 * static_cast<double>(input_.Wild(0, 10)) : 0;
    const uint8_t choices = input_.Byte();
    options.free_order = (choices & 1) != 0 ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
    options.hash_algorithm = (choices & 2) != 0 ? HashAlgorithm::kXxh3_128 : HashAlgorithm::kSha256;
    options.block_count_formula =
        (choices & 4) != 0 ? BlockCountFormula::kUpstream : BlockCountFormula::kExact;
    options.hash_seed = "seed";
    ChooseSemantics(options);
    options.lookup_history_blocks = choices >> 3;  // none to 31
    // What is asked for is made: a pool of 2^31 blocks or a table for 2^40 tokens is only large.
    if (config.num_blocks > 4096 || options.max_model_len > 4096) return false;
    auto manager = KvCacheManager::Create(config, options);
    if (!manager.ok()) return false;
    manager_ = *std::move(manager);
    other_ = *KvCacheManager::Create(config, options);
    Check();
    return true;
  }

  void Step() {
    const State before = Observe();
    const bool refused = Operate();
    if (refused) FUZZ_EXPECT(Observe() == before, "a refused call changed something");
    Check();
  }

  void Finish() {
    if (input_.Bool()) manager_.reset();  // requests outlive their manager
    requests_.clear();
    if (manager_ == nullptr) return;
    for (const std::vector<BlockId>& list : lists_) {
      FUZZ_EXPECT(manager_->FreeBlocks(list).ok(), "what was handed out comes back");
    }
    Check();
    FUZZ_EXPECT(manager_->pool().num_live() == 0, "blocks leak");
    FUZZ_EXPECT(manager_->ResetPrefixCache(), "reset");
    Check();
    FUZZ_EXPECT(manager_->pool().num_keys() == 0, "keys after a reset");
  }

 private:
  struct Entry {
    std::unique_ptr<Request> request;
    ComputedBlocks hits;
    bool hashed = false;
  };

  State Observe() const {
    State state;
    const BlockPool& pool = manager_->pool();
    const FreeBlockQueue& queue = pool.free_queue();
    state.reserve(512);
    for (BlockId id = 0; id < pool.num_blocks(); ++id) {
      const KvCacheBlock& block = pool.block(id);
      state.push_back(block.ref_count);
      state.push_back(block.key_group);
      if (block.has_key()) state.push_back(static_cast<int64_t>(pool.hash(id).words[0]));
    }
    for (BlockId id = queue.front(); id < pool.num_blocks(); id = queue.next(id)) {
      state.push_back(id);
    }
    for (const Entry& entry : requests_) {
      state.push_back(entry.request->num_tokens());
      for (GroupId g = 0; g < manager_->num_groups(); ++g) {
        const auto table = manager_->GetBlocks(*entry.request, g);
        state.push_back(static_cast<int64_t>(table.size()));
        state.insert(state.end(), table.begin(), table.end());
      }
    }
    state.push_back(manager_->num_requests_holding_blocks());
    state.push_back(static_cast<int64_t>(pool.removal_epoch()));
    return state;
  }

  // Those of an engine or one switch away from them.
  void ChooseSemantics(KvCacheManagerOptions& options) {
    Semantics& semantics = options.semantics;
    const uint8_t version = input_.Byte() % 4;
    if (version == 1) semantics = Semantics::Vllm025();
    if (version == 2) semantics = Semantics::Vllm033Exactly();
    const uint8_t changed = input_.Byte();
    if (changed < std::size(kSemanticsSwitches)) {
      bool& value = semantics.*kSemanticsSwitches[changed].member;
      value = !value;
    }
    semantics.trusts_hits = false;  // tables then need not fit their contents
    const uint8_t retention = input_.Byte();
    if (retention > 200) semantics.retention_interval = input_.Wild(0, 64);
    if (retention % 4 == 1) semantics.retention_interval = std::nullopt;
    if (input_.Byte() % 4 == 1) options.num_hash_lookahead_tokens = input_.Wild(0, 4);
    if (input_.Byte() % 4 == 1) options.prefill_lookahead_tokens = input_.Wild(0, 4);
  }

  void Check() {
    absl::Status status = manager_->CheckInvariants();
    FUZZ_EXPECT(status.ok(), status.ToString());
    const std::vector<KvEvent> events = manager_->TakeEvents();
    if (!manager_->options().enable_events) {
      FUZZ_EXPECT(events.empty(), "events although off");
      return;
    }
    // What is left out of a registration's one event leaves no chain of parents.
    if (manager_->options().semantics.one_event_per_registration) return;
    status = mirror_.Apply(events, [](const BlockStored&) { return true; });
    FUZZ_EXPECT(status.ok(), status.ToString());
    if (++num_checks_ % 8 != 0) return;  // dearer than all the rest
    status = mirror_.CompareWith(manager_->pool());
    FUZZ_EXPECT(status.ok(), status.ToString());
  }

  std::vector<TokenId> Tokens() {
    const TokenId first = input_.Byte() & 1;
    std::vector<TokenId> tokens(input_.Byte(), first);
    if (!tokens.empty() && input_.Byte() > 128) tokens[input_.Byte() % tokens.size()] = -1;
    return tokens;
  }

  std::vector<BlockId> SomeBlocks() {
    std::vector<BlockId> ids;
    const int32_t most = std::min(manager_->pool().num_blocks() - 1, 200);
    for (int64_t n = input_.Small(0, 5); n > 0; --n) ids.push_back(input_.Wild32(0, most));
    return ids;
  }

  Entry* Pick() {
    if (requests_.empty()) return nullptr;
    return &requests_[input_.Byte() % requests_.size()];
  }

  void NewRequest() {
    const uint8_t kind = input_.Byte();
    KvCacheManager& owner = kind > 245 ? *other_ : *manager_;
    const std::string id = "r" + std::to_string(num_created_++);
    Entry entry;
    if (kind % 8 == 7) {
      const int64_t num_tokens = input_.Wild(1, 120);
      std::vector<BlockHash> hashes;
      if (owner.hashing() != nullptr && num_tokens >= 0) {
        const int64_t hashed =
            std::max<int64_t>(0, num_tokens - owner.options().num_hash_lookahead_tokens);
        const int64_t n = std::min<int64_t>(hashed / owner.hash_block_size(), 300);
        const uint8_t seed = input_.Byte() & 3;
        for (int64_t i = 0; i < n; ++i) {
          hashes.push_back({{seed, static_cast<uint64_t>(i), 7, 0}});
        }
        if (input_.Byte() > 250) hashes.emplace_back();
      }
      auto request = owner.NewRequestFromHashes(id, num_tokens, std::move(hashes));
      if (!request.ok()) return;
      entry.request = *std::move(request);
      entry.hashed = true;
    } else {
      KvCacheManager::RequestOptions options{.id = id};
      options.content.token_ids = Tokens();
      if (kind & 16) options.content.cache_salt = input_.Text(2);
      if (kind & 32) options.content.lora_name = input_.Text(2);
      if (kind & 64) {
        options.content.features.push_back(
            {.identifier = "i", .offset = input_.Wild(0, 40), .length = input_.Wild(1, 40)});
      }
      options.skip_reading_prefix_cache = (kind & 128) != 0 && input_.Byte() > 200;
      auto request = owner.NewRequest(std::move(options));
      if (!request.ok()) return;
      entry.request = *std::move(request);
    }
    if (requests_.size() == kMostRequests) requests_.erase(requests_.begin());
    requests_.push_back(std::move(entry));
  }

  bool LookUp(Entry& entry) {
    const State before = Observe();
    const absl::Status status = manager_->GetComputedBlocks(*entry.request, entry.hits);
    FUZZ_EXPECT(Observe() == before, "a look-up changed something");
    if (!status.ok()) return true;
    const int64_t n = entry.hits.num_tokens();
    FUZZ_EXPECT(n >= 0 && n < entry.request->num_tokens(), "the last token is always computed");
    FUZZ_EXPECT(n == 0 || n % manager_->scheduler_block_size() == 0 || manager_->num_groups() == 1,
                "hit length");
    const auto why = ExplainLookup(*manager_, *entry.request);
    FUZZ_EXPECT(why.ok() && why->num_hit_tokens == n, "an explanation explains another look-up");
    int64_t token = n;
    for (const MissedRun& run : why->missed) {
      FUZZ_EXPECT(run.first_token == token && run.num_tokens > 0, "a gap between missed runs");
      token += run.num_tokens;
    }
    FUZZ_EXPECT(token == entry.request->num_tokens(), "missed tokens do not add up");
    FUZZ_EXPECT(Observe() == before, "an explanation changed something");
    return false;
  }

  bool Allocate(Entry& entry) {
    AllocateSlotsParams params;
    params.num_new_tokens = input_.Wild(1, 100);
    const uint8_t kind = input_.Byte();
    ComputedBlocks hand_made;
    if (kind & 1) params.computed_blocks = &entry.hits;
    if (kind > 235) {
      HitLists lists;
      for (int64_t n = input_.Small(0, 4); n > 0; --n) lists.push_back(SomeBlocks());
      hand_made = ComputedBlocks(std::move(lists), input_.Wild(0, 64));
      params.computed_blocks = &hand_made;
    } else if (kind > 225) {
      params.computed_blocks = &Pick()->hits;
    }
    if (kind & 2) params.num_lookahead_tokens = input_.Wild(0, 20);
    if ((kind & 12) == 12) params.num_external_computed_tokens = input_.Wild(0, 40);
    params.delay_cache_blocks = (kind & 48) == 48;
    params.full_sequence_must_fit = (kind & 64) != 0;
    if (input_.Byte() > 230) params.reserved_blocks = input_.Wild(0, 20);
    params.has_scheduled_requests = (kind & 128) != 0;
    Request& request = *entry.request;
    const bool held = manager_->HoldsBlocks(request);
    const State before = Observe();
    const auto slots = manager_->AllocateSlots(request, params);
    if (!slots.ok()) return true;
    if (!slots->has_value()) {
      FUZZ_EXPECT(held || Observe() == before, "no space, but something changed");
      return false;
    }
    FUZZ_EXPECT(manager_->HoldsBlocks(request), "holds blocks");
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const auto fresh = (*slots)->blocks(g);
      const auto table = manager_->GetBlocks(request, g);
      FUZZ_EXPECT(fresh.size() <= table.size(), "new blocks are the end of the table");
    }
    // As a scheduler does, mostly.
    if (input_.Byte() < 230) {
      const int64_t hit =
          held || params.computed_blocks == nullptr ? 0 : params.computed_blocks->num_tokens();
      request.set_num_computed_tokens(
          std::min(manager_->options().max_model_len, request.num_computed_tokens() + hit +
                                                          params.num_external_computed_tokens +
                                                          params.num_new_tokens));
      request.set_status(RequestStatus::kRunning);
    }
    return false;
  }

  bool Append(Entry& entry) {
    Request& request = *entry.request;
    if (!entry.hashed || input_.Byte() > 240) {
      const std::vector<TokenId> tokens = {1, input_.Byte() & 1, 3};
      return !request.AppendOutputTokens(tokens).ok();
    }
    const int64_t n = input_.Wild(0, 9);
    std::vector<BlockHash> hashes;
    if (n >= 0 && n < 100 && request.content().hashing() != nullptr) {
      const int64_t size = request.content().hash_block_size();
      const int64_t hashed =
          request.num_tokens() + n - manager_->options().num_hash_lookahead_tokens;
      for (int64_t i = std::max<int64_t>(0, hashed) / size -
                       static_cast<int64_t>(request.content().hashes().size());
           i > 0; --i) {
        // A function of the hash before, as every chain is.
        const absl::Span<const BlockHash> old = request.content().hashes();
        const BlockHash last =
            !hashes.empty() ? hashes.back() : (old.empty() ? BlockHash() : old.back());
        hashes.push_back({{last.words[0] * 31 + 9, last.words[1] + 1, 7, 1}});
      }
    }
    return !request.AppendHashedTokens(n, hashes).ok();
  }

  void Query(const Entry& entry) {
    const State before = Observe();
    const Request& request = *entry.request;
    const int64_t n = input_.Wild(0, 200);
    const auto clipped = manager_->GetBlockIds(request, n);
    FUZZ_EXPECT(static_cast<int64_t>(clipped.size()) == manager_->num_groups(), "one per group");
    FUZZ_EXPECT(manager_->GetBlocks(request, input_.Wild32(0, 3)).size() <= 5000, "table");
    manager_->GetBlockIdsIfAny(request);
    manager_->GetUnhashedBlockIds(request);
    manager_->GetNumCommonPrefixBlocks(request);
    HitLists lists;
    for (int64_t k = input_.Small(0, 4); k > 0; --k) lists.push_back(SomeBlocks());
    const ComputedBlocks hand_made(std::move(lists), input_.Wild(0, 64));
    for (const ComputedBlocks* computed : {&entry.hits, &hand_made}) {
      const auto cut = manager_->TruncateComputedBlocks(*computed, n);
      FUZZ_EXPECT(!cut.ok() || cut->num_tokens() == n, "truncated");
    }
    FUZZ_EXPECT(Observe() == before, "a query changed something");
  }

  // True if the call was refused.
  bool Operate() {
    const uint8_t kind = input_.Byte() % 24;
    Entry* entry = Pick();
    if (kind < 3 || entry == nullptr) {
      NewRequest();
      return false;
    }
    Request& request = *entry->request;
    switch (kind) {
      case 3:
      case 4:
      case 5:
        return LookUp(*entry);
      case 6:
        if (LookUp(*entry)) return true;
        [[fallthrough]];
      case 7:
      case 8:
      case 9:
      case 10:
        return Allocate(*entry);
      case 11:
        return Append(*entry);
      case 12:
        return !manager_->Free(request).ok();
      case 13:
        if (!manager_->Free(request).ok()) return true;
        request.MarkPreempted();
        return false;
      case 14: {
        const auto list = manager_->PopBlocksForFree(request);
        if (!list.ok()) return true;
        lists_.push_back({list->rbegin(), list->rend()});
        return false;
      }
      case 15: {
        if (lists_.empty() || input_.Byte() > 200) {
          const std::vector<BlockId> ids = SomeBlocks();
          if (!manager_->FreeBlocks(ids).ok()) return true;
          // Some list or pin lost these; none may be given back twice at the end.
          for (const BlockId id : ids) Forget(id);
          return false;
        }
        const absl::Status status = manager_->FreeBlocks(lists_.back());
        FUZZ_EXPECT(status.ok(), status.ToString());
        lists_.pop_back();
        return false;
      }
      case 16: {
        const std::vector<BlockId> ids = SomeBlocks();
        if (!manager_->PinBlocks(ids).ok()) return true;
        lists_.push_back(ids);
        return false;
      }
      case 17:
        return !manager_->EvictBlocks(SomeBlocks()).ok();
      case 18:
        return !manager_->ResetPrefixCache();
      case 19:
        return !manager_->RemoveSkippedBlocks(request, input_.Wild(0, 200)).ok();
      case 20:
        return !manager_->CacheBlocks(request, input_.Wild(0, 200)).ok();
      case 21:
        Query(*entry);
        return false;
      case 22:
        request.set_num_computed_tokens(input_.Wild(0, 200));
        request.set_num_inflight_tokens(input_.Wild(0, 50));
        return false;
      default:
        if (input_.Byte() > 128) {
          requests_.erase(requests_.begin() + (entry - requests_.data()));
        } else {
          request.set_status(static_cast<RequestStatus>(input_.Byte() & 3));
        }
        return false;
    }
  }

  void Forget(BlockId id) {
    if (id == kNullBlockId) return;
    for (std::vector<BlockId>& list : lists_) {
      const auto found = std::find(list.begin(), list.end(), id);
      if (found == list.end()) continue;
      list.erase(found);
      return;
    }
    FUZZ_EXPECT(false, "took back a block that was not handed out");
  }

  FuzzInput& input_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<KvCacheManager> other_;
  std::vector<Entry> requests_;
  std::vector<std::vector<BlockId>> lists_;  // popped and pinned
  kvblocks::testing::EventMirror mirror_;
  int num_created_ = 0;
  int num_checks_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  Caller caller(input);
  if (!caller.Start()) return 0;
  for (int steps = 0; steps < 150 && !input.empty(); ++steps) caller.Step();
  caller.Finish();
  return 0;
}
