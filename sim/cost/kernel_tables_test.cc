#include "sim/cost/kernel_tables.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/cost/recorded_steps.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

TEST(FixedLogTest, PowersOfTwoAreExact) {
  for (int i = 0; i < 62; ++i) {
    EXPECT_EQ(Log2(uint64_t{1} << i), FixedLog{i} << kLogBits);
    EXPECT_EQ(Exp2(FixedLog{i} << kLogBits), int64_t{1} << i);
  }
}

TEST(FixedLogTest, AgreesWithTheLibraryToOneStep) {
  for (uint64_t value = 1; value < (uint64_t{1} << 61); value += value / 7 + 1) {
    const double expected = std::log2(static_cast<double>(value)) * (1 << kLogBits);
    EXPECT_NEAR(static_cast<double>(Log2(value)), expected, 1.5) << value;
    const double back = static_cast<double>(Exp2(Log2(value)));
    EXPECT_NEAR(back / static_cast<double>(value), 1.0,
                value < 1'000'000 ? 1e-6 + 0.5 / static_cast<double>(value) : 1e-6)
        << value;
  }
}

TEST(FixedLogTest, ExponentialsStayInRange) {
  EXPECT_EQ(Exp2(FixedLog{-5} << kLogBits), 0);
  EXPECT_EQ(Exp2(FixedLog{70} << kLogBits), int64_t{1} << 62);
  EXPECT_EQ(Exp2(0), 1);
}

TEST(FixedLogTest, LinesGoOnOutside) {
  EXPECT_EQ(OnLine(0, 10, 4, 18, 2), 14);
  EXPECT_EQ(OnLine(0, 10, 4, 18, 8), 26);
  EXPECT_EQ(OnLine(0, 10, 4, 18, -2), 6);
}

int32_t Stored(double picoseconds) {
  return static_cast<int32_t>(
      std::lround(std::log2(picoseconds) * (1 << KernelGrid::kStoredLogBits)));
}

void ExpectNear(int64_t got, double expected) {
  EXPECT_NEAR(static_cast<double>(got) / expected, 1.0, 4e-4) << got << " for " << expected;
}

TEST(KernelGridTest, IsLinearInLogarithms) {
  const KernelGrid grid({{4, 16}}, {Stored(1e6), Stored(9e6)});
  ExpectNear(grid.At({4}), 1e6);
  ExpectNear(grid.At({16}), 9e6);
  ExpectNear(grid.At({8}), 3e6);  // half way between 4 and 16
}

TEST(KernelGridTest, HasAFloorAndContinuesAbove) {
  const KernelGrid grid({{4, 16}}, {Stored(1e6), Stored(9e6)});
  bool outside = false;
  ExpectNear(grid.At({1}, &outside), 1e6);
  ExpectNear(grid.At({16}, &outside), 9e6);
  EXPECT_FALSE(outside);
  ExpectNear(grid.At({64}, &outside), 81e6);
  EXPECT_TRUE(outside);
}

TEST(KernelGridTest, InterpolatesOverAllAxes) {
  // x^1 y^2 z^0.5, which is linear in logarithms.
  const std::vector<int64_t> x = {1, 8}, y = {2, 32}, z = {1, 100, 10000};
  std::vector<int32_t> times;
  const auto f = [](double a, double b, double c) { return 1e6 * a * b * b * std::sqrt(c); };
  for (const int64_t a : x) {
    for (const int64_t b : y) {
      for (const int64_t c : z) {
        times.push_back(
            Stored(f(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c))));
      }
    }
  }
  const KernelGrid grid({x, y, z}, times);
  ExpectNear(grid.At({3, 7, 500}), f(3, 7, 500));
  ExpectNear(grid.At({8, 32, 10000}), f(8, 32, 10000));
  ExpectNear(grid.At({16, 3, 30}), f(16, 3, 30));
}

