// The operations that write, read and move cache rows, on views of any shape and stride: each is
// either refused by a status, or done without touching a byte outside the views' memory.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "attention/cache/cache_rows.h"
#include "attention/cpu/block_ops.h"
#include "checks/ceil_div.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_view.h"
#include "tests/fuzz/fuzz_input.h"

namespace kvblocks::attention {
namespace {

using fuzz::FuzzInput;

// No operation can tell a view that reaches past its allocation, so larger ones get no memory and
// their inputs are passed over.
constexpr int64_t kMostBytes = 1 << 16;
constexpr int64_t kMostElements = 1 << 20;

// A view of mostly the given shape, mostly dense, over memory as large as it reaches.
class FuzzedTensor {
 public:
  FuzzedTensor(FuzzInput& input, DType dtype, std::vector<int64_t> extents) {
    const uint8_t how = input.Byte();
    view_.dtype = how < 248 ? dtype : static_cast<DType>(input.Small(0, kNumDTypes - 1));
    if (how % 32 == 31) extents.resize(input.Small(0, kMaxRank), 1);
    view_.rank = static_cast<int8_t>(extents.size());
    int64_t dense = 1;
    double elements = 1;  // many share memory where strides are 0
    bool is_legal = true;
    for (int i = view_.rank - 1; i >= 0; --i) {
      const uint8_t change = how % 4 == 3 ? input.Byte() : 0;
      view_.extent[i] = change % 8 == 7 ? input.Wild(0, 4) : extents[i];
      view_.stride[i] = change / 8 % 4 == 3 ? input.Wild(0, 40) : dense;
      if (__builtin_mul_overflow(dense, view_.extent[i], &dense)) dense = 1;
      elements *= static_cast<double>(view_.extent[i]);
      is_legal = is_legal && view_.extent[i] >= 0 && view_.stride[i] >= 0;
    }
    int64_t bytes = 1;  // of a view that must be refused
    if (is_legal) {
      const auto span = view_.SpanBytes();
      if (span.ok()) bytes = *span;
      // As many as would take minutes are no fault.
      if (span.ok() && elements > static_cast<double>(kMostElements)) bytes = kMostBytes + 1;
    }
    fits_ = bytes <= kMostBytes;
    if (!fits_) return;
    memory_.resize(bytes);
    for (std::byte& byte : memory_) byte = static_cast<std::byte>(input.Byte());
    view_.data = memory_.data();
  }

  bool fits() const { return fits_; }
  const TensorView& view() const { return view_; }
  // Mostly numbers from low to high in all of the memory.
  template <typename T>
  void FillWithIndices(FuzzInput& input, int64_t low, int64_t high) {
    for (size_t at = 0; at + sizeof(T) <= memory_.size(); at += sizeof(T)) {
      const T index = static_cast<T>(input.Wild(low, high));
      std::memcpy(&memory_[at], &index, sizeof(T));
    }
  }
  void FillWithScales(FuzzInput& input) {
    for (size_t at = 0; at + sizeof(float) <= memory_.size(); at += sizeof(float)) {
      const float scale = static_cast<float>(input.Byte()) / 16;
      std::memcpy(&memory_[at], &scale, sizeof(scale));
    }
  }

 private:
  std::vector<std::byte> memory_;
  TensorView view_;
  bool fits_ = false;
};

void ExpectRefusedOrDone(const absl::Status& status) {
  FUZZ_EXPECT(status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
                  status.code() == absl::StatusCode::kOutOfRange ||
                  status.code() == absl::StatusCode::kResourceExhausted,
              status.ToString());
  FUZZ_EXPECT(status.ok() || !status.message().empty(), status.ToString());
}

struct Sizes {
  int64_t num_blocks, block_size, heads, dim;
};

// K and V of a cache of the layout; for kMlaLatent V is made of K.
std::vector<int64_t> KeyExtents(KvLayout layout, DType dtype, const Sizes& s) {
  const int64_t x = 16 / ElementBytes(dtype);
  switch (layout) {
    case KvLayout::kPagedX:
      return {s.num_blocks, s.heads, CeilDiv(s.dim, x), s.block_size, x};
    case KvLayout::kNhd:
      return {s.num_blocks, s.block_size, s.heads, s.dim};
    case KvLayout::kHnd:
      return {s.num_blocks, s.heads, s.block_size, s.dim};
    case KvLayout::kMlaFp8_656:
      return {s.num_blocks, s.block_size, 656};
    case KvLayout::kMlaFp8_584:
      return {s.num_blocks, MlaFp8_584BlockBytes(s.block_size)};
    default:
      return {s.num_blocks, s.block_size, s.dim + 2};
  }
}
std::vector<int64_t> ValueExtents(KvLayout layout, const Sizes& s) {
  switch (layout) {
    case KvLayout::kPagedX:
      return {s.num_blocks, s.heads, s.dim, s.block_size};
    case KvLayout::kHnd:
      return {s.num_blocks, s.heads, s.block_size, s.dim};
    case KvLayout::kMlaSplit:
      return {s.num_blocks, s.block_size, 2};
    default:
      return {s.num_blocks, s.block_size, s.heads, s.dim};
  }
}

struct FuzzedCache {
  FuzzedCache(FuzzInput& input, KvLayout layout, DType dtype, const Sizes& sizes)
      : k(input, dtype, KeyExtents(layout, dtype, sizes)),
        v(input, dtype, ValueExtents(layout, sizes)),
        view(layout, k.view()) {
    if (!IsMla(layout) || layout == KvLayout::kMlaSplit) view.v = v.view();
    if (layout == KvLayout::kMlaLatent && k.fits()) {
      const auto latent = MakeMlaLatentView(k.view(), sizes.dim);
      if (latent.ok()) view = *latent;
    }
    if (layout == KvLayout::kMlaFp8_584) view.planar_block_size = input.Wild(1, sizes.block_size);
  }
  bool fits() const { return k.fits() && v.fits(); }

