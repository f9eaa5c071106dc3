#include "examples/engine/step_runner.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/math.h"

namespace kvblocks::engine {

using attention::KvGroupConfig;

std::vector<int32_t> NgramDrafts(absl::Span<const int32_t> known, int64_t count) {
  constexpr size_t kLongest = 3;
  std::vector<int32_t> drafts(static_cast<size_t>(count), known.back());
  for (size_t n = std::min(kLongest, known.size() - 1); n > 0; --n) {
    const auto last = known.subspan(known.size() - n);
    // Ends before the last place itself.
    const auto at = std::find_end(known.begin(), known.end() - 1, last.begin(), last.end());
    if (at == known.end() - 1) continue;
    const auto behind = known.subspan(static_cast<size_t>(at - known.begin()) + n);
    std::copy_n(behind.begin(), std::min(behind.size(), drafts.size()), drafts.begin());
    break;
  }
  return drafts;
}

absl::Status StepRunner::CheckConfig(const sim::SimulationConfig& config) {
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
  return absl::OkStatus();
}

const RequestAttention* StepRunner::AttentionOf(const sim::SimRequest& request) const {
  const auto found = options_.requests.find(request.spec.id);
  return found == options_.requests.end() ? nullptr : &found->second;
}

absl::Status StepRunner::TakeMemory(const Plan& plan, AttentionPlace& place) {
  PlannedMemoryOptions options{
      .kernel_blocks = std::vector<int64_t>(plan.groups.size(), options_.kernel_blocks),
      .layout = options_.kv_layout};
  for (const PlannedTensor& tensor : plan.workers[0].tensors) {
    if (place.context().device.on_host()) break;  // PlannedMemory takes it itself
    KVBLOCKS_ASSIGN_OR_RETURN(
        options.tensors.emplace_back(),
        place.AllocateBytes("a tensor of the cache", tensor.bytes, &tensors_.emplace_back()));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(memory_, PlannedMemory::Create(plan, options));
  return absl::OkStatus();
}

absl::StatusOr<attention::KvCacheView> StepRunner::CacheOf(const attention::LayerConfig& config,
                                                           int* metadata) {
  const LayerMemory* const memory = memory_->Find(config.name);
  if (memory == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has no cache ", config.name, "; it must be one of the same model"));
  }
  attention::KvCacheView cache = memory->cache;
  if (config.is_mla() && cache.absent()) {
    KVBLOCKS_ASSIGN_OR_RETURN(cache, memory->LatentCache(config.latent_rank));
  }
  // Without a cache it would attend to the step's own tokens alone.
  if (cache.absent() || cache.num_kv_heads() != config.num_kv_heads) {
    return absl::UnimplementedError(
        absl::StrCat(config.name, ": its cache has ", cache.absent() ? 0 : cache.num_kv_heads(),
                     " heads that can be read, expected ", config.num_kv_heads,
                     memory->opaque.empty() ? "; the engine has one rank" : ": ", memory->opaque));
  }
  *metadata = MetadataOf(*memory);
  return cache;
}

int StepRunner::MetadataOf(const LayerMemory& layer) {
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

attention::MetadataBuilderOptions StepRunner::BuilderOptions(
    const sim::SimulationConfig& config) const {
  return {.groups = group_configs_,
          .max_num_reqs = config.scheduler.max_num_seqs,
          .max_num_tokens = config.scheduler.max_num_batched_tokens,
          .max_seq_len = config.manager.max_model_len};
}

void StepRunner::OnStepScheduled(const sim::StepRecord& step) {
  if (!status_.ok() || step.scheduled.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  status_ = Run(step);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  step_time_ = std::max<int64_t>(1, took.count()) * sim::kNanosecond;
}

absl::StatusOr<sim::SimTime> StepRunner::StepTimeAmong(absl::Span<const sim::SequenceWork>,
                                                       const sim::Decodes&,
                                                       const sim::StepPeers&) const {
  if (!status_.ok()) return status_;
  return step_time_;
}

absl::StatusOr<attention::BatchInput> StepRunner::InputOf(const sim::StepRecord& step) {
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
  return attention::BatchInput{.requests = inputs_, .block_ids = tables_};
}

// The builder puts decodes first: tokens are in its order.
StepRunner::StepTokens StepRunner::TokensOf(const sim::StepRecord& step,
                                            absl::Span<const int32_t> permutation) {
  StepTokens out;
  for (const int32_t index : permutation) {
    const sim::ScheduledRecord& record = step.scheduled[static_cast<size_t>(index)];
    const int64_t end = record.num_context + record.num_tokens;
    const int64_t num_known = end - record.num_verified_drafts;
    std::vector<int32_t> drafts;
    if (record.num_verified_drafts > 0) {
      drafts = NgramDrafts(KnownTokens(*record.request, 0, num_known), record.num_verified_drafts);
    }
    const std::vector<int32_t> known = KnownTokens(*record.request, record.num_context, num_known);
    out.tokens.insert(out.tokens.end(), known.begin(), known.end());
    out.tokens.insert(out.tokens.end(), drafts.begin(), drafts.end());
    for (int64_t p = record.num_context; p < end; ++p) {
      out.positions.push_back(static_cast<int32_t>(p));
    }
    if (record.is_chunk) continue;
    const auto first = static_cast<int32_t>(out.tokens.size() - drafts.size()) - 1;
    for (size_t i = 0; i <= drafts.size(); ++i) {
      out.rows.push_back(first + static_cast<int32_t>(i));
    }
    out.sampled.push_back({&record, std::move(drafts)});
  }
  return out;
}

bool StepRunner::IsMasked(const sim::StepRecord& step) const {
  return std::any_of(step.scheduled.begin(), step.scheduled.end(), [this](const auto& record) {
    const RequestAttention* const own = AttentionOf(*record.request);
    return own != nullptr && own->is_masked();
  });
}

absl::StatusOr<attention::MaskRef> StepRunner::MaskOf(
    const sim::StepRecord& step, absl::Span<const int32_t> permutation, int64_t window,
    attention::AttentionMaskBuilder& masks) const {
  std::vector<attention::MaskRule> rules(step.scheduled.size());
  std::vector<attention::MaskRows> rows;
  for (size_t b = 0; b < rules.size(); ++b) {
    const sim::ScheduledRecord& record = step.scheduled[static_cast<size_t>(permutation[b])];
    rows.push_back({.first_position = record.num_context,
                    .num_rows = record.num_tokens,
                    .num_keys = record.num_context + record.num_tokens});
    const RequestAttention* const own = AttentionOf(*record.request);
    if (own == nullptr || !own->is_masked()) continue;
    rules[b] = own->Rule(record.request->num_prompt, window);
    rows[b].rule = &rules[b];
  }
  return masks.Bits(attention::WindowRule(window > 0 ? window : attention::kUnlimitedTokens), rows);
}

void StepRunner::Take(const StepTokens& tokens, absl::Span<const float> logits,
                      absl::Span<const int32_t> greedy) {
  const size_t vocabulary = tokens.rows.empty() ? 0 : logits.size() / tokens.rows.size();
  for (const Sampled& one : tokens.sampled) {
    const size_t rows = one.drafts.size() + 1;
    Sample(one, logits.subspan(0, rows * vocabulary), greedy.subspan(0, rows));
    logits.remove_prefix(rows * vocabulary);
    greedy.remove_prefix(std::min(rows, greedy.size()));
  }
}

std::vector<int32_t> StepRunner::KnownTokens(const sim::SimRequest& request, int64_t begin,
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
void StepRunner::Sample(const Sampled& sampled, absl::Span<const float> logits,
                        absl::Span<const int32_t> greedy) {
  const sim::ScheduledRecord& record = *sampled.record;
  sim::SimRequest& request = *record.request;
  const auto num_drafts = static_cast<int64_t>(sampled.drafts.size());
  const int64_t first = record.num_context + record.num_tokens - num_drafts - request.num_prompt;
  const size_t vocabulary = logits.size() / (sampled.drafts.size() + 1);
  int64_t accepted = 0;
  while (true) {
    const auto at = static_cast<size_t>(accepted);
    const auto row = logits.subspan(at * vocabulary, vocabulary);
    const int32_t token = options_.temperature > 0
                              ? engine::Sample(row, options_.temperature, random_)
                          : greedy.empty() ? Greedy(row)
                                           : greedy[at];
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
