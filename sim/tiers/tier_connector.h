// TierConnector: tiers of memory behind one replica's device (SM-105), as the KvConnector that its
// scheduler asks and as an observer of what it computes. Connectors of several replicas on one
// clock can share tiers, with what lies in them and their links.
//
// The library (kvblocks/offload.h) decides what each tier holds; this class adds the times. Each
// tier has a link for reads and one for writes (see Link). A load is one transfer per tier that it
// reads, and has ended when all of them have. A request whose prefix another one is loading, or
// storing, waits for that, as in vLLM's offloading connector.
//
// Stores begin at the end of the step that completed a block of a prompt, and when a request leaves
// for those of its output. Nothing waits for them: blocks that the device reuses are taken to have
// been read before. A share of the asynchronous loads can fail: one chunk, drawn among those that
// are read, cannot be read, which is noticed when the load ends; the chunk leaves its tier. Tiers
// that take what the device evicts need the manager's events.
//
// Always: deterministic; every ticket of the index belongs to a job here, and every job ends when
// its transfers do, whatever became of the request. Cost: per admission and per store a hash
// look-up per block and tier.

#ifndef KVBLOCKS_SIM_TIERS_TIER_CONNECTOR_H_
#define KVBLOCKS_SIM_TIERS_TIER_CONNECTOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/offload.h"
#include "sim/cost/link.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/engine_observer.h"
#include "sim/engine/kv_connector.h"
#include "sim/tiers/tier_text.h"

namespace kvblocks::sim {

// Why a block of a prompt that was not hit did not come from a tier.
enum class TierMiss : uint8_t {
  kNeverStored,
  kEvicted,
  kBeingWritten,
  kNotLoaded,  // there, but something before it is missing, or computing is faster
};
inline constexpr size_t kNumTierMisses = 4;

struct TierTotals {
  // Tokens of the first group that keeps whole prefixes.
  int64_t num_hit_tokens = 0;
  int64_t num_loads = 0;         // that read something of it
  int64_t num_distinct = 0;      // chunks ever written, each content once
  std::array<int64_t, kNumTierMisses> missed_tokens = {};  // of first admissions
};

// One look-up, in one tier.
struct TierLookup {
  int64_t loaded_tokens = 0;
  // Full blocks of the prompt that neither the pool nor a load had.
  std::array<int64_t, kNumTierMisses> missed_tokens = {};
};

// One block of KV from a place to another: of the device (offload::kDevice) a block id, of a tier
// the number of its slot times blocks per chunk, plus the block in the chunk.
struct KvCopy {
  offload::TierId from_tier = offload::kDevice;
  offload::TierId to_tier = offload::kDevice;
  int64_t from = 0;
  int64_t to = 0;
};

struct LoadTotals {
  int64_t num_admissions = 0;  // first ones
  int64_t num_known_tokens = 0;   // theirs
  int64_t num_device_tokens = 0;  // hit in the pool
  int64_t num_loaded_tokens = 0;
  int64_t num_loads = 0;          // of all admissions
  int64_t num_bytes = 0;
  int64_t num_not_worth_it = 0;   // admissions for which computing was faster
  // What computing the loaded tokens would have taken, each load alone in a step.
  SimTime compute_time = 0;
  SimTime load_time = 0;  // start to end, of loads that ended
  int64_t num_failed = 0;       // loads
  int64_t num_lost_tokens =
      0;  // of them, of no use; num_loaded_tokens is without those of its admissions
};

class TierConnector final : public KvConnector, public EngineObserver {
 public:
  struct Options {
    std::vector<SimTier> tiers;  // the fastest first
    LoadMode mode = LoadMode::kAsync;
    bool load_if_faster = false;  // load only what takes less time than computing it
    // Of a block on one device, per group.
    std::vector<int64_t> group_block_bytes;
    // What loading is compared with; not owned. Null, and not with load_if_faster: unknown, times
    // of computing are 0.
    const StepTimeModel* step_time = nullptr;
    double load_failures = 0;  // share of asynchronous loads
    uint64_t seed = 0;         // of the draws
    // For what never ends: what was written is not remembered, and num_distinct and missed_tokens
    // stay 0. Memory is bounded by the tiers then.
    bool leave_out_misses = false;
  };

  // `with`: a connector of the same options, whose tiers that are shared this one uses; null: none.
  // InvalidArgument names the tier.
  static absl::StatusOr<std::unique_ptr<TierConnector>> Create(Options options,
                                                               const TierConnector* with = nullptr);
  // The pool in front; the manager must outlive the connector. InvalidArgument if its model and the
  // tiers do not go together. OnRunStart does it otherwise, and stops at an error.
  absl::Status Attach(const KvCacheManager& manager);
  // Whether some tier takes what the device evicts: the manager must record events, then.
  bool NeedsEvents() const;

  // Called with all copies, in an order in which they can be made: of stores when they begin, whose
  // blocks may be reused before they end; of loads when they end, or begin, if their step waits for
  // them. Chunks that cannot be read are left out. Not for tiers that NeedsEvents: what the device
  // evicts is known when it is gone.
  void set_on_copies(std::function<void(absl::Span<const KvCopy>)> on_copies) {
    on_copies_ = std::move(on_copies);
  }

  ExternalMatch Match(const SimRequest& request, int64_t num_hit_tokens, SimTime now) override;
  void StartLoad(const KvLoad& load, const KvCacheManager& manager, SimTime now) override;
  StepLoadTimes StepLoads(SimTime device_start) override;
  std::optional<SimTime> NextEvent() const override;
  void TakeEvents(SimTime now, ConnectorEvents* events) override;
  bool OnLeave(const SimRequest& request, const KvCacheManager& manager, LeaveCause cause,
               int64_t hold, SimTime now) override;

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnReadmission(const AdmissionRecord& record, SimTime now) override;
  void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override;

