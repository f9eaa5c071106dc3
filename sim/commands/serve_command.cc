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
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/replay_exports.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/version.h"
#ifdef KVBLOCKS_WITH_BOOST
#include "kvblocks/sim/serve/run_server.h"
#endif

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

struct Asked {
  ReplayConfig config;
  std::string host = "127.0.0.1", speed = "1", name, api_key, tokenizer, python = "python3";
  std::string answer = "pseudo", output_tokens;
  int64_t port = 8000, num_replicas = 1;
  std::vector<std::string> loras;
  std::string events, replay, topic, hash = "sha256_cbor";
  std::optional<std::string> hash_seed;
  bool byte_hashes = false;
  int64_t max_head = 16 << 10, max_body = int64_t{32} << 20, max_held = int64_t{1} << 30;
  int64_t max_connections = 4096, max_prompts = 128;
  std::string head_timeout = "10s", body_timeout = "30s", idle_timeout = "75s";
  std::string write_timeout = "30s", drain = "30s";
  std::string fault_delay = "0s", fault_errors = "0", fault_cuts = "0";
  int64_t fault_seed = 0;
  std::vector<std::string> fault_replicas;
};

class ServeCommand final : public Command {
 public:
  explicit ServeCommand(OptionParser* program);
  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override;

 private:
  OptionParser* options_;
  Asked asked_;
};

