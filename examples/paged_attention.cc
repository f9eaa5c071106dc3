#include <cstdio>
#include <vector>

#include "kvblocks/attention.h"

int main() {
  using namespace kvblocks::attention;
  constexpr int64_t kBlocks = 8, kBlockSize = 4, kHeads = 2, kKvHeads = 1, kDim = 8, kTokens = 6;

  // One layer's cache, and a request's block table: tokens 0 to 3 in block 5, 4 and 5 in block 2.
  std::vector<float> k_cache(kBlocks * kBlockSize * kKvHeads * kDim), v_cache(k_cache);
  const KvCacheView cache(
      KvLayout::kNhd, ViewOf(absl::MakeSpan(k_cache), {kBlocks, kBlockSize, kKvHeads, kDim}),
      ViewOf(absl::MakeSpan(v_cache), {kBlocks, kBlockSize, kKvHeads, kDim}));
  const std::vector<int32_t> block_table = {5, 2}, seq_lens = {kTokens};
  const std::vector<int64_t> slots = {20, 21, 22, 23, 8, 9};

  // A query of zeros weighs all keys alike, and the value of token t is t: the output is a mean.
  std::vector<float> k(kTokens * kDim, 1), v(kTokens * kDim), q(kHeads * kDim), out(q), lse(kHeads);
  for (int64_t i = 0; i < kTokens * kDim; ++i) v[i] = static_cast<float>(i / kDim);

  ReshapeAndCacheArgs write;
  write.k = ViewOf(absl::MakeSpan(k), {kTokens, kKvHeads, kDim});
  write.v = ViewOf(absl::MakeSpan(v), {kTokens, kKvHeads, kDim});
  write.slot_mapping = ViewOf(absl::MakeSpan(slots));
  write.cache = cache;

  PagedDecodeArgs decode;
  decode.q = ViewOf(absl::MakeSpan(q), {1, kHeads, kDim});
  decode.cache = cache;
  decode.block_table = ViewOf(absl::MakeSpan(block_table), {1, 2});
  decode.seq_lens = ViewOf(absl::MakeSpan(seq_lens));
  decode.max_seq_len = kTokens;
  decode.params.window_left = 3;  // a window of four tokens, the newest included
  decode.out = ViewOf(absl::MakeSpan(out), {1, kHeads, kDim});
  decode.lse = ViewOf(absl::MakeSpan(lse), {1, kHeads});

  absl::Status status = Cpu().ReshapeAndCache({}, write);
  if (status.ok()) status = Cpu().PagedDecode({}, decode);
  if (!status.ok()) {  // names the operation, the argument, its value and the limit
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("mean of tokens 2 to 5: %.2f, weights over e^%.4f\n", out[0], lse[0]);
}
