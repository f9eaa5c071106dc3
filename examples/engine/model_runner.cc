#include "examples/engine/model_runner.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/ngram_drafts.h"

namespace kvblocks::engine {

using attention::KvGroupConfig;

ModelRunner::ModelRunner(const Model& model, RunnerOptions options)
    : model_(model),
      options_(std::move(options)),
      threads_(options_.threads),
      random_(options_.seed) {
  openblas_set_num_threads(threads_.num_threads());
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    const Model& model, const Plan& plan, const sim::SimulationConfig& config,
    RunnerOptions options) {
  if (config.scheduler.pipeline_stages > 1 || config.ranks_per_block > 1) {
    return absl::UnimplementedError(
        "pipeline stages or context parallelism: the engine has one rank; turn them off");
  }
  if (config.drafts.num_draft_tokens > 0 &&
      (config.drafts.drafter != sim::Drafter::kNgram || config.scheduler.async)) {
    return absl::UnimplementedError(
        "drafts: the engine has those of n-grams, and needs to know which were accepted before the "
        "next step; choose ngram and --no-async");
  }
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, std::move(options)));
  KVBLOCKS_ASSIGN_OR_RETURN(
      runner->memory_,
      PlannedMemory::Create(plan, {.kernel_blocks = std::vector<int64_t>(
                                       plan.groups.size(), runner->options_.kernel_blocks),
                                   .layout = runner->options_.kv_layout}));
  KVBLOCKS_RETURN_IF_ERROR(runner->AddLayers());
  KVBLOCKS_RETURN_IF_ERROR(runner->AddSparseWork(config));
  KVBLOCKS_ASSIGN_OR_RETURN(runner->builder_,
                            attention::CpuBackend().MakeMetadataBuilder(
                                {.groups = runner->group_configs_,
                                 .max_num_reqs = config.scheduler.max_num_seqs,
                                 .max_num_tokens = config.scheduler.max_num_batched_tokens,
                                 .max_seq_len = config.manager.max_model_len}));
  return runner;
}

absl::Status ModelRunner::AddLayers() {
  size_t num_caches = 0;
  for (int64_t i = 0; i < model_.config().facts.num_layers(); ++i) {
    const attention::LayerConfig config = model_.AttentionOf(i);
    const LayerMemory* const memory = memory_->Find(config.name + ".attn");
    if (memory == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has no cache ", config.name,
                                                     ".attn; it must be one of the same model"));
    }
    Layer& layer = layers_.emplace_back();
    layer.cache = memory->cache;
    if (config.is_mla() && layer.cache.absent()) {
      KVBLOCKS_ASSIGN_OR_RETURN(layer.cache, memory->LatentCache(config.latent_rank));
    }
    // Without a cache it would attend to the step's own tokens alone.
    if (layer.cache.absent() || layer.cache.num_kv_heads() != config.num_kv_heads) {
      return absl::UnimplementedError(absl::StrCat(
          config.name, ": its cache has ", layer.cache.absent() ? 0 : layer.cache.num_kv_heads(),
          " heads that can be read, expected ", config.num_kv_heads,
          memory->opaque.empty() ? "; the engine has one rank" : ": ", memory->opaque));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(layer.impl, attention::CpuBackend().MakeImpl(config));
    layer.metadata = MetadataOf(*memory);
    ++num_caches;
    if (!config.sparse.enabled()) continue;
    const LayerMemory* const index = memory_->Find(config.name + ".indexer");
    // Slots that the indexer chooses are read in the layer's cache.
    if (index == nullptr || MetadataOf(*index) != layer.metadata) {
      return absl::UnimplementedError(absl::StrCat(
          config.name,
          ": its indexer's cache is not planned, or its blocks have other numbers than "
          "the layer's; use the uniform layout"));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(layer.index_cache, IndexCacheOf(*index, config.sparse.index_dim));
    ++num_caches;
  }
  if (num_caches != memory_->layers().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", memory_->layers().size(),
                                                   " caches, of which the model's layers read ",
                                                   num_caches));
  }
  return absl::OkStatus();
}

