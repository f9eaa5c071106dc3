#include "kvblocks/config_source.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "checks/field_error.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/kv_cache_spec.h"
#include "specs/config/kv_cache_config.pb.h"

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

// The byte in `text` at which `place` begins; the end of the text if it is beyond.
size_t OffsetOf(std::string_view text, Place place) {
  size_t offset = 0;
  for (int line = 0; line < place.line; ++line) {
    const size_t end = text.find('\n', offset);
    if (end == std::string_view::npos) return text.size();
    offset = end + 1;
  }
  for (int column = 0; column < place.column && offset < text.size(); ++offset) {
    column = text[offset] == '\t' ? (column / 8 + 1) * 8 : column + 1;
  }
  return offset;
}

absl::Status ErrorAt(std::string_view text, std::string_view file_name, size_t offset,
                     std::string_view message) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = offset - (before.rfind('\n') + 1) + 1;
  std::string full(file_name);
  full.append(":").append(std::to_string(line)).append(":").append(std::to_string(column));
  return absl::InvalidArgumentError(full.append(": error: ").append(message));
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

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

// The field whose value begins at `offset`: the word before the colon.
std::string_view FieldBefore(std::string_view text, size_t offset) {
  const std::string_view head = text.substr(0, offset);
  const size_t colon = head.find_last_not_of(" \t-");
  if (colon == std::string_view::npos || head[colon] != ':') return "";
  const size_t last = head.substr(0, colon).find_last_not_of(" \t");
  if (last == std::string_view::npos) return "";
  const size_t before = head.substr(0, last).find_last_of(" \t\n{}<>;,\"'");
  const size_t first = before == std::string_view::npos ? 0 : before + 1;
  return head.substr(first, last + 1 - first);
}

std::string FieldNames(const Descriptor& message) {
  std::string names;
  for (int i = 0; i < message.field_count(); ++i) {
    names.append(names.empty() ? "one of " : ", ").append(message.field(i)->name());
  }
  return names;
}

// The parser's complaint about an unknown field in our own form, if it is one. The parser points
// behind the field's name; `offset` is moved to the name.
std::optional<absl::Status> UnknownField(std::string_view text, std::string_view complaint,
                                         const Descriptor& root, size_t* offset) {
  const auto type = Between(complaint, "Message type \"", "\" has no field named");
  const auto name = Between(complaint, "has no field named \"", "\"");
  if (!type.has_value() || !name.has_value()) return std::nullopt;
  const Descriptor* message = root.file()->pool()->FindMessageTypeByName(std::string(*type));
  if (message == nullptr) return std::nullopt;
  if (const size_t at = text.substr(0, *offset).rfind(*name); at != std::string_view::npos) {
    *offset = at;
  }
  if (message == config::v1::KvCacheSpec::descriptor()) {
    return FieldError("spec", "unsupported kind " + std::string(*name), SupportedKinds());
  }
  return FieldError(*name, "a field that " + message->name() + " does not have",
                    FieldNames(*message));
}

// The parser's complaint in our own form. `offset` is moved to what it is about.
std::string SyntaxError(std::string_view text, std::string complaint, const Descriptor& root,
                        size_t* offset) {
  if (const auto unknown = UnknownField(text, complaint, root, offset)) return MessageOf(*unknown);
  const std::string_view field = FieldBefore(text, *offset);
  if (!field.empty()) {
    if (const auto got = Between(complaint, "Integer out of range (", ")")) {
      // The parser reads a minus sign and its number as two tokens.
      const bool negative = text[text.substr(0, *offset).find_last_not_of(" \t")] == '-';
      complaint = MessageOf(
          FieldError(field, (negative ? "-" : "") + std::string(*got), "a 64-bit integer"));
    } else if (complaint.rfind("Expected integer, got: ", 0) == 0) {
      complaint = MessageOf(FieldError(field, complaint.substr(23), "an integer"));
    } else {
      complaint = std::string(field) + ": " + complaint;
    }
  }
  return complaint;
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
Place PlaceOf(const std::string& path, const Descriptor* message,
              const TextFormat::ParseInfoTree& root) {
  Place place;
  const TextFormat::ParseInfoTree* tree = &root;
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
    if (field->is_repeated() && index < 0) break;  // a list that is missing altogether
    TextFormat::ParseLocation location = tree->GetLocation(field, index);
    // Values written as [one, list] have a single location, that of the first.
    for (int i = index; location.line < 0 && i > 0; --i) location = tree->GetLocation(field, i - 1);
    if (location.line < 0) break;
    place = {location.line, location.column};
    message = field->message_type();
    if (message != nullptr) tree = tree->GetTreeForNested(field, index);
  }
  return place;
}

