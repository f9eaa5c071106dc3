// MLA for tiles of 64 rows, by wgmma.
//
// A block has a multiprocessor to itself. Two of its warpgroups consume (mla_rows64_consumer.h):
// scores and half of the values' columns, and the other half. A third, or for fp8 rows a third and
// a fourth, load (mla_rows64_producer.h): one of two tiles of 64 keys in shared memory is filled
// while the other is used.
//
// Per tile of 64 keys: 8.9 MFLOP, 2200 cycles of the matrix units; 72 KiB of rows, 4000 cycles of
// memory if nobody else has them in the cache.

#include "attention/cuda/device/bulk.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/mla_rows64_consumer.h"
#include "attention/cuda/kernels/mla_rows64_producer.h"
#include "attention/cuda/kernels/mla_rows64_state.h"
#include "attention/cuda/kernels/mla_tile.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {
namespace mla_rows64 {
namespace {

// Three warpgroups start with 168 each, four with 128; more than these 504 and 512 together would
// be waited for in vain. The second consumer has no scores.
template <bool kFp8>
constexpr int kFirstRegisters = kFp8 ? 192 : 216;
template <bool kFp8>
constexpr int kSecondRegisters = kFp8 ? 176 : 216;
inline constexpr int kProducerRegisters = 72;

bool IsFp8(Layout layout) { return layout == Layout::kMlaFp8_656 || layout == Layout::kMlaFp8_584; }

// Rows without keys.
KVB_DEVICE void WriteNothing(const AttendRowsParams& params, const MlaWork& work, int piece) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < work.rows) {
    StoreStatistics(params, work, thread, piece, -INFINITY, 0, -INFINITY);
  }
  if (params.pieces.count > 1 || thread >= kMlaValueDim / 2) return;
  for (int r = 0; r < work.rows; ++r) {
    StoreOutPair(params.output.out, OutAt(params, work, r, piece) + 2 * thread, 0, 0);
  }
}

// By consumers.
KVB_DEVICE void WaitForQueries() {
  WaitCopies<0>();
  FenceForAsyncProxy();
  NamedBarrierSync(kBothConsumers, kConsumers);
}

// kLayout: kMlaLatent stands for kMlaSplit, too. `boxes`: of the rows of kMlaLatent by tables, for
// kInBoxes.
template <typename T, Layout kLayout, bool kInBoxes>
KVB_DEVICE void Attend(const AttendRowsParams& params, uint32_t* error_flags,
                       const TensorMap* boxes) {
  constexpr bool kFp8 = kLayout != Layout::kMlaLatent;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = static_cast<int>(blockIdx.y);
  BlockState& state = State();
  uint32_t flags = 0;
  WaitForPreviousKernel();
  AllowNextKernel();
  const int group = __shfl_sync(kFullWarp, thread / 128, 0);
  int entries[2] = {};
  {
    MlaWork work;
    if (!FindRows<kRows>(params, static_cast<int>(blockIdx.x), work)) return;
    FindKeys<kKeys>(params, piece, work, flags);
    if (flags != 0 && thread == 0 && error_flags != nullptr) atomicOr(error_flags, flags);
    flags = 0;
    if (work.begin >= work.end) {
      WriteNothing(params, work, piece);
      return;
    }
    // Producers begin while consumers still copy queries.
    if (group >= 2) {
      if (kFp8) {
        const int j = work.begin / kKeys * kKeys + OwnKey(thread - kConsumers);
        entries[0] = IndexOf(params, work, j);
        entries[1] = IndexOf(params, work, j + kPlacedTiles * kKeys);
      }
      if (thread == kConsumers) {
        state.work = work;
        FindTables(params, work, state);
        const int copied[] = {kInBoxes ? kBoxesArrivals[0] : kCopiesArrivals[0],
                              kInBoxes ? kBoxesArrivals[1] : kCopiesArrivals[1]};
        constexpr bool kIs656 = kLayout == Layout::kMlaFp8_656;
        const int decoded[] = {DecodedArrivals<kIs656>(0), DecodedArrivals<kIs656>(1)};
        InitBarriers(kFp8 ? decoded : copied);
      }
      NamedBarrierSync(kAllProducers, kProducers<kFp8>);
      NamedBarrierArrive(kWholeBlock, kConsumers + kProducers<kFp8>);
    } else {
      if (thread < kRows) {
        VisibleKeys sees;
        if (thread < work.rows) {
          sees = VisibleOf(params, work, (work.m0 + thread) / params.num_heads);
        }
        state.sees[thread] = sees;
      }
      StageQueries<kRows, kConsumers>(params, work, thread, DynamicSharedMemory());
      NamedBarrierSync(kWholeBlock, kConsumers + kProducers<kFp8>);
    }
  }
  if (group >= 2) {
    ShrinkRegisters<kProducerRegisters>();
    if constexpr (kFp8) {
      ProduceDecoded<T, kLayout == Layout::kMlaFp8_656>(params, entries, flags);
    } else if constexpr (kInBoxes) {
      ProduceBoxes(params, *boxes, flags);
    } else if (params.source == KeySource::kLists) {
      ProduceCopies<true>(params, flags);
    } else {
      ProduceCopies<false>(params, flags);
    }
    if (flags != 0 && error_flags != nullptr) atomicOr(error_flags, flags);
  } else if (group == 1) {
    GrowRegisters<kSecondRegisters<kFp8>>();
    WaitForQueries();
    Consumer<T, kFp8>(params, 1).RunSecond(piece);
  } else {
    GrowRegisters<kFirstRegisters<kFp8>>();
    WaitForQueries();
    Consumer<T, kFp8> consumer(params, 0);
    if (kLayout == Layout::kMlaFp8_656 ||
        (kLayout == Layout::kMlaLatent && params.key_dim == kMlaKeyDim)) {
      consumer.template RunFirst<kMlaBoxes>(piece);
    } else {
      consumer.template RunFirst<kMlaValueBoxes>(piece);
    }
  }
}

