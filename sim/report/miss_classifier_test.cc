// Every missed block has one cause: a replay for each, and random ones whose sums must agree.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/sim/testing/measured_replay.h"

namespace kvblocks::sim {
namespace {

TEST(MissClassifierTest, LastTokenMustBeComputed) {
  // WE-4: an identical prompt of two full blocks may hit the first one only.
  Replay replay;
  const auto content = Content(8, 0, 8);
  replay.Add({.id = "A", .prompt = 8, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 8, .output = 1, .at = 10, .content = content});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kFirstUse), 2);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kLastToken), 1);
  // B's copy of the second block is a duplicate.
  EXPECT_DOUBLE_EQ(m.report.pool().duplicate_blocks().peak(), 1.0);
  const pb::HitRates& rates = m.report.whole_run();
  EXPECT_EQ(rates.token_hit_rate().numerator(), 4 + 8);
  EXPECT_EQ(rates.token_hit_rate().denominator(), 8 + 8 + 9);
  EXPECT_EQ(rates.full_block_hit_rate().numerator(), 3);
  EXPECT_EQ(rates.full_block_hit_rate().denominator(), 6);
  EXPECT_EQ(rates.possible_hit_rate().denominator(), 4 + 8);
  EXPECT_DOUBLE_EQ(rates.possible_hit_rate().value(), 1.0);
  EXPECT_EQ(rates.request_hit_rate().numerator(), 2);
  EXPECT_DOUBLE_EQ(rates.mean_of_ratios(), (0.0 + 4.0 / 8 + 8.0 / 9) / 3);
}

TEST(MissClassifierTest, EvictedBlocksWereSeen) {
  // WE-22: A again finds two of its three full blocks.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(13, 0, 13);
  replay.Add({.id = "A", .prompt = 13, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 13, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kFirstUse), 3 + 2);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kEvicted), 1);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().numerator(), 8);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 12);
  // A let go of its blocks at 1 s; B took three since, and A2 asks at 10 s.
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), 1);
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 9.0);
  EXPECT_DOUBLE_EQ(reuse.p50_age_s(), 9.0);
  EXPECT_DOUBLE_EQ(reuse.max_age_s(), 9.0);
  EXPECT_EQ(reuse.p50_distance_blocks(), 3);
  EXPECT_EQ(reuse.max_distance_blocks(), 3);
  EXPECT_EQ(m.report.resume_misses().evicted().blocks(), 0);
}

TEST(MissClassifierTest, HitsRenewTheLastUse) {
  // Five usable blocks. A and A2 (which hits all but the tail) share content; X and Y need four
  // blocks each. All run for one step.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 20});
  replay.Add({.id = "Y", .prompt = 13, .output = 1, .at = 30});
  replay.Add({.id = "A3", .prompt = 9, .output = 1, .at = 40, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  // Both blocks, since 11 s, when A2 ended: X and Y took four blocks each.
  EXPECT_EQ(reuse.blocks(), 2);
  EXPECT_EQ(reuse.blocks(), Blocks(m.report.first_admission_misses(), MissReason::kEvicted));
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 29.0);
  EXPECT_EQ(reuse.mean_distance_blocks(), 8);
}

TEST(MissClassifierTest, TheLastOfSeveralUsersCounts) {
  // A comes first and stays until 6 s; B shares its blocks and is done at 2 s.
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 6, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 1, .content = content});
  replay.Add({.id = "X", .prompt = 25, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), 2);
  EXPECT_DOUBLE_EQ(reuse.mean_age_s(), 14.0);
  EXPECT_EQ(reuse.mean_distance_blocks(), 7);
}

TEST(MissClassifierTest, EarlierAdmissionsOfAStepAddToTheDistance) {
  // X and A2 enter in one step: X, which is first, takes the blocks that A2 asks for.
  Replay replay;
  replay.config.kv_cache.num_blocks = 9;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "Z", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "X", .prompt = 17, .output = 1, .at = 10});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  const pb::EvictedReuse& reuse = m.report.first_admission_misses().evicted();
  EXPECT_EQ(reuse.blocks(), Blocks(m.report.first_admission_misses(), MissReason::kEvicted));
  ASSERT_GT(reuse.blocks(), 0);
  EXPECT_DOUBLE_EQ(reuse.max_age_s(), 9.0);
  // Z took three and X five.
  EXPECT_EQ(reuse.max_distance_blocks(), 8);
}

