// MLA for tiles of 64 rows, by wgmma.
//
// A block of three warpgroups has a multiprocessor to itself. Two consume: each holds 64 rows x 256
// columns of the sums; the first also multiplies queries by keys and makes probabilities, which the
// second gets through shared memory, thread by thread, as the fragments that both multiply by
// values. While the first is at the scores of one tile, the second is still at the values of the
// one before. The third loads: each of its halves owns one of two tiles in shared memory, copies
// rows there or decodes fp8 rows on the way, and so one tile is under way while the other is used.
//
// Per tile of 64 keys: 8.9 MFLOP, 2200 cycles of the matrix units; 72 KiB of rows, 4000 cycles of
// memory if nobody else has them in the cache.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/mla_products.h"
#include "attention/cuda/kernels/mla_tile.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kKeys = kMlaRows64Keys;
constexpr int kConsumers = 256, kThreads = 384;
constexpr int kBoxBytes = kKeys * 128;
constexpr int kTileBytes = kMlaBoxes * kBoxBytes;
// Three warpgroups start with 168 each; more than these 504 together would be waited for in vain.
// Decoding takes more than copying.
template <bool kFp8>
constexpr int kConsumerRegisters = kFp8 ? 200 : 216;
template <bool kFp8>
constexpr int kProducerRegisters = kFp8 ? 104 : 72;

// Named barriers.
constexpr int kProbabilitiesReady = 1, kProbabilitiesTaken = 2, kBothConsumers = 3;
constexpr int kOneConsumer = 4;  // and 5

struct BlockState {
  uint4 p[4][128];  // fragments of a step by thread
  float2 shrink[128];
  float2 results[kRows];  // factor, lse
  VisibleKeys sees[kRows];
  unsigned long long full[2], empty[2];
  uint32_t live[2][2];
  MlaWork work;
};
constexpr int kStateAt = 3 * kTileBytes;
constexpr int kSharedBytes = kStateAt + static_cast<int>(sizeof(BlockState));
static_assert(kSharedBytes <= 227 * 1024);

KVB_DEVICE BlockState& State() {
  return *reinterpret_cast<BlockState*>(DynamicSharedMemory() + kStateAt);
}
KVB_DEVICE unsigned char* TileOf(int stage) {
  return DynamicSharedMemory() + (1 + stage) * kTileBytes;
}

// A loop over tiles of keys; tile n uses stage n % 2 for the (n / 2)th time.
struct Tiles {
  int first, last;
  explicit KVB_DEVICE Tiles(const MlaWork& work)
      : first(work.begin / kKeys), last((work.end - 1) / kKeys) {}
};

// --- The third warpgroup ---

KVB_DEVICE const unsigned char* FromLane(const unsigned char* pointer, int lane) {
  return reinterpret_cast<const unsigned char*>(
      __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(pointer), lane));
}

// What eight lanes take of an fp8 row: four pieces of 16 codes each and their scales. Lane l has
// pieces l, l + 8, ...
struct RawRow {
  uint4 codes[4];
  uint4 scales;  // 656: float32; 584: x and y have 8 bytes
};
template <bool kIs656>
KVB_DEVICE RawRow LoadRow(const unsigned char* key, const unsigned char* scales, int l) {
  RawRow raw;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (kIs656 || i < 3 || l < 4) raw.codes[i] = LoadStreaming16(key + (l + 8 * i) * 16);
  }
  if constexpr (kIs656) {
    raw.scales = LoadStreaming16(scales);
  } else {
    const uint2 bytes = *reinterpret_cast<const uint2*>(scales);
    raw.scales.x = bytes.x, raw.scales.y = bytes.y;
  }
  return raw;
}
// Zeros for a row that is no key, whatever was loaded in its place.
template <typename T, bool kIs656>
KVB_DEVICE void StoreRow(const RawRow& raw, bool valid, int l, int row, unsigned char* tile) {
  // Lanes that share banks store their two pieces in opposite order.
  const int odd = l / 4;
  unsigned char* at = tile + odd * kBoxBytes;  // of piece l; piece l + 8 is two boxes on
  unsigned char* first = at + PieceAt(row, l % 4 * 2 + odd);
  unsigned char* second = at + PieceAt(row, l % 4 * 2 + 1 - odd);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!kIs656 && i == 3 && l >= 4) continue;
    float scale;
    if constexpr (kIs656) {
      scale = __uint_as_float(i == 0   ? raw.scales.x
                              : i == 1 ? raw.scales.y
                              : i == 2 ? raw.scales.z
                                       : raw.scales.w);
    } else {
      // Byte 2i or 2i + 1.
      scale = E8m0ToFloat(
          static_cast<uint8_t>((i < 2 ? raw.scales.x : raw.scales.y) >> (i % 2 * 16 + odd * 8)));
    }
    uint4 decoded[2];
    DecodePieces<T>(raw.codes[i], scale, decoded);
    if (!valid) decoded[0] = decoded[1] = uint4{0, 0, 0, 0};
    StoreShared16(first + i * 2 * kBoxBytes, odd != 0 ? decoded[1] : decoded[0]);
    StoreShared16(second + i * 2 * kBoxBytes, odd != 0 ? decoded[0] : decoded[1]);
  }
}

