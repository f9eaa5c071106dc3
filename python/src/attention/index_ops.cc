// Slots of tokens and lists of slots, on the host and on a GPU; what chooses and compresses rows.

#include "attention/metadata/slot_mapping.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"
#include "python/src/attention/op_bind.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "attention/cuda/index_ops.h"
#define KVBLOCKS_ON_BOTH(Operation) RunOn(&attention::Operation, &attention::cuda::Cuda##Operation)
#else
#define KVBLOCKS_ON_BOTH(Operation) RunOn(&attention::Operation)
#endif

namespace kvblocks::python {

namespace {

// `on_cuda` is not called where there is no CUDA: the context refuses the device.
template <typename Args>
auto RunOn(absl::Status (*on_host)(const Args&),
           absl::Status (*on_cuda)(const attention::ExecContext&, const Args&) = nullptr) {
  return [=](OpCall& call, const Args& args) {
    const attention::ExecContext context = call.Context();
    absl::Status status;
    if (context.device.on_host()) {
      status = on_host(args);
    } else {
      const nb::gil_scoped_release release;
      status = on_cuda(context, args);
    }
    if (!status.ok()) call.Refuse(status);
  };
}

}  // namespace

void BindIndexOps(nb::module_& module) {
  {
    using A = attention::SlotMappingArgs;
    BindOp<A, false>(
        module, "compute_slot_mapping",
        R"(The slot of each token: block_table[b][p // block_size] * block_size + p % block_size.

query_start_loc int32 [R + 1], positions int32 [T or more], block_table int32 [R or more, columns]
-> slot_mapping int64 [T or more]; -1 behind the last token and in the null blocks. num_blocks: of
the cache; 0 is unknown. On CUDA all index functions are one launch and read nothing back.)",
        KVBLOCKS_ON_BOTH(ComputeSlotMapping),
        Parameters(In("query_start_loc", &A::query_start_loc), In("positions", &A::positions),
                   In("block_table", &A::block_table), Out("slot_mapping", &A::slot_mapping),
                   Number<int64_t>("block_size", &A::block_size)),
        Parameters(Number("num_blocks", &A::num_blocks, int64_t{0}),
                   Number("null_block", KVBLOCKS_AT(null_blocks.first), int32_t{0}),
                   Number("num_null_blocks", KVBLOCKS_AT(null_blocks.count), int32_t{1})));
  }
  {
    using A = attention::WindowIndicesArgs;
    BindOp<A, false>(
        module, "build_swa_indices",
        R"(The slots that a window of tokens, the query included, sees, oldest first, then -1.

query_start_loc int32 [R + 1], seq_lens int32 [R], block_table int32 [R or more, columns] -> indices
int32 [T or more, window], lens int32 [T or more].)",
        KVBLOCKS_ON_BOTH(BuildSwaIndices),
        Parameters(In("query_start_loc", &A::query_start_loc), In("seq_lens", &A::seq_lens),
                   In("block_table", &A::block_table), Out("indices", &A::indices),
                   Out("lens", &A::lens)),
        Parameters(Number<int64_t>("window", &A::window),
                   Number<int64_t>("block_size", &A::block_size),
                   Number("num_blocks", &A::num_blocks, int64_t{0})));
  }
  {
    using A = attention::CompressedSlotsArgs;
    BindOp<A, false>(
        module, "build_compressed_slots",
        R"(The row of a compressed cache that each token completes, or -1.

As compute_slot_mapping, of row p // ratio where (p + 1) % ratio == 0; block_size counts rows.)",
        KVBLOCKS_ON_BOTH(BuildCompressedSlots),
        Parameters(In("query_start_loc", &A::query_start_loc), In("positions", &A::positions),
                   In("block_table", &A::block_table), Out("slot_mapping", &A::slot_mapping)),
        Parameters(Number<int64_t>("ratio", &A::ratio),
                   Number<int64_t>("block_size", &A::block_size),
                   Number("num_blocks", &A::num_blocks, int64_t{0})));
  }
  {
    using A = attention::TopkSlotsArgs;
    BindOp<A, false>(
        module, "build_topk_slots",
        R"(Rows of a request as slots of the cache: what an indexer chose, as sparse_mla_decode
takes it.

indices int32 [T or more, K], negative for none -> slots int32 [T or more, K], which may be indices,
and counts int32 [T or more] of those that are there.)",
        KVBLOCKS_ON_BOTH(BuildTopkSlots),
        Parameters(In("query_start_loc", &A::query_start_loc), In("indices", &A::indices),
                   In("block_table", &A::block_table), Out("slots", &A::slots),
                   Out("counts", &A::counts)),
        Parameters(Number<int64_t>("block_size", &A::block_size),
                   Number("num_blocks", &A::num_blocks, int64_t{0})));
  }
  {
    using A = attention::DenseCompressedIndicesArgs;
    BindOp<A, false>(
        module, "build_dense_compressed_indices",
        R"(All complete rows of each token's context: 0 ... min((p + 1) // ratio, capacity) - 1.

query_start_loc int32 [R + 1], positions int32 [T or more] -> indices int32 [T or more, capacity],
lens int32 [T or more].)",
        KVBLOCKS_ON_BOTH(BuildDenseCompressedIndices),
        Parameters(In("query_start_loc", &A::query_start_loc), In("positions", &A::positions),
                   Out("indices", &A::indices), Out("lens", &A::lens)),
        Parameters(Number("ratio", &A::ratio, int64_t{128})));
  }
  {
    using A = attention::PrefillIndicesArgs;
    BindOp<A, false>(
        module, "combine_prefill_indices",
        R"(What each token of a prefill reads from a gathered buffer: chosen compressed rows, then
its window.

The buffer has rows_per_request rows per request: compressed_rows of the compressed cache, then the
newest tokens. query_start_loc int32 [R + 1], seq_lens int32 [R], topk int32 [T or more, K] of
request-local rows, negative kept
-> indices int32 [T or more, K + window] of rows of the buffer, lens int32 [T or more]. Without
topk and with ratio 1 it is a layer with a window only.)",
        KVBLOCKS_ON_BOTH(CombinePrefillIndices),
        Parameters(In("query_start_loc", &A::query_start_loc), In("seq_lens", &A::seq_lens),
                   Out("indices", &A::indices), Out("lens", &A::lens)),
        Parameters(Number<int64_t>("window", &A::window),
                   Number<int64_t>("rows_per_request", &A::rows_per_request),
                   Number("compressed_rows", &A::compressed_rows, int64_t{0}),
                   Number("ratio", &A::ratio, int64_t{1}), OptionalIn("topk", &A::topk)));
  }
}

