#include "attention/verify/paged_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

constexpr uint32_t kPoisonBits = 0x7fc0dead;  // a quiet NaN
constexpr int64_t kFloat = sizeof(float);

void Poison(std::byte* data, int64_t bytes) {
  auto* const words = reinterpret_cast<uint32_t*>(data);
  std::fill_n(words, bytes / static_cast<int64_t>(sizeof(uint32_t)), kPoisonBits);
}

bool IsAllPoison(const std::byte* data, int64_t floats) {
  const auto* const words = reinterpret_cast<const uint32_t*>(data);
  return std::all_of(words, words + floats, [](uint32_t word) { return word == kPoisonBits; });
}

// Planes as a plan would describe them.
absl::StatusOr<VerifiedMemory> Planes(int64_t num_blocks,
                                      const std::vector<PagedMemory::Layer>& layers,
                                      std::byte** data, int64_t* bytes) {
  VerifiedMemory memory;
  int64_t page_floats = 1, num_planes = 0, plane = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    plane = i > 0 && layers[i].group == layers[i - 1].group ? plane + 1 : 0;
    num_planes = std::max(num_planes, plane + 1);
    page_floats = std::max(page_floats, layers[i].block_rows * layers[i].shape.floats());
    memory.layers.push_back({.tensor = static_cast<size_t>(plane)});
  }
  int64_t plane_bytes = 0;
  const bool fits = !__builtin_mul_overflow(num_blocks * kFloat, page_floats, &plane_bytes) &&
                    !__builtin_mul_overflow(plane_bytes, num_planes, bytes);
  *data = fits ? static_cast<std::byte*>(
                     std::calloc(static_cast<size_t>(std::max<int64_t>(*bytes, 1)), 1))
               : nullptr;
  if (*data == nullptr) {
    return ResourceExhausted("num_blocks: ", num_blocks, " blocks of ", page_floats, " floats in ",
                             num_planes, " planes do not fit the memory; use a smaller pool");
  }
  for (int64_t i = 0; i < num_planes; ++i) {
    memory.tensors.push_back(
        TensorView::Contiguous(*data + i * plane_bytes, DType::kU8, {plane_bytes}));
  }
  for (VerifiedMemory::Layer& layer : memory.layers) {
    layer.place.page_bytes = layer.place.block_stride = page_floats * kFloat;
  }
  return memory;
}

}  // namespace

absl::StatusOr<PagedMemory> PagedMemory::Create(int64_t num_blocks,
                                                const std::vector<Layer>& layers,
                                                const VerifiedMemory& given) {
  PagedMemory memory;
  memory.num_blocks_ = num_blocks;
  memory.history_.resize(static_cast<size_t>(num_blocks));
  memory.group_of_block_.resize(static_cast<size_t>(num_blocks), -1);
  if (!given.layers.empty()) {
    for (const TensorView& tensor : given.tensors) {
      KVBLOCKS_ASSIGN_OR_RETURN(const auto bytes, tensor.SpanBytes());
      memory.allocations_.push_back({tensor.data, static_cast<size_t>(bytes)});
    }
    KVBLOCKS_RETURN_IF_ERROR(memory.Place(layers, given));
    return memory;
  }
  std::byte* data = nullptr;
  int64_t bytes = 0;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto planes, Planes(num_blocks, layers, &data, &bytes));
  memory.own_.reset(data);
  memory.allocations_.push_back({data, static_cast<size_t>(bytes)});
  KVBLOCKS_RETURN_IF_ERROR(memory.Place(layers, planes));
  return memory;
}

absl::Status PagedMemory::Place(const std::vector<Layer>& layers, const VerifiedMemory& memory) {
  if (memory.layers.size() != layers.size()) {
    return InvalidArgument("memory.layers: got ", memory.layers.size(), ", expected ",
                           layers.size(), ", one for each layer of the groups");
  }
  for (const TensorView& tensor : memory.tensors) tensors_.push_back({.data = tensor.data});
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto refuse = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat("memory.layers[", i, "]: ",
                                                      std::string(status.message())));
    };
    Placed placed = {.layer = layers[i],
                     .tensor = memory.layers[i].tensor,
                     .place = memory.layers[i].place};
    if (placed.tensor >= tensors_.size()) {
      return refuse(InvalidArgument("tensor ", placed.tensor, " of ", tensors_.size()));
    }
    Tensor& tensor = tensors_[placed.tensor];
    placed.data = tensor.data;
    const bool chunked = placed.place.ids_per_chunk > 0;
    if (i > 0 && chunked != in_chunks_) {
      return refuse(InvalidArgument("some layers lie in chunks and others do not"));
    }
    in_chunks_ = chunked;
    if (!chunked && tensor.block_stride != 0 && tensor.block_stride != placed.place.block_stride) {
      return refuse(InvalidArgument("blocks have a stride of ", placed.place.block_stride,
                                    " bytes, and ", tensor.block_stride,
                                    " for another layer of the tensor"));
    }
    tensor.block_stride = placed.place.block_stride;

    const RowShape& shape = placed.layer.shape;
    placed.key_floats = shape.is_mla ? shape.key_size : shape.num_kv_heads * shape.key_size;
    placed.value_floats = shape.floats() - placed.key_floats;
    const int64_t needed = placed.layer.block_rows * shape.floats() * kFloat;
    if (placed.place.page_bytes < needed) {
      return refuse(InvalidArgument("pages have ", placed.place.page_bytes, " bytes; ",
                                    placed.layer.block_rows, " rows need ", needed));
    }
    const auto pages =
        PlacePages(placed.place, num_blocks_, /*split=*/1, memory.tensors[placed.tensor]);
    if (!pages.ok()) return refuse(pages.status());
    placed.map = pages->blocks;
    absl::StatusOr<KvCacheView> view;
    if (shape.is_mla || shape.value_size == 0) {
      const auto rows = PlacedTensor(*pages, 0, DType::kF32,
                                     {placed.layer.block_rows, shape.floats()});
      if (!rows.ok()) return refuse(rows.status());
      view = MakeMlaLatentView(*rows, shape.is_mla ? shape.value_size : shape.floats());
      if (view.ok()) view->overlapping_blocks = pages->overlapping;
    } else {
      view = PlacedKvCache(*pages, {.layout = KvLayout::kNhd,
                                    .dtype = DType::kF32,
                                    .block_size = placed.layer.block_rows,
                                    .num_kv_heads = shape.num_kv_heads,
                                    .key_dim = shape.key_size,
                                    .value_dim = shape.value_size});
    }
    if (!view.ok()) return refuse(view.status());
    placed.view = *view;
    layers_.push_back(std::move(placed));
  }
  return absl::OkStatus();
}