TEST(MissClassifierTest, NotYetComputedWhileAnotherRequestIsAtIt) {
  // A's 16 tokens take two steps of 8; B comes when 8 are done, with a budget for one block.
  Replay replay;
  replay.config.scheduler.max_num_batched_tokens = 12;
  replay.config.scheduler.long_prefill_token_threshold = 4;
  replay.config.scheduler.rules.alone_ignores_threshold = false;
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 1.5, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  // At 2 s A has computed 8 tokens and computes 4 more in the same step: three blocks hit.
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 12);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kNotYetComputed), 1);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kFirstUse), 4);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 16);
}

TEST(MissClassifierTest, AnAbortedRequestLeavesWhatItComputed) {
  Replay replay;
  replay.config.scheduler.long_prefill_token_threshold = 4;
  replay.config.scheduler.rules.alone_ignores_threshold = false;
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content, .abort_after = 1.5});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  // Two steps ran before the abort: 8 tokens. Nobody ever computed the other two blocks.
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 8);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kFirstUse), 4 + 2);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 8);
  EXPECT_EQ(m.report.totals().requests_aborted_by_trace(), 1);
}

TEST(MissClassifierTest, ShortPrefixesMissTheirFirstBlock) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = Content(9, 0, 9)});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = Content(3, 100, 9)});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = Content(0, 200, 9)});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kShort), 1);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kFirstUse), 5);
}

TEST(MissClassifierTest, DraftersDropOneBlock) {
  // WE-27.
  Replay replay;
  replay.config.manager.use_eagle = true;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = content});
  Measured m;
  Measure(replay, &m);
  ExpectCausesAddUp(m.report);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().numerator(), 4);
  EXPECT_EQ(Blocks(m.report.first_admission_misses(), MissReason::kDraftDrop), 1);
  EXPECT_EQ(m.report.whole_run().possible_hit_rate().denominator(), 8);
}

TEST(MissClassifierTest, HybridGroupsAgreeOnAShorterHit) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 14;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 4)};
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 10});
  replay.Add({.id = "B", .prompt = 17, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  ExpectCausesAddUp(m.report);
  ASSERT_EQ(m.report.groups_size(), 2);
  EXPECT_EQ(m.report.groups(0).kind(), "full_attention");
  EXPECT_EQ(m.report.groups(1).kind(), "sliding_window");
  const auto& misses = m.report.first_admission_misses();
  // B's four full blocks are hit, or miss because they are gone or because the groups disagree.
  EXPECT_EQ(m.report.whole_run().full_block_hit_rate().numerator() +
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
    Measured m;
    Measure(replay, &m);
    ASSERT_TRUE(m.status.ok()) << m.status;
    ExpectCausesAddUp(m.report);
    const auto& first = m.report.first_admission_misses();
    const auto& possible = m.report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.numerator(), possible.denominator());
    ASSERT_LE(possible.denominator(), m.report.whole_run().token_hit_rate().denominator());
    // With one group every evicted block was let go of by somebody.
    if (seed % 3 != 2) {
      ASSERT_EQ(first.evicted().blocks(), Blocks(first, MissReason::kEvicted));
    }
    // Resumes: known full blocks less those found.
    preemptions += m.report.preemption().preemptions();
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
      ASSERT_EQ(m.report.groups(0).vetoed_tokens(), 0);
      ASSERT_EQ(m.report.groups(1).vetoed_tokens(), 4 * Blocks(first, MissReason::kGroupVeto));
      ASSERT_EQ(m.report.groups(1).vetoed_requests() > 0, m.report.groups(1).vetoed_tokens() > 0);
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
    Measured m;
    Measure(replay, &m);
    ExpectCausesAddUp(m.report);
    const auto& first = m.report.first_admission_misses();
    ASSERT_EQ(Blocks(first, MissReason::kEvicted), 0);
    // What an infinite cache could serve was hit, or was not computed yet.
    const auto& possible = m.report.whole_run().possible_hit_rate();
    ASSERT_LE(possible.denominator() - possible.numerator(),
              4 * Blocks(first, MissReason::kNotYetComputed));
    ASSERT_EQ(m.report.pool().evictions(), 0);
  }
}

TEST(MissClassifierTest, PrefixCachingOffClassifiesNothing) {
  Replay replay;
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 9, .output = 2});
  Measured m;
  Measure(replay, &m);
  ASSERT_TRUE(m.status.ok()) << m.status;
  EXPECT_EQ(m.report.first_admission_misses().missed_blocks(), 0);
  EXPECT_EQ(m.report.whole_run().token_hit_rate().denominator(), 9);
}

}  // namespace
}  // namespace kvblocks::sim
