// Index lists and virtual batches against the predicates they stand for, evaluated densely.

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::attention {
namespace {

int64_t AnyNumber(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

constexpr int64_t kMaxLen = 40, kNumBlocks = 1000;

// Requests with distinct blocks, some without queries, and padding tokens behind them.
struct Batch {
  int64_t block_size = AnyNumber(1, 5);
  int64_t columns = (kMaxLen + block_size - 1) / block_size + AnyNumber(0, 2);
  std::vector<int32_t> starts = {0}, lens, positions, table;
  int64_t num_padded = 0;

  Batch() {
    int32_t next = 0;
    for (int64_t b = AnyNumber(0, 4); b > 0; --b) {
      const int64_t length = AnyNumber(0, kMaxLen);
      const int64_t query_len =
          AnyNumber(0, 3) == 0 ? length : AnyNumber(0, std::min<int64_t>(3, length));
      starts.push_back(starts.back() + static_cast<int32_t>(query_len));
      lens.push_back(static_cast<int32_t>(length));
      for (int64_t p = length - query_len; p < length; ++p) {
        positions.push_back(static_cast<int32_t>(p));
      }
      for (int64_t c = 0; c < columns; ++c) table.push_back((next++ * 7) % kNumBlocks);
    }
    num_padded = num_tokens() + AnyNumber(0, 3);
  }

  int64_t num_reqs() const { return static_cast<int64_t>(lens.size()); }
  int64_t num_tokens() const { return starts.back(); }
  int64_t Slot(int64_t b, int64_t j) const {
    return table[static_cast<size_t>(b * columns + j / block_size)] * block_size + j % block_size;
  }
  ConstTensorView starts_view() const { return ViewOf(absl::MakeConstSpan(starts)); }
  ConstTensorView lens_view() const { return ViewOf(absl::MakeConstSpan(lens)); }
  ConstTensorView positions_view() const { return ViewOf(absl::MakeConstSpan(positions)); }
  ConstTensorView table_view() const {
    return ViewOf(absl::MakeConstSpan(table), {num_reqs(), columns});
  }
};

struct Lists {
  int64_t width;
  std::vector<int32_t> indices, lens;

  Lists(int64_t rows, int64_t the_width)
      : width(the_width),
        indices(static_cast<size_t>(rows * width), 77),
        lens(static_cast<size_t>(rows), 77) {}
  TensorView indices_view() {
    return ViewOf(absl::MakeSpan(indices), {static_cast<int64_t>(lens.size()), width});
  }
  TensorView lens_view() { return ViewOf(absl::MakeSpan(lens)); }
  // That row t holds these and nothing else.
  void Expect(int64_t t, std::vector<int64_t> wanted) const {
    RC_ASSERT(lens[static_cast<size_t>(t)] == static_cast<int32_t>(wanted.size()));
    wanted.resize(static_cast<size_t>(width), -1);
    const auto row = indices.begin() + t * width;
    RC_ASSERT(std::vector<int64_t>(row, row + width) == wanted);
  }
};

RC_GTEST_PROP(IndexOpsPropertyTest, WindowListsAreTheVisibleKeys, ()) {
  const Batch batch;
  const int64_t window = AnyNumber(1, 12);
  // Sink rows come before all queries.
  int64_t sink_rows = AnyNumber(0, 6);
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    const int64_t query_len = batch.starts[b + 1] - batch.starts[b];
    if (query_len > 0) sink_rows = std::min(sink_rows, batch.lens[b] - query_len);
  }
  Lists lists(batch.num_padded, sink_rows + window);
  const absl::Status status = BuildSwaIndices({.window = window,
                                               .sink_rows = sink_rows,
                                               .query_start_loc = batch.starts_view(),
                                               .seq_lens = batch.lens_view(),
                                               .block_table = batch.table_view(),
                                               .block_size = batch.block_size,
                                               .num_blocks = kNumBlocks,
                                               .indices = lists.indices_view(),
                                               .lens = lists.lens_view()});
  RC_ASSERT(status.ok());
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    for (int64_t t = batch.starts[b]; t < batch.starts[b + 1]; ++t) {
      std::vector<int64_t> visible;
      for (int64_t j = 0; j < batch.lens[b]; ++j) {
        const int64_t p = batch.positions[t];
        if (j < sink_rows || (j <= p && j >= p - (window - 1))) visible.push_back(batch.Slot(b, j));
      }
      lists.Expect(t, visible);
    }
  }
  for (int64_t t = batch.num_tokens(); t < batch.num_padded; ++t) lists.Expect(t, {});
}

RC_GTEST_PROP(IndexOpsPropertyTest, CompressedListsAreTheCompleteRows, ()) {
  const Batch batch;
  const int64_t ratio = AnyNumber(1, 5), capacity = AnyNumber(1, 12);
  // Dense lists of local rows...
  Lists lists(batch.num_padded, capacity);
  RC_ASSERT(BuildDenseCompressedIndices({.ratio = ratio,
                                         .query_start_loc = batch.starts_view(),
                                         .positions = batch.positions_view(),
                                         .indices = lists.indices_view(),
                                         .lens = lists.lens_view()})
                .ok());
  const auto complete = [&](int64_t p) {
    std::vector<int64_t> rows;  // a row is there once its last token is
    for (int64_t j = 0; j <= p; ++j) {
      if ((j + 1) % ratio == 0 && static_cast<int64_t>(rows.size()) < capacity) {
        rows.push_back(j / ratio);
      }
    }
    return rows;
  };
  for (int64_t t = 0; t < batch.num_tokens(); ++t) lists.Expect(t, complete(batch.positions[t]));
  for (int64_t t = batch.num_tokens(); t < batch.num_padded; ++t) lists.Expect(t, {});

  // ...are, in the cache, the slots that tokens were given when they completed them.
  Lists slots(batch.num_padded, capacity);
  RC_ASSERT(BuildTopkSlots({.query_start_loc = batch.starts_view(),
                            .indices = lists.indices_view(),
                            .block_table = batch.table_view(),
                            .block_size = batch.block_size,
                            .num_blocks = kNumBlocks,
                            .slots = slots.indices_view(),
                            .counts = slots.lens_view()})
                .ok());
  std::vector<int64_t> written(static_cast<size_t>(batch.num_padded), 77);
  RC_ASSERT(BuildCompressedSlots({.ratio = ratio,
                                  .query_start_loc = batch.starts_view(),
                                  .positions = batch.positions_view(),
                                  .block_table = batch.table_view(),
                                  .block_size = batch.block_size,
                                  .num_blocks = kNumBlocks,
                                  .slot_mapping = ViewOf(absl::MakeSpan(written))})
                .ok());
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    for (int64_t t = batch.starts[b]; t < batch.starts[b + 1]; ++t) {
      std::vector<int64_t> wanted;
      for (const int64_t row : complete(batch.positions[t])) wanted.push_back(batch.Slot(b, row));
      slots.Expect(t, wanted);
      const int64_t p = batch.positions[t];
      RC_ASSERT(written[t] == ((p + 1) % ratio == 0 ? batch.Slot(b, p / ratio) : -1));
    }
  }
}

