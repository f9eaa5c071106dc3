// What layers of every backend must make of batches that are not plain: caches spread over ranks,
// prompts cut over ranks, sink rows, keys of an encoder. Each against dense attention in float64 on
// the whole history of every request. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_BATCH_SUITE_H_
#define KVBLOCKS_ATTENTION_TESTING_BATCH_SUITE_H_

#include <cstdint>

#include "kvblocks/attention_args.h"
#include "kvblocks/attention_backend.h"

namespace kvblocks::attention {

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

#endif  // KVBLOCKS_ATTENTION_TESTING_BATCH_SUITE_H_
