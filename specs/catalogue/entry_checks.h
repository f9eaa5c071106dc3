// Checks of the fields of one catalogue entry. Refusals are FieldErrors whose hint names the entry;
// the first stays. For the entries of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_
#define KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/checks/field_error.h"

namespace kvblocks {

class EntryChecks {
 public:
  EntryChecks(absl::string_view kind, const std::string& name)
      : entry_(absl::StrCat(kind, " ", name)) {
    if (name.empty()) status_ = FieldError("name", "nothing", "a name");
  }
  template <typename T>
  void Range(std::string_view field, T value, T low, T high) {
    if (value >= low && value <= high) return;  // nor is NaN in it
    Refuse(field, absl::StrCat(value), absl::StrCat(low, " to ", high));
  }
  void Range(std::string_view field, int64_t value, int64_t low, int64_t high) {
    Range<int64_t>(field, value, low, high);
  }
  void Refuse(std::string_view field, std::string_view got, std::string_view expected) {
    if (status_.ok()) status_ = FieldError(field, got, expected, entry_);
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string entry_;
  absl::Status status_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_ENTRY_CHECKS_H_
