// The KV-cache manager: look-up, allocation in three stages, registration, reclamation.

#ifndef KVBLOCKS_KV_CACHE_MANAGER_H_
#define KVBLOCKS_KV_CACHE_MANAGER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/request.h"
#include "kvblocks/single_type_manager.h"

// MissReason: why tokens of a look-up were not served by the prefix cache. One vocabulary for the
// library's explanations and counters and for the simulator's reports; explain/miss_reason_words.h
// has the words.

namespace kvblocks {

enum class MissReason {
  // The block is not there.
  kFirstUse,       // no block with this content left the cache, as far as is remembered
  kEvicted,        // its block was taken for other content
  kRemoved,        // EvictBlocks or ResetPrefixCache took it out
  kSaltOrAdapter,  // the same tokens are or were cached, but under another salt, adapter or image
  kNotCached,      // any of these, and kNotKept: without lookup_history_blocks the cause is unknown
  // The same, for observers that see all requests of a run: the simulator.
  kNotYetComputed,  // a live request has the same content, but has not come so far
  kShort,           // the prompt shares less than one block with earlier ones
  // The block is there, but cannot be used.
  kGroupVeto,  // another group lacks a block that its window or chunk needs
  kAlignment,  // hits end at multiples of hit_alignment only
  kDraftDrop,  // a draft group gives up the block behind the hit
  kLastToken,  // the last known token is computed in any case, and with it the block it fills
  // No look-up could find it.
  kPartialBlock,       // behind the last full block
  kShorterThanABlock,  // all known tokens together fill no block
  kReadingSkipped,     // the request asked not to read the prefix cache
  kCachingOff,
  kLookahead,  // the block is full, but its hash covers tokens behind it that are not known
  // The block is not there.
  kNotKept,  // the tokens were computed, but their block was not kept for reuse
};
inline constexpr size_t kNumMissReasons = 17;

// Missed tokens (or blocks), indexed by MissReason.
using MissCounts = std::array<int64_t, kNumMissReasons>;

// PrefixLookup: the longest prefix that all groups of a model can serve together.
//
// One group (vLLM's unitary coordinator): its own look-up. Several (the hybrid one): groups with
// equal specs are looked up together, and the hit is a fixed point: each kind is asked for its
// longest hit within the shortest so far, and the round is repeated until none shortens it.
// Lengths never grow, so this ends. Full kinds are asked once, because every prefix of their hits
// is a hit, too. Without prefix caching there are no look-ups.

class PrefixLookup {
 public:
  struct Hit {
    int64_t num_tokens = 0;
    int64_t longest_lookup = 0;  // largest length any group's look-up returned
  };

  // Hits end at multiples of `alignment`. The groups must outlive it. The block that draft groups
  // drop may be any that is hashed, or with drops_last_full_block unset, as with a single group, it
  // ends within the tokens that may be hit.
  PrefixLookup(absl::Span<const std::unique_ptr<SingleTypeManager>> groups, int64_t alignment,
               bool drops_last_full_block);

  // The longest hit of at most max_tokens; fills one list per group, which all cover the hit.
  Hit FindLongestCacheHit(const PrefixContent& content, int64_t max_tokens, HitLists& lists) const;

 private:
  // Groups with one spec.
  struct LookupGroup {
    std::vector<GroupId> groups;
    const SingleTypeManager* manager;  // of the first of them
  };

