// The producing warpgroup of the wgmma kernel for latent attention (mla_rows64.cu): 16-bit rows are
// copied to shared memory, fp8 rows decoded on the way. Device code of that one source.
//
// Consumers fence what was written here by plain stores and copies before products read it: a fence
// in this warpgroup would wait for all loads of a thread.
//
// 16-bit rows: nobody waits, copies arrive at a half's barrier themselves. With many rows per
// request arithmetic is the limit, and the bulk copy engine brings boxes, which takes fewer
// instructions and less power. fp8 rows: codes are loaded to registers half a tile early, of
// kMlaFp8_584 second halves to shared memory a tile early. Cost: 57 instructions per 16 codes and
// thread of kMlaFp8_656, 48 of the other layout, and some 100 per tile, by eight warps.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_

#include "attention/cuda/device/bulk.h"
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

// Starts a warp's copies of a half of its 32 keys of a tile, whose places lanes have. Zeros for
// those that are not live; their places must still be addresses. `to`: of the tile.
KVB_DEVICE void CopyHalf(uint32_t to, const RowPlace& place, unsigned live, int half, int warp,
                         int lane, bool has_tail, bool is_split) {
  const int l = lane % 8;  // its piece of a box
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
}

template <bool kLists>
KVB_DEVICE void ProduceCopies(const AttendRowsParams& params, uint32_t& flags) {
  BlockState& state = State();
  const Tiles tiles(state.work);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = thread / 32 % 2, stage = thread / 64;
  const int own = thread % 64;  // the key whose place this thread finds
  const bool has_tail = params.key_dim == kMlaKeyDim;
  const bool is_split = !kLists && params.keys.cache.layout == Layout::kMlaSplit;
  const Layout layout = is_split ? Layout::kMlaSplit : Layout::kMlaLatent;
  const uint32_t to = SharedAddress(TileOf(stage));
  // Places are known one use early, entries two.
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
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (uses > 0) WaitAtBarrier(EmptyBarrier(stage, half), (uses - 1) & 1);
      if (half == 0) {
        if (lane < 4) {
          state.live[stage][4 * warp + lane] = static_cast<uint8_t>(live >> 8 * lane);
        }
        ArriveAsWarp(FullBarrier(stage, 0));
      }
      CopyHalf(to, place, live, half, warp, lane, has_tail, is_split);
      ArriveAfterCopies(FullBarrier(stage, half));
    }
  }
  CommitCopies();
  WaitCopies<0>();
}

// --- 16-bit rows in boxes of 32 keys of one block, each asked for by one of the same warps ---

inline constexpr int kBoxesArrivals[kHalves] = {2, 2};

KVB_DEVICE void ProduceBoxes(const AttendRowsParams& params, const TensorMap& map,
                             uint32_t& flags) {
  BlockState& state = State();
  const Tiles tiles(state.work);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = __shfl_sync(kFullWarp, thread / 32 % 2, 0);
  const int stage = __shfl_sync(kFullWarp, thread / 64, 0);
  const bool has_tail = params.key_dim == kMlaKeyDim;
  const int block_size = params.keys.cache.block_size, num_blocks = params.keys.cache.num_blocks;
  const uint32_t to = SharedAddress(TileOf(stage));
  // Entries are known one use early.
  int j = (tiles.first + stage) * kKeys + warp * kBoxKeys + lane;
  int next_entry = EntryOf<false>(state, j);
  uint32_t uses = 0;
#pragma unroll 1
  for (int tile = tiles.first + stage; tile <= tiles.last; tile += 2, ++uses) {
    const int entry = next_entry;
    const bool is_block = entry >= 0 && entry < num_blocks;
    if (entry != kNoKey && !is_block) flags |= kBadBlock;
    const unsigned live = __ballot_sync(kFullWarp, is_block);
    const int first = tile * kKeys + warp * kBoxKeys;
    const int offset = first - state.tables[0].BlockOf(first) * block_size;
    // Of a block that is none: outside of the tensor, which makes zeros.
    const int block = live != 0 ? __shfl_sync(kFullWarp, entry, 0) : -1;
    j += 2 * kKeys;
    next_entry = EntryOf<false>(state, j);
    const auto wait_until_empty = [&](int half) {
      if (uses > 0) WaitAtBarrier(EmptyBarrier(stage, half), (uses - 1) & 1);
      if (half == 0 && lane < 4) {
        state.live[stage][4 * warp + lane] = static_cast<uint8_t>(live >> 8 * lane);
      }
      __syncwarp();
    };
    if (live != 0 && live != kFullWarp) {
      // A box would bring rows that are no keys, too, and what is there may be NaN.
      RowPlace place = PlaceOf<false>(state, Layout::kMlaLatent, first + lane, entry, flags);
      if (place.row == nullptr) place.row = Somewhere(params);
#pragma unroll 1
      for (int half = 0; half < kHalves; ++half) {
        wait_until_empty(half);
        CopyHalf(to, place, live, half, warp, lane, has_tail, false);
        CommitCopies();
        WaitCopies<0>();
        ArriveAsWarp(FullBarrier(stage, half));
      }
      continue;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      wait_until_empty(half);
      if (ElectOne()) {
        const uint32_t full = FullBarrier(stage, half);
        const int boxes = kHalfBoxes + (half == 0 && has_tail ? 1 : 0);
        ArriveExpecting(full, static_cast<uint32_t>(boxes * kBoxKeys * 128));
#pragma unroll
        for (int i = 0; i < kHalfBoxes + 1; ++i) {
          if (i == kHalfBoxes && (half != 0 || !has_tail)) continue;
          const int box = i < kHalfBoxes ? half * kHalfBoxes + i : kMlaValueBoxes;
          CopyBox(to + box * kBoxBytes + warp * kBoxKeys * 128, map, box * 64, 0, offset, block,
                  full);
        }
      }
      __syncwarp();
    }
  }
}

