#include "kvblocks/attention_masks.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_join.h"
#include "attention/cache/element_rows.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kSplitFuseSize = 2048;
constexpr int64_t kMlaSize = 512;
constexpr int64_t kMaxExtent = int64_t{1} << 31;

const char* NameOf(MaskEncoding encoding) {
  static constexpr const char* kNames[] = {"additive", "finite additive", "marker"};
  const auto index = static_cast<size_t>(encoding);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

bool HidesLater(int64_t i, int64_t j) { return j > i; }
bool HidesOutOfWindow(int64_t window, int64_t i, int64_t j) { return j > i || i - j >= window; }
bool HidesOffStride(int64_t stride, int64_t i, int64_t j) {
  return j > i || (i - j >= stride && (i - j) % stride != 0);
}

// Sets bits [begin, end), little-endian.
void SetBits(std::byte* bytes, int64_t begin, int64_t end) {
  for (; begin < end && begin % 8 != 0; ++begin) bytes[begin / 8] |= std::byte(1 << begin % 8);
  const int64_t whole = std::max<int64_t>(0, end - begin) / 8;
  std::memset(bytes + begin / 8, 0xff, static_cast<size_t>(whole));
  for (begin += 8 * whole; begin < end; ++begin) bytes[begin / 8] |= std::byte(1 << begin % 8);
}

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
  return InvalidArgument(
      "MaskedValue: no ", NameOf(encoding), " mask of ", Name(dtype),
      "; markers are bool, i8, u8 or floats, additive masks floats, finite additive ones f16");
}

namespace {

absl::StatusOr<ShardRows> RowsOf(const ContextParallelShard& shard) {
  if (shard.num_tokens < 1 || shard.num_tokens > kMaxExtent) {
    return InvalidArgument("context parallel mask: num_tokens is ", shard.num_tokens,
                           "; it must be 1 to ", kMaxExtent);
  }
  if (shard.num_ranks < 1 || shard.rank < 0 || shard.rank >= shard.num_ranks) {
    return InvalidArgument("context parallel mask: rank is ", shard.rank, " of ", shard.num_ranks,
                           "; it must be 0 to num_ranks - 1");
  }
  return ShardRows::Of(shard.num_tokens, shard.num_ranks, shard.rank);
}

}  // namespace

MaskRule WindowRule(int64_t window) {
  const auto hides = [window](int64_t i, int64_t j, std::string_view) {
    return HidesOutOfWindow(window, i, j);
  };
  const auto bounds = [window](int64_t i, std::string_view) {
    const int64_t begin = std::max<int64_t>(0, i - window + 1);
    return MaskRowBounds{begin, i + 1, begin, i + 1};
  };
  return {hides, bounds, ""};
}

MaskRule SinkWindowRule(int64_t num_sinks, int64_t window) {
  const auto hides = [num_sinks, window](int64_t i, int64_t j, std::string_view) {
    return j > i || (j >= num_sinks && HidesOutOfWindow(window, i, j));
  };
  const auto bounds = [window](int64_t i, std::string_view) {
    return MaskRowBounds{0, i + 1, std::max<int64_t>(0, i - window + 1), i + 1};
  };
  return {hides, bounds, ""};
}

MaskRule StridedRule(int64_t stride) {
  const auto hides = [stride](int64_t i, int64_t j, std::string_view) {
    return HidesOffStride(stride, i, j);
  };
  const auto bounds = [stride](int64_t i, std::string_view) {
    return MaskRowBounds{0, i + 1, std::max<int64_t>(0, i - stride + 1), i + 1};
  };
  return {hides, bounds, ""};
}

absl::StatusOr<std::vector<int64_t>> ContextParallelPositions(const ContextParallelShard& shard) {
  KVBLOCKS_ASSIGN_OR_RETURN(const ShardRows rows, RowsOf(shard));
  std::vector<int64_t> positions(static_cast<size_t>(rows.size()));
  for (int64_t row = 0; row < rows.size(); ++row) positions[row] = rows.Position(row);
  return positions;
}

