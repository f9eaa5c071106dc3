#include "sim/report/miss_classifier.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

// --- Seen paths ---

// The key of a block is a hash of all content up to it.
std::vector<uint64_t> Keys(const std::vector<int>& content) {
  std::vector<uint64_t> keys;
  uint64_t key = 1;
  for (int id : content) {
    key = (key + static_cast<uint64_t>(id)) * 0x9e3779b97f4a7c15u;
    keys.push_back(key ^= key >> 29);
  }
  return keys;
}

struct Cursor {
  SeenPaths& paths;
  std::vector<uint64_t> keys;
  SeenPaths::Path path = {};

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  auto key_of() {
    return [this](int64_t i) { return keys[static_cast<size_t>(i)]; };
  }
  int64_t Follow(int64_t n) { return paths.Follow(n, key_of(), &path); }
  void Append(int64_t n) { paths.Append(n, key_of(), &path); }
};

TEST(SeenPathsTest, FollowsWhatOthersLaidDown) {
  SeenPaths paths;
  Cursor a{paths, Keys({1, 2, 3, 4})};
  EXPECT_EQ(a.Follow(4), 0);
  a.Append(4);
  Cursor b{paths, Keys({1, 2, 5, 6})};
  EXPECT_EQ(b.Follow(4), 2);
  b.Append(4);
  EXPECT_EQ(b.Follow(4), 4);
  // Through both, and on where a path that was longer ended.
  Cursor c{paths, Keys({1, 2, 5, 6, 7})};
  EXPECT_EQ(c.Follow(3), 3);
  EXPECT_EQ(c.Follow(5), 4);
  Cursor d{paths, Keys({2, 1})};
  EXPECT_EQ(d.Follow(2), 0);
}

TEST(SeenPathsTest, RunsOfEqualEntriesAreVisitedAtOnce) {
  SeenPaths paths;
  Cursor a{paths, Keys({1, 2, 3, 4, 5, 6})};
  a.Append(6);
  using Runs = std::vector<std::vector<int64_t>>;
  const auto visit = [&](int64_t first, int64_t end, uint32_t owner) {
    Runs runs;
    paths.ForEach(a.path, first, end, [&](int64_t begin, int64_t stop, SeenPaths::Entry& entry) {
      runs.push_back({begin, stop, int64_t{entry.owner}});
      entry.owner = owner;
      return stop;
    });
    return runs;
  };
  constexpr int64_t kNone{SeenPaths::kNone};
  EXPECT_EQ(visit(1, 3, 7), (Runs{{1, 3, kNone}}));
  EXPECT_EQ(visit(2, 5, 8), (Runs{{2, 3, 7}, {3, 5, kNone}}));
  EXPECT_EQ(visit(1, 2, 8), (Runs{{1, 2, 7}}));
  EXPECT_EQ(visit(0, 6, 9), (Runs{{0, 1, kNone}, {1, 5, 8}, {5, 6, kNone}}));
  EXPECT_EQ(visit(0, 6, 9), (Runs{{0, 6, 9}}));
}

TEST(SeenPathsTest, RandomPathsAreAsInAMap) {
  std::mt19937_64 engine(7);
  for (int round = 0; round < 200; ++round) {
    SeenPaths paths;
    std::map<uint64_t, SeenPaths::Entry> entries;  // by key
    for (uint32_t request = 0; request < 30; ++request) {
      std::vector<int> content;
      for (uint64_t i = engine() % 12; i > 0; --i)
        content.push_back(static_cast<int>(engine() % 2));
      Cursor cursor{paths, Keys(content)};
      int64_t seen = 0;
      while (seen < cursor.size() && entries.count(cursor.keys[static_cast<size_t>(seen)]) > 0) {
        ++seen;
      }
      // In two parts, as a request whose output grows.
      const auto half = static_cast<int64_t>(engine() % (content.size() + 1));
      EXPECT_EQ(cursor.Follow(half), std::min(half, seen));
      cursor.Append(half);
      EXPECT_EQ(cursor.Follow(cursor.size()), std::max(half, seen));
      cursor.Append(cursor.size());
      int64_t next = half;
      paths.ForEach(cursor.path, half, cursor.size(),
                    [&](int64_t begin, int64_t end, SeenPaths::Entry& entry) {
                      EXPECT_EQ(begin, next);
                      for (int64_t block = begin; block < end; ++block) {
                        EXPECT_EQ(entry, entries[cursor.keys[static_cast<size_t>(block)]]);
                      }
                      // For some of them only.
                      next = begin + 1 + static_cast<int64_t>(engine() % (end - begin));
                      (engine() % 2 == 0 ? entry.owner : entry.last_release) = request % 3;
                      for (int64_t block = begin; block < next; ++block) {
                        entries[cursor.keys[static_cast<size_t>(block)]] = entry;
                      }
                      return next;
                    });
      EXPECT_EQ(next, cursor.size());
      for (int64_t block = seen; block < half; ++block) {
        entries.try_emplace(cursor.keys[static_cast<size_t>(block)]);
      }
    }
  }
}

