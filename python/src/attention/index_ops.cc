// Slots of tokens and lists of slots, on the host and on a GPU.

#include <nanobind/stl/optional.h>

#include <type_traits>

#include "kvblocks/attention/metadata/compressed_indices.h"
#include "kvblocks/attention/metadata/slot_mapping.h"
#include "kvblocks/attention/metadata/window_indices.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "kvblocks/attention/cuda/index_ops.h"
#define KVBLOCKS_ON_CUDA(Operation) &attention::cuda::Cuda##Operation
#else
#define KVBLOCKS_ON_CUDA(Operation) nullptr
#endif

namespace kvblocks::python {
namespace {

template <typename Args>
using OnHost = absl::Status (*)(const Args&);
template <typename Args>
using OnCuda = absl::Status (*)(const attention::ExecContext&, const Args&);

// `on_cuda` is not called where there is no CUDA: the context refuses the device.
template <typename Args>
void RunIndexOp(OpCall& call, const Args& args, std::type_identity_t<OnHost<Args>> on_host,
                std::type_identity_t<OnCuda<Args>> on_cuda) {
  const attention::ExecContext context = call.Context();
  absl::Status status;
  if (context.device.on_host()) {
    status = on_host(args);
  } else {
    const nb::gil_scoped_release release;
    status = on_cuda(context, args);
  }
  if (!status.ok()) call.Refuse(status);
}

void ComputeSlotMapping(nb::handle query_start_loc, nb::handle positions, nb::handle block_table,
                        nb::handle slot_mapping, int64_t block_size, int64_t num_blocks,
                        int32_t null_block, int32_t num_null_blocks, nb::handle stream,
                        PyWorkspace* workspace) {
  OpCall call("compute_slot_mapping", {stream, workspace, nullptr});
  attention::SlotMappingArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.positions = call.In("positions", positions);
  args.block_table = call.In("block_table", block_table);
  args.slot_mapping = call.Out("slot_mapping", slot_mapping);
  args.block_size = block_size;
  args.num_blocks = num_blocks;
  args.null_blocks = {null_block, num_null_blocks};
  RunIndexOp(call, args, &attention::ComputeSlotMapping, KVBLOCKS_ON_CUDA(ComputeSlotMapping));
}

void BuildSwaIndices(nb::handle query_start_loc, nb::handle seq_lens, nb::handle block_table,
                     nb::handle indices, nb::handle lens, int64_t window, int64_t block_size,
                     int64_t num_blocks, nb::handle stream, PyWorkspace* workspace) {
  OpCall call("build_swa_indices", {stream, workspace, nullptr});
  attention::WindowIndicesArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.block_table = call.In("block_table", block_table);
  args.indices = call.Out("indices", indices);
  args.lens = call.Out("lens", lens);
  args.window = window;
  args.block_size = block_size;
  args.num_blocks = num_blocks;
  RunIndexOp(call, args, &attention::BuildSwaIndices, KVBLOCKS_ON_CUDA(BuildSwaIndices));
}

void BuildCompressedSlots(nb::handle query_start_loc, nb::handle positions, nb::handle block_table,
                          nb::handle slot_mapping, int64_t ratio, int64_t block_size,
                          int64_t num_blocks, nb::handle stream, PyWorkspace* workspace) {
  OpCall call("build_compressed_slots", {stream, workspace, nullptr});
  attention::CompressedSlotsArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.positions = call.In("positions", positions);
  args.block_table = call.In("block_table", block_table);
  args.slot_mapping = call.Out("slot_mapping", slot_mapping);
  args.ratio = ratio;
  args.block_size = block_size;
  args.num_blocks = num_blocks;
  RunIndexOp(call, args, &attention::BuildCompressedSlots, KVBLOCKS_ON_CUDA(BuildCompressedSlots));
}

void BuildTopkSlots(nb::handle query_start_loc, nb::handle indices, nb::handle block_table,
                    nb::handle slots, nb::handle counts, int64_t block_size, int64_t num_blocks,
                    nb::handle stream, PyWorkspace* workspace) {
  OpCall call("build_topk_slots", {stream, workspace, nullptr});
  attention::TopkSlotsArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.indices = call.In("indices", indices);
  args.block_table = call.In("block_table", block_table);
  args.slots = call.Out("slots", slots);
  args.counts = call.Out("counts", counts);
  args.block_size = block_size;
  args.num_blocks = num_blocks;
  RunIndexOp(call, args, &attention::BuildTopkSlots, KVBLOCKS_ON_CUDA(BuildTopkSlots));
}

void BuildDenseCompressedIndices(nb::handle query_start_loc, nb::handle positions,
                                 nb::handle indices, nb::handle lens, int64_t ratio,
                                 nb::handle stream, PyWorkspace* workspace) {
  OpCall call("build_dense_compressed_indices", {stream, workspace, nullptr});
  attention::DenseCompressedIndicesArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.positions = call.In("positions", positions);
  args.indices = call.Out("indices", indices);
  args.lens = call.Out("lens", lens);
  args.ratio = ratio;
  RunIndexOp(call, args, &attention::BuildDenseCompressedIndices,
             KVBLOCKS_ON_CUDA(BuildDenseCompressedIndices));
}

void CombinePrefillIndices(nb::handle query_start_loc, nb::handle seq_lens, nb::handle indices,
                           nb::handle lens, int64_t window, int64_t rows_per_request,
                           int64_t compressed_rows, int64_t ratio, nb::handle topk,
                           nb::handle stream, PyWorkspace* workspace) {
  OpCall call("combine_prefill_indices", {stream, workspace, nullptr});
  attention::PrefillIndicesArgs args;
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.topk = call.In("topk", topk);
  args.indices = call.Out("indices", indices);
  args.lens = call.Out("lens", lens);
  args.ratio = ratio;
  args.window = window;
  args.rows_per_request = rows_per_request;
  args.compressed_rows = compressed_rows;
  RunIndexOp(call, args, &attention::CombinePrefillIndices,
             KVBLOCKS_ON_CUDA(CombinePrefillIndices));
}

}  // namespace

#define KVBLOCKS_INDEX_ARGS nb::arg("stream") = nb::none(), nb::arg("workspace") = nb::none()
#define KVBLOCKS_INDEX_SIG "stream: Stream = None, workspace: Workspace | None = None) -> None"

void BindIndexOps(nb::module_& module) {
  module.def(
      "compute_slot_mapping", &ComputeSlotMapping, nb::arg("query_start_loc"), nb::arg("positions"),
      nb::arg("block_table"), nb::arg("slot_mapping"), nb::arg("block_size"), nb::kw_only(),
      nb::arg("num_blocks") = 0, nb::arg("null_block") = 0, nb::arg("num_null_blocks") = 1,
      KVBLOCKS_INDEX_ARGS,
      nb::sig("def compute_slot_mapping(query_start_loc: Array, positions: Array, block_table: "
              "Array, slot_mapping: Array, block_size: int, *, num_blocks: int = 0, null_block: "
              "int = 0, num_null_blocks: int = 1, " KVBLOCKS_INDEX_SIG),
      R"(The slot of each token: block_table[b][p // block_size] * block_size + p % block_size.

query_start_loc int32 [R + 1], positions int32 [T or more], block_table int32 [R or more, columns] -> slot_mapping
int64 [T or more]; -1 behind the last token and in the null blocks. num_blocks: of the cache; 0 is unknown.
On CUDA all index functions are one launch and read nothing back.)");
  module.def(
      "build_swa_indices", &BuildSwaIndices, nb::arg("query_start_loc"), nb::arg("seq_lens"),
      nb::arg("block_table"), nb::arg("indices"), nb::arg("lens"), nb::kw_only(), nb::arg("window"),
      nb::arg("block_size"), nb::arg("num_blocks") = 0, KVBLOCKS_INDEX_ARGS,
      nb::sig("def build_swa_indices(query_start_loc: Array, seq_lens: Array, block_table: Array, "
              "indices: Array, lens: Array, *, window: int, block_size: int, num_blocks: int = "
              "0, " KVBLOCKS_INDEX_SIG),
      R"(The slots that a window of tokens, the query included, sees, oldest first, then -1.

query_start_loc int32 [R + 1], seq_lens int32 [R], block_table int32 [R or more, columns] -> indices int32
[T or more, window], lens int32 [T or more].)");
  module.def(
      "build_compressed_slots", &BuildCompressedSlots, nb::arg("query_start_loc"),
      nb::arg("positions"), nb::arg("block_table"), nb::arg("slot_mapping"), nb::kw_only(),
      nb::arg("ratio"), nb::arg("block_size"), nb::arg("num_blocks") = 0, KVBLOCKS_INDEX_ARGS,
      nb::sig("def build_compressed_slots(query_start_loc: Array, positions: Array, block_table: "
              "Array, slot_mapping: Array, *, ratio: int, block_size: int, num_blocks: int = "
              "0, " KVBLOCKS_INDEX_SIG),
      R"(The row of a compressed cache that each token completes, or -1.

As compute_slot_mapping, of row p // ratio where (p + 1) % ratio == 0; block_size counts rows.)");
  module.def(
      "build_topk_slots", &BuildTopkSlots, nb::arg("query_start_loc"), nb::arg("indices"),
      nb::arg("block_table"), nb::arg("slots"), nb::arg("counts"), nb::kw_only(),
      nb::arg("block_size"), nb::arg("num_blocks") = 0, KVBLOCKS_INDEX_ARGS,
      nb::sig("def build_topk_slots(query_start_loc: Array, indices: Array, block_table: Array, "
              "slots: Array, counts: Array, *, block_size: int, num_blocks: int = "
              "0, " KVBLOCKS_INDEX_SIG),
      R"(Rows of a request as slots of the cache: what an indexer chose, as sparse_mla_decode takes it.

indices int32 [T or more, K], negative for none -> slots int32 [T or more, K], which may be indices, and counts
int32 [T or more] of those that are there.)");
  module.def(
      "build_dense_compressed_indices", &BuildDenseCompressedIndices, nb::arg("query_start_loc"),
      nb::arg("positions"), nb::arg("indices"), nb::arg("lens"), nb::kw_only(),
      nb::arg("ratio") = 128, KVBLOCKS_INDEX_ARGS,
      nb::sig("def build_dense_compressed_indices(query_start_loc: Array, positions: Array, "
              "indices: Array, lens: Array, *, ratio: int = 128, " KVBLOCKS_INDEX_SIG),
      R"(All complete rows of each token's context: 0 ... min((p + 1) // ratio, capacity) - 1.

query_start_loc int32 [R + 1], positions int32 [T or more] -> indices int32 [T or more, capacity], lens int32
[T or more].)");
  module.def(
      "combine_prefill_indices", &CombinePrefillIndices, nb::arg("query_start_loc"),
      nb::arg("seq_lens"), nb::arg("indices"), nb::arg("lens"), nb::kw_only(), nb::arg("window"),
      nb::arg("rows_per_request"), nb::arg("compressed_rows") = 0, nb::arg("ratio") = 1,
      nb::arg("topk") = nb::none(), KVBLOCKS_INDEX_ARGS,
      nb::sig(
          "def combine_prefill_indices(query_start_loc: Array, seq_lens: Array, indices: Array, "
          "lens: Array, *, window: int, rows_per_request: int, compressed_rows: int = 0, ratio: "
          "int = 1, topk: Array | None = None, " KVBLOCKS_INDEX_SIG),
      R"(What each token of a prefill reads from a gathered buffer: chosen compressed rows, then its window.

The buffer has rows_per_request rows per request: compressed_rows of the compressed cache, then the newest tokens.
query_start_loc int32 [R + 1], seq_lens int32 [R], topk int32 [T or more, K] of request-local rows, negative kept
-> indices int32 [T or more, K + window] of rows of the buffer, lens int32 [T or more]. Without topk and with ratio
1 it is a layer with a window only.)");
}

}  // namespace kvblocks::python
