// Plans of a KV cache: groups, pages, blocks and memory for the layers of a model.

#ifndef KVBLOCKS_PLAN_H_
#define KVBLOCKS_PLAN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/request_footprint.h"

// The tensor shapes that attention backends ask for, as data.
//
// A shape lists its dims in logical order; a stride order says in which order they lie in memory.
// For a page without padding, the product of the dims times the bytes of an element is page bytes
// times blocks; a padded page is read through a strided view whose block stride is the page.

namespace kvblocks {

enum class BackendFamily {
  kPagedV0,       // xFormers and the first ROCm kernels
  kFlashKvFirst,  // older flash attention, ROCm
  kFlash,         // newer flash attention, flex
  kTriton,        // the same shape; scales per token and head lie behind each vector
  kFlashInfer,    // the same shape; other memory order across layers
  kFlashOneRow,   // flash attention with K and V of different sizes, in one row
  kCpu,
  kLatent,  // MLA, indexers, compressor states: one vector per row
};

// "paged_v0", "flash_kv_first", ...
std::string_view BackendName(BackendFamily family);

struct BackendShape {
  std::vector<int64_t> dims = {};            // logical order, in elements
  std::vector<std::string_view> names = {};  // "block", "kv", "token", "head", "value", "page"
  int block_dim = 0;                         // index of "block"
  int64_t element_bytes = 0;
  int64_t page_stride_bytes = 0;  // from block to block; larger than a page's data if padded

  friend bool operator==(const BackendShape&, const BackendShape&) = default;
};

// Refused: kinds, modes, block sizes or head sizes that the family does not store.
absl::StatusOr<BackendShape> ShapeOf(BackendFamily family, const KvCacheSpec& spec,
                                     int64_t num_blocks);

enum class HeadOrder { kNhd, kHnd };  // tokens before heads, or heads before tokens

// Position in memory -> logical dim. Empty where the family does not know the order.
std::vector<int> StrideOrder(BackendFamily family, HeadOrder order);

// Dims in memory order when all layers of a block are in one allocation; empty where the family
// does not support that.
std::vector<std::string_view> CrossLayerOrder(BackendFamily family, HeadOrder order);

// How the paged v0 kernels view a page of K and of V: x values at a time, 16 bytes.
struct PagedV0Views {
  int64_t x = 0;
  std::vector<int64_t> key = {};    // head, d / x, token, x
  std::vector<int64_t> value = {};  // head, d, token

  friend bool operator==(const PagedV0Views&, const PagedV0Views&) = default;
};
absl::StatusOr<PagedV0Views> ViewsOfPagedV0(const KvCacheSpec& spec);

// Where a token lies: the row of offset `offset` in block `block_id`.
constexpr int64_t SlotOf(int64_t block_id, int64_t offset, int64_t block_size) {
  return block_id * block_size + offset;
}

// PlanOptions: what the planner needs to know besides the layer caches.

// kUpstream repeats vLLM to the byte: its caps, its group sizes, its checks without the null block.
// kExact counts what a request can really hold and what a pool can really hand out.
enum class PlanPolicy { kUpstream, kExact };

enum class PoolLayout {
  // All pages equal; tensor j is shared by the j-th layer of every group. Also what a single group
  // gets, whose layers each have a tensor of their own whatever their pages.
  kUniform,
  kSlab,    // a block id costs the largest group; each group lays its pages from offset 0
  kNative,  // page classes in chunks, nothing padded to anything
};

// How a backend of the engine wants the pool to lie in memory.
enum class MemoryLayout {
  kLayerOutermost,  // a region per layer: pages of different layers must be equal to share it
  kBlockOutermost,  // all layers' pages of a block together: any pages that fill a block will do
};

// "upstream", "exact"; "uniform", "slab", "native".
std::string_view PolicyName(PlanPolicy policy);
std::string_view LayoutName(PoolLayout layout);

struct PlanOptions {
  PlanPolicy policy = PlanPolicy::kExact;
  // The engine whose rules the upstream policy repeats, and whose kinds and backends both policies
  // plan for.
  EngineVersion version = EngineVersion::kVllm033;
  // Exact policy: unset tries all and keeps the one with the most requests at the configured
  // length, fewer groups and then the earlier of the enum on a tie. Upstream's layout follows from
  // the groups, so it must be unset there.
  std::optional<PoolLayout> layout = std::nullopt;
  // Upstream policy only. Unset: what the engine's backends ask for. That is block-outermost for
  // DeepSeek's sparse and compressed attention from 0.33 on, and else layer-outermost.
  std::optional<MemoryLayout> memory_layout = std::nullopt;
  // Off: layers with a window or chunk store every token, as full attention does.
  bool hybrid = true;