ServeCommand::ServeCommand(OptionParser* program)
    : options_(program->AddCommand("serve", "Serve the OpenAI API, simulating the engine")) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  const char* kServer = "Server";
  options_->Add({.name = "--host",
                 .unit = "ADDRESS",
                 .help = "to listen on; 0.0.0.0 is all of them [127.0.0.1]",
                 .group = kServer},
                &asked_.host);
  options_->Add({.name = "--port",
                 .unit = "PORT",
                 .help = "of the first replica; 0: the system chooses [8000]",
                 .group = kServer},
                0, 65535, &asked_.port);
  options_->Add({.name = "--replicas",
                 .unit = "N",
                 .help = "servers, each with its own port and cache [1]",
                 .group = kServer},
                1, 256, &asked_.num_replicas);
  options_->Add({.name = "--speed",
                 .unit = "FACTOR",
                 .help = "simulated seconds per second [1]",
                 .group = kServer},
                &asked_.speed);
  options_->Add({.name = "--served-model-name",
                 .unit = "NAME",
                 .help = "that clients ask for [that of --model]",
                 .group = kServer},
                &asked_.name);
  options_->AddRepeated({.name = "--lora",
                         .unit = "NAME=PATH",
                         .help = "an adapter that clients may ask for; may be given again",
                         .group = kServer},
                        &asked_.loras);
  options_->Add({.name = "--api-key",
                 .unit = "KEY",
                 .help = "that clients must send [environment: KVSIM_API_KEY]",
                 .group = kServer},
                &asked_.api_key);
  options_->Add({.name = "--tokenizer",
                 .unit = "FILE",
                 .help = "a Hugging Face tokenizer.json; without it a byte is a token",
                 .group = kServer,
                 .file = FileUse::kRead},
                &asked_.tokenizer);
  options_->Add({.name = "--python",
                 .unit = "PROGRAM",
                 .help = "that has the package tokenizers [python3]",
                 .group = kServer},
                &asked_.python);
  options_->Add({.name = "--answer",
                 .unit = "pseudo|echo",
                 .help = "pseudo words, or the prompt again [pseudo]",
                 .group = kServer},
                &asked_.answer);
  options_->Add({.name = "--output-tokens",
                 .unit = "LEAST-MOST",
                 .help = "or N: after which answers end by themselves; without it at max_tokens, or after 128",
                 .group = kServer},
                &asked_.output_tokens);
  options_->Add({.name = "--drain",
                 .unit = "TIME",
                 .help = "for which requests may go on after SIGTERM [30s]",
                 .group = kServer},
                &asked_.drain);
  const char* kEvents = "KV events";
  options_->Add({.name = "--kv-events",
                 .unit = "ENDPOINT",
                 .help = "publish them on this ZeroMQ endpoint, as tcp://*:5557",
                 .group = kEvents},
                &asked_.events);
  options_->Add({.name = "--kv-events-replay",
                 .unit = "ENDPOINT",
                 .help = "where subscribers ask for batches again",
                 .group = kEvents,
                 .needs = "--kv-events"},
                &asked_.replay);
  options_->Add({.name = "--kv-events-topic",
                 .unit = "TOPIC",
                 .help = "of the messages [none]",
                 .group = kEvents,
                 .needs = "--kv-events"},
                &asked_.topic);
  options_->AddFlag({.name = "--kv-events-bytes",
                     .help = "hashes as all of their bytes, not as 64-bit integers",
                     .group = kEvents,
                     .needs = "--kv-events"},
                    &asked_.byte_hashes);
  options_->Add({.name = "--hash",
                 .unit = "NAME",
                 .help = "of blocks: sha256_cbor and xxhash_cbor as vLLM's, sha256, xxh3_128 [sha256_cbor]",
                 .group = kEvents},
                &asked_.hash);
  options_->Add({.name = "--hash-seed",
                 .unit = "TEXT",
                 .help = "what vLLM reads from PYTHONHASHSEED [as vLLM without it]",
                 .group = kEvents},
                &asked_.hash_seed);
  const char* kLimits = "Limits";
  options_->Add({.name = "--max-head-bytes",
                 .unit = "BYTES",
                 .help = "of a request's head [16384]",
                 .group = kLimits},
                1024, 1 << 20, &asked_.max_head);
  options_->Add({.name = "--max-body-bytes",
                 .unit = "BYTES",
                 .help = "of a request's body [33554432]",
                 .group = kLimits},
                1024, int64_t{1} << 31, &asked_.max_body);
  options_->Add({.name = "--max-held-bytes",
                 .unit = "BYTES",
                 .help = "of all bodies together [1073741824]",
                 .group = kLimits},
                1024, kMaxBytes, &asked_.max_held);
  options_->Add({.name = "--max-connections",
                 .unit = "N",
                 .help = "of all replicas together [4096]",
                 .group = kLimits},
                1, 1 << 20, &asked_.max_connections);
  options_->Add({.name = "--max-prompts",
                 .unit = "N",
                 .help = "prompts and answers of one request [128]",
                 .group = kLimits},
                1, 1 << 16, &asked_.max_prompts);
  options_->Add({.name = "--head-timeout",
                 .unit = "TIME",
                 .help = "to send a head [10s]",
                 .group = kLimits},
                &asked_.head_timeout);
  options_->Add({.name = "--body-timeout",
                 .unit = "TIME",
                 .help = "to send a body [30s]",
                 .group = kLimits},
                &asked_.body_timeout);
  options_->Add({.name = "--idle-timeout",
                 .unit = "TIME",
                 .help = "between two requests of a connection [75s]",
                 .group = kLimits},
                &asked_.idle_timeout);
  options_->Add({.name = "--write-timeout",
                 .unit = "TIME",
                 .help = "for a client to take a piece of an answer [30s]",
                 .group = kLimits},
                &asked_.write_timeout);
  const char* kFaults = "Faults";
  options_->AddRepeated({.name = "--fault-replica",
                         .unit = "N",
                         .help = "the faults are those of this replica, from 0; may be given again [all]",
                         .group = kFaults},
                        &asked_.fault_replicas);
  options_->Add({.name = "--fault-delay",
                 .unit = "TIME",
                 .help = "before each request is looked at [0s]",
                 .group = kFaults},
                &asked_.fault_delay);
  options_->Add({.name = "--fault-errors",
                 .unit = "SHARE",
                 .help = "of requests that get an error 500 [0]",
                 .group = kFaults},
                &asked_.fault_errors);
  options_->Add({.name = "--fault-cuts",
                 .unit = "SHARE",
                 .help = "of requests whose connection is cut in the answer [0]",
                 .group = kFaults},
                &asked_.fault_cuts);
  options_->Add({.name = "--fault-seed",
                 .unit = "N",
                 .help = "of these draws [0]",
                 .group = kFaults},
                0, INT64_MAX, &asked_.fault_seed);
  for (const char* group : {"Pool and prefix cache", "Scheduler", "Speculative decoding",
                            "Model, device and time"}) {
    BindOptions(group, options_, &asked_.config);
  }
  BindOption("check_invariants", options_, &asked_.config);
  options_->set_footer(kServeFooter);
}

