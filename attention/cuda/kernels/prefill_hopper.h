// The prefill kernels of compute capability 9.0: what LaunchPrefill takes there where it can.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_H_

#include "kvblocks/attention/cuda/kernels/prefill.h"

namespace kvblocks::attention::cuda {

// Of what TakesPrefill takes: head sizes up to 128, or of 16-bit keys 192 with values of at most 128;
// K and V as the bulk copy engine can copy them: blocks of a multiple of 8 tokens, strides that are
// positive and below 2^40 bytes. Queries in codes: over keys in e4m3, rows at multiples of 16 bytes.
// These are multiplied with K as codes, with sums in some 14 bits; all other products are of 16-bit
// types in which codes are exact.
bool TakesPrefillHopper(const PrefillParams& params);

// REQUIRES: both, and a device of compute capability 9.0.
Error LaunchPrefillHopper(const LaunchContext& context, const PrefillParams& params);
// Its part for codes.
Error LaunchPrefillHopperCodes(const LaunchContext& context, const PrefillParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_H_
