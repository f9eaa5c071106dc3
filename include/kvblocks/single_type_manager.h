// The manager of one group: look-up, allocation and reclamation of its blocks.

#ifndef KVBLOCKS_SINGLE_TYPE_MANAGER_H_
#define KVBLOCKS_SINGLE_TYPE_MANAGER_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/request.h"

// Semantics: which vLLM's rules a KV-cache manager follows, to the letter.
//
//   KvCacheManagerOptions options{.max_model_len = 8192};           // as vLLM 0.33
//   options.semantics = Semantics::Vllm025();                       // as vLLM 0.25
//   options.semantics.retention_interval = 1024;                    // denser registration
//
// The default is exactly what vLLM 0.33 does, with three exceptions. Two of vLLM's rules could let
// a look-up hit content that was not computed, and one could make a consumer of events believe in
// blocks that the cache does not hold. Vllm033Exactly() switches to vLLM's three rules, so that
// answers can be compared one by one. Numbers like V-3 are rules of docs/semantics.md, which also
// says what each does to hit rates.

namespace kvblocks {

struct Semantics {
  std::string_view name = "vllm-0.33";

  // The rules before 0.33. Registration is dense. The block that a draft group drops ends before
  // the last token (V-12), sparse registration takes no notice of the drop (V-3), and draft flags
  // act without use_eagle, too (V-13). With partial_hits the tail of a prompt is registered at its
  // last hash boundary if its block is not full by then (V-20 to V-22). AllocateSlots needs a token
  // to compute beside hits (V-40). A window of one token keeps a block, a window's hit is aligned
  // once (V-36), tokens beyond max_model_len are refused (V-41), and the admission gate subtracts
  // what a hit covers before it caps a window's need (V-42).
  bool is_025 = false;

  // Windowed and Mamba groups register only what serves hits at multiples of this many tokens (a
  // multiple of the scheduler block size), at the end of the prompt, and at the end of the prefix
  // that others share (Request::shared_prefix_boundary). 0: only the latter two. None: all that
  // some hit can use. Without such groups 0 changes nothing. V-1.
  std::optional<int64_t> retention_interval = 0;

  // Tails of prompts are registered also where no look-up can use them: in full-attention groups,
  // and inside a block of states where a step ends there and groups drop. Not before 0.33. V-20,
  // V-115.
  bool registers_unusable_tails = true;
  // A state is registered whenever its block is there, also where the step that ended at it is not
  // the latest: with steps in flight, states behind outputs. Otherwise only what the latest step
  // left is. And of a boundary inside a block, sparse registration keeps the last state before it.
  // V-6.
  bool registers_earlier_states = false;
  // Hits are used as the look-up gave them: also where a block was evicted since (V-36), and where
  // a hit ends inside a block that the same step computes, so that the copy comes before what the
  // step writes (BM-121). Otherwise the former are refused, and the latter wait.
  bool trusts_hits = false;

  // One BlockStored per registration, also where nothing of it is kept, with the tokens of all its
  // positions; otherwise one per run of kept blocks. V-61.
  bool one_event_per_registration = false;

  static Semantics Vllm033() { return {}; }
  static Semantics Vllm025() {
    return {.name = "vllm-0.25",
            .is_025 = true,
            .retention_interval = std::nullopt,
            .registers_unusable_tails = false};
  }
  static Semantics Vllm033Exactly() {
    return {.name = "vllm-0.33-exactly",
            .registers_earlier_states = true,
            .trusts_hits = true,
            .one_event_per_registration = true};
  }
  // "vllm-0.25", "vllm-0.33" or "vllm-0.33-exactly"; none for another name.
  static std::optional<Semantics> ByName(std::string_view name) {
    for (const Semantics& known : {Vllm025(), Vllm033(), Vllm033Exactly()}) {
      if (known.name == name) return known;
    }
    return std::nullopt;
  }

