// Prefill with mma.sync, for any GPU from compute capability 8.0 on.
//
// A block has 128 query rows, in registers' terms 32 (head sizes up to 192: 4 warps, two blocks on
// a multiprocessor) or 16 (256: 8 warps) of them per warp; 64 keys at a time. K and V have one
// buffer each and arrive by 16-byte asynchronous copies, the other one being computed on meanwhile:
// V(n) during Q K(n), K(n+1) during the softmax of n and P V(n). Byte offsets of the rows of tile
// n+1 are computed during n, from block ids that were loaded during n-1. All tiles in shared memory
// are columns of 64 elements: rows of 128 bytes whose eighths are permuted by the row's number, so
// that eight rows' fragments come from all banks. Codes of 8 bits arrive beside the tiles and are
// made into the queries' type, exactly, by the threads that copied them; their scales go into the
// factors of scores and outputs.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_by_dims.h"
#include "attention/cuda/kernels/prefill_rows.h"
#include "attention/cuda/kernels/prefill_special.h"
#include "attention/cuda/kernels/prefill_tile.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kRows = kPrefillRows;
constexpr int kKeys = 64;
constexpr int kColumnBytes = 128;

template <int kD, int kDv, bool kCodes>
struct SharedLayout {
  static constexpr int kQueries = 0;
  static constexpr int kKeyTile = kQueries + kD / 64 * kRows * kColumnBytes;
  static constexpr int kValueTile = kKeyTile + kD / 64 * kKeys * kColumnBytes;
  // int64 [2 tiles][K, V][64 keys]
  static constexpr int kOffsets = kValueTile + kDv / 64 * kKeys * kColumnBytes;
  // uint32 [2 tiles][2]: a bit per key, set if its block is none
  static constexpr int kBadKeys = kOffsets + 2 * 2 * kKeys * 8;
  static constexpr int kNonFinite = kBadKeys + 2 * 2 * 4;  // uint32 [8 warps]
  // What is known of the block's rows: here rather than in registers, which are all taken.
  static constexpr int kTile = kNonFinite + 8 * 4;
  // Codes of K or V: uint8 [64 keys][kD].
  static constexpr int kCodeTile = kTile + (sizeof(RowTile) + 15) / 16 * 16;
  static constexpr int kBytes = kCodeTile + (kCodes ? kKeys * kD : 0);
  // Of special cases: uint64 [2 tiles][kRows], uint32 [2 tiles][8 warps].
  static constexpr int kVisible = kBytes;
  static constexpr int kAnyVisible = kVisible + 2 * kRows * 8;
  static constexpr int kSpecialBytes = kAnyVisible + 2 * 8 * 4;
};

template <typename T, int kD, int kDv, int kMTiles, int kWarps, bool kCodes, bool kSpecial>
class Prefill {
 public:
  static constexpr int kThreads = 32 * kWarps;
  static_assert(16 * kMTiles * kWarps == kRows);
  static constexpr int kElementBytes = kCodes ? 1 : 2;  // of keys and values
  static_assert(!kCodes || (kD == 128 && kDv == 128 && kWarps == 4));
  using Shared = SharedLayout<kD, kDv, kCodes>;
  // Of special cases.
  using ByDims = ValuesByDims<T, Shared, kDv, kThreads, kCodes>;
  using Visible = VisibleTiles<Shared, kWarps>;

