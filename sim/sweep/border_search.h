// The largest or smallest value of any option with which a replay holds conditions.
//
// Takes holding as monotone in the option: it tries both ends of the range, closes in on the border
// between them, and tries two values beyond it (see Bisection). A point without figures, such as a
// pool that admits nobody, holds nothing. Same input, same points, whatever the number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/sweep/condition.h"
#include "kvblocks/sim/sweep/point_runner.h"
#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

// Values of an option that differ in one number.
struct SearchedOption {
  std::string field;          // "num_blocks"
  std::string before, after;  // the text around the number
  double first = 0, last = 0;
  bool is_whole = false;

  std::string ValueText(const std::string& number) const { return before + number + after; }
  ::kvblocks::sweep::v1::Axis Ends() const;
};

// "num-blocks=500:20000", or with the range in braces, "tier=host:2GiB:read={0.5:50}GB/s". Numbers
// are whole if both ends are. InvalidArgument says what is expected.
absl::StatusOr<SearchedOption> ParseSearchedOption(std::string_view text);

struct BorderOptions {
  ::kvblocks::config::v1::ReplayConfig asked;
  SearchedOption searched;
  bool is_largest = true;
  std::vector<Condition> conditions;                     // one or more
  std::vector<::kvblocks::sweep::v1::Setting> baseline;  // none: no condition needs one
  double tolerance = 0.02;
};

// "OPTION=VALUE", where the value may be empty.
absl::StatusOr<::kvblocks::sweep::v1::Setting> ParseSetting(std::string_view text);

// Adds the percentiles of --slo, and `goodput`, to the conditions. InvalidArgument if there is no
// condition at all.
absl::Status AddLimits(double goodput, BorderOptions* options);
// InvalidArgument if conditions need a baseline and there is none, or the other way round.
absl::Status CheckBaseline(const BorderOptions& options);

// `metrics` are the columns of the points that were tried; those that no point has are left out, of
// both.
absl::StatusOr<::kvblocks::sweep::v1::BorderReport> FindBorder(const BorderOptions& options,
                                                               std::vector<SweepMetric>* metrics,
                                                               PointRunner* runner,
                                                               ContentHashes* hashes);

// A screen for people.
std::string FormatBorder(const ::kvblocks::sweep::v1::BorderReport& report,
                         const std::vector<SweepMetric>& metrics, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_