// --- fp8 rows: eight warps have every tile ---

inline constexpr int kDecodingWarps = kProducers<true> / 32;

// Warp w has rows 8 w to 8 w + 7 of each tile, four at a time, eight lanes to a row. Of half h of a
// row lane l of the eight has pieces l and l + 8 of 16 codes, counted from 16 h, and of the row a
// scale that others ask it for.
inline constexpr int kOwnRows = kKeys / kDecodingWarps, kPasses = kOwnRows / 4;

template <bool kIs656>
constexpr Layout kFp8Layout = kIs656 ? Layout::kMlaFp8_656 : Layout::kMlaFp8_584;
// The half that rotary values are filled with.
template <bool kIs656>
constexpr int kRotaryHalf = kIs656 ? 0 : 1;

// A warp arrives when it has decoded a half, a thread when its rotary values have.
template <bool kIs656>
constexpr int DecodedArrivals(int half) {
  return kDecodingWarps + (half == kRotaryHalf<kIs656> ? kProducers<true> : 0);
}

template <bool kIs656>
KVB_DEVICE bool HasPiece(int half, int i, int l) {
  // The other layout's last 64 values are rotary ones.
  return kIs656 || half == 0 || i == 0 || l < 4;
}

// `row`: from the lane's first piece on. Zeros for no row.
template <bool kIs656>
KVB_DEVICE void LoadCodes(const unsigned char* row, bool valid, int half, int l,
                          uint4 (&codes)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    codes[i] = {0, 0, 0, 0};
    if (valid && HasPiece<kIs656>(half, i, l)) codes[i] = LoadOnce16(row + half * 256 + i * 128);
  }
}
// As it is in memory.
template <bool kIs656>
KVB_DEVICE uint32_t LoadScale(const unsigned char* scales, int l) {
  return kIs656 ? reinterpret_cast<const uint32_t*>(scales)[l % 4] : scales[l];
}

// 4 codes times the scale of their tile: of kMlaFp8_656 a float32, of the other layout twice a
// bfloat16, a power of two.
template <typename T, bool kIs656>
KVB_DEVICE void DecodeFour(uint32_t codes, uint32_t scale, uint32_t& low, uint32_t& high) {
  float2 values[2];
  E4m3FourToFloat(codes, values);
  if constexpr (kIs656) {
    const float factor = __uint_as_float(scale);
    low = T::Pack(values[0].x * factor, values[0].y * factor);
    high = T::Pack(values[1].x * factor, values[1].y * factor);
  } else {
    // Codes are bfloat16, and so are their products with powers of two.
    const auto upper_halves = [](const float2& pair) {
      return PermuteBytes(__float_as_uint(pair.x), __float_as_uint(pair.y), 0x7632);
    };
    low = MultiplyBf16Pairs(upper_halves(values[0]), scale);
    high = MultiplyBf16Pairs(upper_halves(values[1]), scale);
  }
}
template <typename T, bool kIs656>
KVB_DEVICE uint4 DecodeEight(uint32_t first, uint32_t second, uint32_t scale) {
  uint4 values;
  DecodeFour<T, kIs656>(first, scale, values.x, values.y);
  DecodeFour<T, kIs656>(second, scale, values.z, values.w);
  return values;
}

