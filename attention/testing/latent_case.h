// LatentCase: a batch of MLA decodes over the shuffled blocks of a LatentCache, and what the dense oracle
// makes of it.
//
// Rows of the cache that are no key's are NaN, and so are outputs before a call; entries of the block
// table behind a request's last block are far out. Everything follows from the options' seed, the
// lengths and the number of heads.

#ifndef KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_
#define KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_

#include <cstdint>
#include <vector>

#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/testing/dense_oracle.h"
#include "kvblocks/attention/testing/latent_cache.h"
#include "kvblocks/attention/testing/paged_case.h"

namespace kvblocks::attention {

struct LatentCase {
  // As many blocks as the lengths need, whatever the options say. Codes with a scale get it in params.
  LatentCase(const LatentCacheOptions& options, std::vector<int64_t> lengths,
             std::vector<int64_t> q_lens, int64_t num_heads, DType q_dtype);

  // Of key j of request b.
  int64_t Slot(int64_t b, int64_t j) const;
  // With query_start_loc if a request has several queries.
  MlaDecodeArgs Args();
  DenseResult Expected() const;

  std::vector<int64_t> lengths, q_lens;
  int64_t heads, block_size;
  LatentCache cache;
  Tensor table, seq_lens, query_start_loc, q, out, lse, scale;
  AttnParams params;  // scale: key_dim^-1/2
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_
