// MissClassifier: why the full blocks of admitted requests had to be computed.
//
// A block is what one hit position covers, over all groups: with partial hits a hash block. Every
// full block of known tokens that an admission did not hit gets exactly one of the library's
// reasons. Here, where all requests are known from their beginning, they mean:
//   first use         nobody computed this path before (or the request that did was aborted)
//   evicted           it was computed before and is gone, or the blocks before it are
//   not kept          it was computed before, but was not there when its requests let go of it:
//                     windows and states are kept sparsely, and so are ends of prompts inside a
//                     block. Separate from `evicted` where no group keeps whole prefixes, and with
//                     partial hits
//   not yet computed  a live request has the same content, but has not come so far
//   last token        resident, but the last known token must be computed
//   short             the prompt shares less than one block with earlier ones; its first block
//   salt/adapter      the same content exists under another cache salt or adapter only
//   draft drop        resident, but dropped so that a drafter sees hidden states
//   group veto        resident in a group, but the groups agree on a shorter hit only
// A block that was computed once and is gone is `evicted` even while another request computes it
// again.
//
// It also counts what an infinite cache would have served: blocks in a row from the start that an
// earlier admitted request computed or is about to compute, without the last token's block.
//
// Evicted blocks carry the time and the blocks taken from the pool since their last use, as
// report.proto defines them.
//
// Cost: a nanosecond per full block of a prompt, at admission and when it is given back (see
// SeenPaths). Memory: 4 bytes per distinct block ever admitted, about 150 per admitted request and
// 16 per release. Keys are 64 bits of the blocks' content hashes.

#ifndef KVBLOCKS_SIM_REPORT_MISS_CLASSIFIER_H_
#define KVBLOCKS_SIM_REPORT_MISS_CLASSIFIER_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "kvblocks/lookup_explanation.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/request_rows.h"
#include "sim/trace/content_paths.h"

namespace kvblocks::sim {

// SeenPaths: ContentPaths, and an entry for each block.
//
// Always: entries of a piece are kept as runs of equal ones, which cover it. Cost: as ContentPaths,
// and O(runs) per ForEach. Memory: 24 bytes per piece and 12 per run more.
class SeenPaths {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Entry {
    uint32_t owner = kNone;
    uint32_t last_release = kNone;

    friend bool operator==(const Entry&, const Entry&) = default;
  };
  using Path = ContentPaths::Path;

  // See ContentPaths; what Append lays down are blocks of nobody.
  template <typename KeyOf>
  int64_t Follow(int64_t num_blocks, KeyOf&& key_of, Path* path) const {
    return paths_.Follow(num_blocks, key_of, path);
  }
  template <typename KeyOf>
  void Append(int64_t num_blocks, KeyOf&& key_of, Path* path) {
    if (paths_.Append(num_blocks, key_of, path)) runs_.push_back({{path->back().num_blocks, {}}});
  }

  // visit(begin, end, entry) for the path's blocks from `first` to before `end`, as many at once as
  // have one entry. It returns up to where its blocks get the entry that it leaves, from begin + 1
  // to end, and is called again for the others.
  template <typename Visitor>
  void ForEach(const Path& path, int64_t first, int64_t end, Visitor&& visit) {
    for (const ContentPaths::Segment& segment : path) {
      const int64_t depth = paths_.depth(segment.piece);
      if (depth >= end) return;
      const int64_t stop = std::min(end, depth + int64_t{segment.num_blocks});
      if (stop <= first) continue;
      std::vector<Run>& runs = runs_[segment.piece];
      scratch_.clear();
      int64_t at = depth;
      for (const Run& run : runs) {
        const int64_t run_end = depth + int64_t{run.end};
        if (at < first) at = Put(depth, std::min(run_end, first), run.entry);
        while (at < std::min(run_end, stop)) {
          Entry entry = run.entry;
          const int64_t done = visit(at, std::min(run_end, stop), entry);
          at = Put(depth, done, entry);
        }
        if (at < run_end) at = Put(depth, run_end, run.entry);
      }
      runs.assign(scratch_.begin(), scratch_.end());
    }
  }