// Decodes a half of a row; `at`: where the first 8 values of piece 0 go, those of lanes 4 to 7 the
// second 8.
template <typename T, bool kIs656>
KVB_DEVICE void Decode(int half, const uint4 (&codes)[2], uint32_t own_scale, int lane,
                       uint32_t at) {
  const int l = lane % 8, odd = l / 4;
  if (!kIs656) {
    own_scale = __float_as_uint(E8m0ToFloat(static_cast<uint8_t>(own_scale)));
    own_scale |= own_scale >> 16;
  }
  unsigned char* boxes = DynamicSharedMemory() + half * kHalfBoxes * kBoxBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t scale = __shfl_sync(kFullWarp, own_scale,
                                       lane - l + (kIs656 ? 2 * half + i : 4 * half + 2 * i + odd));
    if (!HasPiece<kIs656>(half, i, l)) continue;
    const uint4 from = codes[i];
    StoreShared16(
        boxes + at + i * 2 * kBoxBytes,
        DecodeEight<T, kIs656>(odd != 0 ? from.z : from.x, odd != 0 ? from.w : from.y, scale));
    StoreShared16(
        boxes + (at ^ 16) + i * 2 * kBoxBytes,
        DecodeEight<T, kIs656>(odd != 0 ? from.x : from.z, odd != 0 ? from.y : from.w, scale));
  }
}

// Lane n brings a quarter of the lines of row n % 8 of a tile, whose places are lanes' from `first`
// on. A row is not left: it may be the last one.
template <bool kIs656>
KVB_DEVICE void PrefetchRows(const RowPlace& place, int first, int lane) {
  const int from = first + lane % kOwnRows, quarter = lane / kOwnRows;
  const unsigned char* row = FromLane(place.row, from);
  const unsigned char* beside = kIs656 ? nullptr : FromLane(place.beside, from);
  if (row == nullptr) return;
  constexpr int kLast = kIs656 ? kRotaryAt656 + 2 * kRotaryValues - 16 : kRecord584 - 16;
  if (quarter < 3) {
    PrefetchToL2(row + quarter * 256);
    PrefetchToL2(row + (quarter < 2 ? quarter * 256 + 128 : kLast));
  } else if (!kIs656) {
    PrefetchToL2(beside);
  }
}

// The ninth box is not used by the layout without 576 values: a thread keeps codes of second halves
// there, each where it alone reads it.
KVB_DEVICE uint32_t KeptCodes(int thread, int pass, int i) {
  const int warp = thread / 32;
  return (1 + warp / 4) * kTileBytes + kMlaValueBoxes * kBoxBytes + warp % 4 * 2048 + pass * 1024 +
         i * 512 + thread % 32 * 16;
}
template <bool kIs656>
KVB_DEVICE void KeepCodes(const unsigned char* row, bool valid, int thread, int pass) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!valid || !HasPiece<kIs656>(1, i, thread % 8)) continue;
    CopyAsync16(SharedAddress(DynamicSharedMemory()) + KeptCodes(thread, pass, i),
                row + 256 + i * 128);
  }
}
template <bool kIs656>
KVB_DEVICE void LoadKeptCodes(bool valid, int thread, int pass, uint4 (&codes)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    codes[i] = {0, 0, 0, 0};
    if (!valid || !HasPiece<kIs656>(1, i, thread % 8)) continue;
    codes[i] = *reinterpret_cast<const uint4*>(DynamicSharedMemory() + KeptCodes(thread, pass, i));
  }
}

// Where in a box a piece of a pass is that is at `at` in pass 0: four rows further on.
KVB_DEVICE uint32_t InPass(uint32_t at, int pass) { return pass == 0 ? at : (at ^ 64) + 512; }

// Places are found for four tiles at a time: of tile t of those, this warp's rows by lanes 8 t on.
inline constexpr int kPlacedTiles = 32 / kOwnRows;
// The first key that a producing thread finds the place of, from the first tile's on; the others
// have a distance of kPlacedTiles tiles.
KVB_DEVICE int OwnKey(int thread) {
  return thread % 32 / kOwnRows * kKeys + thread / 32 * kOwnRows + thread % kOwnRows;
}

