#include "examples/engine/blender.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {
namespace {

using attention::ConstTensorView;
using attention::TensorView;
using attention::ViewOf;

// Of dense rows.
std::vector<float> Copy(const ConstTensorView& rows) {
  const auto* const data = rows.as<float>();
  return {data, data + rows.num_elements()};
}
void Copy(const std::vector<float>& from, const TensorView& to) {
  std::copy(from.begin(), from.end(), to.as<float>());
}

}  // namespace

absl::StatusOr<Blender> Blender::Create(const Model& model,
                                        std::vector<attention::BlendLayer> layers, double ratio) {
  const ModelConfig& config = model.config();
  const ModelFacts& facts = config.facts;
  const char* const refused = facts.latent                     ? "latent rows"
                              : facts.has(LayerKind::kSliding) ? "windows"
                              : config.rotary.theta == 0       ? "stretched positions"
                              : config.rotary.interleaved      ? "pairs of neighbours"
                                                               : nullptr;
  if (refused != nullptr) {
    return absl::UnimplementedError(absl::StrCat("chunks: the model has ", refused,
                                                 ", which are not blended; serve without chunks"));
  }
  attention::BlendConfig blend{.num_layers = static_cast<int>(facts.num_layers()),
                               .num_heads = facts.num_heads,
                               .num_kv_heads = facts.num_kv_heads,
                               .head_dim = facts.head_size,
                               .hidden_size = facts.hidden_size,
                               .theta = config.rotary.theta};
  blend.check_layers = {{.layer = 1, .ratio = ratio}};
  KVBLOCKS_RETURN_IF_ERROR(attention::BlendSession::Create(blend).status());
  return Blender(model, std::move(blend), std::move(layers));
}

absl::Status Blender::Keep(const std::vector<int32_t>& tokens,
                           const attention::ExecContext& context,
                           const attention::CommonAttentionMetadata& metadata, int64_t row) {
  Kept kept;
  kept.positions.resize(tokens.size());
  std::iota(kept.positions.begin(), kept.positions.end(), 0);
  const auto length = static_cast<int32_t>(tokens.size());
  for (const attention::BlendLayer& layer : layers_) {
    attention::GatherCacheArgs args;
    args.cache = layer.cache;
    args.scales = layer.scales;
    KVBLOCKS_ASSIGN_OR_RETURN(args.block_table, metadata.block_table.Slice(0, row, row + 1));
    args.seq_lens = args.lengths = ViewOf(absl::Span<const int32_t>(&length, 1));
    for (auto [all, out] : {std::pair(&kept.k, &args.out), {&kept.v, &args.out_v}}) {
      auto& values = all->emplace_back(
          tokens.size() * static_cast<size_t>(config_.num_kv_heads * config_.head_dim));
      *out = ViewOf(absl::MakeSpan(values), {1, length, config_.num_kv_heads, config_.head_dim});
    }
    KVBLOCKS_RETURN_IF_ERROR(attention::Cpu().GatherCache(context, args));
  }
  kept_.insert_or_assign(tokens, std::move(kept));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<attention::BlendSession>> Blender::SessionOf(
    absl::Span<const int32_t> tokens, absl::Span<const int64_t> chunks,
    int64_t num_computed) const {
  KVBLOCKS_ASSIGN_OR_RETURN(auto session, attention::BlendSession::Create(config_, num_computed));
  for (const int64_t length : chunks) {
    const auto ids =
        tokens.subspan(static_cast<size_t>(session.num_tokens()), static_cast<size_t>(length));
    const auto found = kept_.find({ids.begin(), ids.end()});
    if (found == kept_.end()) break;
    std::vector<ConstTensorView> k, v;
    for (auto [views, values] : {std::pair(&k, &found->second.k), {&v, &found->second.v}}) {
      for (const std::vector<float>& layer : *values) {
        views->push_back(
            ViewOf(absl::MakeConstSpan(layer), {length, config_.num_kv_heads, config_.head_dim}));
      }
    }
    KVBLOCKS_RETURN_IF_ERROR(
        session.AddChunk({.ids = ids, .k = k, .v = v, .rotated_for = found->second.positions}));
  }
  if (session.num_old_rows() == 0) return std::nullopt;
  KVBLOCKS_RETURN_IF_ERROR(
      session.Plan(tokens.subspan(static_cast<size_t>(session.num_tokens())), tokens));
  return session;
}

absl::StatusOr<std::vector<float>> Blender::Run(
    const attention::ExecContext& context, const attention::CommonAttentionMetadata& metadata,
    absl::Span<const attention::BlendSession* const> sessions, const Model::Step& step,
    attention::LayerHooks* hooks, std::vector<attention::BlendLayerReport>* report) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<float> embedded, model_->Embed(step.tokens));
  const auto num_tokens = static_cast<int64_t>(step.tokens.size());
  const attention::BlendModel callbacks{
      .project = [&](int layer, const ConstTensorView& hidden, const TensorView& q,
                     const TensorView& k, const TensorView& v) -> absl::Status {
        if (hooks != nullptr) {
          KVBLOCKS_RETURN_IF_ERROR(hooks->WaitForLayer(model_->AttentionOf(layer).name, context));
        }
        const Model::Heads heads = model_->Project(layer, Copy(hidden));
        Copy(heads.q, q);
        Copy(heads.k, k);
        Copy(heads.v, v);
        return absl::OkStatus();
      },
      .attend =
          [&](int layer, const attention::PagedPrefillArgs& args) {
            const attention::LayerConfig config = model_->AttentionOf(layer);
            attention::PagedPrefillArgs own = args;
            if (config.scale > 0) own.params.scale = config.scale;
            own.params.soft_cap = config.soft_cap;
            own.params.sinks = config.sinks;
            return attention::Cpu().PagedPrefill(context, own);
          },
      .finish =
          [&](int layer, const ConstTensorView& attended, const TensorView& hidden) {
            std::vector<float> x = Copy(hidden);
            model_->Finish(layer, Copy(attended), x);
            Copy(x, hidden);
            return absl::OkStatus();
          }};
  // Nobody else can hit a session's blocks, because its content has a salt of its own.
  const std::vector<int64_t> registered(sessions.size(), 0);
  attention::BlendStep blend;
  blend.metadata = &metadata;
  blend.sessions = sessions;
  blend.num_registered_tokens = registered;
  blend.layers = layers_;
  blend.hidden = ViewOf(absl::MakeConstSpan(embedded), {num_tokens, config_.hidden_size});
  KVBLOCKS_ASSIGN_OR_RETURN(
      const attention::BlendResult result,
      attention::RunBlend(attention::Cpu(), context, config_, blend, callbacks));
  *report = result.layers;
  // Rows of a session that are left are its last ones.
  const std::vector<float> rows = Copy(result.hidden);
  std::vector<float> last;
  for (const int32_t row : step.rows) {
    const auto next = std::upper_bound(metadata.host_query_start_loc.begin(),
                                       metadata.host_query_start_loc.end(), row);
    const auto b = static_cast<size_t>(next - metadata.host_query_start_loc.begin());
    const auto at = rows.begin() + (result.row_start[b] - (*next - row)) * config_.hidden_size;
    last.insert(last.end(), at, at + config_.hidden_size);
  }
  return model_->LogitsOf(std::move(last));
}

}  // namespace kvblocks::engine
