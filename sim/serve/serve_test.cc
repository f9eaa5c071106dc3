// What serve makes of bodies, and of an engine's tokens.

#include <condition_variable>
#include <future>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/serve/answer.h"
#include "sim/serve/api_request.h"
#include "sim/serve/live_engine.h"
#include "sim/serve/run_server.h"
#include "sim/serve/service.h"
#include "sim/serve/tokenizer.h"
#include "sim/testing/replay.h"
#include "sim/tiers/tier_text.h"
#include "simdjson.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CompletionRequest Parsed(std::string_view body, bool is_chat = false) {
  ApiParser parser({});
  CompletionRequest request;
  const auto error = parser.ParseCompletion(body, is_chat, &request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

std::string Refusal(std::string_view body, bool is_chat = false) {
  ApiParser parser({.max_prompts = 4, .max_answers = 4});
  CompletionRequest request;
  const auto error = parser.ParseCompletion(body, is_chat, &request);
  if (!error) return "taken";
  EXPECT_EQ(error->status, 400);
  return error->message;
}

TEST(ApiRequestTest, PromptsAreTextsOrTokens) {
  EXPECT_EQ(Parsed(R"({"prompt":"hi"})").prompts[0].text, "hi");
  EXPECT_EQ(Parsed(R"({"prompt":["a","b"]})").prompts.size(), 2);
  EXPECT_THAT(Parsed(R"({"prompt":[5,6]})").prompts[0].tokens, ElementsAre(5, 6));
  EXPECT_THAT(Parsed(R"({"prompt":[[5,6],[7]]})").prompts[1].tokens, ElementsAre(7));
}

TEST(ApiRequestTest, CompletionsEndAfterSixteenTokensWhereNothingIsSaid) {
  EXPECT_EQ(Parsed(R"({"prompt":"a"})").max_tokens, 16);
  EXPECT_EQ(Parsed(R"({"prompt":"a","max_tokens":7})").max_tokens, 7);
  EXPECT_FALSE(Parsed(R"({"messages":[{"role":"user","content":"a"}]})", true).max_tokens);
}

TEST(ApiRequestTest, MessagesBecomeOneText) {
  const CompletionRequest request = Parsed(
      R"({"messages":[{"role":"system","content":"be brief"},
                      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "tools":[{"type":"function"}]})", true);
  EXPECT_EQ(
      request.prompts[0].text,
      "<|tools|>\n[{\"type\":\"function\"}]\n<|system|>\nbe brief\n<|user|>\nab\n<|assistant|>\n");
  EXPECT_EQ(request.last_message, "ab");
}

TEST(ApiRequestTest, NullIsAbsentAndUnknownFieldsAreIgnored) {
  const CompletionRequest request = Parsed(
      R"({"prompt":"a","max_tokens":null,"logprobs":null,"new_field":{"x":[1]},"temperature":0.5})");
  EXPECT_EQ(request.max_tokens, 16);
}

