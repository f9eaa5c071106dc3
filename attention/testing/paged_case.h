// PagedCase: a random batch over a paged cache, ready for an operation, with its answer by the
// dense oracle.
//
// Requests of given lengths get blocks with shuffled ids in a cache of any dense layout and element
// type; keys and values are about normal, rounded (or quantised with random scales) to that type,
// and kept as plain float64 rows, too. Whatever an operation must not read is poisoned: rows past a
// length and blocks nobody owns hold NaN (int8: -128), table entries past a length 2147480000. The
// queries come as a slice of a wider, fused tensor. Everything follows from the seed.
//
// Vectors with scales of their own (KvRowFormat) lie as MakeKvCacheView places them. Their codes
// are made here, from scales that differ from vector to vector and are no quantiser's choice;
// poison is bytes of 0xff, which makes every such scale a NaN.

#ifndef KVBLOCKS_ATTENTION_TESTING_PAGED_CASE_H_
#define KVBLOCKS_ATTENTION_TESTING_PAGED_CASE_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "attention/testing/tolerance.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// Memory of any element type with a row-major view on it.
struct Tensor {
  Tensor() = default;
  Tensor(DType dtype, std::vector<int64_t> extents);
  Tensor(Tensor&&) = default;  // a copy's view would look into the original
  Tensor& operator=(Tensor&&) = default;

  std::vector<std::byte> bytes;
  TensorView view;

  // Element by element, in row-major order; Set rounds to the type. Get is for any strided view.
  void Set(const std::vector<double>& values);
  std::vector<double> Get() const;
};
std::vector<double> ValuesOf(const ConstTensorView& view);
// Tensors of these values: float32 [n], int32, and int64 [n].
Tensor FloatTensor(const std::vector<double>& values);
Tensor IntTensor(const std::vector<double>& values, std::vector<int64_t> extents);
Tensor SlotTensor(const std::vector<double>& slots);
// Of the keys or the values of a dense cache whose layout has heads.
std::vector<int64_t> CacheExtents(bool key, KvLayout layout, DType dtype, int64_t blocks,
                                  int64_t block_size, int64_t heads, int64_t dim);
// Elements [begin, begin + count).
std::vector<double> Part(const std::vector<double>& all, int64_t begin, int64_t count);
// NaN, or the code that stands for the most negative number where there is none.
void FillWithPoison(Tensor& tensor);

// A context that tells what operations flag.
struct Flagged {
  Flagged() { context.error_flags = &flags; }
  Flagged(const Flagged&) = delete;

  uint32_t bits = 0;
  DeviceErrorFlags flags{&bits};
  ExecContext context;
};

struct PagedCaseOptions {
  // One each per request: total length, and new tokens among them (<= length, 0 allowed; none
  // given: one each).
  std::vector<int64_t> lengths = {1, 15, 16, 17, 0, 40};
  std::vector<int64_t> q_lens = {};
  int64_t num_heads = 4, num_kv_heads = 2;
  int64_t key_dim = 16, value_dim = 16;
  int64_t block_size = 16;
  KvLayout layout = KvLayout::kNhd;
  DType q_dtype = DType::kF32;      // of queries and outputs; codes: kF8E4M3
  DType out_dtype = DType::kF32;    // where queries are codes
  DType cache_dtype = DType::kF32;  // codes: kI8 or kF8E4M3, kU8 of two each
  KvRowFormat format = KvRowFormat::kElements;
  enum class Scales { kOne, kPerHead, kPerRequest };
  Scales scales = Scales::kOne;     // of e4m3, e5m2, int8 caches; of e4m3 queries one or per head
  bool interleave_kv = false;       // kNhd and kHnd: K and V in one allocation
  double q_factor = 1;              // queries are this times normal
  uint64_t seed = 1;
};

class PagedCase {
 public:
  explicit PagedCase(const PagedCaseOptions& options);
  PagedCase(const PagedCase&) = delete;
  PagedCase& operator=(const PagedCase&) = delete;

