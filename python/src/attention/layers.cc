// Layers by name: attention as model code calls it.

#include <nanobind/stl/string.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"
#include "python/src/attention/op_call.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "kvblocks/attention_cuda.h"
#endif

namespace kvblocks::python {

using attention::CommonAttentionMetadata;
using attention::ConstTensorView;
using attention::ForwardContext;
using attention::LayerConfig;

namespace {

// Python's ForwardContext, with what its layers and the step read.
struct PyForwardContext {
  ForwardContext core;
  std::vector<nb::object> caches, steps;  // kept alive
  std::deque<PyTensor> tensors;           // sinks and slopes
  std::deque<CommonAttentionMetadata> metadata;

  PyForwardContext() = default;
  PyForwardContext(const PyForwardContext&) = delete;
  PyForwardContext& operator=(const PyForwardContext&) = delete;

  ConstTensorView Keep(nb::handle array) {
    if (array.is_none()) return {};
    return tensors.emplace_back(array, nb::none()).imported.view;
  }
};

const attention::AttentionBackend& BackendOf(const attention::DeviceId& device) {
  if (device.on_host()) return attention::CpuBackend();
#ifdef KVBLOCKS_WITH_CUDA
  return attention::CudaBackend();
#else
  Raise("KVBlocksError", absl::StrCat("add_layer: the cache is on ", attention::Name(device),
                                      ", and this package was built without CUDA; docs/python.md "
                                      "says how to build it with CUDA"));
#endif
}

struct NewLayer : LayerConfig {
  nb::handle sinks, alibi_slopes;
};

void AddLayer(NewLayer layer, PyForwardContext& self, std::string name,
              nb::handle_t<PyKvCache> cache) {
  const auto& held = nb::cast<const PyKvCache&>(cache);
  const attention::KvCacheView& view = held.view;
  if (held.is_read_only) {
    Raise("InvalidArgumentError", "add_layer: cache is read-only; layers store into it");
  }
  LayerConfig config = layer;
  config.name = std::move(name);
  config.num_kv_heads = view.num_kv_heads();
  if (attention::IsMla(view.layout)) {
    config.latent_rank = view.value_dim();
    config.rotary_dim = view.key_dim() - view.value_dim();
    if (config.latent_rank > 0) config.num_kv_heads = 1;
  } else {
    if (config.head_size == 0) config.head_size = view.key_dim();
    if (config.value_head_size == 0) config.value_head_size = view.value_dim();
  }
  config.sinks = self.Keep(layer.sinks);
  config.alibi_slopes = self.Keep(layer.alibi_slopes);
  Check(self.core.AddLayer(Value(BackendOf(view.k.device).MakeImpl(config)), view));
  self.caches.push_back(nb::borrow(cache));
}

// Everything is looked at before the last step's metadata go.
void SetMetadata(PyForwardContext& self,
                 Argument<"AttentionMetadata | dict[str, AttentionMetadata]"> given) {
  std::deque<CommonAttentionMetadata> metadata;
  std::vector<nb::object> steps;
  const auto keep = [&](nb::handle object) {
    steps.push_back(nb::borrow(object));
    return &metadata.emplace_back(MetadataFrom(object));
  };
  ForwardContext::Metadata all = static_cast<const CommonAttentionMetadata*>(nullptr);
  if (nb::isinstance<nb::dict>(given)) {
    ForwardContext::MetadataByLayer by_layer;
    for (const auto& [layer, one] : nb::cast<nb::dict>(given)) {
      by_layer[nb::str(layer).c_str()] = keep(one);
    }
    all = std::move(by_layer);
  } else if (!given.is_none()) {
    all = keep(given);
  }
  self.core.SetMetadata(std::move(all));
  self.metadata = std::move(metadata);
  self.steps = std::move(steps);
}

std::vector<int64_t> OutputShape(const OpCall& call, const PyForwardContext& self,
                                 const std::string& layer, absl::Span<const int64_t> q_shape) {
  const auto found = self.core.Find(layer);
  if (!found.ok()) call.Refuse(found.status());
  auto shape = attention::InferOutput(found->impl->config(), q_shape, attention::DType::kF32);
  if (!shape.ok()) call.Refuse(shape.status());
  return std::move(shape->extents);
}

AnyObject Attend(PyForwardContext& self, const std::string& layer, Array q, Array k, Array v,
                 Array out, Stream stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("unified_attention", {stream, workspace, threads});
  const ConstTensorView q_view = call.In("q", q), k_view = call.In("k", k),
                        v_view = call.In("v", v);
  const std::vector<int64_t> shape =
      OutputShape(call, self, layer, absl::MakeConstSpan(q_view.extent).first(q_view.rank));
  attention::TensorView out_view;
  nb::object result = call.Out("out", out, q, shape, &out_view);
  const attention::ExecContext context = call.Context();
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status =
        attention::UnifiedAttention(context, self.core, layer, q_view, k_view, v_view, out_view);
  }
  if (!status.ok()) call.Refuse(status);
  return result;
}

}  // namespace

