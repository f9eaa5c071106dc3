// The float64 attention engine behind every operation of CPU_REFERENCE.
//
// An AttendBatch says which query rows there are, where their keys come from (KeyRows) and how
// scores are made; Attend computes each (row, head) in two passes, the exact maximum first, then
// exponentials and the value sum in key order, piece by piece if the keys are cut, and hands the
// states of the pieces to the caller. Rows share nothing but the loaded keys, so results depend
// neither on the number of threads nor on what else is in the batch.
//
// Never touched: keys that no row of the batch sees, and so their block-table entries.

#ifndef KVBLOCKS_ATTENTION_CPU_REFERENCE_ENGINE_H_
#define KVBLOCKS_ATTENTION_CPU_REFERENCE_ENGINE_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/split_planner.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// Keys and values by position in their request, dequantised.
class KeyRows {
 public:
  virtual ~KeyRows() = default;
  virtual void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const = 0;
  virtual void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const = 0;
};

struct AttendRequest {
  int64_t index = 0;      // in the batch: of its block table, scales and mask
  int64_t first_row = 0;  // of its queries
  int64_t q_len = 0, kv_len = 0;
  std::vector<int64_t> cuts;  // ascending in (0, kv_len): where one piece ends and the next begins
};

struct AttendBatch {
  int64_t num_heads = 0, num_kv_heads = 1, key_dim = 0, value_dim = 0;
  std::vector<AttendRequest> requests;
  ConstTensorView query_positions;  // i32 [rows], or absent: kv_len - q_len + i
  const KeyRows* keys = nullptr;
  const AttnParams* params = nullptr;
};

// What a row saw of a piece of its keys: the largest score, the sum of e^(s - max), and the sum of
// e^(s - max) v, not divided. Nothing visible: -infinity, 0, zeros.
struct PieceState {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  absl::Span<double> values;
};

// Calls load_query(row, head, key_dim values) and finish(row, head, states of its pieces, in order)
// once for each row and head, from any of the context's threads.
void Attend(
    const ExecContext& context, const AttendBatch& batch,
    absl::FunctionRef<void(int64_t row, int64_t head, double* out)> load_query,
    absl::FunctionRef<void(int64_t row, int64_t head, absl::Span<PieceState> pieces)> finish);

// Merges the states into one whose values are divided by its sum; returns the log-sum-exp. The
// result is in pieces[0].values. A single piece is only divided.
double MergePieces(absl::Span<PieceState> pieces);

// Writes finished rows: applies the head's sink, divides by out_scale if it is set, rounds once.
struct ReferenceWriter {
  ConstTensorView sinks;
  float out_scale = 0;
  TensorView out, lse;  // lse may be absent

  void Write(int64_t row, int64_t head, absl::Span<double> values, double row_lse) const;
};

// Where a split policy or a plan cuts the keys of a request.
// Ascending, in (0, kv_len). Auto without a plan is one piece.
std::vector<int64_t> CutsOf(const SplitPolicy& policy, int64_t kv_len, int64_t block_size);
std::vector<int64_t> CutsOf(const SplitPlan& plan, int64_t request, int64_t kv_len);
// One cut, or none if it is at or past the end.
std::vector<int64_t> CutsAt(int64_t position, int64_t kv_len);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_REFERENCE_ENGINE_H_
