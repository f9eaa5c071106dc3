
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cache/quantised_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention {
namespace {

// Tokens per work item: enough to amortise handing it out, few enough to feed all threads.
constexpr int64_t kTokensPerItem = 32;

// Calls work(begin, end, thread) for pieces of [0, num_tokens).
template <typename Work>
void ForTokens(const ExecContext& context, int64_t num_tokens, const Work& work) {
  ParallelFor(context.threads, CeilDiv(num_tokens, kTokensPerItem),
              [&](int64_t item, int thread) {
                const int64_t begin = item * kTokensPerItem;
                work(begin, std::min(begin + kTokensPerItem, num_tokens), thread);
              });
}

// A row of `count` elements as float64, divided by the scale if it becomes codes, in the type `to`.
void Quantise(DType from_type, const std::byte* from, int64_t stride, int64_t count, DType to,
              float scale, double* values, std::byte* row) {
  LoadElements(from_type, from, stride, count, values);
  if (IsQuantizedCode(to) && scale != 1) {
    for (int64_t i = 0; i < count; ++i) values[i] /= scale;
  }
  StoreElements(to, values, count, row);
}

// The code of every 16-bit word, by the word.
using CodeTable = std::vector<std::byte>;
constexpr int64_t kWords = 1 << 16;

CodeTable MakeCodeTable(DType from_type, DType to, float scale) {
  std::vector<uint16_t> words(kWords);
  std::iota(words.begin(), words.end(), uint16_t{0});
  std::vector<double> values(kWords);
  CodeTable codes(kWords);
  Quantise(from_type, reinterpret_cast<const std::byte*>(words.data()), 1, kWords, to, scale,
           values.data(), codes.data());
  return codes;
}

// Stores rows of a tensor [T, heads, dim] into the rows of a cache; `num_tokens` of them at most.
class RowWriter {
 public:
  RowWriter(const ConstTensorView& source, const RowLayout& rows, int64_t num_heads,
            const ConstTensorView& scales, int64_t num_tokens, int num_threads)
      : source_(source), rows_(rows), num_heads_(num_heads), scales_(scales) {
    const int64_t bytes = ElementBytes(source.dtype);
    token_stride_ = source.stride[0] * bytes;
    head_stride_ = source.rank == 3 ? source.stride[1] * bytes : 0;
    element_stride_ = source.stride[source.rank - 1] * bytes;
    if (source.dtype != rows.dtype) {
      values_.resize(num_threads * rows.row_elements());
      converted_.resize(values_.size() * ElementBytes(rows.dtype));
      MakeTables(num_tokens);
    } else if (rows.num_pieces == 1) {
      // Heads side by side on both sides are one row.
      const int64_t row_bytes = rows.row_elements() * bytes;
      const bool dense = element_stride_ == bytes && rows.element_stride == bytes;
      if (dense && head_stride_ == row_bytes && rows.head_stride == row_bytes) {
        rows_.piece_elements *= num_heads_;
        num_heads_ = 1;
      }
    }
  }

  // Tokens `token` to `token + count`, which go to consecutive offsets of one block. Heads are the
  // outer loop: where the cache is dim-major, the lines of a head stay near until they are full.
  void WriteRun(int64_t token, int64_t count, int64_t block, int64_t offset, int thread) {
    for (int64_t head = 0; head < num_heads_; ++head) {
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* from = source_.data + (token + i) * token_stride_ + head * head_stride_;
        int64_t stride = element_stride_;
        if (!values_.empty()) {
          const int64_t elements = rows_.row_elements();
          const int64_t bytes = ElementBytes(rows_.dtype);
          std::byte* row = converted_.data() + thread * elements * bytes;
          if (tables_.empty()) {
            Quantise(source_.dtype, from, source_.stride[source_.rank - 1], elements, rows_.dtype,
                     ScaleAt(scales_, 0, head), values_.data() + thread * elements, row);
          } else {
            LookUp(tables_[tables_.size() == 1 ? 0 : head], from, elements, row);
          }
          from = row;
          stride = bytes;
        }
        WriteRow(rows_, rows_.Row(block, offset + i, head), from, stride);
      }
    }
  }

 private:
  // Large batches of 16-bit values look codes up: a table costs as much as converting its words.
  void MakeTables(int64_t num_tokens) {
    if (ElementBytes(source_.dtype) != 2 || !IsQuantizedCode(rows_.dtype)) return;
    const bool per_head = scales_.num_elements() > 1 && scales_.stride[0] != 0;
    const int64_t num_tables = per_head ? num_heads_ : 1;
    if (num_tokens * num_heads_ / num_tables * rows_.row_elements() < 4 * kWords) return;
    for (int64_t head = 0; head < num_tables; ++head) {
      tables_.push_back(MakeCodeTable(source_.dtype, rows_.dtype, ScaleAt(scales_, 0, head)));
    }
  }
  void LookUp(const CodeTable& table, const std::byte* from, int64_t count, std::byte* row) const {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t word;
      std::memcpy(&word, from + i * element_stride_, sizeof(word));
      row[i] = table[word];
    }
  }

  ConstTensorView source_;
  RowLayout rows_;
  int64_t num_heads_;
  ConstTensorView scales_;
  int64_t token_stride_, head_stride_, element_stride_;  // of the source, bytes
  std::vector<double> values_;                           // a row per thread, if types differ
  std::vector<std::byte> converted_;
  std::vector<CodeTable> tables_;  // one for all heads, or one each; none: converts
};

