// engine: kvsim replay with a model in it (serve_command.h), computed by this machine's processors.
//
//   engine serve prompts.jsonl --model=FOLDER/config.json --num-blocks=2000 --answers=answers.jsonl

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checks/status_macros.h"
#include "examples/engine/serve_command.h"

namespace kvblocks::engine {
namespace {

absl::StatusOr<Served> ServeByCpu(const ToServe& serve, std::unique_ptr<sim::TraceReader> trace) {
  absl::string_view folder = serve.model_name;
  if (!absl::ConsumeSuffix(&folder, "config.json")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: got \"", serve.model_name,
                     "\", expected the path of a config.json with model*.safetensors beside it"));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const Model model, Model::Load(absl::StrCat(folder, ".")));
  return Serve(model, *serve.plan, serve.config, std::move(trace), serve.options, serve.observers,
               serve.tiers);
}

}  // namespace
}  // namespace kvblocks::engine

int main(int argc, char** argv) {
  return kvblocks::engine::ServeMain(argc, argv, "engine",
                                     "serves token ids with a small model on this machine",
                                     kvblocks::engine::ServeByCpu);
}
