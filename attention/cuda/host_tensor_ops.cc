#include "attention/cuda/host_tensor_ops.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/ops/visit_views.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention::cuda {
namespace {

// A stretch of host memory that tensors share, and where it is on the device.
struct Range {
  std::byte* begin;
  std::byte* end;
  bool written;
  std::byte* device = nullptr;
};

// Joins ranges that overlap.
std::vector<Range> Joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin < joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
      joined.back().written |= range.written;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

constexpr uintptr_t kAlignment = 256;
constexpr int64_t kGap = 512;

}  // namespace

absl::StatusOr<std::unique_ptr<HostTensorOps>> HostTensorOps::Create(const AttentionOps* ops,
                                                                     const Options& options) {
  int devices = 0;
  const Error error = CountDevices(&devices);
  if (error != 0 || devices == 0) {
    return absl::UnavailableError(
        absl::StrCat("no GPU can be used: ", error != 0 ? ErrorName(error) : "there is none"));
  }
  std::unique_ptr<HostTensorOps> made(new HostTensorOps(ops, options));
  const auto allocate = [](int64_t bytes, const char* what, auto** memory) {
    void* allocated = nullptr;
    if (AllocateDevice(static_cast<size_t>(bytes), &allocated) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the GPU has no ", bytes, " bytes for ", what));
    }
    *memory = static_cast<std::remove_reference_t<decltype(*memory)>>(allocated);
    return absl::OkStatus();
  };
  absl::Status status = StatusOf("HostTensorOps", SetDevice(0));
  status.Update(StatusOf("HostTensorOps", CreateStream(&made->stream_)));
  if (status.ok() && !IsEmulation()) {
    status = allocate(options.arena_bytes, "copies of tensors", &made->arena_);
  }
  if (status.ok()) status = allocate(options.workspace_bytes, "a workspace", &made->workspace_);
  if (status.ok()) status = allocate(sizeof(uint32_t), "error flags", &made->flags_);
  if (!status.ok()) return status;
  return made;
}

HostTensorOps::~HostTensorOps() {
  for (const Shared& shared : shared_) (void)UnregisterHost(shared.begin);
  (void)FreeDevice(arena_);
  (void)FreeDevice(workspace_);
  (void)FreeDevice(flags_);
  if (stream_ != nullptr) (void)DestroyStream(stream_);
}

absl::Status HostTensorOps::Share(absl::Span<std::byte> memory) {
  if (memory.empty()) return absl::OkStatus();
  void* device = nullptr;
  const Error error = RegisterHost(memory.data(), memory.size(), &device);
  if (error != 0) return StatusOf("Share", error);
  shared_.push_back(
      {memory.data(), memory.data() + memory.size(), static_cast<std::byte*>(device)});
  return absl::OkStatus();
}

