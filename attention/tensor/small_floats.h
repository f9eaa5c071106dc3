// Exact conversions between float64 and the narrower element types, bit by bit.
//
// Narrowing rounds once, from float64, to nearest even. 16-bit types overflow to infinity as IEEE
// does; the 8-bit codes saturate (infinities, too) and keep NaN. Widening is exact. Portable and
// meant for references, tests and cold code: kernels have their own vector conversions, checked
// against these.

#ifndef KVBLOCKS_ATTENTION_TENSOR_SMALL_FLOATS_H_
#define KVBLOCKS_ATTENTION_TENSOR_SMALL_FLOATS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/device_types.h"

namespace kvblocks::attention {

double F16ToDouble(uint16_t bits);
double BF16ToDouble(uint16_t bits);
double E4M3ToDouble(uint8_t bits);
double E5M2ToDouble(uint8_t bits);
double E8M0ToDouble(uint8_t bits);
// A code of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 and a sign; the upper four bits are ignored.
double E2M1ToDouble(uint8_t bits);

uint16_t DoubleToF16(double value);
uint16_t DoubleToBF16(double value);
uint8_t DoubleToE4M3(double value);
uint8_t DoubleToE5M2(double value);
// 4 bits; there is no NaN: it becomes 0, as in int8 codes.
uint8_t DoubleToE2M1(double value);
// clamp(round to nearest even, -127, 127); NaN becomes 0.
int8_t DoubleToInt8Code(double value);

// The element at `from`, or `value` stored at `to` by the rules above. Any type but kI64 beyond
// 2^53 is exact. Integers round to nearest even and saturate; NaN becomes 0. kF8E8M0 keeps the
// exponent alone; what is not above 0 becomes NaN. No alignment needed.
double LoadElement(DType dtype, const std::byte* from);
void StoreElement(DType dtype, double value, std::byte* to);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_SMALL_FLOATS_H_
