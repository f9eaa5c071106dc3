// Short names for the KV-cache specs that tests talk about: only what the block manager looks at,
// with a tiny head.

#ifndef KVBLOCKS_TESTS_GROUP_SPECS_H_
#define KVBLOCKS_TESTS_GROUP_SPECS_H_

#include <cstdint>

#include "kvblocks/kv_cache_spec.h"

namespace kvblocks::testing {

inline KvCacheSpec Full(int64_t block_size) {
  return FullAttentionSpec::Create({.block_size = block_size, .num_kv_heads = 1, .head_size = 16})
      .value();
}

inline KvCacheSpec Mla(int64_t block_size) {
  return MlaAttentionSpec::Create({.block_size = block_size, .head_size = 16}).value();
}

inline KvCacheSpec Sink(int64_t block_size, int64_t sink_length) {
  return SinkFullAttentionSpec::Create({.block_size = block_size,
                                        .num_kv_heads = 1,
                                        .head_size = 16,
                                        .sink_length = sink_length})
      .value();
}

inline KvCacheSpec Window(int64_t block_size, int64_t window, int64_t extra_retained_tokens = 0) {
  return SlidingWindowSpec::Create({.block_size = block_size,
                                    .num_kv_heads = 1,
                                    .head_size = 16,
                                    .sliding_window = window,
                                    .extra_retained_tokens = extra_retained_tokens})
      .value();
}

inline KvCacheSpec WindowMla(int64_t block_size, int64_t window,
                             int64_t extra_retained_tokens = 0) {
  return SlidingWindowMlaSpec::Create({.block_size = block_size,
                                       .head_size = 16,
                                       .sliding_window = window,
                                       .extra_retained_tokens = extra_retained_tokens})
      .value();
}

inline KvCacheSpec Chunked(int64_t block_size, int64_t chunk) {
  return ChunkedLocalAttentionSpec::Create({.block_size = block_size,
                                            .num_kv_heads = 1,
                                            .head_size = 16,
                                            .attention_chunk_size = chunk})
      .value();
}

inline KvCacheSpec Mamba(int64_t block_size, MambaCacheMode mode,
                         int64_t num_speculative_blocks = 0, int64_t num_checkpoint_blocks = 0) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{{16}}},
                            .cache_mode = mode,
                            .num_speculative_blocks = num_speculative_blocks,
                            .num_checkpoint_blocks = num_checkpoint_blocks})
      .value();
}

// Of the output only the last `window` tokens stay.
inline KvCacheSpec OutputWindow(int64_t block_size, int64_t window) {
  return FullAttentionSpec::Create({.block_size = block_size,
                                    .num_kv_heads = 1,
                                    .head_size = 16,
                                    .output_window = window})
      .value();
}

inline KvCacheSpec HiddenState(int64_t block_size) {
  return HiddenStateSpec::Create({.block_size = block_size, .head_size = 16}).value();
}

inline KvCacheSpec Ring(int64_t block_size) {
  return RingSpec::Create({.block_size = block_size, .head_size = 16}).value();
}

// A window that is computed again after a hit.
inline KvCacheSpec Replayed(int64_t block_size, int64_t window) {
  return SlidingWindowMlaSpec::Create({.block_size = block_size,
                                       .head_size = 16,
                                       .sliding_window = window,
                                       .bounded_replay = true})
      .value();
}

inline KvCacheSpec Cross(int64_t block_size) {
  return CrossAttentionSpec::Create({.block_size = block_size, .num_kv_heads = 1, .head_size = 16})
      .value();
}

}  // namespace kvblocks::testing

#endif  // KVBLOCKS_TESTS_GROUP_SPECS_H_
