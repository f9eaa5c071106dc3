// Masks: causal, windows, chunks, prefixes and free ones, and how layers come by them.

#ifndef KVBLOCKS_ATTENTION_MASKS_H_
#define KVBLOCKS_ATTENTION_MASKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"

// AttentionMaskBuilder: materialises explicit attention masks for one device and keeps them.
//
// A mask is cached under everything that made it: kind, type, encoding, device, window, size, and
// for custom masks the generation of the registration and the bytes of its parameters. The same
// request again returns the same storage. Causal masks grow to powers of two and are handed out as
// the top left corner of the largest, with its row stride; a ref taken before a growth or a Clear
// stays valid and unchanged. Between BeginCapture and EndCapture nothing is allocated: a mask that
// is not there yet is FailedPrecondition, so Prewarm first.
//
// 0 is visible in every mask, MaskedValue tells what is not. Thread-safe; masks are made outside
// the lock. Cost: a hit is one look-up in a map, a miss rows x columns calls of the rule. For long
// sequences, whose square is too much, Bits makes the rows of one step.

namespace kvblocks::attention {

// What stands for "hidden": additive -infinity (floats only); finite additive -10000 (f16 only);
// marker 1, except -infinity in f16, as the NPU operators of vLLM-Ascend take it.
absl::StatusOr<double> MaskedValue(DType dtype, MaskEncoding encoding);

// Type and encoding of a mask's elements.
struct MaskElement {
  DType dtype = DType::kBool;
  MaskEncoding encoding = MaskEncoding::kMarker;

  friend bool operator==(const MaskElement&, const MaskElement&) = default;
};

struct WindowMaskSpec {
  int64_t window = 0;  // keys a query sees, itself included; >= 1
  int64_t size = 2048;
  MaskElement element = {};
  // kShared or kTemplate. A template of `size` cannot tell a window of `size` or more: it is
  // refused unless pre_tokens, with which it will be used in mode 4, is window - 1 and so carries
  // it.
  MaskForm form = MaskForm::kShared;
  int64_t pre_tokens = kUnlimitedTokens;
};

// What a rank holds of a prompt of num_tokens that is cut as ShardRows
// (metadata/context_parallel.h) says.
struct ContextParallelShard {
  int64_t num_tokens = 0;
  int32_t num_ranks = 1;
  int32_t rank = 0;
};
// The absolute positions of the rank's rows, ascending.
absl::StatusOr<std::vector<int64_t>> ContextParallelPositions(const ContextParallelShard& shard);

// Whether a custom mask hides key j from query i, both absolute positions. Must be pure.
using MaskGenerator = std::function<bool(int64_t i, int64_t j, std::string_view params)>;

// What is known of row i without asking key by key: keys outside [begin, end) are hidden, keys of
// [seen_begin, seen_end) are visible. The generator is asked about the others only.
struct MaskRowBounds {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();
  int64_t seen_begin = 0, seen_end = 0;
};
using MaskBounds = std::function<MaskRowBounds(int64_t i, std::string_view params)>;

// A mask as a predicate over positions. Without bounds every key is asked about.
struct MaskRule {
  MaskGenerator hides;
  MaskBounds bounds;
  std::string params;
};
// Sees the last `window` keys, itself included; asks about none.
MaskRule WindowRule(int64_t window);
// The same, and the first `num_sinks` keys always. They do not count for the window.
MaskRule SinkWindowRule(int64_t num_sinks, int64_t window);
// Of the keys up to i, sees the last `stride` and of the earlier ones every stride-th.
MaskRule StridedRule(int64_t stride);

// The new tokens of a request: positions first_position on, each a row over num_keys keys.
struct MaskRows {
  int64_t first_position = 0, num_rows = 0, num_keys = 0;
  const MaskRule* rule = nullptr;  // of this request, instead of the batch's
};

struct CustomMaskSpec {
  std::string name;
  int64_t rows = 0, columns = 0;
  MaskElement element = {};
  std::optional<std::string> params = {};  // instead of those given at the registration
};

// Copies a finished mask to a device: `bytes` bytes at `host`.
using MaskUpload = std::function<absl::StatusOr<std::shared_ptr<const std::byte>>(
    DeviceId device, const std::byte* host, size_t bytes)>;

class AttentionMaskBuilder {
 public:
  struct Options {
    DeviceId device;
    MaskUpload upload;  // needed unless the device is the host
    int64_t max_mask_bytes = int64_t{4} << 30;
  };
  AttentionMaskBuilder() : AttentionMaskBuilder(Options{}) {}
  explicit AttentionMaskBuilder(Options options);
  ~AttentionMaskBuilder();
  AttentionMaskBuilder(const AttentionMaskBuilder&) = delete;
  AttentionMaskBuilder& operator=(const AttentionMaskBuilder&) = delete;