TEST(KernelGridTest, RowsMayEndEarly) {
  // The second row lacks what did not fit into memory; the first one goes on.
  const int32_t hole = KernelGrid::kHole;
  const KernelGrid grid({{1, 4}, {1, 10, 100}}, {Stored(1e6), Stored(1e7), Stored(1e8),  //
                                                 Stored(2e6), Stored(2e7), hole});
  ExpectNear(grid.At({1, 100}), 1e8);
  bool outside = false;
  ExpectNear(grid.At({4, 100}, &outside), 2e8);
  EXPECT_TRUE(outside);
  ExpectNear(grid.At({2, 100}), std::sqrt(2.0) * 1e8);
}

TEST(KernelGridTest, EmptyRowsAreSteppedOver) {
  const int32_t hole = KernelGrid::kHole;
  const KernelGrid grid({{1, 4, 16}, {1, 10}},
                        {Stored(1e6), Stored(1e7), hole, hole, Stored(16e6), Stored(16e7)});
  ExpectNear(grid.At({4, 1}), 4e6);
  const KernelGrid first({{1, 4}, {1, 10}}, {hole, hole, Stored(3e6), hole});
  ExpectNear(first.At({1, 5}), 3e6);
}

TEST(KernelGridTest, TimesStayInRange) {
  const KernelGrid steep({{1, 2}}, {Stored(1), Stored(1e9)});
  EXPECT_EQ(steep.At({int64_t{1} << 40}), KernelGrid::kMaxTime);
  const KernelGrid falling({{1, 2}}, {Stored(1e9), Stored(1)});
  EXPECT_EQ(falling.At({int64_t{1} << 40}), 1);
}

