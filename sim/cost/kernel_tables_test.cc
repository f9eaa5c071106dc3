#include "kvblocks/sim/cost/kernel_tables.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/cost/recorded_steps.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

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
    // Host time counts in them, which a captured graph does not spend.
    EXPECT_EQ(tables->Find("gemm", "fp8_block"), nullptr);
    EXPECT_EQ(tables->Find("nothing", "bfloat16"), nullptr);
  }
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
// else of a few that are shipped.
TEST(KernelTablesTest, AgreesWithTheMeasurements) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  struct {
    const char* folder;
    const char* device;
    const char* operation;
    size_t num_keys, num_axes;
  } const cases[] = {{"h100-sxm", "h100-sxm", "attention_decode", 5, 2},
                     {"a100-sxm", "a100-sxm-80gb", "gemm", 1, 3},
                     {"b200", "b200", "mla_decode", 3, 2}};
  for (const auto& c : cases) {
    const auto tables = LoadKernelTables(FindKernelTablesFile(), c.device);
    ASSERT_TRUE(tables.ok()) << tables.status();
    const std::string file = absl::StrCat("/", c.folder, "/", c.operation, ".csv");
    const auto text =
        ReadTextFile(shared == nullptr ? absl::StrCat("sim/cost/testdata/kernels", file)
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
    EXPECT_GT(num_rows, shared == nullptr ? 90 : 1000);
  }
}

}  // namespace
}  // namespace kvblocks::sim
