#include "kvblocks/sim/trace/civil_time.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// d: a digit; T: a blank, too.
bool HasForm(std::string_view text, std::string_view form) {
  return std::equal(text.begin(), text.end(), form.begin(), form.end(), [](char c, char f) {
    return f == 'd'   ? absl::ascii_isdigit(static_cast<unsigned char>(c))
           : f == 'T' ? c == 'T' || c == ' '
                      : c == f;
  });
}

// absl::ParseTime takes blanks, digits beyond a nanosecond and leap seconds, too.
bool IsTimestamp(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:dd";
  if (!HasForm(text.substr(0, kForm.size()), kForm) || text[kForm.size() - 2] > '5') return false;
  std::string_view rest = text.substr(kForm.size());
  if (!rest.empty() && rest[0] == '.') {
    const size_t end = std::min(rest.find_first_not_of("0123456789", 1), rest.size());
    if (end < 2 || end > 10) return false;
    rest.remove_prefix(end);
  }
  return rest.empty() || rest == "Z" || HasForm(rest, "+dd:dd") || HasForm(rest, "-dd:dd");
}

}  // namespace

absl::StatusOr<absl::Time> ParseAzureTimestamp(std::string_view text) {
  absl::Time time;
  if (IsTimestamp(text)) {
    std::string full(text);
    full[10] = 'T';
    if (text.find_first_of("Z+-", 11) == std::string_view::npos) full += 'Z';
    if (absl::ParseTime(absl::RFC3339_full, full, &time, nullptr)) return time;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("got ", Shown(text), ", expected YYYY-MM-DD hh:mm:ss[.fffffffff][Z|+hh:mm]"));
}

std::string FormatAzureTimestamp(absl::Time time) {
  std::string text = absl::FormatTime("%E4Y-%m-%d %H:%M:%E9S", time, absl::UTCTimeZone());
  if (text.compare(text.size() - 2, 2, "00") == 0) text.resize(text.size() - 2);
  return text;
}

std::string FormatDay(absl::Time time) {
  return absl::FormatTime("%E4Y-%m-%d", time, absl::UTCTimeZone());
}

absl::Status DayClock::Since(absl::Time time, std::string_view text,
                             std::map<std::string, std::string>* notes, int64_t* ns) {
  if (!day_one_) {
    const absl::TimeZone utc = absl::UTCTimeZone();
    day_one_ = absl::FromCivil(absl::ToCivilDay(time, utc), utc);
    (*notes)["day_one"] = FormatDay(*day_one_);
  }
  const absl::Duration since = time - *day_one_;
  if (since < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("got ", Shown(text), ", expected a day from ",
                                                   FormatDay(*day_one_),
                                                   " on, the day of the first row"));
  }
  if (since > absl::Nanoseconds(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(text), ", expected a time within 2^63 ns of ",
                     FormatDay(*day_one_), ", the day of the first row"));
  }
  *ns = absl::ToInt64Nanoseconds(since);
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