  friend bool operator==(const Semantics&, const Semantics&) = default;
};

// The switches by name, for texts and other languages.
struct SemanticsSwitch {
  const char* name;
  bool Semantics::*member;
};
inline constexpr SemanticsSwitch kSemanticsSwitches[] = {
    {"registers_unusable_tails", &Semantics::registers_unusable_tails},
    {"registers_earlier_states", &Semantics::registers_earlier_states},
    {"trusts_hits", &Semantics::trusts_hits},
    {"one_event_per_registration", &Semantics::one_event_per_registration},
};

// BlockSize: a number of tokens to divide by, with the division as a shift where it is a power of
// two, as nearly all are: a 64-bit division costs more than the rest of a decode step's
// book-keeping. And kMaxTokens: the largest token count accepted anywhere in the managers, so that
// sums of a few never overflow 64 bits.

inline constexpr int64_t kMaxTokens = int64_t{1} << 40;

class BlockSize {
 public:
  // REQUIRES: value >= 1.
  explicit constexpr BlockSize(int64_t value)
      : value_(value),
        shift_(std::has_single_bit(static_cast<uint64_t>(value))
                   ? std::countr_zero(static_cast<uint64_t>(value))
                   : -1) {}

  constexpr int64_t value() const { return value_; }

  // REQUIRES: n >= 0.
  constexpr int64_t FloorDiv(int64_t n) const { return shift_ >= 0 ? n >> shift_ : n / value_; }
  constexpr int64_t CeilDiv(int64_t n) const {
    return shift_ >= 0 ? (n >> shift_) + ((n & (value_ - 1)) != 0) : n / value_ + (n % value_ != 0);
  }
  constexpr int64_t RoundDown(int64_t n) const { return FloorDiv(n) * value_; }

 private:
  int64_t value_;
  int shift_;
};

// ComputedBlocks: the answer of a prefix look-up, to be handed to AllocateSlots of the same
// request.
//
// Per group a list of blocks that hold the request's first num_tokens() tokens; null blocks stand
// where no later token needs the data. A value without references: nothing is pinned, so blocks may
// be reused until AllocateSlots adopts them, which refuses a list gone stale.

using HitLists = absl::InlinedVector<std::vector<BlockId>, 1>;

class ComputedBlocks {
 public:
  // No hit.
  ComputedBlocks() = default;

  // Lists put together by the caller, one per group; AllocateSlots checks every block of them.
  ComputedBlocks(HitLists lists, int64_t num_tokens)
      : lists_(std::move(lists)), num_tokens_(num_tokens) {}

  // Tokens that need not be computed.
  int64_t num_tokens() const { return num_tokens_; }

  // Length of the longest prefix any group could have served if it is longer than the hit, else 0:
  // a prefix that other requests share but a sparsely kept group does not hold.
  int64_t shared_prefix_boundary() const { return shared_prefix_boundary_; }

  // Tokens behind the hit that were hit, too, but are computed again, for windows that are not
  // cached.
  int64_t num_replayed_tokens() const { return num_replayed_tokens_; }

  // REQUIRES: 0 <= group < num_groups().
  absl::Span<const BlockId> blocks(GroupId group) const {
    return lists_[static_cast<size_t>(group)];
  }
  size_t num_groups() const { return lists_.size(); }
  // No block in any list, null or real.
  bool empty() const {
    for (const std::vector<BlockId>& list : lists_) {
      if (!list.empty()) return false;
    }
    return true;
  }

 private:
  friend class KvCacheManager;

