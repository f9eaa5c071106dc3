#include "attention/cache/element_rows.h"

#include <array>
#include <bit>
#include <cstring>

#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

template <typename T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

double FastF16ToDouble(uint16_t bits) {
  // With the exponent field read as float's, the number is 2^112 times too small; the product is
  // exact, for f16's subnormals too.
  const float magnitude =
      std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7FFF) << 13) * 0x1p112f;
  if (magnitude >= 65536) return F16ToDouble(bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

using CodeTable = std::array<double, 256>;

template <double (*kConvert)(uint8_t)>
const CodeTable& TableOf() {
  static const CodeTable table = [] {
    CodeTable values;
    for (int code = 0; code < 256; ++code) values[code] = kConvert(static_cast<uint8_t>(code));
    return values;
  }();
  return table;
}

template <typename T, typename Convert>
void LoadEach(const std::byte* from, int64_t stride, int64_t count, Convert convert, double* out) {
  const int64_t step = stride * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; ++i) out[i] = convert(Read<T>(from + i * step));
}

}  // namespace

void LoadElements(DType dtype, const std::byte* from, int64_t stride, int64_t count, double* out) {
  const auto by_table = [](const CodeTable& table) {
    return [&table](uint8_t code) { return table[code]; };
  };
  switch (dtype) {
    case DType::kF32:
      return LoadEach<float>(
          from, stride, count, [](float x) { return x; }, out);
    case DType::kBF16:
      return LoadEach<uint16_t>(from, stride, count, BF16ToDouble, out);
    case DType::kF16:
      return LoadEach<uint16_t>(from, stride, count, FastF16ToDouble, out);
    case DType::kF8E4M3:
      return LoadEach<uint8_t>(from, stride, count, by_table(TableOf<E4M3ToDouble>()), out);
    case DType::kF8E5M2:
      return LoadEach<uint8_t>(from, stride, count, by_table(TableOf<E5M2ToDouble>()), out);
    default:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = LoadElement(dtype, from + i * stride * ElementBytes(dtype));
      }
  }
}

}  // namespace kvblocks::attention
