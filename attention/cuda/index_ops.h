// Slots and lists of slots on a GPU: what attention/metadata computes on the host, from tensors in
// device memory, so that a captured step needs no host; and the tokens of a step, some of which
// only the device knows.
//
// Arguments mean what they mean there. One launch each; nothing is read back, so that T is not
// known: every tensor may have more rows, and all rows of outputs behind the last token are
// padding. What the host refuses by value is flagged in the context's error flags: blocks outside
// the cache give -1 (kBadBlock), rows and positions that the table, the tensors or the gathered
// buffer do not cover are left out (kLengthClamped), indices of no row become -1 (kBadIndex).

#ifndef KVBLOCKS_ATTENTION_CUDA_INDEX_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_INDEX_OPS_H_

#include "absl/status/status.h"
#include "attention/metadata/slot_mapping.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {

absl::Status CudaGatherInputTokens(const ExecContext& context, const InputTokensArgs& args);
absl::Status CudaComputeSlotMapping(const ExecContext& context, const SlotMappingArgs& args);
absl::Status CudaBuildSwaIndices(const ExecContext& context, const WindowIndicesArgs& args);
absl::Status CudaBuildCompressedSlots(const ExecContext& context, const CompressedSlotsArgs& args);
absl::Status CudaBuildTopkSlots(const ExecContext& context, const TopkSlotsArgs& args);
absl::Status CudaBuildDenseCompressedIndices(const ExecContext& context,
                                             const DenseCompressedIndicesArgs& args);
absl::Status CudaCombinePrefillIndices(const ExecContext& context, const PrefillIndicesArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_INDEX_OPS_H_
