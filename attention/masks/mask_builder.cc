#include "kvblocks/attention/masks/mask_builder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/attention/cache/strided_copy.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kSplitFuseSize = 2048;
constexpr int64_t kMlaSize = 512;
constexpr int64_t kMaxExtent = int64_t{1} << 31;

const char* NameOf(MaskEncoding encoding) {
  switch (encoding) {
    case MaskEncoding::kAdditive:
      return "additive";
    case MaskEncoding::kAdditiveFinite:
      return "finite additive";
    case MaskEncoding::kMarker:
      return "marker";
  }
  return "unknown";
}

bool HidesLater(int64_t i, int64_t j) { return j > i; }

// [rows, columns] at the top left of a larger mask.
MaskRef TopLeft(const MaskRef& mask, int64_t rows, int64_t columns) {
  MaskRef corner = mask;
  corner.view.extent[0] = rows;
  corner.view.extent[1] = columns;
  if (rows == 1) corner.view.stride[0] = columns;  // carries no meaning: as if contiguous
  if (columns == 1) corner.view.stride[1] = 1;
  return corner;
}

}  // namespace

absl::StatusOr<double> MaskedValue(DType dtype, MaskEncoding encoding) {
  const bool integer = dtype == DType::kBool || dtype == DType::kI8 || dtype == DType::kU8;
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  if (encoding == MaskEncoding::kAdditive && IsComputeType(dtype)) return kMinusInfinity;
  if (encoding == MaskEncoding::kAdditiveFinite && dtype == DType::kF16) return -10000.0;
  if (encoding == MaskEncoding::kMarker && (integer || IsComputeType(dtype))) {
    return dtype == DType::kF16 ? kMinusInfinity : 1.0;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "MaskedValue: no ", NameOf(encoding), " mask of ", Name(dtype),
      "; markers are bool, i8, u8 or floats, additive masks floats, finite additive ones f16"));
}

namespace {

// The positions of a rank's rows: those of its two chunks, one after the other.
struct ShardRows {
  int64_t first_begin = 0, first_size = 0;
  int64_t second_begin = 0, second_size = 0;

