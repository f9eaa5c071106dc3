#include <algorithm>
#include <vector>

#include "attention/cache/cache_rows.h"
#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention {
namespace {

// Tokens of a request per work item, so that one long request feeds all threads.
constexpr int64_t kTokensPerItem = 256;

bool HasScalesInside(KvLayout layout) {
  return layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
}

// Takes keys or values of a cache into a tensor [R, M, heads, dim] or [R, M, dim].
class RowGatherer {
 public:
  RowGatherer(const ConstKvCacheView& cache, bool keys, const ConstTensorView& scales,
              const TensorView& out, int num_threads)
      : cache_(cache), keys_(keys), scales_(scales), out_(out) {
    const DType dtype = keys ? cache.k.dtype : cache.v.dtype;
    count_ = keys ? cache.key_dim() : cache.value_dim();
    scaled_ = cache.format == KvRowFormat::kElements ? IsQuantizedCode(dtype) : cache.takes_scale();
    copies_bits_ = dtype == out.dtype && !scaled_ && cache.format == KvRowFormat::kElements &&
                   !HasScalesInside(cache.layout) && cache.layout != KvLayout::kMlaSplit;
    if (copies_bits_) {
      rows_ = keys ? RowsOfKeys(cache) : RowsOfValues(cache);
    } else {
      values_.resize(num_threads * count_);
      converted_.resize(values_.size() * ElementBytes(out.dtype));
    }
  }

  void Gather(int64_t request, int64_t block, int64_t offset, int64_t to_row, int thread) {
    const int64_t bytes = ElementBytes(out_.dtype);
    const int64_t stride = out_.stride[out_.rank - 1] * bytes;
    for (int64_t head = 0; head < cache_.num_kv_heads(); ++head) {
      std::byte* to = out_.rank == 4 ? out_.At(request, to_row, head) : out_.At(request, to_row);
      if (copies_bits_) {
        ReadRow(rows_, rows_.Row(block, offset, head), to, stride);
        continue;
      }
      double* values = values_.data() + thread * count_;
      const int64_t slot = block * cache_.block_size() + offset;
      keys_ ? ReadKeyRow(cache_, slot, head, values) : ReadValueRow(cache_, slot, head, values);
      if (const float scale = scaled_ ? ScaleAt(scales_, request, head) : 1; scale != 1) {
        for (int64_t i = 0; i < count_; ++i) values[i] *= scale;
      }
      std::byte* row = converted_.data() + thread * count_ * bytes;
      StoreElements(out_.dtype, values, count_, row);
      CopyElements(bytes, row, bytes, to, stride, count_);
    }
  }

 private:
  ConstKvCacheView cache_;
  bool keys_;
  ConstTensorView scales_;
  TensorView out_;
  int64_t count_;  // values of a row
  bool scaled_;
  bool copies_bits_;
  ConstRowLayout rows_;         // if it copies
  std::vector<double> values_;  // a row per thread, if it does not
  std::vector<std::byte> converted_;
};

}  // namespace

absl::Status HostOps::Run(const Checked<GatherCacheArgs>& call) const {
  const ExecContext& context = call.context();
  const GatherCacheArgs& args = call.args();
  const ConstKvCacheView& cache = args.cache;
  int64_t longest = 0;
  const int64_t num_requests = args.lengths.extent[0];
  for (int64_t b = 0; b < num_requests; ++b) longest = std::max(longest, IndexAt(args.lengths, b));
  if (longest == 0 || cache.num_slots() == 0) return absl::OkStatus();

  const int num_threads = NumThreads(context.threads);
  const bool has_values = !IsMla(cache.layout);
  RowGatherer keys(cache, true, args.scales.k, args.out, num_threads);
  RowGatherer values(cache, !has_values, args.scales.v, has_values ? args.out_v : args.out,
                     num_threads);
  const int64_t block_size = cache.block_size();
  const int64_t pieces = CeilDiv(longest, kTokensPerItem);
  ParallelFor(context.threads, num_requests * pieces, [&](int64_t item, int thread) {
    const int64_t request = item / pieces;
    const int64_t count = IndexAt(args.lengths, request);
    const int64_t first = IndexAt(args.seq_lens, request) - count;
    const int64_t begin = item % pieces * kTokensPerItem;
    const int64_t end = std::min(begin + kTokensPerItem, count);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = first + i;
      const int64_t block =
          *reinterpret_cast<const int32_t*>(args.block_table.At(request, position / block_size));
      keys.Gather(request, block, position % block_size, args.row_offset + i, thread);
      if (has_values) {
        values.Gather(request, block, position % block_size, args.row_offset + i, thread);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
