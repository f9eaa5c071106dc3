// SM-52 to SM-56: workloads from their text to their requests.

#include <algorithm>
#include <cmath>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/gen/distributions.h"
#include "sim/gen/generator.h"
#include "sim/gen/reuse_tree.h"
#include "sim/gen/session_plan.h"
#include "sim/gen/workload_spec.h"

namespace kvblocks::sim {
namespace {

workload::v1::Workload Parse(const std::string& text) {
  const auto workload = ParseWorkload(text, "w");
  EXPECT_TRUE(workload.ok()) << workload.status() << "\n" << text;
  return workload.ok() ? *workload : workload::v1::Workload();
}

// A workload of one kind; its fields beside the lengths of messages and answers.
std::string OneKind(const std::string& kind, const std::string& rest = "sessions: 300") {
  return absl::StrCat("workload: 'w' ", rest, " arrivals { poisson { rate: 10 } } kind { ", kind,
                      " user { uniform { low: 20 high: 90 } } answer { uniform { low: 5 high: 60 "
                      "} } }");
}

std::vector<GeneratedRequest> Make(const std::string& text) {
  const auto generator = MakeGenerator(Parse(text));
  std::vector<GeneratedRequest> requests;
  GeneratedRequest request;
  while (*generator->Next(&request)) requests.push_back(request);
  return requests;
}

// Leading blocks in which two requests agree.
size_t Shared(const GeneratedRequest& a, const GeneratedRequest& b) {
  const auto end = std::mismatch(a.content_ids.begin(), a.content_ids.end(), b.content_ids.begin(),
                                 b.content_ids.end());
  return static_cast<size_t>(end.first - a.content_ids.begin());
}

std::map<uint64_t, std::vector<GeneratedRequest>> BySession(const std::string& text) {
  std::map<uint64_t, std::vector<GeneratedRequest>> sessions;
  for (GeneratedRequest& request : Make(text)) {
    sessions[request.session].push_back(std::move(request));
  }
  return sessions;
}

struct Gaps {
  double mean, cv;
};
Gaps GapsOf(const std::string& process) {
  const auto workload =
      Parse(absl::StrCat("workload: 'w' sessions: 1 kind { user { fixed: 1 } answer { fixed: 1 } } "
                         "arrivals { ", process, " }"));
  ArrivalProcess arrivals(workload.arrivals(), 1);
  constexpr int kGaps = 40000;
  double sum = 0, squares = 0;
  int64_t before = 0;
  for (int i = 0; i < kGaps; ++i) {
    const int64_t now = arrivals.Next();
    EXPECT_GE(now, before);
    const double gap = static_cast<double>(now - before) / 1e9;
    sum += gap;
    squares += gap * gap;
    before = now;
  }
  const double mean = sum / kGaps;
  return {mean, std::sqrt(squares / kGaps - mean * mean) / mean};
}

TEST(ArrivalsTest, HaveTheirRatesAndBursts) {  // SM-52
  const auto expect = [](const std::string& process, double mean, double cv) {
    const Gaps gaps = GapsOf(process);
    EXPECT_NEAR(gaps.mean, mean, 0.05 * mean) << process;
    EXPECT_NEAR(gaps.cv, cv, 0.06 * cv + 1e-6) << process;
  };
  expect("poisson { rate: 20 }", 0.05, 1);
  expect("constant { rate: 20 }", 0.05, 0);
  expect("gamma { rate: 20 cv: 0.5 }", 0.05, 0.5);
  expect("gamma { rate: 20 cv: 2 }", 0.05, 2);
  expect("weibull { rate: 20 shape: 1 }", 0.05, 1);
  expect("weibull { rate: 20 shape: 2 }", 0.05, 0.5227);
  expect("replay { gap_ns: [10000000, 30000000] }", 0.02, 0.5);
  // 10 s at 30, 20 s at 3 on average.
  EXPECT_NEAR(GapsOf("onoff { on_rate: 30 off_rate: 3 on_s: 10 off_s: 20 }").mean, 1 / 12.0, 0.01);
  EXPECT_NEAR(GapsOf("diurnal { rate: 20 swing: 0.9 period_s: 100 }").mean, 0.05, 0.002);
  EXPECT_NEAR(GapsOf("ramp { from_rate: 1 to_rate: 20 over_s: 10 }").mean, 0.05, 0.002);
  EXPECT_NEAR(GapsOf("steps { step { rate: 30 for_s: 5 } step { rate: 0 for_s: 10 } }").mean, 0.1,
              0.003);
}

TEST(ArrivalsTest, ClosedLoopsWaitForTheUsersLastSession) {  // SM-52
  const auto requests =
      Make("workload: 'w' sessions: 10 arrivals { closed { users: 3 think_s { fixed: 2 } } } "
           "kind { user { fixed: 100 } answer { fixed: 10 } }");
  ASSERT_EQ(requests.size(), 10);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i < 3) {
      EXPECT_TRUE(requests[i].waits_for.empty());
    } else {
      EXPECT_EQ(requests[i].waits_for, std::vector<int64_t>{static_cast<int64_t>(i) - 3});
      EXPECT_EQ(requests[i].think_ns, 2'000'000'000);
    }
  }
}

TEST(BlockIdsTest, AgreeAsFarAsTheTextsDo) {  // SM-54
  const auto ids = [](const std::vector<ContentPiece>& content) {
    std::vector<int64_t> out;
    BlockIds(content, 4, &out);
    return out;
  };
  const auto shared = [&](const std::vector<ContentPiece>& a, const std::vector<ContentPiece>& b) {
    const auto x = ids(a), y = ids(b);
    size_t n = 0;
    while (n < x.size() && n < y.size() && x[n] == y[n]) ++n;
    return n;
  };
  EXPECT_EQ(ids({{1, 9}}).size(), 3);
  EXPECT_EQ(shared({{1, 9}, {2, 7}}, {{1, 9}, {2, 7}}), 4);
  EXPECT_EQ(shared({{1, 9}, {2, 7}}, {{1, 9}, {3, 7}}), 2);
  EXPECT_EQ(shared({{1, 8}, {2, 8}}, {{1, 8}, {3, 8}}), 2);
  EXPECT_EQ(shared({{1, 1}, {2, 1}, {3, 9}}, {{4, 1}, {2, 1}, {3, 9}}), 0);
  EXPECT_EQ(shared({{1, 1}, {2, 1}, {3, 9}}, {{1, 1}, {5, 1}, {3, 9}}), 0);
  EXPECT_EQ(shared({{1, 1}, {2, 1}, {3, 9}}, {{1, 1}, {2, 2}, {3, 8}}), 0);
  EXPECT_EQ(shared({{1, 6}, {2, 0}, {3, 6}}, {{1, 6}, {3, 6}}), 3);
}

TEST(SessionsTest, RepeatTheirHistoryAndTheAnswers) {  // SM-54
  const auto sessions =
      BySession(OneKind("turns { fixed: 4 } think_s { fixed: 3 }", "sessions: 40"));
  ASSERT_EQ(sessions.size(), 40);
  for (const auto& [session, turns] : sessions) {
    ASSERT_EQ(turns.size(), 4);
    for (size_t t = 1; t < 4; ++t) {
      const GeneratedRequest& before = turns[t - 1];
      const int64_t full = (before.input_length + before.output_length) / kDefaultBlockTokens;
      EXPECT_EQ(Shared(before, turns[t]), full);
      EXPECT_GT(turns[t].input_length, before.input_length + before.output_length);
      EXPECT_EQ(turns[t].waits_for.size(), 1);
      EXPECT_EQ(turns[t].arrival_ns - before.arrival_ns, 3'000'000'000);
      EXPECT_EQ(turns[t].turn, t);
    }
  }
}

TEST(SessionsTest, ShareSystemPromptsByZipf) {  // SM-54
  const std::string kind =
      "system { groups: 8 alpha: 1 tokens { uniform { low: 160 high: 800 } } }";
  std::map<int64_t, int> count;
  for (const auto& request : Make(OneKind(kind, "sessions: 2000"))) ++count[request.content_ids[0]];
  ASSERT_EQ(count.size(), 8);
  double sum = 0;
  for (int k = 1; k <= 8; ++k) sum += 1.0 / k;
  int most = 0;
  for (const auto& [id, n] : count) most = std::max(most, n);
  EXPECT_NEAR(most, 2000 / sum, 120);
}

TEST(SessionsTest, ForkSampleAndRepeat) {  // SM-54
  int forks = 0;
  for (const auto& session : BySession(OneKind("turns { fixed: 3 } fork: 0.5"))) {
    const auto& turns = session.second;
    for (size_t t = 1; t < turns.size(); ++t) {
      forks += std::any_of(turns.begin(), turns.begin() + static_cast<long>(t),
                           [&](const auto& a) { return a.input_length == turns[t].input_length; });
    }
  }
  EXPECT_NEAR(forks, 300, 6 * std::sqrt(150));
  const auto samples = Make(OneKind("samples: 3", "sessions: 20"));
  ASSERT_EQ(samples.size(), 60);
  for (size_t i = 0; i < 60; i += 3) {
    EXPECT_EQ(samples[i].input_length, samples[i + 2].input_length);
    EXPECT_EQ(samples[i].arrival_ns, samples[i + 2].arrival_ns);
    EXPECT_GE(Shared(samples[i], samples[i + 2]), samples[i].input_length / kDefaultBlockTokens);
  }
  std::set<int64_t> first;
  for (const auto& request : Make(OneKind("duplicate: 0.4"))) first.insert(request.content_ids[0]);
  EXPECT_NEAR(static_cast<double>(first.size()), 300 * 0.6, 60);
  EXPECT_LT(first.size(), 300);
}

TEST(SessionsTest, ShowExamples) {  // SM-54
  const std::string few = "fewshot { examples: 3 pool: 9 tokens { fixed: 160 } shuffled: ";
  const auto fixed = Make(OneKind(few + "false }", "sessions: 30"));
  for (const auto& request : fixed) EXPECT_GE(Shared(request, fixed[0]), 30);
  std::set<int64_t> first;
  for (const auto& request : Make(OneKind(few + "true }", "sessions: 200"))) {
    first.insert(request.content_ids[0]);
  }
  EXPECT_EQ(first.size(), 9);
}

TEST(SessionsTest, RetrieveDocumentsInOrder) {  // SM-55
  const auto shared_blocks = [](const char* order) {
    std::set<std::vector<int64_t>> seen;
    int64_t hits = 0;
    for (const auto& request :
         Make(OneKind(absl::StrCat("rag { documents: 12 alpha: 1 per_question: 3 tokens { fixed: "
                                   "160 } order: ", order, " }"),
                      "sessions: 400"))) {
      EXPECT_GE(request.input_length, 480);
      std::vector<int64_t> path;
      for (size_t i = 0; i < 30; ++i) {
        path.push_back(request.content_ids[i]);
        hits += seen.insert(path).second ? 0 : 1;
      }
    }
    return hits;
  };
  // Documents in the order of their numbers share longer prefixes than in any other.
  EXPECT_GT(shared_blocks("SORTED"), shared_blocks("RANK") + 400);
  EXPECT_GT(shared_blocks("SORTED"), shared_blocks("RANDOM") + 400);
}

constexpr char kAgent[] =
    "system { groups: 1 alpha: 0 tokens { fixed: 320 } } turns { fixed: 12 } agent { tool_tokens { "
    "fixed: 200 } tool_s { fixed: 1 } ";

TEST(AgentsTest, CompactAtTheContextLimit) {  // SM-55
  int resets = 0;
  for (const auto& [session, steps] : BySession(
           OneKind(absl::StrCat(kAgent, "context_limit: 1500 summary_tokens { fixed: 100 } }"),
                   "sessions: 10"))) {
    for (size_t i = 1; i < steps.size(); ++i) {
      EXPECT_LE(steps[i].input_length, 1500);
      if (steps[i].input_length > steps[i - 1].input_length) continue;
      ++resets;
      EXPECT_EQ(Shared(steps[i], steps[i - 1]), 20);  // the system prompt
      EXPECT_EQ(steps[i].input_length, 320 + 100 + 200);
    }
  }
  EXPECT_GE(resets, 10);
}

TEST(AgentsTest, WaitForTheirSubagents) {  // SM-55
  const auto requests =
      Make(OneKind(absl::StrCat(kAgent, "delegate: 0.5 subagents: 3 subagent_steps { fixed: 2 } }"),
                   "sessions: 10"));
  int waits = 0;
  for (const auto& request : requests) {
    EXPECT_EQ(Shared(request, requests[0]) >= 20, true);
    if (request.waits_for.size() < 2) continue;
    ++waits;
    EXPECT_EQ(request.waits_for.size(), 4);  // the step before and three others
    std::set<uint64_t> sessions;
    for (const int64_t row : request.waits_for) {
      sessions.insert(requests[static_cast<size_t>(row)].session);
    }
    EXPECT_EQ(sessions.size(), 4);
  }
  EXPECT_NEAR(waits, 10 * 11 * 0.5, 25);
  EXPECT_EQ(requests.size(), 120 + static_cast<size_t>(waits) * 6);
}

TEST(GeneratorTest, RequestsDoNotDependOnWhatIsNotTheirs) {  // SM-51
  const std::string kind =
      "system { groups: 5 alpha: 1 tokens { fixed: 64 } } turns { geometric: 3 }";
  const auto few = Make(OneKind(kind, "requests: 100"));
  const auto many = Make(OneKind(kind, "requests: 500"));
  ASSERT_EQ(few.size(), 100);
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_EQ(few[i].content_ids, many[i].content_ids);
    EXPECT_EQ(few[i].arrival_ns, many[i].arrival_ns);
    EXPECT_EQ(few[i].waits_for, many[i].waits_for);
  }
  // Another think time moves requests and leaves what they say.
  const auto slow = BySession(OneKind(kind + " think_s { fixed: 50 }"));
  for (const auto& [session, turns] : BySession(OneKind(kind))) {
    ASSERT_EQ(turns.size(), slow.at(session).size());
    EXPECT_EQ(turns.back().content_ids, slow.at(session).back().content_ids);
  }
  EXPECT_NE(Make(OneKind(kind, "requests: 9 seed: 2"))[5].content_ids, few[5].content_ids);
}

TEST(GeneratorTest, DrawsKindsAndCorrelatesLengths) {  // SM-53, SM-54
  int tenants = 0;
  for (const auto& request :
       Make("workload: 'w' sessions: 1000 arrivals { constant { rate: 1 } } "
            "kind { tenant: 'a' share: 3 user { fixed: 10 } answer { fixed: 1 } } "
            "kind { tenant: 'b' user { fixed: 20 } answer { fixed: 1 } }")) {
    EXPECT_EQ(request.input_length, request.tenant == "a" ? 10 : 20);
    tenants += request.tenant == "a" ? 1 : 0;
  }
  EXPECT_NEAR(tenants, 750, 6 * 14);
  for (const double wanted : {-0.7, 0.5, 1.0}) {
    const auto all = Make(OneKind(absl::StrCat("rank_correlation: ", wanted), "sessions: 4000"));
    double xy = 0, xx = 0, yy = 0;  // of uniform lengths ranks are lengths
    for (const auto& r : all) {
      const double x = static_cast<double>(r.input_length) - 55;
      const double y = static_cast<double>(r.output_length) - 32.5;
      xy += x * y;
      xx += x * x;
      yy += y * y;
    }
    EXPECT_NEAR(xy / std::sqrt(xx * yy), wanted, 0.06);
  }
}

// SM-56: what the header states against what is made.
TEST(ExpectedFactsTest, AreWhatIsMade) {
  const std::string text = OneKind(
      "samples: 2 turns { uniform { low: 0.5 high: 5.5 } } system { groups: 30 alpha: 1 tokens { "
      "uniform { low: 10 high: 90 } } }",
      "sessions: 1500 block_tokens: 1");
  const auto facts = ExpectedFactsOf(Parse(text));
  ASSERT_TRUE(facts.has_value() && facts->hit_rate.has_value());
  double requests = 0, input = 0, output = 0, hits = 0;
  absl::flat_hash_set<uint64_t> seen;  // prefixes
  for (const auto& request : Make(text)) {
    requests += 1;
    input += static_cast<double>(request.input_length);
    output += static_cast<double>(request.output_length);
    uint64_t path = 0;
    for (size_t i = 0; i < request.content_ids.size(); ++i) {
      path = MixBits(path ^ static_cast<uint64_t>(request.content_ids[i]));
      const bool is_new = seen.insert(path).second;
      hits += !is_new && i < static_cast<size_t>(request.input_length) ? 1 : 0;
    }
  }
  EXPECT_NEAR(requests / facts->requests, 1, 0.04);
  EXPECT_NEAR(input / facts->input_tokens, 1, 0.07);
  EXPECT_NEAR(output / facts->output_tokens, 1, 0.04);
  EXPECT_NEAR(hits / input, *facts->hit_rate, 0.01);
  EXPECT_FALSE(ExpectedFactsOf(Parse(OneKind("turns { fixed: 2 } fork: 0.5"))).has_value());
  EXPECT_FALSE(ExpectedFactsOf(Parse(OneKind("duplicate: 0.5")))->hit_rate.has_value());
}

// Against a plain list in the order of use.
TEST(ReuseTreeTest, KnowsDistances) {
  ReuseTree tree(true);
  std::list<int> order;  // the latest use first
  std::vector<std::vector<int>> paths;
  for (uint64_t request = 0; request < 400; ++request) {
    Draws draws(1, "tree", request);
    std::vector<int> path;
    if (!paths.empty() && draws.Chance(0.7)) {
      path = paths[static_cast<size_t>(draws.Below(static_cast<int64_t>(paths.size())))];
      path.resize(static_cast<size_t>(1 + draws.Below(static_cast<int64_t>(path.size()))));
      const auto place = std::find(order.begin(), order.end(), path.back());
      EXPECT_EQ(tree.Distance(path.back()), 1 + std::distance(order.begin(), place));
      const int found = tree.Nearest(tree.depth(path.back()), static_cast<double>(tree.Distance(
          path.back())), tree.Shared(path.back()));
      EXPECT_EQ(found, path.back());
    }
    for (int64_t i = 1 + draws.Below(10); i > 0; --i) {
      path.push_back(tree.Add(path.empty() ? ReuseTree::kNoBlock : path.back()));
    }
    tree.Use(path);
    for (size_t i = path.size(); i > 0; --i) {
      order.remove(path[i - 1]);
      order.push_front(path[i - 1]);
    }
    paths.push_back(path);
  }
}

constexpr char kFit[] = R"(workload: "fit" block_tokens: 64
fit {
  phase {
    requests: 400
    gap_ns { bucket: [0, 100] count: [300, 100] }
    new_tokens { bucket: [40, 60] count: [200, 200] }
    output { bucket: [20] count: [400] }
    depth: [1, 3] distance: [4, 30] older: [0, 0] count: [60, 100]
  }
})";

