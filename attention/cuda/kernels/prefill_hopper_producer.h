// The producing half of the wgmma prefill kernel, and what both halves agree on: shared memory and
// the barriers in it.
//
// The producer finds row tiles, gathers queries by 16-byte asynchronous copies, and has the bulk
// copy engine bring K and V, 128 keys at a time, two tiles of K and up to three of V before the
// consumers (prefill_hopper_kernel.h); completion arrives at barriers in shared memory. K and V
// come as boxes of tensors: keys of one block, 128 bytes of each. Codes are made into 16-bit
// elements by the producing warp that copied them, where they are: a row's codes are the last 128
// bytes of what becomes of it. Only K that codes are multiplied with stays as it is. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_

#include <type_traits>

#include "attention/cuda/device/bulk.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/prefill_hopper_special.h"
#include "attention/cuda/kernels/prefill_rows.h"
#include "attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda::prefill_hopper {

inline constexpr int kRows = kPrefillRows;
inline constexpr int kKeys = 128;
inline constexpr int kMostKeyStages = 3, kMostValueStages = 3;
// Of what is known of keys: the producer writes it before the stage is free.
inline constexpr int kBadSlots = 8;
inline constexpr int kMostSharedBytes = 227 * 1024;
// Row tiles known: what is computed, what comes next, and what consumers may not have left yet.
inline constexpr int kTileSlots = 3;
inline constexpr int kColumnBytes = 128;
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kProducerWarps = 4, kWarpKeys = kKeys / kProducerWarps;

// Named barriers.
inline constexpr int kTurnBarrier = 1;  // and 2: whose turn it is to issue products
inline constexpr int kConsumersBarrier = 3;

// What is multiplied: queries with K, weights with V; and what outputs are, in 16 bits.
template <typename T>
struct SameTypes {
  using Query = T;
  using Value = T;
  using Out = T;
  static constexpr bool kCodes = false;   // in the cache
  static constexpr bool kPagedX = false;  // or the strided layouts
  static constexpr bool kTested = false;  // masks and block-sparse visibility
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
};
template <typename T>
struct InPagedX : SameTypes<T> {
  static constexpr bool kPagedX = true;
};
template <typename T>
struct Tested : SameTypes<T> {
  static constexpr bool kTested = true;
  static constexpr int kProducerRegisters = 88, kConsumerRegisters = 208;
};
// Codes as what they are exact in: K as the queries' type, V as f16, in which weights are most
// exact.
template <typename T>
struct OverCodes {
  using Query = T;
  using Value = F16;
  using Out = T;
  static constexpr bool kCodes = true, kPagedX = false, kTested = false;
  static constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
};
// Codes on both sides of Q K.
template <typename T>
struct CodesOverCodes : OverCodes<T> {
  using Query = E4m3;
  static constexpr int kProducerRegisters = 64;
};

template <typename Kind, int kD, int kDv>
struct SharedLayout {
  // K is multiplied as it comes.
  static constexpr bool kPlainKeys = !Kind::kCodes || sizeof(typename Kind::Query::Bits) == 1;
  static constexpr int kColumnOfTile = kKeys * kColumnBytes;
  // Columns of 128 bytes of a row of queries and of K.
  static constexpr int kKeyColumns = sizeof(typename Kind::Query::Bits) == 1 ? 1 : kD / 64;
  static constexpr int kKeyBytes = kKeyColumns * kColumnOfTile;
  static constexpr int kValueBytes = kDv / 64 * kColumnOfTile;
  static constexpr int kQueryBytes = kKeyColumns * kRows * kColumnBytes;
  static_assert(!Kind::kCodes || (kD <= 128 && kDv <= 128));
  // Rows of outputs, padded so that the eight rows that a warp writes at a time have banks of their
  // own.
  static constexpr int kOutPitch = 2 * kDv + 16;
  static constexpr int kOutBytes = kRows * kOutPitch;
  static constexpr int kSmallBytes = 1024;  // at most, of what is not a tile
  // Of codes, the producer is busy with another tile when one is released.
  static constexpr int kKeyStages = Kind::kCodes && kPlainKeys ? kMostKeyStages : 2;
  static constexpr int Room(int value_stages, bool out) {
    return kQueryBytes + kKeyStages * kKeyBytes + value_stages * kValueBytes +
           (out ? kOutBytes : 0) + kSmallBytes;
  }
  // V is released late, when both consumers are done with it, and wanted soon. Tested instances
  // need the room.
  static constexpr int kValueStages =
      Room(kMostValueStages, true) <= kMostSharedBytes && !Kind::kTested ? kMostValueStages : 2;
  // Where outputs have no room of their own they take the queries', which then are free later.
  static constexpr bool kOutInQueries = Room(kValueStages, true) > kMostSharedBytes;