absl::Status HostTensorOps::RunOnDevice(
    const ExecContext& context, absl::FunctionRef<void(const Visitor&)> visit,
    absl::FunctionRef<absl::Status(const ExecContext&)> call) const {
  std::vector<Range> ranges;
  bool spans_known = true;
  const auto collect = [&](auto& view) {
    using View = std::remove_reference_t<decltype(view)>;
    if (view.data == nullptr || view.empty()) return;
    const absl::StatusOr<int64_t> bytes = view.SpanBytes();
    if (!bytes.ok() || *bytes > options_.arena_bytes) {
      spans_known = false;  // a hostile view: the operation refuses it before it reads anything
      return;
    }
    auto* begin = const_cast<std::byte*>(view.data);
    for (const Shared& shared : shared_) {
      if (begin >= shared.begin && begin + *bytes <= shared.end) return;
    }
    ranges.push_back({begin, begin + *bytes, std::is_same_v<View, TensorView>});
  };
  visit({collect, collect});
  ranges = Joined(std::move(ranges));

  int64_t used = kGap;
  std::vector<void*> allocated;
  if (spans_known) {
    if (arena_ != nullptr) {
      int64_t needed = kGap;
      for (const Range& range : ranges) needed += range.end - range.begin + 2 * kGap;
      if (needed > options_.arena_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat("the arena has ", options_.arena_bytes,
                                                         " bytes; these tensors need ", needed));
      }
      MustSucceed(FillAsync(arena_, 0xff, static_cast<size_t>(needed), stream_), "poison");
    }
    for (Range& range : ranges) {
      const int64_t bytes = range.end - range.begin;
      const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(range.begin) %
                                                 kAlignment);
      if (arena_ != nullptr) {
        used = RoundUp(used, kAlignment);
        range.device = arena_ + used + shift;
        used += shift + bytes + kGap;
      } else {
        void* memory = nullptr;
        // Ends where the tensors end.
        MustSucceed(AllocateDevice(static_cast<size_t>(shift + bytes), &memory), "a tensor");
        allocated.push_back(memory);
        range.device = static_cast<std::byte*>(memory) + shift;
      }
      MustSucceed(CopyAsync(range.device, range.begin, static_cast<size_t>(bytes), stream_),
                  "a copy to the device");
    }
  }
  const DeviceId device = {DeviceKind::kCuda, 0};
  const auto place = [&](auto& view) {
    if (view.absent()) return;
    view.device = device;
    for (const Shared& shared : shared_) {
      if (view.data >= shared.begin && view.data < shared.end) {
        view.data = shared.device + (view.data - shared.begin);
        return;
      }
    }
    for (const Range& range : ranges) {
      if (range.device == nullptr || view.data == nullptr) continue;
      if (view.data >= range.begin && view.data < range.end) {
        view.data = range.device + (view.data - range.begin);
        return;
      }
    }
  };
  visit({place, place});
  MustSucceed(FillAsync(flags_, 0, sizeof(uint32_t), stream_), "flags");
  // Old contents of the workspace must not change the next operation.
  MustSucceed(
      FillAsync(workspace_, 0xff,
                static_cast<size_t>(std::min<int64_t>(options_.workspace_bytes, 4 << 20)), stream_),
      "the workspace");

  Workspace workspace{absl::MakeSpan(workspace_, static_cast<size_t>(options_.workspace_bytes)),
                      {}};
  DeviceErrorFlags flags{flags_};
  ExecContext on_device;
  on_device.device = device;
  on_device.stream = stream_;
  on_device.workspace = &workspace;
  on_device.error_flags = &flags;
  const absl::Status status = call(on_device);

  uint32_t bits = 0;
  MustSucceed(CopyAsync(&bits, flags_, sizeof(bits), stream_), "flags");
  for (const Range& range : ranges) {
    if (range.device == nullptr || !range.written) continue;
    MustSucceed(CopyAsync(range.begin, range.device, static_cast<size_t>(range.end - range.begin),
                          stream_),
                "a copy from the device");
  }
  MustSucceed(Synchronize(stream_), ops_->name());
  for (void* memory : allocated) MustSucceed(FreeDevice(memory), "a tensor");
  if (context.error_flags != nullptr && context.error_flags->bits != nullptr) {
    *context.error_flags->bits |= bits;
  }
  return status;
}

template <typename Args>
absl::Status HostTensorOps::RunOperation(const ExecContext& context, Args args) const {
  return RunOnDevice(
      context, [&](const Visitor& visitor) { VisitViews(args, visitor); },
      [&](const ExecContext& on_device) {
        const absl::StatusOr<Checked<Args>> checked = ops_->Check(on_device, args);
        return checked.ok() ? ops_->Run(*checked) : checked.status();
      });
}

#define KVBLOCKS_MIRRORED(Op)                                                       \
  absl::Status HostTensorOps::Refuse(const ExecContext&, const Op##Args&) const {   \
    return absl::OkStatus();                                                        \
  }                                                                                 \
  absl::Status HostTensorOps::Run(const Checked<Op##Args>& checked) const {         \
    return RunOperation(checked.context(), checked.args());                         \
  }
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_MIRRORED)
#undef KVBLOCKS_MIRRORED

}  // namespace kvblocks::attention::cuda
