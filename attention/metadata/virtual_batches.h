// VirtualBatches: chunked local attention as ordinary causal attention over pieces of requests.
//
// For chunks of C tokens, a query at position p sees keys from C * (p / C) on. Cutting each request
// at multiples of C turns every piece that holds new tokens into a request of its own: its queries
// are the new tokens of the piece, its length the piece up to its last new token, its blocks the C
// / BS that begin at the piece, or as many as the table has columns. Tokens keep their order, so
// queries, slots and positions stay as they are.
//
//   VirtualBatches pieces;
//   absl::Status status = pieces.Build(builder.metadata(group), /*chunk=*/8192);
//   CommonAttentionMetadata meta = pieces.metadata();
//   status = chunked_layer.Forward(context, tensors, &meta);
//
// A layer with that chunk knows such metadata by its `chunk` and runs the kernels of plain causal
// attention, the fast ones included, which have no rule for chunks.
//
// How many pieces there are depends on positions, so this is not for captured graphs. Host memory
// only. Cost: O(pieces * C / BS); memory is kept between calls. Views are good until the next call
// that succeeds; one that fails changes nothing. Thread-compatible.

#ifndef KVBLOCKS_ATTENTION_METADATA_VIRTUAL_BATCHES_H_
#define KVBLOCKS_ATTENTION_METADATA_VIRTUAL_BATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention/metadata/common_metadata.h"

namespace kvblocks::attention {

class VirtualBatches {
 public:
  struct Piece {
    int32_t request = 0;  // row of the batch that was cut
    int32_t start = 0;    // position at which the piece begins, a multiple of the chunk
  };

  // `chunk` must be a multiple of meta.block_size. Requests without queries give no pieces. A
  // custom mask, whose rows and columns are positions of whole requests, is refused.
  absl::Status Build(const CommonAttentionMetadata& meta, int64_t chunk);

  // The same pieces over the blocks of another KV group: lengths must be those that were cut.
  absl::Status UpdateBlockTable(const CommonAttentionMetadata& other_group);

  // Entries behind a request's table hold block 0 and are never needed.
  CommonAttentionMetadata metadata() const;
  absl::Span<const Piece> pieces() const { return pieces_; }

 private:
  absl::Status CheckTable(const CommonAttentionMetadata& meta, int64_t chunk) const;
  void FillTable(const CommonAttentionMetadata& meta);

  int64_t chunk_ = 0;
  CommonAttentionMetadata source_;  // scalars and per-token views; its lengths are not used
  std::vector<Piece> pieces_;
  std::vector<int32_t> query_start_loc_ = {0}, prefill_query_start_loc_, seq_lens_;
  int64_t width_ = 0;                                        // columns of block_table_
  std::vector<int32_t> block_table_;                         // [pieces, width_]
  std::vector<int32_t> cut_query_start_loc_, cut_seq_lens_;  // of the batch that was cut
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_VIRTUAL_BATCHES_H_
