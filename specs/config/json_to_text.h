// JSON as protobuf text format, so that one parser reads both.
//
// Strict: no comments, trailing commas, single quotes, hexadecimal or octal numbers. As in
// protobuf's own JSON form, fields go by their name or its lowerCamelCase form, 64-bit integers may
// be written as strings, and null means absent. A key that its message does not have and a value of
// the wrong type are left to the reader of the text.

#ifndef KVBLOCKS_SPECS_CONFIG_JSON_TO_TEXT_H_
#define KVBLOCKS_SPECS_CONFIG_JSON_TO_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace google::protobuf {
class Descriptor;
}

namespace kvblocks {

struct TextOfJson {
  std::string text = {};
  // Where a piece of `text` begins and where it came from in the JSON, both rising.
  std::vector<std::pair<size_t, size_t>> pieces = {};
  std::string error = {};   // empty: done
  size_t error_offset = 0;  // in the JSON

  // The place in the JSON of a place in `text`.
  size_t OriginOf(size_t offset) const;
};

TextOfJson JsonToText(std::string_view json, const google::protobuf::Descriptor& message);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CONFIG_JSON_TO_TEXT_H_