 private:
  // Blocks from the end of the run before to `end`, within the piece.
  struct Run {
    uint32_t end;
    Entry entry;
  };
  int64_t Put(int64_t depth, int64_t end, const Entry& entry) {
    if (scratch_.empty() || !(scratch_.back().entry == entry)) scratch_.push_back({0, entry});
    scratch_.back().end = static_cast<uint32_t>(end - depth);
    return end;
  }

  ContentPaths paths_;
  std::vector<std::vector<Run>> runs_;  // by piece
  std::vector<Run> scratch_;
};

// The reasons that MissClassifier gives, as reports list them.
inline constexpr MissReason kClassifiedReasons[] = {
    MissReason::kFirstUse,  MissReason::kEvicted,  MissReason::kNotYetComputed,
    MissReason::kLastToken, MissReason::kShort,    MissReason::kSaltOrAdapter,
    MissReason::kDraftDrop, MissReason::kGroupVeto, MissReason::kNotKept};

// Evicted blocks with the same last use.
struct EvictedRun {
  SimTime age = 0;
  int64_t distance = 0;  // blocks taken from the pool
  int64_t num_blocks = 0;
};

// Consecutive blocks of an admission with one fate.
struct BlockRun {
  std::optional<MissReason> reason;  // empty: hit
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  // The request that computed these blocks first, or began to, before this admission: its
  // RequestProgress::ordinal. -1: none.
  int64_t owner = -1;
  // Evicted blocks: since their last use, as in EvictedRun; -1 where it has not ended.
  SimTime age = -1;
  int64_t distance = -1;
};

// One admission.
struct AdmissionMisses {
  MissCounts blocks = {};
  int64_t block_tokens = 0;  // of what is counted as one block; 0: prefix caching is off
  int64_t num_full_blocks = 0;
  int64_t num_hit_blocks = 0;
  // That an infinite cache would hit; at least num_hit_blocks.
  int64_t num_possible_blocks = 0;
  // Of the blocks with kGroupVeto: the group that stood in the way, that is whose own
  // longest hit is the shortest, the first of several. Empty: none alone, their lengths did not
  // meet; and where the misses have no such block.
  std::optional<GroupId> veto_group = std::nullopt;
  absl::Span<const EvictedRun> evicted = {};  // until the next admission
  absl::Span<const BlockRun> runs = {};       // all full blocks; likewise, and only if asked for
  absl::Span<const EvictedRun> hit_uses = {};  // last uses of hit blocks; likewise
};

// Takes what came of each admission, in order.
class AdmissionSink {
 public:
  virtual ~AdmissionSink() = default;
  // Whether AdmissionMisses::runs are needed.
  virtual bool wants_runs() const = 0;
  virtual void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                        const RequestProgress& progress, SimTime now) = 0;
};

class MissClassifier {
 public:
  // From now on admissions come with their runs, at the cost of a table look-up per hit block.
  void KeepRuns() { keeps_runs_ = true; }

  void OnRunStart(const RunInfo& info);
  // Before the blocks of the request are registered.
  void OnAdmissionAttempt(const AdmissionRecord& record);
  // After the attempt above succeeded. `progress.ordinal` is set at the first admission. `hit_uses`
  // are those of hit blocks from this one on.
  AdmissionMisses OnAdmission(const AdmissionRecord& record, RequestProgress& progress,
                              SimTime now, int64_t first_hit_use);
  void OnPreemption(const PreemptionRecord& record, const RequestProgress& progress, SimTime now);
  // `num_new_blocks`: taken by the whole step, over all groups.
  void OnStepScheduled(int64_t num_new_blocks) {
    blocks_taken_ += num_new_blocks;
    blocks_taken_by_admissions_ = 0;
  }
  // `progress` is null for a request that never arrived.
  void OnFinish(const SimRequest& request, const RequestProgress* progress, SimTime now);

