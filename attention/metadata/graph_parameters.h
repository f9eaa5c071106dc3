// GraphParameters: what captured graphs of a model's steps read, by padded size.
//
// An engine captures one graph per size of a list (GraphCaptureSizes) and replays the smallest that
// a step fits into. Graphs hold addresses, so a step's lengths, tables and slots must come to where
// they were at the capture. There is one builder here; a set per size says what the graph of that
// size is captured with.
//
//   auto graphs = GraphParameters::Create(builder_options, {.sizes = GraphCaptureSizes(512)});
//   auto on_device = DeviceMetadata::Create(context, &graphs->builder());
//   for each set of graphs->sets(): capture a step with (*on_device)->OnDevice(set.metadata[group])
//   every step:  auto set = graphs->Update(input);     // or run without a graph if it is refused
//                (*on_device)->Upload(context);
//                replay the graph of (*set)->num_tokens
//
// A set's metadata never changes: it describes the size filled to the brim, every length at its
// bound. Update rewrites what its views point to: the step's rows, and behind them padding, which
// has slot -1, length 0 and the last query_start_loc again, so that kernels store nothing and attend
// to nothing. Views of all sets begin at the same addresses.
//
// Sets are for backends whose kernels read lengths on the device. A graph of one query length
// (uniform_query_len > 0) serves decodes, all of that many tokens; with 0 any step fits, and layers
// are captured with all requests as prefills (GraphLevel::kAlways). Cost: that of the builder;
// nothing is allocated after Create. Masks of a graph must stay where they are: attach_masks is
// refused.

#ifndef KVBLOCKS_ATTENTION_METADATA_GRAPH_PARAMETERS_H_
#define KVBLOCKS_ATTENTION_METADATA_GRAPH_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/metadata/batch_input.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/metadata/metadata_builder.h"

namespace kvblocks::attention {

// The padded token counts that vLLM 0.33 captures: 1, 2, 4, then multiples of 8 below 256 and of 16
// from there on, up to `most`.
std::vector<int64_t> GraphCaptureSizes(int64_t most);

struct GraphParameterSet {
  int64_t num_tokens = 0;  // padded: what the set is found by
  int64_t num_reqs = 0;    // padded
  std::vector<CommonAttentionMetadata> metadata;  // per KV group: what a graph is captured with
  int64_t workspace_bytes = 0;                    // the most that some layer needs at this size
};

struct GraphParameterOptions {
  std::vector<int64_t> sizes = {};  // padded token counts, ascending
  int64_t uniform_query_len = 1;    // of every request; sizes are multiples of it. 0: any
};

class GraphParameters {
 public:
  // `options` bounds what steps are like; its max_num_tokens must be at least the largest size.
  // InvalidArgument, or what the builder refuses.
  static absl::StatusOr<GraphParameters> Create(const MetadataBuilderOptions& options,
                                                const GraphParameterOptions& graphs);
  GraphParameters(GraphParameters&&) = default;
  GraphParameters& operator=(GraphParameters&&) = default;

  // The smallest set that the step fits into, or OutOfRange that says the limit.
  absl::StatusOr<const GraphParameterSet*> Find(const BatchInput& input) const;
  // Builds the step, padded to that set, into the buffers. The input's own padding must be 0. A
  // refusal, which may also be the builder's, changes nothing.
  absl::StatusOr<const GraphParameterSet*> Update(const BatchInput& input);

  // Keeps, for every set, the larger of what it has and what `bytes_of` says that a layer needs at
  // its size. Call it for each shape of layers before memory is taken. On failure nothing changes.
  absl::Status RequireWorkspace(
      absl::FunctionRef<absl::StatusOr<int64_t>(const GraphParameterSet&)> bytes_of);

  const std::vector<GraphParameterSet>& sets() const { return sets_; }
  // Of the last step that Update built: permutation, positions, metadata with its own counts.
  AttentionMetadataBuilder& builder() { return *builder_; }

 private:
  GraphParameters() = default;
  absl::Status AddSet(int64_t size, int64_t num_reqs);
  CommonAttentionMetadata Filled(CommonAttentionMetadata meta, int64_t size);

  GraphParameterOptions graphs_;
  std::unique_ptr<AttentionMetadataBuilder> builder_;  // stays where it is when this moves
  int64_t max_seq_len_ = 0;
  std::vector<GraphParameterSet> sets_;
  std::vector<std::vector<int32_t>> host_;  // what host spans of sets point to
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_GRAPH_PARAMETERS_H_