  HitLists lists_;
  int64_t num_tokens_ = 0;
  int64_t shared_prefix_boundary_ = 0;
  int64_t num_replayed_tokens_ = 0;
  // Whose look-up this was, and the pool's removal epoch then: at the same epoch no block can have
  // lost its key.
  uint64_t request_serial_ = 0;
  uint64_t manager_serial_ = 0;
  uint64_t removal_epoch_ = 0;
};

// SingleTypeManager: one KV-cache group's rules - which blocks a request needs, which it may give
// back, which it can reuse.
//
// The common part is here; a kind of attention (attention_managers.cc, mamba_manager.cc) adds its
// skip function - how many leading tokens no later token needs - and its prefix look-up.
// FullAttentionManager also serves MLA and, with permanent sink blocks, full attention with sinks;
// SlidingWindowManager also serves sliding-window MLA. MambaManager and CrossAttentionManager lay
// their tables out in their own way.
//
// Keeps no state per request: that lives in the request's GroupBlocks. Prediction equals
// consumption: NumBlocksNeeded is exactly what AdoptHits, AllocateExternal and AllocateNew then
// take out of the free queue. Called by KvCacheManager only. Costs as stated at each function, in
// blocks of this group.

// What a look-up of one or several groups with equal specs is asked.
struct LookupQuery {
  const PrefixContent* content = nullptr;
  absl::Span<const GroupId> groups = {};  // a position counts as cached only if all of them hold it
  int64_t max_tokens = 0;  // the hit may not be longer; more than is hashed for local chunks only
  bool drop_last_block = false;           // draft group: the block after the hit must match too
  int64_t alignment = 1;                  // hit lengths are multiples of it
};

// One block's content to be copied to another before the next step computes anything.
//
// Made where a request may not write into a block that others can hit: the request goes on in its
// own copy, or the cache keeps one. Both blocks stay referenced until the copy is released.
struct BlockCopy {
  GroupId group = 0;
  BlockId source = kNullBlockId;
  BlockId target = kNullBlockId;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// The slots that a step makes; each kind takes what concerns it.
struct SlotDemand {
  int64_t num_slots = 0;           // lookahead included
  int64_t num_main = 0;            // without lookahead
  int64_t num_encoder_tokens = 0;  // of the encoder, for cross attention
  int64_t num_prompt_tokens = 0;   // of the request, for windows of its output and checkpoints
  int64_t num_computed = 0;        // where the step starts, for checkpoints
};

// Where a request's prefix is likely to be hit again; what sparse registration keeps.
struct ReuseBoundaries {
  int64_t num_prompt_tokens = 0;
  int64_t shared_prefix_boundary = 0;  // 0: none
};

class SingleTypeManager {
 public:
  struct Options {
    GroupId group = 0;
    bool is_draft = false;
    int64_t num_ranks_per_block = 1;  // a block covers so many times the spec's tokens
    bool enable_caching = true;
    int64_t hash_block_size = 0;
    // Most real blocks one request may hold; empty: no limit but the sequence length.
    std::optional<int64_t> admission_cap = std::nullopt;
    // The same for what lies behind the prompt, where a window of the output is kept.
    std::optional<int64_t> output_cap = std::nullopt;
    // Registration leaves out what no hit of this alignment can use; 0: it registers all.
    int64_t reachable_alignment = 0;
    // With a retention interval, registration keeps what is reachable at multiples of it and at the
    // request's ReuseBoundaries only (0: at the latter only). `hit_alignment` must be set, then.
    Semantics semantics = {};
    int64_t hit_alignment = 0;
    // The same as the alignment, unless hits may end inside blocks.
    int64_t scheduler_block_size = 0;
    // Some group gives up the block behind a hit.
    bool any_drops = false;
    // Known tokens at the end of what is computed that may be computed again (V-14).
    int64_t num_replayed_tokens = 0;
    // Further tokens that a block's hash covers (V-10).
    int64_t num_hash_lookahead_tokens = 0;
    // Hits may end inside a block, at a multiple of the hash block size.
    bool partial_hits = false;
    // A state can be exported that many tokens after the start of a chunk, or a multiple (V-45).
    int64_t checkpoint_alignment = 1;
    // Where the ids of taken blocks go, if anybody asks for them.
    std::vector<BlockId>* new_block_ids = nullptr;
  };

