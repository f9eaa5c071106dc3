#include "sim/verify/verifying_observer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "attention/verify/paged_memory.h"
#include "kvblocks/kv_cache_spec.h"
#include "sim/verify/small_plan.h"

namespace kvblocks::sim {
namespace {

// Query heads of the small layers: one without a sink, one with.
const std::vector<float>& SinkLogits() {
  static const auto* const logits = new std::vector<float>{-INFINITY, 1.0f};
  return *logits;
}

bool IsMla(KvCacheSpecKind kind) {
  return kind == KvCacheSpecKind::kMlaAttention || kind == KvCacheSpecKind::kSlidingWindowMla;
}

std::string RowFormatOf(const KvCacheSpec& spec) {
  const std::string dtype(DataTypeName(spec.dtype()));
  if (spec.quant_mode() == QuantMode::kNone) return dtype;
  return absl::StrCat(dtype, " (", std::string(QuantModeName(spec.quant_mode())), ")");
}

// DeepSeek V4's layers of this ratio have an indexer (AT-65); indexers choose fewer rows here, so
// short requests have more than those.
constexpr int64_t kIndexedRatio = 4, kIndexTopk = 8;

// Why a group's layers cannot be attended to, or nothing.
const char* ReasonToLeaveOut(const KvCacheSpec& spec) {
  switch (spec.kind()) {
    case KvCacheSpecKind::kRing:
      return "a ring that old rows leave";
    case KvCacheSpecKind::kHiddenState:
      return "hidden states, which nothing attends to";
    case KvCacheSpecKind::kEncoderOnlyAttention:
      return "an encoder's view of itself, of which nothing is stored";
    default:
      return spec.compress_ratio() > 1 && spec.sliding_window().has_value()
                 ? "a window over compressed rows"
                 : nullptr;
  }
}

}  // namespace

std::vector<attention::VerifiedGroup> VerifyingObserver::MakeGroups() {
  std::vector<attention::VerifiedGroup> groups;
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const SingleTypeManager& manager = manager_->group(g);
    const KvCacheSpec& spec = manager.spec();
    attention::VerifiedGroup group;
    group.name = std::string(spec.kind_name());
    if (spec.sliding_window()) absl::StrAppend(&group.name, ", window ", *spec.sliding_window());
    if (spec.attention_chunk_size()) {
      absl::StrAppend(&group.name, ", chunk ", *spec.attention_chunk_size());
    }
    if (spec.compress_ratio() > 1)
      absl::StrAppend(&group.name, ", ", spec.compress_ratio(), " : 1");
    group.is_mla = IsMla(spec.kind());
    group.block_size = spec.block_size();
    group.num_layers = options_.layers_per_group;
    if (const char* reason = ReasonToLeaveOut(spec)) {
      absl::StrAppend(&group.name, " (left out: ", reason, ")");
      group.num_layers = 0;
    } else if (spec.kind() == KvCacheSpecKind::kMamba) {
      group.is_state = true;
      group.at_boundaries = spec.options().cache_mode == MambaCacheMode::kAll;
      absl::StrAppend(&group.name, ", states (",
                      std::string(MambaCacheModeName(spec.options().cache_mode)), ")");
    } else if (spec.kind() == KvCacheSpecKind::kCrossAttention) {
      group.is_cross = true;
      absl::StrAppend(&group.name, ", rows of an encoder");
    } else {
      group.window = spec.sliding_window().value_or(0);
      group.chunk = spec.attention_chunk_size().value_or(0);
      group.compress_ratio = spec.compress_ratio();
      group.sink_blocks.assign(manager.sink_blocks().begin(), manager.sink_blocks().end());
      if (!group.is_mla) group.sinks = SinkLogits();
    }
    group_texts_.push_back(group.name);
    row_formats_.push_back(RowFormatOf(spec));
    (group.is_state ? num_state_layers_ : num_layers_) += group.num_layers;
    groups.push_back(std::move(group));
  }
  return groups;
}

bool VerifyingObserver::HasIndexer(size_t g) const {
  const std::vector<std::string>& names = manager_->config().groups[g].layer_names;
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.find("indexer") != std::string::npos;
  });
}

// DeepSeek V4's layers with a compressed cache attend to it and to their window at once, V3.2's to
// rows that an indexer chooses.
std::vector<attention::VerifiedJoint> VerifyingObserver::MakeJoints(
    const std::vector<attention::VerifiedGroup>& groups) const {
  std::vector<attention::VerifiedJoint> joints;
  for (size_t rows = 0; rows < groups.size(); ++rows) {
    if (!groups[rows].is_mla) continue;
    if (groups[rows].compress_ratio == 1) {
      if (groups[rows].window == 0 && HasIndexer(rows)) {
        joints.push_back({.window_group = rows, .rows_group = rows, .topk = kIndexTopk});
      }
      continue;
    }
    const KvCacheSpec& spec = manager_->group(static_cast<GroupId>(rows)).spec();
    for (size_t g = 0; g < groups.size(); ++g) {
      const KvCacheSpec& other = manager_->group(static_cast<GroupId>(g)).spec();
      // Compressor states are windows, too, but of rows of another size.
      if (groups[g].is_mla && groups[g].window > 0 && other.head_size() == spec.head_size()) {
        joints.push_back({.window_group = g,
                          .rows_group = rows,
                          .sinks = SinkLogits(),
                          .topk = spec.compress_ratio() == kIndexedRatio ? kIndexTopk : 0});
        break;
      }
    }
  }
  return joints;
}

