// DecodeLoader: the copies of one warp of a decode, ahead of its computation. Device code: included
// by .cu files only.
//
// Block table entries are read for 16 tiles at a time, 8 keys to a lane, and passed on by shuffles;
// a block of keys is a multiple of 8, so that each octet has one. Rows that no query sees are
// zeroed and not read, neither are their table entries.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/ops/device_error_bits.h"

namespace kvblocks::attention::cuda {

// Copies a warp's keys, tile after tile, piece after piece.
template <typename Code, int kDim, int kRows>
class DecodeLoader {
 public:
  static constexpr int kChunks = kDim * Code::kBytes / 16;
  static constexpr int kRowBytes = (kChunks + 1) * 16;
  static constexpr int kMatrixBytes = kDecodeWarpTile * kRowBytes;
  static constexpr int kRowsPerPass = 32 / kChunks;
  static constexpr int kPasses = kDecodeWarpTile / kRowsPerPass;
  static_assert(kChunks <= 32 && kRowsPerPass <= 8);

  KVB_DEVICE DecodeLoader(const DecodeKernelParams& p, DecodeWork work, int kv_head, int row_group)
      : p_(p), work_(work), row_group_(row_group) {
    lane_ = static_cast<int>(threadIdx.x % 32);
    warp_ = static_cast<int>(threadIdx.x / 32);
    k_ = p.k + kv_head * p.k_head + lane_ % kChunks * 16;
    v_ = p.v + kv_head * p.v_head + lane_ % kChunks * 16;
    k_has_chunk_ = lane_ % kChunks * 16 < p.key_dim * Code::kBytes;
    policy_ = OnceInL2();
    v_has_chunk_ = lane_ % kChunks * 16 < p.value_dim * Code::kBytes;
  }

  // Starts copying the warp's part of the next tile to `to`, K, then V; nothing after the last one.
  // Returns which octets of keys have no block: bits 0 and 1.
  KVB_DEVICE uint32_t Next(uint32_t to) {
    while (key_ >= end_) {
      if (work_.at >= work_.end) return 0;
      const DecodeItem item = OpenItem<kRows>(p_, work_, row_group_);
      work_.at += work_.step;
      key_ = item.begin;
      end_ = item.end;
      lowest_ =
          item.first_token <= item.last_token ? VisibleTo(p_, item, item.first_token).begin : 0;
      request_ = item.request;
      held_ = 16;
    }
    if (held_ == 16) LookUp();
    const int first = key_ + warp_ * kDecodeWarpTile;
    const int id0 = __shfl_sync(kFullWarp, id_, 2 * held_);
    const int id1 = __shfl_sync(kFullWarp, id_, 2 * held_ + 1);
    const int offset0 = __shfl_sync(kFullWarp, offset_, 2 * held_);
    const int offset1 = __shfl_sync(kFullWarp, offset_, 2 * held_ + 1);
    ++held_;
    key_ += kDecodeTile;
    if (first >= end_) return 0;
    // Rows [begin, end) of the 16 are visible to some query.
    const int begin = lowest_ - first, end = end_ - first;
    Copy(to, k_, p_.k_block, p_.k_token, k_has_chunk_, id0, id1, offset0, offset1, begin, end);
    Copy(to + kMatrixBytes, v_, p_.v_block, p_.v_token, v_has_chunk_, id0, id1, offset0, offset1,
         begin, end);
    return (id0 < 0 ? 1u : 0u) | (id1 < 0 ? 2u : 0u);
  }

 private:
  // Finds the blocks of this warp's keys of the next 16 tiles: each lane those of 8 keys.
  KVB_DEVICE void LookUp() {
    held_ = 0;
    const int64_t first =
        int64_t{key_} + lane_ / 2 * kDecodeTile + warp_ * kDecodeWarpTile + lane_ % 2 * 8;
    id_ = -1;
    offset_ = 0;
    if (first >= end_ || first + 8 <= lowest_) return;
    const int key = static_cast<int>(first);
    const int column = p_.block_shift >= 0 ? key >> p_.block_shift : key / p_.block_size;
    const int id = p_.block_table[request_ * p_.table_stride + column];
    if (static_cast<uint32_t>(id) < static_cast<uint32_t>(p_.num_blocks)) {
      id_ = id;
      offset_ = key - column * p_.block_size;
    } else if (p_.error_flags != nullptr) {
      atomicOr(p_.error_flags, kBadBlock);
    }
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

  KVB_DEVICE void Copy(uint32_t to, const char* base, int64_t block_stride, int64_t token_stride,
                       bool has_chunk, int id0, int id1, int offset0, int offset1, int begin,
                       int end) {
    const int row_in_pass = lane_ / kChunks;
    const uint32_t at = to + row_in_pass * kRowBytes + lane_ % kChunks * 16;
    const char* octets[2] = {
        base + (id0 < 0 ? 0 : id0 * block_stride + (offset0 + row_in_pass) * token_stride),
        base + (id1 < 0 ? 0 : id1 * block_stride + (offset1 + row_in_pass) * token_stride)};
    const bool whole = begin <= 0 && end >= kDecodeWarpTile && id0 >= 0 && id1 >= 0;
    if (whole) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        constexpr int kPassesPerOctet = 8 / kRowsPerPass;
        const char* from =
            octets[pass / kPassesPerOctet] + pass % kPassesPerOctet * kRowsPerPass * token_stride;
        CopyChunk(at + pass * kRowsPerPass * kRowBytes, from, has_chunk);
      }
      return;
    }
    // Nothing is read at addresses of rows that are not valid.
    const int from_row = id0 < 0 && begin < 8 ? 8 : begin, to_row = id1 < 0 && end > 8 ? 8 : end;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      constexpr int kPassesPerOctet = 8 / kRowsPerPass;
      const int row = pass * kRowsPerPass + row_in_pass;
      const char* from =
          octets[pass / kPassesPerOctet] + pass % kPassesPerOctet * kRowsPerPass * token_stride;
      CopyChunk(at + pass * kRowsPerPass * kRowBytes, from,
                has_chunk && row >= from_row && row < to_row);
    }
  }

  const DecodeKernelParams& p_;
  DecodeWork work_;
  int row_group_;
  int lane_, warp_;
  const char *k_, *v_;
  bool k_has_chunk_, v_has_chunk_;
  uint64_t policy_;
  int request_ = 0;
  int key_ = 0, end_ = 0, lowest_ = 0;
  int held_ = 16;  // tiles whose blocks are known and used up
  int id_ = -1, offset_ = 0;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_LOADER_H_