  static constexpr int kQueries = 0;
  static constexpr int kKeyTiles = kQueries + kQueryBytes;
  static constexpr int kValueTiles = kKeyTiles + kKeyStages * kKeyBytes;
  static constexpr int kValuesEnd = kValueTiles + kValueStages * kValueBytes;
  static constexpr int kOut = kOutInQueries ? kQueries : kValuesEnd;
  // uint32 [kBadSlots][kProducerWarps]: a bit per key, set if its block is none
  static constexpr int kBadKeys = kValuesEnd + (kOutInQueries ? 0 : kOutBytes);
  // uint32 [kValueStages][kProducerWarps]: whether rows of V that somebody sees have infinities or
  // NaN, in tiles at an edge
  static constexpr int kNonFinite = kBadKeys + kBadSlots * 4 * kProducerWarps;
  // uint32: not 0 once some key's block was none, for consumers to look at the bits from then on
  static constexpr int kAnyBad = kNonFinite + kValueStages * 4 * kProducerWarps;
  // RowTile [kTileSlots]
  static constexpr int kTiles = kAnyBad + 16;
  static constexpr int kTileBytes = (sizeof(RowTile) + 15) / 16 * 16;
  static constexpr int kBarriers = kTiles + kTileSlots * kTileBytes;
  static constexpr int kSmallEnd = kBarriers + 33 * 8;
  // Of tested instances: RowRule [kRows], uint64 [kSeenSlots][kRows][2], SeenTile [kSeenSlots],
  // uint32 [2][kProducerWarps].
  static constexpr int kRules = (kSmallEnd + 15) / 16 * 16;
  static constexpr int kSeenWords = kRules + kRows * static_cast<int>(sizeof(RowRule));
  static constexpr int kSeenTiles = kSeenWords + kSeenSlots * kRows * 16;
  static constexpr int kAnySeen = kSeenTiles + kSeenSlots * static_cast<int>(sizeof(SeenTile));
  static constexpr int kBytes = Kind::kTested ? kAnySeen + 2 * 4 * kProducerWarps : kSmallEnd;
  static_assert(kSmallEnd - kBadKeys <= kSmallBytes && kBytes <= kMostSharedBytes);
  static_assert(sizeof(RowRule) % 16 == 0 && sizeof(SeenTile) % 16 == 0);
};

// Barriers in shared memory: something is there (full), nobody needs it any more (empty).
struct Barriers {
  uint32_t base;
  KVB_DEVICE uint32_t TileFull(int slot) const { return base + 8 * slot; }
  KVB_DEVICE uint32_t KeysFull(int stage) const { return base + 24 + 8 * stage; }
  KVB_DEVICE uint32_t KeysEmpty(int stage) const { return base + 48 + 8 * stage; }
  KVB_DEVICE uint32_t ValuesFull(int stage) const { return base + 72 + 8 * stage; }
  KVB_DEVICE uint32_t ValuesEmpty(int stage) const { return base + 96 + 8 * stage; }
  KVB_DEVICE uint32_t QueriesFull() const { return base + 120; }
  KVB_DEVICE uint32_t QueriesEmpty() const { return base + 128; }
  // Of a producing warp: its boxes are there, and it is to look at them first. Those of two tiles
  // may be under way.
  KVB_DEVICE uint32_t ValuesLanded(int warp, uint32_t n) const {
    return base + 136 + 16 * warp + 8 * (n & 1);
  }
  KVB_DEVICE uint32_t KeysLanded(int warp, uint32_t n) const {
    return base + 200 + 16 * warp + 8 * (n & 1);
  }