  FuzzedTensor k, v;
  KvCacheView view;
};

void Run(FuzzInput& input) {
  const DType dtypes[] = {DType::kF32,    DType::kF16,    DType::kBF16, DType::kF64,
                          DType::kF8E4M3, DType::kF8E5M2, DType::kI8,   DType::kU8};
  const int64_t op = input.Small(0, 7);
  const auto layout = static_cast<KvLayout>(input.Small(0, 6));
  const Sizes sizes = {input.Small(0, 3), input.Small(1, 4), input.Small(1, 2), input.Small(1, 9)};
  const DType from = dtypes[input.Small(0, 7)];
  const bool fp8 = layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
  const DType to = fp8 ? DType::kU8 : dtypes[input.Small(0, 7)];
  const int64_t tokens = input.Small(0, 5), slots = sizes.num_blocks * sizes.block_size;
  const FuzzedCache cache(input, layout, to, sizes);
  FuzzedTensor scale(input, DType::kF32, {input.Bool() ? 1 : sizes.heads});
  if (!cache.fits() || !scale.fits()) return;
  scale.FillWithScales(input);
  const ConstTensorView scales =
      IsQuantizedCode(to) && input.Bool() ? scale.view() : ConstTensorView();

  if (op == 0) {
    const int64_t x = 16 / ElementBytes(to);
    const int64_t dim = layout == KvLayout::kPagedX ? RoundUp(sizes.dim, x) : sizes.dim;
    const FuzzedTensor k(input, from, {tokens, sizes.heads, dim});
    const FuzzedTensor v(input, from, {tokens, sizes.heads, sizes.dim});
    FuzzedTensor mapping(input, DType::kI64, {input.Wild(0, tokens)});
    if (!k.fits() || !v.fits() || !mapping.fits()) return;
    mapping.FillWithIndices<int64_t>(input, -1, slots);
    ReshapeAndCacheArgs args;
    args.k = k.view(), args.v = v.view(), args.slot_mapping = mapping.view();
    args.cache = cache.view;
    args.scales = {scales, scales};
    ExpectRefusedOrDone(CpuReference().ReshapeAndCache({}, args));
  } else if (op == 1) {
    const int64_t latent = layout == KvLayout::kMlaFp8_656   ? 512
                           : layout == KvLayout::kMlaFp8_584 ? 448
                           : layout == KvLayout::kMlaSplit   ? sizes.dim + 2
                                                             : sizes.dim;
    const FuzzedTensor kv_c(input, from, {tokens, latent});
    const FuzzedTensor k_pe(input, from, {tokens, fp8 ? 64 : 2});
    FuzzedTensor mapping(input, DType::kI64, {tokens});
    if (!kv_c.fits() || !k_pe.fits() || !mapping.fits()) return;
    mapping.FillWithIndices<int64_t>(input, -1, slots);
    ConcatAndCacheMlaArgs args;
    args.kv_c = kv_c.view(), args.k_pe = k_pe.view(), args.slot_mapping = mapping.view();
    args.cache = cache.view;
    args.scale = scales;
    ExpectRefusedOrDone(CpuReference().ConcatAndCacheMla({}, args));
  } else if (op == 2) {
    const FuzzedTensor k(input, from, {tokens, sizes.heads, sizes.dim});
    const FuzzedTensor k_scale(input, DType::kF32, {sizes.heads});
    const FuzzedTensor v_scale(input, DType::kF32, {1});
    if (!k.fits() || !k_scale.fits() || !v_scale.fits()) return;
    ComputeKvScalesArgs args;
    args.k = args.v = k.view();
    args.k_scale = k_scale.view(), args.v_scale = v_scale.view();
    args.k_divisor = static_cast<float>(input.Wild(1, 200));
    ExpectRefusedOrDone(CpuReference().ComputeKvScales({}, args));
  } else if (op == 3) {
    const int64_t requests = input.Small(0, 2), columns = input.Small(0, 3);
    const int64_t rows = input.Small(0, 6);
    FuzzedTensor table(input, DType::kI32, {requests, columns});
    FuzzedTensor seq_lens(input, DType::kI32, {requests}), lengths(input, DType::kI32, {requests});
    if (!table.fits() || !seq_lens.fits() || !lengths.fits()) return;
    table.FillWithIndices<int32_t>(input, 0, sizes.num_blocks);
    seq_lens.FillWithIndices<int32_t>(input, 0, columns * sizes.block_size);
    lengths.FillWithIndices<int32_t>(input, 0, 3);
    const bool mla = IsMla(layout);
    // What a broken cache says of its rows must not decide sizes here.
    const int64_t width = fp8 ? (layout == KvLayout::kMlaFp8_656 ? 576 : 512) : sizes.dim + 2;
    const int64_t x = 16 / ElementBytes(to);
    const int64_t dim = layout == KvLayout::kPagedX ? RoundUp(sizes.dim, x) : sizes.dim;
    const FuzzedTensor out(input, from,
                           mla ? std::vector<int64_t>{requests, rows, width}
                               : std::vector<int64_t>{requests, rows, sizes.heads, dim});
    const FuzzedTensor out_v(input, from, {requests, rows, sizes.heads, sizes.dim});
    if (!out.fits() || !out_v.fits()) return;
    GatherCacheArgs args;
    args.cache = cache.view;
    args.block_table = table.view(), args.seq_lens = seq_lens.view(), args.lengths = lengths.view();
    args.row_offset = input.Wild(0, 3);
    args.scales.k = scales;
    args.out = out.view();
    if (!mla) args.out_v = out_v.view(), args.scales.v = scales;
    ExpectRefusedOrDone(CpuReference().GatherCache({}, args));
  } else if (op == 4) {
    const BlockPair pairs[] = {
        {input.Wild32(0, sizes.num_blocks), input.Wild32(0, sizes.num_blocks)},
        {input.Wild32(0, sizes.num_blocks), input.Wild32(0, sizes.num_blocks)}};
    const auto some = absl::MakeConstSpan(pairs, input.Small(0, 2));
    ExpectRefusedOrDone(CopyBlocks({}, {&cache.view, 1}, some));
    ExpectRefusedOrDone(FillBlocks({}, cache.view, {&pairs[0].first, 1}, std::byte{0xFF}));
  } else if (op == 5) {
    const auto other_layout = input.Bool() ? layout : static_cast<KvLayout>(input.Small(0, 6));
    const FuzzedCache other(input, other_layout, to, sizes);
    if (!other.fits()) return;
    const BlockPair pair = {input.Wild32(0, sizes.num_blocks), input.Wild32(0, sizes.num_blocks)};
    ExpectRefusedOrDone(SwapBlocks({}, cache.view, other.view, {&pair, 1}));
    ExpectRefusedOrDone(ConvertLayout({}, cache.view, other.view));
  } else if (op == 6) {
    KvCacheGeometry geometry;
    geometry.layout = layout;
    geometry.dtype = to;
    geometry.num_blocks = input.Wild(0, 3), geometry.block_size = input.Wild(1, 4);
    geometry.num_kv_heads = input.Wild(1, 1);
    geometry.key_dim = input.Wild(1, 16), geometry.value_dim = input.Wild(1, 16);
    geometry.placement = input.Bool() ? KvPlacement::kKThenV : KvPlacement::kInterleaved;
    geometry.block_padding_bytes = input.Bool() ? 0 : input.Wild(0, 16);
    ExpectRefusedOrDone(KvCacheShape(geometry).status());
    ExpectRefusedOrDone(StrideOrder(geometry, input.Bool()).status());
    const auto bytes = KvCacheBytes(geometry);
    ExpectRefusedOrDone(bytes.status());
    if (!bytes.ok() || *bytes > kMostBytes) return;
    std::vector<std::byte> memory(*bytes);
    const auto view =
        MakeKvCacheView(geometry, TensorView::Contiguous(memory.data(), DType::kU8, {*bytes}));
    FUZZ_EXPECT(view.ok(), view.status().ToString());
    // Rows of a cache without blocks may be of any length.
    if (view->num_slots() == 0) return;
    std::vector<double> row(std::max(view->key_dim(), view->value_dim()));
    for (int64_t slot = 0; slot < view->num_slots(); ++slot) {
      for (int64_t head = 0; head < view->num_kv_heads(); ++head) {
        ReadKeyRow(*view, slot, head, row.data());
        ReadValueRow(*view, slot, head, row.data());
      }
    }
  } else {
    const FuzzedTensor flat(input, to, {2, sizes.num_blocks, slots * sizes.heads * sizes.dim});
    if (!flat.fits()) return;
    ExpectRefusedOrDone(
        SplitKvCache(flat.view(), input.Wild(1, sizes.heads), input.Wild(1, sizes.dim), layout)
            .status());
  }
}

}  // namespace
}  // namespace kvblocks::attention

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  kvblocks::attention::Run(input);
  return 0;
}