  const int64_t alignment_;
  const bool drops_last_full_block_;
  std::vector<LookupGroup> lookup_groups_;     // full types first, else by first occurrence
  bool has_several_groups_ = false;
  bool is_full_and_other_ = false;
  mutable std::vector<int64_t> full_lengths_;  // scratch of one look-up
  mutable std::vector<uint8_t> verified_;
};

// KvCacheManager: what a scheduler calls - prefix look-up, slot allocation, freeing - over all
// KV-cache groups of a model.
//
//   auto manager = KvCacheManager::Create(config, {.max_model_len = 8192}).value();
//   auto request = manager->NewRequest({.id = "r1", .content = {.token_ids = prompt}}).value();
//   ComputedBlocks hits;
//   manager->GetComputedBlocks(*request, hits);
//   auto slots = manager->AllocateSlots(*request, {.num_new_tokens = n, .computed_blocks = &hits});
//   if (!slots.ok()) ...            // misuse: says what, nothing changed
//   if (!slots->has_value()) ...    // does not fit now: preempt or wait, and try again
//   Span<const BlockId> table = manager->GetBlocks(*request, /*group=*/0);
//   manager->Free(*request);
//
// Semantics are those of vLLM V1's KV-cache core; docs/semantics.md lists versions and differences.
//
// Always: look-ups and queries change nothing, except that a request may ask for events of its
// reused blocks. A refused call changes nothing. A call that finds no space has still freed the
// request's own out-of-window blocks.
//
// Cost, with G groups: AllocateSlots O(G) plus blocks moved and hashes registered; a decode step
// that takes no block and fills none walks no table and allocates nothing. GetComputedBlocks
// O(hit positions) per group.
//
// One scheduler thread at a time. Requests may outlive their manager: they then hold no blocks.

struct LookupExplanation;

struct KvCacheManagerOptions {
  int64_t max_model_len = 0;  // longest sequence, in tokens; required
  Semantics semantics = {};   // which engine's, and switches of it; by default vLLM 0.33's
  // Most tokens scheduled but not yet settled, all requests and concurrent batches together.
  // Default: max_model_len, with which the caps of windowed groups never bind.
  std::optional<int64_t> max_in_flight_tokens = std::nullopt;
  bool enable_caching = true;
  // Drop the last matched block of draft groups, so that the draft head sees hidden states.
  bool use_eagle = false;
  // A block's hash also covers this many tokens after the block, because a drafter's cache depends
  // on them. It exists only once they are known (see PrefixHashing), and hits drop no block. 0 to
  // 255; vLLM 0.33 has 1 for EAGLE and MTP, without external KV. V-10.
  int64_t num_hash_lookahead_tokens = 0;
  // Tokens after a prefill's part that the drafter reads: 0 without one, 1 for EAGLE, K for
  // multi-module MTP. All but one of them may be computed again, so they are not registered before
  // they are final. Window specs say what they keep for such a drafter (extra_retained_tokens).
  // V-14, V-100.
  int64_t prefill_lookahead_tokens = 0;
  bool enable_events = false;
  bool log_stats = true;
  // Share of the pool that admissions leave free while something is scheduled. In a native layout:
  // share of the chunks that admissions leave idle or unassigned.
  double watermark = 0.0;
  FreeOrder free_order = FreeOrder::kUnhashedFirst;
  // Which cached block without references is reused next. Policies other than the default, lru,
  // need caching and free_order kUnhashedFirst, and no native layout. ParseEvictionPolicy makes one
  // by its name; docs/policies.md compares them and says how to write one.
  EvictionPolicyFactory eviction_policy = {};
  // Share of the pool that Retain may keep at most, 0 to 1; 0: nothing can be retained, and it
  // costs nothing. Above 0 it needs an eviction_policy from ParseEvictionPolicy, also for "lru",
  // since that brings what retains blocks.
  double max_retained_share = 0.0;
  HashAlgorithm hash_algorithm = HashAlgorithm::kSha256;
  // Processes that exchange hashes need the same seed. Default: random; for kSha256Cbor that of
  // vLLM. With the CBOR algorithms it is what vLLM reads from PYTHONHASHSEED.
  std::optional<std::string> hash_seed = std::nullopt;
  // Keep the tokens and extra keys of cached blocks and compare them on every hit, so that contents
  // that share a hash do not hit each other: for kXxh3_128 where clients are untrusted. Takes
  // 4 bytes per token slot of the pool; requests must be made from tokens.
  bool compare_tokens_on_hit = false;
  // How many blocks a windowed group may hold per request: the tight bound, or the engines'
  // formula, at most one higher.
  BlockCountFormula block_count_formula = BlockCountFormula::kExact;
  // Longest input of the encoder, in tokens, where groups attend to one. Default: max_model_len.
  std::optional<int64_t> max_encoder_tokens = std::nullopt;
  // Register every full block of every group, also those that no hit can use, as older engines did.
  // Needs semantics.retention_interval none.
  bool register_unreachable_blocks = false;
  // Prompts that end inside a block are registered there, and hits may end inside blocks, at
  // multiples of the hash block size. For models with a Mamba group in align mode whose block is
  // larger than the hash block (KvCacheConfig::hash_block_size); windowed groups next to it must
  // have blocks of that size. The caller must then run the copies of TakeBlockCopies.
  bool partial_hits = false;
  // Ranks over which the tokens of a block are spread round robin. A block of one rank then covers
  // its tokens times the ranks. Decode context parallelism applies to all groups except Mamba and
  // rings, whose blocks every rank has as a whole. Prefill context parallelism needs one group.
  // Not for windows, chunks and sinks; 1 to 4096 each. BM-113.
  int64_t decode_context_parallel = 1;
  int64_t prefill_context_parallel = 1;
  // For Mamba groups with checkpoint blocks (MambaSpec num_checkpoint_blocks): the backend can
  // export a state at multiples of this many tokens after the start of a chunk. V-45.
  int64_t checkpoint_alignment = 1;
  // How many removals from the prefix cache ExplainLookup remembers, to distinguish evicted blocks
  // from content never seen; 0: none. 96 bytes each, taken at construction; and requests with extra
  // keys hash their tokens twice.
  int64_t lookup_history_blocks = 0;
  // Collect the ids of the blocks that attention groups take, for workers that must zero fresh
  // blocks. The caller must then call TakeNewBlockIds once per step. BM-115.
  bool report_new_blocks = false;
};

struct AllocateSlotsParams {
  int64_t num_new_tokens = 0;                       // to compute now, unverified drafts included
  const ComputedBlocks* computed_blocks = nullptr;  // only for a request that holds no blocks yet
  int64_t num_lookahead_tokens = 0;                 // further slots for drafting
  // KV that an external store provides; only as computed_blocks.
  int64_t num_external_computed_tokens = 0;
  bool delay_cache_blocks = false;  // register nothing now: the load completes later (CacheBlocks)
  bool full_sequence_must_fit = false;  // gate on all known tokens, not only on this chunk
  // Free blocks that must remain for other sequences. In a native layout: that many further pages
  // of every group's class, all of them together.
  int64_t reserved_blocks = 0;
  bool has_scheduled_requests = false;  // this step has work already: the watermark applies
  int64_t num_encoder_tokens = 0;  // of the encoder's input, for cross attention: in the first call
};

// What to keep of a request's content, and how.
struct RetainParams {
  // The first tokens to keep; default: all that the request knows. Blocks inside them count.
  std::optional<int64_t> num_tokens = std::nullopt;
  // Only the leading blocks that at least this many requests used since they were cached.
  int64_t min_uses = 1;
  // 1 to 100. The lowest goes first when the cap is reached, or when nothing else can be reused.
  int32_t priority = 50;
  // Time to live from the last AdvanceTime on, in its unit, at least 1; default: unlimited.
  std::optional<int64_t> ttl = std::nullopt;
};

// The blocks that one AllocateSlots call took for new tokens, per group, possibly none: the end of
// each block table. If a hit ended inside a block, its copy comes first. For Mamba in align mode
// this is all that the table grew by, with null blocks and blocks moved from earlier positions.
// Valid until the request's next AllocateSlots or Free.
class NewBlocks {
 public:
  explicit NewBlocks(absl::Span<const GroupBlocks> groups) : groups_(groups) {}
  size_t num_groups() const { return groups_.size(); }
  absl::Span<const BlockId> blocks(GroupId group) const {
    const GroupBlocks& held = groups_[static_cast<size_t>(group)];
    return absl::MakeConstSpan(held.table).last(static_cast<size_t>(held.num_new));
  }
  // Over all groups.
  int64_t num_blocks() const {
    int64_t sum = 0;
    for (const GroupBlocks& held : groups_) sum += held.num_new;
    return sum;
  }