absl::Status SystemError(const std::string& path, int error) {
  const std::string text = std::generic_category().message(error);
  const std::string message = path + ": error: cannot read the file: " + text;
  // A wrong path, not a state in which a run would stop.
  if (error == EISDIR) return absl::InvalidArgumentError(message);
  return absl::ErrnoToStatus(error, message);
}

absl::Status TooLarge(std::string_view file_name) {
  return absl::InvalidArgumentError(std::string(file_name) + ": error: got more than " +
                                    std::to_string(kMaxConfigBytes) +
                                    " bytes, expected at most that many (is this the right file?)");
}

// --- JSON ---

constexpr int kMaxDepth = 32;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Whether all of `text` is a number in JSON's form.
bool IsNumber(std::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t start = i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    return i > start;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const size_t first = i;
  if (!digits() || (text[first] == '0' && i > first + 1)) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (!digits()) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (!digits()) return false;
  }
  return i == text.size();
}

bool IsIdentifier(std::string_view text) {
  return !text.empty() && !IsDigit(text[0]) && std::ranges::all_of(text, [](char c) {
    return c == '_' || IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  return '"' + absl::CHexEscape(absl::string_view(text.data(), std::min(text.size(), kShown))) +
         '"';
}

}  // namespace

// Not in the namespace above, since ConfigSource::Parsed has one.
struct TextOfJson {
  std::string text = {};
  // Where a piece of `text` begins and where it came from in the JSON, both rising.
  std::vector<std::pair<size_t, size_t>> pieces = {};
  std::string error = {};   // empty: done
  size_t error_offset = 0;  // in the JSON

  // The place in the JSON of a place in `text`.
  size_t OriginOf(size_t offset) const {
    const auto after =
        std::ranges::upper_bound(pieces, offset, {}, &std::pair<size_t, size_t>::first);
    if (after == pieces.begin()) return 0;
    const auto& [begin, origin] = *std::prev(after);
    return origin + (offset - begin);
  }
};

namespace {

// JSON as protobuf text format, so that one parser reads both.
//
// Strict: no comments, trailing commas, single quotes, hexadecimal or octal numbers. As in
// protobuf's own JSON form, fields go by their name or its lowerCamelCase form, 64-bit integers may
// be written as strings, and null means absent. A key that its message does not have and a value of
// the wrong type are left to the reader of the text.
class Translator {
 public:
  explicit Translator(std::string_view json) : json_(json) {}

  TextOfJson Run(const Descriptor& message) {
    SkipBlanks();
    if (Expect('{') && Members(&message, 0)) {
      SkipBlanks();
      if (at_ < json_.size()) Fail("text behind the object, expected nothing");
    }
    Emit("", json_.size());  // for errors at the end
    return std::move(out_);
  }

 private:
  bool Fail(std::string_view got) {
    if (out_.error.empty()) {
      out_.error = "got " + std::string(got);
      out_.error_offset = std::min(at_, json_.size());
    }
    return false;
  }
  void SkipBlanks() {
    while (at_ < json_.size() && std::string_view(" \t\r\n").find(json_[at_]) != json_.npos) ++at_;
  }
  bool Consume(char c) {
    SkipBlanks();
    if (at_ == json_.size() || json_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool Expect(char c) {
    if (Consume(c)) return true;
    return Fail((at_ == json_.size() ? "the end of the text" : Quoted(json_.substr(at_, 1))) +
                ", expected " + Quoted(std::string_view(&c, 1)));
  }
  void Emit(std::string_view text, size_t origin) {
    out_.pieces.emplace_back(out_.text.size(), origin);
    out_.text.append(text);
  }

  // What stands between the quotes, escapes as they are: text format has those of JSON but \/.
  bool String(std::string* value) {
    if (!Expect('"')) return false;
    for (value->clear(); at_ < json_.size(); ++at_) {
      const char c = json_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return Fail("a control character inside a string");
      if (c != '\\') {
        value->push_back(c);
        continue;
      }
      if (++at_ == json_.size()) break;
      if (std::string_view("\"\\/bfnrtu").find(json_[at_]) == std::string_view::npos) {
        return Fail("an escape that JSON does not have");
      }
      if (json_[at_] != '/') value->push_back('\\');
      value->push_back(json_[at_]);
    }
    return Fail("the end of the text, expected the end of a string");
  }

  // The members of an object whose brace is read. `message` is null inside what is unknown.
  bool Members(const Descriptor* message, int depth) {
    if (Consume('}')) return true;
    std::vector<const FieldDescriptor*> seen;
    do {
      SkipBlanks();
      const size_t origin = at_;
      std::string key;
      if (!String(&key) || !Expect(':')) return false;
      if (!IsIdentifier(key)) {
        at_ = origin;
        return Fail(Quoted(key) + ", expected the name of a field");
      }
      const FieldDescriptor* field = nullptr;
      if (message != nullptr) {
        field = message->FindFieldByName(key);
        if (field == nullptr) field = message->FindFieldByCamelcaseName(key);
      }
      if (field != nullptr && std::ranges::count(seen, field) > 0) {
        at_ = origin;
        return Fail(Quoted(key) + " twice in one object, expected each field once");
      }
      seen.push_back(field);
      SkipBlanks();
      if (json_.substr(at_, 4) == "null") {
        at_ += 4;
        continue;
      }
      Emit((field == nullptr ? key : field->name()) + ":", origin);
      if (!Value(field, depth + 1)) return false;
      out_.text.push_back('\n');
    } while (Consume(','));
    return Expect('}');
  }

  bool Value(const FieldDescriptor* field, int depth) {
    if (depth > kMaxDepth) return Fail("more than 32 levels, expected fewer");
    SkipBlanks();
    const size_t origin = at_;
    if (Consume('{')) {
      Emit("{", origin);
      if (!Members(field == nullptr ? nullptr : field->message_type(), depth)) return false;
      Emit("}", at_ - 1);
      return true;
    }
    if (Consume('[')) {
      Emit("[", origin);
      if (!Consume(']')) {
        for (bool more = true; more;) {
          if (!Value(field, depth + 1)) return false;
          more = Consume(',');
          if (more) out_.text.push_back(',');
        }
        if (!Expect(']')) return false;
      }
      Emit("]", at_ - 1);
      return true;
    }
    if (at_ < json_.size() && json_[at_] == '"') {
      std::string value;
      if (!String(&value)) return false;
      const bool is_number = field != nullptr &&
                             (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                              field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) &&
                             IsNumber(value);
      Emit(is_number ? value : '"' + value + '"', origin);
      return true;
    }
    while (at_ < json_.size() &&
           std::string_view(" \t\r\n,]}{[:\"").find(json_[at_]) == json_.npos) {
      ++at_;
    }
    const std::string_view word = json_.substr(origin, at_ - origin);
    if (word != "true" && word != "false" && !IsNumber(word)) {
      at_ = origin;
      return Fail((word.empty() ? "nothing" : Quoted(word)) + ", expected a value");
    }
    Emit(word, origin);
    return true;
  }

  std::string_view json_;
  size_t at_ = 0;
  TextOfJson out_;
};

}  // namespace

struct ConfigSource::Parsed {
  std::string name;
  std::string text;
  std::optional<TextOfJson> json;  // what was parsed in place of `text`
  const Descriptor* message = nullptr;
  TextFormat::ParseInfoTree tree;

  const std::string& parsed_text() const { return json.has_value() ? json->text : text; }
  absl::Status ErrorAtParsed(size_t offset, std::string_view message_text) const {
    return ErrorAt(text, name, json.has_value() ? json->OriginOf(offset) : offset, message_text);
  }
};

ConfigSource::ConfigSource(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
ConfigSource::ConfigSource(ConfigSource&&) = default;
ConfigSource& ConfigSource::operator=(ConfigSource&&) = default;
ConfigSource::~ConfigSource() = default;

absl::StatusOr<ConfigSource> ConfigSource::Parse(std::string_view text, std::string_view name,
                                                 ConfigSyntax syntax,
                                                 google::protobuf::Message& message) {
  if (text.size() > static_cast<size_t>(kMaxConfigBytes)) return TooLarge(name);
  auto parsed = std::make_unique<Parsed>();
  parsed->name = name;
  parsed->text = text;
  parsed->message = message.GetDescriptor();
  if (syntax == ConfigSyntax::kDetect) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    const bool brace = first != std::string_view::npos && text[first] == '{';
    syntax = brace ? ConfigSyntax::kJson : ConfigSyntax::kText;
  }
  if (syntax == ConfigSyntax::kJson) {
    parsed->json = Translator(text).Run(*parsed->message);
    if (!parsed->json->error.empty()) {
      return ErrorAt(text, name, parsed->json->error_offset, parsed->json->error);
    }
  }
  FirstError errors;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&parsed->tree);
  parser.SetRecursionLimit(16);
  if (!parser.ParseFromString(parsed->parsed_text(), &message)) {
    size_t offset = OffsetOf(parsed->parsed_text(), errors.place());
    const std::string complaint =
        SyntaxError(parsed->parsed_text(), errors.error().value_or("not text format"),
                    *parsed->message, &offset);
    return parsed->ErrorAtParsed(offset, complaint);
  }
  return ConfigSource(std::move(parsed));
}

absl::Status ConfigSource::Locate(const absl::Status& error) const {
  if (error.ok()) return error;
  const Place place = PlaceOf(FieldOfError(error).value_or(""), parsed_->message, parsed_->tree);
  return parsed_->ErrorAtParsed(OffsetOf(parsed_->parsed_text(), place), MessageOf(error));
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
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
  return text;
}

}  // namespace kvblocks
