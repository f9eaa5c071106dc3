// MLA for tiles of 16 rows, by mma.sync.
//
// A block of 8 warps takes 16 rows; two blocks share a multiprocessor, so that one loads and
// multiplies while the other waits at a barrier. Tiles of 32 keys come through a ring of three by
// cp.async. For scores a warp has 8 keys and half of the dimensions, with its part of the queries
// in registers for good; halves meet in shared memory, from where every warp reads all scores as
// the fragments it multiplies by its 64 columns of the values: probabilities never leave registers.
//
// fp8 rows and rows of codes go through a ring of their bytes and are decoded into one tile. Codes
// become the queries' type, exactly; their scale goes into the factors of scores and outputs.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/cache_codes.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/mla_tile.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kRows = 16;
constexpr int kKeys = kMlaRows16Keys;
constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kBoxBytes = kKeys * 128;
constexpr int kTileBytes = kMlaBoxes * kBoxBytes;
constexpr int kScoreBytes = 2 * kRows * kKeys * 4;
// A row's bytes in the ring of fp8 rows: 656, or 576 and 8 of scales.
constexpr int kRawRow = 656, kRawScales584 = 576;
constexpr int kRawBytes = kKeys * kRawRow;
constexpr int kHalfSteps = kMlaKeyDim / 16 / 2;  // of 16 dimensions, per warp

// What rows of keys are: 16-bit elements, fp8 rows with their scales, or 8-bit codes.
enum class Row16 { kElements, kFp8, kCodes };

template <Row16 kRow>
constexpr int SharedBytes() {
  return kScoreBytes +
         (kRow != Row16::kElements ? kTileBytes + kStages * kRawBytes : kStages * kTileBytes);
}

// What is not worth registers.
struct BlockState {
  MlaWork work;
  VisibleKeys sees[kRows];
  uint8_t live[kStages][kKeys];
  float code_scale;
};

template <typename T, Row16 kRow>
class Rows16 {
  static constexpr bool kDecodes = kRow != Row16::kElements;

 public:
  KVB_DEVICE Rows16(const AttendRowsParams& params, BlockState& state)
      : params_(params),
        work_(state.work),
        sees_(state.sees),
        live_(state.live),
        code_scale_(state.code_scale) {
    thread_ = static_cast<int>(threadIdx.x);
    lane_ = thread_ % 32;
    warp_ = thread_ / 32;
    key_ = thread_ / 8;
    scores_ = reinterpret_cast<float*>(DynamicSharedMemory());
    tiles_ = DynamicSharedMemory() + kScoreBytes;
    raw_ = tiles_ + kTileBytes;
  }

  KVB_DEVICE void Run(int piece) {
    if (work_.begin >= work_.end) {
      Write(piece);
      return;
    }
    LoadQueries();
    if (thread_ < kRows) {
      VisibleKeys sees;
      if (thread_ < work_.rows) {
        sees = VisibleOf(params_, work_, (work_.m0 + thread_) / params_.num_heads);
      }
      sees_[thread_] = sees;
    }
    if (params_.key_dim < kMlaKeyDim) ClearLastBoxes();

    const int first = work_.begin / kKeys, last = (work_.end - 1) / kKeys;
    next_index_ = IndexOf(params_, work_, first * kKeys + key_);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) Issue(first + s, s, last);
    int stage = 0;
#pragma unroll 1
    for (int tile = first; tile <= last; ++tile) {
      WaitCopies<kStages - 2>();
      __syncthreads();
      if constexpr (kRow == Row16::kFp8) Decode(stage, tile);
      if constexpr (kRow == Row16::kCodes) DecodeCodes(stage);
      if constexpr (kDecodes) __syncthreads();
      const int ahead = stage == 0 ? kStages - 1 : stage - 1;
      Issue(tile + kStages - 1, ahead, last);
      const uint32_t at = SharedAddress(tiles_ + (kDecodes ? 0 : stage * kTileBytes));
      Scores(at);
      __syncthreads();
      uint32_t p[2][4];
      if (tile * kKeys < work_.all_from || (tile + 1) * kKeys > work_.all_until) {
        Softmax<true>(tile * kKeys, stage, p);
        GuardValues(tile * kKeys, at);
      } else {
        Softmax<false>(tile * kKeys, stage, p);
      }
      Values(at, p);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitCopies<0>();
    Write(piece);
  }

  KVB_DEVICE uint32_t flags() const { return flags_; }

