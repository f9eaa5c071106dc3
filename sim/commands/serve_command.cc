// kvsim serve: a server with the OpenAI API, whose engine is the simulator.

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/version.h"
#include "sim/commands/commands.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_setup.h"
#include "sim/serve/run_server.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr const char* kServeFooter =
    R"(Clients talk to it as to vLLM, and get pseudo text of the length that they ask for. When its tokens
come is what the simulator says of the model on the device; what the cache holds is what vLLM's would.
Replica i listens on port + i, and adds i to the ports of its events. Times need a unit (20ms, 1.5s).

Examples
  kvsim serve                                            Llama-3.1-8B on an H100, on 127.0.0.1:8000
  kvsim serve --model=qwen3-32b --device=h200 --tp=2 --served-model-name=Qwen/Qwen3-32B
  kvsim serve --replicas=4 --kv-events='tcp://*:5557' --kv-events-replay='tcp://*:6557'
  kvsim serve --tokenizer=tokenizer.json                 tokens as the model has them (needs Python)
  kvsim serve --speed=10                                 ten simulated seconds per second
  curl localhost:8000/v1/completions -d '{"prompt": "Hello", "max_tokens": 20}'
  curl localhost:8000/kvsim/faults -H 'Content-Type: application/json' -d '{"error_rate": 0.1}'

Ends after SIGTERM or Ctrl-C, when the requests under way are done. Exit status: 0 ended so, 2 bad options.)";

class ServeCommand final : public Command {
 public:
  explicit ServeCommand(OptionParser* program);

 private:
  absl::StatusOr<ExitStatus> Execute() override;
  absl::Status CheckOptions(const ReplaySetup& setup);
  absl::Status CheckEndpoints() const;

  ReplayConfig given_;
  ServerOptions server_;
  double speed_ = 1;
  std::string answer_ = "pseudo", hash_ = "sha256_cbor";
  std::optional<std::string> hash_seed_;
  bool byte_hashes_ = false;
  int64_t fault_seed_ = 0;
};

// "200" or "50-400".
std::string SetLengths(const std::string& text, Service::Options* out) {
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  int64_t least, most;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &least) ||
      !absl::SimpleAtoi(parts.back(), &most) || least < 1 || most < least || most > INT32_MAX) {
    return absl::StrCat("got \"", text,
                        "\", expected a number of tokens like 200, or two like 50-400");
  }
  out->least_answer_tokens = least;
  out->most_answer_tokens = most;
  return "";
}

std::string AddLora(const std::string& text, Service::Options* out) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
    return absl::StrCat("got \"", text, "\", expected NAME=PATH, like sql=/adapters/sql");
  }
  for (const LoraModule& known : out->loras) {
    if (known.name == parts[0]) {
      return absl::StrCat("got \"", text, "\", expected each name once");
    }
  }
  out->loras.push_back({.name = parts[0], .path = parts[1]});
  return "";
}

