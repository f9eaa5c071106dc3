#include "bench/naive_engine.h"

#include <algorithm>
#include <utility>

namespace kvblocks::bench {
namespace {

std::string KeyOf(const BlockHash& hash) {
  return std::string(reinterpret_cast<const char*>(hash.words.data()), sizeof(hash)) + "/0";
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

NaiveEngine::NaiveEngine(const EngineOptions& options)
    : options_(options), blocks_(static_cast<size_t>(options.num_blocks)) {
  for (BlockId id = 1; id < options.num_blocks; ++id) {
    blocks_[static_cast<size_t>(id)].place = queue_.insert(queue_.end(), id);
  }
}

NaiveEngine::Sequence NaiveEngine::New(int64_t num_tokens, std::vector<BlockHash> hashes) {
  return {.id = "request-" + std::to_string(next_id_++),
          .num_tokens = num_tokens,
          .hashes = std::move(hashes)};
}

int64_t NaiveEngine::NumSkippedBlocks(int64_t num_tokens) const {
  return options_.window == 0
             ? 0
             : std::max<int64_t>(0, num_tokens - options_.window + 1) / options_.block_size;
}

BlockId NaiveEngine::Find(const BlockHash& hash) const {
  const auto it = cached_.find(KeyOf(hash));
  return it == cached_.end() ? kNullBlockId : it->second.front();
}

int64_t NaiveEngine::Lookup(Sequence& s) {
  s.hits.clear();
  if (!options_.enable_caching) return 0;
  const int64_t most = (s.num_tokens - 1) / options_.block_size;
  if (options_.window == 0) {
    for (int64_t i = 0; i < most; ++i) {
      const BlockId id = Find(s.hashes[static_cast<size_t>(i)]);
      if (id == kNullBlockId) break;
      s.hits.push_back(id);
    }
  } else {
    // Right to left, until a run of the window's blocks is found.
    const int64_t need = std::max<int64_t>(1, CeilDiv(options_.window - 1, options_.block_size));
    s.hits.assign(static_cast<size_t>(most), kNullBlockId);
    int64_t run = 0;
    for (int64_t i = most - 1; i >= 0; --i) {
      const BlockId id = Find(s.hashes[static_cast<size_t>(i)]);
      if (id == kNullBlockId) {
        s.hits.resize(static_cast<size_t>(i));
        run = 0;
        continue;
      }
      s.hits[static_cast<size_t>(i)] = id;
      if (++run == need) break;
    }
  }
  return static_cast<int64_t>(s.hits.size()) * options_.block_size;
}

void NaiveEngine::Take(int64_t count, Table& table) {
  for (int64_t i = 0; i < count; ++i) {
    const BlockId id = queue_.front();
    queue_.pop_front();
    Block& block = blocks_[static_cast<size_t>(id)];
    block.place.reset();
    block.ref_count = 1;
    if (block.key) {
      const auto it = cached_.find(*block.key);
      std::erase(it->second, id);
      if (it->second.empty()) cached_.erase(it);
      block.key.reset();
    }
    table.blocks.push_back(id);
  }
}

bool NaiveEngine::AllocateFirst(Sequence& s, int64_t num_new_tokens, bool register_blocks) {
  const int64_t num_computed = static_cast<int64_t>(s.hits.size()) * options_.block_size;
  const int64_t num_new = CeilDiv(num_computed + num_new_tokens, options_.block_size) -
                          static_cast<int64_t>(s.hits.size());
  int64_t evictable = 0;
  for (BlockId id : s.hits) {
    evictable += id != kNullBlockId && blocks_[static_cast<size_t>(id)].ref_count == 0;
  }
  if (num_new + evictable > static_cast<int64_t>(queue_.size())) return false;
  Table& table = tables_[s.id];
  for (BlockId id : s.hits) {
    Block& block = blocks_[static_cast<size_t>(id)];
    if (id != kNullBlockId && block.ref_count++ == 0) {
      queue_.erase(*block.place);
      block.place.reset();
    }
    table.blocks.push_back(id);
  }
  table.num_cached = static_cast<int64_t>(s.hits.size());
  return Allocate(s, table, num_computed, num_new_tokens, register_blocks);
}

bool NaiveEngine::Step(Sequence& s, int64_t num_computed, int64_t num_new_tokens) {
  return Allocate(s, tables_[s.id], num_computed, num_new_tokens, /*register_blocks=*/true);
}

bool NaiveEngine::Allocate(Sequence& s, Table& table, int64_t num_computed, int64_t num_new_tokens,
                           bool register_blocks) {
  for (int64_t i = std::min<int64_t>(NumSkippedBlocks(num_computed),
                                     static_cast<int64_t>(table.blocks.size())) -
                   1;
       i >= 0 && table.blocks[static_cast<size_t>(i)] != kNullBlockId; --i) {
    Release(std::exchange(table.blocks[static_cast<size_t>(i)], kNullBlockId));
  }
  const int64_t num_new = CeilDiv(num_computed + num_new_tokens, options_.block_size) -
                          static_cast<int64_t>(table.blocks.size());
  if (num_new > static_cast<int64_t>(queue_.size())) return false;
  Take(num_new, table);
  if (register_blocks && options_.enable_caching) {
    Register(s, std::min(num_computed + num_new_tokens, s.num_tokens));
  }
  return true;
}

void NaiveEngine::Register(Sequence& s, int64_t num_tokens) {
  Table& table = tables_[s.id];
  for (; table.num_cached < num_tokens / options_.block_size; ++table.num_cached) {
    const BlockId id = table.blocks[static_cast<size_t>(table.num_cached)];
    if (id == kNullBlockId) continue;
    std::string key = KeyOf(s.hashes[static_cast<size_t>(table.num_cached)]);
    cached_[key].push_back(id);
    blocks_[static_cast<size_t>(id)].key = std::move(key);
  }
}

void NaiveEngine::Release(BlockId id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  if (--block.ref_count > 0) return;
  block.place = queue_.insert(block.key ? queue_.end() : queue_.begin(), id);
}

void NaiveEngine::Free(Sequence& s) {
  Table& table = tables_[s.id];
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) {
    if (*it != kNullBlockId) Release(*it);
  }
  tables_.erase(s.id);
}

bool NaiveEngine::Reset() {
  if (queue_.size() + 1 != blocks_.size()) return false;
  cached_.clear();
  for (Block& block : blocks_) block.key.reset();
  return true;
}

int64_t NaiveEngine::num_keyed_blocks() const {
  int64_t count = 0;
  for (const auto& [key, ids] : cached_) count += static_cast<int64_t>(ids.size());
  return count;
}

}  // namespace kvblocks::bench