// Rows of values, or, as engines store them, of codes with a scale each behind those of the block.
absl::StatusOr<attention::IndexCacheView> ModelRunner::IndexCacheOf(const LayerMemory& layer,
                                                                    int64_t dim) {
  if (layer.rows.absent()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cache ", layer.name, " has no rows of one vector each"));
  }
  if (layer.rows.dtype != attention::DType::kU8) return attention::IndexCacheView(layer.rows);
  const int64_t rows = layer.rows.extent[1];
  KVBLOCKS_ASSIGN_OR_RETURN(const auto blocks,
                            layer.placed.pages.Slice(1, 0, attention::IndexBlockBytes(rows, dim)));
  return attention::IndexCacheView(blocks, rows);
}

absl::Status ModelRunner::AddSparseWork(const sim::SimulationConfig& config) {
  const attention::LayerConfig& layer = layers_.front().impl->config();
  if (!layer.sparse.enabled()) return absl::OkStatus();
  const attention::SparseWorkBounds bounds{.max_tokens = config.scheduler.max_num_batched_tokens,
                                           .max_seq_len = config.manager.max_model_len};
  work_memory_.resize(static_cast<size_t>(attention::SparseWorkBytes(layer, bounds)));
  KVBLOCKS_ASSIGN_OR_RETURN(
      work_,
      attention::MakeSparseWork(layer, bounds, attention::ViewOf(absl::MakeSpan(work_memory_))));
  return absl::OkStatus();
}

// Layers of one group whose blocks have the same numbers share their metadata.
int ModelRunner::MetadataOf(const LayerMemory& layer) {
  const KvGroupConfig config = memory_->KvGroupOf(layer);
  for (size_t i = 0; i < groups_.size(); ++i) {
    const KvGroupConfig& other = group_configs_[i];
    if (groups_[i] == layer.group && other.block_map == config.block_map &&
        other.key() == config.key()) {
      return static_cast<int>(i);
    }
  }
  groups_.push_back(layer.group);
  group_configs_.push_back(config);
  return static_cast<int>(groups_.size()) - 1;
}

