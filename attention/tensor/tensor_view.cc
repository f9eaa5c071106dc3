#include "kvblocks/tensor_view.h"

#include <array>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention {
namespace {

bool MultiplyAdd(int64_t a, int64_t b, int64_t* sum) {
  int64_t product;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum);
}

absl::Status BadDim(int dim, int rank) {
  return InvalidArgument("dimension ", dim, " of a view of rank ", rank, "; use 0 to ", rank - 1);
}

// a * b, or -1 beyond int64.
int64_t ProductOrMinusOne(absl::Span<const int64_t> extents) {
  int64_t product = 1;
  for (int64_t extent : extents) {
    if (extent == 0) return 0;
  }
  for (int64_t extent : extents) {
    if (__builtin_mul_overflow(product, extent, &product)) return -1;
  }
  return product;
}

absl::Status TooManyElements(absl::Span<const int64_t> extents) {
  return InvalidArgument("shape [", absl::StrJoin(extents, ", "), "] has more than 2^63 elements");
}

}  // namespace

std::string Name(DeviceId device) {
  switch (device.kind) {
    case DeviceKind::kHost:
      return "host";
    case DeviceKind::kPinnedHost:
      return "pinned host";
    case DeviceKind::kCuda:
      break;
  }
  return absl::StrCat("cuda:", device.ordinal);
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Make(Byte* data, DType dtype,
                                                                  absl::Span<const int64_t> extents,
                                                                  absl::Span<const int64_t> strides,
                                                                  DeviceId device) {
  if (extents.size() > kMaxRank) {
    return InvalidArgument("a view of rank ", extents.size(), "; at most ", kMaxRank);
  }
  if (!strides.empty() && strides.size() != extents.size()) {
    return InvalidArgument(strides.size(), " strides for ", extents.size(),
                           " extents; give one each, or none");
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] < 0) {
      return InvalidArgument("extent ", extents[i], " of dimension ", i, "; at least 0");
    }
    if (!strides.empty() && strides[i] < 0) {
      return InvalidArgument("stride ", strides[i], " of dimension ", i, "; at least 0");
    }
  }
  if (ProductOrMinusOne(extents) < 0) return TooManyElements(extents);
  BasicTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int8_t>(extents.size());
  view.device = device;
  int64_t dense = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.extent[i] = extents[i];
    view.stride[i] = strides.empty() ? dense : strides[i];
    // Beyond int64 only next to a zero extent, where no stride matters.
    if (extents[i] > 1 && __builtin_mul_overflow(dense, extents[i], &dense)) dense = 1;
  }
  view.Canonicalize();
  if (!view.empty()) {
    KVBLOCKS_RETURN_IF_ERROR(view.SpanBytes().status());
    if (data == nullptr) {
      return InvalidArgument("null data for a view of ", view.num_elements(), " elements");
    }
  }
  return view;
}

template <typename Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::Contiguous(Byte* data, DType dtype,
                                                        absl::Span<const int64_t> extents,
                                                        DeviceId device) {
  absl::StatusOr<BasicTensorView> view = Make(data, dtype, extents, {}, device);
  return std::move(view).value();
}

template <typename Byte>
void BasicTensorView<Byte>::Canonicalize() {
  int64_t dense = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (extent[i] == 1) {
      stride[i] = dense;
    } else if (__builtin_mul_overflow(stride[i], extent[i], &dense)) {
      dense = 1;  // the view is empty or about to be refused
    }
  }
}

template <typename Byte>
bool BasicTensorView<Byte>::contiguous() const {
  if (empty()) return true;
  int64_t dense = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (extent[i] != 1 && stride[i] != dense) return false;
    if (__builtin_mul_overflow(dense, extent[i], &dense)) return false;  // not a legal view
  }
  return true;
}

template <typename Byte>
absl::StatusOr<int64_t> BasicTensorView<Byte>::SpanBytes() const {
  for (int i = 0; i < rank; ++i) {
    if (extent[i] == 0) return 0;
  }
  int64_t last = 0;
  bool fits = true;
  for (int i = 0; i < rank; ++i) fits = fits && MultiplyAdd(extent[i] - 1, stride[i], &last);
  int64_t bytes = 0;
  fits = fits && last < std::numeric_limits<int64_t>::max() &&
         MultiplyAdd(last + 1, ElementBytes(dtype), &bytes);
  if (!fits) {
    return InvalidArgument(DebugString(),
                           ": its farthest element is more than 2^63 bytes away; shrink it");
  }
  return bytes;
}

