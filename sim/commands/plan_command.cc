// kvsim plan: what a model's layers store, how they share a pool, and how much it holds.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/request_footprint.h"
#include "sim/commands/commands.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/report_output.h"
#include "sim/report/human_table.h"
#include "sim/report/report_json.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

namespace {

namespace pb = ::kvblocks::report::v1;
constexpr int64_t kDefaultMaxLen = 131072;  // of a model that does not state its own
constexpr int64_t kMaxRanks = 64;
constexpr int64_t kSmallStep = 2048;  // tokens of a step, where that is tried

std::string Format(double value) { return absl::StrFormat("%.2f", value); }

std::string Text(std::string_view text) { return std::string(text); }

bool KeepsEveryToken(const KvCacheSpec& spec) {
  switch (spec.kind()) {
    case KvCacheSpecKind::kFullAttention:
    case KvCacheSpecKind::kMlaAttention:
    case KvCacheSpecKind::kSinkFullAttention:
      return true;
    default:
      return false;
  }
}

double BytesPerToken(const KvCacheSpec& spec) {
  return static_cast<double>(spec.page_bytes()) / static_cast<double>(spec.block_size());
}

// Layer caches with equal specs, in registration order.
void FillLayerKinds(const std::vector<LayerCache>& caches, const RequestLimits& limits,
                    pb::PlanReport* out) {
  std::vector<const KvCacheSpec*> specs;
  for (const LayerCache& cache : caches) {
    const auto same =
        std::ranges::find_if(specs, [&](const KvCacheSpec* spec) { return *spec == cache.spec; });
    // Of a fixed size, whatever the length.
    const bool has_state =
        cache.spec.kind() == KvCacheSpecKind::kMamba || cache.spec.kind() == KvCacheSpecKind::kRing;
    if (!has_state) {
      out->set_bytes_per_recent_token(out->bytes_per_recent_token() + BytesPerToken(cache.spec));
    }
    if (KeepsEveryToken(cache.spec)) {
      out->set_bytes_per_kept_token(out->bytes_per_kept_token() + BytesPerToken(cache.spec));
    }
    if (same != specs.end()) {
      auto* kind = out->mutable_layer_kinds(static_cast<int>(same - specs.begin()));
      kind->set_layers(kind->layers() + 1);
      continue;
    }
    specs.push_back(&cache.spec);
    auto* kind = out->add_layer_kinds();
    kind->set_kind(Text(cache.spec.kind_name()));
    kind->set_layers(1);
    kind->set_block_tokens(cache.spec.block_size());
    kind->set_page_bytes(cache.spec.page_bytes());
    kind->set_window(
        cache.spec.sliding_window().value_or(cache.spec.attention_chunk_size().value_or(0)));
    if (!has_state) kind->set_bytes_per_token(BytesPerToken(cache.spec));
    if (const auto blocks = MaxBlocksPerRequest(cache.spec, limits); blocks.ok()) {
      kind->set_blocks_at_max_len(*blocks);
    }
    kind->set_spec(cache.spec.ToString());
    kind->set_first_layer(cache.name);
  }
}

struct WasteText {
  WasteReason reason;
  const char* of;  // what it is a share of
  const char* meaning;
};
constexpr WasteText kWasteTexts[] = {
    {WasteReason::kPaddingLayers, "block", "pages of a block that the group has no layer for"},
    {WasteReason::kSlabOverlap, "block", "rest of a block whose group is not the largest"},
    {WasteReason::kPagePadding, "block", "padding inside pages"},
    {WasteReason::kChunkRemainder, "chunk", "rest of a chunk behind its last page"},
    {WasteReason::kPartialChunk, "pool", "one chunk per class partly used, at most"},
    {WasteReason::kNullBlock, "pool", "the null block"},
    {WasteReason::kSinkBlocks, "pool", "attention sinks, used by all requests"},
    {WasteReason::kUnusedMemory, "pool", "memory left over"},
    {WasteReason::kUpstreamCap, "request", "blocks billed to a request that it never holds"}};

// What windows and chunks hold for tokens that are in flight, beside what one request reads.
void FillInFlight(const Plan& plan, pb::PolicyPlan* out) {
  const bool is_shared = plan.capacity.shared_transient;
  RequestLimits settled = plan.limits;
  settled.max_in_flight_tokens = 1;
  double bytes = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const PlannedGroup& group = plan.groups[g];
    const GroupDemand& demand = plan.capacity.groups[g];
    int64_t blocks = demand.transient_blocks;
    if (!is_shared) {
      const GroupDemand without =
          DemandOf(group.spec, settled, BlockCountFormula::kUpstream, group.billed_window);
      blocks = demand.alone.At(settled.max_model_len) - without.alone.At(settled.max_model_len);
    }
    const int64_t stride = plan.workers.empty() || plan.config.native
                               ? group.page_bytes
                               : plan.workers.front().stride_bytes;
    bytes += static_cast<double>(blocks) * static_cast<double>(stride);
  }
  out->set_in_flight_bytes(std::llround(std::min(bytes, 9e18)));
  out->set_in_flight_per_request(!is_shared);
}

