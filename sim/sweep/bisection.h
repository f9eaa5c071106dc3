// Bisection: the border between numbers that meet a condition and numbers that do not.
//
// It takes meeting as monotone. From a number on either side it closes in on the border by thirds,
// two numbers at once, so that two cores have work. Numbers have four digits, or are whole: both
// can be typed again. Same answers, same numbers tried.

#ifndef KVBLOCKS_SIM_SWEEP_BISECTION_H_
#define KVBLOCKS_SIM_SWEEP_BISECTION_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks::sim {

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
  double Rounded(double number) const;

  const Options options_;
  const Probe probe_;
  double low_ = 0, high_ = 0;
  bool is_monotone_ = true;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_BISECTION_H_
