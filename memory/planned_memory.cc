#include "kvblocks/planned_memory.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks {
namespace {

using attention::DType;
using attention::KvCacheGeometry;
using attention::KvGroupConfig;
using attention::KvLayout;
using attention::KvRowFormat;
using attention::TensorView;

constexpr size_t kAlignment = 256;  // of own memory

DType DTypeOf(DataType type) {
  switch (type) {
    case DataType::kBFloat16:
      return DType::kBF16;
    case DataType::kFloat16:
      return DType::kF16;
    case DataType::kFloat32:
      return DType::kF32;
    case DataType::kUint8:
      return DType::kU8;
    case DataType::kInt8:
      return DType::kI8;
    case DataType::kFp8E4m3:
      return DType::kF8E4M3;
    case DataType::kFp8E5m2:
      return DType::kF8E5M2;
  }
  return DType::kU8;
}

// Of stored values where they lie row by row without scales between them.
DType StoredType(const KvCacheSpec& spec) {
  if (spec.quant_mode() == QuantMode::kFp8PerTensor && spec.dtype() != DataType::kFp8E5m2) {
    return DType::kF8E4M3;
  }
  return DTypeOf(spec.dtype());
}

absl::Status In(const std::string& what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("PlannedMemory: ", what, ": ", std::string(status.message())));
}

