// Workspaces: how much scratch memory an operation needs for given bounds, and an arena to hand it
// out.
//
// Sizes follow from the bounds alone, never from lengths, so that a captured graph finds room for
// every replay. One arena per stream serves all layers: each operation takes what it needs from the
// beginning, and the next one does so again. Nothing is allocated here. Cost: O(1).

#ifndef KVBLOCKS_ATTENTION_BACKENDS_WORKSPACE_H_
#define KVBLOCKS_ATTENTION_BACKENDS_WORKSPACE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_backend.h"

namespace kvblocks::attention {

struct WorkspaceBounds {
  int64_t max_reqs = 0;
  int64_t max_tokens = 0;  // of queries, or of keys for ComputeKvScales and SelectHkvd
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t value_head_size = 0;
  int64_t max_parts = 0;  // of a split plan: parts that run at a time
  int64_t max_rows = 0;   // of a request in an index cache
};

struct WorkspaceSize {
  int64_t device = 0, pinned = 0;  // bytes
};

// Of operations that split keys: partial outputs and LSEs of max_reqs + max_parts splits, and the
// plan; of a prefill: a state of each row that a part attends with (without them it is slower where
// new tokens are few and keys many); of a cascade: both, and two states of every token; of all that
// take masks: offsets of ragged bits; of reductions and selections: partial results. 0 where none
// is needed. InvalidArgument for negative bounds or sizes beyond int64. The host's backends need
// none.
absl::StatusOr<WorkspaceSize> WorkspaceBytes(OpKind op, const WorkspaceBounds& bounds);

// Hands out pieces of one allocation, each beginning at a multiple of 256 bytes of the arena, which
// should itself be so aligned.
class WorkspaceArena {
 public:
  explicit WorkspaceArena(absl::Span<std::byte> memory) : memory_(memory) {}

  // ResourceExhausted names all the bytes that the operation needs so far and those there are.
  absl::StatusOr<absl::Span<std::byte>> Take(int64_t bytes);
  // All pieces are given back.
  void Reset() { used_ = 0; }
  // Up to where the next piece begins, which may be past the end.
  int64_t used() const { return used_; }
  // The most that was ever asked for between resets, refusals included: what to provide.
  int64_t most_needed() const { return most_needed_; }

 private:
  absl::Span<std::byte> memory_;
  int64_t used_ = 0, most_needed_ = 0;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_WORKSPACE_H_
