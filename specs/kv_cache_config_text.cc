#include "specs/kv_cache_config_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "specs/field_error.h"
#include "specs/kv_cache_config.pb.h"
#include "specs/kv_cache_config_proto.h"

namespace kvblocks {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::TextFormat;

// A place in the text as protobuf counts it: both numbers from 0, a tab leading to the next
// multiple of 8.
struct Place {
  int line = 0;
  int column = 0;
};

std::string_view LineAt(std::string_view text, int line) {
  for (; line > 0; --line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

// The byte at which protobuf's column begins.
size_t ByteInLine(std::string_view line, int column) {
  size_t byte = 0;
  for (int at = 0; byte < line.size() && at < column; ++byte) {
    at = line[byte] == '\t' ? (at / 8 + 1) * 8 : at + 1;
  }
  return byte;
}

absl::Status ErrorAt(std::string_view text, std::string_view file_name, Place place,
                     std::string_view message) {
  const size_t byte = ByteInLine(LineAt(text, place.line), place.column);
  std::string full(file_name);
  full.append(":").append(std::to_string(place.line + 1));
  full.append(":").append(std::to_string(byte + 1)).append(": error: ").append(message);
  return absl::InvalidArgumentError(full);
}

// What stands between the first `before` and the last `after` that follows it.
std::optional<std::string_view> Between(std::string_view text, std::string_view before,
                                        std::string_view after) {
  const size_t start = text.find(before);
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start + before.size());
  const size_t end = text.rfind(after);
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

// The field whose value stands at `place`: the word before the colon.
std::string_view FieldBefore(std::string_view text, Place place) {
  const std::string_view line = LineAt(text, place.line);
  const std::string_view head = line.substr(0, ByteInLine(line, place.column));
  const size_t colon = head.find_last_not_of(" \t-");
  if (colon == std::string_view::npos || head[colon] != ':') return "";
  const size_t end = head.substr(0, colon).find_last_not_of(" \t");
  if (end == std::string_view::npos) return "";
  const size_t before = head.substr(0, end).find_last_of(" \t{}<>;,\"'");
  const size_t start = before == std::string_view::npos ? 0 : before + 1;
  return head.substr(start, end + 1 - start);
}

std::string FieldNames(const Descriptor& message) {
  std::string names;
  for (int i = 0; i < message.field_count(); ++i) {
    names.append(names.empty() ? "one of " : ", ").append(message.field(i)->name());
  }
  return names;
}

// Puts the parser's commonest complaints into the form of our own; leaves others as they are.
std::string Reworded(std::string_view text, Place place, const std::string& message) {
  const auto type = Between(message, "Message type \"", "\" has no field named");
  const auto name = Between(message, "has no field named \"", "\"");
  if (type.has_value() && name.has_value()) {
    const Descriptor* descriptor =
        config::v1::KvCacheConfig::descriptor()->file()->pool()->FindMessageTypeByName(
            std::string(*type));
    if (descriptor != nullptr) {
      const bool kind = descriptor == config::v1::KvCacheSpec::descriptor();
      const absl::Status status =
          kind ? FieldError("spec", "unsupported kind " + std::string(*name),
                            FieldNames(*descriptor))
               : FieldError(std::string(*name),
                            "a field that " + descriptor->name() + " does not have",
                            FieldNames(*descriptor));
      return std::string(status.message());
    }
  }
  const std::string_view field = FieldBefore(text, place);
  if (field.empty()) return message;
  if (const auto got = Between(message, "Integer out of range (", ")")) {
    return std::string(FieldError(field, *got, "a 64-bit integer").message());
  }
  if (message.rfind("Expected integer, got: ", 0) == 0) {
    return std::string(FieldError(field, message.substr(23), "an integer").message());
  }
  return std::string(field) + ": " + message;
}

// Keeps the first error.
class FirstError : public ::google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (error_.has_value()) return;
    error_ = message;
    // Errors without a place, such as a wrong end of input, have line -1.
    place_ = {std::max(line, 0), std::max(column, 0)};
  }
  const std::optional<std::string>& error() const { return error_; }
  Place place() const { return place_; }

 private:
  std::optional<std::string> error_;
  Place place_;
};

// Where the field named by a path such as groups[1].spec.full_attention.block_size was written, or,
// if it was not, the innermost message around it that was.
Place PlaceOf(const std::string& path, const TextFormat::ParseInfoTree& root) {
  Place place;
  const TextFormat::ParseInfoTree* tree = &root;
  const Descriptor* message = config::v1::KvCacheConfig::descriptor();
  for (size_t start = 0; start < path.size() && tree != nullptr && message != nullptr;) {
    const size_t end = std::min(path.find('.', start), path.size());
    std::string name = path.substr(start, end - start);
    start = end + 1;
    int index = -1;
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      index = std::stoi(name.substr(bracket + 1));
      name.resize(bracket);
    }
    const FieldDescriptor* field = message->FindFieldByName(name);
    if (field == nullptr) break;
    const TextFormat::ParseLocation location = tree->GetLocation(field, index);
    if (location.line < 0) break;
    place = {location.line, location.column};
    message = field->message_type();
    if (message != nullptr) tree = tree->GetTreeForNested(field, index);
  }
  return place;
}

absl::Status SystemError(const std::string& path, int error) {
  const std::string text = std::generic_category().message(error);
  return absl::ErrnoToStatus(error, path + ": error: cannot read the file: " + text);
}

absl::Status TooLarge(std::string_view file_name) {
  return absl::InvalidArgumentError(std::string(file_name) + ": error: got more than " +
                                    std::to_string(kMaxConfigBytes) +
                                    " bytes, expected at most that many (is this the right file?)");
}

}  // namespace

absl::StatusOr<KvCacheConfig> ParseKvCacheConfig(std::string_view text,
                                                 std::string_view file_name) {
  if (text.size() > static_cast<size_t>(kMaxConfigBytes)) return TooLarge(file_name);
  config::v1::KvCacheConfig message;
  TextFormat::ParseInfoTree tree;
  FirstError errors;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&tree);
  parser.SetRecursionLimit(16);
  if (!parser.ParseFromString(std::string(text), &message)) {
    return ErrorAt(text, file_name, errors.place(),
                   Reworded(text, errors.place(), errors.error().value_or("not text format")));
  }
  absl::StatusOr<KvCacheConfig> config = FromProto(message);
  if (config.ok()) return config;
  const Place place = PlaceOf(FieldOfError(config.status()).value_or(""), tree);
  const auto reason = config.status().message();
  return ErrorAt(text, file_name, place, {reason.data(), reason.size()});
}

absl::StatusOr<KvCacheConfig> LoadKvCacheConfig(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return SystemError(path, EISDIR);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return SystemError(path, errno);
  std::string text;
  char buffer[64 << 10];
  while (const size_t read = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, read);
    if (text.size() > static_cast<size_t>(kMaxConfigBytes)) return TooLarge(path);
  }
  if (std::ferror(file.get()) != 0) return SystemError(path, errno);
  return ParseKvCacheConfig(text, path);
}

}  // namespace kvblocks
