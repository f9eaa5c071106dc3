// PagedPrefill and VarlenSelfAttention on tensor cores: 16-bit elements or codes of 8 bits, keys
// from pages or from contiguous rows.
//
// Two builds of one operation behind one launch: mma.sync kernels for every GPU from compute
// capability 8.0 on, and wgmma kernels that are taken on 9.0. Work is cut into
// tiles of query rows, a row being a pair of a new token and a head of the group that shares a KV
// head; grids follow from bounds alone. Where row tiles are fewer than a device does at a time, the
// keys of each can be cut into equal pieces, whose states LaunchPrefillMerge
// makes outputs of: how many pieces is up to the caller, PiecesForPrefill says what is fastest.
// Nothing is allocated.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Where pieces of keys leave their states: float32, dense. A state is the sum of its values, each
// weighed 2^(score - reference) with scores in binary orders, and that reference beside the sum of
// the weights, which is 0 for what sees nothing. Without `outs` there is one piece, and outputs are
// written.
struct PrefillPieces {
  int32_t count = 1;
  float* outs = nullptr;   // [count, T, H, Dv]
  float* stats = nullptr;  // [count, T, H, 2]
};
inline constexpr int32_t kMostPrefillPieces = 31;

// max_seq_len is for the order of work alone.
struct PrefillParams : DenseAttention {
  // >= 0: all tokens are of one request with so many keys, which is known without query_start_loc
  // and lengths.
  int32_t only_length = -1;
  // With `outs`, neither out, out_scale, lse nor sinks are looked at.
  PrefillPieces pieces = {};
  // Begin while the kernel before on the stream still runs: it writes nothing that this one reads
  // or writes, nor reads what this one writes. Whoever waits for this one waits for that one, too.
  bool overlaps_previous = false;
};

// Whether these kernels do it: queries of a 16-bit type; keys and values of the same, head sizes
// that are multiples of 8 up to 256, or codes, multiples of 16 up to 128, with which queries may be
// e4m3, too; rows at multiples of 16 bytes (queries in codes: 8), or kPagedX in blocks of multiples
// of 8.
bool TakesPrefill(const PrefillParams& params);

// Of these bounds, how many pieces of keys take least time on a device with so many
// multiprocessors, and the bytes of states that one piece of all rows leaves.
int32_t PiecesForPrefill(const LaunchContext& context, const PrefillParams& params);
int64_t PrefillPieceBytes(const PrefillParams& params);

// REQUIRES: TakesPrefill(params); at most kMostPrefillPieces.
Error LaunchPrefill(const LaunchContext& context, const PrefillParams& params);

// The prefill kernels of compute capability 9.0: what LaunchPrefill takes there where it can.

// Of what TakesPrefill takes: head sizes up to 128, or of 16-bit keys 192 with values of at most
// 128; K and V as the bulk copy engine can copy them: blocks of a multiple of 8 tokens, strides
// that are positive and below 2^40 bytes. Queries in codes: over keys in e4m3, rows at multiples of
// 16 bytes. These are multiplied with K as codes, with sums in some 14 bits; all other products are
// of 16-bit types in which codes are exact. Special cases as the next function says.
bool TakesPrefillHopper(const PrefillParams& params);
// Of special cases 16-bit keys of head sizes up to 128: masks that only hide and block-sparse rules
// over the strided layouts, or kPagedX in blocks of a multiple of 16 tokens without either.
bool TakesPrefillHopperSpecial(const PrefillParams& params);

// REQUIRES: both, and a device of compute capability 9.0.
Error LaunchPrefillHopper(const LaunchContext& context, const PrefillParams& params);
// Its parts for codes and for special cases.
Error LaunchPrefillHopperCodes(const LaunchContext& context, const PrefillParams& params);
Error LaunchPrefillHopperSpecial(const LaunchContext& context, const PrefillParams& params);

// Makes outputs of the states that prefill's pieces of keys left (PrefillPieces).
//
// States are summed in order, those without keys left out, then the sink is applied. One further
// state per row may come from elsewhere: what a cascade's requests have behind their prefix. Rows
// that no request has (from query_start_loc[R] on) are left alone. A warp takes a row of one head;
// each state is read once.

struct PrefillMergeParams {
  PrefillPieces pieces;
  int32_t num_tokens = 0, num_heads = 0, value_dim = 0;  // values: a multiple of 8
  const int32_t* query_start_loc = nullptr;              // [R + 1]
  int32_t num_requests = 0;
  // Of a 16-bit type, dense; null: no further state.
  const void* other = nullptr;        // [T, H, Dv]
  const float* other_lses = nullptr;  // [T, H]
  Element other_element = Element::kBF16;

  const float* sinks = nullptr;
  float out_scale = 0;  // > 0: out holds codes
  Rows out;             // of what TakesPrefill takes
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
};

// What `params` computes if its pieces leave states.
PrefillMergeParams MergeOf(const PrefillParams& params);

Error LaunchPrefillMerge(const LaunchContext& context, const PrefillMergeParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_H_