  KVB_DEVICE Prefill(const PrefillParams& params, const RowTile& tile, uint32_t* error_flags)
      : params_(params),
        tile_(tile),
        error_flags_(error_flags),
        shared_(DynamicSharedMemory()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        first_key_(tile.seen.begin / kKeys * kKeys),
        num_tiles_(tile.seen.end > tile.seen.begin
                       ? (tile.seen.end - first_key_ + kKeys - 1) / kKeys
                       : 0) {}

  KVB_DEVICE void Run() {
    const uint32_t base = SharedAddress(shared_);
    // Fragment addresses of this lane: a row of 128 bytes, in it the half of 16 columns, permuted.
    const uint32_t row16 = lane_ & 15, swizzle = lane_ & 7;
    const uint32_t q_at = base + Shared::kQueries + (warp_ * 16 * kMTiles + row16) * kColumnBytes +
                          (((lane_ >> 4) ^ swizzle) << 4);
    const uint32_t k_at = base + Shared::kKeyTile +
                          ((lane_ >> 4) * 8 + (lane_ & 7)) * kColumnBytes +
                          (((lane_ >> 3 & 1) ^ swizzle) << 4);
    const uint32_t v_at =
        base + Shared::kValueTile + row16 * kColumnBytes + (((lane_ >> 4) ^ swizzle) << 4);

    for (int m = 0; m < kMTiles; ++m) {
      for (int half = 0; half < 2; ++half) maximum_[m][half] = -Infinity(), sum_[m][half] = 0;
#pragma unroll
      for (int d = 0; d < kDv / 8; ++d) {
        for (int i = 0; i < 4; ++i) out_[m][d][i] = 0;
      }
    }
    const bool rich = params_.scoring.soft_cap > 0 || params_.scoring.alibi_slopes != nullptr ||
                      (kSpecial && MaskIsAdded(params_.scoring));
    const float log2_scale = rich ? kLog2E : params_.scoring.scale * tile_.k_scale * kLog2E;

    int at = 0;  // the tile of keys that is the n-th
    KeyPlace next;
    if constexpr (kSpecial) {
      at = FindTile(0, 0);
    } else {
      WriteOffsets(0, PlaceOfThread(0));
      next = PlaceOfThread(1);
    }
    CopyQueries(base + Shared::kQueries);
    __syncthreads();
    if (at < num_tiles_) {
      CopyTile<kD>(base + Shared::kKeyTile, params_.keys.cache.k.data, 0, false, params_.key_dim);
    }
    CommitCopies();

    int n = 0;
    for (; (kSpecial ? at : n) < num_tiles_; ++n) {
      WaitCopies<0>();
      if constexpr (kCodes) ConvertTile(Shared::kKeyTile, false);
      __syncthreads();  // K(n) is there, nobody needs V(n-1)
      CopyTile<kDv>(base + Shared::kValueTile, params_.keys.cache.v.data, n, true,
                    params_.value_dim);
      CommitCopies();
      int following = n + 1;
      if constexpr (kSpecial) {
        following = FindTile(at + 1, n + 1);
      } else if (following < num_tiles_) {
        WriteOffsets(following, next);
        next = PlaceOfThread(n + 2);
      }

      float scores[kMTiles][kKeys / 8][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
          for (int i = 0; i < 4; ++i) scores[m][j][i] = 0;
        }
      }
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) {
        uint32_t a[kMTiles][4];
        const uint32_t turn = k % 4 * 32;
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          LoadMatrices(a[m], (q_at ^ turn) + k / 4 * kRows * kColumnBytes + m * 16 * kColumnBytes);
        }
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
          uint32_t b[4];
          LoadMatrices(b, (k_at ^ turn) + k / 4 * kKeys * kColumnBytes + j * 16 * kColumnBytes);
#pragma unroll
          for (int m = 0; m < kMTiles; ++m) {
            MultiplyM16N8K16<T>(scores[m][2 * j], a[m], b[0], b[1]);
            MultiplyM16N8K16<T>(scores[m][2 * j + 1], a[m], b[2], b[3]);
          }
        }
      }

      WaitCopies<0>();
      if constexpr (kCodes) ConvertTile(Shared::kValueTile, true);
      __syncthreads();  // V(n) is there, nobody needs K(n)
      if (following < num_tiles_) {
        CopyTile<kD>(base + Shared::kKeyTile, params_.keys.cache.k.data, n + 1, false,
                     params_.key_dim);
      }
      CommitCopies();

      const int32_t key0 = first_key_ + (kSpecial ? at : n) * kKeys;
      const uint32_t* bad_keys = BadKeys(n);
      const bool bad = (bad_keys[0] | bad_keys[1]) != 0;
      const bool edge = key0 < tile_.seen_by_all.begin || key0 + kKeys > tile_.seen_by_all.end;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        if (rich) ModifyScores(params_, tile_, scores[m], RowOf(m), key0);
        if constexpr (kSpecial) {
          MaskScores(params_, tile_, scores[m], RowOf(m), key0, Visible(shared_).Words(n),
                     BadBits(n));
        } else if (edge || bad) {
          HideScores(params_, tile_, scores[m], RowOf(m), key0, bad ? bad_keys : nullptr);
        }
      }

      uint32_t weights[kMTiles][kKeys / 16][4];
      Exponentiate(scores, weights, log2_scale);
      if (edge || (kSpecial && TestsKeys(params_.scoring))) TakeNonFiniteValues(n, key0);

      if constexpr (kSpecial) {
        at = following;
        if (IsPagedX(params_)) {
          ByDims(params_, shared_, thread_).Multiply(weights, out_);
          continue;
        }
      }
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
        for (int d = 0; d < kDv / 16; ++d) {
          uint32_t b[4];
          LoadMatricesTransposed(
              b, (v_at ^ (d % 4 * 32)) + d / 4 * kKeys * kColumnBytes + k * 16 * kColumnBytes);
#pragma unroll
          for (int m = 0; m < kMTiles; ++m) {
            MultiplyM16N8K16<T>(out_[m][2 * d], weights[m][k], b[0], b[1]);
            MultiplyM16N8K16<T>(out_[m][2 * d + 1], weights[m][k], b[2], b[3]);
          }
        }
      }
    }
    // Without a tile nobody has waited for queries yet, and outputs are staged where they go.
    WaitCopies<0>();
    if (n == 0) __syncthreads();
    WriteOutputs(log2_scale);
  }

 private:
  // Row of the tile that this lane's accumulators [m][.][0] belong to.
  KVB_DEVICE int RowOf(int m) const { return (warp_ * kMTiles + m) * 16 + lane_ / 4; }
  KVB_DEVICE uint32_t* BadKeys(int n) const {
    return reinterpret_cast<uint32_t*>(shared_ + Shared::kBadKeys) + n % 2 * 2;
  }

  // Threads of the first two warps are keys of K, those of the next two of V.
  KVB_DEVICE KeyPlace PlaceOfThread(int n) const {
    if (thread_ >= 2 * kKeys) return {};
    int32_t key = first_key_ + n * kKeys + thread_ % kKeys;
    if constexpr (kSpecial) {
      if (IsPagedX(params_) && thread_ >= kKeys) key = ByDims::FirstSeen(tile_, key);
    }
    return PlaceOf(params_, tile_, key);
  }
  KVB_DEVICE void WriteOffsets(int n, const KeyPlace& place) {
    if (thread_ >= 2 * kKeys) return;
    const bool values = thread_ >= kKeys;
    const CacheTensor& tensor = values ? params_.keys.cache.v : params_.keys.cache.k;
    int64_t& offset =
        reinterpret_cast<int64_t*>(shared_ + Shared::kOffsets)[n % 2 * 2 * kKeys + thread_];
    offset = OffsetOf<kElementBytes>(params_, tensor, tile_, place);
    if constexpr (kSpecial) {
      // Tokens have no stride of their own there.
      if (IsPagedX(params_) && offset >= 0) {
        offset += values ? (place.offset & ~7) * kElementBytes : place.offset * 16;
      }
    }
    if (values) return;
    const uint32_t bad = __ballot_sync(kFullWarp, IsBad(params_, place));
    if (lane_ == 0) {
      BadKeys(n)[warp_] = bad;
      if (bad != 0 && error_flags_ != nullptr) atomicOr(error_flags_, kBadBlock);
    }
  }

  template <int kDim>
  KVB_DEVICE void CopyTile(uint32_t to, const void* from, int n, bool values, int dim) const {
    // Between 16 bytes of a row.
    int64_t step = 16;
    if constexpr (kSpecial) {
      if (IsPagedX(params_)) {
        if (values) return ByDims(params_, shared_, thread_).Copy(to, n);
        step = int64_t{params_.keys.cache.block_size} * 16;
      }
    }
    const int64_t* offsets = reinterpret_cast<const int64_t*>(shared_ + Shared::kOffsets) +
                             n % 2 * 2 * kKeys + (values ? kKeys : 0);
    const int row = thread_ / 8, piece = thread_ % 8;
    const uint32_t at = to + row * kColumnBytes + ((piece ^ (row & 7)) << 4);
#pragma unroll
    for (int pass = 0; pass < kKeys * 8 / kThreads; ++pass) {
      const int64_t offset = offsets[row + pass * (kThreads / 8)];
      const unsigned char* source =
          static_cast<const unsigned char*>(from) + (offset < 0 ? 0 : offset);
      if constexpr (kCodes) {
        CopyAsync16(SharedAddress(shared_) + CodesAt(pass), source + piece * step,
                    offset >= 0 && piece * 16 < dim);
      } else {
#pragma unroll
        for (int column = 0; column < kDim / 64; ++column) {
          CopyAsync16(at + column * kKeys * kColumnBytes + pass * (kThreads / 8) * kColumnBytes,
                      source + (column * 8 + piece) * step,
                      offset >= 0 && column * 64 + piece * 8 < dim);
        }
      }
    }
  }

  // Where this thread copies codes to: 16 of a row, as many rows further with each pass.
  KVB_DEVICE int CodesAt(int pass) const {
    return Shared::kCodeTile + (thread_ / 8 + pass * (kThreads / 8)) * kD + thread_ % 8 * 16;
  }
  KVB_DEVICE void ConvertTile(int tile, bool values) const {
    switch (params_.keys.cache.element) {
      case Element::kF8E4M3:
        return ConvertTileOf<E4m3Pairs>(tile, values);
      case Element::kF8E5M2:
        return ConvertTileOf<E5m2Pairs>(tile, values);
      default:
        return ConvertTileOf<Int8Pairs>(tile, values);
    }
  }
  template <typename Code>
  KVB_DEVICE void ConvertTileOf(int tile, bool values) const {
    if constexpr (kSpecial) {
      if (IsPagedX(params_) && values) {
        return ByDims(params_, shared_, thread_).template Convert<Code>();
      }
    }
    const int row = thread_ / 8, piece = thread_ % 8;
#pragma unroll
    for (int pass = 0; pass < kKeys * 8 / kThreads; ++pass) {
      const uint4 codes = *reinterpret_cast<const uint4*>(shared_ + CodesAt(pass));
      unsigned char* to = shared_ + tile + piece / 4 * kKeys * kColumnBytes +
                          (row + pass * (kThreads / 8)) * kColumnBytes;
      *reinterpret_cast<uint4*>(to + (((piece % 4 * 2) ^ (row & 7)) << 4)) =
          EightAs<T, Code>(make_uint2(codes.x, codes.y));
      *reinterpret_cast<uint4*>(to + (((piece % 4 * 2 + 1) ^ (row & 7)) << 4)) =
          EightAs<T, Code>(make_uint2(codes.z, codes.w));
    }
  }

  // --- Of special cases ---

  KVB_DEVICE uint64_t BadBits(int n) const { return BadKeys(n)[0] | uint64_t{BadKeys(n)[1]} << 32; }
  // The next tile from the m-th on that a row sees, its rows' places being written for step n; or
  // num_tiles_. By all threads.
  KVB_DEVICE int FindTile(int m, int n) {
    m = Visible(shared_).Find(params_, tile_, first_key_, num_tiles_, m, n, error_flags_);
    if (m < num_tiles_) WriteOffsets(n, PlaceOfThread(m));
    return m;
  }

  KVB_DEVICE void CopyQueries(uint32_t to) const {
    const int row0 = thread_ / 8, piece = thread_ % 8;
    if constexpr (kCodes) {
      if (params_.q.element == Element::kF8E4M3) return ConvertQueries();
    }
    for (int row = row0; row < kRows; row += kThreads / 8) {
      const unsigned char* source = static_cast<const unsigned char*>(params_.q.data);
      const bool exists = row < tile_.num_rows;
      if (exists) {
        source += 2 * ((tile_.query_start + tile_.TokenOf(row)) * params_.q.row_stride +
                       tile_.HeadOf(row) * params_.q.head_stride);
      }
#pragma unroll
      for (int column = 0; column < kD / 64; ++column) {
        const bool valid = exists && column * 64 + piece * 8 < params_.key_dim;
        CopyAsync16(to + (column * kRows + row) * kColumnBytes + ((piece ^ (row & 7)) << 4),
                    valid ? source + column * 128 + piece * 16 : source, valid);
      }
    }
  }

  // Queries in codes to where copies of others go.
  KVB_DEVICE void ConvertQueries() const {
    const int row0 = thread_ / 8, piece = thread_ % 8;
#pragma unroll 1
    for (int row = row0; row < kRows; row += kThreads / 8) {
      const unsigned char* source = static_cast<const unsigned char*>(params_.q.data);
      const bool exists = row < tile_.num_rows;
      if (exists) {
        source += (tile_.query_start + tile_.TokenOf(row)) * params_.q.row_stride +
                  tile_.HeadOf(row) * params_.q.head_stride;
      }
#pragma unroll
      for (int column = 0; column < kD / 64; ++column) {
        const int d = column * 64 + piece * 8;
        uint2 codes = make_uint2(0, 0);
        if (exists && d < params_.key_dim) codes = *reinterpret_cast<const uint2*>(source + d);
        *reinterpret_cast<uint4*>(shared_ + Shared::kQueries +
                                  (column * kRows + row) * kColumnBytes +
                                  ((piece ^ (row & 7)) << 4)) = EightAs<T, E4m3Pairs>(codes);
      }
    }
  }

  // Scores to weights, rounded and as fragments; maxima, sums and what is accumulated follow.
  KVB_DEVICE void Exponentiate(float (&scores)[kMTiles][kKeys / 8][4],
                               uint32_t (&weights)[kMTiles][kKeys / 16][4], float log2_scale) {
    float shrink[kMTiles][2];
    bool grown = false;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      grown |= ExponentiateRows(scores[m], log2_scale, maximum_[m], sum_[m], shrink[m]);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
        weights[m][j / 2][j % 2 * 2] = T::Pack(scores[m][j][0], scores[m][j][1]);
        weights[m][j / 2][j % 2 * 2 + 1] = T::Pack(scores[m][j][2], scores[m][j][3]);
      }
    }
    // Once maxima stand, most tiles leave them.
    if (!grown) return;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int d = 0; d < kDv / 8; ++d) {
        for (int i = 0; i < 4; ++i) out_[m][d][i] *= shrink[m][i / 2];
      }
    }
  }

  // By all threads, V(n) being there.
  KVB_DEVICE void TakeNonFiniteValues(int n, int32_t key0) {
    unsigned char* values = shared_ + Shared::kValueTile;
    uint32_t* found_by_warp = reinterpret_cast<uint32_t*>(shared_ + Shared::kNonFinite);
    constexpr int kBytes = kDv / 64 * kKeys * kColumnBytes;
    const bool mine = FindNonFinite<T, kBytes>(values, thread_, kThreads);
    const bool warps = __any_sync(kFullWarp, mine);
    if (lane_ == 0) found_by_warp[warp_] = warps;
    __syncthreads();
    uint32_t found = 0;
    for (int w = 0; w < kWarps; ++w) found |= found_by_warp[w];
    if (found == 0) return;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      if constexpr (kSpecial) {
        AddNonFiniteByBits<T>(values, out_[m], RowOf(m), Visible(shared_).Words(n), BadBits(n),
                              IsPagedX(params_));
      } else {
        AddNonFinite<T, kKeys>(params_, tile_, values, out_[m], RowOf(m), key0);
      }
    }
    __syncthreads();
    ZeroNonFinite<T, kBytes>(values, thread_, kThreads);
    __syncthreads();
  }

  KVB_DEVICE void WriteOutputs(float log2_scale) {
    // 16-bit rows go through shared memory, where this warp's queries were, and out by 16 bytes.
    unsigned char* staged = shared_ + Shared::kQueries;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      if (params_.pieces.outs != nullptr) {
        LeaveStates<kCodes>(params_, tile_, out_[m], RowOf(m), maximum_[m], sum_[m], log2_scale);
        continue;
      }
      FinishRows<T, kRows>(params_, tile_, out_[m], RowOf(m), maximum_[m], sum_[m], log2_scale,
                           staged);
    }
    if (params_.out_scale > 0 || params_.pieces.outs != nullptr) return;
    __syncwarp();
    StoreStagedRows<kRows, kDv / 64>(params_, tile_, staged, warp_ * 16 * kMTiles, 16 * kMTiles);
  }

  const PrefillParams& params_;
  const RowTile& tile_;
  uint32_t* const error_flags_;
  unsigned char* const shared_;
  const int thread_, lane_, warp_;
  const int32_t first_key_;
  const int num_tiles_;
  float out_[kMTiles][kDv / 8][4];
  float maximum_[kMTiles][2], sum_[kMTiles][2];  // sums of this lane's columns
};