 private:
  // Fragments of this warp's half of the dimensions, by way of the first tile's memory.
  KVB_DEVICE void LoadQueries() {
    StageQueries<kRows, kThreads>(params_, work_, thread_, tiles_);
    WaitCopies<0>();
    __syncthreads();
    const uint32_t at = SharedAddress(tiles_);
    const int matrix = lane_ / 8, row = matrix % 2 * 8 + lane_ % 8, half = warp_ / 4;
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step) {
      const int box = step < 16 ? 4 * half + step / 4 : kMlaBoxes - 1;
      const int piece = (step < 16 ? step % 4 * 2 : 4 * half + step % 2 * 2) + matrix / 2;
      LoadMatrices(q_[step], at + box * (kRows * 128) + PieceAt(row, piece));
    }
    __syncthreads();
  }

  // Queries are 0 there; keys must not be NaN.
  KVB_DEVICE void ClearLastBoxes() {
    for (int s = 0; s < (kDecodes ? 1 : kStages); ++s) {
      unsigned char* box = tiles_ + s * kTileBytes + (kMlaBoxes - 1) * kBoxBytes;
      StoreShared16(box + thread_ * 16, uint4{0, 0, 0, 0});
    }
  }

  // Starts the copies of a tile: eight threads per key.
  KVB_DEVICE void Issue(int tile, int stage, int last) {
    if (tile <= last) {
      const int j = tile * kKeys + key_;
      const KeyAddress address = AddressOf(params_, work_, j, next_index_, flags_);
      next_index_ = IndexOf(params_, work_, j + kKeys);
      const bool valid = address.key != nullptr;
      const int l = thread_ % 8;
      if (l == 0) live_[stage][key_] = valid;
      const auto* somewhere = static_cast<const unsigned char*>(params_.q.data);
      if constexpr (kRow == Row16::kCodes) {
        const uint32_t to = SharedAddress(raw_ + stage * kRawBytes + key_ * kRawRow);
#pragma unroll
        for (int i = 0; i < 5; ++i) {
          const int piece = l + 8 * i;
          if (piece * 16 >= params_.key_dim) continue;
          CopyAsync16(to + piece * 16, valid ? address.key + piece * 16 : somewhere, valid);
        }
      } else if constexpr (kRow == Row16::kFp8) {
        const bool is_656 = LayoutOf(params_, work_, j) == Layout::kMlaFp8_656;
        const uint32_t to = SharedAddress(raw_ + stage * kRawBytes + key_ * kRawRow);
        const int pieces = is_656 ? kRawRow / 16 : kRecord584 / 16;
#pragma unroll
        for (int i = 0; i < 6; ++i) {
          const int piece = l + 8 * i;
          if (piece >= pieces) continue;
          CopyAsync16(to + piece * 16, valid ? address.key + piece * 16 : somewhere, valid);
        }
        if (!is_656 && l == 0) {
          CopyAsync8(to + kRawScales584, valid ? address.scales : somewhere, valid);
        }
      } else {
        const uint32_t to = SharedAddress(tiles_ + stage * kTileBytes) + PieceAt(key_, l);
        const unsigned char* from = valid ? address.key + l * 16 : somewhere;
        const int step = valid ? 128 : 0;
#pragma unroll
        for (int box = 0; box < kMlaValueBoxes; ++box) {
          CopyAsync16(to + box * kBoxBytes, from + box * step, valid);
        }
        if (params_.key_dim == kMlaKeyDim) {
          const unsigned char* tail = valid && address.tail != nullptr
                                          ? address.tail + l * 16
                                          : from + kMlaValueBoxes * step;
          CopyAsync16(to + kMlaValueBoxes * kBoxBytes, tail, valid);
        }
      }
    }
    CommitCopies();
  }

  // From the ring's bytes to the tile: four pieces of 16 codes and a piece of rotary values each.
  KVB_DEVICE void Decode(int stage, int tile) {
    const unsigned char* row = raw_ + stage * kRawBytes + key_ * kRawRow;
    const bool is_656 = LayoutOf(params_, work_, tile * kKeys + key_) == Layout::kMlaFp8_656;
    const int l = thread_ % 8;
    // Lanes that share banks store their two pieces in opposite order.
    const int odd = l / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = l + 8 * i;
      if (!is_656 && piece >= kValues584 / 16) continue;
      const float scale = is_656
                              ? *reinterpret_cast<const float*>(row + kScalesAt656 + piece / 8 * 4)
                              : E8m0ToFloat(row[kRawScales584 + piece / 4]);
      const uint4 codes = *reinterpret_cast<const uint4*>(row + piece * 16);
      const uint4 decoded[2] = {DecodePiece<T>(codes.x, codes.y, scale),
                                DecodePiece<T>(codes.z, codes.w, scale)};
      unsigned char* box = tiles_ + piece / 4 * kBoxBytes;
      StoreShared16(box + PieceAt(key_, piece % 4 * 2 + odd), decoded[odd]);
      StoreShared16(box + PieceAt(key_, piece % 4 * 2 + 1 - odd), decoded[1 - odd]);
    }
    const unsigned char* rotary = row + (is_656 ? kRotaryAt656 : kValues584) + l * 16;
    StoreShared16(tiles_ + (is_656 ? 8 : 7) * kBoxBytes + PieceAt(key_, l),
                  *reinterpret_cast<const uint4*>(rotary));
  }

  // The same of codes: up to five pieces of 16 each.
  KVB_DEVICE void DecodeCodes(int stage) {
    const Element element = params_.source == KeySource::kLists ? params_.main.cache.element
                                                                : params_.keys.cache.element;
    if (element == Element::kF8E4M3) return DecodeCodesOf<E4m3Pairs>(stage);
    if (element == Element::kF8E5M2) return DecodeCodesOf<E5m2Pairs>(stage);
    DecodeCodesOf<Int8Pairs>(stage);
  }
  template <typename Code>
  KVB_DEVICE void DecodeCodesOf(int stage) {
    const unsigned char* row = raw_ + stage * kRawBytes + key_ * kRawRow;
    const int l = thread_ % 8, odd = l / 4;
    const auto eight = [](uint32_t first, uint32_t second) {
      const CodePairs low = Code::Neighbours(first), high = Code::Neighbours(second);
      return uint4{Wide(low.first), Wide(low.second), Wide(high.first), Wide(high.second)};
    };
#pragma unroll 1
    for (int piece = l; piece * 16 < params_.key_dim; piece += 8) {
      const uint4 codes = *reinterpret_cast<const uint4*>(row + piece * 16);
      const uint4 decoded[2] = {eight(codes.x, codes.y), eight(codes.z, codes.w)};
      unsigned char* box = tiles_ + piece / 4 * kBoxBytes;
      StoreShared16(box + PieceAt(key_, piece % 4 * 2 + odd), decoded[odd]);
      StoreShared16(box + PieceAt(key_, piece % 4 * 2 + 1 - odd), decoded[1 - odd]);
    }
  }
  // A pair of f16, which stands for two codes, as a pair of T.
  static KVB_DEVICE uint32_t Wide(uint32_t pair) {
    if constexpr (!T::kIsBf16) return pair;
    const float2 both = F16::Unpack(pair);
    return T::Pack(both.x, both.y);
  }
  KVB_DEVICE float ScoreScale() const {
    const float scale = params_.scoring.scale;
    return kRow == Row16::kCodes ? scale * code_scale_ : scale;
  }

  // This warp's part of the scores into shared memory: half h multiplies boxes 4h to 4h + 3 and
  // half of the last box.
  KVB_DEVICE void Scores(uint32_t at) {
    const int octet = warp_ % 4, half = warp_ / 4;
    float s[2][4] = {};
    uint32_t lane_at = (8 * octet + lane_ % 8) * 128 + ((lane_ % 8 ^ lane_ / 8) << 4);
    KeepInLoop(lane_at);
    const uint32_t boxes = at + half * 4 * kBoxBytes;
#pragma unroll
    for (int step = 0; step < kHalfSteps; step += 2) {
      uint32_t b[4];
      LoadMatrices(b, step < 16 ? boxes + step / 4 * kBoxBytes + (lane_at ^ (step % 4 * 32))
                                : at + (kMlaBoxes - 1) * kBoxBytes + (lane_at ^ (half * 64)));
      MultiplyM16N8K16<T>(s[0], q_[step], b[0], b[1]);
      MultiplyM16N8K16<T>(s[1], q_[step + 1], b[2], b[3]);
    }
    float* to = scores_ + half * kRows * kKeys + (ScoreAt(lane_ % 4 * 2) ^ (8 * octet));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<float2*>(to + 8 * i * kKeys) =
          make_float2(s[0][2 * i] + s[1][2 * i], s[0][2 * i + 1] + s[1][2 * i + 1]);
    }
  }
  // Of this lane's first row and a key below 8; others by ^ 8 n.
  KVB_DEVICE int ScoreAt(int key) const {
    const int row = lane_ / 4;
    return (row * kKeys + key) ^ ((row & 3) << 3);
  }

  // All scores as probabilities, in fragments; shrinks the sums. Keys out of the block's range are
  // not live.
  template <bool kMixed>
  KVB_DEVICE void Softmax(int first_key, int stage, uint32_t (&p)[2][4]) {
    const int column = lane_ % 4 * 2;
    uint32_t score_at = ScoreAt(column);
    KeepInLoop(score_at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float s[4][2];
      float max = max_[i];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int key = 8 * pair + column;
        const float* at = scores_ + (score_at ^ (8 * pair)) + 8 * i * kKeys;
        const float2 low = *reinterpret_cast<const float2*>(at);
        const float2 high = *reinterpret_cast<const float2*>(at + kRows * kKeys);
        const auto live = *reinterpret_cast<const uint16_t*>(&live_[stage][key]);
        s[pair][0] = (live & 0xff) != 0 ? (low.x + high.x) * ScoreScale() : -INFINITY;
        s[pair][1] = (live >> 8) != 0 ? (low.y + high.y) * ScoreScale() : -INFINITY;
        if constexpr (kMixed) {
          const VisibleKeys sees = sees_[lane_ / 4 + 8 * i];
          const int j = first_key + key;
          if (j < sees.lo || j >= sees.hi) s[pair][0] = -INFINITY;
          if (j + 1 < sees.lo || j + 1 >= sees.hi) s[pair][1] = -INFINITY;
        }
        max = fmaxf(max, fmaxf(s[pair][0], s[pair][1]));
      }
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, 2));
      const float shift = max == -INFINITY ? 0.0f : max;
      const float shrink = Exp2((max_[i] - shift) * kLog2E);
      max_[i] = max;
      sum_[i] *= shrink;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float low = Exp2((s[pair][0] - shift) * kLog2E);
        const float high = Exp2((s[pair][1] - shift) * kLog2E);
        sum_[i] += low + high;
        p[pair / 2][pair % 2 * 2 + i] = T::Pack(low, high);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) o_[n][2 * i] *= shrink, o_[n][2 * i + 1] *= shrink;
    }
  }

  // Keys that only some rows see: what is not finite of their values in this warp's columns is
  // given to those rows and taken out of the tile.
  KVB_DEVICE void GuardValues(int first_key, uint32_t at) {
    unsigned char* box = tiles_ + (at - SharedAddress(tiles_)) + warp_ * kBoxBytes;
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work_.all_from && j < work_.all_until) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        auto* pair = reinterpret_cast<uint32_t*>(box + PieceAt(key, n) + lane_ % 4 * 4);
        const uint32_t bits = *pair;
        if (!AnyNotFinite<T>(bits)) continue;
        const float2 value = T::Unpack(bits);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const VisibleKeys sees = sees_[lane_ / 4 + 8 * i];
          if (j < sees.lo || j >= sees.hi) continue;
          o_[n][2 * i] += value.x, o_[n][2 * i + 1] += value.y;
        }
      }
    }
    __syncwarp();
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work_.all_from && j < work_.all_until) continue;
      auto* pair = reinterpret_cast<uint32_t*>(box + PieceAt(key, lane_ / 4) + lane_ % 4 * 4);
      if (AnyNotFinite<T>(*pair)) *pair = 0;
    }
    __syncwarp();
  }

  // This warp's columns: box `warp`.
  KVB_DEVICE void Values(uint32_t at, const uint32_t (&p)[2][4]) {
    const int matrix = lane_ / 8;
    uint32_t lane_at = (matrix % 2 * 8 + lane_ % 8) * 128 + ((lane_ % 8 ^ matrix / 2) << 4);
    KeepInLoop(lane_at);
    const uint32_t box = at + warp_ * kBoxBytes;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, box + step * 2048 + (lane_at ^ (n * 16)));
        MultiplyM16N8K16<T>(o_[n], p[step], b[0], b[1]);
        MultiplyM16N8K16<T>(o_[n + 1], p[step], b[2], b[3]);
      }
    }
  }

  KVB_DEVICE void Write(int piece) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      const int r = lane_ / 4 + 8 * i;
      if (r >= work_.rows) continue;
      const int head = (work_.m0 + r) % params_.num_heads;
      RowResult result = ResultOf(params_.scoring, head, max_[i], sum);
      if constexpr (kRow == Row16::kCodes) result.factor *= code_scale_;
      if (warp_ == 0 && lane_ % 4 == 0) {
        StoreStatistics(params_, work_, r, piece, max_[i], sum, result.lse);
      }
      // Partial states without keys are not read.
      if (params_.pieces.count > 1 && result.lse == -INFINITY) continue;
      const bool empty = result.factor == 0;  // +0, whatever the sums
      const int64_t out = OutAt(params_, work_, r, piece) + warp_ * 64 + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        StoreOutPair(params_.output.out, out + 8 * n, empty ? 0.0f : o_[n][2 * i] * result.factor,
                     empty ? 0.0f : o_[n][2 * i + 1] * result.factor);
      }
    }
  }

  const AttendRowsParams& params_;
  const MlaWork& work_;
  VisibleKeys* const sees_;
  uint8_t (&live_)[kStages][kKeys];
  const float& code_scale_;
  float* scores_;
  unsigned char *tiles_, *raw_;
  int thread_, lane_, warp_, key_;
  int next_index_ = kNoKey;
  uint32_t q_[kHalfSteps][4];
  float o_[8][4] = {};
  float max_[2] = {-INFINITY, -INFINITY}, sum_[2] = {};
  uint32_t flags_ = 0;
};