  KVB_DEVICE void Init() const {
    for (int i = 0; i < kTileSlots; ++i) InitBarrier(TileFull(i), 1);
    for (int i = 0; i < kMostKeyStages; ++i) {
      InitBarrier(KeysFull(i), kProducerWarps);
      InitBarrier(KeysEmpty(i), kConsumerWarps);
    }
    for (int i = 0; i < kMostValueStages; ++i) {
      InitBarrier(ValuesFull(i), kProducerWarps);
      InitBarrier(ValuesEmpty(i), kConsumerWarps);
    }
    for (int i = 0; i < kProducerWarps; ++i) {
      for (uint32_t n = 0; n < 2; ++n) {
        InitBarrier(ValuesLanded(i, n), 1);
        InitBarrier(KeysLanded(i, n), 1);
      }
    }
    InitBarrier(QueriesFull(), kGroupThreads);
    InitBarrier(QueriesEmpty(), kConsumerWarps);
    FenceForAsyncProxy();
  }
};

KVB_DEVICE int32_t FirstKeyOf(const RowTile& tile) { return tile.seen.begin / kKeys * kKeys; }
KVB_DEVICE int32_t NumKeyTilesOf(const RowTile& tile) {
  if (tile.seen.end <= tile.seen.begin) return 0;
  return (tile.seen.end - FirstKeyOf(tile) + kKeys - 1) / kKeys;
}

// Whether some row sees less of the tile of keys than another; whole: RowTile::seen_by_all.
KVB_DEVICE bool IsEdge(const KeyRange& whole, int32_t key0) {
  return key0 < whole.begin || key0 + kKeys > whole.end;
}

// K and V as boxes of `rows` keys: a power of two that divides the block size, so that a box is in
// one block; at most what one producing warp copies.
struct KeyBoxes {
  TensorMap keys, values;
  int32_t rows = 0;
  bool whole = false;  // boxes are blocks
};
inline constexpr int kMostBoxes = kWarpKeys / 8;  // of a warp and a tile
struct TestedKeyBoxes : KeyBoxes {
  SparseDivisors divisors;
};
template <typename Kind>
using BoxesOf = std::conditional_t<Kind::kTested, TestedKeyBoxes, KeyBoxes>;
// Of kPagedX: keys that a box of V has, a box of K having half as many; dimensions of both.
inline constexpr int kPagedXKeys = 16, kPagedXDims = 128;

// --- The producer ---

template <typename Kind, int kD, int kDv>
class Producer {
 public:
  using Shared = SharedLayout<Kind, kD, kDv>;

  KVB_DEVICE Producer(const PrefillParams& params, const BoxesOf<Kind>& boxes,
                      uint32_t* error_flags, const Barriers& barriers, const TileOrder& order)
      : params_(params),
        boxes_(boxes),
        error_flags_(error_flags),
        barriers_(barriers),
        shared_(DynamicSharedMemory()),
        base_(SharedAddress(shared_)),
        by_block_size_(order.by_block_size),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(__shfl_sync(kFullWarp, thread_ / 32, 0)) {}

  // One loop for all steps of all row tiles: code that stands in several places is fetched, cold,
  // in each. Step n of a row tile copies K of tile n + 1 and V of n; what consumers wait for first
  // comes first.
  KVB_DEVICE void Run(const TileOrder& order) {
    if (thread_ == 0) {
      PrefetchMap(boxes_.keys);
      PrefetchMap(boxes_.values);
    }
    int num_tiles = 0;  // of tested instances, found so far
    KeyPlace next;
    Boxes keys, values;
    [[maybe_unused]] Finder finder = MakeFinder();
    // Begins at the end of a row tile without keys.
    for (int n = 0;; ++n) {
      values = keys;
      if (n + 1 < num_tiles && (!Kind::kTested || n >= -1)) {
        const KeyPlace place = next;
        next = Kind::kTested && n + 2 >= num_tiles ? KeyPlace{-1, -1} : PlaceOfLane(now_, n + 2);
        keys = Spread(place);
        CopyKeys(keys, place, step_ + n + 1);
      }
      if constexpr (Kind::kTested) {
        if (n == -1) CopyQueries(*tile_, published_ - 1);
        if (n + 3 == num_tiles) FindTile(finder, num_tiles);
        if (n == -2) next = PlaceOfLane(now_, 0);
        if (n < 0) continue;
      }
      if (n < 0) {
        CopyQueries(*tile_, published_ - 1);
        continue;
      }
      if (n < num_tiles) CopyValues(values, n);
      if (n == 0) PublishNext(order);
      if constexpr (Kind::kCodes) {
        // What was copied a step ago, while this step's copies are under way.
        if constexpr (!Shared::kPlainKeys) {
          if (n < num_tiles) ExpandKeys(step_ + n);
        }
        if (n > 0 && n <= num_tiles) TakeValues(n - 1);
        if (n < num_tiles) continue;
      }
      if (n + 1 < num_tiles) continue;
      step_ += num_tiles;
      tile_ = &SlotOf(published_ - 1);
      if (!tile_->valid) return;
      now_ = SourceOf(*tile_);
      num_tiles = NumKeyTilesOf(*tile_);
      next = first_;
      n = -2;
      if constexpr (Kind::kTested) {
        // Two tiles are to be found first.
        if (num_tiles > 0) {
          finder.Begin(*tile_);
          num_tiles = 0;
          n = -4;
        }
      }
    }
  }

