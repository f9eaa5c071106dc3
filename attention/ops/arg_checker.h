// ArgChecker: collects what is wrong with the arguments of one operation, keeping the first
// finding.
//
// Views are taken one after another. Each must be well formed (nothing that follows may be trusted
// to have sane extents otherwise), lie on the context's device, have one of the given types, and
// the given dimensions, whose sizes are bound by the first view that has them. After a finding
// nothing more is looked at. Finish() compares outputs with everything else for shared memory.
//
// Cost: O(rank) per view, O(outputs * views) comparisons at the end; text only for a finding.

#ifndef KVBLOCKS_ATTENTION_OPS_ARG_CHECKER_H_
#define KVBLOCKS_ATTENTION_OPS_ARG_CHECKER_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// A set of element types.
class DTypeSet {
 public:
  constexpr DTypeSet(DType dtype)  // NOLINT: implicit on purpose
      : bits_(1u << static_cast<int>(dtype)) {}
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= 1u << static_cast<int>(dtype);
  }
  static constexpr DTypeSet All() {
    DTypeSet all(DType{});
    all.bits_ = (1u << kNumDTypes) - 1;
    return all;
  }
  constexpr bool contains(DType dtype) const { return bits_ >> static_cast<int>(dtype) & 1; }
  friend constexpr DTypeSet operator|(DTypeSet a, DTypeSet b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  unsigned bits_ = 0;
};
inline constexpr DTypeSet kComputeTypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
inline constexpr DTypeSet kFloatCodes = {DType::kF8E4M3, DType::kF8E5M2};
inline constexpr DTypeSet kCodeTypes = {DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

// The size of a dimension that several views share.
struct Dim {
  const char* name;
  int64_t size = -1;           // unknown until the first view that has it
  const char* from = nullptr;  // that view
};

class ArgChecker {
 public:
  ArgChecker(const ExecContext& context, const char* op) : device_(context.device), op_(op) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  const DeviceId& device() const { return device_; }

  // Keep the first finding; all return whether nothing was found so far.
  template <typename... Text>
  bool Invalid(const Text&... text) {
    return Fail(absl::StatusCode::kInvalidArgument, absl::StrCat(op_, ": ", text...));
  }
  template <typename... Text>
  bool OutOfRange(const Text&... text) {
    return Fail(absl::StatusCode::kOutOfRange, absl::StrCat(op_, ": ", text...));
  }
  template <typename... Text>
  bool TooSmall(const Text&... text) {
    return Fail(absl::StatusCode::kResourceExhausted, absl::StrCat(op_, ": ", text...));
  }
  template <typename... Text>
  bool Stale(const Text&... text) {
    return Fail(absl::StatusCode::kFailedPrecondition, absl::StrCat(op_, ": ", text...));
  }
  template <typename... Text>
  bool NotBuilt(const Text&... text) {
    return Fail(absl::StatusCode::kUnimplemented, absl::StrCat(op_, ": ", text...));
  }

  // A finding of another check, which names the operation itself.
  bool Take(const absl::Status& status) {
    if (ok() && !status.ok()) status_ = status;
    return ok();
  }

  bool In(const char* name, const ConstTensorView& view, DTypeSet dtypes,
          std::initializer_list<Dim*> dims);
  bool Out(const char* name, const TensorView& view, DTypeSet dtypes,
           std::initializer_list<Dim*> dims);
  // As the above, unless absent.
  bool InIf(const char* name, const ConstTensorView& view, DTypeSet dtypes,
            std::initializer_list<Dim*> dims) {
    return view.absent() ? ok() : In(name, view, dtypes, dims);
  }
  bool OutIf(const char* name, const TensorView& view, DTypeSet dtypes,
             std::initializer_list<Dim*> dims) {
    return view.absent() ? ok() : Out(name, view, dtypes, dims);
  }
  // As In, of a view that outputs may share memory with.
  bool Shape(const char* name, const ConstTensorView& view, DTypeSet dtypes,
             std::initializer_list<Dim*> dims) {
    return View(name, view, dtypes) && Bind(name, view, dims);
  }
  // Well-formedness, device and type alone: for arguments of several possible shapes.
  bool View(const char* name, const ConstTensorView& view, DTypeSet dtypes);
  // One float32.
  bool Scalar(const char* name, const ConstTensorView& view);
  // That base and outer strides are multiples of 16 bytes and the innermost stride is 1, if the
  // context is on a CUDA device.
  bool Aligned(const char* name, const ConstTensorView& view);
  bool AtLeast(const char* name, int64_t value, int64_t limit);
  // A float that must be finite and positive.
  bool Positive(const char* name, double value);

  // Counts a view among those that must not share memory with outputs; In and Out do so themselves.
  void Reads(const char* name, const ConstTensorView& view) { Remember(name, view, false); }
  void Writes(const char* name, const ConstTensorView& view) { Remember(name, view, true); }
  // Takes back the last such view: it may be the same as an output.
  void AllowOverlapOfLast() { --num_views_; }

  // The first finding, shared memory included.
  absl::Status Finish();

 private:
  struct Seen {
    const char* name;
    bool output;
    ConstTensorView view;
  };

  bool Fail(absl::StatusCode code, const std::string& message);
  bool WellFormed(const char* name, const ConstTensorView& view);
  bool Bind(const char* name, const ConstTensorView& view, std::initializer_list<Dim*> dims);
  void Remember(const char* name, const ConstTensorView& view, bool output);

  DeviceId device_;
  const char* op_;
  absl::Status status_;
  int num_views_ = 0;
  std::array<Seen, 24> views_;
};

// An array of integers or floats that the host may read.
template <typename T>
class HostArray {
 public:
  HostArray() = default;
  // REQUIRES: a checked view of elements of type T and rank 0 or 1.
  explicit HostArray(const ConstTensorView& view) {
    if (view.absent() || !view.device.on_host()) return;
    data_ = view.data;
    size_ = view.num_elements();
    // Strides of one element or none mean nothing and may be anything.
    step_ = size_ <= 1 ? 0 : view.stride[0] * static_cast<int64_t>(sizeof(T));
    readable_ = true;
  }
  bool readable() const { return readable_; }
  int64_t size() const { return size_; }
  T operator[](int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * step_, sizeof(T));
    return value;
  }

 private:
  const std::byte* data_ = nullptr;
  int64_t step_ = 0, size_ = 0;
  bool readable_ = false;
};

// Whether two views may share a byte. Exact for views cut out of one tensor along its dimensions
// (columns of a fused projection, K and V of an interleaved cache); otherwise it errs towards yes.
bool MayOverlap(const ConstTensorView& a, const ConstTensorView& b);
// Whether two elements of the view may share a byte.
bool MayOverlapItself(const ConstTensorView& view);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_ARG_CHECKER_H_