  // Scale D^-1/2, causal, and the scales of the cache; for tests to change before they make
  // arguments. Views of what it points to must live as long.
  AttnParams params;
  // What params.mask hides or adds, as the oracle sees it; request b, row i, key j, head h.
  std::function<bool(int64_t b, int64_t i, int64_t j, int64_t h)> hide;
  std::function<double(int64_t b, int64_t i, int64_t j, int64_t h)> bias;
  std::vector<int32_t> query_positions;  // [T] or empty

  // Arguments that write to out and lse. Decode needs q_lens of 1.
  PagedDecodeArgs DecodeArgs();
  PagedPrefillArgs PrefillArgs();
  // The new tokens against all keys of their requests, from contiguous tensors; for caches of
  // floats and of e4m3.
  VarlenSelfAttentionArgs VarlenArgs();

  // The dense oracle on every request, rows one after another.
  DenseResult Expected() const;
  // out and lse against Expected(): empty if within the limits, else the worst offence.
  std::string Mismatch(const Tolerance& tolerance) const;
  // Fills out and lse with NaN, so that what an operation forgets is seen.
  void ClearOutputs();

  // Moves the contents of the blocks to new ids, ids as the new ones; poison goes along.
  void PermuteBlocks(std::mt19937_64& random);
  // Gives the table entry of each block that `dead` names (request, column) an id whose block is
  // poison, or the null block 0.
  void KillBlocks(const std::function<bool(int64_t b, int64_t column)>& dead, bool null_block);
  // Gives all requests with keys the first `blocks` blocks of the first one.
  void SharePrefix(int64_t blocks);
  // Changes the plain row and the stored bytes of key j.
  void SetKey(int64_t b, int64_t j, int64_t kv_head, const std::vector<double>& row);
  void SetValue(int64_t b, int64_t j, int64_t kv_head, const std::vector<double>& row);
  void SetQuery(int64_t t, int64_t head, const std::vector<double>& row);

  const PagedCaseOptions& options() const { return options_; }
  int64_t num_requests() const { return static_cast<int64_t>(options_.lengths.size()); }
  int64_t num_tokens() const { return query_start_.back(); }
  KvCacheView cache() const { return cache_; }
  DenseRequest& request(int64_t b) { return requests_[b]; }

  Tensor q, k_bytes, v_bytes;
  Tensor block_table, seq_lens, query_start_loc, kv_start_loc;
  Tensor k_scales, v_scales, q_scales;
  Tensor k_rows, v_rows;  // contiguous, made by VarlenArgs
  Tensor positions;
  Tensor out, lse;

 private:
  // The element of K or V at a slot; d < its dimension.
  std::byte* Element(bool key, int64_t slot, int64_t kv_head, int64_t d);
  absl::Span<std::byte> BlockBytes(Tensor& tensor, int64_t block) const;
  void StoreQuantised(bool key, int64_t b, int64_t j, int64_t kv_head, const double* row,
                      double* plain);
  // Rounds a row as the cache does, stores it, and writes the plain values to `plain`.
  void Store(bool key, int64_t b, int64_t j, int64_t kv_head, const double* row);
  double ScaleOf(bool key, int64_t b, int64_t kv_head) const;
  double QueryScaleOf(int64_t head) const;
  int64_t SlotOf(int64_t b, int64_t j) const;

  PagedCaseOptions options_;
  KvCacheView cache_;
  std::vector<DenseRequest> requests_;
  std::vector<int64_t> query_start_;
  int64_t num_blocks_ = 0;
};

// All bytes of both outputs, for comparisons to the bit.
std::vector<std::byte> OutputBytes(const PagedCase& paged);

// Numbers that follow from a seed alone, the same with every standard library.
double UniformDraw(std::mt19937_64& random);  // [0, 1)
// Nearly normal, mean 0 and variance 1: the sum of four uniform draws, within 3.5.
double NormalDraw(std::mt19937_64& random);
std::vector<double> NormalDraws(std::mt19937_64& random, int64_t count);
int64_t IntegerDraw(std::mt19937_64& random, int64_t low, int64_t high);  // inclusive

// The parameters an operation takes as the oracle takes them, without masks.
DenseParams ToDense(const AttnParams& params);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_PAGED_CASE_H_
