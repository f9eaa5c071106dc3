// PagedStack: a StackModel's layers over paged caches: what an engine's model runner does with a
// step's block tables, by UnifiedAttention. Knows block ids, not managers.
//
// All memory begins as NaN. A group of the block manager is a Table; layers that read through one
// of them share its metadata.

#ifndef KVBLOCKS_TESTS_DEEPSEEK_V4_PAGED_STACK_H_
#define KVBLOCKS_TESTS_DEEPSEEK_V4_PAGED_STACK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/testing/paged_case.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"
#include "tests/deepseek_v4/stack_model.h"

namespace kvblocks::attention {

// Groups of the block manager, in tokens per block: V4's rows, windows and states of both ratios;
// and V3.2's rows.
enum Table { kRowsTable, kWindowTable, kC4StatesTable, kC128StatesTable, kNumTables };
inline constexpr int64_t kTableBlocks[kNumTables] = {256, 64, 4, 8};
inline constexpr int64_t kC4StateWindow = 8, kC128StateWindow = 128;

struct PagedStackOptions {
  int64_t num_blocks = 0;  // ids are below it
  int64_t max_requests = 8, max_tokens = 256, max_len = 1024;
  LayerHooks* hooks = nullptr;
};

// A request's part of a step.
struct StackRequest {
  absl::Span<const int32_t> tokens;  // all, or those up to computed + scheduled
  int64_t computed = 0, scheduled = 0;
  absl::Span<const int32_t> tables[kNumTables];
};

class PagedStack {
 public:
  // All must outlive it.
  PagedStack(const StackModel* model, const AttentionBackend* backend,
             const PagedStackOptions& options);

  // Hidden states of the scheduled tokens, request by request.
  absl::StatusOr<std::vector<std::vector<double>>> Step(absl::Span<const StackRequest> requests);
  // Zeros in all states of compressors: a fault.
  void ClearStates();

 private:
  struct Layer {
    const AttentionImpl* impl = nullptr;  // of forward_
    SparseWork work;
    Tensor cache, rows, index_rows, states, index_states;
    Tensor bias, norm, index_bias, index_norm, sinks;
    std::vector<std::byte> memory;
  };
  // The builder's groups.
  enum Group { kWindowGroup, kC4Group, kC128Group, kC4StatesGroup, kC128StatesGroup, kV32Group };

  void MakeLayer(size_t l);
  // The metadata of a layer's caches, by their names.
  void AddMetadata(size_t l, ForwardContext::MetadataByLayer* by_name) const;
  Tensor MakeRows(LayerKind kind, bool compressed, int64_t blocks, int64_t block_size) const;
  Tensor MakeIndexRows(int64_t blocks) const;  // of 64 rows
  KvCacheView RowsView(LayerKind kind, bool compressed, const Tensor& rows,
                       int64_t block_size) const;
  IndexCacheView IndexView(const Tensor& rows) const;
  absl::Status RunLayer(size_t l, absl::Span<const int64_t> positions,
                        std::vector<std::vector<double>>& hidden);

  const StackModel* model_;
  const AttentionBackend* backend_;
  PagedStackOptions options_;
  std::optional<AttentionMetadataBuilder> builder_;
  Tensor cos_sin_;
  std::vector<Layer> layers_;
  ForwardContext forward_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_TESTS_DEEPSEEK_V4_PAGED_STACK_H_
