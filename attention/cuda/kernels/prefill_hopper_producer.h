// The producing half of the wgmma prefill kernel, and what both halves agree on: shared memory and
// the barriers in it.
//
// The producer finds row tiles and copies queries, K and V to shared memory, two tiles of K and up
// to three of V ahead of the consumers (prefill_hopper.cu). Device code of that one source.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/hopper.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/prefill_rows.h"
#include "kvblocks/attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda::prefill_hopper {

inline constexpr int kRows = 128;  // of queries
inline constexpr int kKeys = 128;
inline constexpr int kKeyStages = 2;
inline constexpr int kMostValueStages = 3;
inline constexpr int kMostSharedBytes = 227 * 1024;
// Row tiles known: what is computed, what comes next, and what consumers may not have left yet.
inline constexpr int kTileSlots = 3;
inline constexpr int kColumnBytes = 128;
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

// Named barriers.
inline constexpr int kTurnBarrier = 1;  // and 2: whose turn it is to issue products
inline constexpr int kConsumersBarrier = 3;

template <int kD, int kDv>
struct SharedLayout {
  static constexpr int kColumnOfTile = kKeys * kColumnBytes;
  static constexpr int kKeyBytes = kD / 64 * kColumnOfTile;
  static constexpr int kValueBytes = kDv / 64 * kColumnOfTile;
  static constexpr int kQueryBytes = kD / 64 * kRows * kColumnBytes;
  static constexpr int kOutBytes = kDv / 64 * kRows * kColumnBytes;
  static constexpr int kSmallBytes = 2 * 1024;  // at most, of what is not a tile
  static constexpr int Room(int value_stages, bool out) {
    return kQueryBytes + kKeyStages * kKeyBytes + value_stages * kValueBytes +
           (out ? kOutBytes : 0) + kSmallBytes;
  }
  // V is released late, when both consumers are done with it, and wanted soon.
  static constexpr int kValueStages =
      Room(kMostValueStages, true) <= kMostSharedBytes ? kMostValueStages : 2;
  // Where outputs have no room of their own they take the queries', which then are free later.
  static constexpr bool kOutInQueries = Room(kValueStages, true) > kMostSharedBytes;

  static constexpr int kQueries = 0;
  static constexpr int kKeyTiles = kQueries + kQueryBytes;
  static constexpr int kValueTiles = kKeyTiles + kKeyStages * kKeyBytes;
  static constexpr int kValuesEnd = kValueTiles + kValueStages * kValueBytes;
  static constexpr int kOut = kOutInQueries ? kQueries : kValuesEnd;
  // uint8 [kKeyStages][kKeys]: whether the key's block is none
  static constexpr int kBadKeys = kValuesEnd + (kOutInQueries ? 0 : kOutBytes);
  // uint32 [kKeyStages][4], by producing warps: whether one of their keys is
  static constexpr int kAnyBad = kBadKeys + kKeyStages * kKeys;
  // uint32 [kValueStages][4]: whether V has infinities or NaN, in tiles at an edge, by producing
  // warps
  static constexpr int kNonFinite = kAnyBad + kKeyStages * 4 * 4;
  static constexpr int kTiles = kNonFinite + kValueStages * 4 * 4;  // RowTile [kTileSlots]
  static constexpr int kTileBytes = (sizeof(RowTile) + 15) / 16 * 16;
  static constexpr int kBarriers = kTiles + kTileSlots * kTileBytes;
  static constexpr int kBytes = kBarriers + 16 * 8;
  static_assert(kBytes <= kMostSharedBytes);
};

// Barriers in shared memory: something is there (full), nobody needs it any more (empty).
struct Barriers {
  uint32_t base;
  KVB_DEVICE uint32_t TileFull(int slot) const { return base + 8 * slot; }
  KVB_DEVICE uint32_t KeysFull(int stage) const { return base + 24 + 8 * stage; }
  KVB_DEVICE uint32_t KeysEmpty(int stage) const { return base + 40 + 8 * stage; }
  KVB_DEVICE uint32_t ValuesFull(int stage) const { return base + 56 + 8 * stage; }
  KVB_DEVICE uint32_t ValuesEmpty(int stage) const { return base + 80 + 8 * stage; }
  KVB_DEVICE uint32_t QueriesFull() const { return base + 104; }
  KVB_DEVICE uint32_t QueriesEmpty() const { return base + 112; }

