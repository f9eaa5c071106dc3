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
  Raise("KVBlocksError",
        absl::StrCat("add_layer: the cache is on ", attention::Name(device),
                     ", and this package was built without CUDA; docs/python.md says how to build "
                     "it with CUDA"));
#endif
}

void AddLayer(PyForwardContext& self, LayerConfig config, nb::handle cache, nb::handle sinks,
              nb::handle alibi_slopes) {
  const auto& held = nb::cast<const PyKvCache&>(cache);
  if (held.is_read_only) {
    Raise("InvalidArgumentError", "add_layer: cache is read-only; layers store into it");
  }
  config.num_kv_heads = config.latent_rank > 0 ? 1 : held.view.num_kv_heads();
  config.sinks = self.Keep(sinks);
  config.alibi_slopes = self.Keep(alibi_slopes);
  auto layer = Value(BackendOf(held.view.k.device).MakeImpl(config));
  Check(self.core.AddLayer(std::move(layer), held.view));
  self.caches.push_back(nb::borrow(cache));
}

// Everything is looked at before the last step's metadata go.
void SetMetadata(PyForwardContext& self, nb::handle given) {
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

nb::object Attend(PyForwardContext& self, const std::string& layer, nb::handle q, nb::handle k,
                  nb::handle v, nb::handle out, nb::handle stream, PyWorkspace* workspace,
                  PyThreadPool* threads) {
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

  nb::class_<PyForwardContext>(module, "ForwardContext",
                               R"(Layers by name, with their caches, and the metadata of a step.

What model code calls: unified_attention stores the step's keys and values and attends, decodes and
prefills each by their own operation. Layers run where their cache is. kvblocks.torch_ops makes an
operator of torch of it. One thread at a time.)")
      .def(nb::init<>())
      .def(
          "add_layer",
          [](PyForwardContext& self, std::string name, nb::handle_t<PyKvCache> cache,
             int64_t num_heads, int64_t head_size, int64_t value_head_size, float scale,
             float soft_cap, int64_t window, int64_t chunk, nb::handle sinks,
             nb::handle alibi_slopes, std::string shares_cache_of) {
            const auto& view = nb::cast<const PyKvCache&>(cache).view;
            LayerConfig config;
            config.name = std::move(name);
            config.num_heads = num_heads;
            config.head_size = head_size;
            config.value_head_size = value_head_size;
            config.scale = scale, config.soft_cap = soft_cap;
            config.window = window, config.chunk = chunk;
            config.shares_cache_of = std::move(shares_cache_of);
            if (attention::IsMla(view.layout)) {
              config.latent_rank = view.value_dim();
              config.rotary_dim = view.key_dim() - view.value_dim();
            } else {
              if (head_size == 0) config.head_size = view.key_dim();
              if (value_head_size == 0) config.value_head_size = view.value_dim();
            }
            AddLayer(self, std::move(config), cache, sinks, alibi_slopes);
          },
          nb::arg("name"), nb::arg("cache"), nb::kw_only(), nb::arg("num_heads"),
          nb::arg("head_size") = 0, nb::arg("value_head_size") = 0, nb::arg("scale") = 0.0f,
          nb::arg("soft_cap") = 0.0f, nb::arg("window") = 0, nb::arg("chunk") = 0,
          nb::arg("sinks") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
          nb::arg("shares_cache_of") = "",
          nb::sig("def add_layer(self, name: str, cache: KVCache, *, num_heads: int, head_size: "
                  "int = 0, value_head_size: int = 0, scale: float = 0.0, soft_cap: float = 0.0, "
                  "window: int = 0, chunk: int = 0, sinks: Array | None = None, alibi_slopes: "
                  "Array | None = None, shares_cache_of: str = \"\") -> None"),
          R"(head_size, value_head_size: 0 is the cache's; of a latent cache, whose queries are
absorbed, head_size is that before absorption and gives the scale. scale: 0 is 1 / sqrt(head_size).
window: tokens, the query included; 0 is all. sinks, alibi_slopes: float32 [H]. shares_cache_of: the
layer whose cache this one reads; it stores nothing.)")
      .def("set_metadata", &SetMetadata, nb::arg("metadata"),
           nb::sig("def set_metadata(self, metadata: AttentionMetadata | dict[str, "
                   "AttentionMetadata] | None) -> None"),
           "Of the step, for all layers or by layer; after each build, again. None: nothing is "
           "stored, and outputs are zeros (profiling).")
      .def(
          "output_shape",
          [](const PyForwardContext& self, const std::string& layer, std::vector<int64_t> q_shape) {
            nb::list extents;
            for (const int64_t extent : OutputShape({"output_shape", {}}, self, layer, q_shape)) {
              extents.append(extent);
            }
            return nb::tuple(extents);
          },
          nb::arg("layer"), nb::arg("q_shape"),
          nb::sig("def output_shape(self, layer: str, q_shape: Sequence[int]) -> tuple[int, ...]"),
          "What a layer makes of q [T, H, D] or [T, H * D]; its type is q's.")
      .def("unified_attention", &Attend, nb::arg("layer"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("out") = nb::none(), nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("workspace") = nb::none(), nb::arg("threads") = nb::none(),
           nb::sig("def unified_attention(self, layer: str, q: Array, k: Array, v: Array, out: "
                   "Array | None = None, *, stream: Stream = None, workspace: Workspace | None = "
                   "None, threads: ThreadPool | None = None) -> Any"),
           R"(Stores k and v of the step's tokens and attends.

q [T, H, D] or [T, H * D], k and v with Hkv heads alike; of a latent cache k is kv_c [T, R_kv] and v
k_pe [T, R_pe]. Rows past the metadata's tokens are padding; their output is zeros. Returns out, of
output_shape.)");
}

}  // namespace kvblocks::python
