// Worked examples of sliding-window and chunked-local groups: WE-13 to WE-21 and WE-30.

#include <gtest/gtest.h>

#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Chunked;
using testing::Full;
using testing::Window;

KvCacheManagerOptions Limits(int64_t max_model_len, int64_t max_in_flight_tokens) {
  KvCacheManagerOptions options = Model::Options();
  options.max_model_len = max_model_len;
  options.max_in_flight_tokens = max_in_flight_tokens;
  return options;
}

// "0x6,7": six nulls and block 7.
Lists Padded(int64_t nulls, const std::string& blocks) {
  Ids ids(static_cast<size_t>(nulls), kNullBlockId);
  for (BlockId id : Blocks(blocks)) ids.push_back(id);
  return {ids};
}

TEST(BlockManagerExamples, WE13_WindowTrim) {
  struct Row {
    int64_t processed, skipped;
    const char* table;
    const char* queue;
  };
  const Row rows[] = {{0, 0, "1..11", "12..19"},
                      {3, 0, "1..11", "12..19"},
                      {4, 1, "1..11", "12..19"},
                      {5, 2, "0,2..11", "1,12..19"},
                      {6, 3, "0,2..11", "1,12..19"},
                      {7, 4, "0,0,3..11", "2,1,12..19"},
                      {11, 8, "0,0,0,0,5..11", "4,3,2,1,12..19"}};
  KvCacheManagerOptions options = Model::Options();
  options.enable_caching = false;  // no keys
  for (const Row& row : rows) {
    Model m(20, {Window(2, 4)}, options);
    Request& a = m.New(Range(0, 21));
    ASSERT_EQ(m.Alloc(a, 22), Groups("1..11"));
    EXPECT_EQ(m.manager->group(0).NumSkippedTokens(row.processed), row.skipped);
    ASSERT_TRUE(m.manager->RemoveSkippedBlocks(a, row.processed).ok());
    EXPECT_EQ(m.Tables(a), Groups(row.table)) << row.processed;
    EXPECT_EQ(m.Queue(), Blocks(row.queue)) << row.processed;
  }
}

// A window group over a pool in which position i of one content is cached by block 10 + i iff bit i
// is '1'.
class CachedWindow {
 public:
  CachedWindow(const KvCacheSpec& spec, const std::string& bits)
      : pool_(BlockPool::Create({.num_blocks = 40}).value()),
        num_tokens_(spec.block_size() * static_cast<int64_t>(bits.size())),
        content_(PrefixContent::FromTokens(
                     {.token_ids = Range(1, static_cast<TokenId>(num_tokens_))},
                     std::make_shared<const PrefixHashing>(PrefixHashing{
                         BlockHasher(HashAlgorithm::kSha256, "examples"), spec.block_size()}))
                     .value()),
        manager_(SingleTypeManager::Create(
                     spec, {.hash_block_size = spec.block_size(), .admission_cap = std::nullopt},
                     pool_.get())
                     .value()) {
    Ids table;
    std::vector<uint8_t> mask;
    for (size_t i = 0; i < bits.size(); ++i) {
      table.push_back(static_cast<BlockId>(10 + i));
      mask.push_back(bits[i] == '1');
    }
    const auto size = static_cast<int64_t>(bits.size());
    pool_->CacheFullBlocks(content_, table, 0, size, spec.block_size(), 0, mask);
  }

  // Length and list of the longest hit.
  std::pair<int64_t, Lists> Find(bool drop, int64_t alignment) const {
    const std::vector<GroupId> groups = {0};
    HitLists lists(1);
    const int64_t tokens = manager_->FindLongestCacheHit({.content = &content_,
                                                          .groups = groups,
                                                          .max_tokens = num_tokens_,
                                                          .drop_last_block = drop,
                                                          .alignment = alignment},
                                                         lists);
    return {tokens, Lists(lists.begin(), lists.end())};
  }

 private:
  std::unique_ptr<BlockPool> pool_;
  int64_t num_tokens_;
  PrefixContent content_;
  std::unique_ptr<SingleTypeManager> manager_;
};

TEST(BlockManagerExamples, WE14_WindowLookup) {
  const auto expect = [](const char* bits, int64_t tokens, const Lists& lists) {
    const auto hit = CachedWindow(Window(2, 4), bits).Find(/*drop=*/false, /*alignment=*/2);
    EXPECT_EQ(hit.first, tokens) << bits;
    EXPECT_EQ(hit.second, lists) << bits;
  };
  expect("0000000000", 0, Groups(""));
  expect("1", 2, Groups("10"));
  expect("10", 2, Groups("10"));
  expect("11", 4, Groups("10,11"));
  expect("110", 4, Groups("10,11"));
  expect("111", 6, Groups("0,11,12"));
  expect("1110", 6, Groups("0,11,12"));
  expect("110100110111", 24, Padded(10, "20,21"));
  expect("11010011000", 16, Padded(6, "16,17"));
  expect("110100110001", 16, Padded(6, "16,17"));
}

