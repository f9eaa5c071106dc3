#include "kvblocks/kv_cache_spec.h"

#include <array>
#include <string>
#include <utility>

#include "checks/field_error.h"

namespace kvblocks {
namespace {

template <typename Enum, size_t N>
using NameTable = std::array<std::pair<std::string_view, Enum>, N>;

// The first name of a value is the one that is printed.
constexpr NameTable<DataType, 12> kDataTypeNames = {{
    {"bf16", DataType::kBFloat16},
    {"fp16", DataType::kFloat16},
    {"fp32", DataType::kFloat32},
    {"uint8", DataType::kUint8},
    {"int8", DataType::kInt8},
    {"fp8_e4m3", DataType::kFp8E4m3},
    {"fp8_e5m2", DataType::kFp8E5m2},
    {"bfloat16", DataType::kBFloat16},
    {"float16", DataType::kFloat16},
    {"half", DataType::kFloat16},
    {"float32", DataType::kFloat32},
    {"float", DataType::kFloat32},
}};

constexpr NameTable<QuantMode, 8> kQuantModeNames = {{
    {"none", QuantMode::kNone},
    {"fp8_per_tensor", QuantMode::kFp8PerTensor},
    {"int8_per_token_head", QuantMode::kInt8PerTokenHead},
    {"fp8_per_token_head", QuantMode::kFp8PerTokenHead},
    {"int4_per_token_head", QuantMode::kInt4PerTokenHead},
    {"nvfp4", QuantMode::kNvfp4},
    {"fp8_ds_mla", QuantMode::kFp8DsMla},
    {"nvfp4_ds_mla", QuantMode::kNvfp4DsMla},
}};

template <typename Enum, size_t N>
std::string_view NameIn(const NameTable<Enum, N>& table, Enum value) {
  for (const auto& [name, entry] : table) {
    if (entry == value) return name;
  }
  return "unknown";
}

template <typename Enum, size_t N>
absl::StatusOr<Enum> ValueIn(const NameTable<Enum, N>& table, std::string_view field,
                             std::string_view text) {
  std::string names;
  for (const auto& [name, entry] : table) {
    if (name == text) return entry;
    names.append(names.empty() ? "one of " : ", ").append(name);
  }
  return FieldError(field, '"' + std::string(text) + '"', names);
}

DataType StorageOfMode(QuantMode mode, DataType unquantised) {
  switch (mode) {
    case QuantMode::kNone:
      return unquantised;
    case QuantMode::kFp8PerTensor:
    case QuantMode::kFp8PerTokenHead:
      return DataType::kFp8E4m3;
    case QuantMode::kInt8PerTokenHead:
      return DataType::kInt8;
    case QuantMode::kInt4PerTokenHead:
    case QuantMode::kNvfp4:
    case QuantMode::kFp8DsMla:
    case QuantMode::kNvfp4DsMla:
      return DataType::kUint8;
  }
  return unquantised;
}

}  // namespace

int64_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 4;
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return 2;
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kFp8E4m3:
    case DataType::kFp8E5m2:
      return 1;
  }
  return 1;
}

bool HasPerTokenHeadScales(QuantMode mode) {
  return mode == QuantMode::kInt8PerTokenHead || mode == QuantMode::kFp8PerTokenHead ||
         mode == QuantMode::kInt4PerTokenHead;
}

std::string_view DataTypeName(DataType type) { return NameIn(kDataTypeNames, type); }
std::string_view QuantModeName(QuantMode mode) { return NameIn(kQuantModeNames, mode); }

absl::StatusOr<DataType> ParseDataType(std::string_view name) {
  return ValueIn(kDataTypeNames, "dtype", name);
}
absl::StatusOr<QuantMode> ParseQuantMode(std::string_view name) {
  return ValueIn(kQuantModeNames, "quant_mode", name);
}

QuantMode QuantModeOfOption(std::string_view option) {
  for (const auto& [name, mode] : kQuantModeNames) {
    if (name == option && mode != QuantMode::kFp8PerTensor) return mode;
  }
  return option.substr(0, 3) == "fp8" ? QuantMode::kFp8PerTensor : QuantMode::kNone;
}

absl::StatusOr<CacheDtype> ParseCacheDtype(std::string_view option, DataType model_dtype) {
  if (option == "auto") return CacheDtype{model_dtype, QuantMode::kNone};
  if (option.substr(0, 11) == "turboquant_") {
    return absl::UnimplementedError("cache_dtype: got \"" + std::string(option) +
                                    "\", TurboQuant caches are not supported");
  }
  const QuantMode mode = QuantModeOfOption(option);
  if (mode != QuantMode::kNone) {
    const bool e5m2 = option == "fp8_e5m2";
    return CacheDtype{e5m2 ? DataType::kFp8E5m2 : StorageOfMode(mode, model_dtype), mode};
  }
  if (const auto plain = ParseDataType(option); plain.ok()) {
    return CacheDtype{*plain, QuantMode::kNone};
  }
  return FieldError("cache_dtype", '"' + std::string(option) + '"',
                    "auto, a data type (bf16, fp16, fp32, uint8, int8), fp8, fp8_e4m3, fp8_e5m2, "
                    "int8_per_token_head, fp8_per_token_head, int4_per_token_head, nvfp4, "
                    "fp8_ds_mla or nvfp4_ds_mla");
}

}  // namespace kvblocks
