#include "kvblocks/attention_metadata.h"

#include <algorithm>

#include "attention/metadata/host_index_checks.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr char kBatches[] = "VirtualBatches";

ConstTensorView View(const std::vector<int32_t>& values) {
  return ViewOf(absl::MakeConstSpan(values));
}

}  // namespace

absl::Status VirtualBatches::CheckTable(const CommonAttentionMetadata& meta, int64_t chunk) const {
  if (meta.block_size < 1 || chunk < 1 || chunk % meta.block_size != 0) {
    return InvalidArgument("VirtualBatches: chunk is ", chunk, " and block_size ", meta.block_size,
                           "; chunk must be a positive multiple of block_size");
  }
  const int64_t num_reqs = meta.num_reqs;
  if (num_reqs < 0 || static_cast<int64_t>(meta.host_query_start_loc.size()) <= num_reqs ||
      static_cast<int64_t>(meta.host_seq_lens.size()) < num_reqs) {
    return InvalidArgument("VirtualBatches: host_query_start_loc has ",
                           meta.host_query_start_loc.size(), " entries and host_seq_lens ",
                           meta.host_seq_lens.size(), "; ", num_reqs, " requests need ",
                           num_reqs + 1, " and ", num_reqs);
  }
  if (meta.sink_rows > 0 || meta.context_parallel.enabled()) {
    return InvalidArgument("VirtualBatches: the batch has ", meta.sink_rows, " sink rows and ",
                           meta.context_parallel.num_ranks,
                           " ranks; chunks go with none and with one");
  }
  if (meta.chunk > 0) {
    return InvalidArgument("VirtualBatches: the batch is cut at multiples of ", meta.chunk,
                           " already");
  }
  if (!meta.custom_mask.null()) {
    return InvalidArgument(
        "VirtualBatches: custom_mask counts positions of requests, which pieces begin anew; clear "
        "it");
  }
  const ConstTensorView starts = ViewOf(meta.host_query_start_loc.subspan(0, num_reqs + 1));
  KVBLOCKS_RETURN_IF_ERROR(CheckQueryStartLoc(kBatches, starts).status());
  KVBLOCKS_RETURN_IF_ERROR(CheckSeqLens(kBatches, starts, ViewOf(meta.host_seq_lens)));
  KVBLOCKS_ASSIGN_OR_RETURN(
      const HostBlockTable table,
      HostBlockTable::Create(kBatches, meta.block_table, num_reqs, meta.block_size, 0, INT64_MAX));
  for (int64_t b = 0; b < num_reqs; ++b) {
    const int64_t length = meta.host_seq_lens[b];
    const int64_t query_len = meta.host_query_start_loc[b + 1] - meta.host_query_start_loc[b];
    if (query_len == 0) continue;
    KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, (length - query_len) / chunk * chunk, length));
  }
  return absl::OkStatus();
}

absl::Status VirtualBatches::Build(const CommonAttentionMetadata& meta, int64_t chunk) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTable(meta, chunk));
  chunk_ = chunk;
  const size_t num_reqs = static_cast<size_t>(meta.num_reqs);
  const auto starts = meta.host_query_start_loc.subspan(0, num_reqs + 1);
  const auto seq_lens = meta.host_seq_lens.subspan(0, num_reqs);
  cut_query_start_loc_.assign(starts.begin(), starts.end());
  cut_seq_lens_.assign(seq_lens.begin(), seq_lens.end());

  pieces_.clear();
  seq_lens_.clear();
  query_start_loc_.assign(1, 0);
  for (size_t b = 0; b < num_reqs; ++b) {
    int64_t p = seq_lens[b] - (starts[b + 1] - starts[b]);
    while (p < seq_lens[b]) {
      const int64_t start = p / chunk * chunk;
      const int64_t end = std::min<int64_t>(start + chunk, seq_lens[b]);
      pieces_.push_back({static_cast<int32_t>(b), static_cast<int32_t>(start)});
      seq_lens_.push_back(static_cast<int32_t>(end - start));
      query_start_loc_.push_back(query_start_loc_.back() + static_cast<int32_t>(end - p));
      p = end;
    }
  }
  FillTable(meta);
  return absl::OkStatus();
}