std::byte* PagedMemory::Keys(const Placed& placed, int32_t block, int64_t offset) const {
  return placed.data + placed.place.PageOffset(block) + offset * placed.key_floats * kFloat;
}

std::byte* PagedMemory::Values(const Placed& placed, int32_t block, int64_t offset) const {
  return placed.data + placed.place.PageOffset(block) +
         (placed.layer.block_rows * placed.key_floats + offset * placed.value_floats) * kFloat;
}

void PagedMemory::Write(size_t layer, int32_t block, int64_t offset, const float* row) {
  const Placed& placed = layers_[layer];
  std::memcpy(Keys(placed, block, offset), row, static_cast<size_t>(placed.key_floats * kFloat));
  std::memcpy(Values(placed, block, offset), row + placed.key_floats,
              static_cast<size_t>(placed.value_floats * kFloat));
}

bool PagedMemory::Equals(size_t layer, int32_t block, int64_t offset, const float* row) const {
  const Placed& placed = layers_[layer];
  return std::memcmp(Keys(placed, block, offset), row,
                     static_cast<size_t>(placed.key_floats * kFloat)) == 0 &&
         std::memcmp(Values(placed, block, offset), row + placed.key_floats,
                     static_cast<size_t>(placed.value_floats * kFloat)) == 0;
}

void PagedMemory::PoisonRow(size_t layer, int32_t block, int64_t offset) {
  const Placed& placed = layers_[layer];
  Poison(Keys(placed, block, offset), placed.key_floats * kFloat);
  Poison(Values(placed, block, offset), placed.value_floats * kFloat);
}

bool PagedMemory::IsPoisoned(size_t layer, int32_t block, int64_t offset) const {
  const Placed& placed = layers_[layer];
  return IsAllPoison(Keys(placed, block, offset), placed.key_floats) &&
         IsAllPoison(Values(placed, block, offset), placed.value_floats);
}

void PagedMemory::ForEachPiece(
    int32_t block, int32_t group,
    absl::FunctionRef<void(std::byte* data, int64_t bytes)> visit) const {
  if (!in_chunks_) {
    for (const Tensor& tensor : tensors_) {
      visit(tensor.data + block * tensor.block_stride, tensor.block_stride);
    }
    return;
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Placed& placed = layers_[i];
    const bool is_first = i == 0 || layers_[i - 1].layer.group != placed.layer.group;
    const bool is_own = block == 0 || static_cast<int32_t>(placed.layer.group) == group;
    if (!is_first || !is_own || !placed.map.IsPage(block)) continue;
    visit(placed.data + placed.place.PageOffset(block) - placed.place.offset,
          placed.place.block_stride);
  }
}

void PagedMemory::Copy(int32_t source, int32_t target) {
  history_[static_cast<size_t>(target)] = {};
  const int32_t group = group_of_block_[static_cast<size_t>(source)];
  group_of_block_[static_cast<size_t>(target)] = group;
  std::vector<std::byte*> from;
  ForEachPiece(source, group, [&](std::byte* data, int64_t) { from.push_back(data); });
  size_t i = 0;
  ForEachPiece(target, group, [&](std::byte* data, int64_t bytes) {
    if (i < from.size()) std::memmove(data, from[i++], static_cast<size_t>(bytes));
  });
}

void PagedMemory::Record(int32_t block, const BlockHistory& history, bool poison) {
  history_[static_cast<size_t>(block)] = history;
  if (!poison) return;
  ++num_poisoned_;
  ForEachPiece(block, group_of_block_[static_cast<size_t>(block)], Poison);
}

}  // namespace kvblocks::attention