ServeCommand::ServeCommand(OptionParser* program)
    : Command(program->AddCommand("serve", "Serve the OpenAI API, simulating the engine")) {
  constexpr double kDay = 86400, kLeast = 0.001;
  Service::Options& service = server_.service;
  HttpLimits& limits = server_.limits;
  const char* kServer = "Server";
  options_->Add({"--host", "ADDRESS", "to listen on; 0.0.0.0 is all of them [127.0.0.1]", kServer},
                &server_.host);
  options_->Add(
      {"--port", "PORT", "of the first replica; 0: the system chooses [8000]", kServer}, 0, 65535,
      &server_.port);
  options_->Add({"--replicas", "N", "servers, each with its own port and cache [1]", kServer}, 1,
                256, &server_.num_replicas);
  options_->Add({"--speed", "FACTOR", "simulated seconds per second [1]", kServer}, 1e-3, 1e6,
                &speed_);
  options_->Add({"--served-model-name", "NAME", "that clients ask for [that of --model]", kServer},
                &service.model);
  options_->AddRepeated(
      {"--lora", "NAME=PATH", "an adapter that clients may ask for; may be given again", kServer},
      [&service](const std::string& text) { return AddLora(text, &service); });
  options_->Add(
      {"--api-key", "KEY", "that clients must send [environment: KVSIM_API_KEY]", kServer},
      &service.api_key);
  options_->Add({.name = "--tokenizer",
                 .unit = "FILE",
                 .help = "a Hugging Face tokenizer.json; without it a byte is a token",
                 .group = kServer,
                 .file = FileUse::kRead},
                &server_.tokenizer);
  options_->Add({"--python", "PROGRAM", "that has the package tokenizers [python3]", kServer},
                &server_.python);
  options_->Add(
      {"--answer", "pseudo|echo", "pseudo words, or the prompt again [pseudo]", kServer}, &answer_);
  options_->Add({"--output-tokens", "LEAST-MOST",
                 "or N: after which answers end by themselves; without it at max_tokens, or after "
                 "128",
                 kServer},
                [&service](const std::string& text) { return SetLengths(text, &service); });
  options_->AddSeconds({"--drain", "TIME", "for which requests may go on after SIGTERM [30s]",
                        kServer},
                       0, kDay, &server_.drain_seconds);
  const char* kEvents = "KV events";
  options_->Add(
      {"--kv-events", "ENDPOINT", "publish them on this ZeroMQ endpoint, as tcp://*:5557", kEvents},
      &server_.events.endpoint);
  options_->Add({.name = "--kv-events-replay",
                 .unit = "ENDPOINT",
                 .help = "where subscribers ask for batches again",
                 .group = kEvents,
                 .needs = "--kv-events"},
                &server_.events.replay_endpoint);
  options_->Add({.name = "--kv-events-topic",
                 .unit = "TOPIC",
                 .help = "of the messages [none]",
                 .group = kEvents,
                 .needs = "--kv-events"},
                &server_.events.topic);
  options_->AddFlag({.name = "--kv-events-bytes",
                     .help = "hashes as all of their bytes, not as 64-bit integers",
                     .group = kEvents,
                     .needs = "--kv-events"},
                    &byte_hashes_);
  options_->Add({"--hash", "NAME",
                 "of blocks: sha256_cbor and xxhash_cbor as vLLM's, sha256, xxh3_128 [sha256_cbor]",
                 kEvents},
                &hash_);
  options_->Add({"--hash-seed", "TEXT",
                 "what vLLM reads from PYTHONHASHSEED [as vLLM without it]", kEvents},
                &hash_seed_);
  const char* kLimits = "Limits";
  options_->Add({"--max-head-bytes", "BYTES", "of a request's head [16384]", kLimits}, 1024,
                1 << 20, &limits.max_head_bytes);
  options_->Add({"--max-body-bytes", "BYTES", "of a request's body [33554432]", kLimits}, 1024,
                int64_t{1} << 31, &limits.max_body_bytes);
  options_->Add({"--max-held-bytes", "BYTES", "of all bodies together [1073741824]", kLimits}, 1024,
                int64_t{1} << 40, &limits.max_held_bytes);
  options_->Add({"--max-connections", "N", "of all replicas together [4096]", kLimits}, 1, 1 << 20,
                &limits.max_connections);
  options_->Add({"--max-prompts", "N", "prompts and answers of one request [128]", kLimits}, 1,
                1 << 16, &service.max_prompts);
  options_->AddSeconds({"--head-timeout", "TIME", "to send a head [10s]", kLimits}, kLeast,
                       kDay, &limits.head_seconds);
  options_->AddSeconds({"--body-timeout", "TIME", "to send a body [30s]", kLimits}, kLeast,
                       kDay, &limits.body_seconds);
  options_->AddSeconds({"--idle-timeout", "TIME", "between two requests of a connection [75s]",
                        kLimits},
                       kLeast, kDay, &limits.idle_seconds);
  options_->AddSeconds({"--write-timeout", "TIME",
                        "for a client to take a piece of an answer [30s]", kLimits},
                       kLeast, kDay, &limits.write_seconds);
  const char* kFaults = "Faults";
  options_->AddList({"--fault-replica", "N",
                     "the faults are those of these replicas, from 0; may be given again [all]",
                     kFaults},
                    0, 255, &server_.fault_replicas);
  options_->AddSeconds({"--fault-delay", "TIME", "before each request is looked at [0s]", kFaults},
                       0, kDay, &service.faults.delay_seconds);
  options_->Add({"--fault-errors", "SHARE", "of requests that get an error 500 [0]", kFaults}, 0.0,
                1.0, &service.faults.error_rate);
  options_->Add({"--fault-cuts", "SHARE",
                 "of requests whose connection is cut in the answer [0]", kFaults},
                0.0, 1.0, &service.faults.cut_rate);
  options_->Add({"--fault-seed", "N", "of these draws [0]", kFaults}, 0, INT64_MAX, &fault_seed_);
  for (const char* group : {"Pool and prefix cache", "Scheduler", "Speculative decoding",
                            "Model, device and time"}) {
    BindOptions(group, options_, &given_);
  }
  BindOption("check_invariants", options_, &given_);
  options_->set_footer(kServeFooter);
}

