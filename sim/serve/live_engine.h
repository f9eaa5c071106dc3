// LiveEngine: the simulator's engine on the wall clock - scheduler and block pool in a thread of
// their own, which others send requests to and take tokens from.
//
//   auto engine = LiveEngine::Create(std::move(options), wake);
//   (*engine)->Submit({.id = 1, .prompt = tokens, .output = answer, .num_output = 9});
//   ... when `wake` was called:
//   (*engine)->TakeUpdates(&updates);
//
// Simulated time is the wall clock times `speed`. A step ends when its simulated time has passed; a
// request arrives when it was submitted. If the machine is too slow, steps end late: simulated time
// then falls behind the clock, and what happens in it is the same. State says by how
// much.
//
// Always: every submitted sequence gets exactly one update that ends it. The engine's thread waits
// for nobody: both ways lead through queues whose locks are held for a move or a push. Updates that
// nobody takes are a few words per token and step.

#ifndef KVBLOCKS_SIM_SERVE_LIVE_ENGINE_H_
#define KVBLOCKS_SIM_SERVE_LIVE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/sim_request.h"
#include "sim/report/server_metrics.h"
#include "sim/simulation_config.h"
#include "sim/tiers/tier_connector.h"

namespace kvblocks::sim {

// Sequences that answer one prompt of one request. The engine's own once the first is submitted.
struct AnswerGroup {
  int64_t count = 1;         // sequences
  int64_t num_finished = 0;  // of them
  int64_t most_tokens = 0;   // output of the longest of those
};

struct SequenceSpec {
  int64_t id = 0;  // of the caller's choice, unique among live ones
  std::string name = {};
  std::shared_ptr<const std::vector<TokenId>> prompt;
  // Token i of the output is (*output)[(output_start + i) % size]; all num_output will be produced.
  std::shared_ptr<const std::vector<TokenId>> output;
  size_t output_start = 0;
  int64_t num_output = 0;
  bool ends_by_stop = false;              // how its end is counted
  int64_t max_tokens = 0;                 // that its client would have taken
  std::shared_ptr<AnswerGroup> group = {};  // null: it is the only one
  int32_t priority = 0;
  std::string cache_salt = {};
  std::string lora_name = {};
  std::string lora_path = {};
};

struct SequenceUpdate {
  enum class Kind : uint8_t {
    kAccepted,  // waits for its turn
    kAdmitted,  // num_tokens of its prompt were found in the cache or behind it
    kTokens,    // num_tokens more were produced
    kEnded,     // with all its output
    kRejected,  // `text` says why
    kFailed,    // cannot go on: `text` says why
    kAborted,
  };
  int64_t id = 0;
  int64_t num_tokens = 0;
  Kind kind = Kind::kTokens;
  std::string text = {};
};

struct EngineEvents {
  std::string endpoint = {};  // empty: no events
  std::string replay_endpoint = {};
  std::string topic = {};
  bool integer_hashes = false;
};

class LiveEngine {
 public:
  struct Options {
    SimulationConfig simulation;
    std::unique_ptr<StepTimeModel> step_time;
    std::unique_ptr<TierConnector> tiers = nullptr;  // behind the device; null: none
    double speed = 1;
    ServerMetrics::Options metrics;
    EngineEvents events;
  };
  // What metrics say beside the text.
  struct State {
    double lag_seconds = 0;  // of the wall clock, at the end of the last step
    double max_lag_seconds = 0;
    int64_t num_checks = 0;  // of the invariants; with check_invariants one per call of the engine
    // Adapters of requests that run and that wait, each name once, in their order.
    std::vector<std::string> running_loras = {};
    std::vector<std::string> waiting_loras = {};
  };

  // `wake` is called on the engine's thread when there are updates and none were before; it must
  // return at once. InvalidArgument for a bad configuration, Unavailable for endpoints that cannot
  // be bound, Unimplemented for events without ZeroMQ.
  static absl::StatusOr<std::unique_ptr<LiveEngine>> Create(Options options,
                                                            std::function<void()> wake);
  // Ends the thread after the step that it is in. Sequences that live are dropped without an
  // update.
  virtual ~LiveEngine() = default;
  LiveEngine(const LiveEngine&) = delete;
  LiveEngine& operator=(const LiveEngine&) = delete;

  // --- From any thread ---
  // REQUIRES: the prompt and `output` are not empty, and num_output is positive.
  virtual void Submit(SequenceSpec spec) = 0;
  // An id that lives no more is ignored.
  virtual void Abort(int64_t id) = 0;
  // The metrics as OpenMetrics text; `done` is called on the engine's thread.
  virtual void AskMetrics(std::function<void(std::string text, const State& state)> done) = 0;
  // Whether the prefix cache was emptied: not while requests hold blocks.
  virtual void ResetPrefixCache(std::function<void(bool)> done) = 0;
  // Swaps what has come into `out`, which is cleared first.
  virtual void TakeUpdates(std::vector<SequenceUpdate>* out) = 0;

  // As bound; empty without events.
  virtual std::string events_endpoint() const = 0;
  virtual std::string replay_endpoint() const = 0;

 protected:
  LiveEngine() = default;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_LIVE_ENGINE_H_
