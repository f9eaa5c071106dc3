// From options to a plan: which model on which device, how much memory its cache gets, and how its
// layers share it.
//
// What `kvsim plan` prints and `kvsim replay` runs on, so that both mean the same pool.

#ifndef KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_
#define KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/drafting.h"
#include "kvblocks/specs/catalogue/catalogue.h"
#include "kvblocks/specs/catalogue/model_facts.h"
#include "kvblocks/specs/catalogue/pool_memory.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/planner.h"

namespace kvblocks::sim {

struct ModelOnDevice {
  ModelFacts model;
  DeviceFacts device;
};

// The built-in catalogue and the file that `catalogue` names.
absl::StatusOr<Catalogue> LoadCatalogue(const ::kvblocks::config::v1::ReplayConfig& config);

// By the names in the catalogue and the file that `catalogue` names; a `model` that ends in .json
// is read as a Hugging Face config.json.
absl::StatusOr<ModelOnDevice> FindModelOnDevice(const ::kvblocks::config::v1::ReplayConfig& config);

// Whether the replica has data-parallel ranks that share experts, and so step together.
bool IsInLockstep(const ::kvblocks::config::v1::ReplayConfig& config, const ModelFacts& model);

// What the layers store on one device, the drafter's included.
absl::StatusOr<std::vector<LayerCache>> LayerCachesOf(
    const ::kvblocks::config::v1::ReplayConfig& config, const ModelFacts& model);

// Memory of one device of a pipeline stage for the cache.
PoolMemory MemoryOf(const ::kvblocks::config::v1::ReplayConfig& config,
                    const ModelOnDevice& hardware, int64_t stage = 0);
// What the cache gets of it: --kv-memory, or what is left beside the model; of each stage. In words, of
// the stage that has least: "given", or
// "h200-sxm: 141 GB x 0.9 - weights 27.4 GB - activations 2.03 GB - other 0.29 GB (SOURCE)".
absl::StatusOr<std::vector<int64_t>> CacheBytes(const ::kvblocks::config::v1::ReplayConfig& config,
                                                const ModelOnDevice& hardware);
// What is left beside the model where that is least; none if there is nothing.
std::optional<int64_t> LeastBesideModel(const ::kvblocks::config::v1::ReplayConfig& config,
                                        const ModelOnDevice& hardware);
std::string DescribeCacheBytes(const ::kvblocks::config::v1::ReplayConfig& config,
                               const ModelOnDevice& hardware);

// Drafts as the options ask for them, and whether look-ups then give their last block back.
DraftOptions DraftOptionsOf(const ::kvblocks::config::v1::ReplayConfig& config);
bool DropsLastHitBlock(const ::kvblocks::config::v1::ReplayConfig& config);

// Puts what the engine would choose on this device where a limit is 0 (see DefaultSchedulerLimits).
// InvalidArgument for more requests than tokens in a step, which engines refuse (V-86).
absl::Status ChooseLimits(const DeviceFacts& device, ::kvblocks::config::v1::ReplayConfig* config);

// Tokens scheduled and not settled when every step is full. REQUIRES: limits that are chosen.
int64_t MaxInFlightTokens(const ::kvblocks::config::v1::ReplayConfig& config);

// "upstream" or "exact" of the configuration.
PlanPolicy PolicyOf(const ::kvblocks::config::v1::ReplayConfig& config);

// The configuration's layout (of the exact policy) and sizes, for a cache of `bytes` on each stage; its
// length is that of the configuration.
PlanOptions MakePlanOptions(const ::kvblocks::config::v1::ReplayConfig& config, PlanPolicy policy,
                            std::vector<int64_t> bytes);

// Tokens at whose multiples hits are wanted to end; empty: as the plan has it.
std::optional<int64_t> MatchUnitOf(const ::kvblocks::config::v1::ReplayConfig& config,
                                   const std::vector<LayerCache>& caches);

// All errors of a plan as one status.
absl::Status ToStatus(const std::vector<PlanError>& errors);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_MODEL_PLAN_H_