RC_GTEST_PROP(IndexOpsPropertyTest, PrefillListsPointIntoTheGatheredBuffer, ()) {
  const Batch batch;
  const int64_t ratio = AnyNumber(1, 5), window = AnyNumber(1, 12), topk = AnyNumber(0, 4);
  const int64_t compressed_rows = kMaxLen / ratio;
  const int64_t rows = compressed_rows + kMaxLen + AnyNumber(0, 3);
  // What the buffer holds: which compressed row or which position of which request.
  std::vector<int64_t> buffer(static_cast<size_t>(batch.num_reqs() * rows), -1);
  constexpr int64_t kCompressed = 1'000'000;
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    for (int64_t n = 0; n < compressed_rows; ++n) {
      buffer[static_cast<size_t>(b * rows + n)] = kCompressed + b * 1000 + n;
    }
    const int64_t gathered =
        WindowGatherLen(batch.starts[b + 1] - batch.starts[b], batch.lens[b], window);
    for (int64_t u = batch.lens[b] - gathered; u < batch.lens[b]; ++u) {
      const int64_t at = b * rows + compressed_rows + u - (batch.lens[b] - gathered);
      buffer[static_cast<size_t>(at)] = b * 1000 + u;
    }
  }
  std::vector<int32_t> list(static_cast<size_t>(batch.num_tokens() * topk));
  for (int64_t t = 0; t < batch.num_tokens(); ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      const int64_t complete = std::max<int64_t>(1, (batch.positions[t] + 1) / ratio);
      list[static_cast<size_t>(t * topk + k)] = static_cast<int32_t>(AnyNumber(0, complete - 1));
    }
  }
  Lists lists(batch.num_padded, topk + window);
  const absl::Status status =
      CombinePrefillIndices({.ratio = ratio,
                             .window = window,
                             .rows_per_request = rows,
                             .compressed_rows = compressed_rows,
                             .query_start_loc = batch.starts_view(),
                             .seq_lens = batch.lens_view(),
                             .topk = ViewOf(absl::MakeConstSpan(list), {batch.num_tokens(), topk}),
                             .indices = lists.indices_view(),
                             .lens = lists.lens_view()});
  RC_ASSERT(status.ok());
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    for (int64_t t = batch.starts[b]; t < batch.starts[b + 1]; ++t) {
      const int64_t p = batch.positions[t];
      std::vector<int64_t> wanted, found;
      for (int64_t k = 0; k < std::min((p + 1) / ratio, topk); ++k) {
        wanted.push_back(kCompressed + b * 1000 + list[static_cast<size_t>(t * topk + k)]);
      }
      for (int64_t j = 0; j <= p; ++j) {
        if (j >= p - (window - 1)) wanted.push_back(b * 1000 + j);
      }
      for (int32_t k = 0; k < lists.lens[t]; ++k) {
        const int32_t at = lists.indices[static_cast<size_t>(t * lists.width + k)];
        RC_ASSERT(at >= 0 && at < static_cast<int32_t>(buffer.size()));
        found.push_back(buffer[static_cast<size_t>(at)]);
      }
      RC_ASSERT(found == wanted);
    }
  }
  for (int64_t t = batch.num_tokens(); t < batch.num_padded; ++t) lists.Expect(t, {});
}

