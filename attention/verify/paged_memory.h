// PagedMemory: the blocks of a verified run as real memory, which knows what was done to each block
// last and can make its content unusable.
//
// Pages lie where a plan puts them (PagePlace), in the caller's tensors; or, if there is no plan,
// as on a device with one page size: plane i holds layer i of every group, and a block is one page
// of each plane, large enough for the largest group. Within a page come the keys of all its rows,
// then the values; latent rows and states as they are. Rows are found here by the rule of the
// layout, and by operations through the views, so that each checks the other.
//
// What a block's content is depends on the layout: in planes and slabs, all bytes that its id
// stands for, in every group; in chunks, the page of the group that took it last, since ids of one
// chunk stand for other bytes in other groups. Poisoned floats are one particular NaN. Own memory
// is taken when it is first touched.


#ifndef KVBLOCKS_ATTENTION_VERIFY_PAGED_MEMORY_H_
#define KVBLOCKS_ATTENTION_VERIFY_PAGED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/kv_cache_verifier.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

// How a row of floats holds keys and values.
struct RowShape {
  bool is_mla = false;       // V is the first value_size columns of K; one KV head
  int64_t num_heads = 1;     // of queries
  int64_t num_kv_heads = 1;  // 1 for MLA
  int64_t key_size = 0;
  int64_t value_size = 0;

  // Keys of all heads, then values of all heads.
  int64_t floats() const { return is_mla ? key_size : num_kv_heads * (key_size + value_size); }
};

// The rows of a group's layers.
RowShape ShapeOf(const VerifiedGroup& group, const VerifierOptions& options);

inline constexpr int32_t kNullBlock = 0;  // of the engine: never written to

enum class BlockEvent : uint8_t {
  kNone,
  kHandedOut,  // taken anew by a request: what was in it is void
  kLost,       // no request holds it, and no look-up may find it
  kDropped,    // the engine said so
};

struct BlockHistory {
  int64_t step = -1;     // of the event
  uint64_t request = 0;  // kHandedOut: the request that took it
  BlockEvent event = BlockEvent::kNone;
};

class PagedMemory {
 public:
  struct Layer {
    size_t group = 0;
    RowShape shape = {};
    int64_t block_rows = 0;
  };

  PagedMemory() = default;  // no blocks
  // `given` without layers: planes of its own. ResourceExhausted if there is not that much memory;
  // InvalidArgument or OutOfRange for places that do not hold the layers.
  static absl::StatusOr<PagedMemory> Create(int64_t num_blocks, const std::vector<Layer>& layers,
                                            const VerifiedMemory& given);

  int64_t num_blocks() const { return num_blocks_; }
  // All memory, in one piece or more.
  const std::vector<absl::Span<std::byte>>& allocations() const { return allocations_; }

  const KvCacheView& View(size_t layer) const { return layers_[layer].view; }
  // From block ids to block numbers of the view.
  const BlockMap& Map(size_t layer) const { return layers_[layer].map; }
  bool IsPage(size_t layer, int32_t block) const { return layers_[layer].map.IsPage(block); }

  // Row `offset` of a block, as plain memory has it.
  void Write(size_t layer, int32_t block, int64_t offset, const float* row);
  bool Equals(size_t layer, int32_t block, int64_t offset, const float* row) const;
  void PoisonRow(size_t layer, int32_t block, int64_t offset);
  bool IsPoisoned(size_t layer, int32_t block, int64_t offset) const;

  // One block's content to another.
  void Copy(int32_t source, int32_t target);

  // A request took the block for a group: from now on its content is that group's.
  void SetGroup(int32_t block, size_t group) {
    group_of_block_[static_cast<size_t>(block)] = static_cast<int32_t>(group);
  }
  // The event happened to a block; with `poison` its content is void. The null block: in all
  // groups.
  void Record(int32_t block, const BlockHistory& history, bool poison);

  const BlockHistory& history(int32_t block) const { return history_[static_cast<size_t>(block)]; }
  int64_t num_poisoned() const { return num_poisoned_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Placed {
    Layer layer;
    size_t tensor = 0;
    PagePlace place = {};
    std::byte* data = nullptr;  // of the tensor
    KvCacheView view = {};
    BlockMap map = {};
    // Floats of a row's parts.
    int64_t key_floats = 0, value_floats = 0;
  };
  struct Tensor {
    std::byte* data = nullptr;
    int64_t block_stride = 0;  // planes and slabs
  };

  absl::Status Place(const std::vector<Layer>& layers, const VerifiedMemory& memory);
  // Floats of the keys and of the values of a row.
  std::byte* Keys(const Placed& placed, int32_t block, int64_t offset) const;
  std::byte* Values(const Placed& placed, int32_t block, int64_t offset) const;
  // The pieces of a block's content.
  void ForEachPiece(int32_t block, int32_t group,
                    absl::FunctionRef<void(std::byte* data, int64_t bytes)> visit) const;

  int64_t num_blocks_ = 0;
  bool in_chunks_ = false;
  std::vector<Placed> layers_;
  std::vector<Tensor> tensors_;
  std::vector<absl::Span<std::byte>> allocations_;
  std::unique_ptr<std::byte[], Free> own_;
  std::vector<BlockHistory> history_;
  std::vector<int32_t> group_of_block_;  // -1: never taken
  int64_t num_poisoned_ = 0;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_VERIFY_PAGED_MEMORY_H_
