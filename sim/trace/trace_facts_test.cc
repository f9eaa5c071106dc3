#include "sim/trace/trace_facts.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/convert.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/trace.pb.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

TraceFacts FactsOf(const std::string& jsonl) {
  auto reader = OpenTraceString(jsonl, "t", {});
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *ComputeTraceFacts(**reader, {1, 4, 8});
}

// Rounded as the published tables are.
double Rounded(double value, int places) {
  const double scale = std::pow(10.0, places);
  return std::round(value * scale) / scale;
}

TEST(TraceFactsTest, CountsHitsByPathAndPartialBlocksByTokens) {
  const TraceFacts facts = FactsOf(
      R"({"timestamp":0,"input_length":10,"output_length":3,"block_size":4,"hash_ids":[1,2,3]}
{"timestamp":5,"input_length":12,"output_length":1,"block_size":4,"hash_ids":[1,2,3]}
{"timestamp":5,"input_length":12,"output_length":1,"block_size":4,"hash_ids":[9,2,3]}
{"timestamp":20,"input_length":11,"output_length":1,"block_size":4,"hash_ids":[1,2,3]}
)");
  EXPECT_EQ(facts.requests, 4);
  EXPECT_EQ(facts.input.total, 45);
  EXPECT_EQ(facts.input.median, 11);
  EXPECT_EQ(facts.input.p90, 12);
  EXPECT_EQ(facts.block_refs, 12);
  EXPECT_EQ(facts.distinct_paths, 6);
  EXPECT_EQ(facts.paths_used_once, 3);
  EXPECT_EQ(facts.prefix_hits, 6);
  EXPECT_EQ(facts.full_block_refs, 10);
  EXPECT_EQ(facts.full_block_hits, 4) << "the third block was partial at first";
  EXPECT_EQ(facts.shared_tokens, 10 + 11);
  EXPECT_EQ(facts.requests_with_hit, 2);
  EXPECT_EQ(facts.engine[0].hit_tokens, 10 + 10) << "the last token is always computed";
  EXPECT_EQ(facts.engine[1].hit_tokens, 8 + 8);
  EXPECT_EQ(facts.engine[2].full_blocks, 4);
  EXPECT_EQ(facts.distinct_timestamps, 3);
  EXPECT_EQ(facts.second_half_input, 23);
  EXPECT_EQ(facts.second_half_shared, 11);
  EXPECT_EQ(facts.hottest_id, 1);
  EXPECT_EQ(facts.hottest_uses, 3);
  const std::string table = FormatTraceFacts(facts);
  EXPECT_NE(table.find("prefix hits                       6 (50.000 %)\n"), std::string::npos)
      << table;
  EXPECT_NE(table.find("hit tokens, infinite cache        21 (46.667 %)\n"), std::string::npos)
      << table;
}

TEST(TraceFactsTest, TableSaysWhenThereIsNoContent) {
  const TraceFacts facts = FactsOf(
      R"({"timestamp":0,"input_length":10,"output_length":3,"block_size":0,"hash_ids":[]})");
  EXPECT_NE(FormatTraceFacts(facts).find("no content identity in this trace"), std::string::npos);
}

TEST(TraceFactsTest, SpecialTracesHaveFacts) {
  // One request: no gaps, no median of nothing.
  const TraceFacts facts =
      FactsOf(R"({"timestamp":7,"input_length":0,"output_length":0,"hash_ids":[]})");
  EXPECT_EQ(facts.requests, 1);
  EXPECT_EQ(facts.gap_cv, 0);
  EXPECT_EQ(facts.mean_of_ratios, 0);
  EXPECT_EQ(facts.engine[0].hit_tokens, 0);
}

// The same with one table entry per beginning.
class NaiveBeginnings {
 public:
  int64_t Add(int64_t scope, const std::vector<int64_t>& tokens, size_t num_used) {
    std::vector<int64_t> beginning = {scope};
    int64_t found = 0;
    bool leading = true;
    for (size_t i = 0; i < tokens.size(); ++i) {
      beginning.push_back(tokens[i]);
      const auto [it, is_new] = uses_.try_emplace(beginning, Use{0, uses_.size()});
      leading = leading && !is_new;
      if (i >= num_used) continue;
      found += leading ? 1 : 0;
      ++it->second.uses;
    }
    return found;
  }
  TokenTrie::Totals Finish() const {
    TokenTrie::Totals totals;
    size_t first = 0;
    for (const auto& [beginning, use] : uses_) {
      if (use.uses == 0) continue;
      ++totals.distinct;
      totals.used_once += use.uses == 1 ? 1 : 0;
      if (use.uses < totals.hottest_uses) continue;
      if (use.uses == totals.hottest_uses && use.order > first) continue;
      totals.hottest_uses = use.uses;
      totals.hottest_token = beginning.back();
      first = use.order;
    }
    return totals;
  }

 private:
  struct Use {
    int64_t uses;
    size_t order;
  };
  std::map<std::vector<int64_t>, Use> uses_;
};