std::string ShippedFile() {
  std::ifstream file(FindKernelTablesFile(), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(KernelTablesTest, TheShippedFileHasTheMeasuredDevices) {
  ASSERT_NE(FindKernelTablesFile(), "");
  for (const char* device :
       {"a100-sxm-80gb", "b200", "b300", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000"}) {
    const auto tables = LoadKernelTables(FindKernelTablesFile(), device);
    ASSERT_TRUE(tables.ok()) << tables.status();
    EXPECT_EQ(tables->device(), device);
    EXPECT_NE(tables->Find("gemm", "bfloat16"), nullptr);
    EXPECT_NE(tables->Find("allreduce", "2"), nullptr);
    // Only from captured graphs: elsewhere host time counts in them.
    const bool is_captured = std::string_view(device).starts_with("h") || device[0] == 'b';
    const KernelGrid* blocks = tables->Find("gemm", "fp8_block");
    ASSERT_EQ(blocks != nullptr, is_captured) << device;
    if (blocks != nullptr) {
      EXPECT_LT(blocks->At({2048, 3072, 1}), 20'000'000) << device;
    }
    EXPECT_EQ(tables->GridsOf("allreduce_fused").size(), is_captured ? 3 : 0) << device;
    EXPECT_EQ(tables->Find("nothing", "bfloat16"), nullptr);
  }
}

// Up to the size at which vLLM stops fusing, and without the plain exchange's jump.
TEST(KernelTablesTest, FusedAllReducesEndWhereTheEngineStopsFusing) {
  constexpr int64_t kMib = 1 << 20;
  const std::pair<const char*, std::vector<int64_t>> cases[] = {
      {"h100-sxm", {64 * kMib, 2 * kMib, kMib / 2}},
      {"h200-sxm", {64 * kMib, 2 * kMib, kMib / 2}},
      {"b200", {64 * kMib, 32 * kMib, kMib}},
      {"b300", {64 * kMib, 64 * kMib, 2 * kMib}}};
  for (const auto& [device, last] : cases) {
    const auto tables = LoadKernelTables(FindKernelTablesFile(), device);
    ASSERT_TRUE(tables.ok()) << tables.status();
    for (size_t i = 0; i < last.size(); ++i) {
      EXPECT_EQ(tables->Find("allreduce_fused", absl::StrCat(2 << i))->last(0), last[i]) << device;
    }
  }
  const auto b200 = LoadKernelTables(FindKernelTablesFile(), "b200");
  ExpectNear(b200->Find("allreduce_fused", "8")->At({kMib / 4}), 7.930e6);
  EXPECT_GT(b200->Find("allreduce", "8")->At({kMib / 4}), 25'000'000);
}

TEST(KernelTablesTest, SaysWhoseMeasurementsTheyAre) {
  const auto tables = LoadKernelTables(FindKernelTablesFile(), "b200");
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_THAT(tables->attribution(),
              HasSubstr("Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"));
  EXPECT_THAT(tables->attribution(), HasSubstr("Apache-2.0"));
  EXPECT_THAT(tables->attribution(), HasSubstr("modified"));
}

TEST(KernelTablesTest, OtherDevicesAndFilesAreRefused) {
  const auto other = LoadKernelTables(FindKernelTablesFile(), "rtx-4090");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(other.status().message(),
              HasSubstr("no kernel times of rtx-4090; there are those of a100"));
  EXPECT_EQ(LoadKernelTables("/nonexistent", "b200").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ParseKernelTables("no such file", "b200", "FILE").status().message(),
              HasSubstr("FILE: not a file of kernel times"));
}

TEST(KernelTablesTest, DamageIsFound) {
  const std::string good = ShippedFile();
  ASSERT_TRUE(ParseKernelTables(good, "b200", "FILE").ok());
  const std::string cut = good.substr(0, good.size() / 2);
  EXPECT_FALSE(ParseKernelTables(cut, "rtx-pro-6000", "FILE").ok());
  // In the middle of the deflated part of one device; the others are not unpacked.
  std::string damaged = good;
  const size_t at = good.find("b200") + 5000;
  for (size_t i = 0; i < 16; ++i) damaged[at + i] = static_cast<char>(damaged[at + i] ^ 0x5a);
  EXPECT_THAT(ParseKernelTables(damaged, "b200", "FILE").status().message(), HasSubstr("damaged"));
  EXPECT_TRUE(ParseKernelTables(damaged, "l40s", "FILE").ok());
}

// Packing loses less than 0.02 % of the times as they were measured: of all of them where they are,
// else of a few that are shipped. Those of the wheel are shipped only.
TEST(KernelTablesTest, AgreesWithTheMeasurements) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  struct {
    const char* folder;
    const char* device;
    const char* operation;
    size_t num_keys, num_axes;
    bool is_of_wheel = false;
  } const cases[] = {{"l40s", "l40s", "attention_decode", 5, 2},
                     {"a100-sxm", "a100-sxm-80gb", "gemm", 1, 3},
                     {"rtx-pro-6000", "rtx-pro-6000", "mla_decode", 3, 2},
                     {"b200", "b200", "gemm", 1, 3, true},
                     {"h200-sxm", "h200-sxm", "mla_decode", 3, 2, true}};
  for (const auto& c : cases) {
    const auto tables = LoadKernelTables(FindKernelTablesFile(), c.device);
    ASSERT_TRUE(tables.ok()) << tables.status();
    const std::string file = absl::StrCat("/", c.folder, "/", c.operation, ".csv");
    const bool is_small = shared == nullptr || c.is_of_wheel;
    const auto text = ReadTextFile(
        is_small ? absl::StrCat("sim/cost/testdata/kernels", file)
                          : absl::StrCat(shared, "/measurements/kernels", file, ".gz"));
    ASSERT_TRUE(text.ok()) << text.status();
    int64_t num_rows = 0;
    for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> cells = absl::StrSplit(line, ',');
      double time_us;
      if (!absl::SimpleAtod(cells.back(), &time_us)) continue;  // the header
      std::string key;
      for (size_t i = 0; i < c.num_keys; ++i) absl::StrAppend(&key, i > 0 ? "|" : "", cells[i]);
      const KernelGrid* grid = tables->Find(c.operation, key);
      if (grid == nullptr) {
        EXPECT_EQ(key, "fp8_block") << line;
        continue;
      }
      std::vector<int64_t> counts;
      for (size_t i = 0; i < c.num_axes; ++i) {
        int64_t count;
        ASSERT_TRUE(absl::SimpleAtoi(cells[c.num_keys + i], &count)) << line;
        counts.push_back(count);
      }
      EXPECT_NEAR(static_cast<double>(grid->At(counts)) / (time_us * 1e6), 1.0, 2e-4) << line;
      ++num_rows;
    }
    EXPECT_GT(num_rows, is_small ? 60 : 1000);
  }
}

}  // namespace
}  // namespace kvblocks::sim
