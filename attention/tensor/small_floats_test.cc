#include "attention/tensor/small_floats.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A format, described by what its standard says, and the functions under test.
struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // else the largest exponent holds numbers, and only all ones are NaN
  bool saturates;
  std::function<double(unsigned)> widen;
  std::function<unsigned(double)> narrow;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned sign() const { return 1u << (exponent_bits + mantissa_bits); }
  // The largest code of a finite number.
  unsigned largest() const {
    return has_infinity ? (((1u << exponent_bits) - 1) << mantissa_bits) - 1 : sign() - 2;
  }
  // The value of a positive code, computed from its fields as written down.
  double Value(unsigned code) const {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const double fraction =
        static_cast<double>(code & ((1u << mantissa_bits) - 1)) * std::pow(2.0, -mantissa_bits);
    return exponent == 0 ? std::pow(2.0, 1 - bias()) * fraction
                         : std::pow(2.0, exponent - bias()) * (1 + fraction);
  }
};

std::vector<Format> Formats() {
  return {
      {"f16", 5, 10, true, false, [](unsigned c) { return F16ToDouble(static_cast<uint16_t>(c)); },
       DoubleToF16},
      {"bf16", 8, 7, true, false, [](unsigned c) { return BF16ToDouble(static_cast<uint16_t>(c)); },
       DoubleToBF16},
      {"e4m3", 4, 3, false, true, [](unsigned c) { return E4M3ToDouble(static_cast<uint8_t>(c)); },
       DoubleToE4M3},
      {"e5m2", 5, 2, true, true, [](unsigned c) { return E5M2ToDouble(static_cast<uint8_t>(c)); },
       DoubleToE5M2},
  };
}

TEST(SmallFloatsTest, EveryCodeWidensToWhatItsFieldsSay) {
  for (const Format& format : Formats()) {
    for (unsigned code = 0; code < format.sign(); ++code) {
      const double positive = format.widen(code), negative = format.widen(code | format.sign());
      if (code <= format.largest()) {
        ASSERT_EQ(positive, format.Value(code)) << format.name << " " << code;
        ASSERT_EQ(negative, -positive) << format.name << " " << code;
        ASSERT_TRUE(std::signbit(negative)) << format.name << " " << code;
      } else if (format.has_infinity && code == format.largest() + 1) {
        ASSERT_EQ(positive, kInfinity) << format.name;
        ASSERT_EQ(negative, -kInfinity) << format.name;
      } else {
        ASSERT_TRUE(std::isnan(positive)) << format.name << " " << code;
        ASSERT_TRUE(std::isnan(negative)) << format.name << " " << code;
      }
    }
  }
}

TEST(SmallFloatsTest, NarrowingIsToTheNearestAndTiesToTheEvenCode) {
  for (const Format& format : Formats()) {
    for (unsigned code = 0; code < format.largest(); ++code) {
      const double low = format.Value(code), high = format.Value(code + 1);
      const double middle = (low + high) / 2;  // exact
      const unsigned even = code % 2 == 0 ? code : code + 1;
      for (const unsigned sign : {0u, format.sign()}) {
        const double s = sign == 0 ? 1 : -1;
        ASSERT_EQ(format.narrow(s * low), code | sign) << format.name;
        ASSERT_EQ(format.narrow(s * middle), even | sign) << format.name << " " << code;
        ASSERT_EQ(format.narrow(s * std::nextafter(middle, 0)), code | sign) << format.name;
        ASSERT_EQ(format.narrow(s * std::nextafter(middle, high)), (code + 1) | sign)
            << format.name << " " << code;
      }
    }
  }
}

