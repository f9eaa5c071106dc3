#include "kvblocks/sim/report/request_selector.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

absl::StatusOr<RequestSelector> RequestSelector::Parse(std::string_view text) {
  RequestSelector selector;
  const auto after = [&](std::string_view prefix) {
    return std::string(text.substr(prefix.size()));
  };
  const auto starts_with = [&](std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
  };
  std::string number;
  if (starts_with("id:")) {
    selector.id_ = after("id:");
  } else if (starts_with("row:")) {
    selector.kind_ = Kind::kRow;
    number = after("row:");
  } else if (starts_with("line:")) {
    selector.kind_ = Kind::kLine;
    number = after("line:");
  } else {
    selector.id_ = std::string(text);
  }
  const bool is_number = selector.kind_ != Kind::kId;
  const int64_t low = selector.kind_ == Kind::kLine ? 1 : 0;
  if (is_number && (!absl::SimpleAtoi(number, &selector.number_) || selector.number_ < low)) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", std::string(text),
                                                   "\", expected a whole number of ", low,
                                                   " or more behind the colon"));
  }
  if (!is_number && selector.id_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("got \"", std::string(text), "\", expected an id, row:N or line:N"));
  }
  return selector;
}

}  // namespace kvblocks::sim