#ifndef KVBLOCKS_WITH_BOOST

absl::StatusOr<ExitStatus> ServeCommand::Execute() {
  return absl::UnimplementedError(
      "this kvsim was built without Boost; install its headers (Debian: "
      "libboost-dev) and build it again, with CMake and -DKVBLOCKS_BOOST=ON");
}

#else

// Ports of events and of replays, of all replicas.
absl::Status ServeCommand::CheckEndpoints() const {
  const std::string &events = server_.events.endpoint, &replay = server_.events.replay_endpoint;
  if (events.empty()) return absl::OkStatus();
  if (events.find("://") == std::string::npos) {
    return BadOption("--kv-events", events, "an endpoint, like tcp://*:5557");
  }
  if (replay.empty()) return absl::OkStatus();
  for (int64_t a = 0; a < server_.num_replicas; ++a) {
    for (int64_t b = 0; b < server_.num_replicas; ++b) {
      const std::string of_a = EndpointOfReplica(events, a);
      if (of_a != EndpointOfReplica(replay, b) || of_a.substr(of_a.size() - 2) == ":0") continue;
      return BadOption("--kv-events-replay", replay,
                       absl::StrCat("ports of its own: replica ", a, " publishes on ", of_a,
                                    ", where replica ", b, " would answer replays"));
    }
  }
  return absl::OkStatus();
}

// Without --max-model-len: what the model was made for, as far as the pool holds it.
absl::StatusOr<ReplayConfig> WithLongest(const ReplayConfig& given, const ReplayConfig& config) {
  ReplayConfig out = config;
  if (given.has_max_model_len()) return out;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto hardware, FindModelOnDevice(config));
  if (const int64_t most = hardware.model.max_position_embeddings; most > 0) {
    out.set_max_model_len(std::min(out.max_model_len(), most));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto setup, MakeReplaySetup(out));
  const KvCacheConfig& pool = setup.simulation.kv_cache;
  int64_t block_tokens = pool.groups.front().spec.block_size();
  for (const KvCacheGroup& group : pool.groups) {
    block_tokens = std::min(block_tokens, group.spec.block_size());
  }
  const int64_t most = (pool.num_blocks - 1) * block_tokens /
                       static_cast<int64_t>(pool.groups.size());
  out.set_max_model_len(std::max<int64_t>(2, std::min(out.max_model_len(), most)));
  return out;
}

