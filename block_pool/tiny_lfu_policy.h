// TinyLfuPolicy: W-TinyLFU. Newcomers stand in a window of 1/100 of the pool, the rest is a
// segmented LRU. Once the pool is full, the oldest of the window gets into the main part only if its
// content was used more often than that of the block that would go there; otherwise it goes itself.
//
// Uses are counted per content, also of what is not cached, in four rows of small counters
// (a count-min sketch) that are halved after ten references per block of the pool.
//
// Always: a cached block is in the window or in the main part. Cost: O(log n) per call, and O(size
// of the sketch) at each halving.

#ifndef KVBLOCKS_BLOCK_POOL_TINY_LFU_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_TINY_LFU_POLICY_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/slru_policy.h"

namespace kvblocks {

// How often keys were counted of late, up to 15; seldom more than that when others share counters.
class FrequencySketch {
 public:
  explicit FrequencySketch(int32_t num_blocks)
      : halving_(int64_t{10} * num_blocks),
        bits_(std::bit_width(std::max<uint32_t>(1 << 14, static_cast<uint32_t>(num_blocks)) - 1)) {
    for (auto& row : rows_) row.assign(size_t{1} << bits_, 0);
  }

  void Count(uint64_t key) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      uint8_t& counter = rows_[i][Place(i, key)];
      counter = static_cast<uint8_t>(std::min(counter + 1, 15));
    }
    if (++num_counted_ < halving_) return;
    num_counted_ = 0;
    for (auto& row : rows_) {
      for (uint8_t& counter : row) counter = static_cast<uint8_t>(counter / 2);
    }
  }
  int Estimate(uint64_t key) const {
    int least = 15;
    for (size_t i = 0; i < rows_.size(); ++i) {
      least = std::min<int>(least, rows_[i][Place(i, key)]);
    }
    return least;
  }
  void Clear() {
    for (auto& row : rows_) std::fill(row.begin(), row.end(), 0);
    num_counted_ = 0;
  }

 private:
  size_t Place(size_t row, uint64_t key) const {
    constexpr std::array<uint64_t, 4> kFactors = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu,
                                                  0x165667b19e3779f9u, 0x27d4eb2f165667c5u};
    return static_cast<size_t>(((key ^ key >> 29) * kFactors[row]) >> (64 - bits_));
  }

  const int64_t halving_;
  const int bits_;
  int64_t num_counted_ = 0;
  std::array<std::vector<uint8_t>, 4> rows_;
};

class TinyLfuPolicy final : public EvictionPolicy {
 public:
  explicit TinyLfuPolicy(int32_t num_blocks)
      : most_window_(std::max(1, num_blocks / 100)),
        most_main_(num_blocks - 1 - most_window_),  // the null block holds nothing
        states_(static_cast<size_t>(num_blocks)),
        window_(num_blocks),
        window_candidates_(num_blocks),
        main_(num_blocks),
        sketch_(num_blocks) {}

  void Insert(BlockId id, uint64_t key, int64_t) override {
    sketch_.Count(key);
    At(id) = {.key = key, .number = ++last_};
    window_.AddBack(id);
    // While there is room, nobody has to be better than anybody.
    while (window_.size() > most_window_ && num_main_ < most_main_) MoveToMain(window_.front());
  }
  void Hit(BlockId id) override {
    sketch_.Count(At(id).key);
    if (At(id).is_main) main_.Hit(id);
  }
  void Release(absl::Span<const BlockId> deepest_first) override {
    for (const BlockId id : deepest_first) {
      if (At(id).is_main) {
        main_.Release({&id, 1});
        continue;
      }
      At(id).number = ++last_;
      window_.Remove(id);
      window_.AddBack(id);
    }
  }
  void Enter(BlockId id) override {
    if (At(id).is_main) return main_.Enter(id);
    window_candidates_.Add(id, {.first = At(id).number});
  }
  void Leave(BlockId id) override {
    if (At(id).is_main) return main_.Leave(id);
    window_candidates_.Remove(id);
  }
  BlockId Victim() override {
    const BlockId resident = main_.Victim();
    if (window_candidates_.empty()) return resident;
    const BlockId newcomer = window_candidates_.top();
    if (resident == kNullBlockId) return newcomer;
    if (window_.size() < most_window_) return resident;
    if (sketch_.Estimate(At(newcomer).key) <= sketch_.Estimate(At(resident).key)) return newcomer;
    MoveToMain(newcomer);
    return resident;
  }
  void Remove(BlockId id, bool was_evicted) override {
    if (!At(id).is_main) {
      window_.Remove(id);
      return;
    }
    main_.Remove(id, was_evicted);
    At(id).is_main = false;
    --num_main_;
  }
  void Clear() override {
    window_.Clear();
    window_candidates_.Clear();
    main_.Clear();
    sketch_.Clear();
    num_main_ = 0;
    std::fill(states_.begin(), states_.end(), State{});
  }
  absl::Status CheckInvariants() const override {
    const auto num_main = std::count_if(states_.begin(), states_.end(),
                                        [](const State& state) { return state.is_main; });
    if (num_main != num_main_ || !window_.IsConsistent() || !window_candidates_.IsConsistent()) {
      return BrokenInvariant("w-tinylfu counts ", num_main_, " blocks in its main part, found ",
                             num_main, ", or its window is out of order");
    }
    return main_.CheckInvariants();
  }

 private:
  struct State {
    uint64_t key = 0;
    int64_t number = 0;  // of insertion or last release, in the window
    bool is_main = false;
  };
  State& At(BlockId id) { return states_[static_cast<size_t>(id)]; }
  void MoveToMain(BlockId id) {
    const bool is_candidate = window_candidates_.contains(id);
    window_candidates_.Remove(id);
    window_.Remove(id);
    At(id).is_main = true;
    ++num_main_;
    main_.Insert(id, At(id).key, 0);
    if (is_candidate) main_.Enter(id);
  }

  const int32_t most_window_;
  const int32_t most_main_;
  int32_t num_main_ = 0;
  int64_t last_ = 0;
  std::vector<State> states_;
  BlockList window_;  // also those in use, by insertion or last release
  BlockHeap window_candidates_;
  SlruPolicy main_;
  FrequencySketch sketch_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_TINY_LFU_POLICY_H_
