// What layers of every backend must do, as functions that the tests of each call. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_LAYER_SUITE_H_
#define KVBLOCKS_ATTENTION_TESTING_LAYER_SUITE_H_

#include <cstdint>

#include "kvblocks/attention_args.h"
#include "kvblocks/attention_backend.h"

namespace kvblocks::attention {

// Custom masks, whole and as rows of the step, say all that a query sees, with and without cache.
void ExpectCustomMasksAreHonoured(const AttentionBackend& backend, const ExecContext& context);
// Templates are the causal rule and windows, to the bit.
void ExpectTemplatesAreHonoured(const AttentionBackend& backend, const ExecContext& context);
// Masks that a layer cannot honour are refused, and nothing is written.
void ExpectOtherMasksAreRefused(const AttentionBackend& backend, const ExecContext& context);
// MLA against dense attention over the new rows alone, values without and with the rotary columns.
void ExpectMlaWithoutCache(const AttentionBackend& backend, const ExecContext& context);
// A layer with chunks gives the same by its kernel's rule and by VirtualBatches.
void ExpectPiecesAreChunks(const AttentionBackend& backend, const ExecContext& context);
// Block-sparse rules, alone and with sinks and soft caps.
void ExpectBlockSparseRulesAreHonoured(const AttentionBackend& backend,
                                       const ExecContext& context);

// Caches whose vectors have scales of their own, in every format and together with what else layers
// can; other formats than the declared one are refused.
void ExpectRowFormatsAreHonoured(const AttentionBackend& backend, const ExecContext& context);
// MLA over latent records.
void ExpectLatentRecordsAreHonoured(const AttentionBackend& backend, const ExecContext& context);

// --- Batches that are not plain: each against dense attention in float64 on the whole history of
// every request.

// The states of all ranks and of the step's own keys, merged, are the undivided attention, with and
// without latent rows, for a world drawn from the seed.
void ExpectRanksMergeToTheWhole(const AttentionBackend& backend, const ExecContext& context,
                                uint64_t seed);
// A prompt that ranks share by PrefillShard, each seeing the keys of all, and put together again;
// also with the explicit mask of a shard.
void ExpectShardsAreThePrompt(const AttentionBackend& backend, const ExecContext& context,
                              uint64_t seed);
// Every query sees the sink rows and its own: with and without a window, and as a cascade.
void ExpectSinkRowsAreSeen(const AttentionBackend& backend, const ExecContext& context,
                           uint64_t seed);
// Decoder tokens against contiguous keys of encoders of any length, none included.
void ExpectEncodersAreSeenWithoutCache(const AttentionBackend& backend, const ExecContext& context,
                                       uint64_t seed);
// What layers cannot do for a rank or with sink rows is refused, and nothing is written.
void ExpectOtherRanksAndSinksAreRefused(const AttentionBackend& backend,
                                        const ExecContext& context);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_LAYER_SUITE_H_
