// Random MLA calls and what the dense oracle makes of them: LatentCase, a batch of decodes over the
// shuffled blocks of a LatentCache; SparseCase, decodes over lists of slots of one or two caches;
// SparsePrefillCase, new tokens over lists of rows.
//
// Some entries of lists are -1 or beyond the cache, and those behind a list's length point at NaN.
// Rows of the cache that are no key's are NaN, and so are outputs before a call; entries of the
// block table behind a request's last block are far out. Everything follows from the options' seed,
// the lengths and the number of heads.

#ifndef KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_
#define KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "attention/testing/paged_case.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/device_types.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

// LatentCache: an MLA cache of any layout, all slots filled at random, with its rows as plain
// float64.
//
// The bytes are drawn and then read here, element by element, so nothing of the library's row code
// is trusted. Everything follows from the seed.

struct LatentCacheOptions {
  KvLayout layout = KvLayout::kMlaLatent;
  DType dtype = DType::kBF16;                // of kMlaLatent and kMlaSplit
  int64_t latent_dim = 64, rotary_dim = 16;  // of the same; the FP8 rows have their own
  int64_t num_blocks = 8, block_size = 16;
  double scale = 1;                             // of 8-bit dtypes
  KvRowFormat format = KvRowFormat::kElements;  // of kMlaLatent: a latent record
  uint64_t seed = 1;
};

// Small caches, one of each latent layout, element type and format of records that the operations
// read.
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

struct LatentCase {
  // As many blocks as the lengths need, whatever the options say. Codes with a scale get it in
  // params.
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

struct SparseCaseOptions {
  LatentCacheOptions cache = {}, extra_cache = {};  // the second where there are extra entries
  int64_t num_heads = 4, queries = 2, entries = 64, extra_entries = 0;
  DType q_dtype = DType::kF32;
  float scale = 0;  // 0: key_dim^-1/2
  bool lengths = false, sink = false, all_invalid = false;
};

struct SparseCase {
  static constexpr int64_t kRequests = 2;

  explicit SparseCase(const SparseCaseOptions& options);

  // Of the outputs as they are, with queries of all requests as rows.
  std::string MismatchNow(const Tolerance& tolerance) const;

  SparseCaseOptions options;
  LatentCache main, extra;
  // The rows that a query's lists name, of main and extra.
  std::vector<std::vector<const std::vector<double>*>> seen;
  Tensor main_indices, main_lens, extra_indices, extra_lens, q, out, lse, sinks, kv_scale;
  SparseMlaDecodeArgs args;

 private:
  void Fill(LatentCache& cache, int64_t count, std::mt19937_64& random, Tensor& indices,
            Tensor& lens, SparseKeys& keys);
};

struct SparsePrefillOptions {
  DType type = DType::kF32;
  int64_t tokens = 5, keys = 200, heads = 3, dim = 80, value_dim = 64, entries = 70;
  std::vector<double> used = {};  // entries that count, per token; none: all
  bool sink = false;
  float scale = 0.125f;
  uint64_t seed = 23;
};

struct SparsePrefillCase {
  explicit SparsePrefillCase(const SparsePrefillOptions& options);

  Tensor q, kv, indices, lens, sinks, out, max_logits, lse;
  SparseMlaPrefillArgs args;
  DenseResult expected;
  std::vector<double> largest;  // logits, as max_logits should have them
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_LATENT_CASE_H_