TEST(SmallFloatsTest, BeyondTheLargestIeeeOverflowsAndCodesSaturate) {
  for (const Format& format : Formats()) {
    const double largest = format.Value(format.largest());
    const double step = largest - format.Value(format.largest() - 1);
    const unsigned beyond = format.saturates ? format.largest() : format.largest() + 1;
    EXPECT_EQ(format.narrow(largest), format.largest()) << format.name;
    EXPECT_EQ(format.narrow(std::nextafter(largest + step / 2, 0)), format.largest())
        << format.name;
    // The middle to the next power of two is a tie, whose even side is that power.
    for (const double value : {largest + step / 2, largest + step, 1e300, kInfinity}) {
      EXPECT_EQ(format.narrow(value), beyond) << format.name << " " << value;
      EXPECT_EQ(format.narrow(-value), beyond | format.sign()) << format.name << " " << value;
    }
    EXPECT_TRUE(std::isnan(format.widen(format.narrow(kNaN)))) << format.name;
    EXPECT_TRUE(std::isnan(format.widen(format.narrow(-kNaN)))) << format.name;
    EXPECT_EQ(format.narrow(5e-324), 0u) << format.name;
    EXPECT_EQ(format.narrow(-5e-324), format.sign()) << format.name;
  }
}

TEST(SmallFloatsTest, E2M1RoundsToTheNearestOfItsSixteenCodes) {
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(E2M1ToDouble(static_cast<uint8_t>(code)), values[code]);
    EXPECT_EQ(E2M1ToDouble(static_cast<uint8_t>(0xA0 | 8 | code)), -values[code]);
    EXPECT_EQ(DoubleToE2M1(values[code]), code);
    EXPECT_EQ(DoubleToE2M1(-values[code]), code | 8);
    if (code == 7) continue;
    const double middle = (values[code] + values[code + 1]) / 2;
    EXPECT_EQ(DoubleToE2M1(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(DoubleToE2M1(std::nextafter(middle, 0)), code);
    EXPECT_EQ(DoubleToE2M1(std::nextafter(middle, 9)), code + 1);
  }
  EXPECT_EQ(DoubleToE2M1(kInfinity), 7);
  EXPECT_EQ(DoubleToE2M1(-1e300), 15);
  EXPECT_EQ(DoubleToE2M1(kNaN), 0);
  EXPECT_EQ(DoubleToE2M1(5e-324), 0);
}

TEST(SmallFloatsTest, EachE8M0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(E8M0ToDouble(static_cast<uint8_t>(code)), std::pow(2.0, code - 127));
    std::byte stored;
    StoreElement(DType::kF8E8M0, std::pow(2.0, code - 127), &stored);
    EXPECT_EQ(std::to_integer<int>(stored), code);
  }
  EXPECT_TRUE(std::isnan(E8M0ToDouble(255)));
}

TEST(SmallFloatsTest, E8M0SaturatesAndHasNoSign) {
  const auto stored = [](double value) {
    std::byte code;
    StoreElement(DType::kF8E8M0, value, &code);
    return std::to_integer<int>(code);
  };
  EXPECT_EQ(stored(kInfinity), 254);
  EXPECT_EQ(stored(1e300), 254);
  EXPECT_EQ(stored(5e-324), 0);
  for (const double value : {0.0, -1.0, -kInfinity, kNaN}) EXPECT_EQ(stored(value), 255) << value;
}

// EX-26, scale 0.5: code, and code times scale.
TEST(SmallFloatsTest, Ex26E4M3) {
  const auto code = [](double x) { return DoubleToE4M3(x / 0.5); };
  EXPECT_EQ(code(0.3), 0x32);
  EXPECT_EQ(E4M3ToDouble(0x32) * 0.5, 0.3125);
  EXPECT_EQ(code(1), 0x40);
  EXPECT_EQ(E4M3ToDouble(0x40) * 0.5, 1);
  EXPECT_EQ(code(300), 0x7E);
  EXPECT_EQ(E4M3ToDouble(0x7E) * 0.5, 224);
  EXPECT_EQ(code(-1000), 0xFE);
  EXPECT_EQ(E4M3ToDouble(0xFE) * 0.5, -224);
  EXPECT_EQ(code(0x1p-10), 0x01);
  EXPECT_EQ(E4M3ToDouble(0x01) * 0.5, 0x1p-10);
  EXPECT_EQ(code(0x1p-12), 0x00);
  EXPECT_EQ(code(-0.0), 0x80);
  EXPECT_EQ(code(kNaN), 0x7F);
}

// EX-27.
TEST(SmallFloatsTest, Ex27E5M2) {
  EXPECT_EQ(E5M2ToDouble(0x3C), 1);
  EXPECT_EQ(E5M2ToDouble(0x7B), 57344);
  EXPECT_EQ(E5M2ToDouble(0x01), 0x1p-16);
  EXPECT_EQ(E5M2ToDouble(0xC0), -2);
  EXPECT_EQ(E5M2ToDouble(0x7C), kInfinity);
  EXPECT_TRUE(std::isnan(E5M2ToDouble(0x7E)));
}

