// The producing warpgroup of the wgmma kernel for latent attention (mla_rows64.cu): 16-bit rows are
// copied to shared memory, fp8 rows decoded on the way. Device code of that one source.
//
// Consumers fence what was written here by plain stores and copies before products read it: a fence
// in this warpgroup would wait for all loads of a thread.
//
// 16-bit rows: nobody waits, copies arrive at a half's barrier themselves. Codes: a row's are
// copied to where its values will be and decoded in place, so that they need no memory of their
// own, and registers only for a moment. Cost: some 65 instructions per 16 codes and thread, by
// eight warps.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/kernels/mla_rows64_state.h"
#include "attention/cuda/kernels/mla_tile.h"

namespace kvblocks::attention::cuda::mla_rows64 {

KVB_DEVICE const unsigned char* FromLane(const unsigned char* pointer, int lane) {
  return reinterpret_cast<const unsigned char*>(
      __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(pointer), lane));
}

// What is not used must still be an address: at least a row of queries is there.
KVB_DEVICE const unsigned char* Somewhere(const AttendRowsParams& params) {
  return static_cast<const unsigned char*>(params.q.data);
}

// --- 16-bit rows: two warps have every other tile ---

inline constexpr int kCopiesArrivals[kHalves] = {2 + 64, 64};

template <bool kLists>
KVB_DEVICE void ProduceCopies(const AttendRowsParams& params, uint32_t& flags) {
  BlockState& state = State();
  const Tiles tiles(state.work);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = thread / 32 % 2, stage = thread / 64;
  const int own = thread % 64;  // the key whose place this thread finds
  const int l = lane % 8;       // its piece of a box
  const bool has_tail = params.key_dim == kMlaKeyDim;
  const bool is_split = !kLists && params.keys.cache.layout == Layout::kMlaSplit;
  const Layout layout = is_split ? Layout::kMlaSplit : Layout::kMlaLatent;
  const uint32_t to = SharedAddress(TileOf(stage));
  // Places are known a use ahead, entries two.
  int j = (tiles.first + stage) * kKeys + own;
  RowPlace next = PlaceOf<kLists>(state, layout, j, EntryOf<kLists>(state, j), flags);
  int next_entry = EntryOf<kLists>(state, j + 2 * kKeys);
  uint32_t uses = 0;
#pragma unroll 1
  for (int tile = tiles.first + stage; tile <= tiles.last; tile += 2, ++uses) {
    RowPlace place = next;
    j += 2 * kKeys;
    next = PlaceOf<kLists>(state, layout, j, next_entry, flags);
    next_entry = EntryOf<kLists>(state, j + 2 * kKeys);
    const unsigned live = __ballot_sync(kFullWarp, place.row != nullptr);
    if (place.row == nullptr) place.row = place.beside = Somewhere(params);
    const auto copy = [&](int half) {
#pragma unroll
      for (int pass = 0; pass < 8; ++pass) {
        const int from = 4 * pass + lane / 8;
        const bool valid = (live >> from & 1) != 0;
        const unsigned char* key = FromLane(place.row, from) + l * 16;
        const uint32_t at = to + PieceAt(32 * warp + from, l);
#pragma unroll
        for (int box = half * kHalfBoxes; box < (half + 1) * kHalfBoxes; ++box) {
          CopyAsync16(at + box * kBoxBytes, key + box * 128, valid);
        }
        if (half == 0 && has_tail) {
          const unsigned char* tail =
              is_split ? FromLane(place.beside, from) + l * 16 : key + kMlaValueBoxes * 128;
          CopyAsync16(at + kMlaValueBoxes * kBoxBytes, tail, valid);
        }
      }
    };
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (uses > 0) WaitAtBarrier(EmptyBarrier(stage, half), (uses - 1) & 1);
      if (half == 0) {
        if (lane < 4) {
          state.live[stage][4 * warp + lane] = static_cast<uint8_t>(live >> 8 * lane);
        }
        ArriveAsWarp(FullBarrier(stage, 0));
      }
      copy(half);
      ArriveAfterCopies(FullBarrier(stage, half));
    }
  }
  CommitCopies();
  WaitCopies<0>();
}

// --- fp8 rows: eight warps have every tile ---

inline constexpr int kDecodingWarps = kProducers<true> / 32;
inline constexpr int kDecodedArrivals[kHalves] = {kDecodingWarps, kDecodingWarps};

// Warp w has rows 8 w to 8 w + 7 of each tile, four at a time, eight lanes to a row. Of half h of a
// row lane l of the eight has pieces l and l + 8 of 16 codes, counted from 16 h, and a scale that
// others ask it for.
inline constexpr int kOwnRows = kKeys / kDecodingWarps, kPasses = kOwnRows / 4;

template <bool kIs656>
KVB_DEVICE bool HasPiece(int half, int i, int l) {
  // The other layout's last 64 values are rotary ones.
  return kIs656 || half == 0 || i == 0 || l < 4;
}
// As it is in memory.
template <bool kIs656>
KVB_DEVICE uint32_t LoadScale(int half, const unsigned char* scales, int l) {
  if constexpr (kIs656) {
    return reinterpret_cast<const uint32_t*>(scales)[2 * half + l % 2];
  } else {
    return scales[4 * half + l % 4];
  }
}