TEST(TokenTrieTest, CountsWhatATableOfAllBeginningsCounts) {
  std::mt19937 random(1);
  for (int run = 0; run < 2000; ++run) {
    TokenTrie trie;
    NaiveBeginnings naive;
    const int64_t num_tokens = 1 + random() % 3;
    for (int i = 0; i < 12; ++i) {
      std::vector<int64_t> tokens(random() % 9);
      for (int64_t& token : tokens) token = static_cast<int64_t>(random() % num_tokens);
      const size_t num_used = random() % (tokens.size() + 1);
      const int64_t scope = random() % 2;
      ASSERT_EQ(trie.Add(static_cast<uint64_t>(scope), tokens, num_used),
                naive.Add(scope, tokens, num_used));
    }
    const TokenTrie::Totals got = trie.Finish();
    const TokenTrie::Totals expected = naive.Finish();
    ASSERT_EQ(got.distinct, expected.distinct);
    ASSERT_EQ(got.used_once, expected.used_once);
    ASSERT_EQ(got.hottest_uses, expected.hottest_uses);
    ASSERT_EQ(got.hottest_token, expected.hottest_token) << run;
  }
}

class PublishedTraceFacts : public testing::Test {
 protected:
  // Empty, and the test is skipped, where the published traces are not at hand.
  static std::string Folder() {
    const char* folder = std::getenv("KVBLOCKS_SHARED");
    return folder == nullptr ? "" : std::string(folder) + "/traces/";
  }

  TraceFacts Facts(const std::string& file, std::vector<int64_t> blocks = {16, 64, 512, 1024}) {
    auto reader = OpenTrace(Folder() + file, {});
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return {};
    auto facts = ComputeTraceFacts(**reader, blocks);
    EXPECT_TRUE(facts.ok()) << facts.status();
    return facts.ok() ? *facts : TraceFacts();
  }
};

#define SKIP_WITHOUT_TRACES()                                                           \
  if (Folder().empty()) {                                                               \
    GTEST_SKIP() << "the published traces are found through KVBLOCKS_SHARED (not set)"; \
  }

TEST_F(PublishedTraceFacts, Mooncake) {
  SKIP_WITHOUT_TRACES();
  struct {
    const char* file;
    double mean_input, mean_output, percent_of_ratios;
    std::vector<int64_t> counts;
  } const published[] = {
      {"mooncake/conversation_trace.jsonl.gz", 12035.06, 342.62, 40.938,
       {12031, 144793823, 4122048, 126195, 2000, 6909, 27367, 85401,
           int64_t{3536999} * 1000000, 1180, 288500, 182790, 138646, 247, 105710, 276491, 105592,
           54098411, 54097440, 54093952, 54063104, 49173504, 9044013, 3381090, 12030, 27038068,
           67915607, 0, 12031}},
      {"mooncake/synthetic_trace.jsonl.gz", 15325.48, 149.12, 43.152,
       {3993, 61194628, 595432, 191378, 893, 11587, 38615, 66458, int64_t{1022025} * 1000000,
           3982, 121877, 43924, 25673, 374, 77953, 117888, 77740, 39852661, 39850800, 39846336,
           39802880, 39306240, 3822794, 2490675, 1782, 31535563, 36552394, 5457, 24}},
  };
  for (const auto& c : published) {
    const TraceFacts f = Facts(c.file);
    SCOPED_TRACE(FormatTraceFacts(f));
    EXPECT_EQ(Rounded(f.input.mean, 2), c.mean_input);
    EXPECT_EQ(Rounded(f.output.mean, 2), c.mean_output);
    EXPECT_EQ(Rounded(100 * f.mean_of_ratios, 3), c.percent_of_ratios);
    EXPECT_EQ((std::vector<int64_t>{
                  f.requests, f.input.total, f.output.total, f.input.max, f.output.max,
                  f.input.median, f.input.p90, f.input.p99, f.last_arrival_ns,
                  f.distinct_timestamps, f.block_refs, f.distinct_paths, f.paths_used_once,
                  f.most_refs, f.prefix_hits, f.full_block_refs, f.full_block_hits,
                  f.shared_tokens, f.engine[0].hit_tokens, f.engine[1].hit_tokens,
                  f.engine[2].hit_tokens, f.engine[3].hit_tokens, f.engine[0].full_blocks,
                  f.engine[0].hit_blocks, f.requests_with_hit, f.second_half_shared,
                  f.second_half_input, f.hottest_id, f.hottest_uses}),
              c.counts);
  }
}

