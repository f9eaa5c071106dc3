// DecodeLoader: the copies of one warp of a decode, before its computation. Device code: included
// by .cu files only.
//
// Block table entries are read for 16 tiles at a time, 8 keys to a lane, which makes 32-bit offsets
// of them; a block of keys is a multiple of 8, so that each octet has one. Per tile what is left is
// to pass offsets on by shuffles and one addition per copy: these instructions, not the bytes, are
// what 8-bit caches wait for. Rows that no query sees are zeroed and not read, neither are their
// table entries.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/cuda/kernels/row_visibility.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

// Copies a warp's keys, tile after tile, piece after piece.
template <typename Code, int kDim, int kRows, bool kSpecial>
class DecodeLoader {
 public:
  static constexpr int kChunks = kDim * Code::kBytes / 16;
  static constexpr int kRowBytes = kChunks * 16;
  static constexpr int kMatrixBytes = kDecodeWarpTile * kRowBytes;
  static constexpr int kRowsPerPass = 32 / kChunks;
  static constexpr int kPassesPerOctet = 8 / kRowsPerPass;
  static_assert(kChunks >= 4 && kChunks <= 32 && kRowsPerPass <= 8);

  KVB_DEVICE DecodeLoader(const DecodeKernelParams& p, int kv_head, int row_group)
      : p_(p), row_group_(row_group) {
    lane_ = static_cast<int>(threadIdx.x % 32);
    warp_ = WarpOfBlock();
    const int chunk = lane_ % kChunks * 16, row = lane_ / kChunks;
    k_ = p.k + kv_head * p.k_head + row * p.k_token + chunk;
    v_ = p.v + kv_head * p.v_head + row * p.v_token + chunk;
    own_ = ChunkAt(FirstChunk<kChunks>(row), lane_ % kChunks);
    if constexpr (kSpecial) {
      kv_head_ = kv_head;
      if (p.is_paged_x) {
        const int64_t dim_bytes = int64_t{p.block_size} * Code::kBytes;
        k_ = p.k + kv_head * p.k_head + lane_ % 8 * 16 + lane_ / 8 * (int64_t{p.block_size} * 16);
        v_ = p.v + kv_head * p.v_head + lane_ / 2 * dim_bytes;
      }
    }
    k_has_chunk_ = chunk < p.key_dim * Code::kBytes;
    v_has_chunk_ = chunk < p.value_dim * Code::kBytes;
    policy_ = OnceInL2();
  }

  // Begins with `work`, and reads its first table entries.
  KVB_DEVICE void Start(const DecodeWork& work) {
    Begin(work);
    if (key_ < end_) StartLookUp<false>();
  }

  // Begins with `work` before lengths and table may be relied on. As long as Confirm is
  // outstanding, Next must be called only while has_tile(), and its copies may have to be dropped.
  KVB_DEVICE void Guess(const DecodeWork& work) {
    Begin(work);
    has_guessed_ = false;
    if (key_ >= end_) return;
    StartLookUp<true>();
    has_guessed_ = v_offset_ != kNoBlock;
    guessed_ = k_offset_;
    FinishLookUp(false);
  }
  KVB_DEVICE bool has_tile() const { return key_ < end_ && held_ < kUsedUp; }
  // What the table says now about what was guessed; before Next.
  KVB_DEVICE uint32_t ReadAgain() const {
    if (!has_guessed_) return 0;
    const int key = key_ + lane_ / 2 * kDecodeTile + warp_ * kDecodeWarpTile + lane_ % 2 * 8;
    return static_cast<uint32_t>(
        LoadFromOthers4(p_.block_table + request_ * p_.table_stride + ColumnOf(key)));
  }
  // Whether the lane's guess was right. Where all of the block's were, Confirm reports it like what
  // was read.
  KVB_DEVICE bool IsRight(uint32_t block) const { return !has_guessed_ || block == guessed_; }
  KVB_DEVICE void Confirm() const {
    if (has_guessed_ && guessed_ >= static_cast<uint32_t>(p_.num_blocks)) ReportBadBlock();
  }

