// JsonWriter: JSON text, one value after the other. Numbers are JSON numbers, names are plain ASCII.
//
//   JsonWriter json;
//   json.BeginObject().Key("tokens").Value(int64_t{7}).Key("why").Value("evicted").EndObject();
//   json.text()   // {"tokens":7,"why":"evicted"}

#ifndef KVBLOCKS_C_JSON_WRITER_H_
#define KVBLOCKS_C_JSON_WRITER_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace kvblocks::c {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view name) {
    Separate();
    Quote(name);
    text_ += ':';
    needs_comma_ = false;
    return *this;
  }

  JsonWriter& Value(int64_t value) { return Raw(std::to_string(value)); }
  JsonWriter& Value(bool value) { return Raw(value ? "true" : "false"); }
  // Shortest digits that read back as the same number; null for what JSON cannot say.
  JsonWriter& Value(double value) {
    if (!std::isfinite(value)) return Raw("null");
    std::string digits = absl::StrFormat("%.15g", value);
    if (std::stod(digits) != value) digits = absl::StrFormat("%.17g", value);
    return Raw(digits);
  }
  JsonWriter& Value(std::string_view value) {
    Separate();
    Quote(value);
    needs_comma_ = true;
    return *this;
  }
  JsonWriter& Value(const char* value) { return Value(std::string_view(value)); }
  // A value that is JSON already.
  JsonWriter& Raw(std::string_view json) {
    Separate();
    text_ += json;
    needs_comma_ = true;
    return *this;
  }

  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket) {
    Separate();
    text_ += bracket;
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& Close(char bracket) {
    text_ += bracket;
    needs_comma_ = true;
    return *this;
  }
  void Separate() {
    if (needs_comma_) text_ += ',';
  }
  void Quote(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        absl::StrAppendFormat(&text_, "\\u%04x", static_cast<unsigned char>(c));
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace kvblocks::c

#endif  // KVBLOCKS_C_JSON_WRITER_H_
