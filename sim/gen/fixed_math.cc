#include "sim/gen/fixed_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvblocks::sim {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
// Its leading 32 bits and the rest, so that n x kLn2High is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr int kFractionBits = 52;
constexpr int64_t kExponentBias = 1023;

double Ratio(const double (&numerator)[8], const double (&denominator)[8], double r) {
  double a = numerator[7], b = denominator[7];
  for (int i = 6; i >= 0; --i) {
    a = a * r + numerator[i];
    b = b * r + denominator[i];
  }
  return a / b;
}

}  // namespace

double FixedLn(double x) {
  int64_t shift = 0;
  if (x < 0x1p-1000) {  // subnormal numbers have no exponent of their own
    x *= 0x1p200;
    shift = -200;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> kFractionBits) - kExponentBias;
  double m = std::bit_cast<double>((bits & ((uint64_t{1} << kFractionBits) - 1)) |
                                   static_cast<uint64_t>(kExponentBias) << kFractionBits);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // ln m = 2 atanh(z), |z| < 0.172.
  const double z = (m - 1) / (m + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * z2;
  const double n = static_cast<double>(exponent + shift);
  return n * kLn2High + (2 * z + (2 * z * sum + n * kLn2Low));
}

double FixedExp(double x) {
  if (x < -700) return 0;
  if (x > 700) x = 700;
  const double n = std::floor(x / kLn2 + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| < 0.35
  double sum = 1;
  for (int k = 14; k >= 1; --k) sum = 1 + sum * r / k;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + kExponentBias)
                                     << kFractionBits);
}

double FixedPow(double x, double power) { return FixedExp(power * FixedLn(x)); }

double FixedSinTurns(double x) {
  constexpr double kTwoPi = 6.283185307179586476925;
  double turn = x - std::floor(x);  // then to [-1/4, 1/4] by symmetry
  if (turn > 0.75) {
    turn -= 1;
  } else if (turn > 0.25) {
    turn = 0.5 - turn;
  }
  const double a = turn * kTwoPi;
  double sum = 1;
  for (int k = 20; k >= 2; k -= 2) sum = 1 - sum * a * a / (k * (k + 1));
  return a * sum;
}

double NormalQuantile(double p) {
  static constexpr double kA[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                   1.9715909503065514427e3, 1.3731693765509461125e4,
                                   4.5921953931549871457e4, 6.7265770927008700853e4,
                                   3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double kB[8] = {1.0,
                                   4.2313330701600911252e1,
                                   6.8718700749205790830e2,
                                   5.3941960214247511077e3,
                                   2.1213794301586595867e4,
                                   3.9307895800092710610e4,
                                   2.8729085735721942674e4,
                                   5.2264952788528545610e3};
  static constexpr double kC[8] = {1.42343711074968357734e0, 4.63033784615654529590e0,
                                   5.76949722146069140550e0, 3.64784832476320460504e0,
                                   1.27045825245236838258e0, 2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720e0, 5.46378491116411436990e0,
                                   1.78482653991729133580e0, 2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) return q * Ratio(kA, kB, 0.180625 - q * q);
  const double r = std::sqrt(-FixedLn(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? Ratio(kC, kD, r - 1.6) : Ratio(kE, kF, r - 5);
  return q < 0 ? -x : x;
}

}  // namespace kvblocks::sim
