#include "examples/engine/blender.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {
namespace {

using attention::ConstTensorView;
using attention::TensorView;
using attention::ViewOf;

}  // namespace

absl::Status Blender::Check(const Model& model) {
  const ModelConfig& config = model.config();
  const char* const refused = config.facts.latent                     ? "latent rows"
                              : config.facts.has(LayerKind::kSliding) ? "windows"
                              : config.rotary.theta == 0              ? "stretched positions"
                              : config.rotary.interleaved             ? "pairs of neighbours"
                                                                      : nullptr;
  if (refused == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("chunks: the model has ", refused,
                                               ", which are not blended; serve without chunks"));
}

absl::StatusOr<Blender> Blender::Create(const Model& model,
                                        std::vector<attention::BlendLayer> layers,
                                        std::vector<attention::LayerConfig> configs, double ratio,
                                        AttentionPlace* place) {
  KVBLOCKS_RETURN_IF_ERROR(Check(model));
  const ModelFacts& facts = model.config().facts;
  attention::BlendConfig blend{.num_layers = static_cast<int>(facts.num_layers()),
                               .num_heads = facts.num_heads,
                               .num_kv_heads = facts.num_kv_heads,
                               .head_dim = facts.head_size,
                               .hidden_size = facts.hidden_size,
                               .theta = model.config().rotary.theta};
  blend.check_layers = {{.layer = 1, .ratio = ratio}};
  KVBLOCKS_RETURN_IF_ERROR(attention::BlendSession::Create(blend).status());
  return Blender(model, std::move(blend), std::move(layers), std::move(configs), place);
}

absl::Status Blender::Keep(const std::vector<int32_t>& tokens, int64_t row) {
  Kept kept;
  kept.positions.resize(tokens.size());
  std::iota(kept.positions.begin(), kept.positions.end(), 0);
  const auto length = static_cast<int32_t>(tokens.size());
  const int64_t heads = config_.num_kv_heads, size = config_.head_dim;
  const int64_t bytes = RoundUp(length * heads * size * int64_t{sizeof(float)}, int64_t{16});
  const attention::CommonAttentionMetadata metadata = place_->metadata(0);
  KVBLOCKS_ASSIGN_OR_RETURN(
      kept.memory, place_->Allocate("chunks", bytes * 2 * static_cast<int64_t>(layers_.size())));
  attention::GatherCacheArgs args;
  KVBLOCKS_ASSIGN_OR_RETURN(args.block_table, metadata.block_table.Slice(0, row, row + 1));
  place_->BeginCall();
  args.lengths = ViewOf(absl::Span<const int32_t>(&length, 1));
  KVBLOCKS_RETURN_IF_ERROR(place_->Bring(args.lengths));
  args.seq_lens = args.lengths;
  std::byte* at = kept.memory.get();
  for (const attention::BlendLayer& layer : layers_) {
    args.cache = layer.cache;
    args.scales = layer.scales;
    for (TensorView* out : {&args.out, &args.out_v}) {
      *out = TensorView::Contiguous(at, attention::DType::kF32, {1, length, heads, size},
                                    place_->context().device);
      (out == &args.out ? kept.k : kept.v)
          .push_back(TensorView::Contiguous(at, attention::DType::kF32, {length, heads, size},
                                            place_->context().device));
      at += bytes;
    }
    KVBLOCKS_RETURN_IF_ERROR(place_->backend().ops().GatherCache(place_->context(), args));
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
    const Kept& kept = found->second;
    KVBLOCKS_RETURN_IF_ERROR(
        session.AddChunk({.ids = ids, .k = kept.k, .v = kept.v, .rotated_for = kept.positions}));
  }
  if (session.num_old_rows() == 0) return std::nullopt;
  KVBLOCKS_RETURN_IF_ERROR(
      session.Plan(tokens.subspan(static_cast<size_t>(session.num_tokens())), tokens));
  return session;
}

