// Operations that move and fill whole blocks.

#include "attention/cpu/block_ops.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "python/src/attention/op_call.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "attention/cuda/block_ops.h"
#endif

namespace kvblocks::python {
namespace {

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// Raises what `host` or, on CUDA, `device` refuses.
template <typename Host, typename Device>
void Run(OpCall& call, const Host& host, const Device& device) {
  const attention::ExecContext context = call.Context();
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status = context.device.on_host() ? host(context) : device(context);
  }
  if (!status.ok()) call.Refuse(status);
}
// What there is of CUDA. Without it Context() has refused its arrays already.
#ifdef KVBLOCKS_WITH_CUDA
#define KVBLOCKS_ON_CUDA(call) \
  [&](const attention::ExecContext& context) { return attention::cuda::Cuda##call; }
#else
#define KVBLOCKS_ON_CUDA(call) \
  [](const attention::ExecContext&) { return absl::UnimplementedError("built without CUDA"); }
#endif
#define KVBLOCKS_ON_HOST(call) \
  [&](const attention::ExecContext& context) { return attention::call; }

void CopyBlocks(const std::vector<const PyKvCache*>& caches, const Pairs& pairs, nb::handle stream,
                PyThreadPool* threads) {
  OpCall call("copy_blocks", {stream, nullptr, threads});
  std::vector<attention::KvCacheView> views;
  for (size_t i = 0; i < caches.size(); ++i) {
    if (caches[i] == nullptr) call.Refuse(absl::StrCat("caches[", i, "] is None; a KVCache"));
    views.push_back(call.Out(absl::StrCat("caches[", i, "]").c_str(), *caches[i]));
  }
  if (views.empty()) return;
  Run(call, KVBLOCKS_ON_HOST(CopyBlocks(context, views, pairs)),
      KVBLOCKS_ON_CUDA(CopyBlocks(context, views, pairs)));
}

void SwapBlocks(const PyKvCache& src, const PyKvCache& dst, const Pairs& pairs, nb::handle stream,
                PyThreadPool* threads) {
  OpCall call("swap_blocks", {stream, nullptr, threads});
  // The one on CUDA, if either is, says where.
  if (!src.view.k.device.on_host()) call.In(src);
  const attention::KvCacheView to = call.Out("dst", dst);
  const attention::ConstKvCacheView from = call.In(src);
  Run(call, KVBLOCKS_ON_HOST(SwapBlocks(context, from, to, pairs)),
      KVBLOCKS_ON_CUDA(SwapBlocks(context, from, to, pairs)));
}

void ConvertLayout(const PyKvCache& src, const PyKvCache& dst, nb::handle stream,
                   PyThreadPool* threads) {
  OpCall call("convert_layout", {stream, nullptr, threads});
  const attention::ConstKvCacheView from = call.In(src);
  const attention::KvCacheView to = call.Out("dst", dst);
  Run(call, KVBLOCKS_ON_HOST(ConvertLayout(context, from, to)),
      KVBLOCKS_ON_CUDA(ConvertLayout(context, from, to)));
}

void FillBlocks(const PyKvCache& cache, const std::vector<int32_t>& block_ids, int byte,
                nb::handle stream, PyThreadPool* threads) {
  OpCall call("fill_blocks", {stream, nullptr, threads});
  if (byte < 0 || byte > 255) call.Refuse(absl::StrCat("byte is ", byte, "; 0 to 255"));
  const attention::KvCacheView to = call.Out("cache", cache);
  const auto value = static_cast<std::byte>(byte);
  Run(call, KVBLOCKS_ON_HOST(FillBlocks(context, to, block_ids, value)),
      KVBLOCKS_ON_CUDA(FillBlocks(context, to, block_ids, value)));
}

#undef KVBLOCKS_ON_CUDA
#undef KVBLOCKS_ON_HOST

}  // namespace

void BindBlockOps(nb::module_& module) {
#define KVBLOCKS_MOVE_ARGS nb::arg("stream") = nb::none(), nb::arg("threads") = nb::none()
#define KVBLOCKS_MOVE_SIG "stream: Stream = None, threads: ThreadPool | None = None) -> None"
  module.def("copy_blocks", &CopyBlocks, nb::arg("caches"), nb::arg("pairs"), nb::kw_only(),
             KVBLOCKS_MOVE_ARGS,
             nb::sig("def copy_blocks(caches: Sequence[KVCache], pairs: Pairs, "
                     "*, " KVBLOCKS_MOVE_SIG),
             R"(Within each cache (one per layer), block pair[0] over block pair[1]: copy-on-write.

Refused before anything is moved: ids outside of the cache, a destination given twice or also a
source, caches that share memory. Pairs are read on the host; on CUDA they travel with the call.)");
  module.def(
      "swap_blocks", &SwapBlocks, nb::arg("src"), nb::arg("dst"), nb::arg("pairs"), nb::kw_only(),
      KVBLOCKS_MOVE_ARGS,
      nb::sig("def swap_blocks(src: KVCache, dst: KVCache, pairs: Pairs, "
              "*, " KVBLOCKS_MOVE_SIG),
      R"(Block pair[0] of src over block pair[1] of dst, another cache with blocks of the same kind.

One may be in pinned host memory and the other on CUDA: how blocks are swapped out and back in.)");
  module.def(
      "convert_layout", &ConvertLayout, nb::arg("src"), nb::arg("dst"), nb::kw_only(),
      KVBLOCKS_MOVE_ARGS,
      nb::sig("def convert_layout(src: KVCache, dst: KVCache, *, " KVBLOCKS_MOVE_SIG),
      R"(All slots of src into dst, of the same blocks, heads, dims and type, but maybe another
layout.

"paged_x", "nhd" and "hnd" convert into each other, "mla_latent" and "mla_split" do. Bits are moved,
not converted.)");
  module.def("fill_blocks", &FillBlocks, nb::arg("cache"), nb::arg("block_ids"),
             nb::arg("byte") = 0, nb::kw_only(), KVBLOCKS_MOVE_ARGS,
             nb::sig("def fill_blocks(cache: KVCache, block_ids: Ids, byte: int = 0, "
                     "*, " KVBLOCKS_MOVE_SIG),
             "Every byte of these blocks, and no other, becomes `byte`.");
#undef KVBLOCKS_MOVE_ARGS
#undef KVBLOCKS_MOVE_SIG
}

}  // namespace kvblocks::python