#ifndef KVBLOCKS_WITH_BOOST

ExitStatus ServeCommand::Run() {
  return Fail("serve", absl::UnimplementedError(
                           "this kvsim was built without Boost; install its headers (Debian: "
                           "libboost-dev) and build it again, with CMake and -DKVBLOCKS_BOOST=ON"));
}

#else

absl::Status ReadSeconds(const char* option, const std::string& text, double* out) {
  const auto time = ParseDuration(text);
  if (!time.ok() || *time > 24 * 3600 * kSecond) {
    return BadOption(option, text, "a time with a unit, like 500ms or 10s, of at most 24h");
  }
  *out = static_cast<double>(*time) / static_cast<double>(kSecond);
  return absl::OkStatus();
}

absl::Status ReadTimeout(const char* option, const std::string& text, double* out) {
  absl::Status status = ReadSeconds(option, text, out);
  if (status.ok() && *out < 0.001) return BadOption(option, text, "at least 1ms");
  return status;
}

absl::Status ReadShare(const char* option, const std::string& text, double* out) {
  if (absl::SimpleAtod(text, out) && *out >= 0 && *out <= 1) return absl::OkStatus();
  return BadOption(option, text, "a share from 0 to 1");
}

absl::Status ReadLengthRange(const std::string& text, Service::Options* out) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  int64_t least, most;
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &least) ||
      !absl::SimpleAtoi(parts.back(), &most) || least < 1 || most < least || most > INT32_MAX) {
    return BadOption("--output-tokens", text, "a number of tokens like 200, or two like 50-400");
  }
  out->least_answer_tokens = least;
  out->most_answer_tokens = most;
  return absl::OkStatus();
}

absl::Status ReadLoras(const std::vector<std::string>& texts, Service::Options* out) {
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return BadOption("--lora", text, "NAME=PATH, like sql=/adapters/sql");
    }
    for (const LoraModule& known : out->loras) {
      if (known.name == parts[0]) return BadOption("--lora", text, "each name once");
    }
    if (parts[0] == out->model) return BadOption("--lora", text, "a name other than the model's");
    out->loras.push_back({.name = parts[0], .path = parts[1]});
  }
  return absl::OkStatus();
}

absl::Status ReadFaultReplicas(const Asked& asked, ServerOptions* out) {
  for (const std::string& text : asked.fault_replicas) {
    int64_t replica;
    if (!absl::SimpleAtoi(text, &replica) || replica < 0 || replica >= asked.num_replicas) {
      return BadOption("--fault-replica", text,
                      absl::StrCat("a replica from 0 to ", asked.num_replicas - 1));
    }
    out->fault_replicas.push_back(replica);
  }
  return absl::OkStatus();
}

// Ports of events and of replays, of all replicas.
absl::Status CheckEndpoints(const Asked& asked) {
  if (asked.events.empty()) return absl::OkStatus();
  if (asked.events.find("://") == std::string::npos) {
    return BadOption("--kv-events", asked.events, "an endpoint, like tcp://*:5557");
  }
  if (asked.replay.empty()) return absl::OkStatus();
  for (int64_t a = 0; a < asked.num_replicas; ++a) {
    for (int64_t b = 0; b < asked.num_replicas; ++b) {
      const std::string events = EndpointOfReplica(asked.events, a);
      if (events != EndpointOfReplica(asked.replay, b) || events.substr(events.size() - 2) == ":0") {
        continue;
      }
      return BadOption("--kv-events-replay", asked.replay,
                      absl::StrCat("ports of its own: replica ", a, " publishes on ", events,
                                   ", where replica ", b, " would answer replays"));
    }
  }
  return absl::OkStatus();
}

