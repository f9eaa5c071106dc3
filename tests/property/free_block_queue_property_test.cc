// FreeBlockQueue against std::list: equal order and equal answers.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <list>
#include <set>

#include "kvblocks/block_pool/free_block_queue.h"
#include "kvblocks/tests/property/check_property.h"
#include "kvblocks/tests/property/operation.h"

namespace kvblocks::property {
namespace {

// Distinct ids that are not queued, in any order.
std::vector<BlockId> DrawAbsent(Numbers& numbers, const std::list<BlockId>& queue,
                                int32_t num_blocks) {
  std::set<BlockId> taken(queue.begin(), queue.end());
  std::vector<BlockId> ids;
  const int64_t count = numbers.Below(5);
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<BlockId>(numbers.Below(num_blocks));
    if (taken.insert(id).second) ids.push_back(id);
  }
  return ids;
}

TEST(FreeBlockQueuePropertyTest, AgreesWithAList) {
  CheckProperty(2000, [] {
    const int32_t num_blocks = *rc::gen::inRange<int32_t>(1, 20);
    const auto operations = *Operations(100);
    BlockRecords records(num_blocks);
    FreeBlockQueue queue(&records);
    std::list<BlockId> model;
    for (const Operation& operation : operations) {
      Numbers numbers(operation.numbers);
      if (operation.kind < 30) {
        const auto ids = DrawAbsent(numbers, model, num_blocks);
        for (BlockId id : ids) queue.LinkBack(id);
        model.insert(model.end(), ids.begin(), ids.end());
      } else if (operation.kind < 50) {
        const auto ids = DrawAbsent(numbers, model, num_blocks);
        BlockId last = kUnlinked;
        for (BlockId id : ids) {
          queue.LinkAfter(last, id);
          last = id;
        }
        model.insert(model.begin(), ids.begin(), ids.end());
      } else if (operation.kind < 75) {
        const auto id = static_cast<BlockId>(numbers.Below(num_blocks));
        const auto it = std::find(model.begin(), model.end(), id);
        RC_ASSERT(records[id].is_linked() == (it != model.end()));
        if (it == model.end()) continue;
        queue.Unlink(id);
        model.erase(it);
      } else {
        std::vector<BlockId> ids(
            std::min<size_t>(model.size(), static_cast<size_t>(numbers.Below(6))));
        queue.PopFront(absl::MakeSpan(ids));
        RC_ASSERT(std::equal(ids.begin(), ids.end(), model.begin()));
        model.erase(model.begin(), std::next(model.begin(), static_cast<int64_t>(ids.size())));
      }
      RC_ASSERT(queue.Walk() == std::vector<BlockId>(model.begin(), model.end()));
      RC_ASSERT(queue.size() == static_cast<int32_t>(model.size()));
      RC_ASSERT(queue.empty() == model.empty());
      RC_ASSERT(queue.front() == (model.empty() ? num_blocks : model.front()));
      RC_ASSERT(queue.CheckInvariants().ok());
    }
  });
}

}  // namespace
}  // namespace kvblocks::property
