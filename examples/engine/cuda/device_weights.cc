#include "examples/engine/cuda/device_weights.h"

#include <bit>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"
#include "examples/engine/cuda/step_kernels.h"

namespace kvblocks::engine {
namespace {

namespace cuda = attention::cuda;

Bf16Bits ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<Bf16Bits>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// The parts one behind the other.
absl::Status UploadTo(DeviceArray& to, const char* what,
                      std::initializer_list<absl::Span<const float>> parts) {
  std::vector<Bf16Bits> values;
  for (const auto part : parts) {
    for (const float value : part) values.push_back(ToBf16(value));
  }
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(Bf16Bits));
  KVBLOCKS_ASSIGN_OR_RETURN(to, DeviceArray::Create(what, bytes));
  cuda::Error error =
      cuda::CopyAsync(to.as<void>(), values.data(), static_cast<size_t>(bytes), nullptr);
  if (error == 0) error = cuda::Synchronize(nullptr);
  return cuda::StatusOf(what, error);
}

}  // namespace

float RoundToBf16(float value) { return std::bit_cast<float>(uint32_t{ToBf16(value)} << 16); }

absl::Status DeviceWeights::Check(const ModelConfig& config) {
  const ModelFacts& facts = config.facts;
  const char* refused = nullptr;
  if (facts.latent || facts.experts) refused = "latent attention or experts";
  if (facts.layer_pattern.find_first_not_of('F') != std::string::npos) {
    refused = "layers without full attention";
  }
  if (config.is_gemma || config.activation.kind != Activation::Kind::kSilu ||
      config.rotary.interleaved || config.attention_soft_cap > 0 || config.logit_soft_cap > 0 ||
      facts.sink_bias) {
    refused = "Gemma's norms, soft caps, sinks, or another activation than SiLU";
  }
  if (static_cast<int64_t>(config.rotary.frequencies.size()) * 2 != facts.head_size) {
    refused = "a rotary embedding of a part of each head";
  }
  if (facts.hidden_size % 8 != 0 || facts.intermediate_size % 8 != 0 ||
      facts.intermediate_size == 0 || facts.vocab_size % 8 != 0 || facts.head_size % 16 != 0) {
    refused = "sizes that do not divide by 8, or heads that do not by 16";
  }
  if (refused == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "the engine on GPUs runs dense models of Llama's and Qwen3's shape, not one with ", refused,
      "; run it on the CPU"));
}

absl::StatusOr<DeviceWeights> DeviceWeights::Upload(const ModelConfig& config,
                                                    const Weights& weights) {
  KVBLOCKS_RETURN_IF_ERROR(Check(config));
  DeviceWeights made;
  KVBLOCKS_RETURN_IF_ERROR(UploadTo(made.embedding, "embedding", {weights.embedding.weight}));
  if (!weights.head.absent()) {
    KVBLOCKS_RETURN_IF_ERROR(UploadTo(made.head, "head", {weights.head.weight}));
  }
  KVBLOCKS_RETURN_IF_ERROR(UploadTo(made.norm, "norm", {weights.norm}));
  for (const LayerWeights& from : weights.layers) {
    for (const Linear* linear :
         {&from.q, &from.k, &from.v, &from.o, &from.mlp.gate, &from.mlp.up, &from.mlp.down}) {
      if (linear->bias.empty()) continue;
      return absl::UnimplementedError(absl::StrCat(
          "model.layers.", made.layers.size(),
          ": it has a bias, which the engine on GPUs does not add; run it on the CPU"));
    }
    Layer& to = made.layers.emplace_back();
    KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.attention_norm, "norm", {from.attention_norm}));
    KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.mlp_norm, "norm", {from.mlp_norm}));
    if (!from.q_norm.empty()) {
      KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.q_norm, "norm", {from.q_norm}));
      KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.k_norm, "norm", {from.k_norm}));
    }
    KVBLOCKS_RETURN_IF_ERROR(
        UploadTo(to.qkv, "qkv", {from.q.weight, from.k.weight, from.v.weight}));
    KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.o, "o", {from.o.weight}));
    KVBLOCKS_RETURN_IF_ERROR(
        UploadTo(to.gate_up, "gate and up", {from.mlp.gate.weight, from.mlp.up.weight}));
    KVBLOCKS_RETURN_IF_ERROR(UploadTo(to.down, "down", {from.mlp.down.weight}));
  }
  return made;
}

absl::StatusOr<DeviceWeights> DeviceWeights::Random(const ModelConfig& config, bool head_norms,
                                                    const Fill& fill) {
  KVBLOCKS_RETURN_IF_ERROR(Check(config));
  const ModelFacts& facts = config.facts;
  const int64_t hidden = facts.hidden_size, queries = facts.num_heads * facts.head_size;
  const int64_t keys = facts.num_kv_heads * facts.head_size;
  const auto ones = [](DeviceArray& to, int64_t size) {
    return UploadTo(to, "norm", {std::vector<float>(static_cast<size_t>(size), 1.0f)});
  };
  // So large that what comes out is as large as what goes in.
  const auto matrix = [&fill](DeviceArray& to, const char* what, int64_t in, int64_t out) {
    KVBLOCKS_ASSIGN_OR_RETURN(to, DeviceArray::Create(what, in * out * int64_t{sizeof(Bf16Bits)}));
    return fill(to, in * out, 1 / std::sqrt(static_cast<float>(in)));
  };
  DeviceWeights made;
  KVBLOCKS_RETURN_IF_ERROR(matrix(made.embedding, "embedding", hidden, facts.vocab_size));
  if (!facts.tied_embeddings) {
    KVBLOCKS_RETURN_IF_ERROR(matrix(made.head, "head", hidden, facts.vocab_size));
  }
  KVBLOCKS_RETURN_IF_ERROR(ones(made.norm, hidden));
  for (int64_t i = 0; i < facts.num_layers(); ++i) {
    Layer& to = made.layers.emplace_back();
    KVBLOCKS_RETURN_IF_ERROR(ones(to.attention_norm, hidden));
    KVBLOCKS_RETURN_IF_ERROR(ones(to.mlp_norm, hidden));
    if (head_norms) {
      KVBLOCKS_RETURN_IF_ERROR(ones(to.q_norm, facts.head_size));
      KVBLOCKS_RETURN_IF_ERROR(ones(to.k_norm, facts.head_size));
    }
    KVBLOCKS_RETURN_IF_ERROR(matrix(to.qkv, "qkv", hidden, queries + 2 * keys));
    KVBLOCKS_RETURN_IF_ERROR(matrix(to.o, "o", queries, hidden));
    KVBLOCKS_RETURN_IF_ERROR(
        matrix(to.gate_up, "gate and up", hidden, 2 * facts.intermediate_size));
    KVBLOCKS_RETURN_IF_ERROR(matrix(to.down, "down", facts.intermediate_size, hidden));
  }
  return made;
}

int64_t DeviceWeights::BytesPerStep() const {
  int64_t bytes = head.absent() ? embedding.bytes() : head.bytes();
  for (const Layer& layer : layers) {
    for (const DeviceArray* array : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += array->bytes();
    }
  }
  return bytes;
}

}  // namespace kvblocks::engine