template <typename T, int kD, int kDv, int kMTiles, int kWarps, bool kCodes, bool kSpecial>
__global__ void __launch_bounds__(32 * kWarps, kMTiles == 2 ? 2 : 1)
    PrefillKernel(const __grid_constant__ PrefillParams params, const TileOrder order,
                  uint32_t* error_flags) {
  if (!params.overlaps_previous) WaitForPreviousKernel();
  AllowNextKernel();
  const RowTile found = FindRowTile<kRows>(params, order, blockIdx.x, error_flags);
  if (found.valid) {
    RowTile& tile =
        *reinterpret_cast<RowTile*>(DynamicSharedMemory() + SharedLayout<kD, kDv, kCodes>::kTile);
    if (threadIdx.x == 0) tile = found;
    __syncthreads();
    Prefill<T, kD, kDv, kMTiles, kWarps, kCodes, kSpecial>(params, tile, error_flags).Run();
  }
  if (params.overlaps_previous) WaitForPreviousKernel();
}

template <typename T, int kD, int kDv, int kMTiles, int kWarps, bool kCodes = false,
          bool kSpecial = false>
Error LaunchOne(const LaunchContext& context, const PrefillParams& params) {
  using Shared = SharedLayout<kD, kDv, kCodes>;
  constexpr size_t kSharedBytes = kSpecial ? Shared::kSpecialBytes : Shared::kBytes;
  const TileOrder order = OrderTiles(params, kRows);
  return Launch({.grid = dim3(static_cast<unsigned>(order.items)),
                 .block = dim3(32 * kWarps),
                 .shared_bytes = kSharedBytes,
                 .stream = context.stream,
                 .overlap_previous = context.can_overlap()},
                PrefillKernel<T, kD, kDv, kMTiles, kWarps, kCodes, kSpecial>, params, order,
                context.error_flags);
}

