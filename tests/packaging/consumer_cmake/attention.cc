// A query of zeros weighs all keys alike, so attention gives the mean of the values.
#include "kvblocks/attention.h"

#include <cstdio>
#include <vector>

int main() {
  using namespace kvblocks::attention;
  constexpr int64_t kBlocks = 2, kBlockSize = 4, kDim = 8;
  std::vector<float> keys(kBlocks * kBlockSize * kDim, 1), values(keys), query(kDim, 0), out(kDim);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / kDim);
  const std::vector<int32_t> block_table = {1}, seq_lens = {3};  // slots 4, 5, 6

  PagedDecodeArgs decode;
  decode.q = ViewOf(absl::MakeSpan(query), {1, 1, kDim});
  decode.cache =
      KvCacheView(KvLayout::kNhd, ViewOf(absl::MakeSpan(keys), {kBlocks, kBlockSize, 1, kDim}),
                  ViewOf(absl::MakeSpan(values), {kBlocks, kBlockSize, 1, kDim}));
  decode.block_table = ViewOf(absl::MakeSpan(block_table), {1, 1});
  decode.seq_lens = ViewOf(absl::MakeSpan(seq_lens));
  decode.max_seq_len = 3;
  decode.out = ViewOf(absl::MakeSpan(out), {1, 1, kDim});
  const absl::Status status = Cpu().PagedDecode({}, decode);
  std::printf("attention: mean %.3f %s\n", out[0], status.ToString().c_str());
  return status.ok() && out[0] > 4.999f && out[0] < 5.001f ? 0 : 1;
}
