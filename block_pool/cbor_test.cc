#include "kvblocks/block_pool/cbor.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

std::string Int(int64_t value) {
  std::string out;
  cbor::AppendInt(value, out);
  return absl::BytesToHexString(out);
}

std::string Int32(int32_t value) {
  char bytes[8];
  return absl::BytesToHexString(
      absl::string_view(bytes, static_cast<size_t>(cbor::WriteInt32(value, bytes) - bytes)));
}

// Appendix A of RFC 8949, and the values where a longer form begins.
TEST(CborTest, IntegersHaveTheirShortestForm) {
  const std::pair<int64_t, const char*> cases[] = {
      {0, "00"},
      {1, "01"},
      {23, "17"},
      {24, "1818"},
      {100, "1864"},
      {255, "18ff"},
      {256, "190100"},
      {1000, "1903e8"},
      {65535, "19ffff"},
      {65536, "1a00010000"},
      {1000000, "1a000f4240"},
      {4294967295, "1affffffff"},
      {4294967296, "1b0000000100000000"},
      {1000000000000, "1b000000e8d4a51000"},
      {std::numeric_limits<int64_t>::max(), "1b7fffffffffffffff"},
      {-1, "20"},
      {-24, "37"},
      {-25, "3818"},
      {-100, "3863"},
      {-256, "38ff"},
      {-257, "390100"},
      {-1000, "3903e7"},
      {-65536, "39ffff"},
      {-65537, "3a00010000"},
      {-4294967296, "3affffffff"},
      {-4294967297, "3b0000000100000000"},
      {std::numeric_limits<int64_t>::min(), "3b7fffffffffffffff"},
  };
  for (const auto& [value, bytes] : cases) EXPECT_EQ(Int(value), bytes) << value;
}

TEST(CborTest, TokensAreIntegers) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const auto value = static_cast<int32_t>(random()) >> (random() % 32);
    ASSERT_EQ(Int32(value), Int(value)) << value;
  }
  for (const int32_t edge : {0, 24, 0x100, 0x10000}) {
    for (int32_t value : {edge - 1, edge, -edge - 1, -edge, -edge + 1}) {
      EXPECT_EQ(Int32(value), Int(value)) << value;
    }
  }
  EXPECT_EQ(Int32(std::numeric_limits<int32_t>::max()), "1a7fffffff");
  EXPECT_EQ(Int32(std::numeric_limits<int32_t>::min()), "3a7fffffff");
}

TEST(CborTest, StringsAndArraysBeginWithTheirLength) {
  const auto hex = [](auto append) {
    std::string out = "-";  // is appended to
    append(out);
    return absl::BytesToHexString(out.substr(1));
  };
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText("", out); }), "60");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText("IETF", out); }), "6449455446");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendBytes("\1\2\3\4", out); }), "4401020304");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendArray(0, out); }), "80");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendArray(24, out); }), "9818");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendText(std::string(24, 'a'), out); }).substr(0, 6),
            "781861");
  EXPECT_EQ(hex([](auto& out) { cbor::AppendBytes(std::string(70000, '\0'), out); }).substr(0, 12),
            "5a0001117000");
}

}  // namespace
}  // namespace kvblocks
