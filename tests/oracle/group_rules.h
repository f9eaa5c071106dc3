// GroupRules: one KV-cache group's rules by kind of attention (BM-55 to BM-78, BM-113, BM-116,
// V-46), as plain formulas and brute force.

#ifndef KVBLOCKS_TESTS_ORACLE_GROUP_RULES_H_
#define KVBLOCKS_TESTS_ORACLE_GROUP_RULES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kvblocks/kv_cache_spec.h"

namespace kvblocks::oracle {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundDown(int64_t a, int64_t b) { return a / b * b; }

// A look-up's answer: `tokens` are hit, positions before `first_real` need no block.
struct Found {
  int64_t tokens = 0;
  int64_t first_real = 0;
  int64_t tail = 0;  // the prefix whose key the last block has, if it ends inside that block
};
// Whether a position's content is cached in all groups that are looked up together.
using IsCached = std::function<bool(int64_t position)>;
// The same for the prefix of so many tokens, which may end inside a block.
using IsPrefixCached = std::function<bool(int64_t tokens)>;

struct GroupRules {
  KvCacheSpec spec;
  bool is_draft = false;
  int64_t num_ranks = 1;       // BM-113: a block's tokens lie on so many ranks, round robin
  bool is_looked_up = true;    // V-46: other requests can use the blocks
  std::optional<int64_t> admission_cap = std::nullopt;
  std::optional<int64_t> output_cap = std::nullopt;  // BM-116: the same behind the prompt
  int64_t fine_unit = 0;  // BM-118: hits may end inside blocks at multiples of it; 0: they may not
  int64_t num_kept = 0;   // V-14: tokens below a window of the output that are kept all the same

  bool is_025 = false;    // V-36

  int64_t block_size() const { return spec.block_size() * num_ranks; }
  bool is_full() const {
    return !spec.sliding_window() && !spec.attention_chunk_size() && !is_mamba() && !is_cross() &&
           !is_ring();
  }
  bool is_mamba() const { return spec.kind() == KvCacheSpecKind::kMamba; }
  bool is_ring() const { return spec.kind() == KvCacheSpecKind::kRing; }
  // What a step takes is found by doing it.
  bool has_own_layout() const { return is_mamba() || is_cross() || is_ring(); }
  bool is_cross() const { return spec.kind() == KvCacheSpecKind::kCrossAttention; }
  // REQUIRES: is_mamba().
  MambaCacheMode mode() const { return spec.get_if<MambaSpec>()->options().cache_mode; }
  int64_t num_scratch() const { return spec.get_if<MambaSpec>()->options().num_speculative_blocks; }
  // BM-83, BM-106: tokens behind a hit that a draft group must match.
  int64_t DraftMargin() const { return is_draft && !is_mamba() ? DropUnit() : 0; }
  int64_t DropUnit() const { return is_fine() && is_full() ? fine_unit : block_size(); }
  bool is_fine() const { return fine_unit > 0 && fine_unit < block_size(); }

  bool keeps_nothing() const {
    return !is_025 && spec.sliding_window() && *spec.sliding_window() == 1 && !is_draft;  // V-104
  }

  // BM-55: leading tokens that no later token needs once n are computed.
  int64_t UnneededTokens(int64_t n) const;
  int64_t UnneededBlocks(int64_t n) const { return UnneededTokens(n) / block_size(); }
  // The same, less what is kept nevertheless.
  int64_t SkippedTokens(int64_t n) const;
  int64_t SkippedBlocks(int64_t n) const { return SkippedTokens(n) / block_size(); }
  // Positions without a block in the first table of a request of which `total` tokens are computed.
  int64_t BlocksNotAdopted(int64_t total) const;
  // BM-116: whether a position holds nothing but output before the last w tokens that count as
  // processed.
  bool IsOldOutput(int64_t position, int64_t num_prompt, int64_t num_processed) const;

  // BM-72: blocks before a hit's end that a window needs.
  int64_t WindowBlocksNeeded() const;

  // BM-67, BM-72, BM-77, BM-107: every length is tried, longest first.
  Found Find(const IsCached& is_cached, int64_t max_tokens, bool drop, int64_t alignment) const;
  // BM-107, BM-119. REQUIRES: is_fine().
  Found FindFine(const IsPrefixCached& is_cached, int64_t max_tokens, bool drop) const;

  // INV-12, INV-13: whether a hit of exactly `tokens` is usable by this group, draft rule aside.
  bool CanServe(const IsCached& is_cached, int64_t tokens, int64_t alignment) const;
  // The same where hits may end inside blocks; nothing behind max_tokens is looked at.
  bool CanServeFine(const IsPrefixCached& is_cached, int64_t tokens, int64_t max_tokens) const;

  // BM-73: whether registration keeps a position when several groups share hits.
  bool IsReachable(int64_t position, int64_t alignment) const;

  // BM-117, V-2, V-6: whether registration keeps a position at this interval; `boundaries` are the
  // tokens at which the request is likely to be hit.
  bool IsRetained(int64_t position, int64_t interval, int64_t alignment,
                  const std::vector<int64_t>& boundaries) const;
};

// BM-57 with the engines' formula, or the tight bound: the most blocks that W - 1 (or C - 1) tokens
// of history and the tokens in flight can touch.
std::optional<int64_t> AdmissionCapOf(const KvCacheSpec& spec, int64_t max_model_len,
                                      int64_t max_in_flight_tokens, bool exact);
// BM-116: the same for the output's last w tokens and those in flight.
std::optional<int64_t> OutputCapOf(const GroupRules& rules, int64_t max_model_len,
                                   int64_t max_in_flight_tokens, bool exact);

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_GROUP_RULES_H_