void BindLayers(nb::module_& module) {
  nb::list mutates;
  for (const char* argument : attention::kUnifiedAttentionMutates) mutates.append(argument);
  module.attr("unified_attention_mutates") = nb::tuple(mutates);

  nb::class_<PyForwardContext> context(
      module, "ForwardContext",
      R"(Layers by name, with their caches, and the metadata of a step.

What model code calls: unified_attention stores the step's keys and values and attends, decodes and
prefills each by their own operation. Layers run where their cache is. kvblocks.torch_ops makes an
operator of torch of it. One thread at a time.)");
  context.def(nb::init<>());
  Define(context, "add_layer", &AddLayer,
         R"(head_size, value_head_size: 0 is the cache's; of a latent cache, whose queries are
absorbed, head_size is that before absorption and gives the scale. scale: 0 is 1 / sqrt(head_size).
window: tokens, the query included; 0 is all. sinks, alibi_slopes: float32 [H]. shares_cache_of: the
layer whose cache this one reads; it stores nothing.)",
         std::tuple(nb::arg("name"), nb::arg("cache")), Parameters(),
         Parameters(Number<int64_t>("num_heads", &NewLayer::num_heads),
                    Field("head_size", &NewLayer::head_size),
                    Field("value_head_size", &NewLayer::value_head_size),
                    Field("scale", &NewLayer::scale), Field("soft_cap", &NewLayer::soft_cap),
                    Field("window", &NewLayer::window), Field("chunk", &NewLayer::chunk),
                    Optional<Array>("sinks", &NewLayer::sinks),
                    Optional<Array>("alibi_slopes", &NewLayer::alibi_slopes),
                    Field("shares_cache_of", &NewLayer::shares_cache_of)));
  context
      .def("set_metadata", &SetMetadata, nb::arg("metadata").none(),
           "Of the step, for all layers or by layer; after each build, again. None: nothing is "
           "stored, and outputs are zeros (profiling).")
      .def(
          "output_shape",
          [](const PyForwardContext& self, const std::string& layer, std::vector<int64_t> q_shape) {
            return TupleOf(OutputShape({"output_shape", {}}, self, layer, q_shape));
          },
          nb::arg("layer"), nb::arg("q_shape"),
          "What a layer makes of q [T, H, D] or [T, H * D]; its type is q's.")
      .def("unified_attention", &Attend, nb::arg("layer"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("out") = nb::none(), nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("workspace") = nb::none(), nb::arg("threads") = nb::none(),
           R"(Stores k and v of the step's tokens and attends.

q [T, H, D] or [T, H * D], k and v with Hkv heads alike; of a latent cache k is kv_c [T, R_kv] and v
k_pe [T, R_pe]. Rows past the metadata's tokens are padding; their output is zeros. Returns out, of
output_shape.)");
}

}  // namespace kvblocks::python
