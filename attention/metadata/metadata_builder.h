// AttentionMetadataBuilder: makes CommonAttentionMetadata, one per KV group, from what the
// scheduler and the block manager say of a step.
//
//   auto builder = AttentionMetadataBuilder::Create({
//       .groups = {{.manager_block_size = 16, .kernel_block_size = 16, .num_blocks = 1000}},
//       .max_num_reqs = 64, .max_num_tokens = 2048, .max_seq_len = 8192});
//   std::vector<RequestInput> requests = {{.num_computed_tokens = 40, .num_scheduled_tokens = 1}};
//   std::vector<absl::Span<const int32_t>> tables = {manager.GetBlocks(request, 0)};
//   absl::Status built = builder->Build({.requests = requests, .block_ids = tables});
//   const CommonAttentionMetadata& meta = builder->metadata(/*group=*/0);
//   // Row i of the batch is the step's request builder->permutation()[i]; lay queries out so.
//
// The result depends on the input alone. Lengths are computed + scheduled tokens, and sink rows of
// groups that have some (KvGroupConfig). Where a group is spread over ranks, slots of tokens that
// other ranks keep are -1. Table entries
// behind a request's last block, those of blocks outside a group's window and padded rows hold the
// null block. Padded rows repeat T in query_start_loc, have length 0 and slot -1; padded positions
// are 0, padded token_to_req -1. Views are good until the next Build that succeeds, and always at
// the same addresses. A Build that fails leaves metadata and permutation as they were. All arrays
// lie in one allocation, so that one copy moves a step to a device.
//
// Cost: O(R + T + block ids), about 40 ns per decode with 64 block ids; nothing allocated after
// Create. Thread-compatible.

#ifndef KVBLOCKS_ATTENTION_METADATA_METADATA_BUILDER_H_
#define KVBLOCKS_ATTENTION_METADATA_METADATA_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/metadata/batch_input.h"
#include "kvblocks/attention/metadata/batch_split.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/metadata/kv_group.h"

namespace kvblocks::attention {

// Sets the masks of a group's metadata: custom ones, and those of backends that ask for explicit
// ones. Called for every group of a Build, before anything is written, with metadata that has the
// step's counts, max lengths, `causal` and the lengths on the host, but no other arrays yet. A
// failure fails the Build. AttachMasks of masks/mask_wiring.h fits in.
using AttachMasksFunction =
    std::function<absl::Status(const KvGroupConfig&, CommonAttentionMetadata*)>;

struct MetadataBuilderOptions {
  std::vector<KvGroupConfig> groups = {};
  int64_t max_num_reqs = 0, max_num_tokens = 0;  // padding included
  int64_t max_seq_len = 0;
  SplitOptions split = {};
  AttachMasksFunction attach_masks = {};  // empty: the implicit path, no masks
};

class AttentionMetadataBuilder {
 public:
  // InvalidArgument, or ResourceExhausted if the arrays exceed the memory of the machine.
  static absl::StatusOr<AttentionMetadataBuilder> Create(const MetadataBuilderOptions& options);
  AttentionMetadataBuilder(AttentionMetadataBuilder&&) = default;
  AttentionMetadataBuilder& operator=(AttentionMetadataBuilder&&) = default;

  // InvalidArgument, OutOfRange (block ids and tables) or ResourceExhausted (more than was created
  // for), naming request and value; requests are counted as in the input.
  absl::Status Build(const BatchInput& input);

  // Before the first Build: an empty batch.
  const CommonAttentionMetadata& metadata(int group = 0) const { return groups_[group].meta; }
  // The phases of the last batch; made when first asked for.
  const CommonAttentionMetadata& decode_view(int group = 0);
  const CommonAttentionMetadata& prefill_view(int group = 0);
  // The last batch as layers of cross attention without a cache see it: seq_lens are those of the
  // encoders, whose keys lie one after another in the order of rows; nothing is causal, and there
  // are no tables and slots. All lengths are 0 if the input had none.
  CommonAttentionMetadata cross_metadata() const;
  // Row -> index of the request in the input.
  absl::Span<const int32_t> permutation() const { return {permutation_, num_reqs()}; }

