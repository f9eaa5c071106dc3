// FreeBlockQueue against std::list: equal order and equal answers, also to misuse.

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

// Ids to add: mostly absent ones, now and then one that is queued, out of range or listed twice.
std::vector<BlockId> DrawIds(Numbers& numbers, int32_t num_blocks) {
  std::vector<BlockId> ids;
  const int64_t count = numbers.Below(5);
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<BlockId>(numbers.Below(num_blocks + 2) - 1));
  }
  return ids;
}

bool Addable(const std::vector<BlockId>& ids, const std::list<BlockId>& queue, int32_t num_blocks) {
  std::set<BlockId> seen(queue.begin(), queue.end());
  return std::all_of(ids.begin(), ids.end(), [&](BlockId id) {
    return id >= 0 && id < num_blocks && seen.insert(id).second;
  });
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
      if (operation.kind < 20) {
        const auto ids = DrawIds(numbers, num_blocks);
        const bool valid = Addable(ids, model, num_blocks);
        const absl::Status status = queue.Append(ids);
        RC_ASSERT(status.ok() == valid);
        RC_ASSERT(valid || absl::IsInvalidArgument(status));
        if (valid) model.insert(model.end(), ids.begin(), ids.end());
      } else if (operation.kind < 40) {
        const auto ids = DrawIds(numbers, num_blocks);
        const bool valid = Addable(ids, model, num_blocks);
        const absl::Status status = queue.Prepend(ids);
        RC_ASSERT(status.ok() == valid);
        if (valid) model.insert(model.begin(), ids.begin(), ids.end());
      } else if (operation.kind < 60) {
        const BlockId id = static_cast<BlockId>(numbers.Below(num_blocks + 2) - 1);
        const auto it = std::find(model.begin(), model.end(), id);
        const absl::Status status = queue.Remove(id);
        RC_ASSERT(status.ok() == (it != model.end()));
        RC_ASSERT(status.ok() || absl::IsInvalidArgument(status));
        if (it != model.end()) model.erase(it);
      } else if (operation.kind < 80) {
        const auto id = queue.PopFront();
        RC_ASSERT(id.has_value() == !model.empty());
        if (id) {
          RC_ASSERT(*id == model.front());
          model.pop_front();
        }
      } else {
        const int64_t n = numbers.Below(6) - 1;
        const auto ids = queue.PopFront(n);
        const bool fits = n >= 0 && n <= static_cast<int64_t>(model.size());
        RC_ASSERT(ids.has_value() == fits);
        if (fits) {
          RC_ASSERT(std::equal(ids->begin(), ids->end(), model.begin()));
          model.erase(model.begin(), std::next(model.begin(), n));
        }
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
