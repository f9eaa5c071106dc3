// What layers of every backend must do, with all tensors in device memory. Runs emulated and on
// GPUs.

#include <cstdint>

#include "attention/cuda/testing/device_layers.h"
#include "attention/testing/layer_suite.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention::cuda {
namespace {

const AttentionBackend& Layers() {
  static const auto* const layers =
      new DeviceLayers({.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return *layers;
}

TEST(DeviceLayersTest, CustomMasksAreHonoured) { ExpectCustomMasksAreHonoured(Layers(), {}); }
TEST(DeviceLayersTest, TemplatesAreHonoured) { ExpectTemplatesAreHonoured(Layers(), {}); }
TEST(DeviceLayersTest, OtherMasksAreRefused) { ExpectOtherMasksAreRefused(Layers(), {}); }
TEST(DeviceLayersTest, MlaNeedsNoCache) { ExpectMlaWithoutCache(Layers(), {}); }
TEST(DeviceLayersTest, PiecesAreChunks) { ExpectPiecesAreChunks(Layers(), {}); }
TEST(DeviceLayersTest, BlockSparseRulesAreHonoured) {
  ExpectBlockSparseRulesAreHonoured(Layers(), {});
}
TEST(DeviceLayersTest, RowFormatsAreHonoured) { ExpectRowFormatsAreHonoured(Layers(), {}); }
TEST(DeviceLayersTest, LatentRecordsAreHonoured) { ExpectLatentRecordsAreHonoured(Layers(), {}); }
TEST(DeviceLayersTest, OtherRanksAndSinksAreRefused) {
  ExpectOtherRanksAndSinksAreRefused(Layers(), {});
}

class DeviceLayersOfSeedTest : public testing::TestWithParam<uint64_t> {};
TEST_P(DeviceLayersOfSeedTest, RanksMergeToTheWhole) {
  ExpectRanksMergeToTheWhole(Layers(), {}, GetParam());
}
TEST_P(DeviceLayersOfSeedTest, ShardsAreThePrompt) {
  ExpectShardsAreThePrompt(Layers(), {}, GetParam());
}
TEST_P(DeviceLayersOfSeedTest, SinkRowsAreSeen) { ExpectSinkRowsAreSeen(Layers(), {}, GetParam()); }
TEST_P(DeviceLayersOfSeedTest, EncodersAreSeenWithoutCache) {
  ExpectEncodersAreSeenWithoutCache(Layers(), {}, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Seeds, DeviceLayersOfSeedTest, testing::Range<uint64_t>(1, 4));

}  // namespace
}  // namespace kvblocks::attention::cuda
