// ReuseTree: the blocks of all prompts so far as a tree of prefixes, in the order of their last
// use.
//
// It answers two questions. Of a trace that is read: how many distinct blocks were used since this
// one (its LRU stack distance), and from which depth on its path has not been used since by others?
// Of a trace that is made: which block at about this depth answers about so?
//
// A request that uses a block uses those before it on its path. The root's is the latest use.
// Cost: O(log n) per block used; a search looks at some hundred blocks. About 100 bytes per block.

#ifndef KVBLOCKS_SIM_GEN_REUSE_TREE_H_
#define KVBLOCKS_SIM_GEN_REUSE_TREE_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace kvblocks::sim {

class ReuseTree {
 public:
  static constexpr int kNoBlock = -1;

  // `searchable`: Nearest will be called.
  explicit ReuseTree(bool searchable) : searchable_(searchable) {}

  // A block behind `parent` (kNoBlock: at the start of prompts), not used yet.
  int Add(int parent);
  // A request used these blocks, each the parent of the next.
  void Use(const std::vector<int>& path);

  // Its place on its path, from 1 on.
  int64_t depth(int block) const { return blocks_[static_cast<size_t>(block)].depth; }
  int parent(int block) const { return blocks_[static_cast<size_t>(block)].parent; }
  // Distinct blocks used since it was used, itself included. REQUIRES: it was used.
  int64_t Distance(int block) const;
  // How many blocks of its path, from the start on, were used by a later request than its own.
  int64_t Shared(int block) const;
  int64_t num_used() const { return num_used_; }

  // Of the used blocks at about `depth` (at most that of the deepest one) the one that comes next
  // to the distance and to so many shared blocks of its path. kNoBlock if none was used yet.
  int Nearest(int64_t depth, double distance, int64_t shared) const;

 private:
  struct Block {
    int parent;
    int32_t depth;
    int64_t use = -1;   // grows with every block used
    int64_t slot = -1;  // in uses_
    int64_t request = -1;
  };
  // By use, the latest one last.
  using Level = std::set<std::pair<int64_t, int>>;

  void Touch(int block);
  void MakeRoom();
  int64_t UsedBefore(int64_t slot) const;
  int BlockAtDistance(int64_t distance) const;
  void Consider(int block, int64_t depth, double log_distance, int64_t shared, double* best,
                int* found) const;

  const bool searchable_;
  std::vector<Block> blocks_;
  std::vector<Level> levels_;      // by depth - 1
  std::vector<int64_t> uses_;      // Fenwick tree over slots: which are some block's last use
  std::vector<int> block_at_;      // by slot
  int64_t next_slot_ = 0;
  int64_t next_use_ = 0;
  int64_t num_requests_ = 0;
  int64_t num_used_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_REUSE_TREE_H_