struct AttentionMaskBuilder::Impl {
  enum class Kind : uint8_t {
    kCausal,
    kSplitFuse,
    kWindow,
    kStrided,
    kMla,
    kContextParallel,
    kCustom
  };
  struct Key {
    Kind kind = Kind::kCausal;
    DType dtype = DType::kBool;
    MaskEncoding encoding = MaskEncoding::kMarker;
    DeviceKind device_kind = DeviceKind::kHost;
    int8_t device_ordinal = 0;
    int64_t rows = 0, columns = 0;  // 0 for causal masks, which grow
    int64_t window = 0;             // or stride
    int64_t num_ranks = 0, rank = 0;
    int64_t generation = 0;
    std::string params;

    auto operator<=>(const Key&) const = default;
  };
  struct Registration {
    MaskRule rule;
    int64_t generation = 0;
  };
  using Rule = absl::FunctionRef<bool(int64_t i, int64_t j)>;

  Key MakeKey(Kind kind, MaskElement element) const;
  // Of a dense mask, or ResourceExhausted beyond max_mask_bytes.
  absl::StatusOr<int64_t> BytesOf(const char* what, DType dtype, int64_t rows,
                                  int64_t columns) const;
  // The cached mask of at least rows x columns, or a new one by the rule.
  absl::StatusOr<MaskRef> GetOrMake(const Key& key, int64_t rows, int64_t columns, Rule hides);
  absl::StatusOr<MaskRef> Materialise(const Key& key, int64_t rows, int64_t columns,
                                      Rule hides) const;
  absl::StatusOr<Registration> Find(const std::string& name,
                                    const std::optional<std::string>& params) const;
  // FailedPrecondition during a capture; `what` cannot be made then.
  absl::Status CheckNoCapture(const std::string& what) const;
  // Zeros, or ResourceExhausted.
  absl::StatusOr<std::shared_ptr<std::byte[]>> Allocate(const char* what, int64_t bytes) const;
  // Where the mask is used: its own storage on the host, else a copy on the device.
  absl::StatusOr<MaskRef> Place(std::shared_ptr<std::byte[]> host, int64_t bytes, DType dtype,
                                absl::Span<const int64_t> extents) const;

  explicit Impl(Options options) : options_(std::move(options)) {}

  const Options options_;
  mutable std::mutex mutex_;
  int captures_ = 0;                                // guarded by mutex_
  int64_t last_generation_ = 0;                     // guarded by mutex_
  std::map<Key, MaskRef> masks_;                    // guarded by mutex_
  std::map<std::string, Registration> registered_;  // guarded by mutex_
};

