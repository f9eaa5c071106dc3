#include "kvblocks/specs/catalogue/pool_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/catalogue/catalogue.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

PoolMemory Llama8bPool() {
  PoolMemory memory;
  memory.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  memory.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  return memory;
}

constexpr int64_t kBlockBytes = 16 * 131072;

TEST(PoolMemoryTest, IsWhatWeightsAndReservesLeave) {
  // 72 - 16.06 - 2 - 1 = 52.94 GB; 72 - 8.03 - 2 - 1 = 60.97 GB.
  EXPECT_EQ(*CacheBytesInMemory(Llama8bPool()) / kBlockBytes, 25243);
  PoolMemory two = Llama8bPool();
  two.tensor_parallel = 2;
  EXPECT_EQ(*CacheBytesInMemory(two) / (kBlockBytes / 2), 58145);
}

TEST(PoolMemoryTest, NoRoomIsSaidWithTheSums) {
  PoolMemory memory = Llama8bPool();
  memory.model = *Catalogue::BuiltIn().FindModel("llama-3.1-70b");
  const auto bytes = CacheBytesInMemory(memory);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(bytes.status().message(), HasSubstr("weights 141.1 GB"));
}

TEST(PoolMemoryTest, BadFieldsAreRefused) {
  PoolMemory memory = Llama8bPool();
  memory.tensor_parallel = 0;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("tensor_parallel is 0"));
  memory = Llama8bPool();
  memory.utilization = 1.5;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("utilization is 1.5"));
  memory = Llama8bPool();
  memory.activation_gb = -1;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("activation_gb is -1"));
}

}  // namespace
}  // namespace kvblocks