absl::StatusOr<std::vector<float>> Blender::Run(
    absl::Span<const attention::BlendSession* const> sessions, const Model::Step& step,
    attention::LayerHooks* hooks, std::vector<attention::BlendLayerReport>* report) const {
  const attention::ExecContext& context = place_->context();
  const attention::AttentionOps& ops = place_->backend().ops();
  const attention::CommonAttentionMetadata metadata = place_->metadata(0);
  KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<float> embedded, model_->Embed(step.tokens));
  const auto num_tokens = static_cast<int64_t>(step.tokens.size());
  // Dense rows of the place as the model takes and makes them.
  const auto take = [&](const ConstTensorView& rows, std::vector<float>* values) {
    values->resize(static_cast<size_t>(rows.num_elements()));
    return place_->Copy(ViewOf(absl::MakeSpan(*values)), rows);
  };
  const auto put = [&](const std::vector<float>& values, const TensorView& rows) {
    return place_->Copy(rows, ViewOf(absl::MakeConstSpan(values)));
  };
  const attention::BlendModel callbacks{
      .project = [&](int layer, const ConstTensorView& hidden, const TensorView& q,
                     const TensorView& k, const TensorView& v) -> absl::Status {
        if (hooks != nullptr) {
          KVBLOCKS_RETURN_IF_ERROR(
              hooks->WaitForLayer(configs_[static_cast<size_t>(layer)].name, context));
        }
        std::vector<float> x;
        KVBLOCKS_RETURN_IF_ERROR(take(hidden, &x));
        const Model::Heads heads = model_->Project(layer, x);
        KVBLOCKS_RETURN_IF_ERROR(put(heads.q, q));
        KVBLOCKS_RETURN_IF_ERROR(put(heads.k, k));
        return put(heads.v, v);
      },
      .attend =
          [&](int layer, const attention::PagedPrefillArgs& args) {
            const attention::LayerConfig& config = configs_[static_cast<size_t>(layer)];
            attention::PagedPrefillArgs own = args;
            if (config.scale > 0) own.params.scale = config.scale;
            own.params.soft_cap = config.soft_cap;
            own.params.sinks = config.sinks;
            return ops.PagedPrefill(context, own);
          },
      .finish = [&](int layer, const ConstTensorView& attended,
                    const TensorView& hidden) -> absl::Status {
        std::vector<float> out, x;
        KVBLOCKS_RETURN_IF_ERROR(take(attended, &out));
        KVBLOCKS_RETURN_IF_ERROR(take(hidden, &x));
        model_->Finish(layer, out, x);
        return put(x, hidden);
      }};
  // Nobody else can hit a session's blocks, because its content has a salt of its own.
  const std::vector<int64_t> registered(sessions.size(), 0);
  attention::BlendStep blend;
  blend.metadata = &metadata;
  blend.sessions = sessions;
  blend.num_registered_tokens = registered;
  blend.layers = layers_;
  blend.hidden = ViewOf(absl::MakeConstSpan(embedded), {num_tokens, config_.hidden_size});
  place_->BeginCall();
  KVBLOCKS_RETURN_IF_ERROR(place_->Bring(blend.hidden));
  KVBLOCKS_ASSIGN_OR_RETURN(
      const int64_t work_bytes,
      attention::BlendWorkBytes(config_, {.max_num_reqs = metadata.num_reqs,
                                          .max_num_tokens = num_tokens,
                                          .max_seq_len = metadata.max_seq_len}));
  AttentionPlace::Memory work;
  KVBLOCKS_ASSIGN_OR_RETURN(blend.work, place_->AllocateBytes("a blend", work_bytes, &work));
  blend.upload = [&](std::byte* to, absl::Span<const std::byte> from) {
    return place_->Copy(to, from.data(), static_cast<int64_t>(from.size()));
  };
  KVBLOCKS_ASSIGN_OR_RETURN(const attention::BlendResult result,
                            attention::RunBlend(ops, context, config_, blend, callbacks));
  *report = result.layers;
  // Rows of a session that are left are its last ones.
  std::vector<float> rows;
  KVBLOCKS_RETURN_IF_ERROR(take(result.hidden, &rows));
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
