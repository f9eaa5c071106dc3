// The command `serve` of an engine: kvsim replay with a model in it. It takes the same options and
// prints the same report, with times that were measured while each step was computed.
//
// Prompts come as token ids, in any trace format that has them, or as texts. The answers are a
// trace again, the same requests with the tokens of their outputs, or texts.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_SERVE_COMMAND_H_
#define KVBLOCKS_EXAMPLES_ENGINE_SERVE_COMMAND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/engine/engine.h"

namespace kvblocks::engine {

// What the options say, for an engine to serve a trace by.
struct ToServe {
  std::string model_name;             // --model
  const ModelFacts* facts = nullptr;  // of it
  const Plan* plan = nullptr;
  sim::SimulationConfig config = {};
  RunnerOptions options = {};
  std::vector<sim::EngineObserver*> observers = {};
  sim::TierConnector* tiers = nullptr;
};
using ServeFunction = std::function<absl::StatusOr<Served>(
    const ToServe& serve, std::unique_ptr<sim::TraceReader> trace)>;

// A program with that command. Exit statuses are those of kvsim replay.
int ServeMain(int argc, char** argv, const char* name, const char* about, ServeFunction serve);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_SERVE_COMMAND_H_
