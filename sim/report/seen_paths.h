// SeenPaths: all blocks of all prompts ever seen, each known by the path of blocks that ends with
// it.
//
// A path is a sequence of keys; a key says all that comes before it, too, so equal keys mean equal
// beginnings. Blocks of a path that nobody had seen are laid down one behind the other, and only
// the first of them is in a table: a path that was seen before is followed through contiguous
// memory, with one look-up wherever it leaves what one earlier request laid down.
//
// Always: if a block is here, all blocks before it are. Entries are never removed; indices stay
// good, references until the next Append. Cost: about 1 ns per block, and one look-up per piece.
// Memory: 16 bytes per block and about 20 per Append.

#ifndef KVBLOCKS_SIM_REPORT_SEEN_PATHS_H_
#define KVBLOCKS_SIM_REPORT_SEEN_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvblocks::sim {

class SeenPaths {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Entry {
    uint32_t owner = kNone;
    uint32_t last_release = kNone;
  };

  // Where the blocks of one path are: consecutive entries, piece by piece.
  class Path {
   public:
    int64_t num_blocks() const { return num_blocks_; }
    void Clear() {
      pieces_.clear();
      num_blocks_ = 0;
    }

   private:
    friend class SeenPaths;
    struct Piece {
      size_t first;
      int64_t count;
    };
    void Add(size_t entry) {
      if (pieces_.empty() ||
          pieces_.back().first + static_cast<size_t>(pieces_.back().count) != entry) {
        pieces_.push_back({entry, 0});
      }
      ++pieces_.back().count;
      ++num_blocks_;
    }

    std::vector<Piece> pieces_;
    int64_t num_blocks_ = 0;
  };

  // Follows the path on from where it is, to at most `num_blocks`, as far as its blocks were seen.
  // key_of(i) is the key of block i.
  template <typename KeyOf>
  void Follow(int64_t num_blocks, KeyOf&& key_of, Path* path) const {
    while (path->num_blocks_ < num_blocks) {
      const uint64_t key = key_of(path->num_blocks_);
      size_t next = 0;
      if (!path->pieces_.empty()) {
        const Path::Piece& piece = path->pieces_.back();
        next = piece.first + static_cast<size_t>(piece.count);
      }
      if (path->pieces_.empty() || next >= keys_.size() || keys_[next] != key) {
        const auto start = starts_.find(key);
        if (start == starts_.end()) return;
        next = start->second;
      }
      path->Add(next);
    }
  }

  // Lays down what is missing of the first `num_blocks`, as blocks of nobody. The path must have
  // been followed to there.
  template <typename KeyOf>
  void Append(int64_t num_blocks, KeyOf&& key_of, Path* path) {
    if (path->num_blocks_ >= num_blocks) return;
    starts_.try_emplace(key_of(path->num_blocks_), keys_.size());
    while (path->num_blocks_ < num_blocks) {
      const uint64_t key = key_of(path->num_blocks_);
      path->Add(keys_.size());
      keys_.push_back(key);
      entries_.emplace_back();
    }
  }

  // visit(block, entry) for the path's blocks from `first` to before `end`.
  template <typename Visitor>
  void ForEach(const Path& path, int64_t first, int64_t end, Visitor&& visit) {
    int64_t begin = 0;  // of the piece
    for (const Path::Piece& piece : path.pieces_) {
      if (begin >= end) return;
      int64_t block = begin > first ? begin : first;
      const int64_t stop = begin + piece.count < end ? begin + piece.count : end;
      for (; block < stop; ++block) {
        visit(block, entries_[piece.first + static_cast<size_t>(block - begin)]);
      }
      begin += piece.count;
    }
  }

 private:
  std::vector<uint64_t> keys_;
  std::vector<Entry> entries_;                    // parallel to keys_
  absl::flat_hash_map<uint64_t, size_t> starts_;  // key of the first block of each Append
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_SEEN_PATHS_H_
