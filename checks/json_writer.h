// JsonWriter: JSON text, one value after the other; commas come by themselves. Numbers are JSON
// numbers.
//
//   JsonWriter json;
//   json.BeginObject().Key("tokens").Value(int64_t{7}).Key("why").Value("evicted").EndObject();
//   json.text()   // {"tokens":7,"why":"evicted"}

#ifndef KVBLOCKS_CHECKS_JSON_WRITER_H_
#define KVBLOCKS_CHECKS_JSON_WRITER_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "checks/json_text.h"

namespace kvblocks {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view name) {
    Separate();
    AppendJsonString(name, &text_);
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
    AppendJsonString(value, &text_);
    needs_comma_ = true;
    return *this;
  }
  JsonWriter& Value(const char* value) { return Value(std::string_view(value)); }
  JsonWriter& Null() { return Raw("null"); }
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
  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_JSON_WRITER_H_