// Decodes a half of a warp's rows in place.
template <typename T, bool kIs656>
KVB_DEVICE void Decode(int half, const uint32_t (&scales)[kPasses], int lane, int first_row,
                       unsigned char* tile) {
  const int l = lane % 8;
  unsigned char* boxes = tile + half * kHalfBoxes * kBoxBytes;
  uint4 codes[kPasses][2];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!HasPiece<kIs656>(half, i, l)) continue;
      codes[pass][i] = *reinterpret_cast<const uint4*>(boxes + i * kBoxBytes +
                                                       PieceAt(first_row + 4 * pass + lane / 8, l));
    }
  }
  __syncwarp();
  // Lanes that share banks store their two pieces of 8 values in opposite order.
  const int odd = l / 4;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int row = first_row + 4 * pass + lane / 8;
    unsigned char* first = boxes + odd * kBoxBytes + PieceAt(row, l % 4 * 2 + odd);
    unsigned char* second = boxes + odd * kBoxBytes + PieceAt(row, l % 4 * 2 + 1 - odd);
    const float own =
        kIs656 ? __uint_as_float(scales[pass]) : E8m0ToFloat(static_cast<uint8_t>(scales[pass]));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = __shfl_sync(kFullWarp, own, lane - l + (kIs656 ? i : 2 * i + odd));
      if (!HasPiece<kIs656>(half, i, l)) continue;
      const uint4 from = codes[pass][i];
      StoreShared16(first + i * 2 * kBoxBytes,
                    DecodePiece<T>(odd != 0 ? from.z : from.x, odd != 0 ? from.w : from.y, scale));
      StoreShared16(second + i * 2 * kBoxBytes,
                    DecodePiece<T>(odd != 0 ? from.x : from.z, odd != 0 ? from.y : from.w, scale));
    }
  }
}

// Four lanes bring the lines of a row, which is not left: it may be the last one.
template <bool kIs656>
KVB_DEVICE void PrefetchRow(const RowPlace& place, int lane) {
  if (place.row == nullptr) return;
  constexpr int kLast = kIs656 ? kRotaryAt656 + 2 * kRotaryValues - 16 : kRecord584 - 16;
  const int quarter = lane / kOwnRows;
  if (quarter < 3) {
    PrefetchToL2(place.row + quarter * 256);
    PrefetchToL2(place.row + (quarter < 2 ? quarter * 256 + 128 : kLast));
  } else if (!kIs656) {
    PrefetchToL2(place.beside);
  }
}

template <typename T, bool kIs656>
KVB_DEVICE void ProduceDecoded(const AttendRowsParams& params, uint32_t& flags) {
  constexpr Layout kLayout = kIs656 ? Layout::kMlaFp8_656 : Layout::kMlaFp8_584;
  constexpr int kRotaryBox = kIs656 ? 8 : 7, kRotaryHalf = kIs656 ? 0 : 1;
  constexpr int kRotaryAt = kIs656 ? kRotaryAt656 : kValues584;
  BlockState& state = State();
  const Tiles tiles(state.work);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = thread / 32, l = lane % 8;
  // Four lanes find a key each: places a tile ahead, entries two.
  static_assert(kOwnRows == 8);
  int j = tiles.first * kKeys + kOwnRows * warp + lane % kOwnRows;
  const auto place_of = [&](int entry) { return PlaceOf<true>(state, kLayout, j, entry, flags); };
  int next_entry = EntryOf<true>(state, j + kKeys);
  RowPlace next = place_of(EntryOf<true>(state, j));
#pragma unroll 1
  for (int tile = tiles.first; tile <= tiles.last; ++tile) {
    const int n = tile - tiles.first, stage = n & 1;
    unsigned char* to = TileOf(stage);
    const RowPlace place = next;
    const unsigned live = __ballot_sync(kFullWarp, place.row != nullptr);
    uint32_t scales[kHalves][kPasses];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (n > 1) WaitAtBarrier(EmptyBarrier(stage, half), ((n >> 1) - 1) & 1);
      if (half == 0 && lane == 0) state.live[stage][warp] = static_cast<uint8_t>(live);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int from = 4 * pass + lane / 8;
        const bool valid = (live >> from & 1) != 0;
        const unsigned char* row = FromLane(place.row, from);
        const unsigned char* beside = kIs656 ? row + kScalesAt656 : FromLane(place.beside, from);
        scales[half][pass] = valid ? LoadScale<kIs656>(half, beside, l) : 0;
        if (!valid) row = Somewhere(params);
        const uint32_t at = SharedAddress(to) + PieceAt(kOwnRows * warp + from, l);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!HasPiece<kIs656>(half, i, l)) continue;
          CopyAsync16(at + (half * kHalfBoxes + i) * kBoxBytes, row + (16 * half + 8 * i + l) * 16,
                      valid);
        }
        // Rotary values are what they will be.
        if (half == kRotaryHalf) {
          CopyAsync16(at + kRotaryBox * kBoxBytes, row + kRotaryAt + l * 16, valid);
        }
      }
      CommitCopies();
    }
    j += kKeys;
    next = place_of(next_entry);
    next_entry = EntryOf<true>(state, j + kKeys);
    PrefetchRow<kIs656>(next, lane);
    WaitCopies<1>();
    Decode<T, kIs656>(0, scales[0], lane, kOwnRows * warp, to);
    ArriveAsWarp(FullBarrier(stage, 0));
    WaitCopies<0>();
    Decode<T, kIs656>(1, scales[1], lane, kOwnRows * warp, to);
    ArriveAsWarp(FullBarrier(stage, 1));
  }
}

}  // namespace kvblocks::attention::cuda::mla_rows64

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_