// Compressor states are windows like the layers', but beside compressed rows of other sizes.
bool VerifyingObserver::IsCompressorState(const std::vector<attention::VerifiedGroup>& groups,
                                          size_t g) const {
  if (!groups[g].is_mla || groups[g].window == 0 || groups[g].num_layers == 0) return false;
  bool has_rows = false;
  for (size_t rows = 0; rows < groups.size(); ++rows) {
    if (!groups[rows].is_mla || groups[rows].compress_ratio == 1) continue;
    has_rows = true;
    if (manager_->group(static_cast<GroupId>(rows)).spec().head_size() ==
        manager_->group(static_cast<GroupId>(g)).spec().head_size()) {
      return false;
    }
  }
  return has_rows;
}

std::vector<attention::VerifiedCompressor> VerifyingObserver::MakeCompressors(
    const std::vector<attention::VerifiedGroup>& groups) const {
  std::vector<attention::VerifiedCompressor> compressors;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!IsCompressorState(groups, g)) continue;
    // Rows of the smaller ratio overlap: windows of two rows' tokens.
    const bool overlap = groups[g].window == 2 * kIndexedRatio;
    compressors.push_back({.states_group = g,
                           .ratio = overlap ? kIndexedRatio : groups[g].window,
                           .overlap = overlap});
  }
  return compressors;
}

absl::Status VerifyingObserver::MakeMemory(attention::VerifierOptions* options) {
  const KvCacheConfig& config = manager_->config();
  layout_ = config.native ? PoolLayout::kNative : options_.layout;
  std::vector<SmallGroup> small;
  for (const attention::VerifiedGroup& group : options->groups) {
    const attention::RowShape shape = attention::ShapeOf(group, *options);
    const int64_t key_floats = shape.is_mla ? shape.key_size : shape.num_kv_heads * shape.key_size;
    small.push_back({.num_layers = group.num_layers,
                     .rows = group.is_state ? 1 : group.block_size / group.compress_ratio,
                     .key_floats = key_floats,
                     .value_floats = shape.floats() - key_floats});
  }
  auto memory =
      PlannedMemory::Create(MakeSmallPlan(config, options->num_blocks, layout_, small), {});
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  options->memory.tensors = memory_->tensors();
  for (const LayerMemory& layer : memory_->layers()) {
    options->memory.layers.push_back(
        {.tensor = static_cast<size_t>(layer.tensor), .place = layer.place});
  }
  return absl::OkStatus();
}

void VerifyingObserver::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  trace_ = info.trace;
  if (manager_->config().native && options_.tiers != nullptr) {
    status_ = absl::InvalidArgumentError(
        "tiers with the native layout: their slots have no pages of one size to verify; choose "
        "another --layout");
    return;
  }
  attention::VerifierOptions options;
  const int64_t pool_blocks = options.num_blocks = manager_->pool().num_blocks();
  if (options_.tiers != nullptr) {
    const offload::OffloadManager& offload = options_.tiers->offload();
    for (offload::TierId t = 0; t < offload.num_tiers(); ++t) {
      first_blocks_.push_back(options.num_blocks);
      options.num_blocks += (offload.tier_capacity(t).num_slots + 1) *
                            offload.tier_options(t).blocks_per_chunk;
    }
  }
  options.groups = MakeGroups();
  options.joints = MakeJoints(options.groups);
  options.compressors = MakeCompressors(options.groups);
  options.ops = options_.ops;
  options.threads = options_.threads;
  options.on_memory = options_.on_memory;
  options.use_of_block = [this, pool_blocks](int32_t id) {
    if (id >= pool_blocks) return attention::BlockUse::kHeld;
    const KvCacheBlock& block = manager_->pool().block(id);
    if (block.ref_count > 0) return attention::BlockUse::kHeld;
    return block.has_key() ? attention::BlockUse::kCached : attention::BlockUse::kFree;
  };
  options.poison = options_.poison;
  options.max_rows_per_step = options_.max_rows_per_step;
  options.tolerance = options_.tolerance;
  options.seed = options_.seed;
  options.num_heads = static_cast<int64_t>(SinkLogits().size());
  if (num_layers_ + num_state_layers_ > 0) status_ = MakeMemory(&options);
  if (!status_.ok()) return;
  if (num_layers_ + num_state_layers_ == 0) {
    status_ = absl::InvalidArgumentError(
        "no group of the model holds keys or states: nothing to verify");
    return;
  }
  auto verifier = attention::KvCacheVerifier::Create(std::move(options));
  if (verifier.ok()) {
    verifier_ = *std::move(verifier);
  } else {
    status_ = verifier.status();
  }
}

