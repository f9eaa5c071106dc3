// PrefixHashTable against std::map: equal blocks per key in order of insertion, through collisions,
// duplicates and a full table.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <utility>

#include "block_pool/prefix_hash_table.h"
#include "tests/property/check_property.h"
#include "tests/property/operation.h"

namespace kvblocks::property {
namespace {

// Hashes that agree in some of their words.
BlockHash HashOf(int64_t index) {
  return {{static_cast<uint64_t>(index / 4), static_cast<uint64_t>(index % 4), 7,
           static_cast<uint64_t>(index % 2)}};
}

TEST(PrefixHashTablePropertyTest, AgreesWithAMap) {
  CheckProperty(2000, [] {
    const int32_t num_blocks = *rc::gen::inRange<int32_t>(2, 40);
    // Few keys make duplicates, many fill the table.
    const int64_t num_hashes = *rc::gen::inRange<int64_t>(1, 60);
    const auto operations = *Operations(100);
    BlockRecords records(num_blocks);
    PrefixHashTable table(&records);
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
      RC_ASSERT(table.CheckInvariants().ok());
    }
  });
}

}  // namespace
}  // namespace kvblocks::property
