// Views of tensors that others own: shapes, strides, devices.

#ifndef KVBLOCKS_TENSOR_VIEW_H_
#define KVBLOCKS_TENSOR_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/device_types.h"

// TensorView: a strided, typed window on memory that somebody else owns; what every attention
// operation takes and returns.
//
// Trivially copyable, at most 128 bytes, passable as a kernel argument. Strides count elements.
// Extents are >= 0; a view with a zero extent is empty and its data may be null. Strides are >= 0;
// stride 0 (a broadcast) is for inputs only. The stride of a dimension of extent 1 carries no
// meaning and is canonicalised to what a contiguous tensor would have, because copy engines reject
// odd strides even there. Unused dimensions have extent 1 and stride 0.
//
// The view algebra allocates nothing. What cannot be represented is an InvalidArgument.

namespace kvblocks::attention {

enum class DeviceKind : uint8_t { kHost, kPinnedHost, kCuda };

struct DeviceId {
  DeviceKind kind = DeviceKind::kHost;
  int8_t ordinal = 0;

  bool on_host() const { return kind != DeviceKind::kCuda; }
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};
// "host", "pinned host", "cuda:0".
std::string Name(DeviceId device);

inline constexpr int kMaxRank = 6;
using Extents = std::array<int64_t, kMaxRank>;

// The element type of an ordinary C++ type: float, double, int8_t, uint8_t, bool, int32_t, int64_t.
template <typename T>
constexpr DType DTypeOf() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, double>) return DType::kF64;
  if constexpr (std::is_same_v<U, float>) return DType::kF32;
  if constexpr (std::is_same_v<U, int8_t>) return DType::kI8;
  if constexpr (std::is_same_v<U, uint8_t> || std::is_same_v<U, std::byte>) return DType::kU8;
  if constexpr (std::is_same_v<U, bool>) return DType::kBool;
  if constexpr (std::is_same_v<U, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<U, int64_t>) return DType::kI64;
}

// `Byte` is std::byte (TensorView) or const std::byte (ConstTensorView).
template <typename Byte>
struct BasicTensorView {
  Byte* data = nullptr;  // first element
  Extents extent = {1, 1, 1, 1, 1, 1};
  Extents stride = {};
  DType dtype = DType::kF32;
  int8_t rank = 0;
  DeviceId device;

  constexpr BasicTensorView() = default;
  // A view that may be written converts to one that may not.
  template <typename Other,
            typename = std::enable_if_t<std::is_const_v<Byte> && !std::is_const_v<Other>>>
  constexpr BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: implicit on purpose
      : data(other.data),
        extent(other.extent),
        stride(other.stride),
        dtype(other.dtype),
        rank(other.rank),
        device(other.device) {}

  // Row-major. REQUIRES: at most kMaxRank extents, none negative, a product within int64 (CHECKed:
  // for shapes from outside use Make).
  static BasicTensorView Contiguous(Byte* data, DType dtype, absl::Span<const int64_t> extents,
                                    DeviceId device = {});
  static BasicTensorView Contiguous(Byte* data, DType dtype,
                                    std::initializer_list<int64_t> extents, DeviceId device = {}) {
    return Contiguous(data, dtype, absl::MakeConstSpan(extents.begin(), extents.size()), device);
  }
  // Any strides, checked; empty `strides` means row-major.
  static absl::StatusOr<BasicTensorView> Make(Byte* data, DType dtype,
                                              absl::Span<const int64_t> extents,
                                              absl::Span<const int64_t> strides,
                                              DeviceId device = {});

  // Whether the view was never set: no data and rank 0. Optional arguments are absent so.
  bool absent() const { return data == nullptr && rank == 0; }
  bool empty() const {
    for (int i = 0; i < rank; ++i) {
      if (extent[i] == 0) return true;
    }
    return false;
  }
  int64_t num_elements() const {
    // Next to a zero the other extents may be of any size.
    if (empty()) return 0;
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= extent[i];
    return product;
  }
  // Whether elements follow each other without gaps, in row-major order.
  bool contiguous() const;

  // Elements from the first to the element at the given indices, as many as there are dimensions.
  template <typename... Index>
  int64_t Offset(Index... index) const {
    int64_t offset = 0;
    int i = 0;
    ((offset += static_cast<int64_t>(index) * stride[i++]), ...);
    return offset;
  }
  // The address of an element; any type.
  template <typename... Index>
  Byte* At(Index... index) const {
    return data + Offset(index...) * ElementBytes(dtype);
  }
  // The elements as a C++ type of the same size. REQUIRES: aligned for T.
  template <typename T>
  auto* as() const {
    using Pointer = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
    return reinterpret_cast<Pointer>(data);
  }

  // That the farthest element lies inside an allocation of `span_bytes` bytes that starts at data,
  // and that strides and extents are legal; arithmetic is overflow-checked.
  absl::Status Validate(int64_t span_bytes) const;
  // Bytes from data to behind the farthest element, or OutOfRange if beyond int64.
  absl::StatusOr<int64_t> SpanBytes() const;

  // [begin, end) of a dimension.
  absl::StatusOr<BasicTensorView> Slice(int dim, int64_t begin, int64_t end) const;
  // One index of a dimension, which goes away.
  absl::StatusOr<BasicTensorView> Select(int dim, int64_t index) const;
  absl::StatusOr<BasicTensorView> Permute(absl::Span<const int> order) const;
  // A new dimension of extent 1 before `dim`; dim == rank appends.
  absl::StatusOr<BasicTensorView> Unsqueeze(int dim) const;
  // Only if the new shape is a view of the same memory.
  absl::StatusOr<BasicTensorView> Reshape(absl::Span<const int64_t> extents) const;
  // The last dimension n as (n / inner, inner).
  absl::StatusOr<BasicTensorView> SplitLast(int64_t inner) const;
  // Same element size; or bytes to and from wider elements where the innermost, dense dimension
  // and all strides divide.
  absl::StatusOr<BasicTensorView> Bitcast(DType to) const;

  // "bf16[4, 8, 128]" and, unless contiguous, " strides [...]".
  std::string DebugString() const;

 private:
  void Canonicalize();
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

static_assert(sizeof(TensorView) <= 128 && std::is_trivially_copyable_v<TensorView>);

// A row-major view on a span of C++ values: ViewOf(absl::MakeSpan(v), {2, 3}); REQUIRES: a shape of
// v.size() elements.
template <typename T>
auto ViewOf(absl::Span<T> values, std::initializer_list<int64_t> extents) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>::Contiguous(reinterpret_cast<Byte*>(values.data()), DTypeOf<T>(),
                                           extents);
}
template <typename T>
auto ViewOf(absl::Span<T> values) {
  return ViewOf(values, {static_cast<int64_t>(values.size())});
}

// How a batch of tokens is laid out in an input of queries, keys or values.
enum class TokenLayout {
  kTND,   // [tokens, heads, dim]
  kBSND,  // [batch, sequence, heads, dim]
  kBSH,   // [batch, sequence, heads * dim]
  kBNSD,  // [batch, heads, sequence, dim]
};

// The input as [tokens, num_heads, dim] without copying. BNSD of more than one sequence is not
// token-contiguous and refused. `num_heads` is needed for kBSH and checked for the others.
template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> AsTokens(const BasicTensorView<Byte>& input,
                                               TokenLayout layout, int64_t num_heads);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_TENSOR_VIEW_H_
