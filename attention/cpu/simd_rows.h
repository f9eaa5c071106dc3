// RowBlock: the query rows that one thread works on together, and their online softmax over tiles
// of keys.
//
// A row is one query token and head. Rows that share a KV head form a group; all rows of a group
// get each tile in turn. Scores, maxima, sums and value sums are kept as kernels want them; Finish
// makes states of them and starts over. Results of a row do not depend on the other rows.
//
// Keeps its memory from use to use; one per thread.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_ROWS_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/cpu/simd_kernels.h"
#include "attention/cpu/simd_key_rows.h"

namespace kvblocks::attention::simd {

// A vector of trivial elements that starts at a cache line and is not initialised.
template <typename T>
class AlignedBuffer {
 public:
  T* Reserve(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T) + 64;
    if (storage_.size() < bytes) storage_.resize(bytes);
    const uintptr_t address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = reinterpret_cast<T*>((address + 63) / 64 * 64);
    return data_;
  }
  T* data() const { return data_; }

 private:
  std::vector<std::byte> storage_;
  T* data_ = nullptr;
};

class RowBlock {
 public:
  // `num_groups` groups of `rows_per_group` rows; dims as the keys and values have them.
  void Begin(int64_t num_groups, int64_t rows_per_group, int64_t key_dim, int64_t value_dim);

  // Room for the query of a row, Padded(key_dim) floats, to be filled before the first tile; and
  // what its products are multiplied with.
  float* query(int64_t group, int64_t row) {
    return queries_.data() + (group * rows_ + row) * key_dim_;
  }
  double& factor(int64_t group, int64_t row) { return factors_[group * rows_ + row]; }

  // Takes a tile into the rows of a group. seen[row] are the keys each row sees, rules[row] what
  // happens to its scores. `next`, if there is one, is fetched from memory meanwhile.
  void AddTile(int64_t group, const TileRows& tile, const uint64_t* seen, const ScoreRules* rules,
               const TileSources* next = nullptr);

  // The state of a row, its values times value_scale; out holds value_dim values.
  void Finish(int64_t group, int64_t row, double value_scale, float* max, float* sum, float* out);
  // Forgets all keys, keeps the queries.
  void Restart();

 private:
  void AddTileToChunk(int64_t group, int64_t begin, int64_t end, const TileRows& tile,
                      const uint64_t* seen, const ScoreRules* rules, const TileSources* next);
  bool AllFiniteAt(const TileRows& tile, uint64_t keys) const;

  int64_t groups_ = 0, rows_ = 0;
  int64_t key_dim_ = 0, value_dim_ = 0;  // padded
  int64_t values_ = 0;
  AlignedBuffer<float> queries_, probabilities_;
  AlignedBuffer<double> scores_, sums_;
  std::vector<double> factors_, rescale_;
  std::vector<uint64_t> weighed_;  // per row of a chunk: seen, with a score above -infinity
  std::vector<RowState> states_;
};

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_ROWS_H_
