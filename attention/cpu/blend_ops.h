// The operations of CacheBlend on the host, for every CPU backend: which tokens to recompute,
// putting them into cached keys and values, and rotary embedding of cached keys.
//
// Arguments are checked first (ops/checks.h); a failed call writes nothing. All arithmetic is
// float64 in a fixed order and rounds once, so results do not depend on the number of threads.

#ifndef KVBLOCKS_ATTENTION_CPU_BLEND_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_BLEND_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention {

// A NaN among the differences ranks as +infinity and sets kNonFiniteInput. Elements of imp behind
// k + suffix_len are left alone. A prefix selected at some ratio is selected at every larger one.
// Cost: O(n * Hkv * D), and O(n) expected for the selection plus its sort.
absl::Status CpuSelectHkvd(const ExecContext& context, const SelectHkvdArgs& args);

// Copies bits; rows not in imp are untouched.
absl::Status CpuFuseKv(const ExecContext& context, const FuseKvArgs& args);

// Columns past rotary_dim, and rows rotated by nothing, are copied. Out of place it can be
// repeated; in place every call rotates once more.
absl::Status CpuRotateKeys(const ExecContext& context, const RotateKeysArgs& args);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_BLEND_OPS_H_