// --- Miss classifier ---

// Every missed block has one cause: a replay for each, and random ones whose sums must agree.
TEST(MissClassifierTest, LastTokenMustBeComputed) {
  // WE-4: an identical prompt of two full blocks may hit the first one only.
  Replay replay;
  const auto content = Content(8, 0, 8);
  replay.Add({.id = "A", .prompt = 8, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 8, .output = 1, .at = 10, .content = content});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = content});
  const pb::Report report = ReportOf(replay);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kFirstUse), 2);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kLastToken), 1);
  // B's copy of the second block is a duplicate.
  EXPECT_DOUBLE_EQ(report.pool().duplicate_blocks().peak(), 1.0);
  const pb::HitRates& rates = report.whole_run();
  EXPECT_EQ(rates.token_hit_rate().numerator(), 4 + 8);
  EXPECT_EQ(rates.token_hit_rate().denominator(), 8 + 8 + 9);
  EXPECT_FIELDS(rates.full_block_hit_rate(), "numerator 3, denominator 6");
  EXPECT_EQ(rates.possible_hit_rate().denominator(), 4 + 8);
  EXPECT_DOUBLE_EQ(rates.possible_hit_rate().value(), 1.0);
  EXPECT_EQ(rates.request_hit_rate().numerator(), 2);
  EXPECT_DOUBLE_EQ(rates.mean_of_ratios(), (0.0 + 4.0 / 8 + 8.0 / 9) / 3);
}

// Replays whose requests share their content or have none; what the report says of their misses.
struct MissCase {
  const char* name;
  int64_t num_blocks;
  std::vector<ReplayRequest> requests;
  std::vector<std::pair<MissReason, int64_t>> missed;  // blocks at first admissions
  const char* fields;
  void (*configure)(SimulationConfig& config) = nullptr;
};

