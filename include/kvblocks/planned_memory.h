// kvblocks/planned_memory.h: from a plan of the cache's memory to the tensors that layers read.
//
// This header is what a model runner includes that plans with kvblocks/planning.h and attends with
// kvblocks/attention.h. It offers:
//   memory     PlannedMemory: for each layer of a worker its KvCacheView, latent rows or states in
//              the caller's allocations or in its own, in the uniform, slab and native layouts
//   metadata   PlannedMemory::KvGroupOf: what AttentionMetadataBuilder needs to turn the manager's
//              block ids into numbers of those views
//
// examples/planned_attention.cc goes from a plan to outputs.
//
// Errors: a plan, an option or an allocation that does not fit is an absl::Status with what, value
// and limit; nothing throws.
// Cost: O(layers) once, at start-up.
// Threads: values; the user of the views keeps the memory alive.

#ifndef KVBLOCKS_PLANNED_MEMORY_H_
#define KVBLOCKS_PLANNED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/attention.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/plan.h"
#include "kvblocks/planning.h"
#include "kvblocks/tensor_view.h"

// PlannedMemory: from a Plan to the tensors of each layer, on one worker.
//
//   const PlanResult planned = MakePlan(caches, options);
//   auto memory = PlannedMemory::Create(*planned.plan, {});     // allocates on the host
//   const LayerMemory& layer = *memory->Find("layers.0");
//   auto builder = backend->MakeMetadataBuilder({.groups = {memory->KvGroupOf(layer)}, ...});
//   attention_layer->Forward(context, {..., .cache = layer.cache, ...}, &builder->metadata());
//
// The caller allocates, one tensor per WorkerPlan::tensors entry and of its bytes (device memory
// for one). With no tensors given, PlannedMemory allocates zeroed host memory.
//
// Where a block lies, by the plan's layout, in bytes of the layer's tensor (LayerDescriptor):
//   uniform, slab   offset + id * block_stride
//   native          offset + chunk * chunk_bytes + page * block_stride, where
//                   chunk, page = divmod(id - 1, ids_per_chunk); the null block, 0: null_offset
// An example with 2 groups, pages of 96 and 40 bytes: in a slab both begin at id * 96. In native
// chunks of 200 bytes, 2 and 5 pages fit, ids_per_chunk is 5, and id 7 (chunk 1, page 1) begins at
// 296 in the first group and at 240 in the second. Block tables and slots of the native layout hold
// numbers of the view (kvblocks/kv_cache_view.h): KvGroupOf tells the metadata builder how to make
// them.
//
// Inside a page: K of all tokens, then V (kNhd or kHnd); K and V of a head in one row where they
// differ in size; vectors with scales of their own as their format has them (kv_cache_layout.h);
// latent and other vectors row by row; DeepSeek's fp8 rows and records as their layouts say; states
// of Mamba layers one after another.
//
// Always: a view reaches no byte outside its tensor; layers of one group share no byte. Layers of
// different groups may share memory, since a block id belongs to one group at a time.
// Cost: O(layers) once. The views are plain values; their user keeps the memory alive.

namespace kvblocks {

// Of one layer cache. What it does not have is absent.
struct LayerMemory {
  std::string name = {};
  int layer = 0;   // of Plan::layers
  int group = 0;   // of Plan::groups
  int tensor = 0;  // of WorkerPlan::tensors
  attention::PagePlace place = {};
  // u8 [block numbers, bytes of a kernel block]; every layer has it.
  attention::PlacedPages placed = {};
  // Keys and values, as operations take them: heads in any format, DeepSeek's rows.
  attention::KvCacheView cache = {};
  // [block numbers, rows, values]: kinds of one plain vector per row.
  attention::TensorView rows = {};
  // Mamba: one per state of the spec, [block numbers, its shape...].
  std::vector<attention::TensorView> states = {};
  // Why none of the three is there, for formats that only `placed` describes; else empty.
  std::string opaque = {};

  // Latent rows as a cache whose V is the first `latent_rank` columns; FailedPrecondition if `rows`
  // is absent.
  absl::StatusOr<attention::KvCacheView> LatentCache(int64_t latent_rank) const;
};

struct PlannedMemoryOptions {
  int worker = 0;
  // One for each of the worker's tensors, contiguous, of at least their bytes; none: allocate.
  std::vector<attention::TensorView> tensors = {};
  // Per group, how many blocks of the kernel a page is; none: one each.
  std::vector<int64_t> kernel_blocks = {};
  // Of caches with heads: kNhd or kHnd.
  attention::KvLayout layout = attention::KvLayout::kNhd;
};

class PlannedMemory {
 public:
  // InvalidArgument names the option, the layer or the tensor; OutOfRange for tensors that are too
  // small; ResourceExhausted if the host has not that much memory.
  static absl::StatusOr<PlannedMemory> Create(const Plan& plan,
                                              const PlannedMemoryOptions& options);

  // The worker's layers in the order of the plan.
  const std::vector<LayerMemory>& layers() const { return layers_; }
  // Null if the worker has no layer of that name. O(layers).
  const LayerMemory* Find(std::string_view name) const;
  // What metadata of a layer's tables is built from; layers with equal ones can share metadata.
  // REQUIRES: one of layers().
  attention::KvGroupConfig KvGroupOf(const LayerMemory& layer) const;
  // The tensors, given or own.
  const std::vector<attention::TensorView>& tensors() const { return tensors_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  std::vector<attention::KvGroupConfig> configs_;  // per layers_ entry
  std::vector<LayerMemory> layers_;
  std::vector<attention::TensorView> tensors_;
  std::vector<std::unique_ptr<std::byte[], Free>> own_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_PLANNED_MEMORY_H_
