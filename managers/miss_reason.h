// MissReason: why tokens of a look-up were not served by the prefix cache. One vocabulary for the
// library's explanations and counters and for the simulator's reports; explain/miss_reason_words.h
// has the words.

#ifndef KVBLOCKS_MANAGERS_MISS_REASON_H_
#define KVBLOCKS_MANAGERS_MISS_REASON_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvblocks {

enum class MissReason {
  // The block is not there.
  kFirstUse,       // no block with this content left the cache, as far as is remembered
  kEvicted,        // its block was taken for other content
  kRemoved,        // EvictBlocks or ResetPrefixCache took it out
  kSaltOrAdapter,  // the same tokens are or were cached, but under another salt, adapter or image
  kNotCached,      // any of these, and kNotKept: without lookup_history_blocks nobody can tell
  // The same, told by who sees all requests of a run: the simulator.
  kNotYetComputed,  // a live request has the same content, but has not come so far
  kShort,           // the prompt shares less than one block with earlier ones
  // The block is there, but cannot be used.
  kGroupVeto,  // another group lacks a block that its window or chunk needs
  kAlignment,  // hits end at multiples of hit_alignment only
  kDraftDrop,  // a draft group gives up the block behind the hit
  kLastToken,  // the last known token is computed in any case, and with it the block it fills
  // No look-up could find it.
  kPartialBlock,       // behind the last full block
  kShorterThanABlock,  // all known tokens together fill no block
  kReadingSkipped,     // the request asked not to read the prefix cache
  kCachingOff,
  kLookahead,  // the block is full, but its hash covers tokens behind it that are not known
  // The block is not there.
  kNotKept,  // the tokens were computed, but their block was not kept for reuse
};
inline constexpr size_t kNumMissReasons = 17;

// Missed tokens (or blocks), indexed by MissReason.
using MissCounts = std::array<int64_t, kNumMissReasons>;

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_MISS_REASON_H_
