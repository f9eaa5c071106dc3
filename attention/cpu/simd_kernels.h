// The inner loops of the SIMD backend: what is done to one tile of at most 64 keys, for several
// query rows at once. Compiled for several instruction sets; the best one of the machine is chosen
// at the first call.
//
// A tile is 64 pointers to key rows and 64 to value rows, of f32, f16, bf16 or 8-bit codes (without
// their scale), wherever those are: rows of a cache are used in place where the cache allows it.
// Rows are padded to a multiple of kRowPad elements, or have such a size.
//
// Always: every number depends on its own row and keys alone and comes by the same order of
// operations, however many rows or keys are computed together; keys that a row does not see are
// neutral. So results do not depend on how a batch is cut into blocks of rows, bit for bit.
//
// Precision: products are summed in float32 by a few terms per lane, lanes, scores and sums over
// tiles in float64, exponentials and probabilities are float32.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_KERNELS_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "checks/ceil_div.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::simd {

inline constexpr int kTileKeys = 64;
inline constexpr int64_t kRowPad = 16;  // a multiple of every vector length
constexpr int64_t Padded(int64_t dim) { return RoundUp(dim, kRowPad); }

// Whether the kernels take elements of this type.
inline bool IsRowType(DType dtype) {
  return IsQuantizedCode(dtype) || (IsComputeType(dtype) && dtype != DType::kF64);
}

// Memory that will be read soon: a piece per key, asked for bit by bit while a tile is computed.
// Null rows: none.
struct Upcoming {
  const void* const* rows = nullptr;
  int64_t bytes = 0;  // of each
};

// Scores of all keys in groups of 16 that `keys_seen` touches: scores[row * 64 + key] = factor[row]
// * <q row, key>. Pointers of such groups must all be valid. dim is padded; q rows have
//   stride dim.
struct ScoreTileArgs {
  const float* q;
  int num_rows;
  const void* const* keys;
  DType type;
  int64_t dim;
  uint64_t keys_seen;
  const double* factor;  // per row
  double* scores;
  Upcoming upcoming;
};
void ScoreTile(const ScoreTileArgs& args);

// What happens to scores between the product and the softmax, for one row of one tile.
struct ScoreRules {
  double soft_cap = 0;               // 0: off
  double alibi_slope = 0;            // added: slope * (first_distance + key)
  double first_distance = 0;         // j - p of the tile's first key
  const double* additive = nullptr;  // [64], added
};

// State of the online softmax of one row. The maximum is a float32 number, the largest that is not
// above the largest score, so that it can be handed out as one.
struct RowState {
  double max;
  double sum;
};

// One row: applies the rules, hides the keys not in `*seen`, takes those with a score of -infinity
// out of it, moves the state on, writes the probabilities relative to the new maximum (0 for hidden
// keys) and returns the factor that what was accumulated before must be scaled with.
double SoftmaxTile(double* scores, uint64_t* seen, const ScoreRules& rules, RowState* state,
                   float* probabilities);

// acc[row] = acc[row] * rescale[row] + sum over keys [begin, end) of p * value row. acc rows are
// float64, with a stride of dim; dim is padded.
struct AccumulateTileArgs {
  const float* probabilities;  // [row * 64 + key]
  int num_rows;
  const void* const* values;
  DType type;
  int64_t dim;
  int begin, end;
  const double* rescale;
  double* acc;
  Upcoming upcoming;
};
void AccumulateTile(const AccumulateTileArgs& args);

// Whether the first n elements, a multiple of kRowPad, are neither NaN nor infinite.
bool AllFinite(const void* row, DType type, int64_t n);

// n elements of any narrow float, float32 or int8 as float32, exactly; codes without their scale.
// The elements up to the next multiple of kRowPad become 0.
void ConvertRow(DType from, const std::byte* source, int64_t n, float* out);
// Sixteen rows out of columns with a stride of `stride` bytes, 16 elements each: out[row *
// row_floats + d] is element `row` of column d, for d < n. The elements up to the next multiple of
// kRowPad become 0.
void ConvertSixteenColumns(DType from, const std::byte* source, int64_t stride, int64_t n,
                           float* out, int64_t row_floats);
// A float32 row rounded to nearest even into f32, f16 or bf16.
void RoundRow(DType to, const float* source, int64_t n, std::byte* out);

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_KERNELS_H_