// AT-44: the byte is the upper half of the f16 word.
TEST(SmallFloatsTest, E5M2IsTheUpperByteOfF16) {
  for (int code = 0; code < 256; ++code) {
    const double from_f16 = F16ToDouble(static_cast<uint16_t>(code << 8));
    const double value = E5M2ToDouble(static_cast<uint8_t>(code));
    EXPECT_TRUE(value == from_f16 || (std::isnan(value) && std::isnan(from_f16))) << code;
  }
}

// EX-27, scale 0.125.
TEST(SmallFloatsTest, Ex27Int8CodesTieToEven) {
  const auto code = [](double x) { return static_cast<int>(DoubleToInt8Code(x / 0.125)); };
  EXPECT_EQ(code(0.3125), 2);
  EXPECT_EQ(code(0.4375), 4);
  EXPECT_EQ(code(-16), -127);
  EXPECT_EQ(code(20), 127);
  EXPECT_EQ(code(kInfinity), 127);
  EXPECT_EQ(code(-kInfinity), -127);
  EXPECT_EQ(code(kNaN), 0);
  for (int half = -253; half <= 253; ++half) {
    const double expected = half % 2 == 0 ? half / 2 : 2 * std::round(half / 4.0);
    EXPECT_EQ(DoubleToInt8Code(half / 2.0), expected) << half;
  }
}

TEST(SmallFloatsTest, ElementsOfEveryTypeComeBack) {
  const double values[] = {0, 1, 2, 5, 100};
  for (int type = 0; type < kNumDTypes; ++type) {
    const DType dtype = static_cast<DType>(type);
    for (const double value : values) {
      std::byte memory[10] = {};
      StoreElement(dtype, value, memory + 1);  // at any alignment
      const double back = LoadElement(dtype, memory + 1);
      if (dtype == DType::kBool) {
        EXPECT_EQ(back, value != 0);
      } else if (dtype == DType::kF8E8M0) {
        EXPECT_TRUE(back == value || value == 0 || value > 2) << back;
      } else {
        // 100 is no e4m3 or e5m2; its neighbours are 96 and 104, 96 and 112.
        const bool coarse = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
        EXPECT_EQ(back, coarse && value == 100 ? 96 : value) << Name(dtype);
      }
      EXPECT_EQ(memory[0], std::byte{0});
      EXPECT_EQ(memory[1 + ElementBytes(dtype)], std::byte{0});
    }
  }
}

TEST(SmallFloatsTest, IntegersRoundSaturateAndTakeNaNAsZero) {
  const auto stored = [](DType dtype, double value) {
    std::byte memory[8] = {};
    StoreElement(dtype, value, memory);
    return LoadElement(dtype, memory);
  };
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    EXPECT_EQ(stored(dtype, kNaN), 0);
    EXPECT_EQ(stored(dtype, kInfinity), Info(dtype).max_finite);
    EXPECT_EQ(stored(dtype, 2.5), 2);
    EXPECT_EQ(stored(dtype, 3.5), 4);
  }
  EXPECT_EQ(stored(DType::kI8, -1000), -128);
  EXPECT_EQ(stored(DType::kU8, -1), 0);
  EXPECT_EQ(stored(DType::kI64, -1e30), -9223372036854775808.0);
}

TEST(DTypeTest, LargestFiniteNumbersAreThoseOfTheFormats) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    std::byte memory[2];
    StoreElement(dtype, Info(dtype).max_finite, memory);
    EXPECT_EQ(LoadElement(dtype, memory), Info(dtype).max_finite) << Name(dtype);
  }
  EXPECT_EQ(Info(DType::kF8E4M3).max_finite, 448);
  EXPECT_EQ(Info(DType::kF8E5M2).max_finite, 57344);
  EXPECT_EQ(Info(DType::kF16).max_finite, 65504);
  EXPECT_EQ(Info(DType::kF8E8M0).max_finite, 0x1p127);
}

}  // namespace
}  // namespace kvblocks::attention
