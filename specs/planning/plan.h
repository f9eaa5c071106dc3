// Plan: how the layer caches of a model share one pool - groups, memory, addresses, capacity.
//
// What MakePlan (planner.h) returns. A value: nothing in it changes, methods of a length are closed
// forms. Encoder-only layers store nothing and do not appear. Layers are named by index into
// `layers`, the distinct names in registration order. A plan covers all workers; block ids are
// common to all of them, bytes are each worker's own.

#ifndef KVBLOCKS_SPECS_PLANNING_PLAN_H_
#define KVBLOCKS_SPECS_PLANNING_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/specs/kv_cache_config.h"
#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/planning/capacity.h"
#include "kvblocks/specs/planning/plan_options.h"

namespace kvblocks {

struct PlannedLayer {
  std::string name;
  KvCacheSpec declared;  // as registered; windows and chunks of the layer are read here
  KvCacheSpec stored;    // as planned: block size, padding, or kind may differ
  bool is_draft = false;
  std::vector<int> workers = {};  // that hold it
};

struct PlannedGroup {
  std::vector<int> layers = {};  // in the order in which the group lays them out
  KvCacheSpec spec;              // merged, or the first member's if the group is an aggregate
  bool is_aggregate = false;     // members' pages may differ
  bool is_draft = false;
  int64_t page_bytes = 0;      // sum of the members' pages, over all of them
  int64_t padding_layers = 0;  // uniform: tensors of the pool that it has no layer for
  // Equal for groups whose attention metadata differs in the block table only.
  int metadata_key = 0;
  int32_t page_class = 0;
  // Set where the request is billed at the window though every token is stored.
  std::optional<int64_t> billed_window = std::nullopt;
};

// One allocation on one worker.
struct PlannedTensor {
  int64_t bytes = 0;
  std::vector<int> layers = {};  // that live in it
};

// Where a layer cache lies. The page of block id b begins at
//   uniform, slab:  offset + b * block_stride
//   native:         offset + chunk * chunk_bytes + page * block_stride  for b >= 1, where
//                   chunk, page = divmod(b - 1, ids_per_chunk); the null block: null_offset
// within tensor `tensor` of the layer's worker.
struct LayerDescriptor {
  int layer = 0;
  int group = 0;
  int tensor = 0;
  int64_t offset = 0;        // bytes
  int64_t page_bytes = 0;    // with padding
  int64_t block_stride = 0;  // bytes between the pages of neighbouring blocks
  int64_t rows = 0;          // stored rows per page
  int64_t row_bytes = 0;     // rows * row_bytes is the page without padding
  // In memory order, {"block", "kv", "token", "head", "value"} for one.
  std::vector<std::string_view> dims = {};
  int block_dim = 0;  // index of "block" in dims
  // Native only.
  int32_t page_class = 0;
  int64_t chunk_bytes = 0;
  int64_t ids_per_chunk = 0;
  int64_t pages_per_chunk = 0;
  int64_t null_offset = 0;
};

struct WorkerPlan {
  int64_t available_bytes = 0;  // after an override of the block count
  int64_t own_num_blocks = 0;   // what its memory would allow by itself
  int64_t stride_bytes = 0;     // what one block id costs; 0 in the native layout
  int64_t chunk_bytes = 0;      // native
  int64_t null_page_bytes = 0;  // native: the page that backs the null block
  std::vector<PlannedTensor> tensors = {};
  std::vector<LayerDescriptor> descriptors = {};  // of its layers, by layer index
  std::vector<int64_t> group_page_bytes = {};     // of its layers, per group; 0 where it has none
  // Version 0.25: what its memory check charges per block, where that is not the stride.
  std::optional<int64_t> check_bytes_per_block = std::nullopt;
};

enum class WasteReason {
  kPaddingLayers,   // tensors that a group smaller than the largest does not use
  kSlabOverlap,     // the part of the stride that a smaller group leaves unused
  kPagePadding,     // padding of pages to a common size, an alignment or a wish
  kChunkRemainder,  // what is left of a chunk behind the last page of a class
  kPartialChunk,    // at most one partly used chunk per class
  kNullBlock,
  kSinkBlocks,    // used, but by no request
  kUnusedMemory,  // the remainder of the division and what a smaller worker forces on others
  kUpstreamCap,   // blocks billed to a request that it can never hold
};
std::string_view WasteReasonName(WasteReason reason);

struct Waste {
  WasteReason reason;
  std::optional<int> group = std::nullopt;
  // Of one block id (kPaddingLayers, kSlabOverlap, kPagePadding), of one chunk (kChunkRemainder,
  // and kPagePadding in the native layout), of one request of the configured length (kUpstreamCap),
  // or once per pool; summed over workers.
  int64_t bytes = 0;
  double share = 0;  // of the stride, the chunk, or the pool
};

// A request's bytes inside pages of real layers against the bytes it is charged, of which share()
// is the part wasted. In the native layout a page is charged its part of the chunk.
struct RequestWaste {
  int64_t bytes_used = 0;
  int64_t bytes_charged = 0;
  double share() const {
    return bytes_charged == 0 ? 0 : 1 - static_cast<double>(bytes_used) / bytes_charged;
  }
};

// b(L) is about fixed_blocks + L * blocks_per_token for lengths beyond the windows.
struct RequestCost {
  int64_t fixed_blocks = 0;
  double blocks_per_token = 0;
};

struct Plan {
  PlanPolicy policy = PlanPolicy::kExact;
  EngineVersion version = EngineVersion::kVllm033;
  PoolLayout layout = PoolLayout::kUniform;
  RequestLimits limits = {};  // max_model_len resolved if it was automatic
  // Automatic length: the worker whose memory set it.
  std::optional<int> limiting_worker = std::nullopt;

  KvCacheConfig config = {};  // what KvCacheManager::Create takes
  std::vector<PlannedLayer> layers = {};
  std::vector<PlannedGroup> groups = {};
  std::vector<WorkerPlan> workers = {};
  PoolCapacity capacity = {};

  int64_t num_blocks() const { return config.num_blocks; }
  // Blocks that requests can hold: all but the null block and the sinks'. In the native layout,
  // ids; a class with larger pages uses only some of them.
  int64_t num_allocatable_blocks() const;

  // One request of `length`, per group and in all.
  std::vector<int64_t> BlocksPerRequest(int64_t length) const {
    return capacity.BlocksPerRequest(length);
  }
  int64_t TotalBlocksPerRequest(int64_t length) const {
    return capacity.TotalBlocksPerRequest(length);
  }
  // Bytes of the blocks that one request of `length` holds, in units of the pool.
  int64_t RequestBytes(int64_t length, int worker = 0) const;
  // Bytes that `worker` must have to serve one request of `length`, by the policy's check: those of
  // the request, and but for version 0.25's upstream policy those of the null block.
  int64_t NeededBytes(int64_t length, int worker = 0) const;
  // Requests of `length` at once; real, and in whole requests.
  double Concurrency(int64_t length) const { return capacity.Concurrency(length); }
  int64_t MaxRequests(int64_t length) const { return capacity.MaxRequests(length); }
  // floor(Concurrency(length) * length): derived, not a capacity in its own right.
  int64_t TokenCapacity(int64_t length) const;
  // The longest single request that the pool can serve, up to `limit` tokens.
  int64_t LongestContext(int64_t limit) const;
  // What to report instead of bytes per token.
  RequestCost CostOfRequest() const;

  std::vector<Waste> StandingWaste() const;
  RequestWaste WasteOfRequest(int64_t length) const;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PLAN_H_