TEST(BlockManagerExamples, WE15_AlignmentAndDrop) {
  const auto expect = [](const char* bits, bool drop, int64_t tokens, const char* list) {
    const auto hit = CachedWindow(Window(4, 9), bits).Find(drop, /*alignment=*/8);
    EXPECT_EQ(hit.first, tokens) << bits;
    EXPECT_EQ(hit.second, Groups(list)) << bits;
  };
  expect("111111", false, 24, "0,0,0,0,14,15");
  expect("111111", true, 16, "0,0,12,13");
  expect("111101", false, 16, "0,0,12,13");
  expect("111101", true, 8, "10,11");
  expect("011011", false, 24, "0,0,0,0,14,15");
  expect("011011", true, 0, "");
  expect("110011", false, 24, "0,0,0,0,14,15");
  expect("110011", true, 0, "");
}

int64_t NumReal(const Lists& tables) {
  int64_t count = 0;
  for (BlockId id : tables[0]) count += id != kNullBlockId;
  return count;
}

TEST(BlockManagerExamples, WE16_WindowLife) {
  Model m(12, {Window(4, 8)}, Limits(64, 8));
  EXPECT_EQ(m.manager->group(0).admission_cap(), 5);
  Request& a = m.New(Range(0, 31));
  ASSERT_TRUE(m.Alloc(a, 8));
  EXPECT_EQ(m.Tables(a), Groups("1,2"));
  ASSERT_TRUE(m.Alloc(a, 8));
  EXPECT_EQ(m.Tables(a), Groups("1..4"));
  EXPECT_EQ(NumReal(m.Tables(a)), 4);
  ASSERT_TRUE(m.Alloc(a, 8));
  EXPECT_EQ(m.Tables(a), Groups("0,0,3..6"));
  EXPECT_EQ(m.Queue(), Blocks("7..11,2,1"));
  EXPECT_EQ(NumReal(m.Tables(a)), 4);
  ASSERT_TRUE(m.Alloc(a, 8));
  EXPECT_EQ(m.Tables(a), Groups("0x4,5..8"));
  EXPECT_EQ(m.Queue(), Blocks("9..11,2,1,4,3"));
  EXPECT_EQ(NumReal(m.Tables(a)), 4);
  m.Append(a, {32});
  EXPECT_EQ(m.Alloc(a, 1), Groups("9"));
  EXPECT_EQ(m.Tables(a), Groups("0x6,7..9"));
  EXPECT_EQ(m.Queue(), Blocks("10,11,2,1,4,3,6,5"));
  EXPECT_EQ(NumReal(m.Tables(a)), 3);
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("9..11,2,1,4,3,6,5,8,7"));
  EXPECT_EQ(m.NumKeys(), 8);

  Request& sharing = m.New(Join(Range(0, 27), Fresh(5)));
  EXPECT_EQ(m.HitTokens(sharing), 28);
  EXPECT_EQ(m.Hits(sharing), Groups("0x5,6,7"));

  Request& b = m.New(Join(Range(0, 31), {7}));
  EXPECT_EQ(m.HitTokens(b), 32);
  EXPECT_EQ(m.Hits(b), Groups("0x6,7,8"));
  const int64_t free_before = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 1), Groups("9"));
  EXPECT_EQ(free_before - m.manager->num_free_blocks(), 3);
  EXPECT_EQ(m.Tables(b), Groups("0x6,7..9"));
}

TEST(BlockManagerExamples, WE17_InFlight) {
  Model m(12, {Window(4, 8)}, Limits(64, 16));
  EXPECT_EQ(m.manager->group(0).admission_cap(), 7);
  Request& a = m.New(Range(0, 31));
  const int64_t computed[] = {0, 8, 16, 24};
  const int64_t skipped[] = {0, 0, 1, 9};
  const char* const tables[] = {"1,2", "1..4", "1..6", "0,0,3..8"};
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(a.num_computed_tokens(), computed[step]);
    a.set_num_inflight_tokens(step == 0 ? 0 : 8);
    const int64_t processed = computed[step] - a.num_inflight_tokens();
    EXPECT_EQ(m.manager->group(0).NumSkippedTokens(processed), skipped[step]);
    ASSERT_TRUE(m.Alloc(a, 8));
    EXPECT_EQ(m.Tables(a), Groups(tables[step])) << step;
  }
}

TEST(BlockManagerExamples, WE18_Gate) {
  const AllocateSlotsParams gate = {.full_sequence_must_fit = true};
  Model fits(46, {Full(16), Window(16, 64)}, Limits(1024, 128));
  EXPECT_EQ(fits.manager->group(1).admission_cap(), 13);
  EXPECT_EQ(fits.Alloc(fits.New(Fresh(512)), 16, gate), Groups("1|2"));
  Model too_small(45, {Full(16), Window(16, 64)}, Limits(1024, 128));
  EXPECT_EQ(too_small.Alloc(too_small.New(Fresh(512)), 16, gate), std::nullopt);
}