void FillPlan(const Plan& plan, int64_t max_len, const std::vector<int64_t>& lengths,
              const pb::PlanReport& report, pb::PolicyPlan* out) {
  out->set_layout(Text(LayoutName(plan.layout)));
  const int64_t longest = plan.limits.max_model_len;
  out->set_max_model_len(longest);
  const std::vector<int64_t> blocks = plan.BlocksPerRequest(longest);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const PlannedGroup& group = plan.groups[g];
    auto* entry = out->add_groups();
    entry->set_kind(Text(group.spec.kind_name()));
    entry->set_layers(static_cast<int64_t>(group.layers.size()));
    entry->set_block_tokens(group.spec.block_size());
    entry->set_page_bytes(group.page_bytes);
    entry->set_padding_layers(group.padding_layers);
    entry->set_blocks_at_max_len(blocks[g]);
    entry->set_metadata_key(group.metadata_key);
    entry->set_page_class(group.page_class);
    if (plan.config.native) {
      entry->set_pages_per_chunk(
          plan.config.native->pages_per_chunk[static_cast<size_t>(group.page_class)]);
    }
  }
  out->set_num_blocks(plan.num_blocks());
  out->set_allocatable_blocks(plan.num_allocatable_blocks());
  if (!plan.workers.empty()) {
    for (const WorkerPlan& worker : plan.workers) {
      out->set_block_bytes(std::max(out->block_bytes(), worker.stride_bytes));
      out->set_chunk_bytes(std::max(out->chunk_bytes(), worker.chunk_bytes));
    }
  }
  if (plan.config.native) out->set_num_chunks(plan.config.native->num_chunks);
  out->set_scheduler_block_tokens(plan.config.scheduler_block_size.value_or(0));
  out->set_hash_block_tokens(plan.config.hash_block_size.value_or(0));
  const RequestCost cost = plan.CostOfRequest();
  out->set_fixed_blocks_per_request(cost.fixed_blocks);
  out->set_blocks_per_token(cost.blocks_per_token);
  for (int64_t length : lengths) {
    if (length > longest) continue;
    auto* at = out->add_lengths();
    at->set_length(length);
    at->set_blocks_per_request(plan.TotalBlocksPerRequest(length));
    at->set_concurrency(plan.Concurrency(length));
    const RequestWaste waste = plan.WasteOfRequest(length);
    at->set_bytes_charged(waste.bytes_charged);
    at->set_waste_share(waste.share());
  }
  out->set_longest_context(plan.LongestContext(max_len));
  if (report.has_asked_requests()) {
    out->set_asked_concurrency(plan.Concurrency(report.asked_length()));
    const auto each = static_cast<int64_t>(out->asked_concurrency()) * report.data_parallel();
    if (each > 0) out->set_asked_replicas((report.asked_requests() + each - 1) / each);
  }
  FillInFlight(plan, out);
  for (const Waste& waste : plan.StandingWaste()) {
    auto* entry = out->add_waste();
    entry->set_reason(Text(WasteReasonName(waste.reason)));
    entry->set_group(waste.group.value_or(-1));
    entry->set_bytes(waste.bytes);
    entry->set_share(waste.share);
    for (const WasteText& text : kWasteTexts) {
      if (text.reason != waste.reason) continue;
      entry->set_of(text.of);
      entry->set_meaning(text.meaning);
    }
  }
}

void FillPolicy(const std::vector<LayerCache>& caches, PlanOptions options, int64_t model_limit,
                const std::vector<int64_t>& lengths, pb::PlanReport* report) {
  pb::PolicyPlan* out = report->add_plans();
  out->set_policy(Text(PolicyName(options.policy)));
  PlanResult result = MakePlan(caches, options);
  for (const PlanError& error : result.errors) {
    auto* problem = out->add_problems();
    problem->set_code(PlanErrorName(error.code));
    problem->set_message(error.message);
    problem->set_longest_length(error.longest_length.value_or(0));
  }
  if (!result.ok()) {
    options.longest_automatic_len = options.limits.max_model_len;
    options.limits.max_model_len = 0;
    result = MakePlan(caches, options);
  }
  if (result.ok()) FillPlan(*result.plan, model_limit, lengths, *report, out);
}