 private:
  absl::Span<const GroupBlocks> groups_;
};

// Counted in tokens, at admission, since the last MakePrefixCacheStats.
struct PrefixCacheStats {
  int64_t requests = 0, queries = 0, hits = 0;
  int64_t preempted_requests = 0, preempted_queries = 0, preempted_hits = 0;
  // Tokens not hit, of the admissions that reported them. If all did, they and the hits add up to
  // the queries.
  MissCounts missed = {}, preempted_missed = {};
  bool reset = false;  // the prefix cache was reset in between

  friend bool operator==(const PrefixCacheStats&, const PrefixCacheStats&) = default;
};

// Whether vLLM would let hits end inside blocks (KvCacheManagerOptions::partial_hits): some Mamba
// group in align mode has blocks larger than the hash block, and every other group has rows that
// are kept to the end, or blocks of one hash block. V-109.
bool SupportsPartialHits(const KvCacheConfig& config, const KvCacheManagerOptions& options);

class KvCacheManager {
 public:
  struct RequestOptions {
    std::string id = {};
    PrefixContent::Options content = {};
    bool skip_reading_prefix_cache = false;
    // Registers nothing, as with delay_cache_blocks in every step, and CacheBlocks refuses. For
    // keys and values that other requests must not hit, such as those of a blend.
    bool skip_writing_prefix_cache = false;
    // Each look-up with a hit emits BlockStored for the blocks of the hit, as if they were
    // registered now. This is for consumers that follow single requests; those that count blocks
    // would count them twice. Needs enable_events.
    bool report_reused_blocks = false;
  };