// T-22: what a piece's query sees causally is what the chunk predicate shows it in the request.
RC_GTEST_PROP(IndexOpsPropertyTest, T22VirtualBatchesEqualTheChunkPredicate, ()) {
  const Batch batch;
  CommonAttentionMetadata meta;
  meta.block_table = batch.table_view();
  meta.block_size = batch.block_size;
  meta.num_reqs = static_cast<int32_t>(batch.num_reqs());
  meta.num_actual_tokens = static_cast<int32_t>(batch.num_tokens());
  meta.host_query_start_loc = batch.starts;
  meta.host_seq_lens = batch.lens;
  const int64_t chunk = batch.block_size * AnyNumber(1, 4);
  VirtualBatches pieces;
  RC_ASSERT(pieces.Build(meta, chunk).ok());
  const CommonAttentionMetadata cut = pieces.metadata();

  std::vector<std::vector<int64_t>> seen;  // per token, slots
  const int64_t width = cut.block_table.extent[1];
  for (int32_t v = 0; v < cut.num_reqs; ++v) {
    const int64_t first = cut.host_query_start_loc[v], end = cut.host_query_start_loc[v + 1];
    RC_ASSERT(end > first);
    for (int64_t t = first; t < end; ++t) {
      const int64_t p = cut.host_seq_lens[v] - (end - t);
      seen.emplace_back();
      for (int64_t j = 0; j <= p; ++j) {
        const int32_t block = cut.block_table.as<int32_t>()[v * width + j / batch.block_size];
        seen.back().push_back(block * batch.block_size + j % batch.block_size);
      }
    }
  }
  RC_ASSERT(static_cast<int64_t>(seen.size()) == batch.num_tokens());
  for (int64_t b = 0; b < batch.num_reqs(); ++b) {
    for (int64_t t = batch.starts[b]; t < batch.starts[b + 1]; ++t) {
      const int64_t p = batch.positions[t];
      std::vector<int64_t> visible;
      for (int64_t j = 0; j < batch.lens[b]; ++j) {
        if (j <= p && j >= chunk * (p / chunk)) visible.push_back(batch.Slot(b, j));
      }
      RC_ASSERT(seen[static_cast<size_t>(t)] == visible);
    }
  }
  RC_ASSERT(cut.num_decodes + cut.num_prefills == cut.num_reqs);
  RC_ASSERT(cut.num_decode_tokens + cut.num_prefill_tokens == cut.num_actual_tokens);
}

}  // namespace
}  // namespace kvblocks::attention