TEST(MissClassifierTest, EachCauseIsTold) {
  const auto nine = Content(9, 0, 9), thirteen = Content(13, 0, 13), many = Content(17, 0, 17);
  const auto in_chunks_of_4 = [](SimulationConfig& config) {
    config.scheduler.long_prefill_token_threshold = 4;
    config.scheduler.rules.alone_ignores_threshold = false;
  };
  const MissCase cases[] = {
      // WE-22: A again finds two of its three full blocks. A let go of its blocks at 1 s; B took
      // three since, and A2 asks at 10 s.
      {"evicted blocks were seen", 6,
       {{.id = "A", .prompt = 13, .output = 1, .content = thirteen},
        {.id = "B", .prompt = 9, .output = 1, .at = 5},
        {.id = "A2", .prompt = 13, .output = 1, .at = 10, .content = thirteen}},
       {{MissReason::kFirstUse, 5}, {MissReason::kEvicted, 1}},
       "whole_run.possible_hit_rate.numerator 8, whole_run.possible_hit_rate.denominator 12, "
       "first_admission_misses.evicted.blocks 1, first_admission_misses.evicted.mean_age_s 9, "
       "first_admission_misses.evicted.p50_age_s 9, first_admission_misses.evicted.max_age_s 9, "
       "first_admission_misses.evicted.p50_distance_blocks 3, "
       "first_admission_misses.evicted.max_distance_blocks 3, resume_misses.evicted.blocks 0"},
      // Five usable blocks. A and A2 (which hits all but the tail) share content; X and Y need four
      // blocks each, since 11 s, when A2 ended. All run for one step.
      {"hits renew the last use", 6,
       {{.id = "A", .prompt = 9, .output = 1, .content = nine},
        {.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = nine},
        {.id = "X", .prompt = 13, .output = 1, .at = 20},
        {.id = "Y", .prompt = 13, .output = 1, .at = 30},
        {.id = "A3", .prompt = 9, .output = 1, .at = 40, .content = nine}},
       {{MissReason::kEvicted, 2}},
       "whole_run.token_hit_rate.numerator 8, "
       "first_admission_misses.evicted.blocks 2, first_admission_misses.evicted.mean_age_s 29, "
       "first_admission_misses.evicted.mean_distance_blocks 8"},
      // A comes first and stays until 6 s; B shares its blocks and is done at 2 s.
      {"the last of several users counts", 8,
       {{.id = "A", .prompt = 9, .output = 6, .content = nine},
        {.id = "B", .prompt = 9, .output = 1, .at = 1, .content = nine},
        {.id = "X", .prompt = 25, .output = 1, .at = 10},
        {.id = "C", .prompt = 9, .output = 1, .at = 20, .content = nine}},
       {{MissReason::kEvicted, 2}},
       "whole_run.token_hit_rate.numerator 8, first_admission_misses.evicted.blocks 2, "
       "first_admission_misses.evicted.mean_age_s 14, "
       "first_admission_misses.evicted.mean_distance_blocks 7"},
      // X and A2 enter in one step: X, which is first, takes the blocks that A2 asks for. Z took
      // three and X five.
      {"earlier admissions of a step add to the distance", 9,
       {{.id = "A", .prompt = 9, .output = 1, .content = nine},
        {.id = "Z", .prompt = 9, .output = 1, .at = 5},
        {.id = "X", .prompt = 17, .output = 1, .at = 10},
        {.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = nine}},
       {},
       "first_admission_misses.evicted.max_age_s 9, "
       "first_admission_misses.evicted.max_distance_blocks 8"},
      // A's 16 tokens take two steps of 8; B comes when 8 are done, with a budget for one block. At
      // 2 s A has computed 8 tokens and computes 4 more in the same step: three blocks hit.
      {"not yet computed while another request is at it", 0,
       {{.id = "A", .prompt = 17, .output = 1, .content = many},
        {.id = "B", .prompt = 17, .output = 1, .at = 1.5, .content = many}},
       {{MissReason::kNotYetComputed, 1}, {MissReason::kFirstUse, 4}},
       "whole_run.token_hit_rate.numerator 12, "
       "whole_run.possible_hit_rate.denominator 16",
       [](SimulationConfig& config) {
         config.scheduler.max_num_batched_tokens = 12;
         config.scheduler.long_prefill_token_threshold = 4;
         config.scheduler.rules.alone_ignores_threshold = false;
       }},
      // Two steps ran before the abort: 8 tokens. Nobody ever computed the other two blocks.
      {"an aborted request leaves what it computed", 0,
       {{.id = "A", .prompt = 17, .output = 1, .content = many, .abort_after = 1.5},
        {.id = "B", .prompt = 17, .output = 1, .at = 10, .content = many}},
       {{MissReason::kFirstUse, 6}},
       "whole_run.token_hit_rate.numerator 8, "
       "whole_run.possible_hit_rate.denominator 8, totals.requests_aborted_by_trace 1",
       in_chunks_of_4},
      {"short prefixes miss their first block", 0,
       {{.id = "A", .prompt = 9, .output = 1, .content = nine},
        {.id = "B", .prompt = 9, .output = 1, .at = 10, .content = Content(3, 100, 9)},
        {.id = "C", .prompt = 9, .output = 1, .at = 20, .content = Content(0, 200, 9)}},
       {{MissReason::kShort, 1}, {MissReason::kFirstUse, 5}},
       "resume_misses.missed_blocks 0"},
      // WE-27.
      {"drafters drop one block", 0,
       {{.id = "A", .prompt = 9, .output = 1, .content = nine},
        {.id = "B", .prompt = 9, .output = 1, .at = 10, .content = nine}},
       {{MissReason::kDraftDrop, 1}},
       "whole_run.token_hit_rate.numerator 4, "
       "whole_run.possible_hit_rate.denominator 8",
       [](SimulationConfig& config) { config.manager.use_eagle = true; }}};
  for (const MissCase& c : cases) {
    SCOPED_TRACE(c.name);
    Replay replay;
    if (c.num_blocks > 0) replay.config.kv_cache.num_blocks = c.num_blocks;
    if (c.configure != nullptr) c.configure(replay.config);
    for (const ReplayRequest& request : c.requests) replay.Add(request);
    const pb::Report report = ReportOf(replay);
    EXPECT_FIELDS(report, c.fields);
    for (const auto& [reason, blocks] : c.missed) {
      EXPECT_EQ(Blocks(report.first_admission_misses(), reason), blocks) << MissReasonName(reason);
    }
  }
}

TEST(MissClassifierTest, HybridGroupsAgreeOnAShorterHit) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 14;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 4)};
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 10});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 20, .content = content});
  const pb::Report report = ReportOf(replay);
  ASSERT_EQ(report.groups_size(), 2);
  EXPECT_EQ(report.groups(0).kind(), "full_attention");
  EXPECT_EQ(report.groups(1).kind(), "sliding_window");
  const auto& misses = report.first_admission_misses();
  // B's four full blocks are hit, or miss because they are gone or because the groups disagree.
  EXPECT_EQ(report.whole_run().full_block_hit_rate().numerator() +
                Blocks(misses, MissReason::kEvicted) + Blocks(misses, MissReason::kGroupVeto),
            4);
}