// Without --max-model-len: what the model was made for, as far as the pool holds it.
absl::StatusOr<ReplayConfig> WithLongest(const ReplayConfig& given, const ReplayConfig& config) {
  ReplayConfig out = config;
  if (given.has_max_model_len()) return out;
  const auto hardware = FindModelOnDevice(config);
  if (!hardware.ok()) return hardware.status();
  if (const int64_t most = hardware->model.max_position_embeddings; most > 0) {
    out.set_max_model_len(std::min(out.max_model_len(), most));
  }
  const auto setup = MakeReplaySetup(out);
  if (!setup.ok()) return setup.status();
  const KvCacheConfig& pool = setup->simulation.kv_cache;
  int64_t block_tokens = pool.groups.front().spec.block_size();
  for (const KvCacheGroup& group : pool.groups) {
    block_tokens = std::min(block_tokens, group.spec.block_size());
  }
  const int64_t most = (pool.num_blocks - 1) * block_tokens /
                       static_cast<int64_t>(pool.groups.size());
  out.set_max_model_len(std::max<int64_t>(2, std::min(out.max_model_len(), most)));
  return out;
}

absl::StatusOr<ServerOptions> MakeServerOptions(const Asked& asked, const ReplaySetup& setup) {
  ServerOptions out;
  out.host = asked.host;
  out.port = asked.port;
  out.num_replicas = asked.num_replicas;
  if (asked.port > 0 && asked.port + asked.num_replicas - 1 > 65535) {
    return BadOption("--port", absl::StrCat(asked.port),
                    absl::StrCat("a port with ", asked.num_replicas - 1, " more behind it"));
  }
  if (absl::Status status = CheckEndpoints(asked); !status.ok()) return status;
  out.limits.max_head_bytes = asked.max_head;
  out.limits.max_body_bytes = asked.max_body;
  out.limits.max_held_bytes = asked.max_held;
  out.limits.max_connections = asked.max_connections;
  out.tokenizer = asked.tokenizer;
  out.python = asked.python;
  out.events = {.endpoint = asked.events,
                .replay_endpoint = asked.replay,
                .topic = asked.topic,
                .integer_hashes = !asked.byte_hashes};
  Service::Options& service = out.service;
  service.model = asked.name.empty() ? setup.model : asked.name;
  service.root = setup.model;
  service.version = absl::StrCat(std::string(EngineVersionName(setup.simulation.engine)).substr(5),
                                 ".0+kvsim.", KVBLOCKS_VERSION);
  service.api_key = asked.api_key;
  if (const char* key = std::getenv("KVSIM_API_KEY"); key != nullptr && service.api_key.empty()) {
    service.api_key = key;
  }
  service.max_model_len = setup.simulation.manager.max_model_len;
  service.has_priorities = setup.simulation.scheduler.policy == SchedulingPolicy::kPriority;
  if (asked.answer != "pseudo" && asked.answer != "echo") {
    return BadOption("--answer", asked.answer, "pseudo or echo");
  }
  service.echoes = asked.answer == "echo";
  service.max_prompts = asked.max_prompts;
  service.created = static_cast<int64_t>(std::time(nullptr));
  service.seed = static_cast<uint64_t>(asked.fault_seed);
  absl::Status status = ReadLoras(asked.loras, &service);
  status.Update(ReadLengthRange(asked.output_tokens, &service));
  status.Update(ReadTimeout("--head-timeout", asked.head_timeout, &out.limits.head_seconds));
  status.Update(ReadTimeout("--body-timeout", asked.body_timeout, &out.limits.body_seconds));
  status.Update(ReadTimeout("--idle-timeout", asked.idle_timeout, &out.limits.idle_seconds));
  status.Update(ReadTimeout("--write-timeout", asked.write_timeout, &out.limits.write_seconds));
  status.Update(ReadSeconds("--drain", asked.drain, &out.drain_seconds));
  status.Update(ReadSeconds("--fault-delay", asked.fault_delay, &service.faults.delay_seconds));
  status.Update(ReadShare("--fault-errors", asked.fault_errors, &service.faults.error_rate));
  status.Update(ReadShare("--fault-cuts", asked.fault_cuts, &service.faults.cut_rate));
  status.Update(ReadFaultReplicas(asked, &out));
  if (!status.ok()) return status;
  return out;
}

