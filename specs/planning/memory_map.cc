#include "specs/planning/memory_map.h"

#include <algorithm>
#include <utility>

#include "kvblocks/kv_cache_spec.h"

namespace kvblocks {
namespace {

LayerDescriptor Describe(const KvCacheSpec& spec, int layer, int group) {
  RowLayout rows = RowsOf(spec);
  return {.layer = layer,
          .group = group,
          .page_bytes = spec.page_bytes(),
          .rows = rows.rows,
          .row_bytes = rows.row_bytes,
          .dims = std::move(rows.dims)};
}

class WorkerMapper {
 public:
  WorkerMapper(const Grouping& grouping, const std::vector<std::vector<int>>& group_layers,
               const PoolSize& pool, WorkerPlan* worker)
      : grouping_(grouping), group_layers_(group_layers), pool_(pool), worker_(*worker) {}

  // Tensor j belongs to the j-th layer of every group. A single group's layers may have different
  // pages.
  void MapTensors() {
    for (size_t g = 0; g < group_layers_.size(); ++g) {
      for (size_t j = 0; j < group_layers_[g].size(); ++j) {
        const int layer = group_layers_[g][j];
        LayerDescriptor d = Describe(spec(layer), layer, static_cast<int>(g));
        d.tensor = static_cast<int>(j);
        d.block_stride = d.page_bytes;
        if (j == worker_.tensors.size()) {
          worker_.tensors.push_back({.bytes = d.page_bytes * pool_.num_blocks});
        }
        worker_.tensors[j].layers.push_back(layer);
        worker_.descriptors.push_back(std::move(d));
      }
    }
  }

  void MapSlab() {
    MapOneTensor(worker_.stride_bytes * pool_.num_blocks,
                 [&](LayerDescriptor& d) { d.block_stride = worker_.stride_bytes; });
  }

  void MapChunks() {
    const NativeLayout& native = *pool_.native;
    const int64_t null_page = native.num_chunks * worker_.chunk_bytes;
    MapOneTensor(null_page + worker_.null_page_bytes, [&](LayerDescriptor& d) {
      d.block_stride = worker_.group_page_bytes[d.group];
      d.page_class = native.class_of_group[d.group];
      d.chunk_bytes = worker_.chunk_bytes;
      d.ids_per_chunk = native.ids_per_chunk();
      d.pages_per_chunk = native.pages_per_chunk[d.page_class];
      d.null_offset = null_page + d.offset;
    });
  }

  void SortDescriptors() { std::ranges::sort(worker_.descriptors, {}, &LayerDescriptor::layer); }

 private:
  const KvCacheSpec& spec(int layer) const { return grouping_.stored[layer].spec; }

  // Each group lays its layers end to end from offset 0.
  template <typename Complete>
  void MapOneTensor(int64_t bytes, Complete complete) {
    PlannedTensor tensor = {.bytes = bytes};
    for (size_t g = 0; g < group_layers_.size(); ++g) {
      int64_t offset = 0;
      for (const int layer : group_layers_[g]) {
        LayerDescriptor d = Describe(spec(layer), layer, static_cast<int>(g));
        d.offset = offset;
        offset += d.page_bytes;
        complete(d);
        tensor.layers.push_back(layer);
        worker_.descriptors.push_back(std::move(d));
      }
    }
    if (!tensor.layers.empty()) worker_.tensors.push_back(std::move(tensor));
  }

  const Grouping& grouping_;
  const std::vector<std::vector<int>>& group_layers_;
  const PoolSize& pool_;
  WorkerPlan& worker_;
};

}  // namespace

void MapMemory(const Grouping& grouping, const ProjectedGroups& projected, PoolLayout layout,
               PoolSize* pool) {
  for (size_t w = 0; w < pool->workers.size(); ++w) {
    WorkerMapper mapper(grouping, projected[w], *pool, &pool->workers[w]);
    switch (layout) {
      case PoolLayout::kUniform:
        mapper.MapTensors();
        break;
      case PoolLayout::kSlab:
        mapper.MapSlab();
        break;
      case PoolLayout::kNative:
        mapper.MapChunks();
        break;
    }
    mapper.SortDescriptors();
  }
}

RowLayout RowsOf(const KvCacheSpec& spec) {
  RowLayout layout = {.rows = spec.storage_block_size()};
  layout.row_bytes = spec.unpadded_page_bytes() / layout.rows;
  if (spec.registered_kind() != nullptr && spec.registered_kind()->page_bytes != nullptr) {
    return {.rows = 1, .row_bytes = spec.unpadded_page_bytes(), .dims = {"block", "page"}};
  }
  if (spec.kind() == KvCacheSpecKind::kMamba) {
    layout.dims = {"block", "state"};
  } else if (spec.has_one_vector_per_row()) {
    layout.dims = {"block", "token", "value"};
  } else if (spec.head_size() == spec.head_size_v()) {
    layout.dims = {"block", "kv", "token", "head", "value"};
  } else {
    layout.dims = {"block", "token", "head", "value"};
  }
  return layout;
}

}  // namespace kvblocks