template <typename T, Layout kLayout>
__global__ void __launch_bounds__(kConsumers + kProducers<kLayout != Layout::kMlaLatent>, 1)
    MlaRows64Kernel(const __grid_constant__ AttendRowsParams params, uint32_t* error_flags) {
  Attend<T, kLayout, false>(params, error_flags, nullptr);
}
template <typename T>
__global__ void __launch_bounds__(kConsumers + kProducers<false>, 1)
    MlaRows64BoxesKernel(const __grid_constant__ AttendRowsParams params, uint32_t* error_flags,
                         const __grid_constant__ TensorMap boxes) {
  if (threadIdx.x == kConsumers) PrefetchMap(boxes);
  Attend<T, Layout::kMlaLatent, true>(params, error_flags, &boxes);
}

// Rows by tables in boxes, where arithmetic is the limit: with two tiles of rows that read the same
// keys and more. With fewer, where bytes are, boxes were measured to take longer.
bool TakesBoxes(const AttendRowsParams& params) {
  const Cache& cache = params.keys.cache;
  int64_t rows = params.num_heads;
  if (params.query_start_loc != nullptr) {
    rows *= params.num_rows / (params.num_requests > 0 ? params.num_requests : 1);
  }
  return params.source == KeySource::kPaged && cache.layout == Layout::kMlaLatent &&
         rows >= 2 * kRows && cache.block_size % kBoxKeys == 0;
}
BoxedTensor BoxedRows(const AttendRowsParams& params) {
  const Cache& cache = params.keys.cache;
  BoxedTensor boxed;
  boxed.data = cache.k.data;
  boxed.extents = {params.key_dim, 1, cache.block_size, cache.num_blocks};
  boxed.strides = {8, cache.k.token_stride, cache.num_blocks > 1 ? cache.k.block_stride : 8};
  boxed.box = {64, 1, kBoxKeys, 1};
  return boxed;
}

template <typename T>
Error LaunchOf(const LaunchConfig& config, const LaunchContext& context,
               const AttendRowsParams& params) {
  if (TakesBoxes(params) && FitsTensorMap(BoxedRows(params))) {
    TensorMap boxes;
    const Error error = MakeTensorMap(BoxedRows(params), &boxes);
    if (error != 0) return error;
    return Launch(config, MlaRows64BoxesKernel<T>, params, context.error_flags, boxes);
  }
  return Launch(config, MlaRows64Kernel<T, Layout::kMlaLatent>, params, context.error_flags);
}

}  // namespace
}  // namespace mla_rows64

Error LaunchMlaRows64(const LaunchContext& context, const AttendRowsParams& params) {
  using namespace mla_rows64;
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  const int64_t tiles = MlaTilesOf(params, kRows);
  if (tiles > INT32_MAX || params.pieces.count > 65535) return cudaErrorInvalidConfiguration;
  const Layout layout =
      params.source == KeySource::kLists ? params.main.cache.layout : params.keys.cache.layout;
  LaunchConfig config = ConfigOf(
      context, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.pieces.count)),
      kConsumers + (IsFp8(layout) ? kProducers<true> : kProducers<false>), kSharedBytes);
  if (layout == Layout::kMlaFp8_656) {
    return Launch(config, MlaRows64Kernel<Bf16, Layout::kMlaFp8_656>, params, context.error_flags);
  }
  if (layout == Layout::kMlaFp8_584) {
    return Launch(config, MlaRows64Kernel<Bf16, Layout::kMlaFp8_584>, params, context.error_flags);
  }
  if (params.q.element == Element::kF16) {
    return LaunchOf<F16>(config, context, params);
  }
  return LaunchOf<Bf16>(config, context, params);
}

}  // namespace kvblocks::attention::cuda
