// LatentCache: an MLA cache of any layout, all slots filled at random, with its rows as plain float64.
//
// The bytes are drawn and then read here, element by element, so nothing of the library's row code is
// trusted. Everything follows from the seed.

#ifndef KVBLOCKS_ATTENTION_TESTING_LATENT_CACHE_H_
#define KVBLOCKS_ATTENTION_TESTING_LATENT_CACHE_H_

#include <cstdint>
#include <vector>

#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/tensor/dtype.h"
#include "kvblocks/attention/testing/dense_oracle.h"
#include "kvblocks/attention/testing/paged_case.h"

namespace kvblocks::attention {

struct LatentCacheOptions {
  KvLayout layout = KvLayout::kMlaLatent;
  DType dtype = DType::kBF16;            // of kMlaLatent and kMlaSplit
  int64_t latent_dim = 64, rotary_dim = 16;  // of the same; the FP8 rows have their own
  int64_t num_blocks = 8, block_size = 16;
  double scale = 1;  // of 8-bit dtypes
  KvRowFormat format = KvRowFormat::kElements;  // of kMlaLatent: a latent record
  uint64_t seed = 1;
};

// Small caches, one of each latent layout, element type and format of records that the operations read.
std::vector<LatentCacheOptions> EveryLatentLayout();

class LatentCache {
 public:
  explicit LatentCache(const LatentCacheOptions& options);

  const KvCacheView& view() const { return view_; }
  int64_t key_dim() const { return view_.key_dim(); }
  int64_t value_dim() const { return view_.value_dim(); }
  // Key row of a slot; its first value_dim() values are the value row.
  const std::vector<double>& row(int64_t slot) const { return rows_[slot]; }
  // Of kMlaLatent and kMlaSplit.
  void SetRow(int64_t slot, const std::vector<double>& values);
  // Every byte 0xFF: NaN, but in int8.
  void Poison(int64_t slot);

 private:
  void DrawRecord(std::mt19937_64& random, std::byte* at, std::vector<double>& row);
  // The stored elements of a slot in row order.
  std::byte* ElementOf(int64_t slot, int64_t d);

  LatentCacheOptions options_;
  Tensor k_, v_;
  KvCacheView view_;
  std::vector<std::vector<double>> rows_;
};

// Attention of q [q_len][H][D] over these rows of caches, in this order.
DenseRequest RequestOverRows(const std::vector<const std::vector<double>*>& rows,
                             std::vector<double> q, int64_t q_len, int64_t num_heads,
                             int64_t value_dim);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_LATENT_CACHE_H_
