// The pool against a naive model: a list for the free queue, a map of lists for the prefix table.
// The bytes choose the pool and then operations; ids that must be refused are tried, too, and
// change nothing. After every call queue, keys, references and counts must be those of the model.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/block.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/prefix_content.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks;
using kvblocks::fuzz::FuzzInput;

using Key = std::pair<std::array<uint64_t, 4>, GroupId>;

struct ModelBlock {
  int references = 0;
  bool permanent = false;
  std::optional<Key> key;
  int64_t partial = 0;       // tokens of a key that ends inside the block
  std::vector<Key> further;  // V-20
};

struct Model {
  std::vector<ModelBlock> blocks;
  std::vector<BlockId> queue;
  std::map<Key, std::vector<BlockId>> table;  // in order of insertion

  ModelBlock& at(BlockId id) { return blocks[static_cast<size_t>(id)]; }

  void AddKey(BlockId id, const Key& key, int64_t partial) {
    at(id).key = key;
    at(id).partial = partial;
    table[key].push_back(id);
  }
  void DropKey(BlockId id) {
    ModelBlock& block = at(id);
    if (!block.key) return;
    block.further.push_back(*block.key);
    for (const Key& key : block.further) {
      std::vector<BlockId>& ids = table[key];
      std::erase(ids, id);
      if (ids.empty()) table.erase(key);
    }
    block.key.reset();
    block.partial = 0;
    block.further.clear();
  }
  std::vector<BlockId> Take(int64_t k) {
    std::vector<BlockId> ids(queue.begin(), queue.begin() + k);
    queue.erase(queue.begin(), queue.begin() + k);
    for (const BlockId id : ids) {
      DropKey(id);
      at(id).references = 1;
    }
    return ids;
  }
  void Touch(const std::vector<BlockId>& ids) {
    for (const BlockId id : ids) {
      if (id == kNullBlockId) continue;
      if (at(id).references++ == 0) std::erase(queue, id);
    }
  }
  bool MayFree(const std::vector<BlockId>& ids) const {
    std::map<BlockId, int> freed;
    return std::all_of(ids.begin(), ids.end(), [&](BlockId id) {
      if (id == kNullBlockId) return true;
      if (id < 0 || id >= static_cast<BlockId>(blocks.size())) return false;
      const ModelBlock& block = blocks[static_cast<size_t>(id)];
      return !block.permanent && ++freed[id] <= block.references;
    });
  }
  void Free(const std::vector<BlockId>& ids, FreeOrder order) {
    size_t in_front = 0;
    for (const BlockId id : ids) {
      if (id == kNullBlockId || --at(id).references > 0) continue;
      if (at(id).key || order == FreeOrder::kAppendAll) {
        queue.push_back(id);
      } else {
        queue.insert(queue.begin() + static_cast<std::ptrdiff_t>(in_front++), id);
      }
    }
  }
};

// Hashes that agree in the bits of the table's tag, or in all but one bit.
BlockHash SmallHash(FuzzInput& input) {
  const uint8_t byte = input.Byte();
  return {{byte & 7u, (byte >> 3) & 1u, (byte >> 4) & 1u, (byte >> 5) & 1u}};
}

std::vector<BlockId> SomeBlocks(FuzzInput& input, const BlockPool& pool) {
  std::vector<BlockId> ids;
  for (int64_t n = input.Small(0, 7); n > 0; --n) {
    ids.push_back(input.Wild32(0, std::min(pool.num_blocks() - 1, 200)));
  }
  return ids;
}

