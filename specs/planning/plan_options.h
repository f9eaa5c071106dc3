// PlanOptions: what the planner needs to know besides the layer caches.

#ifndef KVBLOCKS_SPECS_PLANNING_PLAN_OPTIONS_H_
#define KVBLOCKS_SPECS_PLANNING_PLAN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvblocks/specs/engine_version.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {

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

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PLAN_OPTIONS_H_
