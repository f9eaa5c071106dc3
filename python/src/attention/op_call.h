// OpCall: one call of an operation from Python: its arrays as views, where it runs, and what comes
// back.
//
//   OpCall call("paged_decode", options);
//   args.q = call.In("q", q);                          // the first array says the device
//   nb::object out = call.Out("out", given, q, {r, h, d}, &args.out);
//   call.Run(args, multiplications);
//
// Nothing is copied, and nothing is allocated but outputs that the caller left out. Messages of the
// operations' own checks get Python's names.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_OP_CALL_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_OP_CALL_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"
#include "python/src/attention/arrays.h"
#include "python/src/errors.h"
#include "python/src/parameters.h"

namespace kvblocks::python {

using Array = Argument<"Array">;
using Stream = Argument<"Stream">;

// Python's KVCache: the views of one layer's cache, and what keeps them.
struct PyKvCache {
  attention::KvCacheView view;
  bool is_read_only = false;
  AnyObject k, v;
  nb::object k_scales, v_scales;
  Held held[4] = {};

  PyKvCache(Array the_k, Array the_v, const char* layout, std::optional<int64_t> latent_rank,
            std::optional<int64_t> block_size, const char* row_format, Array the_k_scales,
            Array the_v_scales);
  PyKvCache(const PyKvCache&) = delete;
  PyKvCache& operator=(const PyKvCache&) = delete;
  ~PyKvCache();
};

// Python's Workspace: scratch memory and error flags of the caller.
struct PyWorkspace {
  attention::Workspace workspace;
  attention::DeviceErrorFlags flags;
  attention::DeviceId device;
  AnyObject memory, error_flags;
  Held held[2] = {};

  PyWorkspace(Array the_memory, Array the_error_flags);
  PyWorkspace(const PyWorkspace&) = delete;
  PyWorkspace& operator=(const PyWorkspace&) = delete;
  ~PyWorkspace();
};

// Python's ThreadPool.
struct PyThreadPool {
  attention::ThreadPool pool;
  explicit PyThreadPool(int num_threads) : pool(num_threads) {}
};

// What every function takes last.
struct CallOptions {
  nb::handle stream;
  PyWorkspace* workspace;
  PyThreadPool* threads;
};

// -1 where there is no such dimension.
inline int64_t Extent(const attention::ConstTensorView& view, int dim) {
  return dim < view.rank ? view.extent[dim] : -1;
}

// Of Python's AttentionMetadata, whose builder must outlive it.
attention::CommonAttentionMetadata MetadataFrom(nb::handle metadata);

// A cudaStream_t, of a number or of what torch, CuPy and cuda.core have. `op` is for messages.
void* StreamFrom(const char* op, nb::handle stream);

class OpCall {
 public:
  OpCall(const char* name, CallOptions options) : name_(name), options_(options) {}
  ~OpCall() {
    for (int i = 0; i < num_held_; ++i) Release(&held_[i]);
  }
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  // None is absent.
  attention::ConstTensorView In(const char* name, nb::handle array);
  // The same, or a number, for operations on the host.
  attention::ConstTensorView Scale(const char* name, nb::handle value);
  // None is absent; refuses what is read-only.
  attention::TensorView Out(const char* name, nb::handle array);
  // `array`, or if that is None a new one of this shape from the library of `like`: of its type, or
  // float32. Absent if an extent is negative: the operation's checks will say why.
  nb::object Out(const char* name, nb::handle array, nb::handle like,
                 absl::Span<const int64_t> shape, attention::TensorView* view,
                 bool float32 = false);
  attention::ConstKvCacheView In(const PyKvCache& cache);
  attention::KvCacheView Out(const char* name, const PyKvCache& cache);

  // A bound: as given, or on the host the largest length, or the largest difference of starts.
  int64_t MaxLength(const char* name, std::optional<int64_t> given,
                    const attention::ConstTensorView& lengths);
  int64_t MaxDifference(const char* name, std::optional<int64_t> given,
                        const attention::ConstTensorView& starts);

  const attention::AttentionOps& ops() const;
  attention::ExecContext Context();
  // Raises what the operation refuses. `work`: multiplications, roughly; above 10 us the
  // interpreter lock is released.
  template <typename Args>
  void Run(const Args& args, double work) {
    const attention::ExecContext context = Context();
    absl::Status status;
    {
      const ReleaseIf release(!device_->on_host() || work > kLongWork);
      const auto checked = ops().Check(context, args);
      status = checked.ok() ? ops().Run(*checked) : checked.status();
    }
    if (!status.ok()) [[unlikely]]
      Refuse(status);
  }
  // The same for operations whose outputs may be left out: `of` has out, of `shape`, and lse, of
  // all but its last extent. New ones are of the library and type of the call's first array.
  // Returns out, or (out, lse).
  template <typename Args, typename Of>
  AnyObject RunInto(const Args& args, Of* of, absl::Span<const int64_t> shape, double work) {
    nb::object out = Out("out", given.out, first_, shape, &of->out);
    nb::object lse;
    if constexpr (requires { of->lse; }) {
      if (given.return_lse) {
        const auto rows = shape.first(shape.size() - 1);
        lse = Out("lse", given.lse, first_, rows, &of->lse, /*float32=*/true);
      } else {
        of->lse = Out("lse", given.lse);
      }
    }
    Run(args, work);
    return given.return_lse ? nb::make_tuple(out, lse) : out;
  }
  // Refuses a call without `out`; `why`: with what it needs one, and of which type.
  void NeedOutIf(bool needed, const char* why) const {
    if (needed && given.out.is_none()) Refuse(absl::StrCat("out is None; with ", why));
  }
  // The status with Python's names.
  [[noreturn]] void Refuse(const absl::Status& status) const;
  [[noreturn]] void Refuse(absl::string_view problem) const;

  const char* name() const { return name_; }

  // What Python gave of the outputs; see RunInto.
  struct {
    nb::handle out, lse;
    bool return_lse = false;
  } given;

 private:
  static constexpr double kLongWork = 1e5;

  ImportedArray Take(const char* name, nb::handle array);

  const char* name_;
  CallOptions options_;
  std::optional<attention::DeviceId> device_;
  nb::handle first_;  // whose device it is
  int num_held_ = 0;
  Held held_[24];  // not initialised
  int num_numbers_ = 0;
  std::array<float, 4> numbers_;
};

void BindKvCache(nb::module_& module);
void BindOpCall(nb::module_& module);  // Workspace, ThreadPool
void BindDenseOps(nb::module_& module);
void BindRowOps(nb::module_& module);
void BindStateOps(nb::module_& module);
void BindMlaOps(nb::module_& module);
void BindIndexOps(nb::module_& module);
void BindIndexerOps(nb::module_& module);
void BindMetadata(nb::module_& module);
void BindLayers(nb::module_& module);
void BindAttentionRules(nb::module_& module);  // Mask, BlockSparse, SplitPlanner
void BindBlockOps(nb::module_& module);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_OP_CALL_H_