// Plans made by MakePlan have no such faults; others may be read from files or written by hand.
absl::Status CheckPlan(const Plan& plan, const WorkerPlan& worker) {
  for (const LayerDescriptor& d : worker.descriptors) {
    const auto in = [](int index, size_t size) {
      return index >= 0 && static_cast<size_t>(index) < size;
    };
    if (!in(d.layer, plan.layers.size()) || !in(d.group, plan.groups.size()) ||
        !in(d.tensor, worker.tensors.size())) {
      return InvalidArgument("PlannedMemory: a descriptor names layer ", d.layer, ", group ",
                             d.group, " and tensor ", d.tensor, "; the plan has ",
                             plan.layers.size(), ", ", plan.groups.size(), " and ",
                             worker.tensors.size());
    }
  }
  // Within a group, pages of one block must not overlap, nor reach into the next block's.
  std::vector<const LayerDescriptor*> order;
  for (const LayerDescriptor& d : worker.descriptors) order.push_back(&d);
  std::sort(order.begin(), order.end(), [](const LayerDescriptor* a, const LayerDescriptor* b) {
    return std::tuple(a->group, a->tensor, a->offset) < std::tuple(b->group, b->tensor, b->offset);
  });
  size_t first = 0;  // of the layers that share group and tensor
  for (size_t i = 0; i < order.size(); ++i) {
    const LayerDescriptor& d = *order[i];
    const std::string& name = plan.layers[static_cast<size_t>(d.layer)].name;
    if (order[first]->group != d.group || order[first]->tensor != d.tensor) first = i;
    if (i > first && order[i - 1]->offset > d.offset - order[i - 1]->page_bytes) {
      return InvalidArgument("PlannedMemory: layers ",
                             plan.layers[static_cast<size_t>(order[i - 1]->layer)].name, " and ",
                             name, " of group ", d.group, " share bytes from ", d.offset,
                             " on; pages of one group must not overlap");
    }
    if (d.offset - order[first]->offset > d.block_stride - d.page_bytes) {
      return InvalidArgument("PlannedMemory: layer ", name, ": a page of ", d.page_bytes,
                             " bytes at ", d.offset, " reaches into the next block's, ",
                             d.block_stride, " bytes on");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const WorkerPlan& worker, const std::vector<TensorView>& tensors) {
  if (tensors.size() != worker.tensors.size()) {
    return InvalidArgument("PlannedMemory: tensors has ", tensors.size(), " entries; the plan has ",
                           worker.tensors.size(), " (or give none, to have them allocated)");
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string what = absl::StrCat("tensors[", i, "]");
    const auto bytes = tensors[i].SpanBytes();
    if (!bytes.ok()) return In(what, bytes.status());
    if (!tensors[i].contiguous()) return In(what, InvalidArgument("it must be contiguous"));
    if (*bytes < worker.tensors[i].bytes) {
      return In(what, OutOfRange("it has ", *bytes, " bytes; the plan needs ",
                                 worker.tensors[i].bytes));
    }
    for (size_t j = 0; j < i; ++j) {
      const std::byte *a = tensors[i].data, *b = tensors[j].data;
      if (tensors[i].device == tensors[j].device && a < b + worker.tensors[j].bytes &&
          b < a + worker.tensors[i].bytes) {
        return In(what, InvalidArgument("it shares memory with tensors[", j,
                                        "]; layers of one group would overwrite each other"));
      }
    }
  }
  return absl::OkStatus();
}

// How vectors of heads are stored; empty for modes that only latent rows have.
std::optional<KvRowFormat> HeadFormatOf(QuantMode mode) {
  switch (mode) {
    case QuantMode::kNone:
    case QuantMode::kFp8PerTensor:
      return KvRowFormat::kElements;
    case QuantMode::kInt8PerTokenHead:
    case QuantMode::kFp8PerTokenHead:
      return KvRowFormat::kPerTokenHead;
    case QuantMode::kInt4PerTokenHead:
      return KvRowFormat::kInt4PerTokenHead;
    case QuantMode::kNvfp4:
      return KvRowFormat::kNvfp4;
    case QuantMode::kFp8DsMla:
    case QuantMode::kNvfp4DsMla:
      return std::nullopt;
  }
  return std::nullopt;
}

// DeepSeek's own rows as a layout of u8 and, of kMlaLatent, a format of records; empty for rows
// that are none: a window of another model has plain bytes.
std::optional<std::pair<KvLayout, KvRowFormat>> LatentFormatOf(const KvCacheSpec& spec) {
  const bool window = spec.kind() != KvCacheSpecKind::kMlaAttention;
  const bool nvfp4 = spec.quant_mode() == QuantMode::kNvfp4DsMla;
  switch (spec.options().model_version) {
    case ModelVersion::kDeepseekV4:
      return std::pair(KvLayout::kMlaFp8_584, KvRowFormat::kElements);
    case ModelVersion::kDeepseekV41:
      // Windows have 8 bits in either mode.
      return std::pair(KvLayout::kMlaLatent, nvfp4 && !window ? KvRowFormat::kMlaV41Fp4
                                                              : KvRowFormat::kMlaV41);
    default:
      if (window) return std::nullopt;
      return nvfp4 ? std::pair(KvLayout::kMlaLatent, KvRowFormat::kMlaNvfp4)
                   : std::pair(KvLayout::kMlaFp8_656, KvRowFormat::kElements);
  }
}

// Why vectors of a format cannot be seen as codes and scales; empty if they can.
std::string WhyNoVectors(const KvCacheSpec& spec, KvRowFormat format) {
  if (format == KvRowFormat::kElements) return "";
  if (spec.has_one_vector_per_row()) {
    return absl::StrCat("no layout of attention/cache reads ",
                        std::string(QuantModeName(spec.quant_mode())), " rows of ",
                        std::string(spec.kind_name()));
  }
  if (format == KvRowFormat::kNvfp4) return "";  // specs take multiples of 16 values only
  // Each vector's float32 scale lies behind its codes.
  const int64_t multiple = 4 * attention::ValuesPerElement(format);
  for (const int64_t values : {spec.head_size(), spec.head_size_v()}) {
    if (values % multiple != 0) {
      return absl::StrCat("vectors of ", values, " values put float32 scales at addresses that are "
                          "no multiples of 4; ", std::string(QuantModeName(spec.quant_mode())),
                          " is seen as tensors with multiples of ", multiple, " values");
    }
  }
  return "";
}

// What a layer's pages hold, as views.
absl::Status MakeViews(const KvCacheSpec& spec, int64_t kernel_rows, KvLayout layout,
                       LayerMemory* memory) {
  const auto take = [](auto made, auto* to) {
    if (made.ok()) *to = *std::move(made);
    return made.status();
  };
  if (spec.registered_kind() != nullptr && spec.registered_kind()->page_bytes != nullptr) {
    memory->opaque = absl::StrCat("pages of kind ", std::string(spec.kind_name()), " are its own");
    return absl::OkStatus();
  }
  if (spec.kind() == KvCacheSpecKind::kMamba) {
    int64_t offset = 0;
    for (const MambaState& state : spec.options().states) {
      const DType type = DTypeOf(state.dtype);
      KVBLOCKS_ASSIGN_OR_RETURN(auto view,
                                attention::PlacedTensor(memory->placed, offset, type, state.shape));
      int64_t bytes = attention::ElementBytes(type);
      for (const int64_t extent : state.shape) bytes *= extent;
      offset += bytes;
      memory->states.push_back(view);
    }
    return absl::OkStatus();
  }
  const QuantMode mode = spec.quant_mode();
  KvCacheGeometry geometry;
  geometry.block_size = kernel_rows;
  const std::optional<KvRowFormat> format = HeadFormatOf(mode);
  if (!format.has_value()) {
    const auto latent = LatentFormatOf(spec);
    if (latent.has_value()) {
      std::tie(geometry.layout, geometry.format) = *latent;
      geometry.dtype = DType::kU8;
      return take(attention::PlacedKvCache(memory->placed, geometry), &memory->cache);
    }
    memory->opaque = absl::StrCat("no layout of attention/cache reads ",
                                  std::string(QuantModeName(mode)), " rows of ",
                                  std::string(spec.kind_name()), " without a model_version");
    return absl::OkStatus();
  }
  if (std::string why = WhyNoVectors(spec, *format); !why.empty()) {
    memory->opaque = std::move(why);
    return absl::OkStatus();
  }
  const DType type = StoredType(spec);
  if (spec.has_one_vector_per_row()) {
    return take(attention::PlacedTensor(memory->placed, 0, type, {kernel_rows, spec.head_size()}),
                &memory->rows);
  }
  geometry.layout = layout;
  geometry.format = *format;
  geometry.dtype = mode == QuantMode::kFp8PerTokenHead    ? DType::kF8E4M3
                   : mode == QuantMode::kInt8PerTokenHead ? DType::kI8
                   : *format != KvRowFormat::kElements    ? DType::kU8
                                                          : type;
  geometry.num_kv_heads = spec.num_kv_heads();
  geometry.key_dim = spec.head_size();
  geometry.value_dim = spec.head_size_v();
  const bool one_row = layout == KvLayout::kNhd && *format == KvRowFormat::kElements &&
                       geometry.key_dim != geometry.value_dim;
  return take(attention::PlacedKvCache(memory->placed, geometry, one_row), &memory->cache);
}

}  // namespace

absl::StatusOr<attention::KvCacheView> LayerMemory::LatentCache(int64_t latent_rank) const {
  if (rows.absent()) {
    return absl::FailedPreconditionError(
        absl::StrCat("LatentCache: layer ", name, " has no plain rows", opaque.empty() ? "" : ": ",
                     opaque));
  }
  auto view = attention::MakeMlaLatentView(rows, latent_rank);
  if (view.ok()) view->overlapping_blocks = placed.overlapping;
  return view;
}

absl::StatusOr<PlannedMemory> PlannedMemory::Create(const Plan& plan,
                                                    const PlannedMemoryOptions& options) {
  if (options.worker < 0 || static_cast<size_t>(options.worker) >= plan.workers.size()) {
    return InvalidArgument("PlannedMemory: worker is ", options.worker, "; the plan has ",
                           plan.workers.size());
  }
  if (options.layout != KvLayout::kNhd && options.layout != KvLayout::kHnd) {
    return InvalidArgument("PlannedMemory: layout is ", attention::Name(options.layout),
                           "; nhd or hnd: the plan's pages hold K and V of one block together");
  }
  if (!options.kernel_blocks.empty() && options.kernel_blocks.size() != plan.groups.size()) {
    return InvalidArgument("PlannedMemory: kernel_blocks has ", options.kernel_blocks.size(),
                           " entries; one for each of ", plan.groups.size(), " groups, or none");
  }
  const WorkerPlan& worker = plan.workers[static_cast<size_t>(options.worker)];
  KVBLOCKS_RETURN_IF_ERROR(CheckPlan(plan, worker));

  PlannedMemory memory;
  memory.tensors_ = options.tensors;
  if (memory.tensors_.empty()) {
    for (const PlannedTensor& tensor : worker.tensors) {
      const size_t bytes = static_cast<size_t>(std::max<int64_t>(tensor.bytes, 1));
      // calloc leaves the pages to their first use; the room before an aligned beginning is lost.
      std::byte* data = static_cast<std::byte*>(std::calloc(bytes + kAlignment, 1));
      if (data == nullptr) {
        return ResourceExhausted("PlannedMemory: no ", tensor.bytes,
                                 " bytes of host memory for a tensor; plan fewer blocks");
      }
      memory.own_.emplace_back(data);
      const size_t over = reinterpret_cast<uintptr_t>(data) % kAlignment;
      memory.tensors_.push_back(TensorView::Contiguous(data + (kAlignment - over) % kAlignment,
                                                       DType::kU8, {tensor.bytes}));
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(worker, memory.tensors_));

  for (const LayerDescriptor& d : worker.descriptors) {
    const PlannedLayer& planned = plan.layers[static_cast<size_t>(d.layer)];
    const KvCacheSpec& spec = planned.stored;
    const std::string what = absl::StrCat("layer ", planned.name);
    const int64_t split = options.kernel_blocks.empty()
                              ? 1
                              : options.kernel_blocks[static_cast<size_t>(d.group)];
    if (split < 1 || d.rows % split != 0) {
      return In(what, InvalidArgument("kernel_blocks[", d.group, "] is ", split,
                                      "; it must divide the ", d.rows, " rows of a page"));
    }
    LayerMemory& layer = memory.layers_.emplace_back();
    layer.name = planned.name;
    layer.layer = d.layer;
    layer.group = d.group;
    layer.tensor = d.tensor;
    // Padding behind a page of several kernel blocks belongs to none of them.
    layer.place = {.offset = d.offset,
                   .page_bytes = split > 1 ? spec.unpadded_page_bytes() : d.page_bytes,
                   .block_stride = d.block_stride,
                   .ids_per_chunk = d.ids_per_chunk,
                   .pages_per_chunk = d.pages_per_chunk,
                   .chunk_bytes = d.chunk_bytes,
                   .null_offset = d.null_offset};
    const TensorView& tensor = memory.tensors_[static_cast<size_t>(d.tensor)];
    auto placed = attention::PlacePages(
        layer.place, plan.num_blocks(), split,
        TensorView::Contiguous(tensor.data, DType::kU8,
                               {worker.tensors[static_cast<size_t>(d.tensor)].bytes},
                               tensor.device));
    if (!placed.ok()) return In(what, placed.status());
    layer.placed = *placed;
    const int64_t kernel_rows = d.rows / split;
    if (absl::Status s = MakeViews(spec, kernel_rows, options.layout, &layer); !s.ok()) {
      return In(what, s);
    }
    KvGroupConfig& config = memory.configs_.emplace_back();
    config.manager_block_size = spec.block_size();
    config.kernel_block_size = kernel_rows;
    config.num_blocks = plan.num_blocks();
    config.window = spec.sliding_window().value_or(0);
    config.compression_ratio = spec.compress_ratio();
    const attention::BlockMap& blocks = placed->blocks;
    if (blocks.ids_per_chunk > 0 || blocks.page_stride != split || blocks.block_stride != 1) {
      config.block_map = blocks;
    }
  }
  return memory;
}

const LayerMemory* PlannedMemory::Find(std::string_view name) const {
  const auto it = std::find_if(layers_.begin(), layers_.end(),
                               [&](const LayerMemory& layer) { return layer.name == name; });
  return it == layers_.end() ? nullptr : &*it;
}

KvGroupConfig PlannedMemory::KvGroupOf(const LayerMemory& layer) const {
  return configs_[static_cast<size_t>(&layer - layers_.data())];
}

}  // namespace kvblocks
