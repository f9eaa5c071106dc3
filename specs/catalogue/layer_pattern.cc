#include "kvblocks/model_facts.h"

#include <algorithm>

#include "checks/field_error.h"

namespace kvblocks {
namespace {

absl::Status Bad(std::string_view text, size_t at, std::string_view expected) {
  const std::string got = at < text.size() ? "'" + std::string(1, text[at]) + "'" : "the end";
  return FieldError("layer_pattern", got + " at character " + std::to_string(at + 1), expected);
}

bool IsLetter(char c) { return kLayerLetters.find(c) != std::string_view::npos; }

}  // namespace

absl::StatusOr<std::string> ExpandLayerPattern(std::string_view text) {
  std::string pattern;
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    std::string_view unit;
    if (text[at] == '(') {
      size_t end = at + 1;
      while (end < text.size() && IsLetter(text[end])) ++end;
      if (end == text.size() || text[end] != ')' || end == at + 1) {
        return Bad(text, end, "letters of " + std::string(kLayerLetters) + " and \")\"");
      }
      unit = text.substr(at + 1, end - at - 1);
      at = end + 1;
    } else if (IsLetter(text[at])) {
      unit = text.substr(at++, 1);
    } else {
      return Bad(text, at, "one of " + std::string(kLayerLetters) + ", \"(\" or a space");
    }
    int64_t repetitions = 1;
    if (at < text.size() && text[at] == '*') {
      const size_t digits = ++at;
      repetitions = 0;
      while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
        repetitions = std::min(repetitions * 10 + (text[at++] - '0'), kMaxLayers + 1);
      }
      if (at == digits || repetitions == 0)
        return Bad(text, digits, "a number above 0 after \"*\"");
    }
    const int64_t room = kMaxLayers - static_cast<int64_t>(pattern.size());
    if (repetitions > room / static_cast<int64_t>(unit.size())) {
      return FieldError("layer_pattern", "more than " + std::to_string(kMaxLayers) + " layers",
                        "at most " + std::to_string(kMaxLayers));
    }
    for (int64_t i = 0; i < repetitions; ++i) pattern.append(unit);
  }
  return pattern;
}

int64_t CountLetters(std::string_view pattern, std::string_view letters) {
  return std::count_if(pattern.begin(), pattern.end(),
                       [&](char c) { return letters.find(c) != std::string_view::npos; });
}

}  // namespace kvblocks