// The scale of the request's codes; flagged if it is none.
KVB_DEVICE float CodeScaleOf(const AttendRowsParams& params, const MlaWork& work,
                             uint32_t& flags) {
  const bool lists = params.source == KeySource::kLists;
  const Scales& scales = lists ? params.main.cache.k_scale : params.keys.cache.k_scale;
  if (scales.data == nullptr || work.kv_len == 0) return 1;
  const float scale = scales.data[lists ? 0 : work.request * scales.request_stride];
  if (!(scale > 0 && scale < INFINITY)) flags |= kBadScale;
  return scale;
}

template <typename T, Row16 kRow>
__global__ void __launch_bounds__(kThreads, 2)
    MlaRows16Kernel(const __grid_constant__ AttendRowsParams params, uint32_t* error_flags) {
  // No constructor runs for shared memory.
  alignas(16) __shared__ unsigned char storage[sizeof(BlockState)];
  BlockState& state = *reinterpret_cast<BlockState*>(storage);
  MlaWork work;
  uint32_t flags = 0;
  if (!FindRows<kRows>(params, static_cast<int>(blockIdx.x), work)) return;
  const int piece = static_cast<int>(blockIdx.y);
  FindKeys<kKeys>(params, piece, work, flags);
  if (threadIdx.x == 0) state.work = work;
  if constexpr (kRow == Row16::kCodes) {
    if (threadIdx.x == 0) state.code_scale = CodeScaleOf(params, work, flags);
  }
  __syncthreads();
  Rows16<T, kRow> rows(params, state);
  rows.Run(piece);
  flags |= rows.flags();
  if (flags != 0 && error_flags != nullptr) atomicOr(error_flags, flags);
}