TEST(ApiRequestTest, WhatCannotBeHonouredIsRefusedByName) {
  EXPECT_THAT(Refusal(R"({"prompt":"a","logprobs":1})"), HasSubstr("logprobs: got 1"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","best_of":3})"), HasSubstr("best_of: got 3, expected n"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","response_format":{"type":"json_object"}})"),
              HasSubstr("response_format"));
  EXPECT_THAT(Refusal(R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", true),
              HasSubstr("tool_choice"));
  EXPECT_THAT(Refusal(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", true),
              HasSubstr("image_url"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","guided_json":{"type":"object"}})"), HasSubstr("guided_json"));
}

TEST(ApiRequestTest, BadBodiesSayWhatIsWrong) {
  EXPECT_THAT(Refusal("{"), HasSubstr("no JSON"));
  EXPECT_THAT(Refusal(""), HasSubstr("no JSON"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("got a list, expected an object"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("prompt: is missing"));
  EXPECT_THAT(Refusal(R"({"prompt":[]})"), HasSubstr("not empty"));
  EXPECT_THAT(Refusal(R"({"prompt":[1,-2]})"), HasSubstr("prompt: got -2"));
  EXPECT_THAT(Refusal(R"({"prompt":[1,"a"]})"), HasSubstr("prompt: got \"a\""));
  EXPECT_THAT(Refusal(R"({"prompt":"a","max_tokens":"9"})"), HasSubstr("max_tokens: got \"9\""));
  EXPECT_THAT(Refusal(R"({"prompt":"a","max_tokens":0})"), HasSubstr("from 1 to"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","max_tokens":2,"min_tokens":3})"), HasSubstr("min_tokens"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","n":5})"), HasSubstr("n: got 5"));
  EXPECT_THAT(Refusal(R"({"prompt":["a","b"],"n":3})"), HasSubstr("at most 4 answers"));
  EXPECT_THAT(Refusal(R"({"prompt":["a","b","c","d","e"]})"), HasSubstr("more than 4 prompts"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","stream":1})"), HasSubstr("true or false"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","stream_options":{}})"), HasSubstr("without stream"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","cache_salt":""})"), HasSubstr("cache_salt"));
  EXPECT_THAT(Refusal(R"({"prompt":")" "\xff" R"("})"), HasSubstr("no JSON"));
  EXPECT_THAT(Refusal(R"({"messages":[]})", true), HasSubstr("at least one message"));
  EXPECT_THAT(Refusal(R"({"messages":[{"content":"a"}]})", true), HasSubstr("role"));
  EXPECT_THAT(Refusal(std::string(R"({"prompt":"a","x":)") + std::string(100, '[') +
                      std::string(100, ']') + "}"),
              HasSubstr("no JSON"));
}

TEST(ApiRequestTest, ARefusedBodyChangesNothing) {
  ApiParser parser({});
  CompletionRequest request;
  request.model = "before";
  EXPECT_TRUE(parser.ParseCompletion(R"({"model":"m","prompt":"a","n":0})", false, &request));
  EXPECT_EQ(request.model, "before");
}

TEST(ApiRequestTest, FaultsAreNamed) {
  ApiParser parser({});
  FaultChange change;
  EXPECT_FALSE(parser.ParseFaults(R"({"error_rate":0.25})", &change));
  EXPECT_EQ(change.error_rate, 0.25);
  EXPECT_FALSE(change.crash_seconds);
  EXPECT_THAT(parser.ParseFaults(R"({"error_rat":1})", &change)->message, HasSubstr("is no fault"));
  EXPECT_THAT(parser.ParseFaults(R"({"error_rate":2})", &change)->message, HasSubstr("from 0 to 1"));
}

// --- Tokens ---

TEST(TokenizerTest, PiecesAreTheText) {
  ByteTokenizer tokenizer;
  const auto encoding = tokenizer.Encode("h\xC3\xA9", true, true);
  EXPECT_THAT(encoding->tokens, ElementsAre('h', 0xC3, 0xA9));
  EXPECT_THAT(*tokenizer.Pieces({'h', 300}), ElementsAre("h", "\xEF\xBF\xBD"));
}

TEST(TokenizerTest, CharactersStayWhole) {
  EXPECT_EQ(WholeCharacters("ab"), 2);
  EXPECT_EQ(WholeCharacters("a\xC3"), 1);
  EXPECT_EQ(WholeCharacters("a\xC3\xA9"), 3);
  EXPECT_EQ(WholeCharacters("\xF0\x9F\x98"), 0);
  EXPECT_EQ(WholeCharacters("\xF0\x9F\x98\x80"), 4);
  EXPECT_EQ(WholeCharacters(""), 0);
  EXPECT_EQ(WholeCharacters("\x80\x80\x80\x80"), 4);  // no character at all: nothing to wait for
}

TEST(TokenizerTest, PseudoAnswersBeginWithSentences) {
  ByteTokenizer tokenizer;
  const auto text = PseudoText::Make(tokenizer);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->starts.size(), 400);
  for (uint64_t i = 0; i < 400; ++i) {
    EXPECT_TRUE(isupper(text->pieces[text->StartOf(i)][0]));
  }
}

class SlowTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<Encoding> Encode(std::string_view, bool, bool) override { return Encoding(); }
  absl::StatusOr<std::vector<std::string>> Pieces(absl::Span<const TokenId>) override {
    return std::vector<std::string>();
  }
  bool is_slow() const override { return true; }
};

// Counts who holds an object when the first task is posted.
class CountingLoop final : public EventLoop {
 public:
  explicit CountingLoop(const std::shared_ptr<int>& held) : held_(held) {}
  void Post(std::function<void()>) override { num_holders.set_value(held_.use_count()); }
  void After(std::chrono::duration<double>, std::function<void()>) override {}

  std::promise<int64_t> num_holders;

 private:
  const std::weak_ptr<int> held_;
};

TEST(TokenizerQueueTest, WhatACallHeldIsLeftToTheLoop) {
  auto held = std::make_shared<int>();
  CountingLoop loop(held);
  TokenizerQueue queue(std::make_unique<SlowTokenizer>(), &loop);
  queue.Run([held](Tokenizer&) {}, [held] {});
  EXPECT_EQ(loop.num_holders.get_future().get(), 2);  // this test and the task
}

// --- Answers ---

AnswerPlan PlanFor(const std::string& text) {
  ByteTokenizer tokenizer;
  auto encoding = *tokenizer.Encode(text, false, true);
  return {.tokens = std::make_shared<const std::vector<TokenId>>(encoding.tokens),
          .pieces = std::make_shared<const std::vector<std::string>>(encoding.pieces),
          .length = static_cast<int64_t>(text.size())};
}

Answer AnswerOf(const CompletionRequest& request, const std::string& text) {
  Answer answer(request, "cmpl-1", "m", 7);
  answer.sequences().push_back({.plan = PlanFor(text), .num_prompt_tokens = 3});
  return answer;
}

void ApplyStops(const CompletionRequest& request, AnswerPlan* plan) {
  StopMatcher(request).Apply(plan);
}

TEST(AnswerTest, StopTextsEndIt) {
  AnswerPlan plan = PlanFor("one. two. three");
  ApplyStops({.stop = {"two", ". t"}}, &plan);
  EXPECT_EQ(plan.length, 6);  // "one. t"
  EXPECT_EQ(plan.text_bytes, 3);
  EXPECT_TRUE(plan.is_stop);
  EXPECT_EQ(plan.stop_reason, "\". t\"");

  plan = PlanFor("one. two. three");
  ApplyStops({.min_tokens = 8, .stop = {". t"}, .include_stop = true}, &plan);
  EXPECT_EQ(plan.length, 11);
  EXPECT_EQ(plan.text_bytes, 11);

  plan = PlanFor("one");
  ApplyStops({.stop = {"x"}}, &plan);
  EXPECT_EQ(plan.length, 3);
  EXPECT_FALSE(plan.is_stop);
}

TEST(AnswerTest, StopTokensEndIt) {
  AnswerPlan plan = PlanFor("abcabc");
  ApplyStops({.min_tokens = 3, .stop_token_ids = {'c'}}, &plan);
  EXPECT_EQ(plan.length, 6);
  EXPECT_EQ(plan.text_bytes, 5);
  EXPECT_EQ(plan.stop_reason, "99");
}

TEST(AnswerTest, AnObjectHasTextReasonAndUsage) {
  Answer answer = AnswerOf({}, "hello");
  auto& sequence = answer.sequences()[0];
  sequence.num_cached_tokens = 2;
  sequence.num_produced = 5;
  sequence.is_ended = true;
  EXPECT_EQ(answer.Json(),
            R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"hello","logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":3,"total_tokens":8,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}})");
}