  // max_model_len 0 is automatic: the longest that fits, up to longest_automatic_len.
  RequestLimits limits = {};
  int64_t longest_automatic_len = int64_t{1} << 20;

  // Per worker; one entry serves all workers alike.
  std::vector<int64_t> available_bytes = {};
  // Replaces the pool's size; the memory is then what this many blocks take. In the native layout
  // it is rounded down to whole chunks.
  std::optional<int64_t> num_blocks_override = std::nullopt;

  // Prefix caching is on or a KV connector is attached.
  bool hashes_needed = true;
  std::optional<int64_t> match_unit = std::nullopt;  // hash block size wanted, tokens
  bool use_eagle = false;  // a drafter runs on the last registered layers of the target

  // The exact policy weighs group sizes at this length; 0 takes the configured length.
  int64_t typical_len = 0;
  // Bytes that a request may cost more to save it one block table. The default lets Gemma-3-27B
  // have 13 tables rather than 7 at 131,072 tokens (62 MB each), but not 31 (13 MB each).
  int64_t table_cost_bytes = int64_t{32} << 20;

  // Block sizes that the attention kernels take, each with its multiples; empty: any.
  std::vector<int64_t> kernel_block_sizes = {};
  // Chunk of the state kernels, tokens; blocks of models that keep every state become multiples of
  // it.
  int64_t state_chunk_tokens = 1;
  // Layers stored in full because hybrid is off get tables of their own and are billed at their
  // window. The blocks before the window stay for reuse until others need them.
  bool bill_promoted_at_window = false;

  // Native: the largest chunk to consider.
  int64_t max_chunk_bytes = int64_t{32} << 20;
};

// Where the caches lie, by the upstream policy.
MemoryLayout MemoryLayoutFor(std::span<const LayerCache> caches, const PlanOptions& options);

// Whether checks and estimates leave the null block, which no request can hold, out of the memory.
bool ReservesNullBlock(PlanPolicy policy, EngineVersion version);

// PlanError: why a set of layer caches cannot be planned, and what would help.
//
// Plain data: a code, the sentence for people, and the same numbers as fields for programs. A plan
// that fails reports every error that was found, not only the first.

enum class PlanErrorCode {
  kBadValue = 1,               // E-1: an option or size out of range
  kConflictingSpecs = 2,       // E-2: one name, two specs
  kUnknownKind = 3,            // E-3: refused when the spec is created or parsed
  kPaddingTooSmall = 4,        // E-4: refused when the spec is created
  kUnknownModelVersion = 5,    // E-5: refused when the spec is created
  kTableWidths = 6,            // E-6: members of one table need rows of different width
  kPagesDoNotEqualise = 7,     // E-7
  kNotOneType = 8,             // E-8: full storage of local layers did not give one type
  kContextParallelWindow = 9,  // E-9
  kNoMemory = 10,              // E-10
  kRequestDoesNotFit = 11,     // E-11
  kNoLengthFits = 12,          // E-12: automatic length, and not even one token fits
  kMatchUnit = 13,             // E-13
  kSinkLength = 14,            // E-14: refused when the spec is created
  kMerge = 15,                 // E-15
  kNotInOneGroup = 16,         // E-16: a layer cache in no group, or twice on one worker
};

// "E-11".
std::string PlanErrorName(PlanErrorCode code);

struct PlanError {
  PlanErrorCode code = PlanErrorCode::kBadValue;
  std::string message = {};

