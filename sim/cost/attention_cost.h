// AttentionCost: what the attention layers of a model add to a step, by what each kind of layer
// reads and computes.
//
//   full, window, chunk   K and V rows of the heads of a rank, once per sequence
//   latent                one latent row per token, on every rank; long prefills may instead expand
//                         the rows into heads, whichever is quicker
//   sparse latent         every indexer row, and the latent rows that each query selects
//   compressed            the window, one row per so many tokens (of ratio 4: all indexer rows and
//                         those selected), and the compressors' states
//   linear                the state, read and written once per sequence
//
// Coefficients are whole picoseconds per unit, rounded once. Cost: a few multiplications per
// sequence and layer kind.

#ifndef KVBLOCKS_SIM_COST_ATTENTION_COST_H_
#define KVBLOCKS_SIM_COST_ATTENTION_COST_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/step_time_model.h"

namespace kvblocks::sim {

// How many rows of a KV cache a step reads and how many (query, row) pairs it computes are closed
// forms for `count` new tokens after `context` tokens of the same request. A query is a token and
// sees itself. Rows may stand for several tokens (compressed caches): a row of ratio r exists once
// all of its r tokens do. Counts need at most 128 bits for contexts and counts below 2^62.

// What a query of one layer kind sees of the rows before it.
struct AttentionReach {
  int64_t ratio = 1;  // tokens per row
  // The most rows that one query reads: the window, or what an indexer selects.
  int64_t limit = std::numeric_limits<int64_t>::max();
  // Whether neighbouring queries read the same rows, as within a window, or each its own choice.
  bool is_window = false;
  // Queries see only the rows of their own chunk of so many tokens; 0: no chunks. With ratio 1.
  int64_t chunk = 0;

  // Pairs and rows depend on context and count only through their sums over sequences.
  bool adds_up() const {
    return ratio == 1 && chunk == 0 && limit == std::numeric_limits<int64_t>::max();
  }
};

// Pairs of the new tokens' queries with the rows that each of them reads.
Wide AttendedPairs(const AttentionReach& reach, int64_t context, int64_t count);

// Distinct rows that the new tokens read or write, each once; for a choice of rows, at most so
// many.
int64_t AttendedRows(const AttentionReach& reach, int64_t context, int64_t count);

// Every coefficient passes through here, once.
int64_t RoundToPicoseconds(double seconds);

// Of one device; layers' heads are divided by the ranks.
struct AttentionRates {
  double flops_per_s = 0;
  double bytes_per_s = 0;
  double ranks = 1;
  double context_ranks = 1;  // of these, those that share the rows of a cache
  // How values are stored: the format where it is known, else so many bytes each.
  std::optional<CacheDtype> format = std::nullopt;
  double bytes_per_element = 2;
};

// Picoseconds, each as if the other took no time.
struct AttentionTime {
  Wide compute = 0;
  Wide traffic = 0;
};

class AttentionCost {
 public:
  // REQUIRES: a valid model, positive rates.
  AttentionCost(const ModelFacts& model, const AttentionRates& rates);

  void Add(const SequenceWork& work, AttentionTime* time) const;
  // REQUIRES: adds_up().
  void Add(const Decodes& decodes, AttentionTime* time) const;

  // Whether decodes count by their number and the sum of their contexts.
  bool adds_up() const;

 private:
  struct Term {
    AttentionReach reach = {};
    int64_t per_pair = 0;
    int64_t per_row = 0;
    // The other way to compute a latent layer: cheaper pairs, but each row of context is first
    // expanded. 0: there is none.
    int64_t expanded_per_pair = 0;
    int64_t expanded_per_row = 0;
  };
  void AddLatentTerms(const ModelFacts& model, const AttentionRates& rates);
  void AddCompressedTerms(const ModelFacts& model, const AttentionRates& rates);
  void AddStates(const ModelFacts& model, const AttentionRates& rates);
  Term IndexTerm(const ModelFacts& model, const AttentionRates& rates, int64_t ratio,
                 int64_t num_layers) const;

  std::vector<Term> terms_;
  int64_t compute_per_token_ = 0;
  int64_t traffic_per_token_ = 0;
  int64_t traffic_per_sequence_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_ATTENTION_COST_H_
