#include "kvblocks/sim/sweep/bisection.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblocks::sim {

std::string Bisection::Text(double number) const {
  return options_.is_whole ? absl::StrFormat("%.0f", number) : absl::StrCat(number);
}

double Bisection::Rounded(double number) const {
  const std::string text =
      options_.is_whole ? absl::StrFormat("%.0f", number) : absl::StrFormat("%.4g", number);
  double rounded = number;
  return absl::SimpleAtod(text, &rounded) ? rounded : number;
}

absl::Status Bisection::Try(std::vector<double> numbers) {
  for (double& number : numbers) number = Rounded(number);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  const auto is_met = probe_(numbers);
  if (!is_met.ok()) return is_met.status();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number = numbers[i];
    if ((*is_met)[i] == options_.low_meets) {
      if (high_ > 0 && number > high_) {
        is_monotone_ = false;
      } else if (number > low_) {
        low_ = number;
      }
    } else if (low_ > 0 && number < low_) {
      is_monotone_ = false;
    } else if (high_ == 0 || number < high_) {
      high_ = number;
    }
  }
  return absl::OkStatus();
}

absl::Status Bisection::CloseIn() {
  while (low_ > 0 && high_ > 0 && high_ / low_ > 1 + options_.tolerance) {
    if (options_.is_whole && high_ - low_ < 1.5) break;
    const double third = std::cbrt(high_ / low_);
    const double before_low = low_, before_high = high_;
    std::vector<double> between = {low_ * third, low_ * third * third};
    if (options_.is_whole) {
      for (double& number : between) number = std::clamp(std::round(number), low_ + 1, high_ - 1);
    }
    if (absl::Status status = Try(std::move(between)); !status.ok()) return status;
    // No number between them has four digits.
    if (low_ == before_low && high_ == before_high) break;
  }
  return absl::OkStatus();
}

absl::Status Bisection::LookBeyond(double first, double last) {
  if (low_ == 0 || high_ == 0) return absl::OkStatus();
  const double near = 1 + options_.tolerance, far = 1 + 4 * options_.tolerance;
  std::vector<double> beyond = options_.low_meets ? std::vector{high_ * near, high_ * far}
                                                  : std::vector{low_ / far, low_ / near};
  if (options_.is_whole) {
    for (double& number : beyond) {
      number = options_.low_meets ? std::ceil(number) : std::floor(number);
    }
  }
  std::erase_if(beyond, [&](double number) { return number < first || number > last; });
  return beyond.empty() ? absl::OkStatus() : Try(std::move(beyond));
}

}  // namespace kvblocks::sim
