// Text as a JSON string, for outputs that are written piece by piece.

#ifndef KVBLOCKS_CHECKS_JSON_TEXT_H_
#define KVBLOCKS_CHECKS_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace kvblocks {

// Appends `text` in quotes. What is no UTF-8 becomes U+FFFD. '<' is written as an escape, too, so
// that the string may stand inside a <script> of an HTML page.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace kvblocks

#endif  // KVBLOCKS_CHECKS_JSON_TEXT_H_