template <typename Byte>
absl::Status BasicTensorView<Byte>::Validate(int64_t span_bytes) const {
  if (rank < 0 || rank > kMaxRank) {
    return InvalidArgument("rank ", rank, "; 0 to ", kMaxRank);
  }
  for (int i = 0; i < rank; ++i) {
    if (extent[i] < 0 || stride[i] < 0) {
      return InvalidArgument("dimension ", i, " has extent ", extent[i], " and stride ", stride[i],
                             "; neither may be negative");
    }
  }
  const auto extents = absl::MakeConstSpan(extent.data(), rank);
  if (ProductOrMinusOne(extents) < 0) return TooManyElements(extents);
  absl::StatusOr<int64_t> bytes = SpanBytes();
  if (!bytes.ok()) return bytes.status();
  if (*bytes > 0 && data == nullptr) {
    return InvalidArgument(DebugString(), " has no data");
  }
  if (*bytes > span_bytes) {
    return OutOfRange(DebugString(), " reaches ", *bytes, " bytes into an allocation of ",
                      span_bytes);
  }
  return absl::OkStatus();
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Slice(int dim, int64_t begin,
                                                                   int64_t end) const {
  if (dim < 0 || dim >= rank) return BadDim(dim, rank);
  if (begin < 0 || end < begin || end > extent[dim]) {
    return InvalidArgument("slice [", begin, ", ", end, ") of dimension ", dim, " of extent ",
                           extent[dim]);
  }
  BasicTensorView result = *this;
  result.extent[dim] = end - begin;
  // What has no elements may have strides of any size.
  if (!result.empty()) result.data = data + begin * stride[dim] * ElementBytes(dtype);
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Select(int dim, int64_t index) const {
  if (dim < 0 || dim >= rank) return BadDim(dim, rank);
  if (index < 0 || index >= extent[dim]) {
    return InvalidArgument("index ", index, " of dimension ", dim, " of extent ", extent[dim]);
  }
  BasicTensorView result = *this;
  if (!empty()) result.data = data + index * stride[dim] * ElementBytes(dtype);
  for (int i = dim; i + 1 < rank; ++i) {
    result.extent[i] = extent[i + 1];
    result.stride[i] = stride[i + 1];
  }
  --result.rank;
  result.extent[result.rank] = 1;
  result.stride[result.rank] = 0;
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Permute(
    absl::Span<const int> order) const {
  unsigned seen = 0;
  for (int dim : order) {
    if (dim < 0 || dim >= rank) return BadDim(dim, rank);
    seen |= 1u << dim;
  }
  if (static_cast<int>(order.size()) != rank || seen != (1u << rank) - 1) {
    return InvalidArgument("[", absl::StrJoin(order, ", "), "] is no permutation of ", rank,
                           " dimensions");
  }
  BasicTensorView result = *this;
  for (int i = 0; i < rank; ++i) {
    result.extent[i] = extent[order[i]];
    result.stride[i] = stride[order[i]];
  }
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Unsqueeze(int dim) const {
  if (dim < 0 || dim > rank) return BadDim(dim, rank + 1);
  if (rank == kMaxRank) {
    return InvalidArgument("a view has at most ", kMaxRank, " dimensions");
  }
  BasicTensorView result = *this;
  for (int i = rank; i > dim; --i) {
    result.extent[i] = extent[i - 1];
    result.stride[i] = stride[i - 1];
  }
  result.extent[dim] = 1;
  ++result.rank;
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Reshape(
    absl::Span<const int64_t> extents) const {
  absl::StatusOr<BasicTensorView> dense = Make(data, dtype, extents, {}, device);
  if (!dense.ok()) return dense.status();
  if (dense->num_elements() != num_elements()) {
    return InvalidArgument(DebugString(), " does not have the ", dense->num_elements(),
                           " elements of [", absl::StrJoin(extents, ", "), "]");
  }
  if (empty()) return dense;
  // Match runs of old dimensions that are dense among themselves with runs of new ones.
  BasicTensorView result = *dense;
  int old_dim = 0, new_dim = 0;
  while (new_dim < result.rank || old_dim < rank) {
    int64_t old_run = 1, new_run = 1;
    const int old_begin = old_dim, new_begin = new_dim;
    do {
      const bool take_old = old_dim < rank && (old_run <= new_run || new_dim == result.rank);
      if (take_old) {
        old_run *= extent[old_dim++];
      } else {
        new_run *= result.extent[new_dim++];
      }
    } while (old_run != new_run);
    // Extents of 1 do not break a run, a broadcast joins only others.
    constexpr int64_t kNone = -1, kBeyondReach = -2;
    int64_t step = 0, joined = kNone;  // the stride that joins the next dimension outwards
    for (int i = old_dim - 1; i >= old_begin; --i) {
      if (extent[i] == 1) continue;
      if (joined == kNone) {
        step = stride[i];
      } else if (stride[i] != joined) {
        return InvalidArgument(DebugString(), " is not a view as [", absl::StrJoin(extents, ", "),
                               "]; copy it");
      }
      if (__builtin_mul_overflow(stride[i], extent[i], &joined)) joined = kBeyondReach;
    }
    for (int i = new_dim - 1; i >= new_begin; --i) {
      result.stride[i] = step;
      if (__builtin_mul_overflow(step, result.extent[i], &step)) step = 0;
    }
  }
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::SplitLast(int64_t inner) const {
  if (rank == 0 || rank == kMaxRank || inner < 1 || extent[rank - 1] % inner != 0) {
    return InvalidArgument(DebugString(), ": its last dimension does not split into runs of ",
                           inner);
  }
  BasicTensorView result = *this;
  result.extent[rank - 1] = extent[rank - 1] / inner;
  // Overflows only where nothing is left to step to.
  if (__builtin_mul_overflow(stride[rank - 1], inner, &result.stride[rank - 1])) {
    result.stride[rank - 1] = 0;
  }
  result.extent[rank] = inner;
  result.stride[rank] = stride[rank - 1];
  ++result.rank;
  result.Canonicalize();
  return result;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Bitcast(DType to) const {
  const int64_t from_bytes = ElementBytes(dtype), to_bytes = ElementBytes(to);
  BasicTensorView result = *this;
  result.dtype = to;
  if (from_bytes == to_bytes) return result;
  const auto refuse = [&](const char* why) {
    return InvalidArgument(DebugString(), " cannot be seen as ", Name(to), ": ", why);
  };
  if (from_bytes != 1 && to_bytes != 1) return refuse("go through bytes");
  if (rank == 0) return refuse("it has no dimension to widen");
  if (extent[rank - 1] != 1 && stride[rank - 1] != 1) {
    return refuse("its innermost stride is not 1");
  }
  if (to_bytes == 1) {
    for (int i = 0; i + 1 < rank; ++i) {
      if (__builtin_mul_overflow(stride[i], from_bytes, &result.stride[i])) {
        return refuse("a stride overflows");
      }
    }
    if (__builtin_mul_overflow(extent[rank - 1], from_bytes, &result.extent[rank - 1]) ||
        ProductOrMinusOne(absl::MakeConstSpan(result.extent.data(), rank)) < 0) {
      return refuse("an extent overflows");
    }
    result.stride[rank - 1] = 1;
  } else {
    if (extent[rank - 1] % to_bytes != 0) return refuse("its innermost extent does not divide");
    for (int i = 0; i + 1 < rank; ++i) {
      if (extent[i] > 1 && stride[i] % to_bytes != 0) return refuse("a stride does not divide");
      result.stride[i] = stride[i] / to_bytes;
    }
    if (reinterpret_cast<uintptr_t>(data) % to_bytes != 0) return refuse("it is not aligned");
    result.extent[rank - 1] /= to_bytes;
    result.stride[rank - 1] = 1;
  }
  result.Canonicalize();
  return result;
}

template <typename Byte>
std::string BasicTensorView<Byte>::DebugString() const {
  std::string text = absl::StrCat(
      Name(dtype), "[", absl::StrJoin(absl::MakeConstSpan(extent.data(), rank), ", "), "]");
  if (!contiguous()) {
    absl::StrAppend(&text, " strides [",
                    absl::StrJoin(absl::MakeConstSpan(stride.data(), rank), ", "), "]");
  }
  if (!device.on_host()) absl::StrAppend(&text, " on ", Name(device));
  return text;
}

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> AsTokens(const BasicTensorView<Byte>& input,
                                               TokenLayout layout, int64_t num_heads) {
  const auto refuse = [&](const char* why) {
    return InvalidArgument(input.DebugString(), " as [tokens, ", num_heads, " heads, dim]: ", why);
  };
  // Next to an empty dimension the others may be of any size.
  const int64_t num_tokens = ProductOrMinusOne({input.extent[0], input.extent[1]});
  BasicTensorView<Byte> tokens = input;
  switch (layout) {
    case TokenLayout::kTND:
      if (input.rank != 3) return refuse("TND needs 3 dimensions");
      break;
    case TokenLayout::kBSND: {
      if (input.rank != 4) return refuse("BSND needs 4 dimensions");
      if (num_tokens < 0) return refuse("more than 2^63 tokens");
      KVBLOCKS_ASSIGN_OR_RETURN(auto merged,
                                input.Reshape({num_tokens, input.extent[2], input.extent[3]}));
      tokens = merged;
      break;
    }
    case TokenLayout::kBSH: {
      if (input.rank != 3) return refuse("BSH needs 3 dimensions");
      if (num_heads < 1 || input.extent[2] % num_heads != 0) {
        return refuse("the last dimension does not divide by the heads");
      }
      if (num_tokens < 0) return refuse("more than 2^63 tokens");
      KVBLOCKS_ASSIGN_OR_RETURN(
          auto merged, input.Reshape({num_tokens, num_heads, input.extent[2] / num_heads}));
      tokens = merged;
      break;
    }
    case TokenLayout::kBNSD: {
      if (input.rank != 4) return refuse("BNSD needs 4 dimensions");
      if (input.extent[0] != 1) return refuse("BNSD of several sequences is not token-contiguous");
      KVBLOCKS_ASSIGN_OR_RETURN(auto swapped, input.Select(0, 0)->Permute({1, 0, 2}));
      tokens = swapped;
      break;
    }
  }
  if (tokens.extent[1] != num_heads) return refuse("another number of heads");
  return tokens;
}

template struct BasicTensorView<std::byte>;
template struct BasicTensorView<const std::byte>;
template absl::StatusOr<TensorView> AsTokens(const TensorView&, TokenLayout, int64_t);
template absl::StatusOr<ConstTensorView> AsTokens(const ConstTensorView&, TokenLayout, int64_t);

namespace {

constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f64", true, 1.7976931348623157e308},
    {"f32", true, 3.4028234663852886e38},
    {"f16", true, 65504},
    {"bf16", true, 3.3895313892515355e38},
    {"f8e4m3", true, 448},
    {"f8e5m2", true, 57344},
    {"f8e8m0", true, 1.7014118346046923e38},
    {"i8", false, 127},
    {"u8", false, 255},
    {"bool", false, 1},
    {"i32", false, 2147483647},
    {"i64", false, 9223372036854775807.0},
}};

}  // namespace

const DTypeInfo& Info(DType dtype) { return kInfo[static_cast<uint8_t>(dtype)]; }

const char* Name(KvLayout layout) {
  static constexpr const char* kNames[] = {"paged_x",   "nhd",         "hnd",        "mla_latent",
                                           "mla_split", "mla_fp8_656", "mla_fp8_584"};
  const auto index = static_cast<size_t>(layout);
  return index < std::size(kNames) ? kNames[index] : "?";
}

const char* Name(KvRowFormat format) {
  static constexpr const char* kNames[] = {"elements",     "per_token_head", "int4_per_token_head",
                                           "nvfp4",        "mla_v41_528",    "mla_v41_fp4_288",
                                           "mla_nvfp4_352"};
  const auto index = static_cast<size_t>(format);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace kvblocks::attention