  // InvalidArgument names the field, the value and the limit.
  static absl::StatusOr<std::unique_ptr<KvCacheManager>> Create(
      const KvCacheConfig& config, const KvCacheManagerOptions& options);
  ~KvCacheManager();
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  // A request whose content is hashed as this manager needs it. InvalidArgument for an
  // encoder-decoder model with prefix caching if no cache_salt names the encoder's input.
  absl::StatusOr<std::unique_ptr<Request>> NewRequest(RequestOptions options) const;
  // The same from block hashes of hash_block_size() tokens each, computed by the caller. `hashes`
  // may stay empty when hashing() is null. `session_id` and `skip_reading_prefix_cache` as in
  // RequestOptions.
  absl::StatusOr<std::unique_ptr<Request>> NewRequestFromHashes(
      std::string id, int64_t num_tokens, std::vector<BlockHash> hashes,
      std::optional<std::string> session_id = std::nullopt,
      bool skip_reading_prefix_cache = false) const;

  // --- The step path ---

  // Call it before the first AllocateSlots of each step if any group is of kind Mamba; otherwise it
  // does nothing. States registered since this call are not ready: AllocateSlots finds no space for
  // a request that hit one, or whose hit ends inside a block registered since then.
  void NewStepStarts() {
    for (size_t g = 0; has_states_ && g < groups_.size(); ++g) groups_[g]->NewStepStarts();
  }

  // The longest cached prefix of a request: at most max_tokens, and at most num_tokens() - 1,
  // because the last token is always computed. Windows that are computed again after a hit make it
  // shorter by KvCacheSpec::replay_tokens. Reuses the lists of `out`. InvalidArgument for a request
  // without tokens.
  absl::Status GetComputedBlocks(const Request& request, ComputedBlocks& out,
                                 int64_t max_tokens = kMaxTokens) const;
  absl::StatusOr<ComputedBlocks> GetComputedBlocks(const Request& request) const;