TEST(BlockManagerExamples, WE19_GateWithALongHit) {
  Model m(100, {Window(4, 8)}, Limits(400, 16));
  const SingleTypeManager& group = m.manager->group(0);
  EXPECT_EQ(group.admission_cap(), 7);
  Request& a = m.New(Range(0, 79));
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(m.Alloc(a, 16));
  m.Free(a);
  Request& b = m.New(Join(Range(0, 79), Fresh(80)));
  EXPECT_EQ(m.HitTokens(b), 80);
  EXPECT_EQ(m.Hits(b), Padded(18, "19,20"));
  const Ids hits = m.Hits(b)[0];
  EXPECT_EQ(group.NumBlocksNeeded(nullptr, {160, 160}, hits, 80, /*apply_cap=*/true), 7);
  EXPECT_EQ(group.NumBlocksNeeded(nullptr, {96, 96}, hits, 80, /*apply_cap=*/false), 6);

  // The gate itself: with 7 free blocks the request is admitted, with 6 it is not.
  Request& hog = m.New(Fresh(4 * 92), /*skip_reading=*/true);
  ASSERT_TRUE(m.Alloc(hog, 4 * 92));
  EXPECT_EQ(m.manager->num_free_blocks(), 7);
  EXPECT_EQ(m.Hits(b), Padded(18, "19,20"));
  Request& one_more = m.New(Fresh(1), /*skip_reading=*/true);
  ASSERT_TRUE(m.Alloc(one_more, 1));
  EXPECT_EQ(m.Alloc(b, 16, {.full_sequence_must_fit = true}), std::nullopt);
  m.Free(one_more);
  EXPECT_EQ(m.HitTokens(b), 80);
  EXPECT_TRUE(m.Alloc(b, 16, {.full_sequence_must_fit = true}));
}

TEST(BlockManagerExamples, WE20_TrimSurvivesFailure) {
  Model m(5, {Window(2, 4)});
  Request& a = m.New(Range(0, 12));
  EXPECT_EQ(m.Alloc(a, 8), Groups("1..4"));
  EXPECT_EQ(m.Queue(), Ids());
  EXPECT_EQ(m.Alloc(a, 5), std::nullopt);
  EXPECT_EQ(m.Tables(a), Groups("0,0,3,4"));
  EXPECT_EQ(m.Queue(), Blocks("2,1"));
  EXPECT_EQ(m.Alloc(a, 4), Groups("2,1"));
  EXPECT_EQ(m.Tables(a), Groups("0,0,3,4,2,1"));
}

TEST(BlockManagerExamples, WE21_ChunkedLocal) {
  Model empty(20, {Chunked(4, 8)}, Limits(64, 8));
  const SingleTypeManager& group = empty.manager->group(0);
  EXPECT_EQ(group.admission_cap(), 4);
  const int64_t skips[][2] = {{0, 0}, {7, 0}, {8, 8}, {13, 8}, {15, 8}, {16, 16}, {17, 16}};
  for (const auto& [n, skipped] : skips) EXPECT_EQ(group.NumSkippedTokens(n), skipped) << n;
  EXPECT_EQ(empty.HitTokens(empty.New(Fresh(12))), 8);
  EXPECT_EQ(empty.Hits(empty.New(Fresh(12))), Groups("0,0"));
  Request& longer = empty.New(Fresh(17));
  EXPECT_EQ(empty.HitTokens(longer), 16);
  EXPECT_EQ(empty.Hits(longer), Groups("0x4"));
  EXPECT_EQ(empty.Alloc(longer, 1), Groups("1"));
  EXPECT_EQ(empty.manager->num_free_blocks(), 18);

  Model m(20, {Chunked(4, 8)}, Limits(64, 8));
  Request& a = m.New(Range(0, 19), /*skip_reading=*/true);
  EXPECT_EQ(m.Alloc(a, 8), Groups("1,2"));
  EXPECT_EQ(m.Alloc(a, 8), Groups("3,4"));
  EXPECT_EQ(m.Tables(a), Groups("0,0,3,4"));
  EXPECT_EQ(m.Alloc(a, 4), Groups("5"));
  EXPECT_EQ(m.Tables(a), Groups("0x4,5"));
  const auto expect = [&](const Tokens& prompt, int64_t tokens, const char* list) {
    Request& request = m.New(prompt);
    EXPECT_EQ(m.HitTokens(request), tokens);
    EXPECT_EQ(m.Hits(request), Groups(list));
  };
  expect(Join(Range(0, 19), {1}), 20, "0x4,5");
  expect(Join(Range(0, 11), Fresh(4)), 12, "0,0,3");
  expect(Join(Range(0, 7), Fresh(8)), 8, "0,0");
}

TEST(BlockManagerExamples, WE30_ExternalOnly) {
  Model m(30, {Window(4, 6)});
  Request& a = m.New(Range(0, 29));
  EXPECT_EQ(m.manager->group(0).NumSkippedTokens(20), 15);
  EXPECT_EQ(m.Alloc(a, 2, {.num_external_computed_tokens = 20}), Groups("3"));
  EXPECT_EQ(m.Tables(a), Groups("0,0,0,1..3"));
  EXPECT_EQ(m.manager->num_free_blocks(), 26);
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{3, 4}));
}

}  // namespace
}  // namespace kvblocks::examples
