#include "attention/cuda/check/device_mirror.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/ops/visit_views.h"

namespace kvblocks::attention::cuda {
namespace {

void MustSucceed(Error error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, ErrorName(error));
  std::abort();
}

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

DeviceMirror::DeviceMirror(const AttentionOps* ops, int64_t workspace_bytes, int64_t arena_bytes)
    : ops_(ops), arena_bytes_(arena_bytes), workspace_bytes_(workspace_bytes) {
  MustSucceed(SetDevice(0), "the mirror's device");
  MustSucceed(CreateStream(&stream_), "a stream");
  void* memory = nullptr;
  if (!IsEmulation()) {
    MustSucceed(AllocateDevice(static_cast<size_t>(arena_bytes_), &memory), "the mirror's arena");
    arena_ = static_cast<std::byte*>(memory);
  }
  MustSucceed(AllocateDevice(static_cast<size_t>(workspace_bytes_), &memory), "a workspace");
  workspace_ = static_cast<std::byte*>(memory);
  MustSucceed(AllocateDevice(sizeof(uint32_t), &memory), "error flags");
  flags_ = static_cast<uint32_t*>(memory);
}

DeviceMirror::~DeviceMirror() {
  (void)FreeDevice(arena_);
  (void)FreeDevice(workspace_);
  (void)FreeDevice(flags_);
  (void)DestroyStream(stream_);
}

template <typename Args>
absl::Status DeviceMirror::Run(absl::Status (AttentionOps::*op)(const ExecContext&, const Args&)
                                   const,
                               const ExecContext& context, Args args) const {
  std::vector<Range> ranges;
  bool spans_known = true;
  VisitViews(args, [&](auto& view) {
    using View = std::remove_reference_t<decltype(view)>;
    if (view.data == nullptr || view.empty()) return;
    const absl::StatusOr<int64_t> bytes = view.SpanBytes();
    if (!bytes.ok() || *bytes > arena_bytes_) {
      spans_known = false;  // a hostile view: the operation refuses it before it reads anything
      return;
    }
    auto* begin = const_cast<std::byte*>(view.data);
    ranges.push_back({begin, begin + *bytes, std::is_same_v<View, TensorView>});
  });
  ranges = Joined(std::move(ranges));

  int64_t used = kGap;
  std::vector<void*> allocated;
  if (spans_known) {
    if (arena_ != nullptr) {
      int64_t needed = kGap;
      for (const Range& range : ranges) needed += range.end - range.begin + 2 * kGap;
      if (needed > arena_bytes_) {
        return absl::ResourceExhaustedError(absl::StrCat("the mirror's arena has ", arena_bytes_,
                                                         " bytes; these tensors need ", needed));
      }
      MustSucceed(FillAsync(arena_, 0xff, static_cast<size_t>(needed), stream_), "poison");
    }
    for (Range& range : ranges) {
      const int64_t bytes = range.end - range.begin;
      const int64_t shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(range.begin) %
                                                 kAlignment);
      if (arena_ != nullptr) {
        used = (used + kAlignment - 1) / kAlignment * kAlignment;
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
  VisitViews(args, [&](auto& view) {
    if (view.absent()) return;
    view.device = device;
    for (const Range& range : ranges) {
      if (range.device == nullptr || view.data == nullptr) continue;
      if (view.data >= range.begin && view.data < range.end) {
        view.data = range.device + (view.data - range.begin);
        return;
      }
    }
  });
  MustSucceed(FillAsync(flags_, 0, sizeof(uint32_t), stream_), "flags");
  // What an operation leaves in its workspace must not matter to the next.
  MustSucceed(FillAsync(workspace_, 0xff,
                        static_cast<size_t>(std::min<int64_t>(workspace_bytes_, 4 << 20)), stream_),
              "the workspace");

  Workspace workspace{absl::MakeSpan(workspace_, static_cast<size_t>(workspace_bytes_)), {}};
  DeviceErrorFlags flags{flags_};
  ExecContext on_device;
  on_device.device = device;
  on_device.stream = stream_;
  on_device.workspace = &workspace;
  on_device.error_flags = &flags;
  const absl::Status status = (ops_->*op)(on_device, args);

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

#define KVBLOCKS_MIRRORED(Op)                                                                \
  absl::Status DeviceMirror::Op(const ExecContext& context, const Op##Args& args) const {    \
    return Run(static_cast<absl::Status (AttentionOps::*)(const ExecContext&,                \
                                                          const Op##Args&) const>(           \
                   &AttentionOps::Op),                                                       \
               context, args);                                                               \
  }
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_MIRRORED)
#undef KVBLOCKS_MIRRORED

}  // namespace kvblocks::attention::cuda