bool IsFp8(Layout layout) { return layout == Layout::kMlaFp8_656 || layout == Layout::kMlaFp8_584; }

}  // namespace

Error LaunchMlaRows16(const LaunchContext& context, const AttendRowsParams& params) {
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  const int64_t tiles = MlaTilesOf(params, kRows);
  if (tiles > INT32_MAX || params.pieces.count > 65535) return cudaErrorInvalidConfiguration;
  const Cache& cache =
      params.source == KeySource::kLists ? params.main.cache : params.keys.cache;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.pieces.count));
  config.block = dim3(kThreads);
  config.stream = context.stream;
  const bool is_f16 = params.q.element == Element::kF16;
  if (IsFp8(cache.layout)) {
    config.shared_bytes = SharedBytes<Row16::kFp8>();
    return Launch(config, MlaRows16Kernel<Bf16, Row16::kFp8>, params, context.error_flags);
  }
  if (IsCode(cache.element)) {
    config.shared_bytes = SharedBytes<Row16::kCodes>();
    return Launch(config,
                  is_f16 ? MlaRows16Kernel<F16, Row16::kCodes>
                         : MlaRows16Kernel<Bf16, Row16::kCodes>,
                  params, context.error_flags);
  }
  config.shared_bytes = SharedBytes<Row16::kElements>();
  return Launch(config,
                is_f16 ? MlaRows16Kernel<F16, Row16::kElements>
                       : MlaRows16Kernel<Bf16, Row16::kElements>,
                params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