// What would hold what was asked for: the first few changes that do, each alone.
void FillSuggestions(const ReplayConfig& config, const ModelOnDevice& hardware,
                     pb::PlanReport* report) {
  const auto fits = [&](const ReplayConfig& changed, PlanPolicy policy) {
    const auto found = FindModelOnDevice(changed);  // with other weights, maybe
    if (!found.ok()) return false;
    const auto bytes = CacheBytes(changed, *found);
    const auto caches = LayerCachesOf(changed, found->model);
    if (!bytes.ok() || !caches.ok()) return false;
    PlanOptions options = MakePlanOptions(changed, policy, *bytes);
    options.limits.max_model_len = report->max_model_len();
    const PlanResult result = MakePlan(*caches, options);
    return result.ok() &&
           (!report->has_asked_requests() || result.plan->Concurrency(report->asked_length()) >=
                                                 static_cast<double>(report->asked_requests()));
  };
  const bool is_exact_enough = Fits(*report, "exact");
  const auto suggest = [&](const std::string& what, const ReplayConfig& changed) {
    for (PlanPolicy policy : {PlanPolicy::kUpstream, PlanPolicy::kExact}) {
      if (policy == PlanPolicy::kExact && is_exact_enough) continue;
      if (!fits(changed, policy)) continue;
      report->add_suggestions(
          absl::StrCat(what, policy == PlanPolicy::kExact ? " with the exact plan" : ""));
      return true;
    }
    return false;
  };
  if (is_exact_enough) {
    report->add_suggestions("the exact plan");
  } else {
    for (const pb::PolicyPlan& plan : report->plans()) {
      // A shorter limit is no answer to a question about longer requests.
      if (plan.policy() == "exact" && plan.max_model_len() > 0 && !plan.problems().empty() &&
          (!report->has_asked_requests() ||
           (report->asked_length() <= plan.max_model_len() &&
            plan.asked_concurrency() >= static_cast<double>(report->asked_requests())))) {
        report->add_suggestions(
            absl::StrCat("--max-model-len=", plan.max_model_len(), " with the exact plan"));
      }
    }
  }
  const auto try_option = [&](const char* flag, const std::string& value) {
    ReplayConfig changed = config;
    SetOption(flag, value, &changed).IgnoreError();  // values are good ones
    changed.set_max_num_seqs(std::min(changed.max_num_seqs(), changed.max_num_batched_tokens()));
    return suggest(absl::StrCat(flag, "=", value), changed);
  };
  if (config.max_num_batched_tokens() > kSmallStep) {
    try_option("--max-num-batched-tokens", absl::StrCat(kSmallStep));
  }
  if (config.kv_cache_dtype() == "auto") try_option("--kv-cache-dtype", "fp8");
  if (hardware.model.bytes_per_param > 1 && config.weight_dtype() == "auto") {
    try_option("--weight-dtype", "fp8");
  }
  for (int64_t ranks = config.tensor_parallel() * 2; ranks <= kMaxRanks; ranks *= 2) {
    if (try_option("--tensor-parallel", absl::StrCat(ranks))) break;
  }
}

// Windows keep room for the tokens in flight, for each request in upstream's plan: says what
// smaller steps bring, where that is much.
void FillStepHint(const ReplayConfig& config, const std::vector<LayerCache>& caches,
                  const std::vector<int64_t>& bytes, pb::PlanReport* report) {
  constexpr double kMuch = 1.1;
  const auto upstream = std::ranges::find_if(
      report->plans(), [](const pb::PolicyPlan& plan) { return plan.policy() == "upstream"; });
  if (config.max_num_batched_tokens() <= kSmallStep || upstream == report->plans().end() ||
      upstream->lengths().empty() || upstream->in_flight_bytes() == 0) {
    return;
  }
  ReplayConfig changed = config;
  changed.set_max_num_batched_tokens(kSmallStep);
  PlanOptions options = MakePlanOptions(changed, PlanPolicy::kUpstream, bytes);
  options.limits.max_model_len = upstream->max_model_len();
  const PlanResult result = MakePlan(caches, options);
  if (!result.ok()) return;
  const bool is_asked = report->has_asked_requests();
  const int64_t length = is_asked ? report->asked_length() : upstream->lengths().rbegin()->length();
  const double now =
      is_asked ? upstream->asked_concurrency() : upstream->lengths().rbegin()->concurrency();
  const double then = result.plan->Concurrency(length);
  if (then < kMuch * now) return;
  report->add_notes(absl::StrCat(
      "windows keep room for the tokens in flight: with --max-num-batched-tokens=", kSmallStep,
      " upstream's plan holds ", Format(then), " instead of ", Format(now), " requests of ",
      WithThousands(length), " tokens"));
}