// Calls write(token, count, block, offset, thread) for maximal runs of tokens at consecutive slots
// of a block.
template <typename Write>
void ForRuns(const ExecContext& context, const ConstTensorView& slot_mapping, int64_t block_size,
             const Write& write) {
  ForTokens(context, slot_mapping.extent[0], [&](int64_t begin, int64_t end, int thread) {
    for (int64_t token = begin; token < end;) {
      const int64_t slot = IndexAt(slot_mapping, token);
      if (slot < 0) {
        ++token;
        continue;
      }
      const int64_t offset = slot % block_size;
      const int64_t most = std::min(block_size - offset, end - token);
      int64_t count = 1;
      while (count < most && IndexAt(slot_mapping, token + count) == slot + count) ++count;
      write(token, count, slot / block_size, offset, thread);
      token += count;
    }
  });
}

// K and V into vectors with scales of their own.
void WriteQuantised(const ExecContext& context, const ReshapeAndCacheArgs& args) {
  const KvCacheView& cache = args.cache;
  const int64_t heads = cache.num_kv_heads();
  const bool nhd = cache.layout == KvLayout::kNhd;
  const int64_t dim = std::max(cache.key_dim(), cache.value_dim());
  std::vector<double> rows(NumThreads(context.threads) * dim);
  const auto write = [&](const ConstTensorView& from, const ConstTensorView& outer_scale,
                         const TensorView& codes, const TensorView& scales, int64_t token,
                         int64_t block, int64_t offset, int thread) {
    double* values = rows.data() + thread * dim;
    for (int64_t head = 0; head < heads; ++head) {
      LoadElements(from.dtype, from.At(token, head), from.stride[2], from.extent[2], values);
      const int64_t second = nhd ? offset : head, third = nhd ? head : offset;
      EncodeQuantisedRow(cache.format, codes.dtype, values, from.extent[2],
                         ScaleAt(outer_scale, 0, head), codes.At(block, second, third),
                         scales.At(block, second, third));
    }
  };
  ForRuns(context, args.slot_mapping, cache.block_size(),
          [&](int64_t token, int64_t count, int64_t block, int64_t offset, int thread) {
            for (int64_t i = 0; i < count; ++i) {
              write(args.k, args.scales.k, cache.k, cache.k_scales, token + i, block, offset + i,
                    thread);
              write(args.v, args.scales.v, cache.v, cache.v_scales, token + i, block, offset + i,
                    thread);
            }
          });
}

}  // namespace

absl::Status HostOps::Run(const Checked<ReshapeAndCacheArgs>& call) const {
  const ExecContext& context = call.context();
  const ReshapeAndCacheArgs& args = call.args();
  if (args.slot_mapping.empty() || args.cache.num_slots() == 0) return absl::OkStatus();
  if (args.cache.format != KvRowFormat::kElements) {
    WriteQuantised(context, args);
    return absl::OkStatus();
  }
  const int num_threads = NumThreads(context.threads);
  const int64_t heads = args.cache.num_kv_heads();
  const int64_t tokens = args.slot_mapping.extent[0];
  RowWriter keys(args.k, RowsOfKeys(args.cache), heads, args.scales.k, tokens, num_threads);
  RowWriter values(args.v, RowsOfValues(args.cache), heads, args.scales.v, tokens, num_threads);
  ForRuns(context, args.slot_mapping, args.cache.block_size(),
          [&](int64_t token, int64_t count, int64_t block, int64_t offset, int thread) {
            keys.WriteRun(token, count, block, offset, thread);
            values.WriteRun(token, count, block, offset, thread);
          });
  return absl::OkStatus();
}