template <typename T, Layout kLayout>
KVB_DEVICE void Produce(const AttendRowsParams& params, uint32_t& flags) {
  constexpr bool kFp8 = kLayout != Layout::kMlaLatent;
  BlockState& state = State();
  const MlaWork& work = state.work;
  const Tiles tiles(work);
  // At least a row of queries, of more bytes than a row of codes.
  KeyAddress somewhere;
  somewhere.key = somewhere.tail = somewhere.scales =
      static_cast<const unsigned char*>(params.q.data);
  const int thread = static_cast<int>(threadIdx.x) - kConsumers;
  const int lane = thread % 32, warp = thread / 32 % 2, stage = thread / 64;
  const int own = thread % 64;  // the row whose place this thread finds
  const int l = lane % 8;
  const bool has_tail = params.key_dim == kMlaKeyDim;
  const bool is_split =
      params.source == KeySource::kPaged && params.keys.cache.layout == Layout::kMlaSplit;
  unsigned char* tile_at = TileOf(stage);
  const uint32_t tile_shared = SharedAddress(tile_at);
  const uint32_t full = SharedAddress(&state.full[stage]);
  const uint32_t empty = SharedAddress(&state.empty[stage]);
  // Places are known a tile ahead and fp8 rows on their way to the L2, indices two tiles ahead.
  int j = (tiles.first + stage) * kKeys + own;
  KeyAddress next = AddressOf(params, work, j, IndexOf(params, work, j), flags);
  int next_index = IndexOf(params, work, j + 2 * kKeys);
  uint32_t uses = 0;
#pragma unroll 1
  for (int tile = tiles.first + stage; tile <= tiles.last; tile += 2, ++uses) {
    KeyAddress address = next;
    j += 2 * kKeys;
    next = AddressOf(params, work, j, next_index, flags);
    next_index = IndexOf(params, work, j + 2 * kKeys);
    if (kFp8 && next.key != nullptr) {
#pragma unroll
      for (int line = 0; line < 6; ++line) {
        PrefetchLine(next.key + (line < 5 ? line * 128 : kRecord584 - 16));
      }
      PrefetchLine(next.scales);
    }
    const unsigned live = __ballot_sync(kFullWarp, address.key != nullptr);
    // What is not used must still be an address.
    if (address.key == nullptr) address = somewhere;
    if constexpr (kFp8) {
      constexpr bool kIs656 = kLayout == Layout::kMlaFp8_656;
      const auto row_of = [&](int pass) { return 4 * pass + lane / 8; };
      const auto load = [&](int pass) {
        return LoadRow<kIs656>(FromLane(address.key, row_of(pass)),
                               FromLane(address.scales, row_of(pass)), l);
      };
      const auto store = [&](const RawRow& raw, int pass) {
        StoreRow<T, kIs656>(raw, (live >> row_of(pass) & 1) != 0, l, 32 * warp + row_of(pass),
                            tile_at);
      };
      RawRow even = load(0), odd = load(1);
      if (uses > 0) WaitAtBarrier(empty, (uses - 1) & 1);
      if (lane == 0) state.live[stage][warp] = live;
      // Rotary values are what they will be.
      constexpr int kBox = kIs656 ? 8 : 7;
#pragma unroll
      for (int pass = 0; pass < 8; ++pass) {
        CopyAsync16(tile_shared + kBox * kBoxBytes + PieceAt(32 * warp + row_of(pass), l),
                    FromLane(address.tail, row_of(pass)) + l * 16, (live >> row_of(pass) & 1) != 0);
      }
      CommitCopies();
#pragma unroll 1
      for (int pass = 0; pass < 8; pass += 2) {
        store(even, pass);
        if (pass < 6) even = load(pass + 2);
        store(odd, pass + 1);
        if (pass < 6) odd = load(pass + 3);
      }
      WaitCopies<0>();
    } else {
      if (uses > 0) WaitAtBarrier(empty, (uses - 1) & 1);
      if (lane == 0) state.live[stage][warp] = live;
#pragma unroll
      for (int pass = 0; pass < 8; ++pass) {
        const int from = 4 * pass + lane / 8;
        const bool valid = (live >> from & 1) != 0;
        const unsigned char* key = FromLane(address.key, from) + l * 16;
        const uint32_t to = tile_shared + PieceAt(32 * warp + from, l);
#pragma unroll
        for (int box = 0; box < kMlaValueBoxes; ++box) {
          CopyAsync16(to + box * kBoxBytes, key + box * 128, valid);
        }
        if (has_tail) {
          const unsigned char* tail =
              is_split ? FromLane(address.tail, from) + l * 16 : key + kMlaValueBoxes * 128;
          CopyAsync16(to + kMlaValueBoxes * kBoxBytes, tail, valid);
        }
      }
      CommitCopies();
      WaitCopies<0>();
    }
    FenceForAsyncProxy();
    ArriveAtBarrier(full);
  }
}