std::vector<int64_t> LengthsUpTo(int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t length : {int64_t{8} << 10, int64_t{32} << 10, int64_t{128} << 10}) {
    if (length < longest) lengths.push_back(length);
  }
  lengths.push_back(longest);
  return lengths;
}

}  // namespace

bool Fits(const pb::PlanReport& report, std::string_view policy) {
  return std::ranges::any_of(report.plans(), [&](const pb::PolicyPlan& p) {
    const bool holds_requests =
        !report.has_asked_requests() ||
        p.asked_concurrency() >= static_cast<double>(report.asked_requests());
    return p.policy() == policy && p.problems().empty() && p.num_blocks() > 0 && holds_requests;
  });
}

absl::StatusOr<pb::PlanReport> MakePlanReport(const ReplayConfig& asked, PlanQuestions questions) {
  ReplayConfig config = asked;
  if (config.num_blocks() > 0 && config.kv_memory() > 0) {
    return InvalidArgument("--kv-memory: got \"", config.kv_memory(),
                           "\", expected 0 next to --num-blocks: both set the size of the pool");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto hardware, FindModelOnDevice(config));
  KVBLOCKS_RETURN_IF_ERROR(ChooseLimits(hardware.device, &config));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto caches, LayerCachesOf(config, hardware.model));

  pb::PlanReport report;
  report.set_schema_version(1);
  report.set_model(hardware.model.name);
  report.set_num_layers(hardware.model.num_layers());
  report.set_device(hardware.device.name);
  report.set_tensor_parallel(config.tensor_parallel());
  report.set_pipeline_parallel(config.pipeline_parallel());
  report.set_data_parallel(config.data_parallel());
  report.set_kv_cache_dtype(config.kv_cache_dtype());
  int64_t model_limit = hardware.model.max_position_embeddings;
  if (model_limit == 0) {
    model_limit = std::max(kDefaultMaxLen, config.max_model_len());
    report.add_notes(absl::StrCat("the model does not state its longest context; taken as ",
                                  model_limit, " tokens"));
  }
  const int64_t max_len = config.max_model_len() > 0 ? config.max_model_len() : model_limit;
  report.set_max_model_len(max_len);
  // Rows are about requests that may come, so a limit that was given counts in each.
  if (config.max_model_len() > 0) model_limit = max_len;
  report.set_max_in_flight_tokens(MaxInFlightTokens(config));
  report.set_steps_in_flight(config.pipeline_parallel() + (config.async() ? 1 : 0));
  if (questions.requests > 0) {
    report.set_asked_requests(questions.requests);
    report.set_asked_length(questions.length > 0 ? questions.length : max_len);
    if (report.asked_length() > max_len) {
      return InvalidArgument("--len: got ", questions.length,
                             ", expected at most the longest request, which is ", max_len,
                             " tokens");
    }
  }
  std::vector<int64_t> bytes(static_cast<size_t>(config.pipeline_parallel()), 0);
  if (const auto available = CacheBytes(config, hardware); available.ok()) {
    bytes = *available;
  } else if (config.num_blocks() == 0) {
    return available.status();
  }
  report.set_available_bytes(*std::ranges::min_element(bytes));
  report.set_available_source(DescribeCacheBytes(config, hardware));
  FillLayerKinds(caches,
                 {.max_model_len = max_len, .max_in_flight_tokens = MaxInFlightTokens(config)},
                 &report);

  std::vector<int64_t>& lengths = questions.lengths;
  std::ranges::sort(lengths);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  for (PlanPolicy policy : {PlanPolicy::kUpstream, PlanPolicy::kExact}) {
    PlanOptions options = MakePlanOptions(config, policy, bytes);
    options.limits.max_model_len = max_len;
    FillPolicy(caches, options, std::max(model_limit, max_len),
               lengths.empty() ? LengthsUpTo(max_len) : lengths, &report);
  }
  if (!Fits(report, "upstream")) FillSuggestions(config, hardware, &report);
  FillStepHint(config, caches, bytes, &report);
  if (const std::string nodes = NodesNote(config, hardware); !nodes.empty()) {
    report.add_notes(nodes);
  }
  return report;
}