  // The manager for a kind of spec. ResourceExhausted if the pool cannot hold the sink blocks.
  static absl::StatusOr<std::unique_ptr<SingleTypeManager>> Create(const KvCacheSpec& spec,
                                                                   const Options& options,
                                                                   BlockPool* pool);
  // Makes the managers of specs of a registered kind (kvblocks/kv_cache_spec.h), which otherwise
  // have the manager of the kind that they are managed like. InvalidArgument if the kind has one.
  // Call it before managers of the kind are made; any thread may.
  using Factory = std::function<absl::StatusOr<std::unique_ptr<SingleTypeManager>>(
      const KvCacheSpec&, const Options&, BlockPool*)>;
  static absl::Status RegisterFactory(const KvCacheKind& kind, Factory factory);
  virtual ~SingleTypeManager() = default;

  const KvCacheSpec& spec() const { return spec_; }
  GroupId group() const { return options_.group; }
  bool is_draft() const { return options_.is_draft; }
  // Whether other requests can hit its blocks.
  bool is_cacheable() const { return hashes_per_block_ > 0; }
  // Tokens that a draft group must match behind a hit; 0 for other groups.
  int64_t draft_margin() const { return options_.is_draft && traits_.can_drop ? drop_unit() : 0; }
  int64_t block_size() const { return block_size_.value(); }
  int64_t NumBlocksFor(int64_t num_slots) const { return block_size_.CeilDiv(num_slots); }
  const std::optional<int64_t>& admission_cap() const { return options_.admission_cap; }
  const std::optional<int64_t>& output_cap() const { return options_.output_cap; }

  // Every prefix of a hit is a hit, blocks of the prompt are kept until the request ends (full
  // attention, MLA, sinks).
  bool is_full_type() const { return traits_.is_full_type; }
  // So are those of the output.
  bool keeps_all_blocks() const { return traits_.is_full_type && !spec_.output_window(); }
  // Whether a hit counts tokens without a look-up, so that they need not be hashed (local chunks).
  bool hits_unhashed_tokens() const { return traits_.hits_unhashed_tokens; }
  // Whether prompts that end inside a block are registered up to there.
  bool registers_tails() const { return registers_tails_; }
  // Whether steps may copy blocks: where hits end inside them or states are registered there.
  bool makes_copies() const { return makes_copies_; }

  // Leading tokens that no token after the first n needs; never falls with n. O(1).
  int64_t NumUnneededTokens(int64_t n) const {
    return traits_.is_full_type ? 0 : NumUnneededTokensImpl(n);
  }
  // The same, less those that are kept because a drafter may compute them again: their blocks are
  // given back.
  int64_t NumSkippedTokens(int64_t n) const {
    return NumUnneededTokens(std::max<int64_t>(0, n - traits_.num_kept_tokens));
  }

  // The longest hit: fills lists[g] for each group of the query and returns its length in tokens.
  // Changes nothing else.
  virtual int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const = 0;

  // Whether these hits, of so many tokens, may be used in this step. What is used before layers
  // write must not be what this step computes: a state, and a block of which a copy is made.
  virtual bool MayUseHits(absl::Span<const BlockId>, int64_t /*num_tokens*/) const { return true; }
  void NewStepStarts() {
    registered_in_step_.clear();
    keys_in_step_.clear();
  }

  // Leading blocks that all `num_tables` block tables of this group share: their references, less
  // those from outside the tables, are as many as there are tables. 0 unless of full type. O(result
  // + 1).
  int64_t NumCommonPrefixBlocks(const GroupBlocks& held, int64_t num_tables,
                                const absl::flat_hash_map<BlockId, int32_t>& outside) const;

  // Blocks permanently taken for attention sinks.
  absl::Span<const BlockId> sink_blocks() const { return sink_blocks_; }

