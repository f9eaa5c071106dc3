// ScheduleCurve: the hits of pools of every size from one replay whose pool never evicts.
//
//   ScheduleCurve curve({.free_order = FreeOrder::kUnhashedFirst});
//   auto simulation = Simulation::Create(..., {&curve});   // with blocks for all that is cached
//   ... Run ...
//   HitCurve hits = curve.Finish();
//
// Watches touches, new blocks and releases, and keeps for each batch of released blocks how large a
// pool must have been to hold it until now (SizeHistory). So each look-up tells, for every size at
// once, how many blocks it would have hit there. Blocks that somebody holds are hit in every pool.
// Blocks that are cached twice are followed as in OrderCurve.
//
// That is what a replay with such a pool does as long as its schedule is the same: see is_exact.
// Otherwise it is the same-schedule approximation.
//
// REQUIRES: one full-attention group. The free order of the replay itself does not matter. Cost:
// about 2 ns per block and 0.3 us per request beside the replay; 8 bytes per block of the pool.

#ifndef KVBLOCKS_SIM_CURVE_SCHEDULE_CURVE_H_
#define KVBLOCKS_SIM_CURVE_SCHEDULE_CURVE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/block_pool.h"
#include "sim/curve/hit_curve.h"
#include "sim/engine/engine_observer.h"

namespace kvblocks::sim {

class ScheduleCurve final : public EngineObserver {
 public:
  struct Options {
    FreeOrder free_order = FreeOrder::kUnhashedFirst;
    // Steps last equally long, whatever is in them.
    bool has_fixed_step_time = false;
  };

  explicit ScheduleCurve(const Options& options) : options_(options) {}

  // Blocks begin .. end - 1 of a request need pools of first_size, first_size + 1, ... blocks, or
  // any pool if first_size is 0.
  struct FoundRun {
    int64_t begin;
    int64_t end;
    int64_t first_size;
  };
  // Of the request admitted last.
  absl::Span<const FoundRun> found() const { return found_; }

  HitCurve Finish();

  // Sums over first admissions.
  int64_t num_requests() const { return num_requests_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int64_t num_prompt_blocks() const { return num_prompt_blocks_; }
  // Most blocks referenced at once: smaller pools preempt, or let requests wait.
  int64_t peak_referenced() const { return peak_referenced_; }
  int64_t num_blocks_taken() const { return num_blocks_taken_; }
  // Evictions or preemptions: the pool was too small, and there is no curve.
  bool was_pool_too_small() const { return was_pool_too_small_; }

  // Whether pools of peak_referenced() blocks and more have this very schedule, and so this curve
  // is exact for them; else why not, in words.
  bool is_exact() const { return Doubts().empty(); }
  std::vector<std::string> Doubts() const;

  // --- EngineObserver ---
  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void OnRunEnd(SimTime now) override;

 private:
  using Batch = SizeHistory::Batch;
  static constexpr Batch kHeld = 0xFFFFFFFF;
  struct Block {
    uint32_t references = 0;
    Batch batch = kHeld;   // with which it was released, if it has a key and nobody references it
    bool is_copy = false;  // another block had its key before
  };

  // Blocks taken since the last call are referenced now.
  void CountNewBlocks();
  void Take(absl::Span<const BlockId> hits);
  // Which copy of a free block a look-up takes, in pools of each size. Returns the newest copy's
  // batch.
  Batch TakeCopy(BlockId first, int64_t depth);
  // Learns of blocks that were registered while another had their key.
  void FindCopies();

  const Options options_;
  const KvCacheManager* manager_ = nullptr;
  const BlockPool* pool_ = nullptr;
  int64_t block_tokens_ = 0;
  int64_t step_budget_ = 0;
  SizeHistory history_;
  HitCurve curve_;
  std::vector<Block> blocks_;                                  // by id
  absl::flat_hash_map<int64_t, std::vector<BlockId>> tables_;  // by row, of those that hold blocks
  std::vector<std::vector<BlockId>> spare_tables_;
  // Of the first block registered under a key: the later ones, in the order of registration.
  absl::flat_hash_map<BlockId, std::vector<BlockId>> copies_;
  int64_t num_copies_ = 0;  // found so far
  std::vector<FoundRun> found_;
  int64_t num_referenced_ = 0, peak_referenced_ = 0;
  int64_t num_blocks_taken_ = 0;
  int64_t num_requests_ = 0, num_prompt_tokens_ = 0, num_prompt_blocks_ = 0;
  int64_t hit_tokens_of_step_ = 0;  // that smaller pools compute in this very step
  int64_t num_full_steps_ = 0;      // whose budget might not have done for that
  int64_t num_doubtful_ = 0;        // hits of which the copy that a pool takes is not known
  bool gives_last_hit_back_ = false;
  bool was_pool_too_small_ = false;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_SCHEDULE_CURVE_H_