// --- The command ---

namespace {

constexpr int64_t kMaxLen = int64_t{1} << 31;  // tokens

constexpr const char* kPlanFooter =
    R"(Two plans side by side: "upstream" as vLLM makes it, "exact" with the same memory and less
waste (tight bounds for windows, tokens in flight reserved once, pages of different sizes in
chunks). kvsim replay runs on either: --plan=upstream, --plan=exact.

Examples
  kvsim plan --model=gemma-3-27b --device=h200 --tensor-parallel=2 --max-model-len=131072
  kvsim plan --model=deepseek-v4-flash --device=h200 --tp=8 --kv-cache-dtype=fp8
  kvsim plan --model=path/to/config.json --device=h100
  kvsim plan --model=gpt-oss-120b --device=h100 --tp=2 --json | jq .plans
  kvsim plan --model=llama-3.1-70b --device=h200 --tp=8 --requests=100 --len=128K
                                          do they fit, or how many such replicas hold them

Exit status: 0 the longest request, and the --requests asked about, fit under both plans; 1 not
under one of them; 2 bad input.)";

// Options of a replay that matter to a plan.
constexpr const char* kPlanFields =
    "model device catalogue tensor_parallel pipeline_parallel data_parallel expert_parallel "
    "devices_per_node node_bandwidth decode_context_parallel kv_cache_dtype weight_dtype "
    "block_size max_num_batched_tokens async hybrid layout typical_len prefix_caching engine "
    "entry_point num_draft_tokens drafter lookahead_hashes "
    "num_blocks kv_memory memory_utilization activation_gb graph_gb";

template <typename Map>
std::string Names(const Map& entries) {
  std::string names;
  for (const auto& [name, facts] : entries) absl::StrAppend(&names, name, "\n");
  return names;
}

class PlanCommand final : public Command {
 public:
  explicit PlanCommand(OptionParser* program)
      : Command(program->AddCommand("plan", "Show what a model's cache stores and holds")) {
    const std::vector<std::string> fields = absl::StrSplit(kPlanFields, ' ');
    for (const std::string& field : fields) BindOption(field, options_, &given_);
    options_->Add({"--max-model-len", "TOKENS",
                   "longest request, output included; 0: the model's own limit [0]"},
                  0, kMaxLen, &max_model_len_);
    options_->AddList({"--lengths", "TOKENS ...",
                       "lengths to state concurrency for [8192 32768 131072 and the longest]"},
                      1, kMaxLen, &questions_.lengths);
    options_->Add({"--requests", "N",
                   "whether so many requests of --len tokens fit at once; 0: not asked [0]"},
                  0, kMaxLen, &questions_.requests);
    options_
        ->Add({"--len", "TOKENS", "their length, output included; 0: the longest [0]"}, 0, kMaxLen,
              &questions_.length)
        .needs = "--requests";
    options_->AddFlag({"--list-models", "", "print the names of the catalogue's models"},
                      &list_models_);
    options_->AddFlag({"--list-devices", "", "print the names of its devices"}, &list_devices_);
    output_.AddFiles(options_, {.has_page = true});
    output_.AddTerminal(options_, "no table");
    options_->set_footer(kPlanFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override {
    KVBLOCKS_ASSIGN_OR_RETURN(auto config, EffectiveConfig({}, given_));
    if (list_models_ || list_devices_) {
      KVBLOCKS_ASSIGN_OR_RETURN(const auto catalogue, LoadCatalogue(config));
      return WriteStdout(list_models_ ? Names(catalogue.models()) : Names(catalogue.devices()))
                 ? kDone
                 : kBadInput;
    }
    KVBLOCKS_RETURN_IF_ERROR(output_.Check(FilesOf(config)));
    config.set_max_model_len(max_model_len_);
    KVBLOCKS_ASSIGN_OR_RETURN(const auto report, MakePlanReport(config, questions_));
    const ExitStatus printed = output_.Print("plan", report, {.table = [&](bool color) {
                                               return FormatPlan(report, color);
                                             }});
    const bool fits = Fits(report, "upstream") && Fits(report, "exact");
    return printed == kDone && !fits ? kMissed : printed;
  }

 private:
  ReplayConfig given_;
  int64_t max_model_len_ = 0;
  PlanQuestions questions_;
  ReportOutput output_;
  bool list_models_ = false, list_devices_ = false;
};

}  // namespace

std::unique_ptr<Command> AddPlanCommand(OptionParser* program) {
  return std::make_unique<PlanCommand>(program);
}

}  // namespace kvblocks::sim