// --- The first and the second ---

template <typename T>
class Consumer {
 public:
  KVB_DEVICE Consumer(const AttendRowsParams& params, int group)
      : params_(params), state_(State()), group_(group) {
    thread_ = static_cast<int>(threadIdx.x) % 128;
    lane_ = thread_ % 32;
    row_ = thread_ / 32 * 16 + lane_ / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < 16; ++n) o_[h][n][0] = o_[h][n][1] = o_[h][n][2] = o_[h][n][3] = 0;
    }
  }

  // Scores, probabilities, and the first half of the columns.
  KVB_DEVICE void RunFirst(int piece) {
    const Tiles tiles(state_.work);
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll 1
    for (int tile = tiles.first; tile <= tiles.last; ++tile) {
      const int n = tile - tiles.first, stage = n & 1;
      WaitAtBarrier(SharedAddress(&state_.full[stage]), n >> 1 & 1);
      float s[8][4];
      if (params_.key_dim == kMlaKeyDim) {
        Scores<kMlaBoxes>(stage, s);
      } else {
        Scores<kMlaValueBoxes>(stage, s);
      }
      uint32_t p[4][4];
      float shrink[2];
      Softmax(tile * kKeys, stage, s, max, sum, p, shrink);
      if (n > 0) NamedBarrierSync(kProbabilitiesTaken, kConsumers);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        state_.p[step][thread_] = {p[step][0], p[step][1], p[step][2], p[step][3]};
      }
      state_.shrink[thread_] = make_float2(shrink[0], shrink[1]);
      NamedBarrierArrive(kProbabilitiesReady, kConsumers);
      Values(tile * kKeys, stage, p, shrink);
      ArriveAtBarrier(SharedAddress(&state_.empty[stage]));
    }
    RowResult results[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] *= kLn2;
      sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 1);
      sum[i] += __shfl_xor_sync(kFullWarp, sum[i], 2);
      const int r = row_ + 8 * i;
      if (r < state_.work.rows) {
        const int head = (state_.work.m0 + r) % params_.num_heads;
        results[i] = ResultOf(params_.scoring, head, max[i], sum[i]);
      }
      if (lane_ % 4 != 0) continue;
      state_.results[r] = make_float2(results[i].factor, results[i].lse);
      if (r < state_.work.rows) {
        StoreStatistics(params_, state_.work, r, piece, max[i], sum[i], results[i].lse);
      }
    }
    NamedBarrierSync(kBothConsumers, kConsumers);
    Write(piece);
  }

  KVB_DEVICE void RunSecond(int piece) {
    const Tiles tiles(state_.work);
#pragma unroll 1
    for (int tile = tiles.first; tile <= tiles.last; ++tile) {
      const int n = tile - tiles.first, stage = n & 1;
      WaitAtBarrier(SharedAddress(&state_.full[stage]), n >> 1 & 1);
      NamedBarrierSync(kProbabilitiesReady, kConsumers);
      uint32_t p[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4 four = state_.p[step][thread_];
        p[step][0] = four.x, p[step][1] = four.y, p[step][2] = four.z, p[step][3] = four.w;
      }
      const float2 both = state_.shrink[thread_];
      const float shrink[2] = {both.x, both.y};
      if (tile < tiles.last) NamedBarrierArrive(kProbabilitiesTaken, kConsumers);
      Values(tile * kKeys, stage, p, shrink);
      ArriveAtBarrier(SharedAddress(&state_.empty[stage]));
    }
    NamedBarrierSync(kBothConsumers, kConsumers);
    Write(piece);
  }

 private:
  template <int kBoxes>
  KVB_DEVICE void Scores(int stage, float (&s)[8][4]) {
    const uint64_t q = RowsAlongK(SharedAddress(DynamicSharedMemory()));
    const uint64_t k = RowsAlongK(SharedAddress(TileOf(stage)));
#pragma unroll
    for (int n = 0; n < 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    BeginProducts();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // Addresses are the lowest bits, in units of 16 bytes.
        MultiplyGroupShared64<T>(s, q + (box * (kRows * 128) + step * 32) / 16,
                                 k + (box * kBoxBytes + step * 32) / 16, true);
      }
    }
    CommitProducts();
    WaitProducts<0>();
    PinAccumulators(s);
  }

  KVB_DEVICE bool IsMixed(int first_key) const {
    return first_key < state_.work.all_from || first_key + kKeys > state_.work.all_until;
  }

  // Maxima are of scores in powers of two. Keys out of the block's range are not live.
  KVB_DEVICE void Softmax(int first_key, int stage, float (&s)[8][4], float (&max)[2],
                          float (&sum)[2], uint32_t (&p)[4][4], float (&shrink)[2]) {
    const int column = lane_ % 4 * 2;
    const uint32_t live[2] = {state_.live[stage][0] >> column, state_.live[stage][1] >> column};
    const bool all_live = (state_.live[stage][0] & state_.live[stage][1]) == 0xffffffffu;
    const float scale = params_.scoring.scale * kLog2E;
    const bool mixed = IsMixed(first_key);
    if (!all_live || mixed) {
      VisibleKeys sees[2] = {{0, INT32_MAX}, {0, INT32_MAX}};
      if (mixed) sees[0] = state_.sees[row_], sees[1] = state_.sees[row_ + 8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = first_key + 8 * n + column + i % 2;
          const bool is_live = (live[n / 4] >> (8 * (n % 4) + i % 2) & 1) != 0;
          if (!is_live || j < sees[i / 2].lo || j >= sees[i / 2].hi) s[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float new_max = s[0][2 * i];
#pragma unroll
      for (int n = 0; n < 8; ++n) new_max = fmaxf(new_max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      new_max = fmaxf(new_max, __shfl_xor_sync(kFullWarp, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(kFullWarp, new_max, 2));
      new_max = fmaxf(max[i], new_max * scale);
      const float shift = new_max == -INFINITY ? 0.0f : new_max;
      shrink[i] = Exp2(max[i] - shift);
      max[i] = new_max;
      float added = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float low = Exp2(fmaf(s[n][2 * i], scale, -shift));
        const float high = Exp2(fmaf(s[n][2 * i + 1], scale, -shift));
        added += low + high;
        p[n / 2][n % 2 * 2 + i] = T::Pack(low, high);
      }
      sum[i] = sum[i] * shrink[i] + added;
    }
  }

  // Adds a tile's values in this warpgroup's columns.
  KVB_DEVICE void Values(int first_key, int stage, const uint32_t (&p)[4][4],
                         const float (&shrink)[2]) {
    if (__any_sync(kFullWarp, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < 16; ++n) {
          o_[h][n][0] *= shrink[0], o_[h][n][1] *= shrink[0];
          o_[h][n][2] *= shrink[1], o_[h][n][3] *= shrink[1];
        }
      }
    }
    if (IsMixed(first_key)) GuardValues(first_key, stage);
    const uint64_t v =
        RowsAcrossK(SharedAddress(TileOf(stage)) + group_ * 4 * kBoxBytes, kBoxBytes);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        MultiplyGroupRegisters<T, 16>(o_[h], p[step],
                                      v + (h * 2 * kBoxBytes + step * 16 * 128) / 16);
      }
    }
    CommitProducts();
    WaitProducts<0>();
    PinAccumulators(o_[0]);
    PinAccumulators(o_[1]);
  }

  // Keys that only some rows see: what is not finite of their values is given to those rows and
  // taken out of the tile.
  KVB_DEVICE void GuardValues(int first_key, int stage) {
    unsigned char* boxes = TileOf(stage) + group_ * 4 * kBoxBytes;
    const VisibleKeys sees[2] = {state_.sees[row_], state_.sees[row_ + 8]};
    const MlaWork& work = state_.work;
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work.all_from && j < work.all_until) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < 16; ++n) {
          const uint32_t bits = *reinterpret_cast<const uint32_t*>(
              boxes + (2 * h + n / 8) * kBoxBytes + PieceAt(key, n % 8) + lane_ % 4 * 4);
          if (!AnyNotFinite<T>(bits)) continue;
          const float2 value = T::Unpack(bits);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (j < sees[i].lo || j >= sees[i].hi) continue;
            o_[h][n][2 * i] += value.x, o_[h][n][2 * i + 1] += value.y;
          }
        }
      }
    }
    NamedBarrierSync(kOneConsumer + group_, 128);
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const int j = first_key + key;
      if (j >= work.all_from && j < work.all_until) continue;
      auto* pair = reinterpret_cast<uint32_t*>(boxes + thread_ / 32 * kBoxBytes +
                                               PieceAt(key, lane_ / 4) + lane_ % 4 * 4);
      if (AnyNotFinite<T>(*pair)) *pair = 0;
    }
    FenceForAsyncProxy();
    NamedBarrierSync(kOneConsumer + group_, 128);
  }

  KVB_DEVICE void Write(int piece) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row_ + 8 * i;
      if (r >= state_.work.rows) continue;
      const float2 result = state_.results[r];
      // Partial states without keys are not read.
      if (params_.pieces.count > 1 && result.y == -INFINITY) continue;
      // +0, whatever the sums.
      const bool empty = result.x == 0;
      const int64_t out = OutAt(params_, state_.work, r, piece) + group_ * 256 + lane_ % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = 0; n < 16; ++n) {
          StoreOutPair(params_.output.out, out + h * 128 + n * 8,
                       empty ? 0.0f : o_[h][n][2 * i] * result.x,
                       empty ? 0.0f : o_[h][n][2 * i + 1] * result.x);
        }
      }
    }
  }

  const AttendRowsParams& params_;
  BlockState& state_;
  const int group_;
  int thread_, lane_, row_;
  float o_[2][16][4];
};

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

