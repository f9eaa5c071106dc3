// The tensor shapes that attention backends ask for, as data.
//
// A shape lists its dims in logical order; a stride order says in which order they lie in memory.
// For a page without padding, the product of the dims times the bytes of an element is page bytes
// times blocks; a padded page is read through a strided view whose block stride is the page.

#ifndef KVBLOCKS_SPECS_PLANNING_BACKEND_SHAPES_H_
#define KVBLOCKS_SPECS_PLANNING_BACKEND_SHAPES_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

enum class BackendFamily {
  kPagedV0,       // xFormers and the first ROCm kernels
  kFlashKvFirst,  // older flash attention, ROCm
  kFlash,         // newer flash attention, flex
  kTriton,        // the same shape; scales per token and head lie behind each vector
  kFlashInfer,    // the same shape; other memory order across layers
  kFlashOneRow,   // flash attention with K and V of different sizes, in one row
  kCpu,
  kLatent,  // MLA, indexers, compressor states: one vector per row
};

// "paged_v0", "flash_kv_first", ...
std::string_view BackendName(BackendFamily family);

struct BackendShape {
  std::vector<int64_t> dims = {};            // logical order, in elements
  std::vector<std::string_view> names = {};  // "block", "kv", "token", "head", "value", "page"
  int block_dim = 0;                         // index of "block"
  int64_t element_bytes = 0;
  int64_t page_stride_bytes = 0;  // from block to block; larger than a page's data if padded

  friend bool operator==(const BackendShape&, const BackendShape&) = default;
};

// Refused: kinds, modes, block sizes or head sizes that the family does not store.
absl::StatusOr<BackendShape> ShapeOf(BackendFamily family, const KvCacheSpec& spec,
                                     int64_t num_blocks);

enum class HeadOrder { kNhd, kHnd };  // tokens before heads, or heads before tokens

// Position in memory -> logical dim. Empty where the family does not know the order.
std::vector<int> StrideOrder(BackendFamily family, HeadOrder order);

// Dims in memory order when all layers of a block are in one allocation; empty where the family
// does not support that.
std::vector<std::string_view> CrossLayerOrder(BackendFamily family, HeadOrder order);

// How the paged v0 kernels view a page of K and of V: x values at a time, 16 bytes.
struct PagedV0Views {
  int64_t x = 0;
  std::vector<int64_t> key = {};    // head, d / x, token, x
  std::vector<int64_t> value = {};  // head, d, token

  friend bool operator==(const PagedV0Views&, const PagedV0Views&) = default;
};
absl::StatusOr<PagedV0Views> ViewsOfPagedV0(const KvCacheSpec& spec);

// Where a token lies: the row of offset `offset` in block `block_id`.
constexpr int64_t SlotOf(int64_t block_id, int64_t offset, int64_t block_size) {
  return block_id * block_size + offset;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_BACKEND_SHAPES_H_