template <typename T>
Error LaunchSpecial(const LaunchContext& context, const PrefillParams& params) {
  const int d = params.key_dim, dv = params.value_dim;
  if (HoldsCodes(params.keys.cache)) {
    return LaunchOne<T, 128, 128, 2, 4, true, true>(context, params);
  }
  if (d <= 64 && dv <= 64) return LaunchOne<T, 64, 64, 2, 4, false, true>(context, params);
  if (d <= 128 && dv <= 128) return LaunchOne<T, 128, 128, 2, 4, false, true>(context, params);
  return LaunchOne<T, 256, 256, 1, 8, false, true>(context, params);
}

template <typename T>
Error LaunchOfType(const LaunchContext& context, const PrefillParams& params) {
  if (params.is_special()) return LaunchSpecial<T>(context, params);
  const int d = params.key_dim, dv = params.value_dim;
  if (HoldsCodes(params.keys.cache)) return LaunchOne<T, 128, 128, 2, 4, true>(context, params);
  if (d <= 64 && dv <= 64) return LaunchOne<T, 64, 64, 2, 4>(context, params);
  if (d <= 128 && dv <= 128) return LaunchOne<T, 128, 128, 2, 4>(context, params);
  if (d <= 192 && dv <= 128) return LaunchOne<T, 192, 128, 2, 4>(context, params);
  return LaunchOne<T, 256, 256, 1, 8>(context, params);
}