// Events of a stream, without "data: ".
std::vector<std::string> Take(Answer& answer, size_t limit = 1 << 20) {
  std::string out;
  answer.AppendEvents(limit, &out);
  std::vector<std::string> events;
  while (!out.empty()) {
    const size_t end = out.find("\n\n");
    EXPECT_EQ(out.substr(0, 6), "data: ");
    events.push_back(out.substr(6, end - 6));
    out.erase(0, end + 2);
  }
  return events;
}

std::string TextOfEvent(const std::string& event) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  EXPECT_EQ(parser.parse(event).get(root), simdjson::SUCCESS) << event;
  std::string_view text;
  EXPECT_EQ(root.at_pointer("/choices/0/text").get(text), simdjson::SUCCESS) << event;
  return std::string(text);
}

TEST(AnswerTest, AStreamHasAnEventPerToken) {
  Answer answer = AnswerOf({.stream = true, .include_usage = true}, "abc");
  auto& sequence = answer.sequences()[0];
  EXPECT_THAT(Take(answer), IsEmpty());
  sequence.num_produced = 2;
  const auto first = Take(answer);
  ASSERT_EQ(first.size(), 2);
  EXPECT_EQ(TextOfEvent(first[1]), "b");
  EXPECT_THAT(first[1], HasSubstr(R"("finish_reason":null)"));
  sequence.num_produced = 3;
  sequence.is_ended = true;
  const auto last = Take(answer);
  ASSERT_EQ(last.size(), 3);
  EXPECT_THAT(last[0], HasSubstr(R"("finish_reason":"length")"));
  EXPECT_THAT(last[1], HasSubstr(R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":6)"));
  EXPECT_EQ(last[2], "[DONE]");
  EXPECT_THAT(Take(answer), IsEmpty());
}

