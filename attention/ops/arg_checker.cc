#include "attention/ops/arg_checker.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace kvblocks::attention {
namespace {

// "f32[2, 3]" without arithmetic, for views that may be nonsense.
std::string Describe(const ConstTensorView& view) {
  if (view.absent()) return "absent";
  const int rank = std::clamp<int>(view.rank, 0, kMaxRank);
  return absl::StrCat(Name(view.dtype), "[",
                      absl::StrJoin(absl::MakeConstSpan(view.extent.data(), rank), ", "), "]");
}

std::string Describe(std::initializer_list<Dim*> dims) {
  std::string text = "[";
  for (const Dim* dim : dims) {
    if (text.size() > 1) text += ", ";
    text += dim->name;
  }
  return text + "]";
}

uintptr_t Address(const ConstTensorView& view) { return reinterpret_cast<uintptr_t>(view.data); }

// Bytes from the first to behind the last of the dimensions whose stride `inner` accepts.
template <typename Inner>
int64_t InnerSpan(const ConstTensorView& view, Inner inner) {
  const int64_t size = ElementBytes(view.dtype);
  int64_t span = size;
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] <= 1) continue;  // its stride may be anything
    const int64_t stride = view.stride[i] * size;
    if (inner(stride)) span += (view.extent[i] - 1) * stride;
  }
  return span;
}

// What of a view lies within one period of bytes, put at an address.
ConstTensorView Within(ConstTensorView view, int64_t period, int64_t address) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.stride[i] * ElementBytes(view.dtype) % period == 0) view.extent[i] = 1;
  }
  view.data = reinterpret_cast<const std::byte*>(address);
  return view;
}

// Whether a and b fall into parts of every `period` bytes that share none.
bool ApartWithin(const ConstTensorView& a, const ConstTensorView& b, int64_t period) {
  const auto inner = [&](int64_t stride) { return stride % period != 0; };
  const int64_t a_span = InnerSpan(a, inner), b_span = InnerSpan(b, inner);
  if (a_span > period || b_span > period) return false;
  // Where b begins after a, around the period, and a after b.
  const int64_t distance =
      static_cast<int64_t>((Address(b) % period + period - Address(a) % period) % period);
  if (distance >= a_span && distance + b_span <= period) return true;
  const int64_t back = (period - distance) % period;
  // Where both fit into one period, what meets does so there: rows with gaps, turn by turn.
  if (distance + b_span <= period) {
    return !MayOverlap(Within(a, period, period), Within(b, period, period + distance));
  }
  return back + a_span <= period &&
         !MayOverlap(Within(a, period, period + back), Within(b, period, period));
}

}  // namespace

bool MayOverlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.device.on_host() != b.device.on_host() || a.empty() || b.empty()) return false;
  const auto every = [](int64_t) { return true; };
  const uintptr_t a_end = Address(a) + InnerSpan(a, every);
  const uintptr_t b_end = Address(b) + InnerSpan(b, every);
  if (a_end <= Address(b) || b_end <= Address(a)) return false;
  for (const ConstTensorView* view : {&a, &b}) {
    for (int i = 0; i < view->rank; ++i) {
      if (view->extent[i] <= 1) continue;
      const int64_t period = view->stride[i] * ElementBytes(view->dtype);
      if (period > 0 && ApartWithin(a, b, period)) return false;
    }
  }
  return true;
}

bool MayOverlapItself(const ConstTensorView& view) {
  if (view.empty()) return false;
  // Dimensions of more than one element, by stride.
  std::array<int, kMaxRank> order;
  int num = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] <= 1) continue;
    int place = num++;
    for (; place > 0 && view.stride[order[place - 1]] > view.stride[i]; --place) {
      order[place] = order[place - 1];
    }
    order[place] = i;
  }
  int64_t span = 1;  // elements that the dimensions so far reach over
  for (int i = 0; i < num; ++i) {
    if (view.stride[order[i]] < span) return true;
    span += (view.extent[order[i]] - 1) * view.stride[order[i]];
  }
  return false;
}