  const Options& options() const { return options_; }
  bool fails_lost() const { return fails_lost_; }  // of the scheduler's options
  const offload::OffloadManager& offload() const { return *offload_; }
  // Of the latest admission, per tier.
  const std::vector<TierLookup>& last_lookup() const { return last_lookup_; }
  // Of all who share the tier.
  const TierTotals& tier_totals(size_t tier) const { return states_[tier]->totals; }
  const LoadTotals& load_totals() const { return load_totals_; }
  // Null: free.
  const LinkTotals* read_totals(size_t tier) const { return TotalsOf(LinkOf(tier, true)); }
  const LinkTotals* write_totals(size_t tier) const { return TotalsOf(LinkOf(tier, false)); }

  // Index and jobs agree.
  absl::Status CheckInvariants() const;

 private:
  // A load, or a plan of stores.
  struct Job {
    offload::TicketId ticket = 0;
    bool is_load = false;
    int64_t load = -1;  // asynchronous: its number
    int64_t num_tokens = 0;  // that arrive
    SimTime start = 0;
    int num_open = 0;  // transfers
    // What cannot be read; no tier: all can.
    offload::TierId bad_tier = offload::kDevice;
    offload::ChunkKey bad_key = {};
    std::vector<KvCopy> copies = {};  // if somebody wants them
  };
  struct Wire {
    size_t tier = 0;
    bool is_read = false;
    int64_t transfer = 0;
  };
  // A tier and its links, for writes and reads: of one connector, or of several.
  struct TierState {
    std::array<std::optional<Link>, 2> links;
    // By transfer.
    std::array<absl::flat_hash_map<int64_t, std::pair<TierConnector*, int64_t>>, 2> job_of;
    std::shared_ptr<offload::Tier> tier;      // from the first Attach on
    absl::flat_hash_set<uint64_t> written;    // every chunk ever
    TierTotals totals;
  };

  // Those who share tiers. Where one waits for what another stores, the transfers of all count,
  // also those on links that are not shared.
  struct Group {
    std::vector<TierConnector*> members;
    int64_t num_ended = 0;  // transfers
  };

  explicit TierConnector(Options options)
      : options_(std::move(options)), failures_(options_.seed) {}
  static const LinkTotals* TotalsOf(const std::optional<Link>& link) {
    return link ? &link->totals() : nullptr;
  }
  std::optional<Link>& LinkOf(size_t tier, bool is_read) { return states_[tier]->links[is_read]; }
  const std::optional<Link>& LinkOf(size_t tier, bool is_read) const {
    return states_[tier]->links[is_read];
  }
  void EndTransfer(int64_t job, SimTime now);
  ExternalMatch Pending(ExternalMatch match);
  // Takes note of all transfers that ended by then.
  void Advance(SimTime now);
  // One transfer per link with bytes; a job without any ends at once.
  void Begin(Job job, absl::Span<const int64_t> read_bytes, absl::Span<const int64_t> write_bytes,
             SimTime now);
  void End(const Job& job, SimTime now);
  void Store(const SimRequest& request, const KvCacheManager& manager, int64_t end, SimTime now);
  void Write(const offload::StorePlan& plan, SimTime now);
  void ReportStore(const offload::StorePlan& plan, const SimRequest& request,
                   const KvCacheManager& manager);
  std::vector<KvCopy> CopiesOf(const offload::LoadPlan& plan, const KvLoad& load, const Job& job,
                               const KvCacheManager& manager) const;
  SimTime ComputeTime(int64_t num_context, int64_t num_tokens) const;
  void DrawFailure(const offload::LoadPlan& plan, const KvLoad& load, Job* job);
  SimTime TransferTime(absl::Span<const int64_t> bytes, SimTime now) const;
  void CountMisses(const AdmissionRecord& record);

  Options options_;
  std::mt19937_64 failures_;
  std::function<void(absl::Span<const KvCopy>)> on_copies_;
  const KvCacheManager* manager_ = nullptr;
  std::unique_ptr<offload::OffloadManager> offload_;
  GroupId lead_group_ = 0;        // whose tokens are counted
  bool has_all_blocks_ = true;    // of what is computed, in all groups
  bool keeps_parts_ = false;      // of failed loads, as the scheduler does
  bool fails_lost_ = false;       // nothing of them is of use: their requests end
  std::vector<std::shared_ptr<TierState>> states_;  // per tier
  std::shared_ptr<Group> group_;
  absl::flat_hash_map<int64_t, Job> jobs_;
  int64_t num_jobs_ = 0;
  int64_t num_async_loads_ = 0;   // under way
  std::vector<LoadEnd> ended_;    // not taken yet
  bool has_waiters_ = false;      // Match said so, and no transfer has ended since
  int64_t num_ended_before_ = 0;  // of the group, at that time
  std::vector<std::pair<Wire, LoadMode>> step_loads_;  // started since the last StepLoads
  // Tokens of requests in the engine that need not be offered any more.
  absl::flat_hash_map<const SimRequest*, int64_t> stored_;
  absl::flat_hash_set<const SimRequest*> declined_;  // at their last look-up: computing is faster
  std::vector<TierLookup> last_lookup_;
  LoadTotals load_totals_;
  SimTime now_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TIERS_TIER_CONNECTOR_H_