// entries: of the thread's first two keys.
template <typename T, bool kIs656>
KVB_DEVICE void ProduceDecoded(const AttendRowsParams& params, const int (&entries)[2],
                               uint32_t& flags) {
  constexpr int kRotaryBox = kIs656 ? 8 : 7;
  constexpr int kRotaryAt = kIs656 ? kRotaryAt656 : kValues584;
  BlockState& state = State();
  const Tiles tiles(state.work);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = thread / 32, l = lane % 8;
  static_assert(kOwnRows == 8 && kPasses == 2);
  // Lines are brought to the L2 a tile early, and not more of them at a time; entries are read four
  // tiles before their places are found.
  int j = tiles.first * kKeys + OwnKey(thread);
  int next_entry = entries[1];
  RowPlace place = PlaceOf<true>(state, kFp8Layout<kIs656>, j, entries[0], flags);
  // Of the tile whose codes were loaded last, from the lane's first piece on; in `live` whether
  // there is a row.
  const unsigned char* rows[kPasses];
  unsigned live = 0;
  uint4 codes[kPasses][2];
  uint32_t scales[kPasses], next_scales[kPasses];
  const auto is_live = [&](int pass) { return (live >> (4 * pass + lane / 8) & 1) != 0; };
  // The first half of tile n.
  const auto load_first = [&](int n, int pass) {
    const int from = n % kPlacedTiles * kOwnRows + 4 * pass + lane / 8;
    if (pass == 0) {
      live = __ballot_sync(kFullWarp, place.row != nullptr) >> n % kPlacedTiles * kOwnRows;
    }
    const unsigned char* at = FromLane(place.row, from);
    rows[pass] = at + l * 16;
    at = kIs656 ? at + kScalesAt656 : FromLane(place.beside, from);
    next_scales[pass] = is_live(pass) ? LoadScale<kIs656>(at, l) : 0;
    LoadCodes<kIs656>(rows[pass], is_live(pass), 0, l, codes[pass]);
  };
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    load_first(0, pass);
    if (!kIs656) KeepCodes<kIs656>(rows[pass], is_live(pass), thread, pass);
  }
  CommitCopies();
  // Where the lane's first piece of pass 0 goes, and its rotary values.
  const uint32_t to_row = kOwnRows * warp + lane / 8;
  uint32_t values_at = l / 4 * kBoxBytes + PieceAt(to_row, l % 4 * 2 + l / 4);
  uint32_t rotary_at = kRotaryBox * kBoxBytes + PieceAt(to_row, l);
#pragma unroll 1
  for (int tile = tiles.first; tile <= tiles.last; ++tile) {
    const int n = tile - tiles.first, stage = n & 1;
    const uint32_t to = (1 + stage) * kTileBytes;
    KeepInLoop(values_at);
    KeepInLoop(rotary_at);
    if (n % kPlacedTiles == kPlacedTiles - 1) {
      j += kPlacedTiles * kKeys;
      place = PlaceOf<true>(state, kFp8Layout<kIs656>, j, next_entry, flags);
      next_entry = EntryOf<true>(state, j + kPlacedTiles * kKeys);
    }
    PrefetchRows<kIs656>(place, (n + 1) % kPlacedTiles * kOwnRows, lane);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (n > 1) WaitAtBarrier(EmptyBarrier(stage, half), ((n >> 1) - 1) & 1);
      if (half == 0 && lane == 0) state.live[stage][warp] = static_cast<uint8_t>(live);
      const bool was_live[kPasses] = {is_live(0), is_live(1)};
      if (!kIs656 && half == 1) WaitCopies<0>();
      // Rotary values are what they will be.
      if (half == kRotaryHalf<kIs656>) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          CopyAsync16(SharedAddress(DynamicSharedMemory()) + to + InPass(rotary_at, pass),
                      was_live[pass] ? rows[pass] + kRotaryAt : Somewhere(params), was_live[pass]);
        }
        ArriveAfterCopies(FullBarrier(stage, half));
      }
      if (half == 0) scales[0] = next_scales[0], scales[1] = next_scales[1];
      if (!kIs656 && half == 1) {
        load_first(n + 1, 0);
        load_first(n + 1, 1);
      }
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const uint32_t at = to + InPass(values_at, pass);
        if (kIs656 || half == 0) {
          Decode<T, kIs656>(half, codes[pass], scales[pass], lane, at);
        } else {
          uint4 kept[2];
          LoadKeptCodes<kIs656>(was_live[pass], thread, pass, kept);
          Decode<T, kIs656>(half, kept, scales[pass], lane, at);
          // They are in registers: of the next tile to the same place.
          KeepCodes<kIs656>(rows[pass], is_live(pass), thread, pass);
        }
        if (!kIs656) continue;
        if (half == 0) {
          LoadCodes<kIs656>(rows[pass], was_live[pass], 1, l, codes[pass]);
        } else {
          load_first(n + 1, pass);
        }
      }
      if (half == 1) CommitCopies();
      ArriveAsWarp(FullBarrier(stage, half));
    }
  }
  CommitCopies();
  WaitCopies<0>();
}

}  // namespace kvblocks::attention::cuda::mla_rows64

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ROWS64_PRODUCER_H_