  // Makes room for a request's next tokens: frees its out-of-window blocks, adopts hits, takes
  // blocks for external, new and lookahead tokens, and registers the full blocks of known tokens.
  // Empty: it does not fit now.
  absl::StatusOr<std::optional<NewBlocks>> AllocateSlots(Request& request,
                                                         const AllocateSlotsParams& params);

  // Frees all blocks, the deepest of each table first. No-op for a request that holds none.
  // InvalidArgument for a request of another manager.
  absl::Status Free(Request& request);

  // With partial_hits: the copies to be made, in this order (by group, then by call of
  // AllocateSlots), before the next step computes anything. Returns and clears; always empty
  // otherwise. Both blocks of a copy stay referenced until ReleaseBlockCopies.
  std::vector<BlockCopy> TakeBlockCopies();
  // Whether TakeBlockCopies would return any.
  bool has_block_copies() const { return !copies_.empty(); }
  // The copies have been made: frees their blocks in the order of the list, the source of each
  // before its target. InvalidArgument, and nothing changed, for copies that TakeBlockCopies did
  // not return or that were released already.
  absl::Status ReleaseBlockCopies(absl::Span<const BlockCopy> copies);

  // --- Around the step ---

  // Takes the blocks from the request without freeing them: tables of all groups in group order.
  // The caller frees the reversed list with FreeBlocks when nothing reads them any more.
  absl::StatusOr<std::vector<BlockId>> PopBlocksForFree(Request& request);
  // Frees blocks obtained from PopBlocksForFree, PinBlocks or TakeBlockCopies, in list order.
  // InvalidArgument, and nothing changed, for others.
  absl::Status FreeBlocks(absl::Span<const BlockId> ids);
  // Keeps blocks from being reused while something outside reads them, until FreeBlocks.
  absl::Status PinBlocks(absl::Span<const BlockId> ids);

  // Frees blocks that no token after the first num_processed_tokens needs, as AllocateSlots does by
  // itself.
  absl::Status RemoveSkippedBlocks(Request& request, int64_t num_processed_tokens);

  // Registers what delay_cache_blocks held back, up to num_tokens. FailedPrecondition for a request
  // that skips writing.
  absl::Status CacheBlocks(Request& request, int64_t num_tokens);

  // Asks to keep what is cached of a request's content. Other cached blocks are reused first,
  // whatever the eviction policy. It is a preference: retained blocks count as free, an allocation
  // never fails because of them, and they are reused when nothing else is left. A block that was
  // retained before keeps the higher priority and the later end. At the cap (max_retained_share)
  // this displaces retentions of lower priority, and older ones of the same priority; if there are
  // none, the rest of the prefix is refused. The request need not hold blocks; call this before it
  // frees them.
  // InvalidArgument, and nothing changed, for parameters outside their range or without a cap.
  // O(blocks of the prefix x log(blocks of the pool)).
  absl::StatusOr<RetainOutcome> Retain(const Request& request, const RetainParams& params);
  // Sets the caller's clock, in a unit of its choice, and ends what was retained until then. The
  // clock starts at 0.
  // InvalidArgument if it goes back or max_retained_share is 0.
  absl::Status AdvanceTime(int64_t now);

  absl::Status EvictBlocks(absl::Span<const BlockId> ids) { return pool_->EvictBlocks(ids); }
  bool ResetPrefixCache();

  // --- Queries ---

