#include "kvblocks/plan.h"

#include <array>
#include <string>

#include "checks/field_error.h"
#include "kvblocks/kv_cache_spec.h"
#include "specs/planning/memory_map.h"

namespace kvblocks {
namespace {

enum class Dim : char { kEnd, kKv, kBlock, kToken, kHead, kValue, kBothValues, kPage };

struct FamilyEntry {
  std::string_view name;
  std::array<Dim, 6> dims;  // kEnd ends them
  int64_t block_multiple = 1;
  bool inline_scales = false;
  bool nvfp4 = false;
  bool own_value_size = false;
  bool latent = false;
};

constexpr FamilyEntry kFamilies[] = {
    {.name = "paged_v0", .dims = {Dim::kKv, Dim::kBlock, Dim::kPage}},
    {.name = "flash_kv_first",
     .dims = {Dim::kKv, Dim::kBlock, Dim::kToken, Dim::kHead, Dim::kValue},
     .block_multiple = 16},
    {.name = "flash",
     .dims = {Dim::kBlock, Dim::kKv, Dim::kToken, Dim::kHead, Dim::kValue},
     .block_multiple = 16},
    {.name = "triton",
     .dims = {Dim::kBlock, Dim::kKv, Dim::kToken, Dim::kHead, Dim::kValue},
     .block_multiple = 16,
     .inline_scales = true},
    {.name = "flashinfer",
     .dims = {Dim::kBlock, Dim::kKv, Dim::kToken, Dim::kHead, Dim::kValue},
     .block_multiple = 16,
     .nvfp4 = true},
    {.name = "flash_one_row",
     .dims = {Dim::kBlock, Dim::kToken, Dim::kHead, Dim::kBothValues},
     .block_multiple = 16,
     .own_value_size = true},
    {.name = "cpu", .dims = {Dim::kKv, Dim::kBlock, Dim::kHead, Dim::kToken, Dim::kValue}},
    {.name = "latent", .dims = {Dim::kBlock, Dim::kToken, Dim::kValue}, .latent = true},
};

const FamilyEntry& EntryOf(BackendFamily family) { return kFamilies[static_cast<size_t>(family)]; }

absl::Status CheckStored(const FamilyEntry& family, const KvCacheSpec& spec) {
  const std::string name(family.name);
  if (spec.kind() == KvCacheSpecKind::kMamba || spec.has_one_vector_per_row() != family.latent) {
    return FieldError("kind", KindName(spec.kind()), "a kind that " + name + " stores");
  }
  if (spec.block_size() % family.block_multiple != 0) {
    return FieldError("block_size", std::to_string(spec.block_size()),
                      "a multiple of " + std::to_string(family.block_multiple) + " for " + name);
  }
  if (family.latent) return absl::OkStatus();
  const QuantMode mode = spec.quant_mode();
  if ((HasPerTokenHeadScales(mode) && !family.inline_scales) ||
      (mode == QuantMode::kNvfp4 && !family.nvfp4)) {
    return FieldError("quant_mode", QuantModeName(mode), "a mode that " + name + " stores");
  }
  if (spec.head_size() != spec.head_size_v() && !family.own_value_size) {
    return FieldError("head_size_v", std::to_string(spec.head_size_v()),
                      "head_size " + std::to_string(spec.head_size()) + " for " + name);
  }
  return absl::OkStatus();
}

// Elements that one stored vector of `values` takes, its inline scale included.
int64_t VectorElements(const KvCacheSpec& spec, int64_t values) {
  const int64_t element = ElementBytes(spec.dtype());
  int64_t elements = values;
  if (spec.quant_mode() == QuantMode::kInt4PerTokenHead) elements = values / 2;
  if (spec.quant_mode() == QuantMode::kNvfp4) elements = values / 2 + values / 16;
  return elements + (HasPerTokenHeadScales(spec.quant_mode()) ? 4 / element : 0);
}

struct NamedSize {
  std::string_view name;
  int64_t size;
};

NamedSize SizeOf(Dim dim, const KvCacheSpec& spec, int64_t num_blocks) {
  const int64_t key = VectorElements(spec, spec.head_size());
  switch (dim) {
    case Dim::kKv:
      return {"kv", 2};
    case Dim::kBlock:
      return {"block", num_blocks};
    case Dim::kToken:
      return {"token", spec.storage_block_size()};
    case Dim::kHead:
      return {"head", spec.num_kv_heads()};
    case Dim::kValue:
      if (!spec.has_one_vector_per_row()) return {"value", key};
      return {"value", RowsOf(spec).row_bytes / ElementBytes(spec.dtype())};
    case Dim::kBothValues:
      return {"value", key + VectorElements(spec, spec.head_size_v())};
    case Dim::kPage:
      return {"page", spec.block_size() * spec.num_kv_heads() * key};
    case Dim::kEnd:
      break;
  }
  return {"", 1};
}

}  // namespace

std::string_view BackendName(BackendFamily family) { return EntryOf(family).name; }

absl::StatusOr<BackendShape> ShapeOf(BackendFamily family, const KvCacheSpec& spec,
                                     int64_t num_blocks) {
  const FamilyEntry& entry = EntryOf(family);
  absl::Status status = CheckPositive("num_blocks", num_blocks);
  status.Update(CheckStored(entry, spec));
  if (!status.ok()) return status;
  BackendShape shape = {.element_bytes = ElementBytes(spec.dtype()),
                        .page_stride_bytes = spec.page_bytes()};
  for (const Dim dim : entry.dims) {
    if (dim == Dim::kEnd) break;
    const NamedSize sized = SizeOf(dim, spec, num_blocks);
    if (dim == Dim::kBlock) shape.block_dim = static_cast<int>(shape.dims.size());
    shape.names.push_back(sized.name);
    shape.dims.push_back(sized.size);
  }
  return shape;
}

std::vector<int> StrideOrder(BackendFamily family, HeadOrder order) {
  switch (family) {
    case BackendFamily::kFlashKvFirst:
    case BackendFamily::kFlash:
    case BackendFamily::kTriton:
    case BackendFamily::kFlashInfer:
      if (order == HeadOrder::kHnd) return {0, 1, 3, 2, 4};
      return {0, 1, 2, 3, 4};
    case BackendFamily::kFlashOneRow:
      if (order == HeadOrder::kHnd) return {0, 2, 1, 3};
      return {0, 1, 2, 3};
    case BackendFamily::kCpu:  // its shape has heads before tokens already
      if (order == HeadOrder::kHnd) return {0, 1, 2, 3, 4};
      return {};
    case BackendFamily::kPagedV0:
    case BackendFamily::kLatent:
      return {0, 1, 2};
  }
  return {};
}

std::vector<std::string_view> CrossLayerOrder(BackendFamily family, HeadOrder order) {
  const bool flash_infer = family == BackendFamily::kFlashInfer;
  if (family != BackendFamily::kFlash && family != BackendFamily::kTriton && !flash_infer) {
    return {};
  }
  if (order == HeadOrder::kNhd) return {"block", "layer", "kv", "token", "head", "value"};
  if (flash_infer) return {"block", "kv", "head", "layer", "token", "value"};
  return {"block", "head", "layer", "kv", "token", "value"};
}

absl::StatusOr<PagedV0Views> ViewsOfPagedV0(const KvCacheSpec& spec) {
  const absl::StatusOr<BackendShape> shape = ShapeOf(BackendFamily::kPagedV0, spec, 1);
  if (!shape.ok()) return shape.status();
  PagedV0Views views = {.x = 16 / shape->element_bytes};
  if (spec.head_size() % views.x != 0) {
    return FieldError("head_size", std::to_string(spec.head_size()),
                      "a multiple of " + std::to_string(views.x) + " for paged_v0");
  }
  views.key = {spec.num_kv_heads(), spec.head_size() / views.x, spec.block_size(), views.x};
  views.value = {spec.num_kv_heads(), spec.head_size(), spec.block_size()};
  return views;
}

}  // namespace kvblocks
