// What the two parts of a cascade read and no caller has: lengths without the shared prefix, and
// the prefix cut into pieces that look like requests of a batch, each with all queries.
//
// Piece i is request i: queries [i T, (i + 1) T) of a tensor that repeats q once per piece, and
// piece_keys keys, fewer in the last one. Lengths that leave a request fewer keys behind the prefix
// than it has queries are flagged (kLengthClamped). One launch; reads q once.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct CascadeParams {
  const int32_t* query_start_loc = nullptr;  // [R + 1]
  const int32_t* seq_lens = nullptr;         // [R]
  int32_t num_requests = 0;
  int32_t num_tokens = 0;  // T
  int32_t prefix = 0, piece_keys = 0, num_pieces = 1;
  int32_t* suffix_lens = nullptr;   // [R]
  int32_t* piece_starts = nullptr;  // [pieces + 1]
  int32_t* piece_lens = nullptr;    // [pieces]
  // Rows at multiples of 16 bytes, of a 16-bit type; read only if there are several pieces.
  ConstRows q;
  int32_t num_heads = 0, key_dim = 0;
  void* piece_q = nullptr;  // [pieces, T, H, D], dense
};

Error LaunchCascadeInputs(const LaunchContext& context, const CascadeParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CASCADE_H_