  // Blocks that making the slots takes out of the free queue, unreferenced hit blocks included.
  // `held` is null for a request without blocks; then `total_computed` tokens count as computed.
  // With `apply_cap`, as if the rest of the sequence were computed step by step under the admission
  // cap. O(1 + hits).
  int64_t NumBlocksNeeded(const GroupBlocks* held, const SlotDemand& demand,
                          absl::Span<const BlockId> hits, int64_t total_computed,
                          bool apply_cap) const {
    return CountBlocksNeeded(held, demand, hits, total_computed, apply_cap,
                             /*caps_before_hits=*/!options_.semantics.is_025);
  }

  // The same for a pool with chunks: new pages, the hits that are touched, and what a sequence of
  // the `longest` demand may hold beyond that under the admission cap.
  PageNeed PagesNeeded(const GroupBlocks* held, const SlotDemand& demand, const SlotDemand& longest,
                       absl::Span<const BlockId> hits, int64_t total_computed,
                       bool apply_cap) const;

  // For a request without blocks: nulls up to what is skipped, then the hits from there on,
  // touched. O(hits).
  void AdoptHits(GroupBlocks& held, absl::Span<const BlockId> hits, int64_t total_computed);
  // Blocks for tokens an external store provides, if any of them lies in reach of later tokens.
  void AllocateExternal(GroupBlocks& held, int64_t total_computed);
  // Blocks for the slots demanded; held.num_new counts what they add to the table. O(new blocks).
  void AllocateNew(GroupBlocks& held, const SlotDemand& demand) {
    if (traits_.has_own_layout) return AllocateNewImpl(held, demand);
    const int64_t target = block_size_.CeilDiv(demand.num_slots);
    const int64_t size = static_cast<int64_t>(held.table.size());
    held.num_new = std::max<int64_t>(0, target - size);
    if (held.num_new > 0) TakeBlocks(held.num_new, held.table);
  }

  // Between AdoptHits (`is_new`) and AllocateNew: takes a block for each one
  // that the request is about to write into although others may hit it, and appends the copy to be
  // made. A hit that ends inside a block is exchanged for its copy, which NewBlocks shall name.
  void TakeCopies(GroupBlocks& held, bool is_new, const SlotDemand& demand, int64_t total_computed,
                  std::vector<BlockCopy>& copies) {
    if (!makes_copies_) return;
    if (is_new) return CopyHitTail(held, total_computed, copies);
    CopyOverwrittenState(held, demand, copies);
  }
  // Registers what the first n tokens fill and is not registered yet, as far as hits can use it:
  // tokens behind the last boundary at which hits can end serve none, but a draft group also
  // registers the block that its look-up drops. With partial hits also the end of the prompt, if it
  // lies inside a block. O(newly full positions). REQUIRES: the table covers them, the content has
  // hashed them.
  void CacheBlocks(const PrefixContent& content, GroupBlocks& held, int64_t n,
                   const ReuseBoundaries& boundaries) {
    if (!is_cacheable()) return;
    const int64_t num_final = std::max<int64_t>(0, n - options_.num_replayed_tokens);
    const int64_t alignment = options_.reachable_alignment;
    if (alignment == 0) {
      n = num_final;
    } else if (options_.is_draft && n >= alignment) {
      // States drop nothing, but count like the others.
      const int64_t margin = traits_.can_drop ? draft_margin() : block_size();
      n = std::min(num_final, num_final - num_final % alignment + margin);
    } else if (!options_.partial_hits) {
      n -= n % alignment;
    }
    const bool looks_ahead = options_.num_hash_lookahead_tokens > 0;
    const int64_t full =
        block_size_.FloorDiv(looks_ahead ? std::min(n, content.num_hashed_tokens()) : n);
    if (full > held.num_cached) CacheFullBlocks(content, held, full, boundaries);
    if (registers_tails_ && !held.is_tail_registered) CachePromptTail(content, held, n, boundaries);
  }

  // Frees what the first `num_processed` tokens made unreachable, deepest first, leaving nulls. O(1
  // + blocks freed).
  void RemoveSkippedBlocks(GroupBlocks& held, int64_t num_processed, int64_t num_prompt_tokens) {
    if (!traits_.is_full_type) return TrimTo(held, NumSkippedTokens(num_processed));
    if (spec_.output_window()) TrimOutput(held, num_processed, num_prompt_tokens);
  }

