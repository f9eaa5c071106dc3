// kvsim verify: a replay whose steps are done with real tensors, and the first wrong number.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kvblocks/attention_cpu.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "absl/cleanup/cleanup.h"
#include "attention/cuda/host_tensor_ops.h"
#include "kvblocks/attention_cuda.h"
#endif
#include "checks/status_macros.h"
#include "sim/commands/commands.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/commands/replay_setup.h"
#include "sim/commands/report_output.h"
#include "sim/report/human_table.h"
#include "sim/report/verification.pb.h"
#include "sim/simulation.h"
#include "sim/verify/verifying_observer.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::report::v1::Verification;

constexpr const char* kReference = "cpu_reference";
constexpr const char* kCuda = "cuda";
constexpr int64_t kMaxLayersPerGroup = 64;
constexpr int64_t kMaxThreads = 1024;

constexpr const char* kVerifyFooter =
    R"(Replays the trace with the options of kvsim replay, and does each step with tensors: every token
writes a key and a value through the slot mapping, with small heads, and queries attend through the
block tables. Beside the pool stands a plain list of keys and values per request; attention over it
must give the same numbers. A prefix hit must find what another request with that prefix wrote, all
of it, bit by bit. Blocks are filled with NaN as soon as their content is void: when they are handed
out anew, and when they are freed without being cached. So a fault of block manager, slot mapping,
window or sink shows as a wrong number, in the step in which it happens; the message names request,
layer, position and block.

Each KV-cache group of the model is attended to by one small layer: full attention, windows, chunks,
latent rows (also compressed ones), sink tokens, cross attention. What of an encoder's input is
written in a request's first step must be there, bit by bit, in each later one. Layers that keep a
state (Mamba) write one at the end of each step, and each step must find the state behind the tokens
before it. All rows are written and all hits are read back, but with --rows only so many queries
attend per step and layer, half of them for requests whose block tables changed, all in turn. The
report says how many did.

The small layers lie in memory as the model's do by its plan (--layout=uniform, slab or native), and
are attended to where the planner puts them.

With --tier, blocks are copied to the slots of tiers and back, so that what was loaded must be what was
once stored for that prefix. Every slot takes memory.

Examples
  kvsim verify                                          the workload that comes with kvsim
  kvsim verify trace.jsonl.gz --limit=200 --rows=0      all rows of 200 requests
  kvsim verify trace.jsonl.gz --model=gpt-oss-20b --num-blocks=3000 --sample=0.05
  kvsim verify trace.jsonl.gz --model=deepseek-v3 --max-tokens=2000000 --rows=8
  kvsim verify --model=qwen3.5-35b-a3b --json | jq .failure
  kvsim verify trace.jsonl.gz --device=cuda             this machine's GPU does the paged side

Exit status: 0 no wrong number, 1 a wrong number, 2 bad input or options, 3 no progress, 4 internal
check failed.)";

// Largest difference of values in [-2, 2): kernels of a GPU have float32 exponentials of their own.
double ToleranceOf(const std::string& backend) {
  return backend == kCuda ? 6e-5 : VerifyingObserver::Options().tolerance;
}

// The GPU's operations on tensors in host memory.
#ifdef KVBLOCKS_WITH_CUDA
absl::StatusOr<std::unique_ptr<attention::cuda::HostTensorOps>> OpenCuda() {
  return attention::cuda::HostTensorOps::Create(&attention::Cuda(), {});
}
#endif

std::string Line(const char* label, const std::string& text) {
  return absl::StrFormat("%-20s %s\n", label, text);
}