 private:
  KVB_DEVICE RowTile& SlotOf(uint32_t n) const {
    return *reinterpret_cast<RowTile*>(shared_ + Shared::kTiles +
                                       n % kTileSlots * Shared::kTileBytes);
  }

  // Finds this block's next row tile, or that there is none. When it is asked for the one after n,
  // queries of n are under way, so consumers are past n - 2, whose slot is taken.
  KVB_DEVICE void PublishNext(const TileOrder& order) {
    RowTile found;
    const uint32_t items = static_cast<uint32_t>(order.items);
    while (!found.valid && round_ * gridDim.x < items) {
      // There and back: each round of blocks gives who had the longest item before the shortest.
      const uint32_t item =
          round_ * gridDim.x + (round_ % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
      ++round_;
      if (item < items) found = FindRowTile<kRows>(params_, order, item, error_flags_);
    }
    const uint32_t n = published_++;
    if (thread_ == 0) {
      found.by_group = order.by_group;  // here, they need no registers before
      found.by_block_size = order.by_block_size;
      SlotOf(n) = found;
      ArriveAtBarrier(barriers_.TileFull(n % kTileSlots));
    }
    WaitAtBarrier(barriers_.TileFull(n % kTileSlots), n / kTileSlots & 1);
    if constexpr (Kind::kTested) return;  // which tile is the first is not known
    // Block ids are there when the tile's turn comes.
    if (SlotOf(n).valid) first_ = PlaceOfLane(SourceOf(SlotOf(n)), 0);
  }

  KVB_DEVICE void CopyQueries(const RowTile& tile, uint32_t n) const {
    WaitAtBarrier(barriers_.QueriesEmpty(), (n & 1) ^ 1);
    const int piece = thread_ % 8;
    for (int row = thread_ / 8; row < kRows; row += kGroupThreads / 8) {
      const unsigned char* source = static_cast<const unsigned char*>(params_.q.data);
      const bool exists = row < tile.num_rows;
      constexpr int kBytes = sizeof(typename Kind::Query::Bits);
      if (exists) {
        source += kBytes * ((tile.query_start + tile.TokenOf(row)) * params_.q.row_stride +
                            tile.HeadOf(row) * params_.q.head_stride);
      }
#pragma unroll
      for (int column = 0; column < Shared::kKeyColumns; ++column) {
        const bool valid = exists && column * 128 + piece * 16 < params_.key_dim * kBytes;
        CopyAsync16(base_ + Shared::kQueries + (column * kRows + row) * kColumnBytes +
                        ((piece ^ (row & 7)) << 4),
                    valid ? source + column * 128 + piece * 16 : source, valid);
      }
    }
    ArriveAfterCopies(barriers_.QueriesFull());
  }

  // What copies of K and V take of a row tile, in registers.
  struct Source {
    const int32_t* blocks = nullptr;  // the request's row of the table
    int32_t kv_head = 0, kv_start = 0;
    KeyRange seen;

    KVB_DEVICE int32_t TileKey(int n) const { return (seen.begin / kKeys + n) * kKeys; }
  };
  KVB_DEVICE Source SourceOf(const RowTile& tile) const {
    const int32_t* blocks = params_.keys.block_table;
    if (blocks != nullptr) blocks += tile.request * params_.keys.table_stride;
    return {blocks, tile.kv_head, static_cast<int32_t>(tile.kv_start), tile.seen};
  }
  // This lane's of tile n; -1: none.
  KVB_DEVICE int32_t KeyOfLane(const Source& source, int n) const {
    if constexpr (Kind::kTested) {
      const int32_t first = Seen().At(step_ + n).by_warp[warp_].keys[thread_ / 64];
      return first < 0 ? -1 : first + thread_ % 64;
    }
    return source.TileKey(n) + thread_;
  }
  // Of the box that this lane's key of tile n is in; loads the block's id, and does not look at it:
  // the load may take its time. -1, outside of the tensor, where no key is seen.
  KVB_DEVICE KeyPlace PlaceOfLane(const Source& source, int n) const {
    const int32_t first = KeyOfLane(source, n) & -boxes_.rows;
    if (first + boxes_.rows <= source.seen.begin || first >= source.seen.end) return {-1, -1};
    if (source.blocks == nullptr) return {0, source.kv_start + first};
    const uint32_t column = by_block_size_.Quotient(static_cast<uint32_t>(first));
    return {source.blocks[column],
            static_cast<int32_t>(static_cast<uint32_t>(first) - column * by_block_size_.divisor())};
  }

  // What one lane has to know to copy this warp's boxes.
  struct Boxes {
    int32_t block[kMostBoxes], offset[kMostBoxes];
  };
  // Exponentials wait in line with shuffles: offsets are not exchanged where they all are 0.
  KVB_DEVICE Boxes Spread(const KeyPlace& place) const {
    Boxes boxes;
#pragma unroll
    for (int i = 0; i < kMostBoxes; ++i) {
      if (i * boxes_.rows >= kWarpKeys) break;
      boxes.block[i] = __shfl_sync(kFullWarp, place.block, i * boxes_.rows);
      boxes.offset[i] = 0;
      if (!boxes_.whole) boxes.offset[i] = __shfl_sync(kFullWarp, place.offset, i * boxes_.rows);
    }
    return boxes;
  }

  // Once a stage is free little time is left to fill it: all else comes before.
  KVB_DEVICE void CopyKeys(const Boxes& boxes, const KeyPlace& place, uint32_t step) const {
    const uint32_t stage = step % Shared::kKeyStages;
    const uint32_t bad = __ballot_sync(kFullWarp, IsBad(params_, place));
    if (lane_ == 0) {
      WordOf(Shared::kBadKeys, step % kBadSlots) = bad;
      if (bad != 0) [[unlikely]] {
        atomicOr(reinterpret_cast<uint32_t*>(shared_ + Shared::kAnyBad), 1u);
        if (error_flags_ != nullptr) atomicOr(error_flags_, kBadBlock);
      }
    }
    __syncwarp();
    WaitAtBarrier(barriers_.KeysEmpty(stage), (step / Shared::kKeyStages & 1) ^ 1);
    if constexpr (Shared::kPlainKeys) {
      CopyBoxes<Shared::kKeyColumns>(boxes_.keys, Shared::kKeyTiles + stage * Shared::kKeyBytes,
                                     boxes, barriers_.KeysFull(stage));
    } else {
      CopyBoxes<1>(boxes_.keys, Shared::kKeyTiles + stage * Shared::kKeyBytes + kCodesOf<kD, kKeys>,
                   boxes, barriers_.KeysLanded(warp_, step));
    }
  }

  KVB_DEVICE void CopyValues(const Boxes& boxes, int n) {
    const uint32_t step = step_ + n, stage = step % Shared::kValueStages;
    const uint32_t full = barriers_.ValuesFull(stage);
    const uint32_t landed = barriers_.ValuesLanded(warp_, Kind::kCodes ? step : landed_);
    const uint32_t to = Shared::kValueTiles + stage * Shared::kValueBytes;
    WaitAtBarrier(barriers_.ValuesEmpty(stage), (step / Shared::kValueStages & 1) ^ 1);
    if constexpr (Kind::kCodes) {
      CopyBoxes<1>(boxes_.values, to + kCodesOf<kDv, kKeys>, boxes, landed);
    } else {
      const bool edge = IsEdgeOf(n);
      CopyBoxes<kDv / 64, true>(boxes_.values, to, boxes, edge ? landed : full);
      if (edge) TakeValues(n);
    }
  }

  // V once it has landed: made of codes, and looked at where some rows see less of the tile than
  // others.
  KVB_DEVICE void TakeValues(int n) {
    const uint32_t stage = (step_ + n) % Shared::kValueStages;
    const uint32_t to = Shared::kValueTiles + stage * Shared::kValueBytes;
    const uint32_t number = Kind::kCodes ? step_ + n : landed_++;
    WaitAtBarrier(barriers_.ValuesLanded(warp_, number), number >> 1 & 1);
    if constexpr (Kind::kCodes) {
      ExpandRows<typename Kind::Value, kDv, kKeys>(params_.keys.cache.element, shared_ + to,
                                                   warp_ * kWarpKeys, lane_);
      FenceForAsyncProxy();
      __syncwarp();
    }
    const bool edge = !Kind::kCodes || IsEdgeOf(n);
    if constexpr (Kind::kPagedX) {
      if (edge) LookAtValuesByDims(n, stage, shared_ + to);
    } else {
      if (edge) LookAtValues(n, stage, shared_ + to + thread_ * kColumnBytes);
    }
    __syncwarp();
    if (lane_ == 0) ArriveAtBarrier(barriers_.ValuesFull(stage));
  }
  KVB_DEVICE void LookAtValues(int n, uint32_t stage, unsigned char* row) const {
    const int32_t key = KeyOfLane(now_, n);
    const bool bf16 = params_.keys.cache.element == Element::kBF16;
    // A row of V, its pieces in an order in which eight lanes have all banks.
    const auto piece = [&](int i) -> uint4& {
      return *reinterpret_cast<uint4*>(row + i / 8 * Shared::kColumnOfTile +
                                       ((i ^ thread_) % 8 << 4));
    };
    uint32_t found = 0;
#pragma unroll 4
    for (int i = 0; i < kDv / 8; ++i) found |= NonFiniteCarries(piece(i), bf16);
    const bool seen = key >= now_.seen.begin && key < now_.seen.end;
    if (found != 0 && !seen) {
      // What a page holds behind a length, say. No row needs a notice.
#pragma unroll 1
      for (int i = 0; i < kDv / 8; ++i) piece(i) = make_uint4(0, 0, 0, 0);
      FenceForAsyncProxy();
    }
    const uint32_t any = __ballot_sync(kFullWarp, found != 0 && seen);
    if (lane_ == 0) WordOf(Shared::kNonFinite, stage) = any;
  }

  // As LookAtValues. Lanes take dimensions, and in each the warp's keys by eights.
  KVB_DEVICE void LookAtValuesByDims(int n, uint32_t stage, unsigned char* values) const {
    const bool bf16 = params_.keys.cache.element == Element::kBF16;
    uint32_t found = 0;
#pragma unroll 1
    for (int octet = warp_ * (kWarpKeys / 8); octet < (warp_ + 1) * (kWarpKeys / 8); ++octet) {
      const int32_t key = now_.TileKey(n) + 8 * octet;
      // Elements of unseen keys: those below and those from `end` on.
      const int32_t begin = now_.seen.begin - key, end = now_.seen.end - key;
#pragma unroll 1
      for (int dim = lane_; dim < kDv; dim += 32) {
        uint4& piece = *reinterpret_cast<uint4*>(values + PieceByDims<kDv>(dim, octet));
        if (NonFiniteCarries(piece, bf16) == 0) continue;
        uint32_t* const pairs = reinterpret_cast<uint32_t*>(&piece);
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
          if (i < begin || i >= end) pairs[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0xffffu;
        }
        FenceForAsyncProxy();
        found |= NonFiniteCarries(piece, bf16);
      }
    }
    const uint32_t any = __ballot_sync(kFullWarp, found != 0);
    if (lane_ == 0) WordOf(Shared::kNonFinite, stage) = any;
  }

  KVB_DEVICE void ExpandKeys(uint32_t step) {
    const uint32_t stage = step % Shared::kKeyStages;
    WaitAtBarrier(barriers_.KeysLanded(warp_, step), step >> 1 & 1);
    ExpandRows<typename Kind::Query, kD, kKeys>(
        params_.keys.cache.element, shared_ + Shared::kKeyTiles + stage * Shared::kKeyBytes,
        warp_ * kWarpKeys, lane_);
    FenceForAsyncProxy();
    __syncwarp();
    if (lane_ == 0) ArriveAtBarrier(barriers_.KeysFull(stage));
  }

  // This warp's, of arrays by slot and warp.
  KVB_DEVICE uint32_t& WordOf(int array, uint32_t slot) const {
    return reinterpret_cast<uint32_t*>(shared_ + array)[slot * kProducerWarps + warp_];
  }

  // This warp's keys of a tile at `to`. Each warp copies a quarter: what one lane has to do for all
  // boxes takes longer than there is time for a tile.
  template <int kColumns, bool kValues = false>
  KVB_DEVICE void CopyBoxes(const TensorMap& map, uint32_t to, const Boxes& boxes,
                            uint32_t barrier) const {
    if (ElectOne()) {
      ArriveExpecting(barrier, kColumns * kWarpKeys * kColumnBytes);
#pragma unroll
      for (int i = 0; i < kMostBoxes; ++i) {
        if constexpr (Kind::kPagedX) {
          // Rows of a box are dimensions of V, or eights of those of K: 16 bytes of each key.
          constexpr int kBoxKeys = kValues ? kPagedXKeys : kPagedXKeys / 2;
          if (i * kBoxKeys >= kWarpKeys) break;
          const int group = i * kBoxKeys / kPagedXKeys, behind = i * kBoxKeys % kPagedXKeys;
          // Of no block, too, a multiple of what the engine takes.
          const int32_t offset = (boxes.offset[group] & -kPagedXKeys) + behind;
          CopyBox(base_ + to + (warp_ * kWarpKeys + i * kBoxKeys) * kColumns * kColumnBytes, map,
                  kValues ? offset : 8 * offset, 0, now_.kv_head, boxes.block[group], barrier);
          continue;
        }
        if (i * boxes_.rows >= kWarpKeys) break;
        const uint32_t at = base_ + to + (warp_ * kWarpKeys + i * boxes_.rows) * kColumnBytes;
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          CopyBox(at + column * Shared::kColumnOfTile, map, column * 64, now_.kv_head,
                  boxes.offset[i], boxes.block[i], barrier);
        }
      }
    }
    __syncwarp();
  }

