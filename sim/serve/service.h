// Service: the OpenAI API of one replica, in front of its engine.
//
// It checks requests, makes them tokens, plans their answers, submits them, and writes what the
// engine's updates make of them. docs/serve.md has the end points.
//
// Always: a request is answered once: with its answer, an error that says why, or a connection that
// is cut where a fault asks for it. What the engine knows of and nobody waits for is aborted.
// Threads: all on the I/O thread, but for the tokenizer's own (TokenizerQueue).

#ifndef KVBLOCKS_SIM_SERVE_SERVICE_H_
#define KVBLOCKS_SIM_SERVE_SERVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "sim/serve/answer.h"
#include "sim/serve/api_request.h"
#include "sim/serve/http.h"
#include "sim/serve/live_engine.h"
#include "sim/serve/tokenizer.h"

namespace kvblocks::sim {

struct LoraModule {
  std::string name;
  std::string path;
};

class Service final : public HttpHandler {
 public:
  struct Options {
    int64_t replica = 0;
    std::string model;       // as clients name it
    std::string root;        // what it is
    std::string version;
    std::vector<LoraModule> loras;
    std::string api_key;     // empty: none
    int64_t max_model_len = 0;
    bool has_priorities = false;
    bool echoes = false;     // answers repeat the prompt
    // Tokens of answers that end by themselves; 0: those whose request sets no limit end after
    // kDefaultAnswerTokens, the others at their limit.
    int64_t least_answer_tokens = 0;
    int64_t most_answer_tokens = 0;
    int64_t max_prompts = 128;
    // Of the prompts of all sequences that the engine knows; each counts at least
    // kLeastSequenceTokens.
    int64_t max_live_tokens = int64_t{64} << 20;
    int64_t created = 0;     // Unix time of the models
    Faults faults;
    uint64_t seed = 0;       // of faults
  };
  static constexpr int64_t kDefaultAnswerTokens = 128;
  static constexpr int64_t kLeastSequenceTokens = 256;

  using EngineFactory =
      std::function<absl::StatusOr<std::unique_ptr<LiveEngine>>(std::function<void()> wake)>;
  // Of the network, for metrics.
  struct Connections {
    int64_t num_open = 0;
    int64_t num_refused = 0;
  };

  // `text`, `tokenizer` and `loop` must outlive the service. `set_up` is called when the replica
  // crashes (false) and when it is back.
  static absl::StatusOr<std::unique_ptr<Service>> Create(Options options, const PseudoText* text,
                                                         TokenizerQueue* tokenizer, EventLoop* loop,
                                                         EngineFactory make_engine,
                                                         std::function<void(bool)> set_up,
                                                         std::function<Connections()> connections);
  ~Service() override;

  std::optional<HttpReply> CheckHead(const HttpRequest& request) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;

  // From now on new requests are refused; those under way go on.
  void StartDraining() { is_draining_ = true; }
  bool is_idle() const { return live_.empty() && num_starting_ == 0; }
  // Null while the replica is down.
  LiveEngine* engine() { return engine_.get(); }

 private:
  struct Pending;
  struct LiveSequence {
    std::shared_ptr<Pending> pending;  // null: nobody waits for it any more
    size_t index = 0;
    int64_t num_tokens = 0;  // that count for it
  };

  Service(Options options, const PseudoText* text, TokenizerQueue* tokenizer, EventLoop* loop);

  // service.cc: routing and what needs no engine.
  void Count(const std::string& path, int status);
  void Reply(const std::string& path, Exchange& exchange, HttpReply reply);
  void ReplyError(const std::string& path, Exchange& exchange, const ApiError& error);
  std::optional<ApiError> CheckModel(const std::string& model, const LoraModule** lora) const;
  std::string ModelsJson() const;
  void HandleTokenize(HttpRequest request, std::shared_ptr<Exchange> exchange);
  void HandleDetokenize(HttpRequest request, std::shared_ptr<Exchange> exchange);
  void HandleMetrics(HttpRequest request, std::shared_ptr<Exchange> exchange);
  void HandleReset(std::shared_ptr<Exchange> exchange);
  void HandleFaults(HttpRequest request, std::shared_ptr<Exchange> exchange);
  std::string MetricsText(std::string text, const LiveEngine::State& state) const;

  // service_answers.cc: requests that the engine works on.
  double Draw();  // 0 to 1
  absl::Status MakeEngine();
  void Crash(double seconds);
  void ComeBack();
  void HandleCompletion(HttpRequest request, std::shared_ptr<Exchange> exchange);
  void Tokenize(Tokenizer& tokenizer, Pending& pending) const;
  void Begin(std::shared_ptr<Pending> pending);
  std::optional<ApiError> CheckPrompts(const Pending& pending) const;
  AnswerPlan PlanOf(const Pending& pending, size_t prompt, int64_t index) const;
  bool PlanSequence(Pending& pending) const;
  void PlanNext();
  void Submit(const std::shared_ptr<Pending>& pending);
  void TakeUpdates();
  void Apply(const SequenceUpdate& update);
  void Progress(const std::shared_ptr<Pending>& pending);
  void Drop(Pending& pending);  // aborts what lives of it

  const Options options_;
  const PseudoText* const text_;
  TokenizerQueue* const tokenizer_;
  EventLoop* const loop_;
  EngineFactory make_engine_;
  std::function<void(bool)> set_up_;
  std::function<Connections()> connections_;
  ApiParser parser_;
  std::unique_ptr<LiveEngine> engine_;
  uint64_t generation_ = 0;  // of the engine
  Faults faults_;
  uint64_t random_;
  bool is_draining_ = false;
  int64_t num_starting_ = 0;  // taken, not submitted yet
  // Whose stop texts are being sought: of the first, one sequence per turn of the loop.
  std::deque<std::shared_ptr<Pending>> planning_;
  int64_t live_tokens_ = 0;
  int64_t next_request_ = 0;
  int64_t next_sequence_ = 0;
  // Sequences, until the engine says that they ended.
  absl::flat_hash_map<int64_t, LiveSequence> live_;
  std::vector<SequenceUpdate> updates_;              // scratch
  std::vector<std::shared_ptr<Pending>> touched_;    // scratch
  std::map<std::pair<std::string, int>, int64_t> counts_;  // answers by path and status
  int64_t num_crashes_ = 0;
};

// OpenMetrics text in Prometheus' own format, which older readers and some libraries want.
std::string PrometheusText(std::string_view open_metrics);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_SERVICE_H_