  DeviceId device() const;

  // [n, n]: hides j > i.
  absl::StatusOr<MaskRef> Causal(int64_t n, MaskElement element);
  // [2048, 2048] causal template for any length (sparse modes 2, 3 and 4).
  absl::StatusOr<MaskRef> SplitFuse(DType dtype = DType::kI8);
  // [size, size]: hides j > i and i - j >= window. A window of size or more is causal.
  absl::StatusOr<MaskRef> SlidingWindow(const WindowMaskSpec& spec);
  // [n, n]: of the keys up to i, the last `stride` and of the earlier ones every stride-th.
  absl::StatusOr<MaskRef> Strided(int64_t stride, int64_t n, MaskElement element);
  // [512, 512] causal.
  absl::StatusOr<MaskRef> Mla(MaskElement element);
  // [rows of the rank, num_tokens]: hides j beyond the row's absolute position.
  absl::StatusOr<MaskRef> PrefillContextParallel(const ContextParallelShard& shard,
                                                 MaskElement element);

  // Makes a custom mask available; the same name again replaces it. Returns the generation id.
  absl::StatusOr<int64_t> Register(const std::string& name, MaskGenerator generator,
                                   std::string params = "", MaskBounds bounds = nullptr);
  // The whole mask, each pair asked about once.
  absl::StatusOr<MaskRef> Custom(const CustomMaskSpec& spec);
  // What is registered as `name`, with `params` if given.
  absl::StatusOr<MaskRule> RuleOf(const std::string& name,
                                  const std::optional<std::string>& params) const;

  // Ragged bits: the rows of a batch and no others, made anew by each call. Cost: a bit per row and
  // key, and a call of the rule for each pair that its bounds leave open.
  absl::StatusOr<MaskRef> Bits(const MaskRule& rule, absl::Span<const MaskRows> requests);

  // The same mask without gaps between rows: itself if it has none, else a copy (host only).
  absl::StatusOr<MaskRef> Pack(const MaskRef& mask);

  // Makes causal masks of up to n available before a capture.
  absl::Status Prewarm(int64_t n, MaskElement element) { return Causal(n, element).status(); }
  // Forgets all masks, not the registrations.
  void Clear();

  void BeginCapture();
  void EndCapture();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Which masks a step carries, and which of them a layer uses.
//
// Most backends see keys by lengths, causality and window alone and get no mask for them. For one
// that asks for explicit masks, AttachMasks fills the metadata's MaskRefs once per step: generation
// gets the split-fuse template, pooling a causal bool mask as a template, windowed layers a window
// template besides; a non-causal step gets none, because a causal template would hide what it must
// see. A configured custom mask is attached for every backend, and so is one that shows the sink
// rows of a group with a window, which no window would. ChooseMask then picks per layer:
// custom before window before standard.
//
// Cost of a custom mask: while all requests fit in kLongestWholeMask positions, the whole mask is
// made once, a power of two wide, and serves every step. Beyond that each step makes the rows of
// its new tokens, a bit per key: at most one call of the generator per new token and key, which is
// 131,072 for a decode of 128k tokens, and none where the mask's bounds say it all (windows have
// such bounds, strided masks for the last keys).

struct CustomMaskConfig {
  enum class Type : uint8_t {
    kSparse,  // the last `parameter` keys, and of the earlier ones every parameter-th (strided)
    kWindow,  // the last `parameter` keys
    kCustom,  // the mask registered as `name`, with `params` unless empty
  };
  bool enabled = false;
  Type type = Type::kCustom;
  int64_t parameter = 0;
  std::string name = {};
  std::string params = {};
};

inline constexpr int64_t kLongestWholeMask = 2048;

struct MaskNeeds {
  bool explicit_masks = false;  // what the chosen backend asks for
  bool pooling = false;
  int64_t window = 0;  // of the group's windowed layers, the query included; 0: none
  CustomMaskConfig custom = {};
  // Custom masks are those of steps whose longest request has so many positions, though the step's
  // be shorter: what captured graphs want, whose masks must not change. 0: as long as the step's.
  int64_t max_seq_len = 0;
};

// Sets the three masks of the metadata (null where not needed). On failure nothing is changed.
// A custom mask beyond kLongestWholeMask reads the host's lengths, which must be exact.
absl::Status AttachMasks(AttentionMaskBuilder& builder, const MaskNeeds& needs,
                         CommonAttentionMetadata* metadata);

// The mask for a layer of the given window (0: none), as an operation takes it; disabled if the
// step carries none. `metadata` must live as long as the result is used.
ExplicitMask ChooseMask(const CommonAttentionMetadata& metadata, int64_t window);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_MASKS_H_