int32_t VerifyingObserver::BlockOf(offload::TierId tier, int64_t place) const {
  const int64_t first = tier == offload::kDevice ? 0 : first_blocks_[static_cast<size_t>(tier)];
  return static_cast<int32_t>(first + place);
}

void VerifyingObserver::OnCopies(absl::Span<const KvCopy> copies) {
  if (!status_.ok()) return;
  copies_.clear();
  for (const KvCopy& copy : copies) {
    copies_.push_back({BlockOf(copy.from_tier, copy.from), BlockOf(copy.to_tier, copy.to)});
  }
  status_ = verifier_->CopyBlocks(copies_);
}

absl::Span<const int64_t> VerifyingObserver::TokensOf(const SimRequest& request,
                                                      int64_t num_tokens) {
  const size_t slot = static_cast<size_t>(request.slot);
  if (slot >= contents_.size()) contents_.resize(slot + 1);
  Content& content = contents_[slot];
  if (!content.keys) content.keys.emplace(*trace_, request.spec, /*block_tokens=*/1);
  keys_.clear();
  content.keys->AppendBlocks(request.spec, num_tokens, &keys_);
  for (const absl::uint128 key : keys_) {
    content.tokens.push_back(static_cast<int64_t>(absl::Uint128Low64(key)));
  }
  return content.tokens;
}

// Each request has an input of its own: what its encoder makes is nobody else's.
absl::Span<const int64_t> VerifyingObserver::EncoderTokensOf(const SimRequest& request) {
  std::vector<int64_t>& tokens = contents_[static_cast<size_t>(request.slot)].encoder_tokens;
  if (tokens.empty() && request.num_encoder > 0) {
    tokens.resize(static_cast<size_t>(request.num_encoder));
    std::iota(tokens.begin(), tokens.end(), request.spec.row << 32);
  }
  return tokens;
}

void VerifyingObserver::OnStepScheduled(const StepRecord& step) {
  if (!status_.ok()) return;
  if (!step.copies.empty()) {
    std::vector<attention::VerifiedCopy> copies;
    for (const BlockCopy& copy : step.copies) copies.push_back({copy.source, copy.target});
    status_ = verifier_->CopyBlocks(copies);
  }
  if (!status_.ok() || step.scheduled.empty()) return;
  const size_t num_groups = static_cast<size_t>(manager_->num_groups());
  // Spans into it must not move.
  tables_.resize(step.scheduled.size() * num_groups);
  checkpoints_.resize(step.scheduled.size());
  requests_.clear();
  for (size_t i = 0; i < step.scheduled.size(); ++i) {
    const ScheduledRecord& record = step.scheduled[i];
    const SimRequest& request = *record.request;
    const auto tables = absl::MakeSpan(tables_).subspan(i * num_groups, num_groups);
    checkpoints_[i].clear();
    for (size_t g = 0; g < num_groups; ++g) {
      tables[g] = manager_->GetBlocks(*request.kv, static_cast<GroupId>(g));
      const auto checkpoint = manager_->GetStateCheckpoint(*request.kv, static_cast<GroupId>(g));
      if (checkpoint) checkpoints_[i].push_back({g, checkpoint->num_tokens, checkpoint->block});
    }
    attention::VerifiedRequest verified;
    verified.id = static_cast<uint64_t>(request.spec.row);
    verified.name = request.spec.id;
    verified.num_computed = record.num_context;
    verified.num_scheduled = record.num_tokens;
    verified.tokens = TokensOf(request, record.num_context + record.num_tokens);
    verified.encoder_tokens = EncoderTokensOf(request);
    verified.block_tables = tables;
    verified.checkpoints = checkpoints_[i];
    requests_.push_back(verified);
  }
  status_ = verifier_->OnStep(requests_);
}

void VerifyingObserver::OnStepFinished(const StepRecord& step) {
  for (const OutputRecord& output : step.outputs) {
    if (!status_.ok()) return;
    if (output.num_rejected_drafts == 0 || output.request == nullptr) continue;
    const SimRequest& request = *output.request;
    if (request.state != RequestState::kRunning) continue;
    status_ = verifier_->Rollback(static_cast<uint64_t>(request.spec.row), request.num_computed);
  }
}

void VerifyingObserver::OnPreemption(const PreemptionRecord& record, SimTime now) {
  (void)now;
  if (status_.ok()) status_ = verifier_->Release(static_cast<uint64_t>(record.request->spec.row));
}

void VerifyingObserver::OnFinish(const SimRequest& request, SimTime now) {
  (void)now;
  const size_t slot = static_cast<size_t>(request.slot);
  if (slot < contents_.size()) contents_[slot] = {};
  if (status_.ok()) status_ = verifier_->Release(static_cast<uint64_t>(request.spec.row));
}

}  // namespace kvblocks::sim