  KVB_DEVICE void Init() const {
    for (int i = 0; i < kTileSlots; ++i) InitBarrier(TileFull(i), 1);
    // Each producing thread's copies, and what its warp wrote about them.
    for (int i = 0; i < kKeyStages; ++i) {
      InitBarrier(KeysFull(i), kGroupThreads + 4);
      InitBarrier(KeysEmpty(i), kConsumerWarps);
    }
    for (int i = 0; i < kMostValueStages; ++i) {
      InitBarrier(ValuesFull(i), kGroupThreads + 4);
      InitBarrier(ValuesEmpty(i), kConsumerWarps);
    }
    InitBarrier(QueriesFull(), kGroupThreads);
    InitBarrier(QueriesEmpty(), kConsumerWarps);
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

// --- The producer ---

template <int kD, int kDv>
class Producer {
 public:
  using Shared = SharedLayout<kD, kDv>;

  KVB_DEVICE Producer(const PrefillParams& params, uint32_t* error_flags, const Barriers& barriers)
      : params_(params),
        error_flags_(error_flags),
        barriers_(barriers),
        shared_(DynamicSharedMemory()),
        base_(SharedAddress(shared_)),
        thread_(static_cast<int>(threadIdx.x)),
        row_(thread_ / 8),
        piece_(thread_ % 8) {}

  // One loop for all steps of all row tiles: code that stands in several places is fetched, cold,
  // in each. Step n of a row tile copies K of tile n + 1 and V of n; what consumers wait for first
  // comes first.
  KVB_DEVICE void Run(const TileOrder& order) {
    const Cache& cache = params_.keys.cache;
    const RowTile* tile = nullptr;
    int num_tiles = 0;
    KeyPlace next;
    int64_t value = -1;
    // Begins at the end of a row tile without keys.
    for (int n = 0;; ++n) {
      const int64_t value_now = value;
      if (n + 1 < num_tiles) {
        const KeyPlace place = next;
        value = OffsetOf(params_, cache.v, *tile, place);
        next = PlaceOf(params_, *tile, KeyOf(*tile, n + 2));
        CopyKeys(OffsetOf(params_, cache.k, *tile, place), IsBad(params_, place), step_ + n + 1);
      }
      if (n < 0) {
        CopyQueries(*tile, published_ - 1);
        continue;
      }
      if (n < num_tiles) {
        CopyValues(value_now, step_ + n, IsEdge(tile->seen_by_all, FirstKeyOf(*tile) + n * kKeys));
      }
      if (n == 0) PublishNext(order);
      if (n + 1 < num_tiles) continue;
      step_ += num_tiles;
      tile = &SlotOf(published_ - 1);
      if (!tile->valid) return;
      num_tiles = NumKeyTilesOf(*tile);
      next = first_;
      n = -2;
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
    // Block ids are there when the tile's turn comes.
    if (!SlotOf(n).valid) return;
    first_ = PlaceOf(params_, SlotOf(n), KeyOf(SlotOf(n), 0));
  }

  KVB_DEVICE void CopyQueries(const RowTile& tile, uint32_t n) const {
    WaitAtBarrier(barriers_.QueriesEmpty(), (n & 1) ^ 1);
    for (int row = row_; row < kRows; row += kGroupThreads / 8) {
      const unsigned char* source = static_cast<const unsigned char*>(params_.q.data);
      const bool exists = row < tile.num_rows;
      if (exists) {
        source += 2 * ((tile.query_start + tile.TokenOf(row)) * params_.q.row_stride +
                       tile.HeadOf(row) * params_.q.head_stride);
      }
#pragma unroll
      for (int column = 0; column < kD / 64; ++column) {
        const bool valid = exists && column * 64 + piece_ * 8 < params_.key_dim;
        CopyAsync16(base_ + Shared::kQueries + (column * kRows + row) * kColumnBytes +
                        ((piece_ ^ (row & 7)) << 4),
                    valid ? source + column * 128 + piece_ * 16 : source, valid);
      }
    }
    ArriveAfterCopies(barriers_.QueriesFull());
  }

  // This thread looks up the key of its eight threads' pass `piece_`; they tell each other.
  KVB_DEVICE int32_t KeyOf(const RowTile& tile, int n) const {
    return FirstKeyOf(tile) + n * kKeys + row_ + kGroupThreads / 8 * piece_;
  }

  KVB_DEVICE void CopyKeys(int64_t offset, bool is_bad, uint32_t step) const {
    const uint32_t stage = step % kKeyStages;
    WaitAtBarrier(barriers_.KeysEmpty(stage), (step / kKeyStages & 1) ^ 1);
    shared_[Shared::kBadKeys + stage * kKeys + row_ + kGroupThreads / 8 * piece_] = is_bad;
    const uint32_t bad = __ballot_sync(kFullWarp, is_bad);
    Copy<kD>(base_ + Shared::kKeyTiles + stage * Shared::kKeyBytes, params_.keys.cache.k.data,
             offset, params_.key_dim);
    ArriveAfterCopies(barriers_.KeysFull(stage));
    __syncwarp();
    if (thread_ % 32 == 0) {
      reinterpret_cast<uint32_t*>(shared_ + Shared::kAnyBad)[stage * 4 + thread_ / 32] = bad;
      if (bad != 0 && error_flags_ != nullptr) atomicOr(error_flags_, kBadBlock);
      ArriveAtBarrier(barriers_.KeysFull(stage));
    }
  }

  KVB_DEVICE void CopyValues(int64_t offset, uint32_t step, bool edge) const {
    const uint32_t stage = step % Shared::kValueStages;
    WaitAtBarrier(barriers_.ValuesEmpty(stage), (step / Shared::kValueStages & 1) ^ 1);
    const uint32_t to = Shared::kValueTiles + stage * Shared::kValueBytes;
    Copy<kDv>(base_ + to, params_.keys.cache.v.data, offset, params_.value_dim);
    ArriveAfterCopies(barriers_.ValuesFull(stage));
    uint32_t found = 0;
    if (edge) {
      // Each thread looks at what it copied itself.
      CommitCopies();
      WaitCopies<0>();
      const bool bf16 = params_.keys.cache.element == Element::kBF16;
      const unsigned char* at = shared_ + to + row_ * kColumnBytes + ((piece_ ^ (row_ & 7)) << 4);
#pragma unroll 4
      for (int i = 0; i < 8 * (kDv / 64); ++i) {
        found |= NonFiniteCarries(
            *reinterpret_cast<const uint4*>(at + i / 8 * Shared::kColumnOfTile +
                                            i % 8 * (kGroupThreads / 8) * kColumnBytes),
            bf16);
      }
    }
    const uint32_t any = __ballot_sync(kFullWarp, found != 0);
    if (thread_ % 32 == 0) {
      reinterpret_cast<uint32_t*>(shared_ + Shared::kNonFinite)[stage * 4 + thread_ / 32] = any;
      ArriveAtBarrier(barriers_.ValuesFull(stage));
    }
  }

  // offset: of the row that this thread looked up. Few instructions count here: the consumers' own
  // leave little time.
  template <int kDim>
  KVB_DEVICE void Copy(uint32_t to, const void* from, int64_t offset, int dim) const {
    if (dim == kDim) {
      CopyPieces<kDim, true>(to, from, offset, dim);
    } else {
      CopyPieces<kDim, false>(to, from, offset, dim);
    }
  }
  template <int kDim, bool kWhole>
  KVB_DEVICE void CopyPieces(uint32_t to, const void* from, int64_t offset, int dim) const {
    const uint32_t at = to + row_ * kColumnBytes + ((piece_ ^ (row_ & 7)) << 4);
    // Rows that are not read have the sign bit.
    constexpr uint64_t kNone = uint64_t{1} << 63;
    const uint64_t looked_up =
        reinterpret_cast<uintptr_t>(from) + (offset < 0 ? kNone : static_cast<uint64_t>(offset));
#pragma unroll
    for (int pass = 0; pass < 8; ++pass) {
      const uint32_t low = __shfl_sync(kFullWarp, static_cast<uint32_t>(looked_up), pass, 8);
      const uint32_t high = __shfl_sync(kFullWarp, static_cast<uint32_t>(looked_up >> 32), pass, 8);
      const bool exists = static_cast<int32_t>(high) >= 0;
      const unsigned char* row =
          reinterpret_cast<const unsigned char*>(uint64_t{high & 0x7fffffffu} << 32 | low) +
          piece_ * 16;
#pragma unroll
      for (int column = 0; column < kDim / 64; ++column) {
        CopyAsync16(at + column * Shared::kColumnOfTile + pass * (kGroupThreads / 8) * kColumnBytes,
                    row + column * 128, exists && (kWhole || column * 64 + piece_ * 8 < dim));
      }
    }
  }

  const PrefillParams& params_;
  uint32_t* const error_flags_;
  const Barriers barriers_;
  unsigned char* const shared_;
  const uint32_t base_;
  const int thread_, row_, piece_;
  uint32_t step_ = 0;       // tiles of keys so far
  uint32_t round_ = 0;      // of items
  uint32_t published_ = 0;  // row tiles
  KeyPlace first_;          // of the row tile published last
};

}  // namespace kvblocks::attention::cuda::prefill_hopper

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_HOPPER_PRODUCER_H_