TEST(MissClassifierTest, SaltAndAdapterSeparateEqualContents) {
  TraceInfo info;
  info.block_tokens = 1;
  TraceRequest plain, salted, adapted, other;
  plain.input_length = salted.input_length = adapted.input_length = 9;
  plain.content_ids = salted.content_ids = adapted.content_ids = Content(9, 0, 9);
  salted.salt = "s";
  adapted.adapter = "a";
  other = salted;
  other.content_ids = Content(0, 500, 9);
  // First use; under another salt; again: hits; under an adapter; other content under the salt.
  const pb::Report report = MeasureRequests({plain, salted, salted, adapted, other}, info);
  ExpectCausesAddUp(report);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kSaltOrAdapter), 2 + 2);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kFirstUse), 2 + 2);
  EXPECT_EQ(report.whole_run().token_hit_rate().numerator(), 8);
  // The plain content comes second: it exists under the salt only.
  const pb::Report reversed = MeasureRequests({salted, plain}, info);
  EXPECT_EQ(Blocks(reversed.first_admission_misses(), MissReason::kSaltOrAdapter), 2);
}

TEST(MissClassifierTest, SessionLocalIdsAreNoSharedContent) {
  TraceInfo info;
  info.block_tokens = 1;
  info.scope = ContentScope::kSession;
  TraceRequest one;
  one.input_length = 9;
  one.content_ids = Content(9, 0, 9);
  one.session = 1;
  TraceRequest two = one;
  two.session = 2;
  const pb::Report report = MeasureRequests({one, two}, info);
  EXPECT_EQ(Blocks(report.first_admission_misses(), MissReason::kFirstUse), 4);
}

TEST(MissClassifierTest, CausesAddUpOnRandomWorkloads) {
  int64_t preemptions = 0, evicted = 0, pending = 0, window = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Replay replay;
    AddRandomRequests(seed, replay);
    TightenPool(seed, replay);
    const pb::Report report = ReportOf(replay);
    const auto& first = report.first_admission_misses();
    const auto& possible = report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.numerator(), possible.denominator());
    ASSERT_LE(possible.denominator(), report.whole_run().token_hit_rate().denominator());
    // With one group every evicted block was let go of by somebody.
    if (seed % 3 != 2) {
      ASSERT_EQ(first.evicted().blocks(), Blocks(first, MissReason::kEvicted));
    }
    // Resumes: known full blocks less those found.
    preemptions += report.preemption().preemptions();
    evicted += Blocks(first, MissReason::kEvicted);
    pending += Blocks(first, MissReason::kNotYetComputed);
    window += Blocks(first, MissReason::kGroupVeto);
    if (seed % 3 != 1) {
      ASSERT_EQ(Blocks(first, MissReason::kDraftDrop), 0);
    }
    if (seed % 3 != 2) {
      ASSERT_EQ(Blocks(first, MissReason::kGroupVeto), 0);
    } else {
      // What the full group holds only the window can refuse.
      ASSERT_EQ(report.groups(0).vetoed_tokens(), 0);
      ASSERT_EQ(report.groups(1).vetoed_tokens(), 4 * Blocks(first, MissReason::kGroupVeto));
      ASSERT_EQ(report.groups(1).vetoed_requests() > 0, report.groups(1).vetoed_tokens() > 0);
    }
  }
  // The workloads reach what they are for.
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(evicted, 100);
  EXPECT_GT(pending, 20);
  EXPECT_GT(window, 5);
}

TEST(MissClassifierTest, NothingIsEvictedFromALargePool) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Replay replay;
    AddRandomRequests(seed, replay);
    const pb::Report report = ReportOf(replay);
    const auto& first = report.first_admission_misses();
    ASSERT_EQ(Blocks(first, MissReason::kEvicted), 0);
    // What an infinite cache could serve was hit, or was not computed yet.
    const auto& possible = report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.denominator() - possible.numerator(),
              4 * Blocks(first, MissReason::kNotYetComputed));
    ASSERT_EQ(report.pool().evictions(), 0);
  }
}

TEST(MissClassifierTest, PrefixCachingOffClassifiesNothing) {
  Replay replay;
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 9, .output = 2});
  const pb::Report report = ReportOf(replay);
  EXPECT_FIELDS(report,
                "first_admission_misses.missed_blocks 0, whole_run.token_hit_rate.denominator 9");
}

}  // namespace
}  // namespace kvblocks::sim