ExitStatus ServeCommand::Run() {
  double speed;
  if (!absl::SimpleAtod(asked_.speed, &speed) || !(speed >= 1e-3 && speed <= 1e6)) {
    return Fail("serve", BadOption("--speed", asked_.speed, "a number from 0.001 to 1000000"));
  }
  const auto hash = ParseHashAlgorithm(asked_.hash);
  if (!hash.ok()) return Fail("serve", OfOption("--hash", "hash_algorithm", hash.status()));
  auto defaults = EffectiveConfig(ReplayConfig(), asked_.config);
  if (!defaults.ok()) return Fail("serve", defaults.status());
  const auto config = WithLongest(asked_.config, *defaults);
  if (!config.ok()) return Fail("serve", config.status());
  const auto make_setup = [&]() -> absl::StatusOr<ReplaySetup> {
    auto setup = MakeReplaySetup(*config);
    if (!setup.ok()) return setup.status();
    KvCacheManagerOptions& manager = setup->simulation.manager;
    manager.hash_algorithm = *hash;
    manager.hash_seed = asked_.hash_seed;
    return setup;
  };
  const auto setup = make_setup();
  if (!setup.ok()) return Fail("serve", setup.status());
  if (absl::Status status = CheckOptionUses(*defaults, asked_.config); !status.ok()) {
    return Fail("serve", status);
  }
  const auto options = MakeServerOptions(asked_, *setup);
  if (!options.ok()) return Fail("serve", options.status());
  const auto make_engine = [&]() -> absl::StatusOr<LiveEngine::Options> {
    auto fresh = make_setup();
    if (!fresh.ok()) return fresh.status();
    ServerMetrics::Options metrics = ServerMetricsOf(*fresh);
    metrics.model = options->service.model;
    if (fresh->tiers) fresh->tiers->leave_out_misses = true;
    auto tiers = MakeTiers(*fresh);
    if (!tiers.ok()) return tiers.status();
    return LiveEngine::Options{.simulation = fresh->simulation,
                               .step_time = std::move(fresh->step_time),
                               .tiers = *std::move(tiers),
                               .speed = speed,
                               .metrics = std::move(metrics),
                               .events = {}};
  };
  const absl::Status status = RunServer(
      *options, make_engine, [&](const std::vector<ReplicaAddress>& replicas) {
        const KvCacheConfig& pool = setup->simulation.kv_cache;
        std::string text = absl::StrCat(
            "kvsim serve: ", setup->model, " on ", setup->device, " as ", options->service.model,
            "\n", pool.num_blocks, " blocks of ", pool.groups.front().spec.block_size(),
            " tokens, at most ", options->service.max_model_len, " tokens per request\ntime: ",
            std::string(setup->step_time->source()), "\n");
        for (const ReplicaAddress& replica : replicas) {
          absl::StrAppend(&text, "http://", options->host, ":", replica.port,
                          replica.events.empty() ? "" : "  events ", replica.events,
                          replica.replay.empty() ? "" : "  replay ", replica.replay, "\n");
        }
        WriteStdout(text);
        std::fflush(stdout);
      });
  return status.ok() ? kDone : Fail("serve", status);
}

#endif

}  // namespace

std::unique_ptr<Command> AddServeCommand(OptionParser* program) {
  return std::make_unique<ServeCommand>(program);
}

}  // namespace kvblocks::sim