namespace {

void WriteFp8Latent(const ExecContext& context, const ConcatAndCacheMlaArgs& args) {
  const KvCacheView& cache = args.cache;
  const int64_t block_size = cache.block_size();
  const auto write = [&](int64_t token, int64_t count, int64_t block, int64_t offset, int) {
    double values[kMla656Values];
    double rotary[kMlaRotaryValues];
    uint16_t words[kMlaRotaryValues];
    auto* word_bytes = reinterpret_cast<std::byte*>(words);
    for (int64_t i = 0; i < count; ++i) {
      LoadElements(args.kv_c.dtype, args.kv_c.At(token + i), args.kv_c.stride[1],
                   args.kv_c.extent[1], values);
      const std::byte* from = args.k_pe.At(token + i);
      if (args.k_pe.dtype == DType::kBF16) {
        CopyElements(2, from, args.k_pe.stride[1] * 2, word_bytes, 2, kMlaRotaryValues);
      } else {
        LoadElements(args.k_pe.dtype, from, args.k_pe.stride[1], kMlaRotaryValues, rotary);
        StoreElements(DType::kBF16, rotary, kMlaRotaryValues, word_bytes);
      }
      if (cache.layout == KvLayout::kMlaFp8_656) {
        EncodeMla656(values, words, cache.k.At(block, offset + i));
      } else {
        EncodeMla584(values, words, cache.k.At(block), block_size, offset + i);
      }
    }
  };
  ForRuns(context, args.slot_mapping, block_size, write);
}

void WriteMlaRecords(const ExecContext& context, const ConcatAndCacheMlaArgs& args) {
  const KvCacheView& cache = args.cache;
  const auto load = [](const ConstTensorView& from, int64_t token, double* to) {
    LoadElements(from.dtype, from.At(token), from.stride[1], from.extent[1], to);
  };
  ForRuns(context, args.slot_mapping, cache.block_size(),
          [&](int64_t token, int64_t count, int64_t block, int64_t offset, int) {
            double values[kMla656Values + kMlaRotaryValues];
            for (int64_t i = 0; i < count; ++i) {
              load(args.kv_c, token + i, values);
              load(args.k_pe, token + i, values + args.kv_c.extent[1]);
              EncodeMlaRecord(cache.format, values, cache.k.At(block, offset + i));
            }
          });
}

}  // namespace

absl::Status HostOps::Run(const Checked<ConcatAndCacheMlaArgs>& call) const {
  const ExecContext& context = call.context();
  const ConcatAndCacheMlaArgs& args = call.args();
  if (args.slot_mapping.empty() || args.cache.num_slots() == 0) return absl::OkStatus();
  if (args.cache.layout == KvLayout::kMlaFp8_656 || args.cache.layout == KvLayout::kMlaFp8_584) {
    WriteFp8Latent(context, args);
    return absl::OkStatus();
  }
  if (IsMlaRecord(args.cache.format)) {
    WriteMlaRecords(context, args);
    return absl::OkStatus();
  }
  RowLayout latent = RowsOfKeys(args.cache);
  RowLayout rotary;
  if (args.cache.layout == KvLayout::kMlaSplit) {
    rotary = RowsOfValues(args.cache);
  } else {
    rotary = latent;
    latent.piece_elements = args.kv_c.extent[1];
    rotary.piece_elements -= latent.piece_elements;
    rotary.data += latent.piece_elements * latent.element_stride;
  }
  const int num_threads = NumThreads(context.threads);
  const int64_t tokens = args.slot_mapping.extent[0];
  RowWriter latents(args.kv_c, latent, 1, args.scale, tokens, num_threads);
  RowWriter rotaries(args.k_pe, rotary, 1, args.scale, tokens, num_threads);
  ForRuns(context, args.slot_mapping, args.cache.block_size(),
          [&](int64_t token, int64_t count, int64_t block, int64_t offset, int thread) {
            latents.WriteRun(token, count, block, offset, thread);
            rotaries.WriteRun(token, count, block, offset, thread);
          });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