// kLayout: kMlaLatent stands for kMlaSplit, too.
template <typename T, Layout kLayout>
__global__ void __launch_bounds__(kThreads, 1)
    MlaRows64Kernel(const __grid_constant__ AttendRowsParams params, uint32_t* error_flags) {
  constexpr bool kFp8 = kLayout != Layout::kMlaLatent;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = static_cast<int>(blockIdx.y);
  BlockState& state = State();
  uint32_t flags = 0;
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
    if (thread == 0) {
      state.work = work;
#pragma unroll
      for (int stage = 0; stage < 2; ++stage) {
        InitBarrier(SharedAddress(&state.full[stage]), 64);
        InitBarrier(SharedAddress(&state.empty[stage]), kConsumers);
      }
    }
    if (thread < kRows) {
      VisibleKeys sees;
      if (thread < work.rows) {
        sees = VisibleOf(params, work, (work.m0 + thread) / params.num_heads);
      }
      state.sees[thread] = sees;
    }
    if (thread < kConsumers) {
      StageQueries<kRows, kConsumers>(params, work, thread, DynamicSharedMemory());
    }
    __syncthreads();
  }
  const int group = __shfl_sync(kFullWarp, thread / 128, 0);
  if (group == 2) {
    ShrinkRegisters<kProducerRegisters<kFp8>>();
    Produce<T, kLayout>(params, flags);
    if (flags != 0 && error_flags != nullptr) atomicOr(error_flags, flags);
  } else {
    GrowRegisters<kConsumerRegisters<kFp8>>();
    WaitCopies<0>();
    FenceForAsyncProxy();
    NamedBarrierSync(kBothConsumers, kConsumers);
    Consumer<T> consumer(params, group);
    if (group == 0) {
      consumer.RunFirst(piece);
    } else {
      consumer.RunSecond(piece);
    }
  }
}

}  // namespace

Error LaunchMlaRows64(const LaunchContext& context, const AttendRowsParams& params) {
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  const int64_t tiles = MlaTilesOf(params, kRows);
  if (tiles > INT32_MAX || params.pieces.count > 65535) return cudaErrorInvalidConfiguration;
  const Layout layout =
      params.source == KeySource::kLists ? params.main.cache.layout : params.keys.cache.layout;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.pieces.count));
  config.block = dim3(kThreads);
  config.shared_bytes = kSharedBytes;
  config.stream = context.stream;
  if (layout == Layout::kMlaFp8_656) {
    return Launch(config, MlaRows64Kernel<Bf16, Layout::kMlaFp8_656>, params, context.error_flags);
  }
  if (layout == Layout::kMlaFp8_584) {
    return Launch(config, MlaRows64Kernel<Bf16, Layout::kMlaFp8_584>, params, context.error_flags);
  }
  if (params.q.element == Element::kF16) {
    return Launch(config, MlaRows64Kernel<F16, Layout::kMlaLatent>, params, context.error_flags);
  }
  return Launch(config, MlaRows64Kernel<Bf16, Layout::kMlaLatent>, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
