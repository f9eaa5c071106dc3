#include "attention/cache/element_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
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

// A finite magnitude below the format's overflow, as sign-less bits rounded to nearest even.
template <int kMantissaBits, int kBias>
uint64_t RoundMagnitude(double magnitude) {
  constexpr int kDropped = 52 - kMantissaBits;
  if (magnitude < std::bit_cast<double>(uint64_t{1024 - kBias} << 52)) {
    // Subnormal: added to a power of two whose last place is the format's, the sum rounds to it and
    // holds the count of such places in its low bits.
    constexpr uint64_t kMagic = uint64_t{1024 - kBias - kMantissaBits + 52} << 52;
    return std::bit_cast<uint64_t>(magnitude + std::bit_cast<double>(kMagic)) - kMagic;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(magnitude);
  const uint64_t half = (uint64_t{1} << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1);
  return ((bits + half) >> kDropped) - (uint64_t{1023 - kBias} << kMantissaBits);
}

// From `limit` on the result is `kAtLimit`, an infinity or the largest finite code.
template <typename T, int kMantissaBits, int kBias, T kAtLimit, T kNaN>
T RoundTo(double value, double limit) {
  constexpr T kSign = T{1} << (8 * sizeof(T) - 1);
  const double magnitude = std::abs(value);
  const T bits = magnitude < limit ? static_cast<T>(RoundMagnitude<kMantissaBits, kBias>(magnitude))
                 : std::isnan(value) ? kNaN
                                     : kAtLimit;
  return static_cast<T>(bits | (std::signbit(value) ? kSign : T{0}));
}

int8_t RoundToInt8Code(double value) {
  if (std::isnan(value)) return 0;
  constexpr double kMagic = 0x1.8p52;
  const double rounded = std::clamp(value, -127.0, 127.0) + kMagic;
  return static_cast<int8_t>(std::bit_cast<uint64_t>(rounded));
}

template <typename T, typename Convert>
void StoreEach(const double* values, int64_t count, Convert convert, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const T element = convert(values[i]);
    std::memcpy(to + i * sizeof(T), &element, sizeof(T));
  }
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

void StoreElements(DType dtype, const double* values, int64_t count, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      return StoreEach<float>(
          values, count, [](double x) { return static_cast<float>(x); }, to);
    case DType::kF16:
      return StoreEach<uint16_t>(
          values, count,
          [](double x) { return RoundTo<uint16_t, 10, 15, 0x7C00, 0x7E00>(x, 65536); }, to);
    case DType::kBF16:
      return StoreEach<uint16_t>(
          values, count,
          [](double x) { return RoundTo<uint16_t, 7, 127, 0x7F80, 0x7FC0>(x, 0x1p128); }, to);
    case DType::kF8E4M3:
      return StoreEach<uint8_t>(
          values, count, [](double x) { return RoundTo<uint8_t, 3, 7, 0x7E, 0x7F>(x, 448); }, to);
    case DType::kF8E5M2:
      return StoreEach<uint8_t>(
          values, count, [](double x) { return RoundTo<uint8_t, 2, 15, 0x7B, 0x7E>(x, 57344); },
          to);
    case DType::kI8:
      return StoreEach<int8_t>(values, count, RoundToInt8Code, to);
    default:
      for (int64_t i = 0; i < count; ++i) {
        StoreElement(dtype, values[i], to + i * ElementBytes(dtype));
      }
  }
}

double FiniteAmax(const double* values, int64_t count) {
  double amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) amax = std::max(amax, std::abs(values[i]));
  }
  return amax;
}

namespace {

template <int kBytes>
void CopyEach(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
  }
}

}  // namespace

void CopyElements(int64_t element_bytes, const std::byte* from, int64_t from_stride, std::byte* to,
                  int64_t to_stride, int64_t count) {
  if (from_stride == element_bytes && to_stride == element_bytes) {
    if (count > 0) std::memcpy(to, from, count * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyEach<1>(from, from_stride, to, to_stride, count);
    case 2:
      return CopyEach<2>(from, from_stride, to, to_stride, count);
    case 4:
      return CopyEach<4>(from, from_stride, to, to_stride, count);
    default:
      return CopyEach<8>(from, from_stride, to, to_stride, count);
  }
}

void WriteRow(const RowLayout& layout, std::byte* row, const std::byte* from, int64_t stride) {
  const int64_t bytes = ElementBytes(layout.dtype);
  for (int64_t piece = 0; piece < layout.num_pieces; ++piece) {
    CopyElements(bytes, from + piece * layout.piece_elements * stride, stride,
                 row + piece * layout.piece_stride, layout.element_stride, layout.piece_elements);
  }
}

void ReadRow(const ConstRowLayout& layout, const std::byte* row, std::byte* to, int64_t stride) {
  const int64_t bytes = ElementBytes(layout.dtype);
  for (int64_t piece = 0; piece < layout.num_pieces; ++piece) {
    CopyElements(bytes, row + piece * layout.piece_stride, layout.element_stride,
                 to + piece * layout.piece_elements * stride, stride, layout.piece_elements);
  }
}

namespace {

// Calls run(from, to, innermost) for every run of the innermost dimension; offsets in bytes.
template <typename Run>
void ForRuns(const StridedLoop& loop, const Run& run, int64_t bytes, int dim = 0, int64_t from = 0,
             int64_t to = 0) {
  if (dim + 1 >= loop.rank) {
    return run(from, to, loop.rank == 0 ? StridedDim{1, bytes, bytes} : loop.dims[dim]);
  }
  for (int64_t i = 0; i < loop.dims[dim].extent; ++i) {
    ForRuns(loop, run, bytes, dim + 1, from + i * loop.dims[dim].from, to + i * loop.dims[dim].to);
  }
}

}  // namespace

StridedLoop::StridedLoop(const ConstTensorView& from, const TensorView& to) {
  const int64_t bytes = ElementBytes(to.dtype);
  for (int i = 0; i < to.rank; ++i) {
    if (to.extent[i] == 1) continue;
    dims[rank++] = {to.extent[i], from.stride[i] * bytes, to.stride[i] * bytes};
  }
  std::sort(dims.begin(), dims.begin() + rank,
            [](const StridedDim& a, const StridedDim& b) { return a.to > b.to; });
  int joined = 0;
  for (int i = 1; i < rank; ++i) {
    StridedDim& outer = dims[joined];
    const StridedDim& inner = dims[i];
    if (outer.from == inner.from * inner.extent && outer.to == inner.to * inner.extent) {
      outer = {outer.extent * inner.extent, inner.from, inner.to};
    } else {
      dims[++joined] = inner;
    }
  }
  if (rank > 0) rank = joined + 1;
}

void CopyStrided(const ConstTensorView& from, const TensorView& to) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  ForRuns(
      StridedLoop(from, to),
      [&](int64_t from_offset, int64_t to_offset, const StridedDim& dim) {
        CopyElements(bytes, from.data + from_offset, dim.from, to.data + to_offset, dim.to,
                     dim.extent);
      },
      bytes);
}

void FillStrided(const TensorView& to, std::byte byte) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  ForRuns(
      StridedLoop(to, to),
      [&](int64_t, int64_t offset, const StridedDim& dim) {
        if (dim.to == bytes) {
          std::memset(to.data + offset, std::to_integer<int>(byte), dim.extent * bytes);
        } else {
          for (int64_t i = 0; i < dim.extent; ++i) {
            std::memset(to.data + offset + i * dim.to, std::to_integer<int>(byte), bytes);
          }
        }
      },
      bytes);
}

}  // namespace kvblocks::attention
