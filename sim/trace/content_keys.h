// ContentKeys: the 128-bit keys of a request's full engine blocks, computed from a trace's content
// ids.
//
// A content id h of trace block size Bt stands for the symbols (scope, path, o), o = 0 .. Bt-1,
// where the path is the chain of ids from the start of the prompt up to h. So two prompts agree on
// k * Bt tokens if their first k ids are equal and on nothing after the first id that differs; a
// last block with q < Bt tokens is the first q symbols of its path. Prompt tokens without content,
// and output tokens unless the trace gives their ids, are symbols of the request alone. The key of
// an engine block is a hash of the key before it and the block's runs of symbols, each (path key,
// first symbol, count): no token array is built, whatever the sizes.
//
// Keys may have a lookahead of L symbols, as block hashes do for drafters (PrefixHashing): then the
// key of a block also covers the L symbols behind it, and exists only once they are known. That is
// exact where a trace has token ids; where it has block ids, tokens behind the first id that
// differs count as different here, too, so a block that ends there is no hit although the engine's
// might be.
//
// Always: two keys are equal iff scope and contents are, from the first token on (up to the odds of
// a 128-bit collision). Scope is the trace, the session or tenant if the trace says so, the cache
// salt and the adapter. Cost: about 20 ns per block with one run, and one more hash per trace
// block; nothing is allocated but the keys (and, for token ids, a buffer of one block). An object
// is about 100 bytes, copyable, single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_CONTENT_KEYS_H_
#define KVBLOCKS_SIM_TRACE_CONTENT_KEYS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "kvblocks/block.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

// What separates this request's content from equal ids elsewhere: the key before its first block.
// `trace` distinguishes traces that are replayed together.
absl::uint128 ScopeKey(const TraceInfo& info, const TraceRequest& request,
                       std::string_view trace = {});

// The key of the path that continues `parent` (a scope key for the first id) by `id`.
absl::uint128 PathKey(absl::uint128 parent, int64_t id);

class ContentKeys {
 public:
  // REQUIRES: block_tokens >= 1, lookahead_tokens >= 0. The request itself is handed to every call
  // and not kept, so that it may move.
  ContentKeys(const TraceInfo& info, const TraceRequest& request, int64_t block_tokens,
              std::string_view trace = {}, int64_t lookahead_tokens = 0);

  // Appends to `keys` the keys of those blocks among the request's first `num_tokens` tokens
  // (prompt, then output) that are full, have lookahead_tokens behind them and were not appended
  // before. Tokens may become known one
  // at a time or many at once; the keys are the same. Fewer tokens than before append nothing.
  // REQUIRES: `request` has the content it was constructed with; output ids may be filled in until
  // they are among the known tokens.
  void AppendBlocks(const TraceRequest& request, int64_t num_tokens,
                    std::vector<absl::uint128>* keys);
  // The same as the block hashes that stand for them.
  void AppendBlocks(const TraceRequest& request, int64_t num_tokens,
                    std::vector<BlockHash>* hashes);

  int64_t num_blocks() const { return num_blocks_; }  // appended so far
  int64_t block_tokens() const { return block_tokens_; }
  int64_t lookahead_tokens() const { return lookahead_tokens_; }

 private:
  // Symbols first .. first + count - 1 of `path`.
  struct Run {
    absl::uint128 path;
    int64_t first;
    int64_t count;
  };
  // The longest run from `position` on that ends at `end` or before. Positions never go back.
  Run RunAt(const TraceRequest& request, int64_t position, int64_t end);
  Run TokenRun(const TraceRequest& request, int64_t position, int64_t end) const;
  void AddRun(const Run& run, uint64_t seed);
  void AddLookahead(const TraceRequest& request);
  template <typename Emit>
  void ForEachNewBlock(const TraceRequest& request, int64_t num_tokens, Emit&& emit);

  int64_t block_tokens_;        // B
  int64_t lookahead_tokens_;    // L
  int64_t trace_block_tokens_;  // Bt
  int64_t content_end_;         // first position that no content id describes
  int64_t num_blocks_ = 0;
  int64_t next_ = 0;      // first token of the next block
  absl::uint128 parent_;  // key of the last appended block
  absl::uint128 path_;    // of the first path_length_ content ids
  int64_t path_length_ = 0;
  absl::uint128 own_;  // stands for the symbols that only this request has
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CONTENT_KEYS_H_
