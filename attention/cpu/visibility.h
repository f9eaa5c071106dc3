// Visibility: which keys a query row of a CPU backend has to look at, and what an explicit mask
// adds to their scores.
//
// Rules that are intervals (length, causal, window, chunk, the band of an explicit mask) are folded
// into [lo, hi); block-sparse rules and mask tensors remain a test per key. Keys outside the
// interval and keys that fail the test are hidden: neither their rows nor, for whole blocks
// outside, their block-table entries may be touched. Mask entries that hide (markers, bits,
// -infinity) fail the test; other additive entries are biases.
//
// Explicit masks: full masks are asked at row i, or at p if rows_are_absolute, from where the band
// of mode 0 counts, too. A template is read at t = j - (i + o): entry [max(0, -t)][max(0, t)],
// either index clamped to the template; o is 0 for mode 2, kv_len - q_len for modes 3 and 4. Mode 4
// hides what the template hides and what lies outside the band. Bits of kRaggedBits follow each
// other without padding between requests, rows being i always.
//
// Immutable; a row costs O(1), a test O(1). Views of the params must outlive it.

#ifndef KVBLOCKS_ATTENTION_CPU_VISIBILITY_H_
#define KVBLOCKS_ATTENTION_CPU_VISIBILITY_H_

#include <cstdint>

#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

class Visibility {
 public:
  Visibility(const AttnParams& params, int64_t num_heads, int64_t num_kv_heads);

  // A request of the batch.
  struct Request {
    int64_t index = 0;
    int64_t q_len = 0, kv_len = 0;
    int64_t mask_bits_before = 0;  // sum of q_len * kv_len of the requests before it: kRaggedBits
  };

  // What query row i at position p of head h sees.
  struct Row {
    int64_t lo = 0, hi = 0;  // lo >= hi: nothing
    bool needs_test = false;
    bool has_bias = false;

    int64_t p = 0;
    int64_t sparse_offset = 0;        // of the block-sparse rule, modulo its vert_stride
    int64_t mask_row = 0;             // i or p; kRaggedBits: the first bit of the row
    int64_t diagonal = 0;             // the column at which a template has its diagonal
    const std::byte* mask = nullptr;  // the row of a mask with one row per query
  };
  Row RowOf(const Request& request, int64_t i, int64_t p, int64_t head) const;

  // Whether key j of [lo, hi) is visible; needed only if row.needs_test.
  bool Visible(const Row& row, int64_t j) const;
  // What the mask adds to the score of a visible key; 0 unless row.has_bias.
  double Bias(const Row& row, int64_t j) const;

 private:
  double MaskValue(const Row& row, int64_t j) const;

  const AttnParams& params_;
  int64_t num_heads_, num_kv_heads_;
  bool additive_;    // mask entries are added; else not 0 hides
  bool has_tensor_;  // else a mask hides nothing
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_VISIBILITY_H_
