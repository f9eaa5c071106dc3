// KeyRows: the key and value rows of one tile, out of a cache of any layout and element type, as
// the kernels take them.
//
// Rows that lie dense in memory are used in place; everything else (kPagedX, split and quantised
// latent rows, head sizes that are not a multiple of kRowPad) is gathered into scratch. Codes come
// without the cache's scale, the rows of kMlaFp8_656 and kMlaFp8_584 with their own. Keys that are
// not wanted are never touched: rows of zeros stand for them. How rows come does not change their
// numbers. Vectors with scales of their own (KvRowFormat) come as float32, the scales applied.
//
// Immutable; Load costs O(wanted rows) and allocates nothing.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_KEY_ROWS_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_KEY_ROWS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cpu/simd_kernels.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention::simd {

// Where the keys of a tile are. Undefined for keys that are not wanted.
struct TileAddresses {
  std::array<int64_t, kTileKeys> block;
  std::array<int64_t, kTileKeys> offset;  // in the block
  // Bytes from the first row of a head to its key's; Locate fills them.
  std::array<int64_t, kTileKeys> key_at, value_at;
};

struct TileRows {
  std::array<const void*, kTileKeys> keys, values;
  DType key_type, value_type;
};

// Memory that holds the rows of a tile, a piece per key.
struct TileSources {
  std::array<const void*, kTileKeys> keys, values;
  int64_t key_bytes = 0, value_bytes = 0;  // of each piece
};

class KeyRows {
 public:
  // REQUIRES: a view that fits its layout; the memory outlives this.
  explicit KeyRows(const ConstKvCacheView& cache);

  int64_t key_dim() const { return key_dim_; }
  int64_t value_dim() const { return value_dim_; }
  int64_t scratch_floats() const { return 2 * kTileKeys * row_floats_ + kRowPad; }

  // Fills key_at and value_at, once for all heads; 0 for keys that are not wanted.
  void Locate(uint64_t wanted, TileAddresses* addresses) const;
  // `widen` asks for float32 rows, which pays when many query rows share them. `scratch` holds
  // scratch_floats() and lives as long as the rows.
  void Load(const TileAddresses& addresses, uint64_t wanted, int64_t kv_head, bool widen,
            float* scratch, TileRows* rows) const;
  // Where the memory of a tile of num_heads heads is that will be loaded later: one of num_heads
  // shares of it.
  void FindSources(const TileAddresses& addresses, uint64_t wanted, int64_t first_head,
                   int64_t num_heads, int64_t share, TileSources* sources) const;

 private:
  // Dense rows: of keys or of values.
  struct Plane {
    ConstRowLayout rows;
    int64_t dim = 0;
    bool dense = false;  // a row's elements follow each other
    bool in_place = false;
    bool has_row_type = false;  // that kernels take
    ConstRowLayout scales;      // of vectors with scales of their own

    int64_t At(int64_t block, int64_t offset) const {
      return block * rows.block_stride + offset * rows.token_stride;
    }
    const std::byte* Head(int64_t head) const { return rows.data + head * rows.head_stride; }
  };
  static Plane MakePlane(const ConstRowLayout& rows, int64_t dim);

  void LoadPlane(const Plane& plane, const TileAddresses& addresses,
                 const std::array<int64_t, kTileKeys>& row_at, uint64_t wanted, int64_t kv_head,
                 bool widen, float* scratch, std::array<const void*, kTileKeys>& rows,
                 DType& type) const;
  // A vector of a format with scales of its own, which are applied.
  void ReadQuantisedRow(const Plane& plane, int64_t block, int64_t offset, int64_t kv_head,
                        float* row) const;
  void ReadPagedXKey(int64_t block, int64_t offset, int64_t kv_head, std::byte* row) const;
  void ReadLatentRow(int64_t block, int64_t offset, float* row) const;

  ConstKvCacheView cache_;
  int64_t key_dim_, value_dim_;
  int64_t row_floats_;  // of a row in scratch
  bool latent_;         // keys and values are the same gathered rows
  Plane key_plane_, value_plane_;
  std::vector<float> zeros_;
};

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_KEY_ROWS_H_