// What products are made of: the type of queries, or, where these are codes, of outputs.
Element ProductsOf(const PrefillParams& params) {
  if (params.q.element != Element::kF8E4M3) return params.q.element;
  return params.out.element == Element::kBF16 ? Element::kBF16 : Element::kF16;
}

bool Aligned(const void* data, int64_t stride_a, int64_t stride_b, int64_t elements, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride_a % elements == 0 &&
         stride_b % elements == 0;
}

}  // namespace

bool TakesPrefill(const PrefillParams& params) {
  const Cache& cache = params.keys.cache;
  const Element type = ProductsOf(params);
  if (type != Element::kF16 && type != Element::kBF16) return false;
  const bool codes = HoldsCodes(cache), q_codes = params.q.element != type;
  // Special instances do not convert queries.
  if (q_codes && (!codes || params.is_special())) return false;
  if ((cache.element != type && !codes) || cache.has_row_scales()) return false;
  // Values of eight keys are copied at once.
  const bool is_paged_x = cache.layout == Layout::kPagedX && cache.block_size % 8 == 0;
  if (!IsStrided(cache.layout) && !is_paged_x) return false;
  const int piece = codes ? 16 : 8, largest = codes ? 128 : 256;  // elements
  if (params.key_dim % piece != 0 || params.value_dim % piece != 0) return false;
  if (params.key_dim > largest || params.value_dim > largest) return false;
  if (!Aligned(params.q.data, params.q.row_stride, params.q.head_stride, 8, q_codes ? 8 : 16)) {
    return false;
  }
  for (const CacheTensor* tensor : {&cache.k, &cache.v}) {
    if (!Aligned(tensor->data, tensor->token_stride, tensor->head_stride, piece, 16) ||
        tensor->block_stride % piece != 0) {
      return false;
    }
  }
  if (params.out_scale > 0) {
    return Aligned(params.out.data, params.out.row_stride, params.out.head_stride, 2, 2);
  }
  return params.out.element == type &&
         Aligned(params.out.data, params.out.row_stride, params.out.head_stride, 8, 16);
}

Error LaunchPrefill(const LaunchContext& context, const PrefillParams& given) {
  if (given.num_tokens == 0 || given.num_requests == 0) return 0;
  PrefillParams params = given;
  if (params.pieces.outs != nullptr) params.out_scale = 0;
  if (context.compute_capability == 90 && TakesPrefillHopper(params)) {
    return LaunchPrefillHopper(context, params);
  }
  return ProductsOf(params) == Element::kBF16 ? LaunchOfType<Bf16>(context, params)
                                              : LaunchOfType<F16>(context, params);
}

}  // namespace kvblocks::attention::cuda