void Compare(const BlockPool& pool, Model& model) {
  const absl::Status status = pool.CheckInvariants();
  FUZZ_EXPECT(status.ok(), status.ToString());
  FUZZ_EXPECT(pool.free_queue().Walk() == model.queue, "other free queue");
  int32_t live = 0, cached = 0, keyed = 0;
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const ModelBlock& want = model.at(id);
    const KvCacheBlock& got = pool.block(id);
    FUZZ_EXPECT(got.ref_count == want.references, "references of block " + std::to_string(id));
    FUZZ_EXPECT(got.has_key() == want.key.has_value(), "key of block " + std::to_string(id));
    FUZZ_EXPECT(!want.key || *want.key == Key(pool.hash(id).words, got.key_group), "other key");
    FUZZ_EXPECT(pool.partial_tokens(id) == want.partial, "tokens of a key");
    std::vector<Key> further;
    for (const auto& [hash, group] : pool.further_keys(id)) further.emplace_back(hash.words, group);
    FUZZ_EXPECT(further == want.further, "further keys of block " + std::to_string(id));
    live += want.references > 0 && !want.permanent;
    cached += want.references == 0 && want.key;
    keyed += want.key.has_value();
  }
  FUZZ_EXPECT(pool.num_live() == live && pool.num_cached_unreferenced() == cached, "counts");
  FUZZ_EXPECT(pool.num_keyed_blocks() == keyed, "number of keyed blocks");
  FUZZ_EXPECT(pool.num_keys() == static_cast<int32_t>(model.table.size()), "number of keys");
  for (const auto& [key, ids] : model.table) {
    FUZZ_EXPECT(pool.FindCached({key.first}, key.second) == ids.front(), "not the earliest");
    std::vector<BlockId> own = ids;
    std::erase_if(own, [&, wanted = key](BlockId id) { return model.at(id).key != wanted; });
    FUZZ_EXPECT(pool.table().FindAll({key.first}, key.second) == own, "other duplicates");
  }
}

void CacheSome(FuzzInput& input, BlockPool& pool, Model& model) {
  static const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kSha256, "seed"), 2});
  std::vector<BlockHash> hashes;
  for (int64_t n = input.Small(0, 8); n > 0; --n) hashes.push_back(SmallHash(input));
  const int64_t num_hashes = static_cast<int64_t>(hashes.size());
  const PrefixContent content =
      PrefixContent::FromHashes(2 * num_hashes + 1, std::move(hashes), hashing).value();
  const std::vector<BlockId> table = SomeBlocks(input, pool);
  const int64_t block_size = input.Bool() ? 2 : 4;
  const int64_t per_block = block_size / 2;
  const int64_t to =
      input.Small(0, std::min(static_cast<int64_t>(table.size()), num_hashes / per_block));
  const int64_t from = input.Small(0, to);
  const auto group = static_cast<GroupId>(input.Small(0, 2));
  std::vector<uint8_t> mask;
  if (input.Bool()) {
    for (int64_t i = from; i < to; ++i) mask.push_back(input.Byte() & 1);
  }
  const auto is_left_out = [&](int64_t i) {
    return table[static_cast<size_t>(i)] == kNullBlockId ||
           (!mask.empty() && mask[static_cast<size_t>(i - from)] == 0);
  };
  std::set<BlockId> distinct;
  for (int64_t i = from; i < to; ++i) {
    if (is_left_out(i)) continue;
    const BlockId id = table[static_cast<size_t>(i)];
    if (id < 0 || id >= pool.num_blocks() || model.at(id).permanent ||
        (model.at(id).key && model.at(id).partial == 0) || !distinct.insert(id).second) {
      return;
    }
  }
  if (!pool.enable_caching()) return;
  pool.CacheFullBlocks(content, table, from, to, block_size, group, mask);
  for (int64_t i = from; i < to; ++i) {
    if (is_left_out(i)) continue;
    const BlockId id = table[static_cast<size_t>(i)];
    model.DropKey(id);  // of a prefix that ends inside it
    model.AddKey(id, Key(content.HashOfBlock(i, per_block).words, group), 0);
  }
}

// The key of a prefix that ends inside a block. A length has its own hashes, as real contents have.
void CacheTail(FuzzInput& input, BlockPool& pool, Model& model) {
  static const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kSha256, "seed"), 2});
  const int64_t count = 1 + input.Small(0, 3);
  std::vector<BlockHash> hashes;
  for (int64_t i = 0; i < count; ++i) {
    hashes.push_back(SmallHash(input));
    hashes.back().words[0] += static_cast<uint64_t>(8 * count);
  }
  const PrefixContent content =
      PrefixContent::FromHashes(2 * count + 1, std::move(hashes), hashing).value();
  const BlockId id = input.Wild32(0, pool.num_blocks() - 1);
  const auto group = static_cast<GroupId>(input.Small(0, 2));
  const bool may_be_further = input.Bool();
  if (id < 1 || id >= pool.num_blocks() || model.at(id).permanent || !pool.enable_caching()) return;
  ModelBlock& block = model.at(id);
  const Key key(content.HashOfBlock(count - 1, 1).words, group);
  bool expected = block.key != key &&
                  std::find(block.further.begin(), block.further.end(), key) == block.further.end();
  const bool is_further = block.key && (block.partial == 0 || block.partial >= 2 * count);
  expected = expected && (!is_further || may_be_further);
  FUZZ_EXPECT(pool.RegisterPartialBlock(content, id, 2 * count, /*block_size=*/8, group,
                                        may_be_further) == expected,
              "another answer for a tail");
  if (!expected) return;
  if (is_further) {
    block.further.push_back(key);
    model.table[key].push_back(id);
  } else {
    model.DropKey(id);
    model.AddKey(id, key, 2 * count % 8);  // at the block's end the key is of all of it
  }
}