  // Frees the table back to front and leaves `held` empty.
  void Free(GroupBlocks& held);

  // With partial hits: the end of the last part of a prompt after which a state is found again, if
  // a step ends there; 0: states are found at the ends of blocks only.
  virtual int64_t StateTail(int64_t /*num_prompt_tokens*/) const { return 0; }

  // Of states: the tokens after which a step that computes [begin, end) has its state exported on
  // the way, or 0. REQUIRES: `begin` tokens are computed, or hit.
  virtual int64_t CheckpointIn(int64_t /*begin*/, int64_t /*end*/,
                               int64_t /*num_prompt_tokens*/) const {
    return 0;
  }

  // Whether registration would keep position i (see Options::reachable_alignment).
  bool IsReachable(int64_t position) const {
    return IsTailOf(position, options_.reachable_alignment);
  }
  // The same under Options::retention_interval.
  virtual bool IsRetained(int64_t position, const ReuseBoundaries& boundaries) const;

 protected:
  // Appends so many new blocks to a table.
  void TakeBlocks(int64_t count, std::vector<BlockId>& table) {
    pool_->GetNewBlocks(count, table, group());
    if (options_.new_block_ids == nullptr) return;
    options_.new_block_ids->insert(options_.new_block_ids->end(), table.end() - count, table.end());
  }
  // What a kind does in its own way.
  struct Traits {
    bool is_full_type = false;
    bool has_own_layout = false;   // NumNewBlocks and AllocateNewImpl say what a step takes
    bool can_drop = true;          // a draft group drops the last block of a hit
    bool holds_one_block = false;  // whatever the tokens
    int64_t num_kept_tokens = 0;   // of those that no later token needs
    bool registers_tails = false;  // of prompts, also where hits end at the ends of blocks
    bool hits_unhashed_tokens = false;  // a hit counts tokens without a look-up
  };
  SingleTypeManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool,
                    const Traits& traits);

  virtual int64_t NumUnneededTokensImpl(int64_t n) const = 0;
  // Positions before a hit's end that the hit needs; what the reachable mask is made of. Negative
  // for kinds that have no such mask.
  virtual int64_t NumTailBlocksNeeded() const { return -1; }
  // Blocks that AllocateExternal and AllocateNew take; `size` entries are in the table after
  // AdoptHits. Only for kinds with a layout of their own, as is the next.
  virtual int64_t NumNewBlocks(const GroupBlocks* /*held*/, int64_t /*size*/, const SlotDemand&,
                               int64_t /*total_computed*/, bool /*apply_cap*/) const {
    return 0;
  }
  virtual void AllocateNewImpl(GroupBlocks&, const SlotDemand&) {}
  // The most blocks that a request of that demand holds at once, of kinds whose steps give blocks
  // back; 0: those of its table.
  virtual int64_t MostHeldAtOnce(const SlotDemand& /*longest*/) const { return 0; }
  // The position whose state is registered and about to be overwritten, or -1.
  virtual int64_t StateToCopy(const GroupBlocks&, const SlotDemand&) const { return -1; }
  virtual void CopyOverwrittenState(GroupBlocks&, const SlotDemand&, std::vector<BlockCopy>&) {}
  // Whether the block that the prompt's tail ends in holds the content up to there when the first n
  // tokens are registered, and what to do once it is.
  virtual bool HoldsTail(const GroupBlocks&, int64_t tail, int64_t n) const { return n >= tail; }
  virtual void OnTailRegistered(GroupBlocks&, BlockId, int64_t /*tail*/) {}
  // Looks a position up in all groups of a query and writes their blocks, one per group. False:
  // some group lacks it.
  [[gnu::always_inline]] bool FindInAllGroups(const LookupQuery& query, int64_t position,
                                              int64_t hashes_per_position, BlockId* found) const {
    for (size_t i = 0; i < query.groups.size(); ++i) {
      found[i] = pool_->FindCached(*query.content, position, hashes_per_position, query.groups[i]);
      if (found[i] == kNullBlockId) return false;
    }
    return true;
  }
  // The same for a position's block that is cached as the end of the first `end` tokens.
  bool FindTailInAllGroups(const LookupQuery& query, int64_t end, BlockId* found) const {
    const int64_t begin = (block_size_.CeilDiv(end) - 1) * block_size();
    for (size_t i = 0; i < query.groups.size(); ++i) {
      found[i] = pool_->FindCachedTail(*query.content, begin, end, query.groups[i]);
      if (found[i] == kNullBlockId) return false;
    }
    return true;
  }
  // The tokens up to which the prompt's tail can be registered for a group that holds rows.
  virtual int64_t TailOfPrompt(const PrefixContent& content, int64_t num_prompt_tokens) const;
  // Where requests like this one are expected to stop sharing, for sparse registration (V-3).
  struct Boundaries {
    std::array<int64_t, 4> tokens;
    size_t count;
    const int64_t* begin() const { return tokens.data(); }
    const int64_t* end() const { return tokens.data() + count; }
  };
  Boundaries BoundariesOf(const ReuseBoundaries& reuse) const;
  // Tokens that a draft group gives up behind a hit.
  int64_t drop_unit() const {
    return has_inner_boundaries_ && traits_.is_full_type ? options_.hash_block_size : block_size();
  }
  // Registers positions held.num_cached to `full`.
  virtual void CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                               const ReuseBoundaries& boundaries);

