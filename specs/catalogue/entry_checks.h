// Checks of the fields of one catalogue entry: "model M: FIELD is VALUE, expected LOW to HIGH". The
// first error stays. For the entries of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_
#define KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblocks {

class EntryChecks {
 public:
  EntryChecks(absl::string_view kind, const std::string& name)
      : entry_(absl::StrCat(kind, " ", name)) {
    if (name.empty()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(kind, " without a name"));
    }
  }
  void Range(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    Fail(absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
  }
  // Also refuses NaN.
  void Range(absl::string_view field, double value, double low, double high) {
    if (value >= low && value <= high) return;
    Fail(absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
  }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(entry_, ": ", what));
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string entry_;
  absl::Status status_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_
