#include "examples/engine/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "simdjson.h"

namespace kvblocks::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace dom = simdjson::dom;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMostHeaderBytes = int64_t{64} << 20;
constexpr size_t kMostDepth = 8;
constexpr int64_t kMostExtents = 8;

template <typename... Text>
absl::Status Bad(const std::string& file, const std::string& tensor, const Text&... text) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": ", tensor, tensor.empty() ? "" : ": ", text...));
}

// 0: a type that is not read.
int64_t BytesOf(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  if (dtype == "U8" || dtype == "I8") return 1;
  if (dtype == "F64" || dtype == "I64") return 8;
  return 0;
}

std::string Text(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t high = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | high << 23 | mantissa << 13);
}

// A list of whole numbers from 0 on; nothing if it is anything else.
std::optional<std::vector<int64_t>> Numbers(const dom::object& object, std::string_view field,
                                            size_t most) {
  dom::array array;
  if (object.at_key(field).get(array) || array.size() > most) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const dom::element element : array) {
    int64_t number;
    if (element.get(number) || number < 0) return std::nullopt;
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

absl::StatusOr<Safetensors> Safetensors::Open(const std::vector<std::string>& paths) {
  Safetensors all;
  for (const std::string& path : paths) KVBLOCKS_RETURN_IF_ERROR(all.AddFile(path));
  return all;
}

absl::StatusOr<Safetensors> Safetensors::OpenModel(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) {
      paths.push_back(entry.path().string());
    }
  }
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat(
        folder, ": no model*.safetensors", error ? absl::StrCat(" (", error.message(), ")") : "",
        "; give the folder of a checkpoint with its weights in that format"));
  }
  std::sort(paths.begin(), paths.end());
  return Open(paths);
}

absl::Status Safetensors::AddFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const int64_t size = in.tellg();
  uint64_t length = 0;
  in.seekg(0);
  if (size < kLengthBytes || !in.read(reinterpret_cast<char*>(&length), kLengthBytes)) {
    return Bad(path, "", "got ", size, " bytes, expected at least the header's length, 8");
  }
  const int64_t most = std::min(size - kLengthBytes, kMostHeaderBytes);
  if (length > static_cast<uint64_t>(most)) {
    return Bad(path, "", "the header has ", length, " bytes by its length, expected at most ",
               most);
  }
  std::string header(length, '\0');
  if (!in.read(header.data(), static_cast<std::streamsize>(length))) {
    return Bad(path, "", "the header's ", length, " bytes cannot be read");
  }
  dom::parser parser;
  dom::object object;
  simdjson::error_code error = parser.allocate(std::max<size_t>(header.size(), 1), kMostDepth);
  if (!error) error = parser.parse(header).get(object);
  if (error) return Bad(path, "", "the header is no JSON object: ", simdjson::error_message(error));

  const int64_t data = kLengthBytes + static_cast<int64_t>(length);
  for (const dom::key_value_pair field : object) {
    if (field.key == "__metadata__") continue;
    const std::string name(field.key);
    dom::object entry;
    std::string_view word;
    if (field.value.get(entry) || entry.at_key("dtype").get(word)) {
      return Bad(path, name, "expected an object with dtype, shape and data_offsets");
    }
    const auto shape = Numbers(entry, "shape", kMostExtents);
    const auto place = Numbers(entry, "data_offsets", 2);
    if (!shape || !place || place->size() != 2) {
      return Bad(path, name, "expected a shape of at most ", kMostExtents,
                 " whole numbers and two data_offsets");
    }
    const int64_t begin = (*place)[0], end = (*place)[1];
    if (begin > end || end > size - data) {
      return Bad(path, name, "data_offsets are ", begin, " and ", end, ", of ", size - data,
                 " bytes that the file has behind its header");
    }
    const std::string dtype(word);
    const int64_t element_bytes = BytesOf(dtype);
    int64_t bytes = element_bytes;
    for (const int64_t extent : *shape) {
      if (__builtin_mul_overflow(bytes, extent, &bytes)) {
        return Bad(path, name, "shape ", Text(*shape), " is too large");
      }
    }
    if (element_bytes > 0 && bytes != end - begin) {
      return Bad(path, name, "shape ", Text(*shape), " of ", dtype, " takes ", bytes,
                 " bytes, data_offsets give it ", end - begin);
    }
    const bool is_new = tensors_
                            .try_emplace(name, Tensor{.file = paths_.size(),
                                                      .dtype = dtype,
                                                      .shape = *shape,
                                                      .begin = data + begin,
                                                      .bytes = end - begin})
                            .second;
    if (!is_new) return Bad(path, name, "the name is there twice; expected each once");
  }
  paths_.push_back(path);
  return absl::OkStatus();
}

absl::StatusOr<const Safetensors::Tensor*> Safetensors::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return &it->second;
  return absl::NotFoundError(
      absl::StrCat(absl::StrJoin(paths_, ", "), ": no tensor ", name, " among ", tensors_.size()));
}

std::vector<std::string> Safetensors::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

absl::StatusOr<std::vector<int64_t>> Safetensors::ShapeOf(const std::string& name) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const Tensor* tensor, Find(name));
  return tensor->shape;
}

// The stored bytes. `dtypes`: those that the caller reads, with spaces between them.
absl::StatusOr<std::string> Safetensors::Read(const std::string& name,
                                              const std::vector<int64_t>& shape,
                                              const std::string& dtypes) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const Tensor* tensor, Find(name));
  const std::string& path = paths_[tensor->file];
  if (tensor->shape != shape) {
    return Bad(path, name, "shape is ", Text(tensor->shape), ", expected ", Text(shape));
  }
  if (!absl::StrContains(absl::StrCat(" ", dtypes, " "), absl::StrCat(" ", tensor->dtype, " "))) {
    return Bad(path, name, "dtype is ", tensor->dtype, ", expected one of ", dtypes);
  }
  std::string bytes(static_cast<size_t>(tensor->bytes), '\0');
  std::ifstream in(path, std::ios::binary);
  in.seekg(tensor->begin);
  if (!in.read(bytes.data(), tensor->bytes) && tensor->bytes > 0) {
    return absl::DataLossError(absl::StrCat(path, ": ", name, ": its ", tensor->bytes, " bytes at ",
                                            tensor->begin, " cannot be read"));
  }
  return bytes;
}

absl::StatusOr<std::vector<float>> Safetensors::Floats(const std::string& name,
                                                       const std::vector<int64_t>& shape) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const std::string bytes, Read(name, shape, "F32 BF16 F16"));
  const std::string& dtype = tensors_.find(name)->second.dtype;
  if (dtype == "F32") {
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> values(bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    values[i] = dtype == "F16" ? HalfToFloat(half) : std::bit_cast<float>(uint32_t{half} << 16);
  }
  return values;
}

absl::StatusOr<std::vector<int32_t>> Safetensors::Ints(const std::string& name,
                                                       const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  const bool is_long = found != tensors_.end() && found->second.dtype == "I64";
  KVBLOCKS_ASSIGN_OR_RETURN(const std::string bytes, Read(name, shape, is_long ? "I64" : "I32"));
  std::vector<int32_t> values(bytes.size() / (is_long ? 8 : 4));
  for (size_t i = 0; i < values.size() && is_long; ++i) {
    int64_t value;
    std::memcpy(&value, bytes.data() + 8 * i, 8);
    values[i] = static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
  }
  if (!is_long) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

absl::StatusOr<std::vector<uint8_t>> Safetensors::Bytes(const std::string& name,
                                                        const std::vector<int64_t>& shape) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const std::string bytes, Read(name, shape, "U8"));
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

}  // namespace kvblocks::engine
