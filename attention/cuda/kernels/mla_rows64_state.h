// What the warpgroups of the wgmma kernel for latent attention (mla_rows64.cu) agree on: shared
// memory and the barriers in it. Device code of that one source.
//
// A tile of keys is filled and freed in two halves, each with the columns of the values that one
// consumer adds: while one half is still used the other is on its way again.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_STATE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_STATE_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/mla_tile.h"

namespace kvblocks::attention::cuda::mla_rows64 {

inline constexpr int kRows = 64;
inline constexpr int kKeys = kMlaRows64Keys;
inline constexpr int kConsumers = 256;
inline constexpr int kBoxKeys = 32;
// Decoding takes more warps than copying.
template <bool kFp8>
constexpr int kProducers = kFp8 ? 256 : 128;
inline constexpr int kBoxBytes = kKeys * 128;
inline constexpr int kTileBytes = kMlaBoxes * kBoxBytes;
inline constexpr int kHalfBoxes = kMlaValueBoxes / 2;

// Half n has boxes [4 n, 4 n + 4), half 0 the ninth box, too.
inline constexpr int kHalves = 2;

// Named barriers.
inline constexpr int kProbabilitiesReady = 1, kProbabilitiesTaken = 2, kBothConsumers = 3;
inline constexpr int kOneConsumer = 4;  // and 5
inline constexpr int kAllProducers = 6, kWholeBlock = 7;

// Where keys are, with all that an address takes but one multiplication or two: a table of blocks
// or a list of slots, and the rows of its cache.
struct KeyTable {
  const int32_t* entries = nullptr;
  const unsigned char* rows = nullptr;
  const unsigned char* tails = nullptr;  // kMlaSplit: the rotary values
  int64_t block_bytes = 0, tail_block_bytes = 0, row_bytes = 0, tail_row_bytes = 0;
  int32_t num_blocks = 0, block_size = 1;
  uint32_t multiplier = 1, shift = 0;

  // n / block_size for 0 <= n < 2^31.
  KVB_DEVICE int BlockOf(int n) const {
    const uint32_t high =
        static_cast<uint32_t>(uint64_t{multiplier} * static_cast<uint32_t>(n) >> 32);
    return static_cast<int>((high + static_cast<uint32_t>(n)) >> shift);
  }
};
KVB_DEVICE KeyTable TableOf(const Cache& cache, const int32_t* entries) {
  KeyTable table;
  table.entries = entries;
  table.rows = static_cast<const unsigned char*>(cache.k.data);
  table.num_blocks = cache.num_blocks;
  table.block_size = cache.block_size;
  const int bytes = BytesOf(cache.element);
  switch (cache.layout) {
    case Layout::kMlaFp8_656:
      table.block_bytes = cache.k.block_stride;
      table.row_bytes = cache.k.token_stride;
      break;
    case Layout::kMlaFp8_584:
      table.block_bytes = cache.k.block_stride;
      table.row_bytes = kRecord584;
      break;
    default:
      table.block_bytes = cache.k.block_stride * bytes;
      table.row_bytes = cache.k.token_stride * bytes;
  }
  if (cache.layout == Layout::kMlaSplit) {
    table.tails = static_cast<const unsigned char*>(cache.v.data);
    table.tail_block_bytes = cache.v.block_stride * bytes;
    table.tail_row_bytes = cache.v.token_stride * bytes;
  }
  const uint32_t size = static_cast<uint32_t>(cache.block_size);
  if (size > 1) table.shift = static_cast<uint32_t>(32 - __clz(static_cast<int>(size - 1)));
  const uint32_t rest = (1u << table.shift) - size;
  if (rest != 0) table.multiplier = static_cast<uint32_t>((uint64_t{rest} << 32) / size) + 1;
  return table;
}

struct BlockState {
  uint4 p[4][128];  // fragments of a step by thread
  float2 shrink[128];
  float2 results[kRows];  // factor, lse
  VisibleKeys sees[kRows];
  unsigned long long full[2][kHalves], empty[2][kHalves];  // by stage
  alignas(8) uint8_t live[2][kKeys / 8];                   // a bit of each key, with half 0
  MlaWork work;
  KeyTable tables[2];  // of lists: main and extra
};
inline constexpr int kStateAt = 3 * kTileBytes;
inline constexpr int kSharedBytes = kStateAt + static_cast<int>(sizeof(BlockState));
static_assert(kSharedBytes <= 227 * 1024);

KVB_DEVICE BlockState& State() {
  return *reinterpret_cast<BlockState*>(DynamicSharedMemory() + kStateAt);
}
KVB_DEVICE unsigned char* TileOf(int stage) {
  return DynamicSharedMemory() + (1 + stage) * kTileBytes;
}
KVB_DEVICE uint32_t FullBarrier(int stage, int half) {
  return SharedAddress(&State().full[stage][half]);
}
KVB_DEVICE uint32_t EmptyBarrier(int stage, int half) {
  return SharedAddress(&State().empty[stage][half]);
}

// By one thread. An empty half takes an arrival of each warp of the consumer that uses it last: the
// first consumer of half 0, the second of half 1.
KVB_DEVICE void InitBarriers(const int (&full_arrivals)[kHalves]) {
#pragma unroll
  for (int stage = 0; stage < 2; ++stage) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      InitBarrier(FullBarrier(stage, half), full_arrivals[half]);
      InitBarrier(EmptyBarrier(stage, half), 4);
    }
  }
}
// One arrival for a warp.
KVB_DEVICE void ArriveAsWarp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ArriveAtBarrier(barrier);
}

