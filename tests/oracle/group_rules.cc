#include "tests/oracle/group_rules.h"

#include <algorithm>

namespace kvblocks::oracle {

int64_t GroupRules::SkippedTokens(int64_t n) const {
  // BM-114, V-100: a window's spec says what it keeps besides.
  const int64_t kept = spec.sliding_window() ? spec.options().extra_retained_tokens : 0;
  return UnneededTokens(std::max<int64_t>(0, n - kept));
}

int64_t GroupRules::UnneededTokens(int64_t n) const {
  if (const auto window = spec.sliding_window()) return std::max<int64_t>(0, n - *window + 1);
  if (const auto chunk = spec.attention_chunk_size()) return RoundDown(n, *chunk);
  if (is_mamba()) return std::max<int64_t>(0, n - 1);
  return 0;
}

int64_t GroupRules::BlocksNotAdopted(int64_t total) const {
  // V-46: of a window that no request can hit, nothing that is computed has a block.
  if (!is_looked_up && spec.sliding_window()) return total / block_size();
  return SkippedBlocks(total);
}

bool GroupRules::IsOldOutput(int64_t position, int64_t num_prompt, int64_t num_processed) const {
  const auto window = spec.output_window();
  if (!window || position * block_size() < num_prompt) return false;
  return (position + 1) * block_size() <= num_processed - *window - num_kept;
}

int64_t GroupRules::WindowBlocksNeeded() const {
  const int64_t least = is_025 ? 1 : 0;  // V-104: what a window of one drops is all it has
  return std::max(least, CeilDiv(*spec.sliding_window() - 1, block_size()));
}

Found GroupRules::Find(const IsCached& is_cached, int64_t max_tokens, bool drop,
                       int64_t alignment) const {
  const int64_t bs = block_size();
  const int64_t positions = max_tokens / bs;
  if (is_full()) {
    int64_t matched = 0;
    while (matched < positions && is_cached(matched)) ++matched;
    if (drop && matched > 0) --matched;
    return {.tokens = RoundDown(matched * bs, alignment), .first_real = 0};
  }
  if (const auto chunk = spec.attention_chunk_size()) {
    const int64_t start = RoundDown(max_tokens, *chunk) / bs;
    int64_t end = start;
    while (end < positions && is_cached(end)) ++end;
    return {.tokens = end * bs, .first_real = start};
  }
  if (is_mamba()) {
    for (int64_t tokens = positions * bs; tokens > 0; tokens -= bs) {
      if (tokens % alignment == 0 && is_cached(tokens / bs - 1)) {
        return {.tokens = tokens, .first_real = tokens / bs - 1};
      }
    }
    return {};
  }
  if (keeps_nothing()) return {};
  const int64_t need = WindowBlocksNeeded();
  const int64_t d = drop ? 1 : 0;
  for (int64_t end = positions; need + d == 0 && end >= 1; --end) {  // V-104, after the drop
    if (end * bs % alignment == 0 && is_cached(end - 1)) {
      return {.tokens = end * bs, .first_real = end - 1};
    }
  }
  if (need + d == 0) return {};
  for (int64_t end = positions - d; end >= 1; --end) {
    if (end * bs % alignment != 0) continue;
    const int64_t first = std::max<int64_t>(0, end - need);
    bool all = true;
    for (int64_t i = first; i <= end + d - 1; ++i) all = all && is_cached(i);
    if (!all) continue;
    if (drop && !is_025 && bs != alignment && end < need) {
      // D-3: what is there, from the first token, is less than a window and the block to drop.
      const int64_t aligned = RoundDown((end + 1) * bs, alignment);
      return {.tokens = RoundDown(std::max<int64_t>(0, aligned - bs), alignment), .first_real = 0};
    }
    return {.tokens = end * bs, .first_real = first};
  }
  return {};
}

bool GroupRules::CanServe(const IsCached& is_cached, int64_t tokens, int64_t alignment) const {
  if (tokens % alignment != 0 || tokens % block_size() != 0) return false;
  if (keeps_nothing()) return false;
  const int64_t end = tokens / block_size();
  int64_t first = 0;
  if (spec.sliding_window()) {
    first = std::max<int64_t>(0, end - WindowBlocksNeeded());
  } else {
    first = UnneededBlocks(tokens);
  }
  for (int64_t i = first; i < end; ++i) {
    if (!is_cached(i)) return false;
  }
  return true;
}

Found GroupRules::FindFine(const IsPrefixCached& is_cached, int64_t max_tokens, bool drop) const {
  const int64_t bs = block_size();
  if (is_mamba()) {
    for (int64_t tokens = RoundDown(max_tokens, fine_unit); tokens > 0; tokens -= fine_unit) {
      if (!is_cached(tokens)) continue;
      return {
          .tokens = tokens, .first_real = (tokens - 1) / bs, .tail = tokens % bs == 0 ? 0 : tokens};
    }
    return {};
  }
  Found found;
  while (found.tokens + bs <= max_tokens && is_cached(found.tokens + bs)) found.tokens += bs;
  for (int64_t end = found.tokens + bs - fine_unit; end > found.tokens; end -= fine_unit) {
    if (end > max_tokens || !is_cached(end)) continue;
    found.tokens = found.tail = end;
    break;
  }
  if (drop) found.tokens = std::max<int64_t>(0, found.tokens - fine_unit);
  return found;
}

bool GroupRules::CanServeFine(const IsPrefixCached& is_cached, int64_t tokens,
                              int64_t max_tokens) const {
  if (tokens % fine_unit != 0) return false;
  if (is_mamba()) return is_cached(tokens);
  const int64_t whole = RoundDown(tokens, block_size());
  for (int64_t end = block_size(); end <= whole; end += block_size()) {
    if (!is_cached(end)) return false;
  }
  if (whole == tokens) return true;
  for (int64_t end = tokens; end <= std::min(whole + block_size(), max_tokens); end += fine_unit) {
    if (is_cached(end)) return true;
  }
  return false;
}

bool GroupRules::IsReachable(int64_t position, int64_t alignment) const {
  if (!spec.sliding_window() || alignment % block_size() != 0) return true;
  const int64_t d = is_draft ? 1 : 0;
  const int64_t period = alignment / block_size();
  const int64_t tail = WindowBlocksNeeded() + d;
  if (tail >= period) return true;
  return position >= d && (position - d) % period >= period - tail;
}

bool GroupRules::IsRetained(int64_t position, int64_t interval, int64_t alignment,
                            const std::vector<int64_t>& boundaries) const {
  if (is_mamba()) {
    const int64_t end = (position + 1) * block_size();
    if (interval > 0 && (interval <= block_size() || end % interval == 0)) return true;
    return std::any_of(boundaries.begin(), boundaries.end(),
                       [&](int64_t boundary) { return RoundDown(boundary, alignment) == end; });
  }
  if (!spec.sliding_window() || alignment % block_size() != 0) return true;
  if (interval > 0 && IsReachable(position, interval)) return true;
  const int64_t d = is_draft ? 1 : 0;
  for (int64_t boundary : boundaries) {
    const int64_t end = RoundDown(boundary, alignment) / block_size() + d;
    for (int64_t i = end - WindowBlocksNeeded() - d; i < end; ++i) {
      if (i == position) return true;
    }
  }
  return false;
}

std::optional<int64_t> AdmissionCapOf(const KvCacheSpec& spec, int64_t max_model_len,
                                      int64_t max_in_flight_tokens, bool exact) {
  const int64_t bs = spec.block_size();
  if (const auto window = spec.sliding_window()) {
    const int64_t span = std::min(
        *window - 1 + max_in_flight_tokens + spec.options().extra_retained_tokens, max_model_len);
    if (!exact) return CeilDiv(span, bs) + 1;
    return std::min(CeilDiv(span - 1, bs) + 1, CeilDiv(max_model_len, bs));
  }
  if (const auto chunk = spec.attention_chunk_size()) {
    const int64_t history = exact ? *chunk - 1 : *chunk;
    return CeilDiv(std::min(history + max_in_flight_tokens, max_model_len), bs);
  }
  return std::nullopt;
}

std::optional<int64_t> OutputCapOf(const GroupRules& rules, int64_t max_model_len,
                                   int64_t max_in_flight_tokens, bool exact) {
  if (!rules.spec.output_window()) return std::nullopt;
  const int64_t bs = rules.block_size();
  const int64_t kept = max_in_flight_tokens + rules.num_kept;
  const int64_t span = std::min(*rules.spec.output_window() + kept, max_model_len);
  return std::min(CeilDiv(exact ? span - 1 : span, bs) + 1, CeilDiv(max_model_len, bs));
}

}  // namespace kvblocks::oracle