  // --- Of tested instances ---

  using Finder = std::conditional_t<Kind::kTested, TileFinder<Shared>, int>;
  KVB_DEVICE Finder MakeFinder() const {
    if constexpr (Kind::kTested) {
      return Finder(params_, boxes_.divisors, shared_, error_flags_);
    } else {
      return 0;
    }
  }
  KVB_DEVICE SeenTiles<Shared> Seen() const { return {shared_}; }
  // Whether some row sees less of tile n than another.
  KVB_DEVICE bool IsEdgeOf(int n) const {
    if constexpr (Kind::kTested) return Seen().At(step_ + n).by_warp[warp_].is_mixed != 0;
    return IsEdge(tile_->seen_by_all, now_.TileKey(n));
  }
  // One more than num_tiles, or the mark of the last one.
  KVB_DEVICE void FindTile(Finder& finder, int& num_tiles) const {
    if constexpr (Kind::kTested) {
      if (finder.Find(*tile_, step_ + num_tiles, num_tiles == 0)) {
        ++num_tiles;
      } else if (thread_ == 0) {
        Seen().At(step_ + num_tiles - 1).is_last = 1;
      }
    }
  }

  const PrefillParams& params_;
  const BoxesOf<Kind>& boxes_;
  uint32_t* const error_flags_;
  const Barriers barriers_;
  unsigned char* const shared_;
  const uint32_t base_;
  const FastDivisor& by_block_size_;
  const int thread_, lane_, warp_;
  uint32_t step_ = 0;              // tiles of keys so far
  uint32_t landed_ = 0;            // tiles of 16-bit V that this warp looked at
  uint32_t round_ = 0;             // of items
  uint32_t published_ = 0;         // row tiles
  const RowTile* tile_ = nullptr;  // whose keys are copied
  Source now_;                     // the same
  KeyPlace first_;                 // of the row tile published last
};

}  // namespace kvblocks::attention::cuda::prefill_hopper

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_
