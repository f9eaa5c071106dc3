#include "attention/testing/paged_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/algorithm/container.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

constexpr int32_t kTableGarbage = 2147480000;
constexpr std::byte kScalePoison{0xff};

void StorePoison(DType dtype, std::byte* to) {
  if (dtype == DType::kI8) {
    *to = std::byte{0x80};
  } else {
    StoreElement(dtype, std::numeric_limits<double>::quiet_NaN(), to);
  }
}

template <typename Visit>
void ForEachElement(const ConstTensorView& view, const Visit& visit) {
  const int64_t count = view.num_elements();
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n, offset = 0;
    for (int i = view.rank - 1; i >= 0; --i) {
      offset += rest % view.extent[i] * view.stride[i];
      rest /= view.extent[i];
    }
    visit(n, offset * ElementBytes(view.dtype));
  }
}

}  // namespace

double UniformDraw(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

double NormalDraw(std::mt19937_64& random) {
  const uint64_t bits = random();
  const int64_t sum =
      (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
  return static_cast<double>(sum - 2 * 0xFFFF) / 0xFFFF * 1.7320508075688772;
}

std::vector<double> NormalDraws(std::mt19937_64& random, int64_t count) {
  std::vector<double> draws(count);
  for (double& draw : draws) draw = NormalDraw(random);
  return draws;
}

int64_t IntegerDraw(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

Tensor::Tensor(DType dtype, std::vector<int64_t> extents) {
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  bytes.resize(std::max<int64_t>(1, count) * ElementBytes(dtype));
  view = TensorView::Contiguous(bytes.data(), dtype, absl::MakeConstSpan(extents));
}

void Tensor::Set(const std::vector<double>& values) {
  ForEachElement(view, [&](int64_t n, int64_t at) {
    StoreElement(view.dtype, values[n], view.data + at);
  });
}

std::vector<double> Tensor::Get() const { return ValuesOf(view); }

std::vector<double> ValuesOf(const ConstTensorView& view) {
  std::vector<double> values(view.num_elements());
  ForEachElement(view, [&](int64_t n, int64_t at) {
    values[n] = LoadElement(view.dtype, view.data + at);
  });
  return values;
}

Tensor FloatTensor(const std::vector<double>& values) {
  Tensor tensor(DType::kF32, {static_cast<int64_t>(values.size())});
  tensor.Set(values);
  return tensor;
}

Tensor IntTensor(const std::vector<double>& values, std::vector<int64_t> extents) {
  Tensor tensor(DType::kI32, std::move(extents));
  tensor.Set(values);
  return tensor;
}

std::vector<int64_t> CacheExtents(bool key, KvLayout layout, DType dtype, int64_t blocks,
                                  int64_t block_size, int64_t heads, int64_t dim) {
  const int64_t x = 16 / ElementBytes(dtype);
  if (layout == KvLayout::kNhd) return {blocks, block_size, heads, dim};
  if (layout == KvLayout::kHnd) return {blocks, heads, block_size, dim};
  if (key) return {blocks, heads, dim / x, block_size, x};
  return {blocks, heads, dim, block_size};
}

Tensor SlotTensor(const std::vector<double>& slots) {
  Tensor tensor(DType::kI64, {static_cast<int64_t>(slots.size())});
  tensor.Set(slots);
  return tensor;
}

std::vector<double> Part(const std::vector<double>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

void FillWithPoison(Tensor& tensor) {
  const int64_t size = ElementBytes(tensor.view.dtype);
  for (size_t at = 0; at < tensor.bytes.size(); at += size) {
    StorePoison(tensor.view.dtype, tensor.bytes.data() + at);
  }
}

PagedCase::PagedCase(const PagedCaseOptions& options) : options_(options) {
  if (options_.q_lens.empty()) options_.q_lens.assign(options.lengths.size(), 1);
  std::mt19937_64 random(options.seed);
  const int64_t R = num_requests(), H = options.num_heads, Hkv = options.num_kv_heads;
  const int64_t D = options.key_dim, Dv = options.value_dim, BS = options.block_size;
  query_start_.assign(1, 0);
  for (int64_t q_len : options_.q_lens) query_start_.push_back(query_start_.back() + q_len);
  const int64_t T = num_tokens();

  // Block 0 is the null block, the last one belongs to nobody.
  int64_t columns = 0;
  num_blocks_ = 2;
  for (int64_t length : options.lengths) {
    columns = std::max(columns, CeilDiv(length, BS));
    num_blocks_ += CeilDiv(length, BS);
  }
  columns += 2;
  const int64_t NB = num_blocks_;
  cache_.layout = options.layout;
  if (options.format != KvRowFormat::kElements) {
    KvCacheGeometry geometry;
    geometry.layout = options.layout;
    geometry.dtype = options.cache_dtype;
    geometry.format = options.format;
    geometry.num_blocks = NB, geometry.block_size = BS, geometry.num_kv_heads = Hkv;
    geometry.key_dim = D, geometry.value_dim = Dv;
    geometry.placement = KvPlacement::kInterleaved;
    k_bytes = Tensor(DType::kU8, {KvCacheBytes(geometry).value()});
    absl::c_fill(k_bytes.bytes, kScalePoison);
    cache_ = MakeKvCacheView(geometry, k_bytes.view).value();
  } else {
    const auto extents = [&](bool key) {
      return CacheExtents(key, options.layout, options.cache_dtype, NB, BS, Hkv, key ? D : Dv);
    };
    if (options.interleave_kv && D == Dv && options.layout != KvLayout::kPagedX) {
      std::vector<int64_t> both = extents(true);
      both.insert(both.begin() + 1, 2);
      k_bytes = Tensor(options.cache_dtype, both);
      cache_.k = k_bytes.view.Select(1, 0).value();
      cache_.v = k_bytes.view.Select(1, 1).value();
    } else {
      k_bytes = Tensor(options.cache_dtype, extents(true));
      v_bytes = Tensor(options.cache_dtype, extents(false));
      cache_.k = k_bytes.view, cache_.v = v_bytes.view;
      FillWithPoison(v_bytes);
    }
    FillWithPoison(k_bytes);
  }

  params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
  if (cache_.takes_scale()) {
    using Scales = PagedCaseOptions::Scales;
    for (Tensor* scales : {&k_scales, &v_scales}) {
      *scales = options.scales == Scales::kPerRequest
                    ? Tensor(DType::kF32, {R, Hkv})
                    : Tensor(DType::kF32, {options.scales == Scales::kOne ? 1 : Hkv});
      std::vector<double> values(scales->view.num_elements());
      for (double& value : values) value = 0.02 + 0.03 * UniformDraw(random);
      scales->Set(values);
    }
    params.scales.k = k_scales.view;
    params.scales.v = v_scales.view;
  }

  std::vector<double> ids(NB - 2);
  std::iota(ids.begin(), ids.end(), 1);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[IntegerDraw(random, 0, i - 1)]);
  std::vector<double> table(R * columns, kTableGarbage);
  size_t next = 0;
  for (int64_t b = 0; b < R; ++b) {
    for (int64_t c = 0; c < CeilDiv(options.lengths[b], BS); ++c)
      table[b * columns + c] = ids[next++];
  }
  block_table = IntTensor(table, {R, columns});
  seq_lens = IntTensor({options.lengths.begin(), options.lengths.end()}, {R});
  query_start_loc = IntTensor({query_start_.begin(), query_start_.end()}, {R + 1});

  q = Tensor(options.q_dtype, {T, H + 2 * Hkv, D});
  FillWithPoison(q);
  q.view = q.view.Slice(1, 0, H).value();
  std::vector<double> queries = NormalDraws(random, T * H * D);
  for (double& value : queries) value *= options.q_factor;
  if (options.q_dtype == DType::kF8E4M3) {
    const bool one = options.scales == PagedCaseOptions::Scales::kOne;
    q_scales = Tensor(DType::kF32, {one ? 1 : Hkv});
    std::vector<double> values(q_scales.view.num_elements());
    for (double& value : values) value = options.q_factor * (0.02 + 0.03 * UniformDraw(random));
    q_scales.Set(values);
    params.scales.q = q_scales.view;
  }
  const auto scale_of = [&](size_t i) { return QueryScaleOf(static_cast<int64_t>(i) / D % H); };
  for (size_t i = 0; i < queries.size(); ++i) queries[i] /= scale_of(i);
  q.Set(queries);
  queries = q.Get();
  for (size_t i = 0; i < queries.size(); ++i) queries[i] *= scale_of(i);

  requests_.resize(R);
  for (int64_t b = 0; b < R; ++b) {
    DenseRequest& request = requests_[b];
    request.q_len = options_.q_lens[b];
    request.kv_len = options.lengths[b];
    request.num_heads = H, request.num_kv_heads = Hkv;
    request.key_dim = D, request.value_dim = Dv;
    request.q.assign(queries.begin() + query_start_[b] * H * D,
                     queries.begin() + query_start_[b + 1] * H * D);
    request.k.resize(request.kv_len * Hkv * D);
    request.v.resize(request.kv_len * Hkv * Dv);
    for (int64_t j = 0; j < request.kv_len; ++j) {
      for (int64_t h = 0; h < Hkv; ++h) {
        Store(true, b, j, h, NormalDraws(random, D).data());
        Store(false, b, j, h, NormalDraws(random, Dv).data());
      }
    }
  }
  const bool codes = options.q_dtype == DType::kF8E4M3;
  out = Tensor(codes ? options.out_dtype : options.q_dtype, {T, H, Dv});
  lse = Tensor(DType::kF32, {T, H});
  ClearOutputs();
}

std::byte* PagedCase::Element(bool key, int64_t slot, int64_t kv_head, int64_t d) {
  const TensorView& view = key ? cache_.k : cache_.v;
  const int64_t block = slot / options_.block_size, offset = slot % options_.block_size;
  switch (cache_.layout) {
    case KvLayout::kPagedX:
      if (!key) return view.At(block, kv_head, d, offset);
      return view.At(block, kv_head, d / view.extent[4], offset, d % view.extent[4]);
    case KvLayout::kNhd:
      return view.At(block, offset, kv_head, d);
    default:
      return view.At(block, kv_head, offset, d);
  }
}

double PagedCase::ScaleOf(bool key, int64_t b, int64_t kv_head) const {
  const ConstTensorView scales = key ? k_scales.view : v_scales.view;
  if (scales.absent()) return 1;
  if (scales.rank == 2) return LoadElement(scales.dtype, scales.At(b, kv_head));
  return LoadElement(scales.dtype, scales.At(scales.extent[0] == 1 ? 0 : kv_head));
}

double PagedCase::QueryScaleOf(int64_t head) const {
  const ConstTensorView scales = q_scales.view;
  if (scales.absent()) return 1;
  const int64_t kv_head = head / (options_.num_heads / options_.num_kv_heads);
  return LoadElement(scales.dtype, scales.At(scales.extent[0] == 1 ? 0 : kv_head));
}

int64_t PagedCase::SlotOf(int64_t b, int64_t j) const {
  const int64_t BS = options_.block_size;
  return block_table.view.as<int32_t>()[b * block_table.view.extent[1] + j / BS] * BS + j % BS;
}

void PagedCase::StoreQuantised(bool key, int64_t b, int64_t j, int64_t kv_head, const double* row,
                               double* plain) {
  const int64_t dim = key ? options_.key_dim : options_.value_dim;
  const TensorView& codes = key ? cache_.k : cache_.v;
  const TensorView& scales = key ? cache_.k_scales : cache_.v_scales;
  const int64_t slot = SlotOf(b, j);
  int64_t at[2] = {slot % options_.block_size, kv_head};
  if (cache_.layout == KvLayout::kHnd) std::swap(at[0], at[1]);
  std::byte* to = codes.At(slot / options_.block_size, at[0], at[1]);
  std::byte* scale_at = scales.At(slot / options_.block_size, at[0], at[1]);
  // Neighbours have scales that differ by much.
  std::mt19937_64 random((b * 4096 + j) * 64 + kv_head * 2 + (key ? 1 : 0));
  const double spread = 0.5 + UniformDraw(random);
  const auto store_nibble = [&](int64_t d, unsigned code) {
    const int shift = d % 2 == 0 ? 0 : 4;
    to[d / 2] = (to[d / 2] & static_cast<std::byte>(0xf0 >> shift)) |
                static_cast<std::byte>(code << shift);
  };
  switch (cache_.format) {
    case KvRowFormat::kPerTokenHead: {
      const float scale = static_cast<float>(0.03 * spread);
      std::copy_n(reinterpret_cast<const std::byte*>(&scale), 4, scale_at);
      for (int64_t d = 0; d < dim; ++d) {
        StoreElement(codes.dtype, row[d] / scale, to + d);
        plain[d] = LoadElement(codes.dtype, to + d) * scale;
      }
      return;
    }
    case KvRowFormat::kInt4PerTokenHead: {
      const int zero = static_cast<int>(IntegerDraw(random, 5, 10));
      const float scale = static_cast<float>(0.4 * spread);
      const uint32_t bits = std::bit_cast<uint32_t>(scale) / 16 * 16;
      const uint32_t stored = bits + static_cast<uint32_t>(zero);
      std::copy_n(reinterpret_cast<const std::byte*>(&stored), 4, scale_at);
      for (int64_t d = 0; d < dim; ++d) {
        const int code = static_cast<int>(std::clamp(std::round(row[d] / scale) + zero, 0.0, 15.0));
        store_nibble(d, static_cast<unsigned>(code));
        plain[d] = (code - zero) * static_cast<double>(std::bit_cast<float>(bits));
      }
      return;
    }
    default: {
      static constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const double outer = ScaleOf(key, b, kv_head);
      for (int64_t d = 0; d < dim; ++d) {
        std::byte* group = scale_at + d / 16;
        if (d % 16 == 0) {
          StoreElement(DType::kF8E4M3, (0.3 + 0.6 * UniformDraw(random)) / outer, group);
        }
        const double scale = LoadElement(DType::kF8E4M3, group) * outer;
        const double magnitude = std::abs(row[d]) / scale;
        unsigned code = 0;
        while (code < 7 && magnitude > (kE2M1[code] + kE2M1[code + 1]) / 2) ++code;
        plain[d] = (row[d] < 0 ? -1 : 1) * kE2M1[code] * scale;
        store_nibble(d, code | (row[d] < 0 ? 8 : 0));
      }
      return;
    }
  }
}

void PagedCase::Store(bool key, int64_t b, int64_t j, int64_t kv_head, const double* row) {
  const int64_t dim = key ? options_.key_dim : options_.value_dim;
  const double scale = ScaleOf(key, b, kv_head);
  std::vector<double>& plain = key ? requests_[b].k : requests_[b].v;
  if (options_.format != KvRowFormat::kElements) {
    return StoreQuantised(key, b, j, kv_head, row,
                          plain.data() + (j * options_.num_kv_heads + kv_head) * dim);
  }
  for (int64_t d = 0; d < dim; ++d) {
    std::byte* at = Element(key, SlotOf(b, j), kv_head, d);
    StoreElement(options_.cache_dtype, row[d] / scale, at);
    plain[(j * options_.num_kv_heads + kv_head) * dim + d] =
        LoadElement(options_.cache_dtype, at) * scale;
  }
}

void PagedCase::SetKey(int64_t b, int64_t j, int64_t kv_head, const std::vector<double>& row) {
  Store(true, b, j, kv_head, row.data());
}

void PagedCase::SetValue(int64_t b, int64_t j, int64_t kv_head, const std::vector<double>& row) {
  Store(false, b, j, kv_head, row.data());
}

void PagedCase::SetQuery(int64_t t, int64_t head, const std::vector<double>& row) {
  const int64_t b =
      std::upper_bound(query_start_.begin(), query_start_.end(), t) - query_start_.begin() - 1;
  for (int64_t d = 0; d < options_.key_dim; ++d) {
    std::byte* at = q.view.At(t, head, d);
    const double scale = QueryScaleOf(head);
    StoreElement(options_.q_dtype, row[d] / scale, at);
    requests_[b].q[((t - query_start_[b]) * options_.num_heads + head) * options_.key_dim + d] =
        LoadElement(options_.q_dtype, at) * scale;
  }
}

void PagedCase::ClearOutputs() {
  FillWithPoison(out);
  FillWithPoison(lse);
}

PagedDecodeArgs PagedCase::DecodeArgs() {
  PagedDecodeArgs args;
  args.q = q.view;
  args.cache = cache_;
  args.block_table = block_table.view;
  args.seq_lens = seq_lens.view;
  for (int64_t length : options_.lengths) args.max_seq_len = std::max(args.max_seq_len, length);
  args.params = params;
  args.out = out.view;
  args.lse = lse.view;
  return args;
}

PagedPrefillArgs PagedCase::PrefillArgs() {
  const PagedDecodeArgs decode = DecodeArgs();
  PagedPrefillArgs args;
  args.q = decode.q;
  args.cache = decode.cache;
  args.query_start_loc = query_start_loc.view;
  args.seq_lens = decode.seq_lens;
  args.block_table = decode.block_table;
  args.max_seq_len = decode.max_seq_len;
  for (int64_t q_len : options_.q_lens) args.max_query_len = std::max(args.max_query_len, q_len);
  if (!query_positions.empty()) {
    positions = IntTensor({query_positions.begin(), query_positions.end()}, {num_tokens()});
    args.query_positions = positions.view;
  }
  args.params = params;
  args.out = decode.out;
  args.lse = decode.lse;
  return args;
}

VarlenSelfAttentionArgs PagedCase::VarlenArgs() {
  const PagedPrefillArgs prefill = PrefillArgs();
  std::vector<double> starts = {0}, keys, values;
  for (int64_t b = 0; b < num_requests(); ++b) {
    const DenseRequest& request = requests_[b];
    starts.push_back(starts.back() + static_cast<double>(request.kv_len));
    const auto append = [&](bool key, const std::vector<double>& from, std::vector<double>& to) {
      const int64_t dim = key ? options_.key_dim : options_.value_dim;
      for (size_t i = 0; i < from.size(); ++i) {
        const int64_t kv_head = static_cast<int64_t>(i) / dim % options_.num_kv_heads;
        to.push_back(from[i] / ScaleOf(key, b, kv_head));
      }
    };
    append(true, request.k, keys);
    append(false, request.v, values);
  }
  const int64_t rows = static_cast<int64_t>(starts.back());
  kv_start_loc = IntTensor(starts, {num_requests() + 1});
  k_rows = Tensor(options_.cache_dtype, {rows, options_.num_kv_heads, options_.key_dim});
  k_rows.Set(keys);
  v_rows = Tensor(options_.cache_dtype, {rows, options_.num_kv_heads, options_.value_dim});
  v_rows.Set(values);
  VarlenSelfAttentionArgs args;
  args.q = prefill.q;
  args.k = k_rows.view;
  args.v = v_rows.view;
  args.query_start_loc = prefill.query_start_loc;
  args.kv_start_loc = kv_start_loc.view;
  args.query_positions = prefill.query_positions;
  args.params = params;
  args.out = prefill.out;
  args.lse = prefill.lse;
  return args;
}

DenseParams ToDense(const AttnParams& params) {
  DenseParams dense;
  dense.scale = params.scale;
  dense.cap = params.soft_cap;
  dense.causal = params.causal;
  dense.window_left = params.window_left;
  dense.window_right = params.window_right;
  dense.chunk = params.chunk;
  if (!params.alibi_slopes.absent()) dense.alibi_slopes = ValuesOf(params.alibi_slopes);
  if (!params.sinks.absent()) dense.sinks = ValuesOf(params.sinks);
  dense.local_blocks = params.block_sparse.local_blocks;
  dense.vert_stride = params.block_sparse.vert_stride;
  dense.sparse_block_size = params.block_sparse.block_size;
  dense.head_sliding_step = params.block_sparse.head_sliding_step;
  dense.tp_rank = params.block_sparse.tp_rank;
  return dense;
}

DenseResult PagedCase::Expected() const {
  DenseResult all;
  DenseParams dense = ToDense(params);
  for (int64_t b = 0; b < num_requests(); ++b) {
    DenseRequest request = requests_[b];
    if (!query_positions.empty()) {
      request.positions.assign(query_positions.begin() + query_start_[b],
                               query_positions.begin() + query_start_[b + 1]);
    }
    if (hide) dense.hide = [&](int64_t i, int64_t j, int64_t h) { return hide(b, i, j, h); };
    if (bias) dense.bias = [&](int64_t i, int64_t j, int64_t h) { return bias(b, i, j, h); };
    Append(DenseAttention(request, dense), all);
  }
  return all;
}

std::string PagedCase::Mismatch(const Tolerance& tolerance) const {
  return attention::Mismatch(Expected(), out.view, lse.view, tolerance);
}

std::vector<std::byte> OutputBytes(const PagedCase& paged) {
  std::vector<std::byte> bytes = paged.out.bytes;
  bytes.insert(bytes.end(), paged.lse.bytes.begin(), paged.lse.bytes.end());
  return bytes;
}

void PagedCase::SharePrefix(int64_t blocks) {
  int32_t* entries = block_table.view.as<int32_t>();
  const int64_t rows = blocks * options_.block_size * options_.num_kv_heads;
  for (int64_t b = 1; b < num_requests(); ++b) {
    if (options_.lengths[b] == 0) continue;
    std::copy_n(entries, blocks, entries + b * block_table.view.extent[1]);
    std::copy_n(requests_[0].k.begin(), rows * options_.key_dim, requests_[b].k.begin());
    std::copy_n(requests_[0].v.begin(), rows * options_.value_dim, requests_[b].v.begin());
  }
}

// The bytes of a block in one of the tensors of the cache, all of which have blocks first.
absl::Span<std::byte> PagedCase::BlockBytes(Tensor& tensor, int64_t block) const {
  const size_t size = tensor.bytes.size() / static_cast<size_t>(num_blocks_);
  return absl::MakeSpan(tensor.bytes).subspan(static_cast<size_t>(block) * size, size);
}

void PagedCase::PermuteBlocks(std::mt19937_64& random) {
  std::vector<int32_t> new_id(num_blocks_);
  std::iota(new_id.begin(), new_id.end(), 0);
  for (int64_t i = num_blocks_ - 1; i > 1; --i) {
    std::swap(new_id[i], new_id[IntegerDraw(random, 1, i)]);
  }
  for (Tensor* tensor : {&k_bytes, &v_bytes}) {
    const std::vector<std::byte> old = tensor->bytes;
    auto from = old.begin();
    for (int64_t block = 0; block < num_blocks_; ++block) {
      const absl::Span<std::byte> to = BlockBytes(*tensor, new_id[block]);
      std::copy_n(from, to.size(), to.begin());
      from += to.size();
    }
  }
  int32_t* entries = block_table.view.as<int32_t>();
  for (int64_t i = 0; i < block_table.view.num_elements(); ++i) {
    if (entries[i] != kTableGarbage) entries[i] = new_id[entries[i]];
  }
}

void PagedCase::KillBlocks(const std::function<bool(int64_t b, int64_t column)>& dead,
                           bool null_block) {
  int32_t* entries = block_table.view.as<int32_t>();
  const int64_t columns = block_table.view.extent[1];
  for (int64_t b = 0; b < num_requests(); ++b) {
    for (int64_t c = 0; c < CeilDiv(options_.lengths[b], options_.block_size); ++c) {
      if (!dead(b, c)) continue;
      int32_t& entry = entries[b * columns + c];
      for (Tensor* tensor : {&k_bytes, &v_bytes}) {
        absl::c_copy(BlockBytes(*tensor, 0), BlockBytes(*tensor, entry).begin());  // poison
      }
      entry = null_block ? 0 : static_cast<int32_t>(num_blocks_ - 1);
    }
  }
}

}  // namespace kvblocks::attention