TEST(FitTest, DealsOutItsTables) {  // SM-56
  const auto requests = Make(kFit);
  ASSERT_EQ(requests.size(), 400);
  int same_time = 0, with_hit = 0;
  std::set<std::vector<int64_t>> seen;
  for (size_t i = 0; i < requests.size(); ++i) {
    same_time += i > 0 && requests[i].arrival_ns == requests[i - 1].arrival_ns ? 1 : 0;
    with_hit += seen.contains({requests[i].content_ids[0]}) ? 1 : 0;
    seen.insert({requests[i].content_ids[0]});
    EXPECT_EQ(BucketOf(requests[i].output_length), 20);
  }
  EXPECT_NEAR(same_time, 300, 1);
  EXPECT_NEAR(with_hit, 160, 3);  // the very first ones find nothing
}

TEST(WorkloadSpecTest, SaysWhatIsWrongAndWhere) {
  const auto message = [](const std::string& text) {
    const auto workload = ParseWorkload(text, "w");
    EXPECT_FALSE(workload.ok()) << text;
    return std::string(workload.status().message());
  };
  EXPECT_TRUE(absl::StartsWith(message("workload: 'w'\nsesions: 3"), "w:2:"));
  EXPECT_TRUE(absl::StrContains(message("workload: 'w'"), "sessions: got 0"));
  const std::string bad = message(OneKind("\nfork: 1.5"));
  EXPECT_TRUE(absl::StartsWith(bad, "w:2:")) << bad;
  EXPECT_TRUE(absl::StrContains(bad, "kind[0].fork: got 1.5, expected 0 to 1")) << bad;
  EXPECT_TRUE(absl::StrContains(message(OneKind("think_s { lognormal { median: 9 p90: 3 } }")),
                                "think_s.lognormal.p90"));
  EXPECT_TRUE(absl::StrContains(message(OneKind("turns { fixed: nan }")), "turns.fixed"));
  EXPECT_TRUE(absl::StrContains(message(OneKind("share: 0")), "share: got 0, expected above 0"));
  EXPECT_TRUE(absl::StrContains(message(OneKind("agent { tool_tokens { fixed: 1 } context_limit: 9 "
                                                "}")), "summary_tokens"));
  const std::string printed = PrintWorkload(Parse(kFit));
  EXPECT_EQ(PrintWorkload(Parse(printed)), printed);
  EXPECT_TRUE(LooksLikeWorkload("workload : 'x'"));
  EXPECT_FALSE(LooksLikeWorkload("workloads: 3"));
}

}  // namespace
}  // namespace kvblocks::sim
