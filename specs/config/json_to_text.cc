#include "kvblocks/specs/config/json_to_text.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "google/protobuf/descriptor.h"

namespace kvblocks {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;

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

size_t TextOfJson::OriginOf(size_t offset) const {
  const auto after =
      std::ranges::upper_bound(pieces, offset, {}, &std::pair<size_t, size_t>::first);
  if (after == pieces.begin()) return 0;
  const auto& [begin, origin] = *std::prev(after);
  return origin + (offset - begin);
}

TextOfJson JsonToText(std::string_view json, const Descriptor& message) {
  return Translator(json).Run(message);
}

}  // namespace kvblocks
