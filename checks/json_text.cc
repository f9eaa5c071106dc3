#include "checks/json_text.h"

#include <cstddef>
#include <cstdint>

namespace kvblocks {
namespace {

// Bytes of the UTF-8 sequence that `text` begins with; 0 if it begins with none. Overlong forms,
// surrogates and what lies beyond U+10FFFF are none.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr const char* kHex = "0123456789abcdef";
  *out += '"';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t length = SequenceLength(text.substr(i));
    if (length == 0) {
      *out += "\\ufffd";
      ++i;
      continue;
    }
    const auto code = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (code < 0x20 || code == 0x7F || c == '<') {
      *out += "\\u00";
      *out += kHex[code >> 4];
      *out += kHex[code & 15];
    } else {
      out->append(text.substr(i, length));
    }
    i += length;
  }
  *out += '"';
}

}  // namespace kvblocks
