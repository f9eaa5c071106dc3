// VerifyingObserver: runs a KvCacheVerifier along with a simulation, on the block tables that its
// scheduler and manager make.
//
//   VerifyingObserver observer({.ops = &ops, ...});
//   auto simulation = Simulation::Create(config, reader, step_time, {&observer});
//   simulation->set_progress([&](auto&) { return observer.status().ok(); });   // ends the run
//   status = simulation->Run();                     // Cancelled: observer.status() says why
//
// Tokens are identified by the trace's content one by one, not by the manager's block hashes, so
// wrong hashes show, too. A step is done when it is scheduled, whose order the device keeps:
// drafts are written as if accepted and made void when they are rejected. With cross attention a
// request has an encoder's input that is nobody else's, as long as the scheduler says.
//
// After the first failure it checks nothing more. Needs every record of every step, so the
// simulation steps requests one by one.

#ifndef KVBLOCKS_SIM_VERIFY_VERIFYING_OBSERVER_H_
#define KVBLOCKS_SIM_VERIFY_VERIFYING_OBSERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_verifier.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "sim/engine/engine_observer.h"
#include "sim/tiers/tier_connector.h"
#include "sim/trace/content_keys.h"

namespace kvblocks::sim {

class VerifyingObserver final : public EngineObserver {
 public:
  struct Options {
    const attention::AttentionOps* ops = nullptr;
    attention::ThreadPool* threads = nullptr;
    std::function<absl::Status(absl::Span<std::byte> memory)> on_memory =
        nullptr;  // VerifierOptions'
    bool poison = true;
    int64_t layers_per_group = 1;
    int64_t max_rows_per_step = 0;  // 0: all
    double tolerance = 1e-5;
    uint64_t seed = 0;
    // How the small layers lie in memory, kUniform or kSlab; where the manager's ids are those of
    // chunks, they lie in chunks.
    PoolLayout layout = PoolLayout::kUniform;
    // Tiers behind the device, whose slots are blocks of the verifier's behind those of the pool;
    // null: none. Not owned; they must be attached before the run, and not take what the device
    // evicts.
    const TierConnector* tiers = nullptr;
  };

  explicit VerifyingObserver(Options options) : options_(std::move(options)) {}

  // OK, or what the verifier found.
  const absl::Status& status() const { return status_; }
  // Null until the run starts, or if it could not be made.
  const attention::KvCacheVerifier* verifier() const { return verifier_.get(); }
  // Of each of the manager's groups what is verified, in words: "full_attention", "ring (left
  // out: a ring that old rows leave)".
  const std::vector<std::string>& group_texts() const { return group_texts_; }
  // Likewise the format of the model's rows: "bf16", "fp8_e4m3 (fp8_per_tensor)". Those of small
  // layers are float32 in any case.
  const std::vector<std::string>& row_formats() const { return row_formats_; }
  int64_t num_layers() const { return num_layers_; }  // that queries attend to
  int64_t num_state_layers() const { return num_state_layers_; }
  // As the run has it.
  PoolLayout layout() const { return layout_; }

  // For TierConnector::set_on_copies.
  void OnCopies(absl::Span<const KvCopy> copies);

  void OnRunStart(const RunInfo& info) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

 private:
  // What a request's tokens are; by its slot.
  struct Content {
    std::optional<ContentKeys> keys;
    std::vector<int64_t> tokens, encoder_tokens;
  };

  std::vector<attention::VerifiedGroup> MakeGroups();
  std::vector<attention::VerifiedJoint> MakeJoints(
      const std::vector<attention::VerifiedGroup>& groups) const;
  std::vector<attention::VerifiedCompressor> MakeCompressors(
      const std::vector<attention::VerifiedGroup>& groups) const;
  // Of DeepSeek V3.2's, whose keys lie in the blocks of the layers' rows.
  bool HasIndexer(size_t g) const;
  bool IsCompressorState(const std::vector<attention::VerifiedGroup>& groups, size_t g) const;
  absl::Status MakeMemory(attention::VerifierOptions* options);
  int32_t BlockOf(offload::TierId tier, int64_t place) const;
  absl::Span<const int64_t> TokensOf(const SimRequest& request, int64_t num_tokens);
  absl::Span<const int64_t> EncoderTokensOf(const SimRequest& request);

  const Options options_;
  const KvCacheManager* manager_ = nullptr;
  const TraceInfo* trace_ = nullptr;
  PoolLayout layout_ = PoolLayout::kUniform;
  std::optional<PlannedMemory> memory_;  // outlives the verifier
  std::unique_ptr<attention::KvCacheVerifier> verifier_;
  std::vector<std::string> group_texts_, row_formats_;
  int64_t num_layers_ = 0, num_state_layers_ = 0;
  absl::Status status_;

  std::vector<int64_t> first_blocks_;  // of the verifier's, by tier
  std::vector<attention::VerifiedCopy> copies_;  // scratch
  std::vector<Content> contents_;
  std::vector<absl::uint128> keys_;  // scratch
  std::vector<attention::VerifiedRequest> requests_;
  std::vector<absl::Span<const int32_t>> tables_;
  std::vector<std::vector<attention::VerifiedCheckpoint>> checkpoints_;  // per request of a step
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_VERIFY_VERIFYING_OBSERVER_H_