void ModelRunner::OnStepScheduled(const sim::StepRecord& step) {
  if (!status_.ok() || step.scheduled.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  status_ = Run(step);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  step_time_ = std::max<int64_t>(1, took.count()) * sim::kNanosecond;
}

absl::StatusOr<sim::SimTime> ModelRunner::StepTime(absl::Span<const sim::SequenceWork>,
                                                   const sim::Decodes&) const {
  if (!status_.ok()) return status_;
  return step_time_;
}

absl::Status ModelRunner::Build(const sim::StepRecord& step) {
  if (!step.copies.empty()) {
    return absl::UnimplementedError("a step begins with copies of blocks, which states alone need");
  }
  inputs_.clear();
  tables_.clear();
  for (const sim::ScheduledRecord& record : step.scheduled) {
    inputs_.push_back({.num_computed_tokens = record.num_context,
                       .num_scheduled_tokens = record.num_tokens,
                       .num_prompt_tokens = record.request->num_prompt});
    for (const int group : groups_) {
      tables_.push_back(manager_->GetBlocks(*record.request->kv, group));
    }
  }
  return builder_->Build({.requests = inputs_, .block_ids = tables_});
}

absl::Status ModelRunner::Run(const sim::StepRecord& step) {
  KVBLOCKS_RETURN_IF_ERROR(Build(step));
  // The builder puts decodes first: tokens in its order, and the rows that tokens are sampled from.
  std::vector<int32_t> tokens, positions, rows;
  std::vector<Sampled> sampled;
  for (const int32_t index : builder_->permutation()) {
    const sim::ScheduledRecord& record = step.scheduled[static_cast<size_t>(index)];
    const int64_t end = record.num_context + record.num_tokens;
    const int64_t num_known = end - record.num_verified_drafts;
    std::vector<int32_t> drafts;
    if (record.num_verified_drafts > 0) {
      drafts = NgramDrafts(KnownTokens(*record.request, 0, num_known), record.num_verified_drafts);
    }
    const std::vector<int32_t> known = KnownTokens(*record.request, record.num_context, num_known);
    tokens.insert(tokens.end(), known.begin(), known.end());
    tokens.insert(tokens.end(), drafts.begin(), drafts.end());
    for (int64_t p = record.num_context; p < end; ++p) positions.push_back(static_cast<int32_t>(p));
    if (record.is_chunk) continue;
    const auto first = static_cast<int32_t>(tokens.size() - drafts.size()) - 1;
    for (size_t i = 0; i <= drafts.size(); ++i) rows.push_back(first + static_cast<int32_t>(i));
    sampled.push_back({&record, std::move(drafts)});
  }
  attention::ExecContext context;
  context.threads = &threads_;
  const auto attend = [&](int64_t index, const attention::LayerTensors& tensors) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    attention::LayerTensors paged = tensors;
    paged.cache = layer.cache;
    attention::SparseTensors sparse;
    if (tensors.sparse != nullptr) {
      sparse = *tensors.sparse;
      sparse.index_cache = layer.index_cache;
      sparse.work = work_;
      paged.sparse = &sparse;
    }
    return layer.impl->Forward(context, paged, &builder_->metadata(layer.metadata));
  };
  KVBLOCKS_ASSIGN_OR_RETURN(
      const std::vector<float> logits,
      model_.Forward({.tokens = tokens, .positions = positions, .rows = rows}, attend));
  const size_t vocabulary = rows.empty() ? 0 : logits.size() / rows.size();
  auto left = absl::MakeConstSpan(logits);
  for (const Sampled& one : sampled) {
    Sample(one, left, vocabulary);
    left.remove_prefix((one.drafts.size() + 1) * vocabulary);
  }
  return absl::OkStatus();
}

// Tokens [begin, end) of prompt and output.
std::vector<int32_t> ModelRunner::KnownTokens(const sim::SimRequest& request, int64_t begin,
                                              int64_t end) {
  const sim::TraceRequest& spec = request.spec;
  std::vector<int32_t> tokens;
  for (int64_t p = begin; p < end; ++p) {
    tokens.push_back(static_cast<int32_t>(
        p < spec.input_length
            ? spec.content_ids[static_cast<size_t>(p)]
            : int64_t{spec.output_ids[static_cast<size_t>(p - spec.input_length)]}));
  }
  return tokens;
}

// A token behind the known ones, and one behind each draft as long as the model agrees with it.
void ModelRunner::Sample(const Sampled& sampled, absl::Span<const float> logits,
                         size_t vocabulary) {
  const sim::ScheduledRecord& record = *sampled.record;
  sim::SimRequest& request = *record.request;
  const auto num_drafts = static_cast<int64_t>(sampled.drafts.size());
  const int64_t first = record.num_context + record.num_tokens - num_drafts - request.num_prompt;
  int64_t accepted = 0;
  while (true) {
    const auto row = logits.subspan(static_cast<size_t>(accepted) * vocabulary, vocabulary);
    const int32_t token =
        options_.temperature > 0 ? engine::Sample(row, options_.temperature, random_) : Greedy(row);
    const auto index = static_cast<size_t>(first + accepted);
    // Tokens behind a request's last one are computed for nothing.
    if (index < request.spec.output_ids.size()) {
      request.spec.output_ids[index] = static_cast<uint32_t>(token);
      if (options_.on_logits) options_.on_logits(request, first + accepted, row);
    }
    if (record.is_padded || accepted == num_drafts ||
        token != sampled.drafts[static_cast<size_t>(accepted)]) {
      break;
    }
    ++accepted;
  }
  const auto verification = static_cast<size_t>(request.num_verifications);
  if (num_drafts > 0 && verification < request.spec.accepted_drafts.size()) {
    request.spec.accepted_drafts[verification] = static_cast<uint32_t>(accepted);
  }
}

}  // namespace kvblocks::engine
