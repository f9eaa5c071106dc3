// Logarithm, exponential, sine and the normal distribution's quantiles by fixed polynomials: sums,
// products, quotients and square roots alone, whose results are the same on every machine. The
// library's functions differ in the last bit from one version to the next.
//
// Each is within 1e-13 of the exact value, relatively. 10 to 40 ns.

#ifndef KVBLOCKS_SIM_GEN_FIXED_MATH_H_
#define KVBLOCKS_SIM_GEN_FIXED_MATH_H_

namespace kvblocks::sim {

// REQUIRES: x > 0, finite.
double FixedLn(double x);
// 0 below e^-700, and no more than e^700.
double FixedExp(double x);
// REQUIRES: x > 0.
double FixedPow(double x, double power);
// sin(2 pi x).
double FixedSinTurns(double x);
// Where the standard normal distribution has the share p below it (Wichura, AS 241, 1988).
// REQUIRES: 0 < p < 1.
double NormalQuantile(double p);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_FIXED_MATH_H_
