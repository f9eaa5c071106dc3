// ContentPaths: all blocks of all prompts ever seen, each known by the path of blocks that ends
// with it.
//
// A path is a sequence of keys (see content_keys.h). A key says all that comes before it, too, so
// equal keys mean equal beginnings. Blocks of a path that nobody had seen are laid down as one
// piece, and only the first of them is in a table. So a path is a list of pieces, each followed
// from its first block to some depth.
//
// Always: if a block is here, all blocks before it on its path are. Nothing is removed, and a path
// that was followed stays good. A block inside a piece is known by 32 bits of its key: where a path
// leaves a piece, the odds are 1 in 4 * 10^9 that it seems to stay for a block more. Cost: about
// 1 ns per block, and one look-up per piece. Memory: 4 bytes per block and about 40 per piece;
// there is at most one piece per Append. Single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_CONTENT_PATHS_H_
#define KVBLOCKS_SIM_TRACE_CONTENT_PATHS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {

class ContentPaths {
 public:
  // The first `num_blocks` blocks of a piece.
  struct Segment {
    uint32_t piece;
    uint32_t num_blocks;
  };
  using Path = std::vector<Segment>;

  // Follows the path on from where it is, to at most `num_blocks`, as far as its blocks were seen,
  // and returns how many they are. key_of(i) is the key of block i.
  template <typename KeyOf>
  int64_t Follow(int64_t num_blocks, KeyOf&& key_of, Path* path) const {
    int64_t at = NumBlocks(*path);
    while (at < num_blocks) {
      if (!path->empty()) {
        Segment& last = path->back();
        const Piece& piece = pieces_[last.piece];
        const int64_t end = std::min(num_blocks, piece.depth + int64_t{piece.num_blocks});
        const uint32_t* seen = keys_.data() + piece.first - piece.depth;
        while (at < end && seen[at] == static_cast<uint32_t>(key_of(at))) ++at;
        last.num_blocks = static_cast<uint32_t>(at - piece.depth);
        if (at == num_blocks) break;
      }
      const auto found = starts_.find(key_of(at));
      if (found == starts_.end()) break;
      path->push_back({found->second, 1});
      ++at;
    }
    return at;
  }

  // Lays down what is missing of the first `num_blocks` as one piece. False: nothing is.
  // REQUIRES: the path was followed to there.
  template <typename KeyOf>
  bool Append(int64_t num_blocks, KeyOf&& key_of, Path* path) {
    const int64_t depth = NumBlocks(*path);
    if (depth >= num_blocks) return false;
    const auto piece = static_cast<uint32_t>(pieces_.size());
    const auto count = static_cast<uint32_t>(num_blocks - depth);
    const bool is_new = starts_.try_emplace(key_of(depth), piece).second;
    KVBLOCKS_CHECK(is_new, "a path was not followed to its end");
    pieces_.push_back({keys_.size(), depth, count});
    for (int64_t at = depth; at < num_blocks; ++at) {
      keys_.push_back(static_cast<uint32_t>(key_of(at)));
    }
    path->push_back({piece, count});
    return true;
  }

  int64_t NumBlocks(const Path& path) const {
    return path.empty() ? 0 : depth(path.back().piece) + int64_t{path.back().num_blocks};
  }
  // How deep on its paths the piece begins.
  int64_t depth(uint32_t piece) const { return pieces_[piece].depth; }
  // Of all pieces.
  int64_t num_blocks() const { return static_cast<int64_t>(keys_.size()); }

 private:
  struct Piece {
    size_t first;  // of its keys
    int64_t depth;
    uint32_t num_blocks;
  };

  std::vector<uint32_t> keys_;  // piece by piece
  std::vector<Piece> pieces_;
  absl::flat_hash_map<uint64_t, uint32_t> starts_;  // pieces, by the keys of their first blocks
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CONTENT_PATHS_H_
