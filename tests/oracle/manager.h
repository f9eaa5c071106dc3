// Prefix look-up over all groups of a model whose blocks others can use (BM-79 to BM-84).

#ifndef KVBLOCKS_TESTS_ORACLE_MANAGER_H_
#define KVBLOCKS_TESTS_ORACLE_MANAGER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/oracle/group_rules.h"
#include "tests/oracle/pool.h"

namespace kvblocks::oracle {

// What is looked up: a request's prefix names, one per hash block.
struct LookupQuery {
  const std::vector<std::string>* prefix_names = nullptr;
  int64_t hash_block_size = 0;
  int64_t max_tokens = 0;
  int64_t max_with_drop = 0;  // where the block that is dropped may end (V-12)
  int64_t alignment = 1;      // A of BM-79
};

struct Hits {
  // One per group, 0 where no block is needed; empty for groups that are not looked up.
  std::vector<std::vector<BlockId>> lists;
  int64_t tokens = 0;
  int64_t boundary = 0;  // BM-84
  int64_t replayed = 0;  // V-46: tokens behind the hit that were found, and are computed again

  bool has_blocks() const {
    for (const std::vector<BlockId>& list : lists) {
      if (!list.empty()) return true;
    }
    return false;
  }
};

// One group: a single look-up. Several: repeated with shrinking lengths until all agree.
Hits FindHits(const Pool& pool, const std::vector<GroupRules>& groups, const LookupQuery& query);

// Without draft groups the fixed point has a declarative form: the longest length that every group
// can serve.
int64_t LongestCommonHit(const Pool& pool, const std::vector<GroupRules>& groups,
                         const LookupQuery& query);

// Manager: the request-facing rules (BM-85 to BM-105) over the naive pool and groups.
//
// Mirrors the calls of KvCacheManager, so that a test can make each call on both and compare.
// Requests are plain structs that the test advances itself.

enum class Status { kWaiting, kRunning, kPreempted, kFinished };

struct GroupTable {
  std::vector<BlockId> blocks;
  int64_t num_cached = 0;
  int64_t chunk_end = 0;            // tokens at which the latest step ends
  int64_t checkpoint = 0;           // V-45: tokens of the state that it exports on the way
  bool is_tail_dealt_with = false;  // BM-120
  int64_t registered_state = 0;     // BM-122: its tokens, until the next step leaves it to others

  int64_t size() const { return static_cast<int64_t>(blocks.size()); }
  int64_t leading_nulls() const;
  int64_t num_real() const;
};

struct Request {
  Content content;
  std::vector<std::string> prefix_names;
  bool skip_reading = false;
  int64_t num_computed = 0;
  int64_t num_inflight = 0;
  int64_t num_preemptions = 0;
  int64_t num_prompt = 0;
  int64_t shared_boundary = 0;
  Status status = Status::kWaiting;

  bool is_known = false;  // BM-54
  std::vector<GroupTable> tables;
};

struct AllocateParams {
  int64_t num_new = 0;
  const Hits* hits = nullptr;
  int64_t num_lookahead = 0;
  int64_t num_external = 0;
  bool delay = false;
  bool gate = false;
  int64_t reserved = 0;
  bool has_scheduled = false;
  int64_t num_encoder = 0;
};

// BM-121, BM-122.
struct Copy {
  GroupId group = 0;
  BlockId source = 0;
  BlockId target = 0;
};

enum class Outcome { kOk, kNoSpace, kInvalid };

struct Stats {
  int64_t requests = 0, queries = 0, hits = 0;
  int64_t preempted_requests = 0, preempted_queries = 0, preempted_hits = 0;
  bool reset = false;
};

class Manager {
 public:
  // REQUIRES: a configuration that the rules accept.
  Manager(const KvCacheConfig& config, const KvCacheManagerOptions& options);

  const Pool& pool() const { return pool_; }
  const std::vector<GroupRules>& groups() const { return groups_; }
  int64_t scheduler_block_size() const { return scheduler_block_size_; }
  int64_t hash_block_size() const { return hash_block_size_; }
  int64_t alignment() const;

  Request NewRequest(Content content, bool skip_reading) const;
  void Append(Request& request, const std::vector<TokenId>& tokens) const;

  // With the call's hits and external tokens.
  int64_t TotalComputed(const Request& request, const AllocateParams& params) const;

  // Empty: refused.
  std::optional<Hits> GetComputedBlocks(const Request& request) const;
  // Without draft groups, what a look-up must find, in one sentence: the longest length that all
  // groups can serve, and of that again what is left when its end is computed again.
  int64_t LongestHit(const Request& request) const;

  // On kOk, `out` gets the stage-3 blocks of each group.
  Outcome Allocate(Request& request, const AllocateParams& params,
                   std::vector<std::vector<BlockId>>* out);
  // The same per group, with the hits that leave the queue and what the longest sequence may need
  // beyond.
  std::vector<PageNeed> Needs(const Request& request, const AllocateParams& params,
                              int64_t num_slots, bool apply_cap) const;
  // Whether all blocks of the hits still are what the look-up found.
  bool HoldsHits(const Request& request, const AllocateParams& params) const;
  void NewStepStarts() {
    registered_in_step_.clear();
    state_keys_in_step_.clear();
  }
  // Blocks that stages 2 and 3 of this call take from the queue, had the trim happened already.
  int64_t Need(const Request& request, const AllocateParams& params, int64_t num_slots,
               bool apply_cap) const;

