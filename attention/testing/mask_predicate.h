// What an explicit mask says: whether it hides key j from query row i of a request.
//
// One function for every form, encoding and mode, meant for references, tests and cold code: it
// loads one element per call. Kernels evaluate the same rule in their own ways and are held against
// it. A template of N x N is read as a Toeplitz mask: with t = j - (i + o), o = S2 - S1 (0 in mode
// 2), the element at row max(0, -t), column max(0, t), both at most N - 1, so that its far corners
// extend outwards. Mode 4 hides what the template hides and what lies outside the band.

#ifndef KVBLOCKS_ATTENTION_TESTING_MASK_PREDICATE_H_
#define KVBLOCKS_ATTENTION_TESTING_MASK_PREDICATE_H_

#include <cstdint>

#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

// A request as a mask sees it.
struct MaskedRequest {
  int64_t index = 0;        // in the batch
  int64_t num_queries = 0;  // S1: rows of new tokens
  int64_t num_keys = 0;     // S2: the total length
  int64_t first_bit = 0;    // kRaggedBits: sum of S1 * S2 over the requests before this one
};

// Whether the mask hides key j from row i. An additive mask hides by -infinity; one of encoding
// kAdditiveFinite by -10000 or less, which operations add to the score instead of dropping the key.
// REQUIRES: an operation's Check accepts the mask for a batch with this request; 0 <= i < S1,
// 0 <= j < S2.
bool MaskHides(const ExplicitMask& mask, const MaskedRequest& request, int64_t head, int64_t i,
               int64_t j);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_MASK_PREDICATE_H_