// By one thread.
KVB_DEVICE void FindTables(const AttendRowsParams& params, const MlaWork& work, BlockState& state) {
  if (params.source == KeySource::kPaged) {
    state.tables[0] = TableOf(params.keys.cache,
                              params.keys.block_table + work.request * params.keys.table_stride);
    return;
  }
  const auto table_of = [&](const SlotLists& lists) {
    return TableOf(lists.cache, lists.slots + MlaOffset(params, work.first_row, lists.outer_stride,
                                                        lists.row_stride));
  };
  state.tables[0] = table_of(params.main);
  if (params.extra.slots != nullptr) state.tables[1] = table_of(params.extra);
}

// The entry behind key j, kNoKey where there is none.
template <bool kLists>
KVB_DEVICE int EntryOf(const BlockState& state, int j) {
  const MlaWork& work = state.work;
  if (j < work.begin || j >= work.end) return kNoKey;
  if (!kLists) return state.tables[0].entries[state.tables[0].BlockOf(j)];
  if (j < work.main_used) return state.tables[0].entries[j];
  if (j < work.extra_from) return kNoKey;
  return state.tables[1].entries[j - work.extra_from];
}
// Where key j with this entry is; null if it is no key, flagged if the entry is impossible.
struct RowPlace {
  const unsigned char* row = nullptr;
  const unsigned char* beside = nullptr;  // kMlaSplit: rotary values; kMlaFp8_584: scales
};
template <bool kLists>
KVB_DEVICE RowPlace PlaceOf(const BlockState& state, Layout layout, int j, int entry,
                            uint32_t& flags) {
  RowPlace place;
  if (entry == kNoKey || (kLists && entry < 0)) return place;
  const KeyTable& table = state.tables[kLists && j >= state.work.extra_from ? 1 : 0];
  int block = entry, offset = j;
  if (kLists) block = table.BlockOf(entry), offset = entry;
  if (block < 0 || block >= table.num_blocks) {
    flags |= kLists ? kBadIndex : kBadBlock;
    return place;
  }
  offset -= (kLists ? block : table.BlockOf(j)) * table.block_size;
  const unsigned char* rows = table.rows + block * table.block_bytes;
  place.row = rows + offset * table.row_bytes;
  if (layout == Layout::kMlaSplit) {
    place.beside = table.tails + block * table.tail_block_bytes + offset * table.tail_row_bytes;
  } else if (layout == Layout::kMlaFp8_584) {
    place.beside = rows + int64_t{table.block_size} * kRecord584 + offset * kScales584;
  }
  return place;
}

// A loop over tiles of keys; tile n uses stage n % 2 for the (n / 2)th time.
struct Tiles {
  int first, last;
  explicit KVB_DEVICE Tiles(const MlaWork& work)
      : first(work.begin / kKeys), last((work.end - 1) / kKeys) {}
};

}  // namespace kvblocks::attention::cuda::mla_rows64

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_STATE_H_
