// Where the float64 engine finds keys and values: caches through block tables, contiguous tensors,
// and lists of slots.
//
// Codes of 8-bit caches are multiplied by their scales here, in float64. The views looked at must
// outlive the rows. No allocation per row.

#ifndef KVBLOCKS_ATTENTION_CPU_REFERENCE_ROWS_H_
#define KVBLOCKS_ATTENTION_CPU_REFERENCE_ROWS_H_

#include <cstdint>
#include <vector>

#include "attention/cpu/reference_engine.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// Keys of requests in a paged cache of any layout. Positions before shared_prefix are looked up in
// row 0 of the table. With kv_start_loc there is no table: the cache is one block, in which request
// b has rows from kv_start_loc[b] on.
class PagedRows final : public KeyRows {
 public:
  PagedRows(const ConstKvCacheView& cache, const ConstTensorView& block_table,
            const KvScales& scales, int64_t shared_prefix = 0,
            const ConstTensorView& kv_start_loc = {});

  void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const override;
  void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const override;

 private:
  int64_t SlotOf(int64_t request, int64_t j) const;

  const ConstKvCacheView cache_;
  const ConstTensorView block_table_;
  const KvScales scales_;
  const ConstTensorView kv_start_loc_;
  const int64_t shared_prefix_, block_size_, key_dim_, value_dim_;
};

// k [rows, Hkv, D] and v [rows, Hkv, Dv], which may be codes; request b has rows from first_row[b]
// on.
class TensorRows final : public KeyRows {
 public:
  TensorRows(const ConstTensorView& k, const ConstTensorView& v, const KvScales& scales,
             std::vector<int64_t> first_row)
      : k_(k), v_(v), scales_(scales), first_row_(std::move(first_row)) {}

  void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const override;
  void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const override;

 private:
  const ConstTensorView k_, v_;
  const KvScales scales_;
  const std::vector<int64_t> first_row_;
};

// Listed slots of one or two MLA caches: key j of request b is the j-th of its list.
class ListedRows final : public KeyRows {
 public:
  struct Entry {
    int64_t slot;
    bool extra;  // of the second cache
  };
  ListedRows(const ConstKvCacheView& main, const ConstKvCacheView& extra, double scale,
             std::vector<std::vector<Entry>> lists)
      : main_(main), extra_(extra), scale_(scale), lists_(std::move(lists)) {}

  void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const override;
  void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const override;

 private:
  const ConstKvCacheView main_, extra_;
  const double scale_;  // of the 8-bit codes of kMlaLatent and kMlaSplit
  const std::vector<std::vector<Entry>> lists_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_REFERENCE_ROWS_H_