bool ArgChecker::Fail(absl::StatusCode code, const std::string& message) {
  if (status_.ok()) status_ = absl::Status(code, message);
  return false;
}

bool ArgChecker::WellFormed(const char* name, const ConstTensorView& view) {
  if (!ok()) return false;
  if (static_cast<int>(view.dtype) >= kNumDTypes) {
    return Invalid(name, " has element type number ", static_cast<int>(view.dtype), "; below ",
                   kNumDTypes);
  }
  if (view.rank < 0 || view.rank > kMaxRank) {
    return Invalid(name, " has rank ", static_cast<int>(view.rank), "; 0 to ", kMaxRank);
  }
  bool is_empty = false;
  for (int i = 0; i < kMaxRank; ++i) {
    if (i >= view.rank) {
      if (view.extent[i] == 1) continue;
      return Invalid(name, " has extent ", view.extent[i], " in dimension ", i, " past its rank ",
                     static_cast<int>(view.rank), "; 1 there");
    }
    if (view.extent[i] < 0) {
      return Invalid(name, " has extent ", view.extent[i], " in dimension ", i, "; at least 0");
    }
    if (view.stride[i] < 0) {
      return Invalid(name, " has stride ", view.stride[i], " in dimension ", i, "; at least 0");
    }
    // Even where a stride means nothing, in bytes it must stay within int64.
    if (view.stride[i] > INT64_MAX / 256) {
      return Invalid(name, " has stride ", view.stride[i], " in dimension ", i, "; at most ",
                     INT64_MAX / 256);
    }
    is_empty = is_empty || view.extent[i] == 0;
  }
  if (is_empty) {
    // The other extents still bind dimensions and are multiplied with each other.
    int64_t product = 1;
    for (int i = 0; i < view.rank; ++i) {
      if (view.extent[i] > 0 && __builtin_mul_overflow(product, view.extent[i], &product)) {
        return Invalid(name, " is ", Describe(view), ": more than 2^63 elements");
      }
    }
    return true;
  }
  const int64_t size = ElementBytes(view.dtype);
  int64_t elements = size, last = size;
  for (int i = 0; i < view.rank; ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(elements, view.extent[i], &elements) ||
        __builtin_mul_overflow(view.extent[i] - 1, view.stride[i], &reach) ||
        __builtin_mul_overflow(reach, size, &reach) || __builtin_add_overflow(last, reach, &last)) {
      return Invalid(name, " is ", Describe(view), ": more than 2^63 bytes; shrink it");
    }
  }
  if (view.data == nullptr) return Invalid(name, " is ", Describe(view), " with null data");
  if (Address(view) + static_cast<uintptr_t>(last) < Address(view)) {
    return Invalid(name, " is ", Describe(view), ": reaches past the end of memory; shrink it");
  }
  if (Address(view) % size != 0) {
    return Invalid(name, " begins ", Address(view) % size, " bytes past a multiple of ", size,
                   "; align it to its element type ", Name(view.dtype));
  }
  return true;
}

bool ArgChecker::View(const char* name, const ConstTensorView& view, DTypeSet dtypes) {
  if (!ok()) return false;
  if (view.absent()) return Invalid(name, " is absent; it is needed");
  if (!WellFormed(name, view)) return false;
  const bool same_device = device_.on_host() ? view.device.on_host() : view.device == device_;
  if (!same_device) {
    return Invalid(name, " is on ", Name(view.device), "; the context is on ", Name(device_));
  }
  if (!dtypes.contains(view.dtype)) {
    std::string expected;
    for (int i = 0; i < kNumDTypes; ++i) {
      if (!dtypes.contains(static_cast<DType>(i))) continue;
      absl::StrAppend(&expected, expected.empty() ? "" : " or ", Name(static_cast<DType>(i)));
    }
    return Invalid(name, " is ", Describe(view), "; its elements must be ", expected);
  }
  return true;
}