// Completes the server's options.
absl::Status ServeCommand::CheckOptions(const ReplaySetup& setup) {
  if (server_.port > 0 && server_.port + server_.num_replicas - 1 > 65535) {
    return BadOption("--port", absl::StrCat(server_.port),
                     absl::StrCat("a port with ", server_.num_replicas - 1, " more behind it"));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckEndpoints());
  for (const int64_t replica : server_.fault_replicas) {
    if (replica < server_.num_replicas) continue;
    return BadOption("--fault-replica", absl::StrCat(replica),
                     absl::StrCat("a replica from 0 to ", server_.num_replicas - 1));
  }
  server_.events.integer_hashes = !byte_hashes_;
  Service::Options& service = server_.service;
  if (service.model.empty()) service.model = setup.model;
  service.root = setup.model;
  service.version = absl::StrCat(std::string(EngineVersionName(setup.simulation.engine)).substr(5),
                                 ".0+kvsim.", KVBLOCKS_VERSION);
  if (const char* key = std::getenv("KVSIM_API_KEY"); key != nullptr && service.api_key.empty()) {
    service.api_key = key;
  }
  service.max_model_len = setup.simulation.manager.max_model_len;
  service.has_priorities = setup.simulation.scheduler.policy == SchedulingPolicy::kPriority;
  service.echoes = answer_ == "echo";
  service.created = static_cast<int64_t>(std::time(nullptr));
  service.seed = static_cast<uint64_t>(fault_seed_);
  for (const LoraModule& lora : service.loras) {
    if (lora.name == service.model) {
      return BadOption("--lora", lora.name, "a name other than the model's");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitStatus> ServeCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto hash,
                            OfOption("--hash", "hash_algorithm", ParseHashAlgorithm(hash_)));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto defaults, EffectiveConfig(ReplayConfig(), given_));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, WithLongest(given_, defaults));
  const auto make_setup = [&]() -> absl::StatusOr<ReplaySetup> {
    KVBLOCKS_ASSIGN_OR_RETURN(auto made, MakeReplaySetup(config));
    made.simulation.manager.hash_algorithm = hash;
    made.simulation.manager.hash_seed = hash_seed_;
    return made;
  };
  KVBLOCKS_ASSIGN_OR_RETURN(const auto setup, make_setup());
  KVBLOCKS_RETURN_IF_ERROR(CheckOptionUses(defaults, given_));
  KVBLOCKS_RETURN_IF_ERROR(CheckOptions(setup));
  const auto make_engine = [&]() -> absl::StatusOr<LiveEngine::Options> {
    KVBLOCKS_ASSIGN_OR_RETURN(auto fresh, make_setup());
    ServerMetrics::Options metrics = ServerMetricsOf(fresh);
    metrics.model = server_.service.model;
    if (fresh.tiers) fresh.tiers->leave_out_misses = true;
    KVBLOCKS_ASSIGN_OR_RETURN(auto tiers, MakeTiers(fresh));
    return LiveEngine::Options{.simulation = fresh.simulation,
                               .step_time = std::move(fresh.step_time),
                               .tiers = std::move(tiers),
                               .speed = speed_,
                               .metrics = std::move(metrics),
                               .events = {}};
  };
  KVBLOCKS_RETURN_IF_ERROR(
      RunServer(server_, make_engine, [&](const std::vector<ReplicaAddress>& replicas) {
        const KvCacheConfig& pool = setup.simulation.kv_cache;
        std::string text = absl::StrCat(
            "kvsim serve: ", setup.model, " on ", setup.device, " as ", server_.service.model, "\n",
            pool.num_blocks, " blocks of ", pool.groups.front().spec.block_size(),
            " tokens, at most ", server_.service.max_model_len,
            " tokens per request\ntime: ", std::string(setup.step_time->source()), "\n");
        for (const ReplicaAddress& replica : replicas) {
          absl::StrAppend(&text, "http://", server_.host, ":", replica.port,
                          replica.events.empty() ? "" : "  events ", replica.events,
                          replica.replay.empty() ? "" : "  replay ", replica.replay, "\n");
        }
        WriteStdout(text);
        std::fflush(stdout);
      }));
  return kDone;
}

#endif

}  // namespace

std::unique_ptr<Command> AddServeCommand(OptionParser* program) {
  return std::make_unique<ServeCommand>(program);
}

}  // namespace kvblocks::sim