absl::Status VirtualBatches::UpdateBlockTable(const CommonAttentionMetadata& other_group) {
  KVBLOCKS_RETURN_IF_ERROR(CheckTable(other_group, chunk_));
  const size_t num_reqs = cut_seq_lens_.size();
  const auto starts = other_group.host_query_start_loc, lens = other_group.host_seq_lens;
  if (static_cast<size_t>(other_group.num_reqs) != num_reqs ||
      !std::equal(cut_query_start_loc_.begin(), cut_query_start_loc_.end(), starts.begin()) ||
      !std::equal(cut_seq_lens_.begin(), cut_seq_lens_.end(), lens.begin())) {
    return FailedPrecondition("VirtualBatches: the other group has ", other_group.num_reqs,
                              " requests, or other lengths, than the ", num_reqs,
                              " that were cut; call Build for this step first");
  }
  FillTable(other_group);
  return absl::OkStatus();
}

void VirtualBatches::FillTable(const CommonAttentionMetadata& meta) {
  source_ = meta;
  const int64_t columns = meta.block_table.extent[1];
  // A chunk beyond the table needs no more than the table.
  width_ = std::min(chunk_ / meta.block_size, columns);
  const auto* const table = meta.block_table.as<int32_t>();
  block_table_.assign(pieces_.size() * static_cast<size_t>(width_), 0);
  for (size_t v = 0; v < pieces_.size(); ++v) {
    const int64_t first = pieces_[v].start / meta.block_size;
    const int32_t* const row = table + pieces_[v].request * columns;
    std::copy(row + first, row + std::min(columns, first + width_),
              block_table_.begin() + static_cast<int64_t>(v) * width_);
  }
  const BatchSplit split = SplitCounts(query_start_loc_, seq_lens_, {}, {});
  source_.num_reqs = static_cast<int32_t>(pieces_.size());
  source_.num_decodes = split.num_decodes;
  source_.num_decode_tokens = split.num_decode_tokens;
  source_.num_extends = split.num_extends;
  source_.num_prefills = split.num_prefills;
  source_.num_prefill_tokens = split.num_prefill_tokens;
  source_.attn_state = StateOf(query_start_loc_, seq_lens_, split, SplitOptions().decode_threshold);
  source_.common_prefix_len = 0;
  source_.chunk = chunk_;
  source_.token_to_req = {};
  source_.max_query_len = source_.max_seq_len = 0;
  for (size_t v = 0; v < pieces_.size(); ++v) {
    source_.max_query_len =
        std::max(source_.max_query_len, query_start_loc_[v + 1] - query_start_loc_[v]);
    source_.max_seq_len = std::max(source_.max_seq_len, seq_lens_[v]);
  }
  prefill_query_start_loc_.clear();
  for (size_t v = static_cast<size_t>(split.num_decodes); v < query_start_loc_.size(); ++v) {
    prefill_query_start_loc_.push_back(query_start_loc_[v] - split.num_decode_tokens);
  }
}

CommonAttentionMetadata VirtualBatches::metadata() const {
  CommonAttentionMetadata meta = source_;
  meta.query_start_loc = View(query_start_loc_);
  meta.seq_lens = View(seq_lens_);
  meta.host_query_start_loc = query_start_loc_;
  meta.host_seq_lens = seq_lens_;
  meta.prefill_query_start_loc = View(prefill_query_start_loc_);
  meta.host_prefill_query_start_loc = prefill_query_start_loc_;
  const int64_t num_pieces = static_cast<int64_t>(pieces_.size());
  meta.block_table = ViewOf(absl::MakeConstSpan(block_table_), {num_pieces, width_});
  return meta;
}

}  // namespace kvblocks::attention