  void Free(Request& request);
  std::vector<BlockId> Pop(Request& request);
  // Not taken yet; taking makes their ends references from outside.
  const std::vector<Copy>& copies() const { return copies_; }
  std::vector<Copy> TakeCopies();
  // Pins and popped lists.
  void Pin(const std::vector<BlockId>& ids);
  bool FreeBlocks(const std::vector<BlockId>& ids);

  bool RemoveSkippedBlocks(Request& request, int64_t num_processed);
  bool CacheBlocks(Request& request, int64_t num_tokens);
  bool Evict(const std::vector<BlockId>& ids) { return pool_.Evict(ids); }
  bool Reset();
  std::optional<Hits> Truncate(const Hits& hits, int64_t num_tokens) const;
  // Brute force over the tables of all requests that hold blocks.
  std::vector<int64_t> CommonPrefix(const Request& request,
                                    const std::vector<const Request*>& all) const;

  void RecordStats(const Request& request, int64_t num_hit_tokens);
  Stats MakeStats();
  std::vector<Event> TakeEvents();

 private:
  // Stands for a block that is yet to be taken.
  static constexpr BlockId kNew = -1;

  bool Fits(const Request& request, const AllocateParams& params, int64_t num_slots, bool apply_cap,
            int64_t watermark, int64_t reserved);
  std::vector<BlockId> Take(int64_t k, size_t group);
  int64_t MainTokens(const Request& request, const AllocateParams& params) const;
  bool IsValid(const Request& request, const AllocateParams& params) const;
  // Whether a hit list's block still is what the look-up found at this position.
  bool HoldsHit(const Request& request, const AllocateParams& params, size_t group,
                int64_t position) const;
  void Trim(Request& request, int64_t num_processed);
  void Adopt(Request& request, const AllocateParams& params);
  void Register(Request& request, int64_t num_tokens);
  std::vector<bool> Mask(const Request& request, size_t group, int64_t full) const;
  // How many of the first n tokens a group registers.
  int64_t RegistrationBound(const GroupRules& rules, int64_t n) const;
  // Where the request is likely to be hit.
  std::vector<int64_t> Boundaries(const GroupRules& rules, const Request& request) const;
  Registration RegistrationOf(const Request& request, size_t group) const;
  int64_t NumHashed(const Request& request) const {
    return static_cast<int64_t>(request.prefix_names.size()) * hash_block_size_;
  }
  // The end of the prompt, as far as later requests may use it.
  int64_t TailOfPrompt(const GroupRules& rules, const Request& request) const;
  void RegisterTail(Request& request, size_t group, int64_t n);
  // The block that a step goes on from although its state is registered inside it, or 0.
  BlockId OverwrittenState(const Request& request, size_t group, int64_t num_main) const;
  // Whether the hits end inside a block of the group.
  bool EndsInside(const AllocateParams& params, size_t group) const;
  void TakeCopyFor(Request& request, size_t group, const AllocateParams& params, bool is_new,
                   int64_t num_main);
  bool UsesStateOfThisStep(const Request& request, const AllocateParams& params) const;
  // What a step makes room for, behind so many tokens that are computed.
  struct Step {
    bool has_scratch = false;  // the request had a table before
    int64_t num_computed = 0;
    int64_t num_slots = 0;
    int64_t num_main = 0;
    int64_t num_encoder = 0;
    int64_t num_prompt = 0;
  };
  // A table that grew for these slots, with kNew for each block it takes.
  std::vector<BlockId> Grown(const GroupRules& rules, const GroupTable& table,
                             const Step& step) const;
  // The tokens behind which the step has its state exported, or 0 (V-45).
  int64_t CheckpointOf(const GroupRules& rules, const GroupTable& table, const Step& step) const;
  int64_t MostStates(const GroupRules& rules) const;
  // Whether a state that is registered inside its block moves before it is overwritten.
  bool MovesStates(const GroupRules& rules) const;
  // Of a request that only wants so many tokens.
  LookupQuery QueryFor(const Request& request, int64_t max_tokens) const;
  // Of a hit, the tokens at its end that are computed again (V-46).
  int64_t NumToReplay() const;
  // V-21: the last boundary at which a resend of the prompt can hit a state.
  int64_t UsableStateEnd(int64_t num_prompt) const;
  // Puts blocks in the place of kNew.
  void TakeNew(GroupTable& table, size_t group);
  // The table of BM-58 and BM-59, likewise.
  std::vector<BlockId> Adopted(size_t group, const Request& request,
                               const AllocateParams& params) const;

  KvCacheManagerOptions options_;
  int64_t watermark_base_;  // blocks, or chunks
  std::vector<GroupRules> groups_;
  bool any_drops_ = false;
  int64_t num_replayed_ = 0;  // R of V-14
  int64_t scheduler_block_size_ = 1;
  int64_t hash_block_size_ = 1;
  Pool pool_;
  std::vector<int> outside_references_;   // pins and popped lists, per block
  std::set<BlockId> registered_in_step_;  // blocks that copies are made of
  std::set<Key> state_keys_in_step_;      // BM-108: whichever block has them
  void NoteState(BlockId id) {
    const std::optional<Key>& key = pool_.blocks()[static_cast<size_t>(id)].key;
    if (key) state_keys_in_step_.insert(*key);
  }
  std::vector<Copy> copies_;
  Stats stats_;
};

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_MANAGER_H_