TEST(AnswerTest, AStreamKeepsCharactersWholeAndEndsAtItsStop) {
  Answer answer = AnswerOf({.stream = true}, "\xC3\xA9xy");
  auto& sequence = answer.sequences()[0];
  sequence.plan.text_bytes = 3;
  sequence.num_produced = 4;
  sequence.is_ended = true;
  const auto events = Take(answer);
  ASSERT_EQ(events.size(), 5);
  EXPECT_EQ(TextOfEvent(events[0]), "");
  EXPECT_EQ(TextOfEvent(events[1]), "\xC3\xA9");
  EXPECT_EQ(TextOfEvent(events[2]), "x");
  EXPECT_EQ(TextOfEvent(events[3]), "");
}

TEST(AnswerTest, APieceOfAStreamIsLimited) {
  Answer answer = AnswerOf({.stream = true}, std::string(1000, 'a'));
  answer.sequences()[0].num_produced = 1000;
  std::string out;
  EXPECT_EQ(answer.AppendEvents(1000, &out), BodySource::State::kMore);
  EXPECT_LT(out.size(), 1300);
}

TEST(AnswerTest, AFailureEndsAStreamWithItsReason) {
  Answer answer = AnswerOf({.stream = true}, "abc");
  answer.Fail({.status = 500, .message = "why"});
  EXPECT_THAT(Take(answer), ElementsAre(HasSubstr(R"("message":"why")"), "[DONE]"));
}

TEST(PrometheusTextTest, IsWhatOlderReadersTake) {
  EXPECT_EQ(PrometheusText("# TYPE a counter\n# UNIT a seconds\n# HELP a Help.\na_total{} 1\n"
                           "# TYPE b info\n# HELP b H.\nb_info{x=\"1\"} 1\n# EOF\n"),
            "# TYPE a_total counter\n# HELP a_total Help.\na_total{} 1\n"
            "# TYPE b_info gauge\n# HELP b_info H.\nb_info{x=\"1\"} 1\n");
}

TEST(RunServerTest, ReplicasHaveEndpointsOfTheirOwn) {
  EXPECT_EQ(EndpointOfReplica("tcp://*:5557", 2), "tcp://*:5559");
  EXPECT_EQ(EndpointOfReplica("tcp://*:0", 2), "tcp://*:0");
  EXPECT_EQ(EndpointOfReplica("ipc:///tmp/events", 1), "ipc:///tmp/events-1");
  EXPECT_EQ(EndpointOfReplica("", 1), "");
}

// --- The engine ---

const auto kSevens = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{7});