  int64_t size() const { return first_size + second_size; }
  int64_t Position(int64_t row) const {
    return row < first_size ? first_begin + row : second_begin + row - first_size;
  }
};

absl::StatusOr<ShardRows> RowsOf(const ContextParallelShard& shard) {
  if (shard.num_tokens < 1 || shard.num_tokens > kMaxExtent) {
    return absl::InvalidArgumentError(absl::StrCat("context parallel mask: num_tokens is ",
                                                   shard.num_tokens, "; it must be 1 to ",
                                                   kMaxExtent));
  }
  if (shard.num_ranks < 1 || shard.rank < 0 || shard.rank >= shard.num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("context parallel mask: rank is ", shard.rank,
                                                   " of ", shard.num_ranks,
                                                   "; it must be 0 to num_ranks - 1"));
  }
  const int64_t num_chunks = 2 * int64_t{shard.num_ranks};
  const int64_t length = (shard.num_tokens + num_chunks - 1) / num_chunks;
  ShardRows rows;
  rows.first_begin = shard.rank * length;
  rows.second_begin = (num_chunks - 1 - shard.rank) * length;
  rows.first_size = std::clamp<int64_t>(shard.num_tokens - rows.first_begin, 0, length);
  rows.second_size = std::clamp<int64_t>(shard.num_tokens - rows.second_begin, 0, length);
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ContextParallelPositions(const ContextParallelShard& shard) {
  const absl::StatusOr<ShardRows> rows = RowsOf(shard);
  if (!rows.ok()) return rows.status();
  std::vector<int64_t> positions(static_cast<size_t>(rows->size()));
  for (int64_t row = 0; row < rows->size(); ++row) positions[row] = rows->Position(row);
  return positions;
}

AttentionMaskBuilder::AttentionMaskBuilder(Options options) : options_(std::move(options)) {}

AttentionMaskBuilder::Key AttentionMaskBuilder::MakeKey(Kind kind, MaskElement element) const {
  Key key;
  key.kind = kind;
  key.dtype = element.dtype;
  key.encoding = element.encoding;
  key.device_kind = options_.device.kind;
  key.device_ordinal = options_.device.ordinal;
  return key;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Causal(int64_t n, MaskElement element) {
  if (n < 1 || n > kMaxExtent) {
    return absl::InvalidArgumentError(
        absl::StrCat("Causal: n is ", n, "; it must be 1 to ", kMaxExtent));
  }
  const int64_t capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const auto mask = GetOrMake(MakeKey(Kind::kCausal, element), capacity, capacity, HidesLater);
  if (!mask.ok()) return mask.status();
  return TopLeft(*mask, n, n);
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::SplitFuse(DType dtype) {
  auto mask = GetOrMake(MakeKey(Kind::kSplitFuse, {dtype, MaskEncoding::kMarker}), kSplitFuseSize,
                        kSplitFuseSize, HidesLater);
  if (mask.ok()) mask->form = MaskForm::kTemplate;
  return mask;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::SlidingWindow(const WindowMaskSpec& spec) {
  if (spec.window < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("SlidingWindow: window is ", spec.window,
                     "; it must be at least 1, which is the query itself"));
  }
  if (spec.size < 1 || spec.size > kMaxExtent) {
    return absl::InvalidArgumentError(
        absl::StrCat("SlidingWindow: size is ", spec.size, "; it must be 1 to ", kMaxExtent));
  }
  if (spec.form != MaskForm::kShared && spec.form != MaskForm::kTemplate) {
    return absl::InvalidArgumentError("SlidingWindow: form must be kShared or kTemplate");
  }
  if (spec.form == MaskForm::kTemplate && spec.window >= spec.size &&
      spec.pre_tokens != spec.window - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("SlidingWindow: a template of ", spec.size, " cannot tell a window of ",
                     spec.window, "; use it in mode 4 with pre_tokens = ", spec.window - 1,
                     " (given: ", spec.pre_tokens, ") or take a larger template"));
  }
  Key key = MakeKey(Kind::kWindow, spec.element);
  key.rows = key.columns = spec.size;
  key.window = std::min(spec.window, spec.size);
  auto mask = GetOrMake(key, spec.size, spec.size,
                        [&](int64_t i, int64_t j) { return j > i || i - j >= spec.window; });
  if (mask.ok()) mask->form = spec.form;
  return mask;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Strided(int64_t stride, int64_t n,
                                                      MaskElement element) {
  if (stride < 1 || n < 1 || n > kMaxExtent) {
    return absl::InvalidArgumentError(absl::StrCat("Strided: stride is ", stride, ", n is ", n,
                                                   "; stride must be at least 1, n 1 to ",
                                                   kMaxExtent));
  }
  Key key = MakeKey(Kind::kStrided, element);
  key.rows = key.columns = n;
  key.window = stride;
  return GetOrMake(key, n, n, [&](int64_t i, int64_t j) {
    return j > i || (i - j >= stride && (i - j) % stride != 0);
  });
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Mla(MaskElement element) {
  return GetOrMake(MakeKey(Kind::kMla, element), kMlaSize, kMlaSize, HidesLater);
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::PrefillContextParallel(
    const ContextParallelShard& shard, MaskElement element) {
  const absl::StatusOr<ShardRows> shard_rows = RowsOf(shard);
  if (!shard_rows.ok()) return shard_rows.status();
  if (shard_rows->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("PrefillContextParallel: rank ", shard.rank,
                                                   " of ", shard.num_ranks, " holds none of ",
                                                   shard.num_tokens, " tokens; it needs no mask"));
  }
  Key key = MakeKey(Kind::kContextParallel, element);
  key.rows = shard_rows->size();
  key.columns = shard.num_tokens;
  key.num_ranks = shard.num_ranks;
  key.rank = shard.rank;
  return GetOrMake(key, key.rows, key.columns,
                   [&](int64_t i, int64_t j) { return j > shard_rows->Position(i); });
}

absl::StatusOr<int64_t> AttentionMaskBuilder::Register(const std::string& name,
                                                       MaskGenerator generator,
                                                       std::string params) {
  if (name.empty()) return absl::InvalidArgumentError("Register: the mask has no name");
  if (generator == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("Register: mask '", name, "' has no generator"));
  }
  std::lock_guard lock(mutex_);
  Registration& registration = registered_[name];
  const int64_t replaced = registration.generation;
  registration = {std::move(generator), std::move(params), ++last_generation_};
  std::erase_if(masks_, [replaced](const auto& entry) {
    return replaced != 0 && entry.first.generation == replaced;
  });
  return last_generation_;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Custom(const CustomMaskSpec& spec) {
  if (spec.rows < 1 || spec.columns < 1 || spec.rows > kMaxExtent || spec.columns > kMaxExtent) {
    return absl::InvalidArgumentError(absl::StrCat("Custom: the mask is [", spec.rows, ", ",
                                                   spec.columns, "]; extents must be 1 to ",
                                                   kMaxExtent));
  }
  Registration registration;
  {
    std::lock_guard lock(mutex_);
    const auto found = registered_.find(spec.name);
    if (found == registered_.end()) {
      const std::string names = absl::StrJoin(
          registered_, ", ",
          [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); });
      return absl::NotFoundError(absl::StrCat("Custom: no mask '", spec.name,
                                              "'; registered: ", names.empty() ? "none" : names));
    }
    registration = found->second;
  }
  Key key = MakeKey(Kind::kCustom, spec.element);
  key.rows = spec.rows;
  key.columns = spec.columns;
  key.generation = registration.generation;
  key.params = spec.params.has_value() ? *spec.params : registration.params;
  return GetOrMake(key, spec.rows, spec.columns,
                   [&](int64_t i, int64_t j) { return registration.generator(i, j, key.params); });
}

absl::StatusOr<int64_t> AttentionMaskBuilder::BytesOf(const char* what, DType dtype, int64_t rows,
                                                      int64_t columns) const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, columns, &bytes) ||
      __builtin_mul_overflow(bytes, ElementBytes(dtype), &bytes) ||
      bytes > options_.max_mask_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, ": a mask of ", rows, " x ", columns, " ", Name(dtype), " exceeds ",
        options_.max_mask_bytes, " bytes; use a template or raise Options::max_mask_bytes"));
  }
  return bytes;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Pack(const MaskRef& mask) {
  if (mask.null() || mask.view.rank != 2) {
    return absl::InvalidArgumentError("Pack: the mask is null or not [S1, S2]");
  }
  if (mask.view.contiguous()) return mask;
  if (!mask.view.device.on_host()) {
    return absl::UnimplementedError(
        absl::StrCat("Pack: the mask is on ", Name(mask.view.device), "; only host masks pack"));
  }
  {
    std::lock_guard lock(mutex_);
    if (captures_ > 0) {
      return absl::FailedPreconditionError(
          "Pack: a packed copy would be allocated during a capture; pack before it");
    }
  }
  const int64_t rows = mask.view.extent[0], columns = mask.view.extent[1];
  const absl::StatusOr<int64_t> num_bytes = BytesOf("Pack", mask.view.dtype, rows, columns);
  if (!num_bytes.ok()) return num_bytes.status();
  std::shared_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[*num_bytes]);
  if (bytes == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("Pack: no memory for ", *num_bytes, " bytes"));
  }
  const TensorView dense =
      TensorView::Contiguous(bytes.get(), mask.view.dtype, {rows, columns}, mask.view.device);
  CopyStrided(mask.view, dense);
  MaskRef packed = mask;
  packed.view = dense;
  packed.storage = std::move(bytes);
  return packed;
}