void Operate(FuzzInput& input, BlockPool& pool, Model& model) {
  switch (input.Byte() % 8) {
    case 0: {
      const int64_t k = std::max<int64_t>(input.Wild(0, 6), 0);
      FUZZ_EXPECT(pool.Fits(k, 0) == (k <= static_cast<int64_t>(model.queue.size())), "fits");
      if (!pool.Fits(k, 0)) break;
      std::vector<BlockId> got;
      pool.GetNewBlocks(k, got);
      FUZZ_EXPECT(got == model.Take(k), "other blocks");
      break;
    }
    case 1: {
      const std::vector<BlockId> ids = SomeBlocks(input, pool);
      if (!pool.CheckTouchable(ids).ok()) break;
      pool.Touch(ids);
      model.Touch(ids);
      break;
    }
    case 2:
    case 3: {
      const std::vector<BlockId> ids = SomeBlocks(input, pool);
      if (!model.MayFree(ids)) break;
      pool.FreeBlocks(ids);
      model.Free(ids, pool.free_order());
      break;
    }
    case 4:
      CacheSome(input, pool, model);
      break;
    case 5:
      input.Bool() ? CacheTail(input, pool, model) : CacheSome(input, pool, model);
      break;
    case 6: {
      const std::vector<BlockId> ids = SomeBlocks(input, pool);
      if (!pool.EvictBlocks(ids).ok()) break;
      for (const BlockId id : ids) model.DropKey(id);
      break;
    }
    default: {
      const uint8_t kind = input.Byte();
      if (kind > 240) {
        const int64_t k = input.Wild(0, 3);
        const auto got = pool.TakePermanentBlocks(k);
        if (!got.ok()) break;
        for (const BlockId id : model.Take(k)) model.at(id).permanent = true;
      } else if (kind > 200) {
        bool live = false;
        for (size_t id = 1; id < model.blocks.size(); ++id) {
          live |= model.blocks[id].references > 0 && !model.blocks[id].permanent;
        }
        FUZZ_EXPECT(pool.ResetPrefixCache() == !live, "reset");
        if (live) break;
        model.table.clear();
        for (ModelBlock& block : model.blocks) {
          block.key.reset();
          block.partial = 0;
          block.further.clear();
        }
      } else {
        const GroupId group = input.Wild32(0, 2);
        const BlockHash hash = SmallHash(input);
        const auto found = model.table.find({hash.words, group});
        FUZZ_EXPECT(pool.FindCached(hash, group) ==
                        (found == model.table.end() ? kNullBlockId : found->second.front()),
                    "look-up");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  BlockPool::Options options;
  options.num_blocks = input.Wild(1, 40);
  if (options.num_blocks > 2000 && options.num_blocks < int64_t{1} << 31) return 0;
  options.enable_caching = input.Byte() != 1;
  options.enable_events = input.Bool();
  options.free_order = input.Bool() ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  options.one_event_per_registration = input.Byte() % 4 == 1;
  const auto pool = BlockPool::Create(options);
  FUZZ_EXPECT(pool.ok() == (options.num_blocks >= 1 && options.num_blocks <= 2000),
              pool.status().ToString());
  if (!pool.ok()) return 0;
  Model model;
  model.blocks.resize(static_cast<size_t>(options.num_blocks));
  for (BlockId id = 1; id < options.num_blocks; ++id) model.queue.push_back(id);
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) {
    Operate(input, **pool, model);
    Compare(**pool, model);
    FUZZ_EXPECT((*pool)->TakeEvents().empty() || options.enable_events, "events although off");
  }
  return 0;
}
