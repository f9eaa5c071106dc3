#include "kvblocks/cache_blend.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/ops/arg_checker.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

template <typename... Text>
absl::Status Refuse(const Text&... text) {
  return InvalidArgument("BlendSession: ", text...);
}
template <typename... Text>
absl::Status RefuseModel(const Text&... text) {
  return InvalidArgument("BlendConfig: ", text...);
}

// The rows may be on any device: a run checks that it is its own.
absl::Status CheckRows(const char* kind, int layer, const ConstTensorView& view, int64_t num_ids,
                       const BlendConfig& config) {
  const std::string name = absl::StrCat(kind, " of layer ", layer);
  ExecContext there;
  there.device = view.device;
  ArgChecker check(there, "BlendSession");
  if (!check.View(name.c_str(), view, config.dtype)) return check.status();
  if (view.rank != 3 || view.extent[0] != num_ids || view.extent[1] != config.num_kv_heads ||
      view.extent[2] != config.head_dim) {
    return Refuse(name, " is ", view.DebugString(), "; the chunk has ", num_ids,
                               " tokens, so it must be ", Name(config.dtype), "[", num_ids, ", ",
                               config.num_kv_heads, ", ", config.head_dim, "]");
  }
  return absl::OkStatus();
}

absl::Status CheckChecks(const BlendConfig& config) {
  if (config.check_layers.empty()) {
    return Refuse("check_layers is empty; it needs a layer, or the request needs no session");
  }
  for (size_t i = 0; i < config.check_layers.size(); ++i) {
    const BlendCheck& check = config.check_layers[i];
    const std::string name = absl::StrCat("check_layers[", i, "]");
    if (check.layer < 0 || check.layer >= config.num_layers) {
      return Refuse(name, ".layer is ", check.layer, "; it must be 0 to ",
                                 config.num_layers - 1);
    }
    if (!(check.ratio >= 0 && check.ratio <= 1)) {
      return Refuse(name, ".ratio is ", check.ratio, "; it must be 0 to 1");
    }
    if (i == 0) continue;
    const BlendCheck& before = config.check_layers[i - 1];
    if (check.layer <= before.layer) {
      return Refuse(name, ".layer is ", check.layer,
                                 "; it must be above that before, ", before.layer);
    }
    if (check.ratio > before.ratio) {
      return Refuse(name, ".ratio is ", check.ratio,
                                 "; rows that were not selected do not come back, so it must be at "
                                 "most that before, ",
                                 before.ratio);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBlendModel(const BlendConfig& config) {
  if (config.num_layers < 1) {
    return RefuseModel(
        "num_layers is ", config.num_layers, "; it must be at least 1");
  }
  if (config.num_kv_heads < 1 || config.num_heads < 1 ||
      config.num_heads % config.num_kv_heads != 0) {
    return RefuseModel("num_heads is ", config.num_heads, ", num_kv_heads ",
                                    config.num_kv_heads, "; one must be a multiple of the other");
  }
  if (config.head_dim < 1 || config.hidden_size < 1) {
    return RefuseModel("head_dim is ", config.head_dim, ", hidden_size ",
                                    config.hidden_size, "; both must be at least 1");
  }
  for (int64_t size : {config.num_heads, config.head_dim, config.hidden_size}) {
    // Keeps the bytes of a row within int64.
    if (size > int64_t{1} << 28) {
      return RefuseModel(
          "num_heads, head_dim or hidden_size is ", size, "; at most 2^28");
    }
  }
  const int64_t rotary_dim = config.rotary_dim == 0 ? config.head_dim : config.rotary_dim;
  if (rotary_dim < 0 || rotary_dim > config.head_dim || rotary_dim % 2 != 0) {
    return RefuseModel("rotary_dim is ", config.rotary_dim, " of head_dim ",
                                    config.head_dim,
                                    "; even, at most head_dim, or 0 for an even one");
  }
  if (!(config.theta > 0) || !std::isfinite(config.theta)) {
    return RefuseModel("theta is ", config.theta, "; finite and above 0");
  }
  if (!IsComputeType(config.dtype)) {
    return RefuseModel(
        "dtype is ", Name(config.dtype), "; it must be f16, bf16, f32 or f64");
  }
  return absl::OkStatus();
}

absl::StatusOr<BlendSession> BlendSession::Create(const BlendConfig& config,
                                                  int64_t num_computed_tokens) {
  absl::Status status = CheckBlendModel(config);
  if (status.ok()) status = CheckChecks(config);
  if (!status.ok()) return status;
  if (num_computed_tokens < 0) {
    return Refuse("num_computed_tokens is ", num_computed_tokens, "; at least 0");
  }
  return BlendSession(config, num_computed_tokens);
}

absl::Status BlendSession::AddChunk(const BlendChunk& chunk) {
  if (planned()) {
    return FailedPrecondition("BlendSession: AddChunk after Plan; add all chunks first");
  }
  const int64_t num_ids = static_cast<int64_t>(chunk.ids.size());
  if (chunk.num_leading_tokens < 0 || chunk.num_leading_tokens > num_ids) {
    return Refuse("num_leading_tokens is ", chunk.num_leading_tokens,
                               "; the chunk has ", num_ids, " tokens");
  }
  const int64_t first = ids_.empty() ? 0 : chunk.num_leading_tokens;
  const int64_t end = num_tokens() + num_ids - first;  // in the prompt
  const bool has_rows = !chunk.k.empty() || !chunk.v.empty();
  if (!has_rows && end > num_computed_) {
    return Refuse("the chunk has no K and V and ends at token ", end,
                               " of the prompt, of which ", num_computed_,
                               " are computed; give K and V of every layer, or make it part of the "
                               "suffix");
  }
  if (has_rows && (static_cast<int64_t>(chunk.k.size()) != config_.num_layers ||
                   static_cast<int64_t>(chunk.v.size()) != config_.num_layers)) {
    return Refuse("the chunk has K of ", chunk.k.size(), " and V of ", chunk.v.size(),
                               " layers; the model has ", config_.num_layers);
  }
  for (int layer = 0; has_rows && layer < config_.num_layers; ++layer) {
    absl::Status status = CheckRows("K", layer, chunk.k[layer], num_ids, config_);
    if (status.ok()) status = CheckRows("V", layer, chunk.v[layer], num_ids, config_);
    if (!status.ok()) return status;
  }
  if (!chunk.rotated_for.empty()) {
    if (chunk.rotated_for.size() != chunk.ids.size()) {
      return Refuse("rotated_for has ", chunk.rotated_for.size(),
                                 " positions; the chunk has ", num_ids, " tokens");
    }
    for (int64_t t = 0; t < num_ids; ++t) {
      if (chunk.rotated_for[t] >= 0) continue;
      return Refuse("rotated_for[", t, "] is ", chunk.rotated_for[t], "; at least 0");
    }
  }

  // Does not collect tokens that are computed already.
  const int64_t begin = std::max(first, num_ids - std::max<int64_t>(0, end - num_computed_));
  if (begin < num_ids) {
    BlendPiece& piece = pieces_.emplace_back();
    piece.position = end - (num_ids - begin);
    piece.num_rows = num_ids - begin;
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      piece.k.push_back(*chunk.k[layer].Slice(0, begin, num_ids));
      piece.v.push_back(*chunk.v[layer].Slice(0, begin, num_ids));
    }
    piece.rotated_for.assign(piece.num_rows, 0);
    if (!chunk.rotated_for.empty()) {
      std::copy(chunk.rotated_for.begin() + begin, chunk.rotated_for.end(),
                piece.rotated_for.begin());
    }
    num_old_rows_ += piece.num_rows;
  }
  ids_.insert(ids_.end(), chunk.ids.begin() + first, chunk.ids.end());
  return absl::OkStatus();
}

absl::Status BlendSession::Plan(absl::Span<const int32_t> suffix,
                                absl::Span<const int32_t> prompt) {
  if (planned()) return FailedPrecondition("BlendSession: planned already");
  if (suffix.empty()) {
    return Refuse(
        "suffix_len is 0; it must be at least 1, because the last token's logits are wanted");
  }
  const int64_t all = num_tokens() + static_cast<int64_t>(suffix.size());
  if (num_computed_ >= all) {
    return Refuse("num_computed_tokens is ", num_computed_, " of a prompt of ", all,
                               " tokens; the last token must be left to compute");
  }
  if (!prompt.empty()) {
    if (static_cast<int64_t>(prompt.size()) != all) {
      return Refuse("the prompt has ", prompt.size(), " tokens, the chunks ",
                                 ids_.size(), " and the suffix ", suffix.size(),
                                 "; old K and V would not fit");
    }
    for (size_t t = 0; t < prompt.size(); ++t) {
      const int32_t id = t < ids_.size() ? ids_[t] : suffix[t - ids_.size()];
      if (prompt[t] != id) {
        return Refuse("token ", t, " of the prompt is ", prompt[t],
                                   "; the chunks and the suffix have ", id);
      }
    }
  }
  ids_.insert(ids_.end(), suffix.begin(), suffix.end());
  suffix_len_ = static_cast<int64_t>(suffix.size());
  return absl::OkStatus();
}

BlendState BlendSession::StateOf(int layer) const {
  if (layer < config_.check_layers[0].layer) return BlendState::kFullPrefill;
  for (const BlendCheck& check : config_.check_layers) {
    if (check.layer == layer) return BlendState::kCheck;
  }
  return BlendState::kReuse;
}

int64_t BlendSession::NumAttendedRows(int layer) const {
  double ratio = 1;
  for (const BlendCheck& check : config_.check_layers) {
    if (check.layer <= layer) ratio = check.ratio;
  }
  return num_rows() - num_old_rows_ + HkvdCount(num_old_rows_, 0, ratio);
}

}  // namespace kvblocks::attention
