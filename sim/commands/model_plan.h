// From options to a plan: which model on which device, how much memory its cache gets, and how its
// layers share it.
//
// What `kvsim plan` prints and `kvsim replay` runs on, so that both mean the same pool.

#ifndef KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_
#define KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"
#include "sim/config.pb.h"
#include "sim/cost/step_time_model.h"
#include "sim/drafting.h"
#include "sim/report/plan.pb.h"
#include "specs/config/kv_cache_config.pb.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

struct ReplaySetup;

struct ModelOnDevice {
  ModelFacts model;
  DeviceFacts device;
};

// The built-in catalogue and the file that `catalogue` names.
absl::StatusOr<Catalogue> LoadCatalogue(const ReplayConfig& config);

// By the names in the catalogue and the file that `catalogue` names; a `model` that ends in .json
// is read as a Hugging Face config.json.
absl::StatusOr<ModelOnDevice> FindModelOnDevice(const ReplayConfig& config);

// Whether the replica has data-parallel ranks that share experts, and so step together.
bool IsInLockstep(const ReplayConfig& config, const ModelFacts& model);

// What the layers store on one device, the drafter's included.
absl::StatusOr<std::vector<LayerCache>> LayerCachesOf(const ReplayConfig& config,
                                                      const ModelFacts& model);

// Memory of one device of a pipeline stage for the cache.
PoolMemory MemoryOf(const ReplayConfig& config, const ModelOnDevice& hardware, int64_t stage = 0);
// What the cache gets of it: --kv-memory, or what is left beside the model; of each stage. In
// words, of the stage that has least: "given", or
// "h200-sxm: 141 GB x 0.9 - weights 27.4 GB - activations 2.03 GB - other 0.29 GB (SOURCE)".
absl::StatusOr<std::vector<int64_t>> CacheBytes(const ReplayConfig& config,
                                                const ModelOnDevice& hardware);
// What is left beside the model where that is least; none if there is nothing.
std::optional<int64_t> LeastBesideModel(const ReplayConfig& config, const ModelOnDevice& hardware);
std::string DescribeCacheBytes(const ReplayConfig& config, const ModelOnDevice& hardware);

// Of ranks that exchange data in every layer and do not fit in a node; else empty.
std::string NodesNote(const ReplayConfig& config, const ModelOnDevice& hardware);

// Drafts as the options ask for them, and whether look-ups then give their last block back.
DraftOptions DraftOptionsOf(const ReplayConfig& config);
bool DropsLastHitBlock(const ReplayConfig& config);

// Puts what the engine would choose on this device where a limit is 0 (see DefaultSchedulerLimits).
// InvalidArgument for more requests than tokens in a step, which engines refuse (V-86).
absl::Status ChooseLimits(const DeviceFacts& device, ReplayConfig* config);

// Tokens scheduled and not settled when every step is full. REQUIRES: limits that are chosen.
int64_t MaxInFlightTokens(const ReplayConfig& config);

// "upstream" or "exact" of the configuration.
PlanPolicy PolicyOf(const ReplayConfig& config);

// The configuration's layout (of the exact policy) and sizes, for a cache of `bytes` on each stage;
// its length is that of the configuration.
PlanOptions MakePlanOptions(const ReplayConfig& config, PlanPolicy policy,
                            std::vector<int64_t> bytes);

// Tokens at whose multiples hits are wanted to end; empty: as the plan has it.
std::optional<int64_t> MatchUnitOf(const ReplayConfig& config,
                                   const std::vector<LayerCache>& caches);

// The plan of a replay's pool; of models, not of groups that a file lists.
absl::StatusOr<Plan> PlanPool(const ReplayConfig& config, const ModelOnDevice& hardware);

// All errors of a plan as one status.
absl::Status ToStatus(const std::vector<PlanError>& errors);

// The drafter of a replay as a model of its own: what its passes take and what it stores.
//
//   ngram                               nothing: the host looks tokens up
//   eagle, parallel_eagle               one dense layer as wide as the target's, with a head
//   mtp, mtp_modules                    one layer of the target's kind, per module, with a head
//   draft_model, parallel_draft_model   the model that --draft-model names
//   dflash, dspark                      unknown, unless --draft-time says it
//
// Kinds that propose one token after the other have a pass per draft, the others one.

struct DrafterSetup {
  std::string description;
  int64_t num_passes = 0;           // per step; 0: there is no drafter on the device
  std::optional<ModelFacts> model;  // of one pass; empty: unknown
  // Layers like the target's last one that the target's cache has in addition, or those of `model`.
  int64_t num_draft_layers = 0;
  bool has_own_layers = false;
  double weight_bytes =
      0;  // over all ranks; embeddings and head are the target's unless it is a model
};

absl::StatusOr<DrafterSetup> DrafterOf(const ReplayConfig& config, const ModelFacts& target);

// The pool of a replay: its groups, its size and what its manager does, from a configuration.

// Sets the pool's part of `setup`. InvalidArgument names the option, its value and what is
// expected. REQUIRES: an effective configuration.
absl::Status SetPool(const ReplayConfig& config, const ModelOnDevice& hardware, ReplaySetup* setup);

// KV-cache groups of a replay as a configuration file lists them, instead of those that are planned
// for a model's layers.

struct ReplayGroups {
  KvCacheConfig config;
  bool sized = true;        // false: num_blocks is the most there may be, and was not asked for
  int64_t block_bytes = 0;  // on one device: of the group with most bytes; 0 in the native layout
  int64_t chunk_bytes = 0;  // likewise, in the native layout only
};

// `num_blocks` replaces that of the message unless it is 0. Refusals name the field (FieldOfError).
absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ::kvblocks::config::v1::KvCacheConfig& message,
                                               int64_t num_blocks);

// From options to a clock: which step times a replay has, and why.

struct StepTimeSetup {
  std::unique_ptr<StepTimeModel> model;
  bool latency_is_meaningful = false;
  std::string note;  // why it is not what one would expect; may be empty
};

// REQUIRES: an effective configuration whose limits are chosen.
absl::StatusOr<StepTimeSetup> MakeStepTime(const ReplayConfig& config,
                                           const ModelOnDevice& hardware);

// --- What kvsim plan prints ---

struct PlanQuestions {
  // Where concurrency is stated; those beyond the limit are left out, and none stands for a few
  // powers of two.
  std::vector<int64_t> lengths = {};
  // Whether so many requests of `length` tokens fit at once; 0: that is not asked. A length of 0
  // stands for the longest.
  int64_t requests = 0;
  int64_t length = 0;
};

// `config.plan()` is not looked at: both policies are planned. A max_model_len of 0 stands for the
// model's own limit. That the length or the requests do not fit is part of the report.
absl::StatusOr<::kvblocks::report::v1::PlanReport> MakePlanReport(const ReplayConfig& config,
                                                                  PlanQuestions questions = {});

// Whether max_model_len, and the requests asked about, fit under a policy; false for one that is
// not in the report.
bool Fits(const ::kvblocks::report::v1::PlanReport& report, std::string_view policy);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_
