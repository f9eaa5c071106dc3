// Latent records of kMlaLatent caches (KvRowFormat) in byte-exact encoding and exact decoding: those of
// DeepSeek V4.1 and the NVFP4 one of V3.2's geometry, as vLLM 0.33 and its FlashMLA have them.
//
//   kMlaV41     528 bytes: 512 e4m3, the last 64 of them rotary, then 16 E8M0 scales (one per 32 values)
//   kMlaV41Fp4  288 bytes: 512 e2m1 in 256 bytes, the last 64 of them rotary, then 32 e4m3 scales (one
//               per 16 values)
//   kMlaNvfp4   352 bytes: 512 e2m1 in 256 bytes, then 64 rotary e4m3 without a scale, then 32 e4m3
//               scales of the 512; that of values 16 s to 16 s + 15 is byte 8 (s mod 4) + s / 4
//
// Of two e2m1 codes in a byte the first is in the lower half. E8M0 scales are those of
// mla_fp8_rows.h, e4m3 ones the largest finite magnitude / 6 within 2^-9 to 448. Codes round to nearest
// even and saturate; a NaN stays one in e4m3 and becomes 0 in e2m1. A record lies in one piece: its
// scales follow its own values. Cost: O(record), no allocation; no alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_MLA_RECORDS_H_
#define KVBLOCKS_ATTENTION_CACHE_MLA_RECORDS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/tensor/kv_layout.h"

namespace kvblocks::attention {

// `values` are all MlaRecordShape::key_dim ones, compressed, then rotary.
void EncodeMlaRecord(KvRowFormat format, const double* values, std::byte* record);
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, double* out);
// In float32, of codes that came as float32: rounded once per value.
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, float* out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_MLA_RECORDS_H_