AttentionMaskBuilder::AttentionMaskBuilder(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

AttentionMaskBuilder::~AttentionMaskBuilder() = default;

DeviceId AttentionMaskBuilder::device() const { return impl_->options_.device; }

AttentionMaskBuilder::Impl::Key AttentionMaskBuilder::Impl::MakeKey(Kind kind,
                                                                    MaskElement element) const {
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
    return InvalidArgument("Causal: n is ", n, "; it must be 1 to ", kMaxExtent);
  }
  const int64_t capacity = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto mask,
                            impl_->GetOrMake(impl_->MakeKey(Impl::Kind::kCausal, element), capacity,
                                             capacity, HidesLater));
  return TopLeft(mask, n, n);
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::SplitFuse(DType dtype) {
  auto mask =
      impl_->GetOrMake(impl_->MakeKey(Impl::Kind::kSplitFuse, {dtype, MaskEncoding::kMarker}),
                       kSplitFuseSize, kSplitFuseSize, HidesLater);
  if (mask.ok()) mask->form = MaskForm::kTemplate;
  return mask;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::SlidingWindow(const WindowMaskSpec& spec) {
  if (spec.window < 1) {
    return InvalidArgument("SlidingWindow: window is ", spec.window,
                           "; it must be at least 1, which is the query itself");
  }
  if (spec.size < 1 || spec.size > kMaxExtent) {
    return InvalidArgument("SlidingWindow: size is ", spec.size, "; it must be 1 to ", kMaxExtent);
  }
  if (spec.form != MaskForm::kShared && spec.form != MaskForm::kTemplate) {
    return InvalidArgument("SlidingWindow: form must be kShared or kTemplate");
  }
  if (spec.form == MaskForm::kTemplate && spec.window >= spec.size &&
      spec.pre_tokens != spec.window - 1) {
    return InvalidArgument("SlidingWindow: a template of ", spec.size, " cannot tell a window of ",
                           spec.window, "; use it in mode 4 with pre_tokens = ", spec.window - 1,
                           " (given: ", spec.pre_tokens, ") or take a larger template");
  }
  Impl::Key key = impl_->MakeKey(Impl::Kind::kWindow, spec.element);
  key.rows = key.columns = spec.size;
  key.window = std::min(spec.window, spec.size);
  auto mask = impl_->GetOrMake(key, spec.size, spec.size,
                        [&](int64_t i, int64_t j) { return HidesOutOfWindow(spec.window, i, j); });
  if (mask.ok()) mask->form = spec.form;
  return mask;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Strided(int64_t stride, int64_t n,
                                                      MaskElement element) {
  if (stride < 1 || n < 1 || n > kMaxExtent) {
    return InvalidArgument("Strided: stride is ", stride, ", n is ", n,
                           "; stride must be at least 1, n 1 to ", kMaxExtent);
  }
  Impl::Key key = impl_->MakeKey(Impl::Kind::kStrided, element);
  key.rows = key.columns = n;
  key.window = stride;
  return impl_->GetOrMake(key, n, n,
                          [&](int64_t i, int64_t j) { return HidesOffStride(stride, i, j); });
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Mla(MaskElement element) {
  return impl_->GetOrMake(impl_->MakeKey(Impl::Kind::kMla, element), kMlaSize, kMlaSize,
                          HidesLater);
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::PrefillContextParallel(
    const ContextParallelShard& shard, MaskElement element) {
  KVBLOCKS_ASSIGN_OR_RETURN(const ShardRows shard_rows, RowsOf(shard));
  if (shard_rows.size() == 0) {
    return InvalidArgument("PrefillContextParallel: rank ", shard.rank, " of ", shard.num_ranks,
                           " holds none of ", shard.num_tokens, " tokens; it needs no mask");
  }
  Impl::Key key = impl_->MakeKey(Impl::Kind::kContextParallel, element);
  key.rows = shard_rows.size();
  key.columns = shard.num_tokens;
  key.num_ranks = shard.num_ranks;
  key.rank = shard.rank;
  return impl_->GetOrMake(key, key.rows, key.columns,
                   [&](int64_t i, int64_t j) { return j > shard_rows.Position(i); });
}

absl::StatusOr<int64_t> AttentionMaskBuilder::Register(const std::string& name,
                                                       MaskGenerator generator, std::string params,
                                                       MaskBounds bounds) {
  if (name.empty()) return InvalidArgument("Register: the mask has no name");
  if (generator == nullptr) {
    return InvalidArgument("Register: mask '", name, "' has no generator");
  }
  std::lock_guard lock(impl_->mutex_);
  Impl::Registration& registration = impl_->registered_[name];
  const int64_t replaced = registration.generation;
  registration = {{std::move(generator), std::move(bounds), std::move(params)},
                  ++impl_->last_generation_};
  std::erase_if(impl_->masks_, [replaced](const auto& entry) {
    return replaced != 0 && entry.first.generation == replaced;
  });
  return impl_->last_generation_;
}

absl::StatusOr<AttentionMaskBuilder::Impl::Registration> AttentionMaskBuilder::Impl::Find(
    const std::string& name, const std::optional<std::string>& params) const {
  std::lock_guard lock(mutex_);
  const auto found = registered_.find(name);
  if (found == registered_.end()) {
    const std::string names = absl::StrJoin(
        registered_, ", ",
        [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); });
    return NotFound("Custom: no mask '", name, "'; registered: ", names.empty() ? "none" : names);
  }
  Registration registration = found->second;
  if (params.has_value()) registration.rule.params = *params;
  return registration;
}

absl::StatusOr<MaskRule> AttentionMaskBuilder::RuleOf(
    const std::string& name, const std::optional<std::string>& params) const {
  KVBLOCKS_ASSIGN_OR_RETURN(Impl::Registration registration, impl_->Find(name, params));
  return std::move(registration.rule);
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Custom(const CustomMaskSpec& spec) {
  if (spec.rows < 1 || spec.columns < 1 || spec.rows > kMaxExtent || spec.columns > kMaxExtent) {
    return InvalidArgument("Custom: the mask is [", spec.rows, ", ", spec.columns,
                           "]; extents must be 1 to ", kMaxExtent);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const Impl::Registration registration,
                            impl_->Find(spec.name, spec.params));
  const MaskRule& rule = registration.rule;
  Impl::Key key = impl_->MakeKey(Impl::Kind::kCustom, spec.element);
  key.rows = spec.rows;
  key.columns = spec.columns;
  key.generation = registration.generation;
  key.params = rule.params;
  return impl_->GetOrMake(key, spec.rows, spec.columns,
                   [&](int64_t i, int64_t j) { return rule.hides(i, j, rule.params); });
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Bits(const MaskRule& of_batch,
                                                   absl::Span<const MaskRows> requests) {
  int64_t num_bits = 0;
  for (const MaskRows& request : requests) {
    int64_t bits;
    if (request.first_position < 0 || request.num_rows < 0 || request.num_keys < 0 ||
        __builtin_mul_overflow(request.num_rows, request.num_keys, &bits) ||
        __builtin_add_overflow(num_bits, bits, &num_bits) || num_bits > INT64_MAX - 7) {
      return InvalidArgument("Bits: a request has ", request.num_rows, " rows from position ",
                             request.first_position, " over ", request.num_keys,
                             " keys; at least 0 each, and below 2^63 bits in all");
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(impl_->CheckNoCapture("the rows of a step"));
  const int64_t num_bytes = CeilDiv(num_bits, 8);
  KVBLOCKS_ASSIGN_OR_RETURN(auto host, impl_->Allocate("Bits", num_bytes));
  std::byte* const bytes = host.get();
  int64_t row_begin = 0;
  for (const MaskRows& request : requests) {
    const MaskRule& rule = request.rule != nullptr ? *request.rule : of_batch;
    for (int64_t row = 0; row < request.num_rows; ++row, row_begin += request.num_keys) {
      const int64_t i = request.first_position + row;
      const auto within = [&](int64_t from, int64_t key) {
        return std::clamp(key, from, request.num_keys);
      };
      MaskRowBounds known;
      if (rule.bounds != nullptr) known = rule.bounds(i, rule.params);
      const int64_t begin = within(0, known.begin), end = within(begin, known.end);
      const int64_t seen_begin = std::min(within(begin, known.seen_begin), end);
      const int64_t seen_end = std::min(within(seen_begin, known.seen_end), end);
      const auto ask = [&](int64_t from, int64_t to) {
        for (int64_t j = from; j < to; ++j) {
          if (rule.hides(i, j, rule.params)) SetBits(bytes, row_begin + j, row_begin + j + 1);
        }
      };
      SetBits(bytes, row_begin, row_begin + begin);
      ask(begin, seen_begin);
      ask(seen_end, end);
      SetBits(bytes, row_begin + end, row_begin + request.num_keys);
    }
  }
  absl::StatusOr<MaskRef> mask = impl_->Place(std::move(host), num_bytes, DType::kU8, {num_bytes});
  if (mask.ok()) mask->form = MaskForm::kRaggedBits;
  return mask;
}

absl::StatusOr<int64_t> AttentionMaskBuilder::Impl::BytesOf(const char* what, DType dtype,
                                                            int64_t rows, int64_t columns) const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, columns, &bytes) ||
      __builtin_mul_overflow(bytes, ElementBytes(dtype), &bytes) ||
      bytes > options_.max_mask_bytes) {
    return ResourceExhausted(what, ": a mask of ", rows, " x ", columns, " ", Name(dtype),
                             " exceeds ", options_.max_mask_bytes,
                             " bytes; use a template or raise Options::max_mask_bytes");
  }
  return bytes;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Pack(const MaskRef& mask) {
  if (mask.null() || mask.view.rank != 2) {
    return InvalidArgument("Pack: the mask is null or not [S1, S2]");
  }
  if (mask.view.contiguous()) return mask;
  if (!mask.view.device.on_host()) {
    return Unimplemented("Pack: the mask is on ", Name(mask.view.device), "; only host masks pack");
  }
  KVBLOCKS_RETURN_IF_ERROR(impl_->CheckNoCapture("a packed copy"));
  const int64_t rows = mask.view.extent[0], columns = mask.view.extent[1];
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t num_bytes,
                            impl_->BytesOf("Pack", mask.view.dtype, rows, columns));
  KVBLOCKS_ASSIGN_OR_RETURN(auto bytes, impl_->Allocate("Pack", num_bytes));
  const TensorView dense =
      TensorView::Contiguous(bytes.get(), mask.view.dtype, {rows, columns}, mask.view.device);
  CopyStrided(mask.view, dense);
  MaskRef packed = mask;
  packed.view = dense;
  packed.storage = std::move(bytes);
  return packed;
}

absl::Status AttentionMaskBuilder::Impl::CheckNoCapture(const std::string& what) const {
  std::lock_guard lock(mutex_);
  if (captures_ == 0) return absl::OkStatus();
  return FailedPrecondition("mask builder: ", what,
                            " cannot be made during a capture; make it before");
}

absl::StatusOr<std::shared_ptr<std::byte[]>> AttentionMaskBuilder::Impl::Allocate(const char* what,
                                                                            int64_t bytes) const {
  if (bytes > options_.max_mask_bytes) {
    return ResourceExhausted(what, ": a mask of ", bytes, " bytes exceeds ",
                             options_.max_mask_bytes,
                             "; use a template, take fewer new tokens per step, or raise "
                             "Options::max_mask_bytes");
  }
  std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]());
  if (memory != nullptr) return memory;
  return ResourceExhausted(what, ": no memory for a mask of ", bytes, " bytes");
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Impl::Place(std::shared_ptr<std::byte[]> host,
                                                    int64_t bytes, DType dtype,
                                                    absl::Span<const int64_t> extents) const {
  MaskRef mask;
  const std::byte* data = host.get();
  if (options_.device.kind == DeviceKind::kHost) {
    mask.storage = std::move(host);
  } else if (options_.upload == nullptr) {
    return Unimplemented("mask builder: no upload to ", Name(options_.device),
                         " was given; set Options::upload");
  } else {
    KVBLOCKS_ASSIGN_OR_RETURN(
        auto uploaded, options_.upload(options_.device, host.get(), static_cast<size_t>(bytes)));
    data = uploaded.get();
    mask.storage = std::move(uploaded);
  }
  mask.view = ConstTensorView::Contiguous(data, dtype, extents, options_.device);
  return mask;
}

void AttentionMaskBuilder::Clear() {
  std::lock_guard lock(impl_->mutex_);
  impl_->masks_.clear();
}

void AttentionMaskBuilder::BeginCapture() {
  std::lock_guard lock(impl_->mutex_);
  ++impl_->captures_;
}

void AttentionMaskBuilder::EndCapture() {
  std::lock_guard lock(impl_->mutex_);
  --impl_->captures_;
}

absl::StatusOr<MaskRef> AttentionMaskBuilder::Impl::GetOrMake(const Key& key, int64_t rows,
                                                        int64_t columns, Rule hides) {
  const auto covers = [&](const MaskRef& mask) {
    return mask.view.extent[0] >= rows && mask.view.extent[1] >= columns;
  };
  {
    std::lock_guard lock(mutex_);
    const auto found = masks_.find(key);
    if (found != masks_.end() && covers(found->second)) return found->second;
    if (captures_ > 0) {
      return FailedPrecondition(
          "mask builder: a mask of ", rows, " x ", columns, " ", Name(key.dtype),
          " is not there and cannot be made during a capture; prewarm it before");
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

absl::StatusOr<MaskRef> AttentionMaskBuilder::Impl::Materialise(const Key& key, int64_t rows,
                                                          int64_t columns, Rule hides) const {
  KVBLOCKS_ASSIGN_OR_RETURN(const double masked, MaskedValue(key.dtype, key.encoding));
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf("mask builder", key.dtype, rows, columns));
  auto host = Allocate("mask builder", bytes);  // zero is visible in every type
  if (!host.ok()) return host.status();
  const int64_t element_bytes = ElementBytes(key.dtype);
  std::byte hidden[8] = {};
  StoreElement(key.dtype, masked, hidden);
  std::byte* to = host->get();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j, to += element_bytes) {
      if (hides(i, j)) std::memcpy(to, hidden, element_bytes);
    }
  }

  absl::StatusOr<MaskRef> mask = Place(*std::move(host), bytes, key.dtype, {rows, columns});
  if (!mask.ok()) return mask;
  mask->encoding = key.encoding;
  mask->form = MaskForm::kShared;
  return mask;
}

}  // namespace kvblocks::attention