  // Starts copying the warp's part of the next tile to `to`, K, then V; nothing after the last one.
  // Returns which octets of keys have no block: bits 0 and 1.
  KVB_DEVICE uint32_t Next(uint32_t to) {
    if (Unlikely(key_ >= end_ || held_ >= kUsedUp) && !Advance()) return 0;
    const uint32_t k0 = __shfl_sync(kFullWarp, k_offset_, 2 * held_);
    const uint32_t k1 = __shfl_sync(kFullWarp, k_offset_, 2 * held_ + 1);
    const uint32_t v0 = __shfl_sync(kFullWarp, v_offset_, 2 * held_);
    const uint32_t v1 = __shfl_sync(kFullWarp, v_offset_, 2 * held_ + 1);
    const int first = key_ + warp_ * kDecodeWarpTile;
    ++held_;
    key_ += kDecodeTile;
    if constexpr (kSpecial) {
      if (k0 == kNoBlock && k1 == kNoBlock) return 3;
      if (p_.is_paged_x) return CopyPagedX(to, k0, k1, v0, v1, first);
    }
    const uint32_t at = to + own_;
    if (Unlikely(first < lowest_ || first + kDecodeWarpTile > end_ || k0 == kNoBlock ||
                 k1 == kNoBlock)) {
      return CopySome(at, k0, k1, v0, v1, first);
    }
    Copy(at, k_, p_.k_unit, p_.k_token, k_has_chunk_, k0, k1);
    Copy(at + kMatrixBytes, v_, p_.v_unit, p_.v_token, v_has_chunk_, v0, v1);
    return 0;
  }

 private:
  static constexpr uint32_t kNoBlock = 0xffffffffu;  // an offset
  static constexpr int kUsedUp = 16, kUnderWay = 17;

  KVB_DEVICE void Begin(const DecodeWork& work) {
    work_ = work;
    key_ = end_ = 0;
    held_ = kUsedUp;
    if (work_.at < work_.end) Open();
  }

  KVB_DEVICE void Open() {
    const DecodeItem item = OpenItem<kRows, false>(p_, work_, row_group_);
    work_.at += work_.step;
    key_ = item.begin;
    end_ = item.end;
    lowest_ = item.first_token <= item.last_token ? VisibleTo(p_, item, item.first_token).begin : 0;
    request_ = item.request;
    held_ = kUsedUp;
    if constexpr (kSpecial) first_position_ = item.position + item.first_token;
  }

  // To the next tile and its blocks; false after the last.
  KVB_DEVICE bool Advance() {
    while (key_ >= end_) {
      if (work_.at >= work_.end) return false;
      Open();
    }
    if (held_ == kUsedUp) StartLookUp<false>();
    if (held_ == kUnderWay) FinishLookUp(true);
    return true;
  }

  KVB_DEVICE int ColumnOf(int key) const {
    return p_.block_shift >= 0 ? key >> p_.block_shift : key / p_.block_size;
  }
  KVB_DEVICE void ReportBadBlock() const {
    if (p_.error_flags != nullptr) atomicOr(p_.error_flags, kBadBlock);
  }

  // Finds the blocks of this warp's keys of the next 16 tiles: each lane those of 8 keys.
  template <bool kGuess>
  KVB_DEVICE void StartLookUp() {
    held_ = kUnderWay;
    const int64_t first =
        int64_t{key_} + lane_ / 2 * kDecodeTile + warp_ * kDecodeWarpTile + lane_ % 2 * 8;
    k_offset_ = v_offset_ = kNoBlock;
    if (first >= end_ || first + 8 <= lowest_) return;
    const int key = static_cast<int>(first), column = ColumnOf(key);
    if constexpr (kSpecial) {
      if (IsHiddenFromAll(key)) return;
    }
    const int32_t* entry = p_.block_table + request_ * p_.table_stride + column;
    // Until FinishLookUp the block and the key's place in it.
    k_offset_ = static_cast<uint32_t>(kGuess ? LoadGuess(entry) : *entry);
    v_offset_ = static_cast<uint32_t>(key - column * p_.block_size);
  }
  KVB_DEVICE void FinishLookUp(bool reports) {
    held_ = 0;
    const uint32_t id = k_offset_;
    uint32_t in_block = v_offset_;
    if constexpr (kSpecial) {
      if (p_.is_paged_x && in_block != kNoBlock) in_block /= 8;
    }
    if (id < static_cast<uint32_t>(p_.num_blocks)) {
      k_offset_ = id * p_.k_block_units + in_block * p_.k_token_units;
      v_offset_ = id * p_.v_block_units + in_block * p_.v_token_units;
      return;
    }
    k_offset_ = kNoBlock;
    if (reports && in_block != kNoBlock) ReportBadBlock();
  }