  // One group's block table, null blocks as 0; empty for a request that holds none. Valid until the
  // next change.
  absl::Span<const BlockId> GetBlocks(const Request& request, GroupId group) const;
  // Gives the request new memory for a block table, with the same entries, and returns the old
  // memory, so that others who read it (see GetBlocks) may go on. Empty for a request that holds no
  // blocks. O(entries).
  std::vector<BlockId> MoveBlockTable(Request& request, GroupId group);
  // Copies for all groups, clipped to the blocks that cover num_tokens.
  std::vector<std::vector<BlockId>> GetBlockIds(const Request& request,
                                                int64_t num_tokens = kMaxTokens) const;
  // As GetBlockIds, but empty if all tables are.
  std::optional<std::vector<std::vector<BlockId>>> GetBlockIdsIfAny(const Request& request) const;
  // Real blocks without a key, per group.
  std::vector<std::vector<BlockId>> GetUnhashedBlockIds(const Request& request) const;
  // Tokens up to the end of the group's last block that has a key; 0: none has. O(blocks after
  // it).
  int64_t GetNumRegisteredTokens(const Request& request, GroupId group) const;
  // Leading blocks that all requests holding blocks share, per group; 0 for windowed groups.
  std::vector<int64_t> GetNumCommonPrefixBlocks(const Request& request) const;
  // The first num_tokens of a hit. InvalidArgument unless every group's block size divides it and
  // the lists cover it.
  absl::StatusOr<ComputedBlocks> TruncateComputedBlocks(const ComputedBlocks& computed,
                                                        int64_t num_tokens) const;
  // Blocks that slots for num_tokens in all would take out of the free queue now. With apply_cap
  // the missing tokens count as computed step by step, so windows free blocks in between.
  int64_t NumBlocksNeeded(const Request& request, int64_t num_tokens, bool apply_cap) const;
  // For a Mamba group with checkpoint blocks: after which token the step of the latest
  // AllocateSlots must export its state, and into which block; empty: no export. V-45.
  struct StateCheckpoint {
    int64_t num_tokens = 0;  // of the request, that the state covers
    BlockId block = kNullBlockId;
  };
  std::optional<StateCheckpoint> GetStateCheckpoint(const Request& request, GroupId group) const;
  bool HoldsBlocks(const Request& request) const { return request.holder_ == this; }

  double usage() const { return pool_->usage(); }
  int64_t num_free_blocks() const { return pool_->num_free(); }  // see BlockPool::num_free
  // Cap, blocks retained now and counts since construction; null with max_retained_share 0.
  const Retention* retention() const { return pool_->retention(); }
  int64_t num_requests_holding_blocks() const { return static_cast<int64_t>(holders_.size()); }

  // With report_new_blocks: the blocks that attention groups (all but Mamba and rings) took since
  // the last call, in the order of taking: for external, encoder's and new tokens, and the targets
  // of copies. A block that was freed and taken again in between is listed twice. Returns and
  // clears; always empty without the option.
  std::vector<BlockId> TakeNewBlockIds() { return std::exchange(new_block_ids_, {}); }

  // Events since the last call, with group kinds filled in.
  std::vector<KvEvent> TakeEvents();

  // Called on admission with the tokens hit. Counted in tokens, separately for resumed requests.
  // With the tokens that were not hit by reason (see ExplainLookup), those are counted, too.
  void RecordPrefixCacheStats(const Request& request, int64_t num_hit_tokens,
                              const MissCounts* missed = nullptr);
  // Returns and zeroes.
  PrefixCacheStats MakePrefixCacheStats();

  const KvCacheConfig& config() const { return config_; }
  const KvCacheManagerOptions& options() const { return options_; }
  const BlockPool& pool() const { return *pool_; }
  const SingleTypeManager& group(GroupId group) const {
    return *groups_[static_cast<size_t>(group)];
  }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t scheduler_block_size() const { return scheduler_block_size_; }
  int64_t hash_block_size() const { return hash_block_size_; }
  // Hits end at multiples of it.
  int64_t hit_alignment() const { return hit_alignment_; }
  // Null if nothing is hashed.
  const std::shared_ptr<const PrefixHashing>& hashing() const { return hashing_; }

  // OK, or what is wrong, in words: pool, tables and references must agree. Names each block whose
  // references do not add up, with the requests that hold it. O(number of blocks).
  absl::Status CheckInvariants() const;

 private:
  KvCacheManager(KvCacheConfig config, KvCacheManagerOptions options);