  // Of the looked-up tokens; nothing if they fill no block, or without prefix caching.
  std::optional<uint64_t> FirstBlockKey(const AdmissionRecord& record) const {
    // A full block whose lookahead tokens are not known yet has no name.
    if (!is_enabled() || NumFullBlocks(*record.request) == 0) return std::nullopt;
    return KeyOf(record.request->kv->content(), 0);
  }

  // False: prefix caching is off, blocks have no names, and nothing is classified.
  bool is_enabled() const { return block_tokens_ > 0; }
  int64_t block_tokens() const { return block_tokens_; }

 private:
  // The request that was first to admit a block: alive, or how far it got.
  struct Owner {
    const SimRequest* live = nullptr;
    int64_t num_tokens = 0;
  };
  // Of all blocks of a request.
  struct Release {
    SimTime time;
    int64_t blocks_taken;
  };

  uint64_t KeyOf(const PrefixContent& content, int64_t block) const {
    return content.HashOfBlock(block, hashes_per_block_).words[0];
  }
  std::optional<GroupId> VetoGroup(const PrefixContent& content, int64_t num_tokens);
  // Whose hashes are known: with lookahead hashes, those with tokens behind them.
  int64_t NumFullBlocks(const SimRequest& request) const;
  // How many leading blocks of its path an admitted request has computed.
  int64_t NumComputed(uint32_t ordinal) const;
  bool IsResident(const PrefixContent& content, int64_t block) const;
  bool IsResidentIn(GroupId group, const PrefixContent& content, int64_t block) const;
  bool IsResidentInside(GroupId group, const PrefixContent& content, int64_t block) const;
  bool StartsLikeEarlier(const SimRequest& request) const;
  void RememberStart(const SimRequest& request);
  std::vector<uint64_t> UnsaltedKeys(const SimRequest& request, int64_t num_blocks) const;
  bool ExistsElsewhere(const SimRequest& request, int64_t block,
                       const std::vector<uint64_t>& unsalted) const;
  void LookUpUnsalted(const std::vector<uint64_t>& unsalted);
  SeenPaths::Path& PathOf(const SimRequest& request);
  void AnnounceOutput(const SimRequest& request, const RequestProgress& progress,
                      int64_t num_tokens);
  void ReleaseBlocks(const SimRequest& request, int64_t num_tokens, SimTime now);
  std::optional<EvictedRun> LastUse(const SeenPaths::Entry& block, SimTime now) const;
  static void Count(const EvictedRun& use, int64_t num_blocks, std::vector<EvictedRun>* runs);
  void AddRun(const BlockRun& run);

  const KvCacheManager* manager_ = nullptr;
  TraceInfo trace_;
  int64_t block_tokens_ = 0;
  int64_t hashes_per_block_ = 0;
  std::vector<GroupId> chain_groups_;  // whose blocks are hit from the start on; may be none
  bool has_drafts_ = false;
  // Resident blocks can be missed for other reasons than the last token.
  bool probes_always_ = false;
  // Not all that is computed is kept: releases are noted where the block was there then.
  bool probes_releases_ = false;

  // Entries name an owner, if anybody admitted the block or announced it, and a release.
  SeenPaths paths_;
  std::vector<SeenPaths::Path> live_paths_;      // by slot, of admitted requests
  std::vector<bool> is_seen_unsalted_;           // of the admission under way
  std::vector<Owner> owners_;                    // by ordinal
  absl::flat_hash_set<uint64_t> starts_;         // paths of first content ids
  absl::flat_hash_set<uint64_t> unsalted_keys_;  // of blocks computed under a salt or an adapter
  // Of the last attempt: blocks behind the hit that were resident, ascending.
  std::vector<int64_t> resident_;
  std::optional<GroupId> veto_group_;
  HitLists lists_;  // scratch

  std::vector<Release> releases_;
  int64_t blocks_taken_ = 0;                // by all steps scheduled
  int64_t blocks_taken_by_admissions_ = 0;  // of the step that is being scheduled
  std::vector<EvictedRun> evicted_;         // of the last admission
  std::vector<EvictedRun> hit_uses_;        // likewise
  bool keeps_runs_ = false;
  std::vector<BlockRun> runs_;  // likewise
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_MISS_CLASSIFIER_H_