  // Keys are read once: tables, plans and queries are what L2 should keep. Rows of 8-bit codes were
  // measured to be slower with the hint.
  KVB_DEVICE void CopyChunk(uint32_t to, const char* from, bool valid) {
    if constexpr (Code::kBytes == 2) {
      CopyAsync16Once(to, from, valid, policy_);
    } else {
      CopyAsync16(to, from, valid);
    }
  }

  // Where the lane's piece of a pass goes, whose first pass is `to`.
  static KVB_DEVICE uint32_t InPass(uint32_t to, int pass) {
    const int row = pass * kRowsPerPass;
    return (to ^ static_cast<uint32_t>(row % 8 * 16)) + static_cast<uint32_t>(row * kRowBytes);
  }

  KVB_DEVICE void Copy(uint32_t to, const char* base, uint32_t unit, int64_t token_stride,
                       bool has_chunk, uint32_t offset0, uint32_t offset1) {
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      const char* from = base + uint64_t{octet == 0 ? offset0 : offset1} * unit;
#pragma unroll
      for (int pass = 0; pass < kPassesPerOctet; ++pass) {
        CopyChunk(InPass(to, octet * kPassesPerOctet + pass), from, has_chunk);
        from += kRowsPerPass * token_stride;
      }
    }
  }

  // Where some of the 16 keys from `first` on are no keys, or have no block: nothing is read there.
  KVB_DEVICE uint32_t CopySome(uint32_t to, uint32_t k0, uint32_t k1, uint32_t v0, uint32_t v1,
                               int first) {
    if (first >= end_) return 0;
    const uint32_t missing = (k0 == kNoBlock ? 1u : 0u) | (k1 == kNoBlock ? 2u : 0u);
    const int begin = lowest_ - first, end = end_ - first;
#pragma unroll 1
    for (int pass = 0; pass < 2 * kPassesPerOctet; ++pass) {
      const int octet = pass / kPassesPerOctet, row = pass * kRowsPerPass + lane_ / kChunks;
      const bool valid = row >= begin && row < end && (missing >> octet & 1) == 0;
      const int64_t row_in_octet = pass % kPassesPerOctet * kRowsPerPass;
      const uint32_t at = InPass(to, pass);
      const uint64_t k = octet == 0 ? k0 : k1, v = octet == 0 ? v0 : v1;
      CopyChunk(at, valid ? k_ + k * p_.k_unit + row_in_octet * p_.k_token : p_.k,
                valid && k_has_chunk_);
      CopyChunk(at + kMatrixBytes, valid ? v_ + v * p_.v_unit + row_in_octet * p_.v_token : p_.v,
                valid && v_has_chunk_);
    }
    return missing;
  }

  // Whether the block-sparse rule hides the octet of keys that begins here from all queries: from
  // the earliest, which sees most of it, in every head.
  KVB_DEVICE bool IsHiddenFromAll(int key) const {
    const BlockSparseRule& sparse = p_.scoring.block_sparse;
    if (sparse.vert_stride <= 1 || sparse.block_size % 8 != 0) return false;
    const int64_t k_block = key / sparse.block_size;
    if (k_block > FloorDiv(first_position_, sparse.block_size) - sparse.local_blocks) return false;
    for (int h = 0; h < p_.group; ++h) {
      const int64_t offset = SparseOffsetOf(sparse, p_.group * p_.num_kv_heads, p_.num_kv_heads,
                                            kv_head_ * p_.group + h);
      if ((k_block + offset) % sparse.vert_stride == 0) return false;
    }
    return true;
  }

  // As CopySome, of the chunks that kPagedX has: of eight keys, those of the same dimensions are
  // neighbours, and each dimension has the values of eight.
  KVB_DEVICE uint32_t CopyPagedX(uint32_t to, uint32_t k0, uint32_t k1, uint32_t v0, uint32_t v1,
                                 int first) {
    if (first >= end_) return 0;
    const uint32_t missing = (k0 == kNoBlock ? 1u : 0u) | (k1 == kNoBlock ? 2u : 0u);
    const int begin = lowest_ - first, end = end_ - first;
    if (Unlikely(missing != 0 || begin > 0 || end < kDecodeWarpTile)) {
      CopyOctets<false>(to, k0, k1, v0, v1, missing, begin, end);
    } else {
      CopyOctets<true>(to, k0, k1, v0, v1, 0, begin, end);
    }
    return missing;
  }
  // kAll: all 16 keys are there.
  template <bool kAll>
  KVB_DEVICE void CopyOctets(uint32_t to, uint32_t k0, uint32_t k1, uint32_t v0, uint32_t v1,
                             uint32_t missing, int begin, int end) {
    const auto copy = [&](uint32_t at, const char* from, bool valid, const char* base) {
      CopyChunk(at, kAll || valid ? from : base, valid);
    };
    const int key_chunks = p_.key_dim * Code::kBytes / 16;
    const int64_t next_key = int64_t{p_.block_size} * 64;
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      const int row = 8 * octet + lane_ % 8;
      const bool exists = kAll || ((missing >> octet & 1) == 0 && row >= begin && row < end);
      const char* key = k_ + uint64_t{octet == 0 ? k0 : k1} * p_.k_unit;
#pragma unroll
      for (int i = 0; i < kChunks / 4; ++i) {
        const int chunk = lane_ / 8 + 4 * i;
        copy(to + (octet * kChunks + chunk) * 128 + lane_ % 8 * 16, key,
             exists && chunk < key_chunks, p_.k);
        key += next_key;
      }
    }
    // Neighbouring lanes copy both octets of a dimension, which may be neighbours.
    const int octet = lane_ % 2;
    const bool exists =
        kAll || ((missing >> octet & 1) == 0 && 8 * octet + 8 > begin && 8 * octet < end);
    const int64_t next_value = int64_t{p_.block_size} * 16 * Code::kBytes;
    const char* value = v_ + uint64_t{octet == 0 ? v0 : v1} * p_.v_unit;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int dim = lane_ / 2 + 16 * i;
      const bool valid = exists && dim < p_.value_dim;
      const uint32_t at = to + kMatrixBytes;
      if constexpr (Code::kBytes == 2) {
        copy(at + dim * 32 + ((octet ^ dim / 4 % 2) << 4), value, valid, p_.v);
      } else {
        CopyAsync8(at + dim * 16 + octet * 8, kAll || valid ? value : p_.v, valid);
      }
      value += next_value;
    }
  }

  const DecodeKernelParams& p_;
  DecodeWork work_ = {};
  int row_group_;
  int lane_, warp_;
  const char *k_, *v_;  // the lane's piece of the first row that it copies of an octet
  uint32_t own_;        // the same in shared memory
  bool k_has_chunk_, v_has_chunk_;
  uint64_t policy_;
  int request_ = 0;
  int key_ = 0, end_ = 0, lowest_ = 0;
  int held_ = kUsedUp;  // tiles of the 16 looked up that are used up
  uint32_t k_offset_ = kNoBlock, v_offset_ = kNoBlock;  // in units, of an octet
  bool has_guessed_ = false;
  uint32_t guessed_ = 0;  // block
  int kv_head_ = 0, first_position_ = 0;  // with kSpecial
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_
