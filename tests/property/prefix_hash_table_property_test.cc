// PrefixHashTable against std::map: equal blocks per key in order of insertion, through collisions,
// duplicates and a full table.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kvblocks/block_pool/prefix_hash_table.h"
#include "kvblocks/tests/property/check_property.h"
#include "kvblocks/tests/property/operation.h"

namespace kvblocks::property {
namespace {

// Hashes that agree in some of their words.
BlockHash HashOf(int64_t index) {
  return {{static_cast<uint64_t>(index / 4), static_cast<uint64_t>(index % 4), 7,
           static_cast<uint64_t>(index % 2)}};
}

TEST(PrefixHashTablePropertyTest, AgreesWithAMap) {
  CheckProperty(2000, [] {
    const int32_t num_blocks = *rc::gen::inRange<int32_t>(2, 60);
    // From as few buckets as hold all blocks, where keys stand far from home, to the usual number.
    const auto num_buckets = *rc::gen::inRange<size_t>(static_cast<size_t>(num_blocks + 11) / 12,
                                                       static_cast<size_t>(num_blocks) / 6 + 2);
    // Few keys make duplicates, many fill the table.
    const int64_t num_hashes = *rc::gen::inRange<int64_t>(1, 60);
    const auto operations = *Operations(150);
    BlockRecords records(num_blocks);
    PrefixHashTable table(&records, num_buckets);
    using Key = std::pair<int64_t, GroupId>;
    std::map<Key, std::vector<BlockId>> model;
    std::map<BlockId, Key> keys;
    for (const Operation& operation : operations) {
      Numbers numbers(operation.numbers);
      const BlockId id = static_cast<BlockId>(1 + numbers.Below(num_blocks - 1));
      const Key key = {numbers.Below(num_hashes), static_cast<GroupId>(numbers.Below(3))};
      const BlockHash hash = HashOf(key.first);
      if (operation.kind < 55) {
        const bool present = keys.count(id) > 0;
        if (present && keys[id] != key) continue;  // a block has one key at most
        RC_ASSERT(table.Insert(hash, key.second, id) == !present);
        if (!present) {
          model[key].push_back(id);
          keys[id] = key;
        }
      } else if (operation.kind < 75) {
        const bool present = keys.count(id) > 0 && keys[id] == key;
        RC_ASSERT(table.Erase(hash, key.second, id) == present);
        if (present) {
          std::erase(model[key], id);
          if (model[key].empty()) model.erase(key);
          keys.erase(id);
        }
      } else if (operation.kind < 98) {
        if (keys.count(id) == 0) continue;
        table.Erase(id);
        const Key old = keys[id];
        std::erase(model[old], id);
        if (model[old].empty()) model.erase(old);
        keys.erase(id);
      } else {
        table.Clear();
        model.clear();
        keys.clear();
      }
      RC_ASSERT(table.num_keys() == static_cast<int32_t>(model.size()));
      RC_ASSERT(table.num_blocks() == static_cast<int32_t>(keys.size()));
      for (int64_t h = 0; h < num_hashes; ++h) {
        for (GroupId g = 0; g < 3; ++g) {
          const auto it = model.find({h, g});
          const auto expected = it == model.end() ? std::vector<BlockId>() : it->second;
          RC_ASSERT(table.FindAll(HashOf(h), g) == expected);
          RC_ASSERT(table.Find(HashOf(h), g) ==
                    (expected.empty() ? kNullBlockId : expected.front()));
        }
      }
      // A run of all hashes from some point on, as far as a group has them.
      std::vector<BlockHash> run;
      for (int64_t h = numbers.Below(num_hashes); h < num_hashes; ++h) run.push_back(HashOf(h));
      std::vector<BlockId> found(run.size());
      const size_t length = table.FindRun(run, 1, key.second, absl::MakeSpan(found));
      for (size_t i = 0; i < length; ++i) {
        RC_ASSERT(found[i] != kNullBlockId);
        RC_ASSERT(found[i] == table.Find(run[i], key.second));
      }
      if (length < run.size()) {
        RC_ASSERT(table.Find(run[length], key.second) == kNullBlockId);
      }
      RC_ASSERT(table.CheckInvariants().ok());
    }
  });
}

}  // namespace
}  // namespace kvblocks::property