void BindIndexerOps(nb::module_& module) {
  const auto rows = KVBLOCKS_AT(cache.rows);
  const auto planar = KVBLOCKS_AT(cache.planar_block_size);
  {
    using A = attention::CacheIndexKeysArgs;
    BindOp<A>(module, "cache_index_keys",
              R"(Stores keys of a sparse-attention indexer.

k [T, Di]; slot_mapping int64 [n], n <= T, below 0 is skipped; cache [NB, BS, Di] of floats, or with
planar_block_size = BS uint8 [NB, block bytes]: a block's float8_e4m3fn codes, then a float32 scale
per row. power_of_two_scales: those scales are rounded up to powers of two.)",
              Elements(&A::k),
              Parameters(In("k", &A::k), In("slot_mapping", &A::slot_mapping), Out("cache", rows)),
              Parameters(Number("planar_block_size", planar, int64_t{0}),
                         Number("power_of_two_scales", &A::power_of_two_scales, true)));
  }
  {
    using A = attention::IndexTopkArgs;
    BindOp<A>(
        module, "index_topk",
        R"(The rows of an indexer's cache that each token reads: the K with the largest sum of w_h *
max(0, q_h . k).

q [T, Hi, Di], weights float32 [T, Hi]; cache as for cache_index_keys; query_start_loc int32 [R +
1], seq_lens int32 [R] in tokens, block_table int32 [R, columns] in blocks of rows, of which each
has `ratio` tokens -> indices int32 [T, K], ascending, -1 behind the chosen ones, and lens int32
[T]. A token at p chooses among the complete rows [0, (p + 1) // ratio); ties go to the lower row.
as_slots: indices are slots, as sparse_mla_decode takes them; otherwise rows of the request.)",
        [](OpCall& call, const A& a) {
          call.Run(a, static_cast<double>(a.q.num_elements()) * static_cast<double>(a.max_seq_len));
        },
        Parameters(In("q", &A::q), In("weights", &A::weights), In("cache", rows),
                   In("query_start_loc", &A::query_start_loc), In("seq_lens", &A::seq_lens),
                   In("block_table", &A::block_table), Out("indices", &A::indices),
                   Out("lens", &A::lens)),
        Parameters(MaxLength("max_seq_len", &A::max_seq_len, &A::seq_lens),
                   Number("ratio", &A::ratio, int64_t{1}), Number("as_slots", &A::as_slots, true),
                   Number("planar_block_size", planar, int64_t{0})));
  }
  {
    using A = attention::CompressTokensArgs;
    BindOp<A>(
        module, "compress_tokens",
        R"(DeepSeek V4's compressor: stores the states of new tokens, and combines those of each row
that they complete.

kv and score [T, C * D], C being 2 with overlap, else 1; bias float32 [ratio, C * D]; states float32
[NB, BS, 2 * C * D], written at slot_mapping int64 [n], n <= T. query_start_loc int32 [R + 1],
seq_lens int32 [R], block_table int32 [R, columns] of states. A token with (p + 1) % ratio == 0
writes its row of out [T, D]: per column the softmax of the last C * ratio scores over tokens weighs
kv. Then RMS norm by norm_weight float32 [D] and norm_eps, and rotation of the last columns by
cos_sin float32 [P, columns], cosines first.)",
        Elements(&A::kv, 10),
        Parameters(In("kv", &A::kv), In("score", &A::score), Out("states", &A::states),
                   In("slot_mapping", &A::slot_mapping), In("query_start_loc", &A::query_start_loc),
                   In("seq_lens", &A::seq_lens), In("block_table", &A::block_table),
                   Out("out", &A::out)),
        Parameters(Number<int64_t>("ratio", &A::ratio), Number("overlap", &A::overlap, true),
                   OptionalIn("bias", &A::bias), OptionalIn("norm_weight", &A::norm_weight),
                   Number("norm_eps", &A::norm_eps, 1e-6), OptionalIn("cos_sin", &A::cos_sin)));
  }
}

}  // namespace kvblocks::python