// Fast: simulated steps of 1 ms, a thousand of them per millisecond.
class LiveEngineTest : public ::testing::Test {
 protected:
  void Start(int64_t num_blocks, double speed = 1e6, std::unique_ptr<TierConnector> tiers = nullptr,
             SchedulerOptions scheduler = {}) {
    SimulationConfig config;
    config.scheduler = scheduler;
    config.kv_cache = {.num_blocks = num_blocks, .groups = {FullGroup(4)}};
    config.manager.max_model_len = 1000;
    config.manager.hash_algorithm = HashAlgorithm::kSha256Cbor;
    config.check_invariants = true;
    auto engine = LiveEngine::Create({.simulation = config,
                                      .step_time = *MakeFixedStepTime(kMillisecond),
                                      .tiers = std::move(tiers),
                                      .speed = speed,
                                      .metrics = {.model = "m", .max_model_len = 1000},
                                      .events = {}},
                                     [this] {
                                       const std::lock_guard lock(mutex_);
                                       changed_.notify_one();
                                     });
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  void Submit(int64_t id, int num_prompt, int num_output, int first_token = 0) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < num_prompt; ++i) prompt.push_back(first_token + i);
    engine_->Submit(Spec(id, prompt, num_output));
  }

  static SequenceSpec Spec(int64_t id, const std::vector<TokenId>& prompt, int64_t num_output) {
    return {.id = id,
            .name = "r",
            .prompt = std::make_shared<const std::vector<TokenId>>(prompt),
            .output = kSevens,
            .num_output = num_output};
  }

  // Waits until what it is given was called.
  void Await(const std::function<void(std::function<void()> done)>& ask) {
    bool is_done = false;
    ask([&] {
      const std::lock_guard lock(mutex_);
      is_done = true;
      changed_.notify_one();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done; });
  }

  // The text of the metrics, and what is beside it.
  std::string Metrics(LiveEngine::State* beside = nullptr) {
    std::string text;
    Await([&](const std::function<void()>& done) {
      engine_->AskMetrics([&, done](std::string all, const LiveEngine::State& state) {
        if (beside != nullptr) *beside = state;
        text = std::move(all);
        done();
      });
    });
    return text;
  }

  // The update that ends the request; tokens and hits until then are added up.
  SequenceUpdate WaitForEnd(int64_t id) {
    while (true) {
      std::vector<SequenceUpdate> updates;
      engine_->TakeUpdates(&updates);
      for (const SequenceUpdate& update : updates) {
        if (update.kind == SequenceUpdate::Kind::kTokens) num_tokens_ += update.num_tokens;
        if (update.kind == SequenceUpdate::Kind::kAdmitted) num_hits_ += update.num_tokens;
        if (update.kind >= SequenceUpdate::Kind::kEnded) ended_[update.id] = update;
      }
      if (ended_.count(id) > 0) return ended_[id];
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<LiveEngine> engine_;
  std::map<int64_t, SequenceUpdate> ended_;
  int64_t num_tokens_ = 0, num_hits_ = 0;
};

TEST_F(LiveEngineTest, ARepeatedPromptHitsItsBlocks) {
  Start(100);
  Submit(1, 20, 10);
  EXPECT_EQ(WaitForEnd(1).kind, SequenceUpdate::Kind::kEnded);
  EXPECT_EQ(num_tokens_, 10);
  EXPECT_EQ(num_hits_, 0);
  Submit(2, 20, 1);
  EXPECT_EQ(WaitForEnd(2).kind, SequenceUpdate::Kind::kEnded);
  EXPECT_EQ(num_hits_, 16);  // the last token is computed
}

TEST_F(LiveEngineTest, OutputIsCachedAsTheTokensThatItIs) {
  Start(100);
  Submit(1, 4, 9);  // 4 tokens of prompt, then 7s of which 8 are computed
  WaitForEnd(1);
  engine_->Submit(Spec(2, {0, 1, 2, 3, 7, 7, 7, 7, 7, 7, 7, 7, 50}, 1));
  WaitForEnd(2);
  EXPECT_EQ(num_hits_, 12);
}

TEST_F(LiveEngineTest, SaltsAndAdaptersSeparate) {
  Start(100);
  Submit(1, 20, 1);
  WaitForEnd(1);
  std::vector<TokenId> prompt(20);
  std::iota(prompt.begin(), prompt.end(), 0);
  SequenceSpec salted = Spec(2, prompt, 1), adapted = Spec(3, prompt, 1);
  salted.cache_salt = "s";
  adapted.lora_name = "l";
  engine_->Submit(salted);
  WaitForEnd(2);
  engine_->Submit(adapted);
  WaitForEnd(3);
  EXPECT_EQ(num_hits_, 0);
}

TEST_F(LiveEngineTest, WhatNeverFitsIsRejectedWithAReason) {
  Start(10);
  Submit(1, 60, 10);
  const SequenceUpdate end = WaitForEnd(1);
  EXPECT_EQ(end.kind, SequenceUpdate::Kind::kRejected);
  EXPECT_THAT(end.text, HasSubstr("blocks"));
}

TEST_F(LiveEngineTest, WhatCanNeverGoOnFailsAndOthersGoOn) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 16;
  options.enable_chunked_prefill = false;
  Start(100, /*speed=*/1e6, nullptr, options);
  Submit(1, 20, 10);
  Submit(2, 10, 10);
  const SequenceUpdate end = WaitForEnd(1);
  EXPECT_EQ(end.kind, SequenceUpdate::Kind::kFailed);
  EXPECT_THAT(end.text, HasSubstr("a step has room for 16"));
  EXPECT_EQ(WaitForEnd(2).kind, SequenceUpdate::Kind::kEnded);
}

TEST_F(LiveEngineTest, AnAbortEndsARequestAndFreesItsBlocks) {
  Start(1000, /*speed=*/1);
  Submit(1, 20, 900);
  Submit(2, 20, 900, /*first_token=*/100);
  engine_->Abort(1);
  EXPECT_EQ(WaitForEnd(1).kind, SequenceUpdate::Kind::kAborted);
  engine_->Abort(1);  // it lives no more
  engine_->Abort(2);
  EXPECT_EQ(WaitForEnd(2).kind, SequenceUpdate::Kind::kAborted);
  bool is_empty = false;
  Await([&](const std::function<void()>& done) {
    engine_->ResetPrefixCache([&, done](bool was_emptied) {
      is_empty = was_emptied;
      done();
    });
  });
  EXPECT_TRUE(is_empty);
}

