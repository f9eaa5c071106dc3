// TopkCase: an indexer's choice among rows of small integers, whose sums are exact: ties are many,
// and lists must be the same whatever computes them. Testonly.
//
// Requests lie in shuffled blocks; rows of planar caches have scales from 1/2 to 2. Everything
// follows from the seed.

#ifndef KVBLOCKS_ATTENTION_TESTING_TOPK_CASE_H_
#define KVBLOCKS_ATTENTION_TESTING_TOPK_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attention/testing/paged_case.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

struct TopkOptions {
  std::vector<int64_t> lengths = {300}, q_lens = {1};
  int64_t padding = 0;  // tokens behind those of the requests
  int64_t block_size = 16, heads = 64, dim = 128, width = 40, ratio = 1;
  DType q = DType::kF8E4M3, cache = DType::kU8;  // kU8: planar
  int spread = 4;                                // of values: the fewer, the more ties
  bool as_slots = true;
  uint64_t seed = 1;

  std::string DebugString() const;
};

class TopkCase {
 public:
  explicit TopkCase(const TopkOptions& options);

  // Outputs are full of other numbers.
  IndexTopkArgs Args();
  // That the outputs are the lists that a naive choice by float64 scores gives. Rows of blocks
  // outside the cache score as little as NaN does, and are no slots.
  void ExpectChosen() const;

  int64_t SlotOf(int64_t b, int64_t row) const;
  // Of planar caches.
  void SetScale(int64_t slot, float scale);
  void SetCode(int64_t slot, int64_t d, uint8_t code);
  int32_t& table(int64_t b, int64_t column) {
    return block_table_.view.as<int32_t>()[b * columns_ + column];
  }
  float& weight(int64_t token, int64_t head) {
    return weights_.view.as<float>()[token * options_.heads + head];
  }

 private:
  std::byte* ScaleAt(int64_t slot) const;
  // Of row `row` of request b: -1 if its block is outside the cache.
  int64_t ValidSlotOf(int64_t b, int64_t row) const;
  double ScoreOf(int64_t token, int64_t slot) const;
  std::vector<double> ListOf(int64_t b, int64_t token, int64_t num_rows) const;

  TopkOptions options_;
  int64_t columns_, num_blocks_;
  std::vector<double> keys_, queries_;
  Tensor q_, weights_, rows_, query_start_loc_, seq_lens_, block_table_, indices_, lens_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_TOPK_CASE_H_
