// BlendWork: the memory that a blended prefill works in, on the device that it runs on.
//
// One stretch of bytes from the caller holds everything; nothing else is allocated on a device. What
// depends on which rows are selected (their hidden rows, queries, positions, slots) has two places
// each: a selection gathers from one into the other. The integers are made on the host and copied
// once per run: how many rows go on in each layer follows from the ratios, so nothing is read back.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_WORK_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_WORK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// The largest batch: its requests, their new tokens, and the longest of them.
struct BlendBounds {
  int64_t max_num_reqs = 0, max_num_tokens = 0, max_seq_len = 0;
};

// Bytes to provide for a batch within the bounds. InvalidArgument for negative ones, or more than 2^63
// bytes.
absl::StatusOr<int64_t> BlendWorkBytes(const BlendConfig& config, const BlendBounds& bounds);

// What travels with a row from layer to layer.
struct BlendRowTensors {
  TensorView hidden;     // [T, E]
  TensorView q;          // [T, H, D]
  TensorView positions;  // i32 [T]
  TensorView slots;      // i64 [T]
  TensorView origins;    // i32 [T]: which row of its request it was at first
};

struct BlendWork {
  BlendRowTensors rows[2];
  TensorView k_new, v_new;  // [T, Hkv, D], as projected
  TensorView k_old, v_old;  // [T, Hkv, D], of chunks; requests begin where their rows do
  TensorView picked;        // [T, Hkv, D], old rows of those that a later check selects among
  TensorView attention;     // [T, H, D]
  TensorView selected;      // i32 [T]
  TensorView limits;    // i32 [T]: positions up to which rows see, where these are not their own
  TensorView integers;  // i32, copied from the host
};

// `memory`: dense u8[n], aligned to 16 bytes, at least BlendWorkBytes. ResourceExhausted if it is less.
absl::StatusOr<BlendWork> MakeBlendWork(const BlendConfig& config, const BlendBounds& bounds,
                                        const TensorView& memory);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_WORK_H_