TEST_F(LiveEngineTest, TimeIsTheWallClocksTimesTheSpeed) {
  Start(100, /*speed=*/10);
  const auto start = std::chrono::steady_clock::now();
  Submit(1, 20, 200);  // 200 steps of 1 ms
  WaitForEnd(1);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(passed.count(), 0.02);
}

TEST_F(LiveEngineTest, MetricsCountWhatHappened) {
  Start(100);
  Submit(1, 20, 10);
  WaitForEnd(1);
  Submit(2, 20, 10);
  WaitForEnd(2);
  const std::string text = Metrics();
  const std::string labels = "{model_name=\"m\",engine=\"0\"} ";
  EXPECT_THAT(text, HasSubstr("vllm:generation_tokens_total" + labels + "20\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total" + labels + "16\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running" + labels + "0\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + labels + "2\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("kvsim_missed_blocks")));
}

TEST_F(LiveEngineTest, AnswersToOnePromptAreOneRequestOfTheMetrics) {
  Start(100);
  const auto group = std::make_shared<AnswerGroup>(AnswerGroup{.count = 2});
  for (int64_t id : {1, 2}) {
    SequenceSpec spec = Spec(id, {1, 2, 3}, 3 * id);
    spec.max_tokens = 50;
    spec.group = group;
    engine_->Submit(spec);
  }
  WaitForEnd(1);
  WaitForEnd(2);
  const std::string text = Metrics();
  const std::string labels = "{model_name=\"m\",engine=\"0\"} ";
  EXPECT_THAT(text, HasSubstr("vllm:request_params_n_count" + labels + "1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_n_sum" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_max_num_generation_tokens_sum" + labels + "6\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_max_tokens_count" + labels + "2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_max_tokens_sum" + labels + "100\n"));
}

TEST_F(LiveEngineTest, AdaptersThatRunAreTold) {
  Start(1000, /*speed=*/1);
  SequenceSpec spec = Spec(1, {1, 2, 3}, 900);
  spec.lora_name = "sql";
  engine_->Submit(spec);
  LiveEngine::State state;
  while (state.running_loras.empty()) Metrics(&state);
  EXPECT_THAT(state.running_loras, ElementsAre("sql"));
  EXPECT_THAT(state.waiting_loras, ElementsAre());
  engine_->Abort(1);
  WaitForEnd(1);
  Metrics(&state);
  EXPECT_THAT(state.running_loras, ElementsAre());
}

// SM-105
TEST_F(LiveEngineTest, WhatThePoolEvictedComesBackFromATier) {
  auto tiers = ParseTiers("host:1MB:read=1GB/s");
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  const auto step_time = *MakeFixedStepTime(kMillisecond);
  auto connector = TierConnector::Create(
      {.tiers = *tiers, .group_block_bytes = {1024}, .step_time = step_time.get()});
  ASSERT_TRUE(connector.ok()) << connector.status();
  Start(20, /*speed=*/1e6, *std::move(connector));
  Submit(1, 60, 1);
  WaitForEnd(1);
  Submit(2, 60, 1, /*first_token=*/500);  // takes the blocks of the first
  WaitForEnd(2);
  EXPECT_EQ(num_hits_, 0);
  Submit(3, 60, 1);
  EXPECT_EQ(WaitForEnd(3).kind, SequenceUpdate::Kind::kEnded);
  // Four blocks of 4 tokens stayed, and ten came back; the last one is computed.
  EXPECT_EQ(num_hits_, 56);
  const std::string text = Metrics();
  const std::string labels = "{model_name=\"m\",engine=\"0\"";
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total" + labels + "} 16\n"));
  EXPECT_THAT(text, HasSubstr("vllm:external_prefix_cache_hits_total" + labels + "} 40\n"));
  EXPECT_THAT(text, HasSubstr("vllm:external_prefix_cache_queries_total" + labels + "} 164\n"));
  EXPECT_THAT(text, HasSubstr("source=\"external_kv_transfer\"} 40\n"));
  Await([&](const std::function<void()>& done) {
    engine_->CheckInvariants([done](absl::Status status) {
      EXPECT_TRUE(status.ok()) << status;
      done();
    });
  });
}

}  // namespace
}  // namespace kvblocks::sim