TEST_F(PublishedTraceFacts, Azure2023) {
  SKIP_WITHOUT_TRACES();
  struct {
    const char* file;
    double mean_input, gap_cv;
    std::vector<int64_t> counts;
  } const published[] = {
      {"azure/AzureLLMInferenceTrace_code.csv.gz",
       2047.8,
       13.15,
       {8819, 18059974, 1469, 7437, 245896, 13, 1899, 65823979960000, 3435948056000}},
      {"azure/AzureLLMInferenceTrace_conv.csv.gz",
       1154.7,
       1.09,
       {19366, 22361870, 1020, 14050, 4088665, 129, 1000, 65746680590000, 3501721937000}},
  };
  for (const auto& c : published) {
    const TraceFacts f = Facts(c.file);
    SCOPED_TRACE(FormatTraceFacts(f));
    EXPECT_EQ(Rounded(f.input.mean, 1), c.mean_input);
    EXPECT_EQ(Rounded(f.gap_cv, 2), c.gap_cv);
    EXPECT_EQ((std::vector<int64_t>{f.requests, f.input.total, f.input.median, f.input.max,
                                    f.output.total, f.output.median, f.output.max,
                                    f.first_arrival_ns, f.last_arrival_ns - f.first_arrival_ns}),
              c.counts);
  }
}

TEST_F(PublishedTraceFacts, Others) {
  SKIP_WITHOUT_TRACES();
  struct {
    const char *file, *format;
    // Requests, those that wait, sessions, tokens in and out, references, distinct paths, prefix
    // hits, shared tokens, hit tokens in blocks of 16, the last arrival.
    std::vector<int64_t> counts;
  } const published[] = {
      {"vllm-measured/sharegpt-llama-3.1-8b-300-sps10.blocks16.jsonl.gz",
       "mooncake",
       {300, 0, 0, 257239, 195753, 16225, 15003, 1222, 19529, 19520, 29183763203}},
      {"kv-cache-tester/sessions_40_small.jsonl.gz",
       "coding",
       {278, 238, 40, 9130129, 184360, 142520, 27049, 115471, 7390144, 7390144, 0}},
      {"ragpulse/0_trace.jsonl.gz",
       "ragpulse",
       {7106, 0, 3990, 20917099, 2012676, 20917099, 14342851, 6574248, 6574248, 6574000,
        604603000000000}},
      {"lengths/vidur_arxiv_summarization_llama2.csv.gz",
       "vidur",
       {28257, 0, 0, 73131321, 8234948, 0, 0, 0, 0, 0, 0}},
  };
  for (const auto& c : published) {
    const TraceFacts f = Facts(c.file, {16});
    SCOPED_TRACE(FormatTraceFacts(f));
    EXPECT_EQ(f.info.format, c.format);
    EXPECT_EQ((std::vector<int64_t>{f.requests, f.closed_loop_requests, f.sessions, f.input.total,
                                    f.output.total, f.block_refs, f.distinct_paths, f.prefix_hits,
                                    f.shared_tokens, f.engine[0].hit_tokens, f.last_arrival_ns}),
              c.counts);
  }
}

TEST_F(PublishedTraceFacts, RagPulseComponentsSeenBefore) {
  SKIP_WITHOUT_TRACES();
  auto reader = OpenTrace(Folder() + "ragpulse/0_trace.jsonl.gz", {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  // Tokens of each component, in the order of the file. All above the lowest 24 bits of a token is
  // its component; the template's are negative.
  std::map<int64_t, std::map<int64_t, int64_t>> rows;
  TraceRequest request;
  while (*(*reader)->Next(request)) {
    for (const int64_t id : request.content_ids) {
      if (id >= 0) ++rows[request.row][id >> 24];
    }
  }
  absl::flat_hash_set<int64_t> seen;
  int64_t tokens = 0, tokens_seen = 0;
  for (const auto& [row, components] : rows) {
    for (const auto& [component, size] : components) {
      tokens += size;
      if (!seen.insert(component).second) tokens_seen += size;
    }
  }
  EXPECT_EQ(tokens, 20851449);
  EXPECT_EQ(Rounded(100.0 * static_cast<double>(tokens_seen) / static_cast<double>(tokens), 3),
            72.008);
}

TEST_F(PublishedTraceFacts, ConversationKeepsItsFactsThroughTheNativeForm) {
  SKIP_WITHOUT_TRACES();
  const std::string native = testing::TempDir() + "/conversation.kvt.zst";
  ASSERT_TRUE(ConvertTrace(Folder() + "mooncake/conversation_trace.jsonl.gz", native,
                           TraceFormat::kNative, {})
                  .ok());
  auto reader = OpenTrace(native, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_LT((*reader)->progress().bytes_total, 700000) << "below the 788,651 of the JSONL in gzip";
  auto facts = ComputeTraceFacts(**reader, {16});
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->shared_tokens, 54098411);
  EXPECT_EQ((*reader)->counters().peak_held_requests, 1) << "a sorted file needs no window";

  // Of the 288,500 ids only those of new paths are stored.
  RecordStream stream(*OpenByteSource(native), 1 << 26);
  ASSERT_TRUE(stream.Start().ok());
  std::string_view bytes;
  int64_t stored_ids = 0;
  while (*stream.Next(&bytes)) {
    trace::v1::Record record;
    ASSERT_TRUE(record.ParseFromString(std::string(bytes)));
    stored_ids += record.request().ids_size();
  }
  EXPECT_EQ(stored_ids, 182790);
}

}  // namespace
}  // namespace kvblocks::sim