bool ArgChecker::Bind(const char* name, const ConstTensorView& view,
                      std::initializer_list<Dim*> dims) {
  if (!ok()) return false;
  if (view.rank != static_cast<int>(dims.size())) {
    return Invalid(name, " is ", Describe(view), "; it must be ", Describe(dims));
  }
  int i = 0;
  for (Dim* dim : dims) {
    if (dim->size < 0) {
      dim->size = view.extent[i];
      dim->from = name;
    } else if (dim->size != view.extent[i]) {
      return Invalid(name, " is ", Describe(view), "; dimension ", i, " must be ", dim->name, " = ",
                     dim->size, dim->from == nullptr ? "" : " as in ",
                     dim->from == nullptr ? "" : dim->from);
    }
    ++i;
  }
  return true;
}

bool ArgChecker::In(const char* name, const ConstTensorView& view, DTypeSet dtypes,
                    std::initializer_list<Dim*> dims) {
  if (!Shape(name, view, dtypes, dims)) return false;
  Reads(name, view);
  return true;
}

bool ArgChecker::Out(const char* name, const TensorView& view, DTypeSet dtypes,
                     std::initializer_list<Dim*> dims) {
  if (!Shape(name, view, dtypes, dims)) return false;
  Writes(name, view);
  return true;
}

bool ArgChecker::Scalar(const char* name, const ConstTensorView& view) {
  if (!View(name, view, DType::kF32)) return false;
  if (view.rank > 1 || view.num_elements() != 1) {
    return Invalid(name, " is ", Describe(view), "; it must be one f32");
  }
  Reads(name, view);
  return true;
}

bool ArgChecker::Aligned(const char* name, const ConstTensorView& view) {
  if (!ok()) return false;
  if (device_.on_host() || view.absent() || view.empty()) return true;
  if (Address(view) % 16 != 0) {
    return Invalid(name, " begins ", Address(view) % 16,
                   " bytes past a multiple of 16; align it for CUDA");
  }
  const int64_t size = ElementBytes(view.dtype);
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] == 1) continue;
    if (i == view.rank - 1 ? view.stride[i] != 1 : view.stride[i] * size % 16 != 0) {
      return Invalid(name, " has stride ", view.stride[i], " in dimension ", i, "; on CUDA ",
                     i == view.rank - 1 ? "the innermost must be 1" : "a multiple of 16 bytes");
    }
  }
  return true;
}

bool ArgChecker::AtLeast(const char* name, int64_t value, int64_t limit) {
  if (!ok()) return false;
  return value >= limit || Invalid(name, " is ", value, "; at least ", limit);
}

bool ArgChecker::Positive(const char* name, double value) {
  if (!ok()) return false;
  return (value > 0 && std::isfinite(value)) ||
         Invalid(name, " is ", value, "; it must be finite and above 0");
}

void ArgChecker::Remember(const char* name, const ConstTensorView& view, bool output) {
  if (num_views_ < static_cast<int>(views_.size())) views_[num_views_++] = {name, output, view};
}

absl::Status ArgChecker::Finish() {
  for (int i = 0; ok() && i < num_views_; ++i) {
    const Seen& out = views_[i];
    if (!out.output) continue;
    if (MayOverlapItself(out.view)) {
      Invalid(out.name, " is ", Describe(out.view),
              " whose strides let elements share memory; an output must not");
    }
    for (int j = 0; ok() && j < num_views_; ++j) {
      if (j == i || (views_[j].output && j < i)) continue;
      if (MayOverlap(out.view, views_[j].view)) {
        Invalid(out.name, " shares memory with ", views_[j].name, "; outputs must not overlap");
      }
    }
  }
  return status_;
}

}  // namespace kvblocks::attention
