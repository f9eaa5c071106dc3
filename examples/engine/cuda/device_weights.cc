#include "examples/engine/cuda/device_weights.h"

#include <bit>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

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
                      const std::vector<absl::Span<const float>>& parts) {
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

absl::Status DeviceWeights::Check(const ModelConfig& config, const Weights& weights) {
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
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.mlp.gate,
                                 &layer.mlp.up, &layer.mlp.down}) {
      if (!linear->bias.empty()) refused = "biases";
    }
  }
  if (refused == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "the engine on GPUs runs dense models of Llama's and Qwen3's shape, not one with ", refused,
      "; run it on the CPU, with attention on the GPU"));
}

absl::StatusOr<DeviceWeights> DeviceWeights::Make(const ModelConfig& config, const Weights& from,
                                                  bool head_norms, const Fill& fill) {
  KVBLOCKS_RETURN_IF_ERROR(Check(config, from));
  const ModelFacts& facts = config.facts;
  const int64_t hidden = facts.hidden_size, queries = facts.num_heads * facts.head_size;
  const int64_t keys = facts.num_kv_heads * facts.head_size, inner = facts.intermediate_size;
  absl::Status status;
  const auto norm = [&](DeviceArray& to, int64_t size, const std::vector<float>& values) {
    const std::vector<float> ones(fill ? static_cast<size_t>(size) : 0, 1.0f);
    if (status.ok()) status = UploadTo(to, "norm", {fill ? ones : values});
  };
  const auto matrix = [&](DeviceArray& to, const char* what, int64_t in, int64_t out,
                          std::initializer_list<const Linear*> parts) {
    if (!status.ok()) return;
    if (!fill) {
      std::vector<absl::Span<const float>> values;
      for (const Linear* part : parts) values.push_back(part->weight);
      status = UploadTo(to, what, values);
      return;
    }
    auto made = DeviceArray::Create(what, in * out * int64_t{sizeof(Bf16Bits)});
    status = made.status();
    if (!status.ok()) return;
    to = *std::move(made);
    // So large that what comes out is as large as what goes in.
    status = fill(to, in * out, 1 / std::sqrt(static_cast<float>(in)));
  };
  DeviceWeights made;
  matrix(made.embedding, "embedding", hidden, facts.vocab_size, {&from.embedding});
  if (!facts.tied_embeddings) matrix(made.head, "head", hidden, facts.vocab_size, {&from.head});
  norm(made.norm, hidden, from.norm);
  const LayerWeights none;
  for (int64_t i = 0; i < facts.num_layers(); ++i) {
    const LayerWeights& own = fill ? none : from.layers[static_cast<size_t>(i)];
    Layer& to = made.layers.emplace_back();
    norm(to.attention_norm, hidden, own.attention_norm);
    norm(to.mlp_norm, hidden, own.mlp_norm);
    if (head_norms || !own.q_norm.empty()) {
      norm(to.q_norm, facts.head_size, own.q_norm);
      norm(to.k_norm, facts.head_size, own.k_norm);
    }
    matrix(to.qkv, "qkv", hidden, queries + 2 * keys, {&own.q, &own.k, &own.v});
    matrix(to.o, "o", queries, hidden, {&own.o});
    matrix(to.gate_up, "gate and up", hidden, 2 * inner, {&own.mlp.gate, &own.mlp.up});
    matrix(to.down, "down", inner, hidden, {&own.mlp.down});
  }
  KVBLOCKS_RETURN_IF_ERROR(status);
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
