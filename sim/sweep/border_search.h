// The largest or smallest value of any option with which a replay holds conditions.
//
// Takes holding as monotone in the option: it tries both ends of the range, closes in on the border
// between them, and tries two values beyond it (see Bisection). A point without figures, such as a
// pool that admits nobody, holds nothing. Same input, same points, whatever the number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/sweep/condition.h"
#include "sim/sweep/point_runner.h"
#include "sim/sweep/sweep.pb.h"

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

// Bisection: the border between numbers that meet a condition and numbers that do not.
//
// It takes meeting as monotone. From a number on either side it closes in on the border by thirds,
// two numbers at once, so that two cores have work. Numbers have four digits, or are whole: both
// can be typed again. Same answers, same numbers tried.

// With four digits: far below any tolerance, and short enough to type again.
double FourDigits(double number);

class Bisection {
 public:
  struct Options {
    bool low_meets = true;  // the smaller numbers meet the condition
    bool is_whole = false;  // numbers without a fraction
    double tolerance = 0.02;
  };
  // Says of each number whether it meets the condition. An error ends the search.
  using Probe = std::function<absl::StatusOr<std::vector<bool>>(const std::vector<double>&)>;

  Bisection(const Options& options, Probe probe) : options_(options), probe_(std::move(probe)) {}

  // Of a number that was tried.
  std::string Text(double number) const;

  // Tries numbers above 0, which ascend.
  absl::Status Try(std::vector<double> numbers);
  // To the tolerance. Does nothing without a number on either side.
  absl::Status CloseIn();
  // Tries two numbers beyond the border, within `first` to `last`, which should miss.
  absl::Status LookBeyond(double first, double last);

  // The largest number tried on the low side and the smallest on the high side; 0: none was.
  double low() const { return low_; }
  double high() const { return high_; }
  double met() const { return options_.low_meets ? low_ : high_; }
  double missed() const { return options_.low_meets ? high_ : low_; }
  // False: a number on the side that should miss was met.
  bool is_monotone() const { return is_monotone_; }

 private:
  const Options options_;
  const Probe probe_;
  double low_ = 0, high_ = 0;
  bool is_monotone_ = true;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_BORDER_SEARCH_H_
