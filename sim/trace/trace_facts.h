// TraceFacts: what a trace holds and how much of it an infinite cache could serve, in one streaming
// pass.
//
// Definitions: a *prefix hit* is a leading content id whose path was seen in an earlier request
// (arrival order, an infinite cache, prompts visible at once). *Shared tokens* of a request are
// those of its prefix hits; a partial last block shares as much as the longest earlier use of its
// path. *Full blocks* leave out a partial last block. The *engine tokens* at block size B are
// floor(min(shared, input - 1) / B) * B: the last token is always computed. Percentiles are nearest
// rank.
//
// Cost: about 100 ns and 60 bytes per distinct path, 24 bytes per request. For token-id traces a
// path is one token.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_FACTS_H_
#define KVBLOCKS_SIM_TRACE_TRACE_FACTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "sim/trace/trace_reader.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

// TokenTrie: which beginnings of token sequences have been seen, and how often.
//
// A radix tree: nodes are runs of tokens, split where two sequences part. So a trace with an id per
// token costs 8 bytes per token that is new, and not a table entry each.
//
// Always: a node's tokens were all used equally often. Cost: one comparison per token that was
// seen, one copy per token that was not, one table look-up per node. Single-threaded.
class TokenTrie {
 public:
  // Adds a sequence within `scope`, of which the first `num_used` tokens count as used and the rest
  // is only there to be found. Returns how many of the used ones were there before, from the first
  // on.
  int64_t Add(absl::uint128 scope, const std::vector<int64_t>& tokens, size_t num_used);

  struct Totals {
    int64_t distinct = 0;   // beginnings that were used
    int64_t used_once = 0;  // of these
    int64_t hottest_uses = 0;
    int64_t hottest_token =
        0;  // the last one of the beginning used most; the first seen of several
  };
  Totals Finish() const;

 private:
  struct Node {
    size_t begin = 0;  // in tokens_
    size_t size = 0;
    int64_t uses = 0;
  };
  // Walks or makes the path of tokens [begin, end) below `node`; returns its last node and adds the
  // tokens that were there to *found.
  size_t Walk(size_t node, const std::vector<int64_t>& tokens, size_t begin, size_t end,
              int64_t uses, int64_t* found);

  std::vector<int64_t> tokens_;  // in the order in which they were first seen
  std::vector<Node> nodes_;
  absl::flat_hash_map<absl::uint128, size_t> roots_;
  absl::flat_hash_map<std::pair<size_t, int64_t>, size_t> children_;  // by parent and first token
};

struct LengthFacts {
  int64_t total = 0;
  double mean = 0;
  int64_t median = 0;
  int64_t p90 = 0;
  int64_t p99 = 0;
  int64_t max = 0;
};

struct EngineFacts {
  int64_t block_tokens = 0;  // B
  int64_t full_blocks = 0;   // sum of floor(input / B)
  int64_t hit_blocks = 0;
  int64_t hit_tokens = 0;
};

struct TraceFacts {
  TraceInfo info;
  int64_t requests = 0;
  LengthFacts input;
  LengthFacts output;

  int64_t first_arrival_ns = 0;
  int64_t last_arrival_ns = 0;
  int64_t distinct_timestamps = 0;
  double gap_cv = 0;  // standard deviation of the gaps between arrivals over their mean
  int64_t closed_loop_requests = 0;  // that wait for others
  int64_t sessions = 0;

  int64_t block_refs = 0;
  int64_t distinct_paths = 0;
  int64_t paths_used_once = 0;
  int64_t most_refs = 0;  // of one request
  int64_t prefix_hits = 0;
  int64_t full_block_refs = 0;
  int64_t full_block_hits = 0;
  int64_t hottest_id = 0;  // of the path with most uses; the first seen of several
  int64_t hottest_uses = 0;

  int64_t shared_tokens = 0;  // partial blocks included
  int64_t requests_with_hit = 0;
  double mean_of_ratios = 0;  // shared / input, averaged over requests
  int64_t second_half_input = 0;
  int64_t second_half_shared = 0;
  std::vector<EngineFacts> engine;
};

class TraceFactsBuilder {
 public:
  TraceFactsBuilder(const TraceInfo& info, std::vector<int64_t> engine_block_sizes);

  void Add(const TraceRequest& request);
  TraceFacts Finish();

 private:
  struct PathUse {
    int64_t uses = 0;
    int64_t tokens = 0;  // of the longest use
    int64_t id = 0;      // the path's last
    int64_t order = 0;   // of the first use
  };
  void AddContent(const TraceRequest& request, int64_t* shared);

  TraceFacts facts_;
  absl::flat_hash_map<absl::uint128, PathUse> paths_;
  TokenTrie tokens_;                       // takes the place of paths_ where every token has an id
  std::vector<absl::uint128> path_of_id_;  // of the request being added
  absl::flat_hash_map<uint64_t, bool> sessions_;
  std::vector<int64_t> inputs_;
  std::vector<int64_t> outputs_;
  std::vector<int64_t> shared_;
  double sum_of_ratios_ = 0;
  double sum_of_gap_squares_ = 0;  // seconds squared
};

// The block sizes that are reported if none are asked for.
std::vector<int64_t> DefaultEngineBlockSizes();

absl::StatusOr<TraceFacts> ComputeTraceFacts(TraceReader& reader,
                                             const std::vector<int64_t>& engine_block_sizes);

// A table for people; several lines, each ended.
std::string FormatTraceFacts(const TraceFacts& facts);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_FACTS_H_
