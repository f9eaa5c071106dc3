#include "kvblocks/attention/blend/blend_checks.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/ops/arg_checker.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {
namespace {

absl::Status Refuse(const std::string& what) { return InvalidArgument("RunBlend: ", what); }

absl::Status CheckSession(const BlendConfig& config, const BlendStep& step, DeviceId device,
                          int64_t b) {
  const BlendSession& session = *step.sessions[b];
  if (!session.planned()) {
    return FailedPrecondition("RunBlend: session ", b, " is not planned; call Plan first");
  }
  const BlendConfig& own = session.config();
  if (config.num_layers != own.num_layers || config.num_heads != own.num_heads ||
      config.num_kv_heads != own.num_kv_heads || config.head_dim != own.head_dim ||
      config.hidden_size != own.hidden_size || config.dtype != own.dtype ||
      config.theta != own.theta || config.rotary_dim != own.rotary_dim ||
      config.pairs != own.pairs) {
    return Refuse(absl::StrCat("session ", b, " is of another model than the run; run them apart"));
  }
  const int64_t length = step.metadata->host_seq_lens[b];
  const int64_t rows =
      step.metadata->host_query_start_loc[b + 1] - step.metadata->host_query_start_loc[b];
  if (length != session.num_tokens() || length - rows != session.num_computed_tokens()) {
    return Refuse(absl::StrCat("request ", b, " of the metadata has ", length - rows,
                               " computed tokens of ", length, ", session ", b, " ",
                               session.num_computed_tokens(), " of ", session.num_tokens(),
                               "; a session runs in one step, behind what was computed when it was "
                               "made"));
  }
  if (step.num_registered_tokens[b] > session.num_computed_tokens()) {
    return FailedPrecondition(
        "RunBlend: request ", b, " of the metadata has ", step.num_registered_tokens[b],
        " tokens in the prefix cache, of which session ", b, " writes those behind the first ",
        session.num_computed_tokens(),
        "; other requests would hit them: evict its blocks and make the request with "
        "skip_writing_prefix_cache");
  }
  for (size_t i = 0; i < session.pieces().size(); ++i) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (const ConstTensorView* rows_of :
           {&session.pieces()[i].k[layer], &session.pieces()[i].v[layer]}) {
        if (rows_of->device == device || (rows_of->device.on_host() && device.on_host())) continue;
        return Refuse(absl::StrCat("session ", b, " has rows of a chunk in layer ", layer, " on ",
                                   Name(rows_of->device), "; the run is on ", Name(device)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBlendStep(const ExecContext& context, const BlendConfig& config,
                            const BlendStep& step, const BlendModel& model) {
  if (model.project == nullptr || model.attend == nullptr || model.finish == nullptr) {
    return Refuse("the model lacks project, attend or finish");
  }
  if (step.metadata == nullptr) return Refuse("the step has no metadata");
  const CommonAttentionMetadata& metadata = *step.metadata;
  const auto requests = static_cast<size_t>(metadata.num_reqs);
  if (metadata.host_query_start_loc.size() != requests + 1 ||
      metadata.host_seq_lens.size() != requests) {
    return Refuse(absl::StrCat("the metadata has ", metadata.host_query_start_loc.size(),
                               " starts and ", metadata.host_seq_lens.size(),
                               " lengths on the host; its ", requests, " requests need ",
                               requests + 1, " and ", requests));
  }
  if (!metadata.causal || metadata.chunk > 0 || !metadata.custom_mask.null()) {
    return Refuse(
        "the metadata is not causal, or of pieces, or has a custom mask; selected rows see the "
        "keys up to their position");
  }
  if (step.sessions.size() != requests) {
    return Refuse(absl::StrCat("there are ", step.sessions.size(), " sessions; the metadata has ",
                               requests, " requests, each with its own or null"));
  }
  const bool blends = std::any_of(step.sessions.begin(), step.sessions.end(),
                                  [](const BlendSession* session) { return session != nullptr; });
  if (blends && step.num_registered_tokens.size() != requests) {
    return Refuse(absl::StrCat("num_registered_tokens has ", step.num_registered_tokens.size(),
                               " entries; the metadata has ", requests,
                               " requests: tell of each what the prefix cache has of it"));
  }
  if (static_cast<int64_t>(step.layers.size()) != config.num_layers) {
    return Refuse(absl::StrCat("there are caches of ", step.layers.size(),
                               " layers; the model has ", config.num_layers));
  }
  const int64_t num_tokens = metadata.num_actual_tokens;
  if (metadata.host_query_start_loc[0] != 0 ||
      metadata.host_query_start_loc[requests] != num_tokens) {
    return Refuse(absl::StrCat(
        "the requests of the metadata have rows ", metadata.host_query_start_loc[0], " to ",
        metadata.host_query_start_loc[requests], "; num_actual_tokens is ", num_tokens));
  }
  for (size_t b = 0; b < requests; ++b) {
    const int64_t rows =
        int64_t{metadata.host_query_start_loc[b + 1]} - metadata.host_query_start_loc[b];
    if (rows < 0 || rows > metadata.host_seq_lens[b]) {
      return Refuse(absl::StrCat("request ", b, " of the metadata has ", rows, " new tokens of ",
                                 metadata.host_seq_lens[b]));
    }
    if (step.sessions[b] == nullptr) continue;
    KVBLOCKS_RETURN_IF_ERROR(CheckSession(config, step, context.device, static_cast<int64_t>(b)));
  }
  ArgChecker check(context, "RunBlend");
  if (!check.View("hidden", step.hidden, config.dtype) ||
      !check.View("slot_mapping", metadata.slot_mapping, DType::kI64)) {
    return check.status();
  }
  if (step.hidden.rank != 2 || step.hidden.extent[0] != num_tokens ||
      step.hidden.extent[1] != config.hidden_size) {
    return Refuse(absl::StrCat("hidden is ", step.hidden.DebugString(), "; it must be ",
                               Name(config.dtype), "[", num_tokens, ", ", config.hidden_size, "]"));
  }
  if (metadata.slot_mapping.rank != 1 || metadata.slot_mapping.extent[0] < num_tokens) {
    return Refuse(absl::StrCat("slot_mapping is ", metadata.slot_mapping.DebugString(),
                               "; it must have the step's ", num_tokens, " tokens"));
  }
  if (!context.device.on_host()) {
    if (step.work.absent()) {
      return Refuse("the step has no work memory; on a device provide BlendWorkBytes");
    }
    if (step.upload == nullptr) {
      return Refuse("the step cannot upload; on a device it must");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