class VerifyCommand final : public Command {
 public:
  explicit VerifyCommand(OptionParser* program)
      : Command(program->AddCommand("verify", "Replay a trace with real tensors and check them")),
        input_(options_) {
    const char* kVerify = "Verification";
    options_->Add({"--rows", "N", "query rows attended per step and layer; 0: all [32]", kVerify},
                  0, int64_t{1} << 40, &rows_);
    options_->Add(
        {"--max-tokens", "TOKENS", "stop when so many are computed; 0: never [0]", kVerify}, 0,
        int64_t{1} << 60, &max_tokens_);
    options_->Add({"--layers-per-group", "N", "small layers per KV-cache group [1]", kVerify}, 1,
                  kMaxLayersPerGroup, &layers_);
    options_->AddFlag(
        {.name = "--poison", .help = "fill void blocks with NaN [on]", .group = kVerify},
        [this](bool value) { poison_ = value; });
    options_->Add({"--backend", "cpu|cpu_reference|cuda", "does the paged side [cpu]", kVerify},
                  &backend_);
    options_->Add({"--threads", "N", "0: one per processor [0]", kVerify}, 0, kMaxThreads,
                  &threads_);
    output_.AddJson(options_, "Output");
    output_.AddTerminal(options_, "Output", "no progress line");
    input_.AddOptions();
    options_->set_footer(kVerifyFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  Verification Found(const std::string& engine, const VerifyingObserver& observer,
                     const SimulationResult& result, bool is_partial) const;
  std::string Report(const Verification& found, double seconds) const;

  ReplayInput input_;
  int64_t rows_ = 32, max_tokens_ = 0, layers_ = 1, threads_ = 0;
  std::string backend_ = "cpu";
  bool poison_ = true;
  ReportOutput output_;
};

Verification VerifyCommand::Found(const std::string& engine, const VerifyingObserver& observer,
                                  const SimulationResult& result, bool is_partial) const {
  const attention::VerifierStats& stats = observer.verifier()->stats();
  Verification found;
  found.set_schema_version(1);
  found.set_good(observer.status().ok());
  found.set_engine(engine);
  found.set_backend(backend_);
  found.set_layout(std::string(LayoutName(observer.layout())));
  for (const attention::VerifiedGroup& group : observer.verifier()->groups()) {
    auto* const out = found.add_groups();
    out->set_name(group.name);
    out->set_checks(group.num_layers == 0 ? "nothing" : group.is_state ? "states" : "attention");
    out->set_layers(group.num_layers);
    out->set_planned_rows(observer.row_formats()[static_cast<size_t>(found.groups_size() - 1)]);
  }
  found.set_requests_arrived(result.num_arrived);
  found.set_requests_finished(result.num_finished);
  found.set_preemptions(result.scheduler.num_preemptions);
  found.set_stopped_at_max_tokens(is_partial);
  found.set_steps(stats.num_steps);
  found.set_tokens(stats.num_tokens);
  found.set_rows_written(stats.num_rows_written);
  found.set_queries(stats.num_tokens * observer.num_layers());
  found.set_queries_checked(stats.num_rows_attended);
  found.set_keys_attended(stats.num_keys_attended);
  found.set_joint_queries_checked(stats.num_joint_rows_attended);
  found.set_hit_tokens(stats.num_hit_tokens);
  found.set_rows_read_back(stats.num_rows_read_back);
  found.set_states_read(stats.num_states_read);
  found.set_states_written(stats.num_states_written);
  found.set_blocks_copied(stats.num_blocks_copied);
  found.set_blocks_poisoned(poison_ ? stats.num_blocks_poisoned : 0);
  found.set_encoder_rows_read(stats.num_encoder_rows_read);
  found.set_encoder_tokens(result.scheduler.num_encoder_tokens);
  found.set_loads(result.scheduler.num_loads);
  found.set_loaded_tokens(result.scheduler.num_external);
  found.set_max_error(stats.max_error);
  found.set_tolerance(ToleranceOf(backend_));
  if (const auto& failure = observer.verifier()->failure()) {
    auto* const out = found.mutable_failure();
    out->set_step(failure->step);
    out->set_request(failure->request);
    out->set_layer(failure->layer);
    out->set_layer_name(failure->layer_name);
    out->set_position(failure->position);
    out->set_key_position(failure->key_position);
    out->set_block(failure->block);
    out->set_message(failure->text);
  }
  return found;
}

std::string VerifyCommand::Report(const Verification& found, double seconds) const {
  const auto number = [](int64_t value) { return WithThousands(value); };
  int64_t num_layers = 0;
  std::string text = Line("verified", found.good() ? "no wrong number" : "failed");
  text += Line("engine", found.engine());
  for (int g = 0; g < found.groups_size(); ++g) {
    text += Line(g == 0 ? "groups" : "", absl::StrCat(g, ": ", found.groups(g).name()));
    if (found.groups(g).checks() == "attention") num_layers += found.groups(g).layers();
  }
  std::vector<std::string> planned;
  for (const auto& group : found.groups()) {
    if (std::find(planned.begin(), planned.end(), group.planned_rows()) == planned.end()) {
      planned.push_back(group.planned_rows());
    }
  }
  text += Line("memory", absl::StrCat(found.layout(), " layout, rows of fp32; the plan's are ",
                                      absl::StrJoin(planned, ", ")));
  text += Line("requests", absl::StrCat(number(found.requests_arrived()), " arrived, ",
                                        number(found.requests_finished()), " finished, ",
                                        number(found.preemptions()), " preemptions",
                                        found.stopped_at_max_tokens() ? "; stopped by --max-tokens"
                                                                      : ""));
  text += Line("steps", number(found.steps()));
  text += Line("tokens written", absl::StrCat(number(found.tokens()), ", ",
                                              number(found.rows_written()), " rows in ", num_layers,
                                              num_layers == 1 ? " layer" : " layers"));
  text += Line("rows checked",
               absl::StrFormat("%s of %s (%.2f %%), over %s keys", number(found.queries_checked()),
                               number(found.queries()),
                               found.queries() == 0
                                   ? 0.0
                                   : 100.0 * static_cast<double>(found.queries_checked()) /
                                         static_cast<double>(found.queries()),
                               number(found.keys_attended())));
  if (found.joint_queries_checked() > 0) {
    text += Line("joint attention",
                 absl::StrCat(number(found.joint_queries_checked()),
                              " rows over a window and compressed rows, or chosen rows"));
  }
  if (found.states_written() > 0) {
    text += Line("states", absl::StrCat(number(found.states_written()), " written, ",
                                        number(found.states_read()), " read back"));
  }
  if (found.encoder_tokens() > 0) {
    text += Line("encoder", absl::StrCat(number(found.encoder_tokens()), " tokens of its inputs, ",
                                         number(found.encoder_rows_read()),
                                         " rows read back in later steps"));
  }
  if (found.loads() > 0) {
    text += Line("loaded", absl::StrCat(number(found.loaded_tokens()), " tokens in ",
                                        number(found.loads()), " loads from tiers"));
  }
  text += Line("hits read back", absl::StrCat(number(found.hit_tokens()), " tokens, ",
                                              number(found.rows_read_back()), " rows in reach"));
  if (found.blocks_copied() > 0) text += Line("blocks copied", number(found.blocks_copied()));
  text += Line("blocks poisoned", poison_ ? number(found.blocks_poisoned()) : "none (--no-poison)");
  text += Line("max error",
               absl::StrFormat("%.2g, of at most %.2g", found.max_error(), found.tolerance()));
  text += Line("backend", found.backend());
  text += Line("time", absl::StrFormat("%.1f s", seconds));
  return text;
}

absl::StatusOr<ExitStatus> VerifyCommand::Execute() {
  const auto started = std::chrono::steady_clock::now();
  KVBLOCKS_ASSIGN_OR_RETURN(auto config, input_.Configure());
  // The devices of the catalogue say how long steps take; cuda is this machine's.
  if (config.device() == kCuda) {
    config.set_device(EffectiveConfig({}, {})->device());
    backend_ = kCuda;
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto setup, MakeReplaySetup(config));
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenReplayTrace(config, setup.reader));

  attention::ThreadPool threads(static_cast<int>(threads_));
  VerifyingObserver::Options options;
  options.ops = backend_ == kReference ? &attention::CpuReference() : &attention::Cpu();
#ifdef KVBLOCKS_WITH_CUDA
  std::unique_ptr<attention::cuda::HostTensorOps> cuda;
#endif
  if (backend_ == kCuda) {
#ifdef KVBLOCKS_WITH_CUDA
    KVBLOCKS_ASSIGN_OR_RETURN(cuda, OpenCuda());
    options.ops = cuda.get();
    options.on_memory = [&cuda](absl::Span<std::byte> memory) { return cuda->Share(memory); };
#else
    return absl::UnimplementedError(
        "--backend=cuda: this kvsim was built without CUDA; ./kvsim verify "
        "--device=cuda builds one with it, where there is a CUDA compiler "
        "(tools/cuda_toolkit.sh installs one)");
#endif
  }
  options.tolerance = ToleranceOf(backend_);
  options.threads = &threads;
  options.poison = poison_;
  options.layers_per_group = layers_;
  options.max_rows_per_step = rows_;
  options.seed = config.seed();
  if (setup.layout == LayoutName(PoolLayout::kSlab)) options.layout = PoolLayout::kSlab;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto tiers, MakeTiers(setup));
  options.tiers = tiers.get();
  if (tiers != nullptr && tiers->NeedsEvents()) {
    return absl::InvalidArgumentError(
        "--tier: got store=on-evict in the first tier, expected another one: what the "
        "device evicts is known when its block has been written anew");
  }
  VerifyingObserver observer(options);
  if (tiers != nullptr) {
    tiers->set_on_copies([&](absl::Span<const KvCopy> copies) { observer.OnCopies(copies); });
  }
#ifdef KVBLOCKS_WITH_CUDA
  // Unmaps the observer's memory before that is freed.
  const absl::Cleanup close_cuda = [&cuda] { cuda.reset(); };
#endif
  // A wrong number ends the run in the iteration in which it is found.
  setup.simulation.progress_interval = 1;
  KVBLOCKS_ASSIGN_OR_RETURN(auto simulation,
                            MakeSimulation(setup, reader.get(), {&observer}, tiers.get()));
  ProgressLine progress(output_.quiet());
  bool is_partial = false;
  simulation->set_progress([&](const SimulationProgress& p) {
    if (!observer.status().ok()) return false;
    const attention::VerifierStats& stats = observer.verifier()->stats();
    is_partial = max_tokens_ > 0 && stats.num_tokens >= max_tokens_;
    progress.Update(p, stats.num_hit_tokens, stats.num_hit_tokens + stats.num_tokens);
    return !is_partial;
  });
  const absl::Status status = simulation->Run();
  progress.Clear();
  PrintWarnings(*reader);
  const bool is_wrong = observer.status().code() == absl::StatusCode::kDataLoss;
  if (!observer.status().ok() && !is_wrong) return observer.status();
  if (!is_wrong && !is_partial && !status.ok()) return status;
  KVBLOCKS_RETURN_IF_ERROR(CheckSomethingRan(simulation->result(), config, setup));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (is_wrong) {
    std::fprintf(stderr, "kvsim verify: %s\n", std::string(observer.status().message()).c_str());
  }
  const Verification found = Found(config.engine(), observer, simulation->result(), is_partial);
  const ExitStatus printed =
      output_.Print("verify", found, {.table = [&](bool) { return Report(found, seconds); }});
  return printed == kDone && is_wrong ? kMissed : printed;
}

}  // namespace

std::unique_ptr<Command> AddVerifyCommand(OptionParser* program) {
  return std::make_unique<VerifyCommand>(program);
}

}  // namespace kvblocks::sim