  std::vector<std::string> layers = {};      // names of the layer caches concerned
  std::optional<int> worker = std::nullopt;  // where it happened, if on one worker
  // What was needed and what there was, in the unit of the error: bytes for E-10 to E-12, tokens
  // for block sizes.
  std::optional<int64_t> needed = std::nullopt;
  std::optional<int64_t> available = std::nullopt;
  std::optional<int64_t> longest_length = std::nullopt;  // E-11: tokens that do fit, if any

  friend bool operator==(const PlanError&, const PlanError&) = default;
};

// E-1, "FIELD: got VALUE, expected WHAT".
PlanError ValueError(std::string_view field, std::string_view got, std::string_view expected);

// How many blocks requests of a length need, and how long or how many requests a pool can serve.
//
// One formula for sizing, check, estimate and concurrency. Blocks of one request in one group are a
// staircase in its length: added + min(cap, ceil(L / step)). Requests draw *units* from the pool:
// blocks, or chunks in the native layout. All answers are closed forms, and inverses are solved
// from them.

class PoolCapacity {
 public:
  std::vector<GroupDemand> groups = {};
  // Pages in a unit, per page class. One entry of 1 where every block id serves every group.
  std::vector<int64_t> pages_per_unit = {1};
  int64_t units = 0;             // in the pool that requests can use
  bool shared_transient = true;  // false: every request reserves its own, as upstream does

  // For one request of `length`, per group and in all.
  std::vector<int64_t> BlocksPerRequest(int64_t length) const;
  int64_t TotalBlocksPerRequest(int64_t length) const;

  // For `requests` of `length` at once, permanent blocks included. REQUIRES: requests >= 0.
  int64_t UnitsNeeded(int64_t requests, int64_t length) const;

  // The most requests of `length` that fit whatever the scheduler does with the in-flight tokens,
  // and the same with the fraction of a further one.
  int64_t MaxRequests(int64_t length) const;
  double Concurrency(int64_t length) const;

  // The longest request in [0, limit] that fits `num_units`; 0 if none does.
  int64_t LongestLength(int64_t num_units, int64_t limit) const;

  friend bool operator==(const PoolCapacity&, const PoolCapacity&) = default;

 private:
  int64_t LongestLengthOfBlocks(int64_t num_blocks, int64_t limit) const;
};

// Plan: how the layer caches of a model share one pool - groups, memory, addresses, capacity.
//
// What MakePlan (planner.h) returns. A value: nothing in it changes, methods of a length are closed
// forms. Encoder-only layers store nothing and do not appear. Layers are named by index into
// `layers`, the distinct names in registration order. A plan covers all workers; block ids are
// common to all of them, bytes are each worker's own.

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

// MakePlan: from layer caches to a Plan - the whole of planning as one pure function.
//
//   const PlanResult result = MakePlan(caches, {.limits = {.max_model_len = 131072,
//                                                          .max_in_flight_tokens = 8192},
//                                               .available_bytes = {int64_t{16} << 30}});
//   if (!result.ok()) for (const PlanError& error : result.errors) Report(error.message);
//   KvCacheManager::Create(result.plan->config, ...);
//
// No globals, no exceptions, nothing of the input changes, and equal inputs give equal plans. If it
// fails, every error that could be found is reported. Cost: a few sorts and merges over the layer
// caches; DeepSeek-V4-Pro's 243 caches in all three layouts take about half a millisecond
// (planner_benchmark).

// Exactly one of the two is there.
struct PlanResult {
  std::optional<Plan> plan = std::nullopt;
  std::vector<PlanError> errors = {};

  bool ok() const { return plan.has_value(); }
};

PlanResult MakePlan(std::span<const LayerCache> caches, const PlanOptions& options);

}  // namespace kvblocks

#endif  // KVBLOCKS_PLAN_H_