void AttentionMaskBuilder::Clear() {
  std::lock_guard lock(mutex_);
  masks_.clear();
}

void AttentionMaskBuilder::BeginCapture() {
  std::lock_guard lock(mutex_);
  ++captures_;
}

void AttentionMaskBuilder::EndCapture() {
  std::lock_guard lock(mutex_);
  --captures_;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::GetOrMake(const Key& key, int64_t rows,
                                                        int64_t columns, Rule hides) {
  const auto covers = [&](const MaskRef& mask) {
    return mask.view.extent[0] >= rows && mask.view.extent[1] >= columns;
  };
  {
    std::lock_guard lock(mutex_);
    const auto found = masks_.find(key);
    if (found != masks_.end() && covers(found->second)) return found->second;
    if (captures_ > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("mask builder: a mask of ", rows, " x ", columns, " ", Name(key.dtype),
                       " is not there and cannot be made during a capture; prewarm it before"));
    }
  }
  absl::StatusOr<MaskRef> made = Materialise(key, rows, columns, hides);
  if (!made.ok()) return made;

  std::lock_guard lock(mutex_);
  MaskRef& entry = masks_[key];
  // Another thread may have been faster; all get its storage.
  if (entry.null() || !covers(entry)) entry = *std::move(made);
  return entry;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Materialise(const Key& key, int64_t rows,
                                                          int64_t columns, Rule hides) const {
  const absl::StatusOr<double> masked = MaskedValue(key.dtype, key.encoding);
  if (!masked.ok()) return masked.status();
  const bool on_host = options_.device.kind == DeviceKind::kHost;
  if (!on_host && options_.upload == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "mask builder: no upload to ", Name(options_.device), " was given; set Options::upload"));
  }
  const absl::StatusOr<int64_t> bytes = BytesOf("mask builder", key.dtype, rows, columns);
  if (!bytes.ok()) return bytes.status();
  std::shared_ptr<std::byte[]> host(new (std::nothrow) std::byte[*bytes]);
  if (host == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mask builder: no memory for a mask of ", *bytes, " bytes"));
  }
  std::memset(host.get(), 0, *bytes);  // zero is visible in every type
  const int64_t element_bytes = ElementBytes(key.dtype);
  std::byte hidden[8] = {};
  StoreElement(key.dtype, *masked, hidden);
  std::byte* to = host.get();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j, to += element_bytes) {
      if (hides(i, j)) std::memcpy(to, hidden, element_bytes);
    }
  }

  MaskRef mask;
  mask.encoding = key.encoding;
  mask.form = MaskForm::kShared;
  const std::byte* data = host.get();
  if (on_host) {
    mask.storage = std::move(host);
  } else {
    auto uploaded = options_.upload(options_.device, host.get(), static_cast<size_t>(*bytes));
    if (!uploaded.ok()) return uploaded.status();
    data = uploaded->get();
    mask.storage = *std::move(uploaded);
  }
  mask.view = ConstTensorView::Contiguous(data, key.dtype, {rows, columns}, options_.device);
  return mask;
}

}  // namespace kvblocks::attention
