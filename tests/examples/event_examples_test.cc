// Worked examples of KV events: WE-34 and WE-35.

#include <gtest/gtest.h>

#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Full;
using testing::Window;

KvCacheManagerOptions WithEvents() {
  KvCacheManagerOptions options = Model::Options();
  options.enable_events = true;
  return options;
}

const BlockHash& HashAt(const Request& request, size_t index) {
  return request.content().hashes()[index];
}

// What an event says, group by group: its hashes, or the removed one.
struct Seen {
  std::string kind;
  GroupId group = 0;
  std::vector<BlockHash> hashes = {};

  friend bool operator==(const Seen&, const Seen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Seen& seen) {
    out << seen.kind << " g" << seen.group;
    for (const BlockHash& hash : seen.hashes) out << " " << hash.ToHex().substr(0, 8);
    return out;
  }
};

std::vector<Seen> Summary(const std::vector<KvEvent>& events) {
  std::vector<Seen> seen;
  for (const KvEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      seen.push_back({"stored", stored->group_idx, stored->block_hashes});
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      seen.push_back({"removed", removed->group_idx, {removed->block_hash}});
    } else {
      seen.push_back({"cleared"});
    }
  }
  return seen;
}

TEST(BlockManagerExamples, WE34_Events) {
  Model m(7, {Full(4), Window(4, 6)}, WithEvents());
  Request& a = m.New(Range(0, 7));
  EXPECT_EQ(m.Alloc(a, 8), Groups("1,2|3,4"));
  const std::vector<KvEvent> first = m.manager->TakeEvents();
  const std::vector<BlockHash> h = {HashAt(a, 0), HashAt(a, 1)};
  EXPECT_EQ(Summary(first), (std::vector<Seen>{{"stored", 0, h}, {"stored", 1, h}}));
  for (const KvEvent& event : first) {
    const auto& stored = std::get<BlockStored>(event);
    EXPECT_EQ(stored.parent_block_hash, std::nullopt);
    EXPECT_EQ(stored.token_ids, Range(0, 7));
    EXPECT_EQ(stored.block_size, 4);
    EXPECT_EQ(stored.medium, "GPU");
    EXPECT_EQ(stored.extra_keys, (std::vector<std::optional<ExtraKeys>>(2)));
  }
  EXPECT_EQ(std::get<BlockStored>(first[0]).kv_cache_spec_kind, "full_attention");
  EXPECT_EQ(std::get<BlockStored>(first[0]).kv_cache_spec_sliding_window, std::nullopt);
  EXPECT_EQ(std::get<BlockStored>(first[1]).kv_cache_spec_kind, "sliding_window");
  EXPECT_EQ(std::get<BlockStored>(first[1]).kv_cache_spec_sliding_window, 6);

  m.Append(a, {8});
  EXPECT_EQ(m.Alloc(a, 1), Groups("5|6"));
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("6,5,2,1,4,3"));
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());

  Request& b = m.New(Fresh(12));
  EXPECT_EQ(m.Alloc(b, 12), Groups("6,5,2|1,4,3"));
  const std::vector<BlockHash> j = {HashAt(b, 0), HashAt(b, 1), HashAt(b, 2)};
  EXPECT_EQ(Summary(m.manager->TakeEvents()), (std::vector<Seen>{{"removed", 0, {h[1]}},
                                                                 {"removed", 0, {h[0]}},
                                                                 {"removed", 1, {h[1]}},
                                                                 {"removed", 1, {h[0]}},
                                                                 {"stored", 0, j},
                                                                 {"stored", 1, j}}));
  EXPECT_FALSE(m.manager->ResetPrefixCache());
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());
  m.Free(b);
  EXPECT_TRUE(m.manager->ResetPrefixCache());
  EXPECT_EQ(Summary(m.manager->TakeEvents()), (std::vector<Seen>{{"cleared"}}));
}

TEST(BlockManagerExamples, WE35_Runs) {
  Model m(30, {Full(32), Window(8, 8)}, WithEvents());
  Request& a = m.New(Range(0, 63));
  ASSERT_TRUE(m.Alloc(a, 64));
  const std::vector<KvEvent> events = m.manager->TakeEvents();
  EXPECT_EQ(Summary(events), (std::vector<Seen>{{"stored", 0, {HashAt(a, 3), HashAt(a, 7)}},
                                                {"stored", 1, {HashAt(a, 3)}},
                                                {"stored", 1, {HashAt(a, 7)}}}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(std::get<BlockStored>(events[0]).parent_block_hash, std::nullopt);
  EXPECT_EQ(std::get<BlockStored>(events[0]).token_ids, Range(0, 63));
  EXPECT_EQ(std::get<BlockStored>(events[1]).parent_block_hash, HashAt(a, 2));
  EXPECT_EQ(std::get<BlockStored>(events[1]).token_ids, Range(24, 31));
  EXPECT_EQ(std::get<BlockStored>(events[2]).parent_block_hash, HashAt(a, 6));
  EXPECT_EQ(std::get<BlockStored>(events[2]).token_ids, Range(56, 63));
}

}  // namespace
}  // namespace kvblocks::examples
