// SampledCurve: an estimate of OrderCurve from a sample of the blocks, for workloads whose blocks
// do not fit memory.
//
// A block is in the sample if a hash of its path is below the rate (SHARDS, Waldspurger et al.
// 2015). Then it stands for 1/rate blocks, in counts and in distances. That alone is badly off for
// prompts: a few system prompts are in every request, and whether they are in the sample decides
// the result. So the hottest paths are always in it, each with weight 1.
//
// Blocks without a key and second copies are left out. Cost: about 20 ns per block that is not in
// the sample, and 0.3 us per block that is; 60 bytes per distinct block of the sample.
// Single-threaded.

#ifndef KVBLOCKS_SIM_CURVE_SAMPLED_CURVE_H_
#define KVBLOCKS_SIM_CURVE_SAMPLED_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "sim/curve/hit_curve.h"
#include "sim/curve/request_blocks.h"

namespace kvblocks::sim {

// The most frequent of many keys in little memory: a table of counts that takes the same off all of
// them whenever it is full, so that the rarer half goes (Misra and Gries 1982). A key that makes up
// more than 1 in 32 * `wanted` of all is never lost.
class HotPaths {
 public:
  explicit HotPaths(size_t wanted) : wanted_(wanted), most_(64 * (wanted + 1)) {}

  void Add(uint64_t key) {
    ++counts_[key];
    if (counts_.size() > most_) GiveUpHalf();
  }
  absl::flat_hash_set<uint64_t> Take() const;

 private:
  void GiveUpHalf();

  const size_t wanted_;
  const size_t most_;
  absl::flat_hash_map<uint64_t, int64_t> counts_;
};

class SampledCurve {
 public:
  // `rate` in (0, 1]; `hot` must outlive the curve.
  SampledCurve(double rate, uint64_t seed, const absl::flat_hash_set<uint64_t>* hot);

  void Add(const CurveRequest& request);
  void Finish();

  // REQUIRES: Finish was called.
  double Hits(int64_t num_blocks) const {
    return static_cast<double>(hot_hits_.Hits(num_blocks)) +
           static_cast<double>(cold_hits_.Hits(num_blocks)) * cold_weight();
  }
  double max_hits() const {
    return static_cast<double>(hot_hits_.max_hits()) +
           static_cast<double>(cold_hits_.max_hits()) * cold_weight();
  }
  // Of the estimated curve.
  int64_t largest_size() const;
  int64_t num_sampled() const { return num_sampled_; }  // references

 private:
  struct Counts {
    int32_t hot = 0;
    int32_t cold = 0;
  };
  struct Entry {
    uint64_t key;
    bool is_hot;
  };

  // What a reference of the sample stands for: 1 / rate, but for how many there happened to be.
  double cold_weight() const {
    return num_sampled_cold_ == 0
               ? 0.0
               : static_cast<double>(num_cold_) / static_cast<double>(num_sampled_cold_);
  }
  void CountAt(size_t place, int sign, bool is_hot);
  Counts CountUpTo(size_t place) const;
  void Compact();

  const double rate_;
  const uint64_t seed_;
  const uint64_t threshold_;
  const absl::flat_hash_set<uint64_t>* const hot_;
  // Places in the order of use; a Fenwick tree counts those that are taken.
  std::vector<Counts> tree_;
  std::vector<Entry> entries_;  // by place; key 0: used again since
  absl::flat_hash_map<uint64_t, uint32_t> places_;
  Counts total_;
  HitCurve hot_hits_, cold_hits_;
  std::vector<Entry> sampled_;  // of the request
  int64_t num_sampled_ = 0;
  int64_t num_cold_ = 0, num_sampled_cold_ = 0;  // references
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_SAMPLED_CURVE_H_