  // i32 [T_padded]: the row of each token. Made when first asked for, and from then on also in the
  // metadata of all groups.
  ConstTensorView token_to_req();

  int num_groups() const { return static_cast<int>(groups_.size()); }
  const KvGroupConfig& config(int group) const { return groups_[group].config; }
  KvGroupKey key(int group) const { return groups_[group].config.key(); }
  std::optional<int> FindGroup(const KvGroupKey& key) const;  // the first of that key
  // Everything that the views point to.
  absl::Span<const std::byte> storage() const;

 private:
  struct Group {
    KvGroupConfig config;
    int64_t expansion = 1;  // kernel blocks per manager block
    int64_t columns = 0;
    int64_t sink_columns = 0;  // the first, which stay as Create fills them
    int32_t null_kernel_block = 0;
    int32_t* block_table = nullptr;  // [max_num_reqs, columns]
    int64_t* slot_mapping = nullptr;
    int32_t* own_lens = nullptr;  // lengths with sink rows, or local context; null: neither
    std::vector<int32_t> filled;  // per row: entries behind it hold the null block
    // Per manager block: the check in which somebody wrote to it last.
    std::vector<uint32_t> writer;
    CommonAttentionMetadata meta, decode_view, prefill_view;
    CommonAttentionMetadata masks;  // of the batch being built; nothing else in it counts
    bool has_decode_view = false, has_prefill_view = false;
  };
  AttentionMetadataBuilder() = default;
  size_t num_reqs() const { return static_cast<size_t>(groups_[0].meta.num_reqs); }

  absl::Status Check(const BatchInput& input);
  absl::Status CheckBlocks(const BatchInput& input, size_t g);
  absl::Status FindDuplicateSlot(const BatchInput& input, size_t g);
  CommonAttentionMetadata CountPhases(const BatchInput& input);  // fills phase_
  absl::Status FetchMasks(const BatchInput& input, const CommonAttentionMetadata& scalars);
  // Fills `permutation` with the order of rows.
  void Order(absl::Span<const RequestInput> requests, const CommonAttentionMetadata& scalars,
             int32_t* permutation) const;
  CommonAttentionMetadata FillLengths(const BatchInput& input,
                                      const CommonAttentionMetadata& scalars);
  void FillGroup(const BatchInput& input, size_t g);
  void Publish(const BatchInput& input, const CommonAttentionMetadata& lengths, size_t g);
  void PublishLocalContext(Group& group);

  SplitOptions split_;
  AttachMasksFunction attach_masks_;
  int64_t max_num_reqs_ = 0, max_num_tokens_ = 0, max_seq_len_ = 0;

  std::unique_ptr<std::byte[]> storage_;  // of all arrays below and in the groups
  size_t storage_bytes_ = 0;
  int32_t* query_start_loc_ = nullptr;
  int32_t* prefill_query_start_loc_ = nullptr;
  int32_t* seq_lens_ = nullptr;
  int32_t* encoder_lens_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* token_to_req_ = nullptr;
  int32_t* permutation_ = nullptr;
  std::vector<Group> groups_;

  // Scratch of one Build.
  std::vector<uint8_t> phase_;          // per request of the input: 0 decode, 1 extend, 2 fresh
  std::vector<int32_t> uniform_count_;  // per query length
  uint32_t check_ = 0;                  // counts checks for Group::writer
  // What masks are attached by.
  std::vector<int32_t> mask_order_, mask_query_start_loc_, mask_seq_lens_;

  int64_t padded_reqs_ = 0, padded_tokens_ = 0;  // of the last batch
  bool has_token_to_req_ = false;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_METADATA_BUILDER_H_
