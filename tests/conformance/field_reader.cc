#include "tests/conformance/field_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::conformance {

constexpr int64_t kMostTokensInList = int64_t{1} << 24;
constexpr int64_t kLastTokenPosition = int64_t{1} << 32;

bool FieldReader::HasValue(const char* name) const {
  Element value;
  return !Field(name).get(value) && !value.is_null();
}

int64_t FieldReader::Int(const char* name, int64_t low, int64_t high) {
  int64_t value = 0;
  if (Field(name).get_int64().get(value) || value < low || value > high) {
    Fail(name, "a number in range");
    return low;
  }
  return value;
}

std::optional<int64_t> FieldReader::OptionalInt(const char* name) {
  if (!HasValue(name)) return std::nullopt;
  return Int(name);
}

bool FieldReader::Bool(const char* name) {
  bool value = false;
  if (Field(name).get_bool().get(value)) Fail(name, "true or false");
  return value;
}

std::string FieldReader::String(const char* name) {
  std::string_view value;
  if (Field(name).get_string().get(value)) Fail(name, "a string");
  return std::string(value);
}

double FieldReader::Double(const char* name) {
  double value = 0;
  if (Field(name).get_double().get(value)) Fail(name, "a number");
  return value;
}

std::vector<FieldReader::Element> FieldReader::Array(const char* name) {
  Element value;
  if (!Field(name).get(value)) return ItemsOf(value, name);
  Fail(name, "a list");
  return {};
}

std::optional<simdjson::dom::object> FieldReader::Object(const char* name) {
  Element value;
  if (!Field(name).get(value)) return ObjectOf(value, name);
  Fail(name, "an object");
  return std::nullopt;
}

std::vector<FieldReader::Element> FieldReader::ItemsOf(Element value, const char* name) {
  simdjson::dom::array list;
  if (!value.get_array().get(list)) return std::vector<Element>(list.begin(), list.end());
  Fail(name, "a list");
  return {};
}

std::optional<simdjson::dom::object> FieldReader::ObjectOf(Element value, const char* name) {
  simdjson::dom::object fields;
  if (!value.get_object().get(fields)) return fields;
  Fail(name, "an object");
  return std::nullopt;
}

std::vector<int64_t> FieldReader::IntsOf(const std::vector<Element>& list, const char* name) {
  std::vector<int64_t> values;
  for (Element item : list) {
    int64_t value = 0;
    if (item.get_int64().get(value)) Fail(name, "a list of numbers");
    values.push_back(value);
  }
  return values;
}

std::vector<BlockId> FieldReader::BlockIds(const std::vector<Element>& list, const char* name) {
  std::vector<BlockId> ids;
  for (int64_t value : IntsOf(list, name)) {
    if (value < 0 || value > std::numeric_limits<BlockId>::max()) Fail(name, "block ids");
    ids.push_back(static_cast<BlockId>(value));
  }
  return ids;
}

BlockLists FieldReader::ListsOf(const std::vector<Element>& list, const char* name) {
  BlockLists lists;
  for (Element item : list) lists.push_back(BlockIds(ItemsOf(item, name), name));
  return lists;
}

std::vector<TokenSegment> FieldReader::Segments(const std::vector<Element>& list,
                                                const char* name) {
  std::vector<TokenSegment> segments;
  int64_t num_tokens = 0;
  for (Element item : list) {
    const std::vector<int64_t> parts = IntsOf(ItemsOf(item, name), name);
    if (parts.size() != 3 || parts[0] < 0 || parts[1] < 0 || parts[1] > kLastTokenPosition ||
        parts[2] < 0 || parts[2] > kMostTokensInList - num_tokens) {
      Fail(name, "segments [document, start, length]");
      break;
    }
    num_tokens += parts[2];
    segments.push_back({.document = parts[0], .start = parts[1], .count = parts[2]});
  }
  return segments;
}

void FieldReader::RefuseOthers() {
  for (const simdjson::dom::key_value_pair field : fields_) {
    if (asked_.contains(field.key)) continue;
    Adopt(absl::InvalidArgumentError(
        absl::StrCat("field \"", std::string(field.key), "\" is unknown here")));
  }
}

void FieldReader::Fail(const char* name, const char* expected) {
  Adopt(absl::InvalidArgumentError(absl::StrCat("field \"", name, "\": expected ", expected)));
}

absl::StatusOr<simdjson::dom::object> ParseObject(simdjson::dom::parser& parser,
                                                  const std::string& line) {
  simdjson::dom::object fields;
  if (const auto error = parser.parse(line).get_object().get(fields)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a JSON object: ", simdjson::error_message(error)));
  }
  return fields;
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::string text;
  std::array<char, 1 << 16> buffer;
  int count = 0;
  // Far beyond any recording; a small file can unpack to a thousand times its size.
  constexpr size_t kMostBytes = size_t{1} << 30;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) {
    if (text.size() > kMostBytes) {
      gzclose(file);
      return absl::ResourceExhaustedError(absl::StrCat(path, ": more than ", kMostBytes, " bytes"));
    }
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  int error = Z_OK;
  const std::string message = gzerror(file, &error);
  gzclose(file);
  if (count < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    return absl::DataLossError(
        absl::StrCat(path, ": damaged or cut off after ", text.size(), " bytes: ", message));
  }
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> CompressedFilesIn(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".gz") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvblocks::conformance
