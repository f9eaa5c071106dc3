// NaiveEngine: the same rules for one group, written with the containers that come to mind first -
// a linked list of free blocks, a hash map from key to blocks, a map from request id to its table.
//
// The yardstick of the benchmarks: what a careful but plain implementation costs. Every operation
// has the same complexity as the library's, and the same results.

#ifndef KVBLOCKS_BENCH_NAIVE_ENGINE_H_
#define KVBLOCKS_BENCH_NAIVE_ENGINE_H_

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvblocks/block.h"

namespace kvblocks::bench {

// What a benchmark chooses about the engine it runs on.
inline constexpr int64_t kBlockSize = 16;

struct EngineOptions {
  int64_t num_blocks = 100'000;
  int64_t block_size = kBlockSize;
  bool enable_caching = true;
  int64_t window = 0;  // 0: full attention
  int64_t lookup_history_blocks = 0;
};

class NaiveEngine {
 public:
  struct Sequence {
    std::string id;
    int64_t num_tokens = 0;
    std::vector<BlockHash> hashes = {};
    std::vector<BlockId> hits = {};
  };

  explicit NaiveEngine(const EngineOptions& options);

  Sequence New(int64_t num_tokens, std::vector<BlockHash> hashes);
  int64_t Lookup(Sequence& s);
  bool AllocateFirst(Sequence& s, int64_t num_new_tokens, bool register_blocks = true);
  bool Step(Sequence& s, int64_t num_computed, int64_t num_new_tokens);
  void Register(Sequence& s, int64_t num_tokens);
  void Free(Sequence& s);
  bool Reset();
  int64_t num_keyed_blocks() const;

 private:
  struct Block {
    int ref_count = 0;
    std::optional<std::string> key;
    std::optional<std::list<BlockId>::iterator> place;  // in the queue
  };
  struct Table {
    std::vector<BlockId> blocks;
    int64_t num_cached = 0;
  };

  int64_t NumSkippedBlocks(int64_t num_tokens) const;
  BlockId Find(const BlockHash& hash) const;
  void Take(int64_t count, Table& table);
  void Release(BlockId id);
  bool Allocate(Sequence& s, Table& table, int64_t num_computed, int64_t num_new_tokens,
                bool register_blocks);

  EngineOptions options_;
  std::vector<Block> blocks_;
  std::list<BlockId> queue_;
  std::unordered_map<std::string, std::vector<BlockId>> cached_;
  std::unordered_map<std::string, Table> tables_;
  int64_t next_id_ = 0;
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_NAIVE_ENGINE_H_