  SingleTypeManager& mutable_group(GroupId group) { return *groups_[static_cast<size_t>(group)]; }
  // InvalidArgument unless 0 <= value <= most: "CALL(REQUEST): WHAT is VALUE, expected 0 to MOST".
  absl::Status LookUp(const Request& request, ComputedBlocks& out,
                      int64_t max_tokens = kMaxTokens) const;
  void ReportReusedBlocks(const Request& request, const ComputedBlocks& computed) const;
  static absl::Status CheckCount(absl::string_view call, const Request& request,
                                 absl::string_view what, int64_t value, int64_t most);
  absl::Status CheckOwner(const Request& request) const;
  absl::Status CheckAllocateParams(const Request& request, const AllocateSlotsParams& params) const;
  absl::Status CheckEncoder(const Request& request, const AllocateSlotsParams& params) const;
  absl::Status CheckHits(const Request& request, const ComputedBlocks& computed,
                         int64_t total_computed) const;
  bool AsksForSlotsOnly(const Request& request, const AllocateSlotsParams& params,
                        int64_t most) const;
  std::optional<NewBlocks> Grow(Request& request, const AllocateSlotsParams& params);
  int64_t NoopSlots(const Request& request) const;
  [[gnu::noinline]] bool FitsInChunks(const Request& request, const ComputedBlocks& computed,
                                      int64_t total_computed, const SlotDemand& demand,
                                      bool apply_cap, int64_t kept_chunks, int64_t reserved);
  void Adopt(Request& request);
  bool MayUseHits(const ComputedBlocks& computed) const;
  bool HoldsHitTail(const Request& request, const ComputedBlocks& computed, GroupId g) const;
  void RegisterTokens(Request& request, int64_t num_tokens);
  void Release(Request& request);
  absl::Status CheckTable(const Request& request, GroupId g, std::vector<int64_t>& references,
                          std::vector<GroupId>& used_by) const;
  absl::Status CheckReferences(const std::vector<int64_t>& references) const;
  std::string HoldersOf(BlockId id) const;
  friend class Request;  // a destroyed request gives its blocks back
  // Looks up without a report.
  friend absl::StatusOr<LookupExplanation> ExplainLookup(const KvCacheManager& manager,
                                                         const Request& request);

  KvCacheConfig config_;
  KvCacheManagerOptions options_;
  uint64_t serial_;
  std::unique_ptr<BlockPool> pool_;
  std::shared_ptr<const PrefixHashing> hashing_;
  std::vector<std::unique_ptr<SingleTypeManager>> groups_;
  std::optional<PrefixLookup> lookup_;  // with prefix caching
  int64_t scheduler_block_size_ = 1;
  int64_t hash_block_size_ = 1;
  int64_t hit_alignment_ = 1;
  int64_t num_watermark_blocks_ = 0;  // chunks, in a native layout
  bool keeps_all_blocks_ = true;      // until the request ends, in all groups
  bool only_grows_ = false;           // the same, and there are no chunks
  bool registers_tails_ = false;      // of prompts, where they end inside a block, in any group
  bool has_states_ = false;           // a group of kind Mamba
  bool has_encoder_ = false;          // a group of kind cross attention
  int64_t num_replay_tokens_ = 0;     // at the end of a hit, computed again
  std::vector<PageNeed> page_needs_;  // scratch, per group
  std::vector<Request*> holders_;
  // References that are in no block table: popped lists and pins, per block.
  absl::flat_hash_map<BlockId, int32_t> outside_references_;
  int64_t now_ = 0;  // as AdvanceTime says
  std::vector<std::pair<int64_t, BlockId>> retained_;  // scratch: end in tokens, block
  std::vector<BlockId> retained_ids_;                  // scratch
  bool has_partial_hits_ = false;
  std::vector<BlockId> new_block_ids_;  // not taken yet
  std::vector<BlockCopy> copies_;  // not taken yet; each holds a reference to both its blocks
  // Emptied tables of freed requests, whose memory the next requests use; in all at most two
  // entries per block of the pool.
  std::vector<RequestBlocks> spare_groups_;
  size_t spare_capacity_ = 0;
  PrefixCacheStats stats_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_KV_CACHE_MANAGER_H_