  const KvCacheSpec spec_;
  const Options options_;
  BlockPool* const pool_;
  const BlockSize block_size_;
  const int64_t hashes_per_block_;   // 0 when nothing is hashed
  const bool has_inner_boundaries_;  // hits may end inside this group's blocks
  const bool registers_tails_;       // of prompts, where they end inside its blocks
  const bool makes_copies_;

 private:
  // mamba_manager.cc.
  static std::unique_ptr<SingleTypeManager> CreateForStates(const KvCacheSpec& spec,
                                                            const Options& options,
                                                            BlockPool* pool);
  // Whether a hit that ends at a multiple of `period_tokens` needs the position; true if there is
  // no telling.
  bool IsTailOf(int64_t position, int64_t period_tokens) const;
  int64_t CountBlocksNeeded(const GroupBlocks* held, const SlotDemand& demand,
                            absl::Span<const BlockId> hits, int64_t total_computed, bool apply_cap,
                            bool caps_before_hits) const;
  // Positions at the beginning of a table, adopted with these hits, that have no block.
  int64_t NumLeadingNulls(absl::Span<const BlockId> hits, int64_t total_computed) const;
  void TrimTo(GroupBlocks& held, int64_t num_skipped_tokens);
  void TrimOutput(GroupBlocks& held, int64_t num_processed, int64_t num_prompt_tokens);
  // Frees positions [begin, end) of a table, none of which is null, and leaves nulls.
  void FreePositions(GroupBlocks& held, int64_t begin, int64_t end);
  void CopyHitTail(GroupBlocks& held, int64_t total_computed, std::vector<BlockCopy>& copies);
  void CachePromptTail(const PrefixContent& content, GroupBlocks& held, int64_t n,
                       const ReuseBoundaries& boundaries);

  const Traits traits_;

 protected:
  std::vector<BlockId> sink_blocks_;    // of kinds with sinks
  // Of kinds that MayUseHits asks about: blocks registered in this step, or their keys.
  absl::flat_hash_set<BlockId> registered_in_step_;
  absl::flat_hash_set<BlockHash> keys_in_step_;
  std::vector<uint8_t> mask_;           // scratch
  mutable std::vector<BlockId> found_;  // scratch of look-ups
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SINGLE_TYPE_MANAGER_H_
