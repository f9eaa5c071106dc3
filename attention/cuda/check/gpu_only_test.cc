// What only a GPU can show: keys cut for as many multiprocessors as it has (T-8), the same bits
// every time (T-31), caches larger than 32-bit offsets (T-32).

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "attention/cuda/check/device_tensor.h"
#include "attention/cuda/kernels/runtime.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128, kBlockSize = 16;
constexpr int64_t kBlockElements = kBlockSize * kKvHeads * kDim;

// A stream with a workspace and flags.
class OnStream {
 public:
  OnStream() : memory_(DType::kU8, {int64_t{128} << 20}), flag_memory_(DType::kI32, {1}) {
    EXPECT_EQ(CreateStream(&context.stream), 0);
    memory_.FillByte(0);
    flag_memory_.FillByte(0);
    EXPECT_EQ(Synchronize(nullptr), 0);
    workspace_.device = absl::MakeSpan(memory_.view.data, memory_.bytes());
    flags_.bits = flag_memory_.view.as<uint32_t>();
    context.device = {DeviceKind::kCuda, 0};
    context.workspace = &workspace_;
    context.error_flags = &flags_;
  }
  ~OnStream() { (void)DestroyStream(context.stream); }

  uint32_t flags() const { return static_cast<uint32_t>(Ints(flag_memory_)[0]); }
  std::vector<std::byte> Bytes(const DeviceTensor& tensor) const {
    std::vector<std::byte> bytes(tensor.bytes());
    EXPECT_EQ(CopyAsync(bytes.data(), tensor.view.data, bytes.size(), context.stream), 0);
    EXPECT_EQ(Synchronize(context.stream), 0);
    return bytes;
  }
  std::vector<int32_t> Ints(const DeviceTensor& tensor) const {
    const std::vector<std::byte> bytes = Bytes(tensor);
    std::vector<int32_t> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  ExecContext context;

 private:
  DeviceTensor memory_, flag_memory_;
  Workspace workspace_;
  DeviceErrorFlags flags_;
};

// Requests over a cache in device memory, whose lengths and tables can be rewritten.
struct Step {
  int64_t requests, columns;
  SplitPolicy split;  // of Prefill
  DeviceTensor k, v, q, new_k, new_v, out, lse, table, lens, slots, starts;

  Step(int64_t num_requests, int64_t max_len, int64_t num_blocks)
      : requests(num_requests),
        columns((max_len + kBlockSize - 1) / kBlockSize),
        k(DType::kBF16, {num_blocks, kBlockSize, kKvHeads, kDim}),
        v(DType::kBF16, {num_blocks, kBlockSize, kKvHeads, kDim}),
        q(DType::kBF16, {requests, kHeads, kDim}),
        new_k(DType::kBF16, {requests, kKvHeads, kDim}),
        new_v(DType::kBF16, {requests, kKvHeads, kDim}),
        out(DType::kBF16, {requests, kHeads, kDim}),
        lse(DType::kF32, {requests, kHeads}),
        table(DType::kI32, {requests, columns}),
        lens(DType::kI32, {requests}),
        slots(DType::kI64, {requests}),
        starts(DType::kI32, {requests + 1}) {
    q.FillNormal(1);
    new_k.FillNormal(2);
    new_v.FillNormal(3);
    std::vector<int64_t> from(requests + 1);
    std::iota(from.begin(), from.end(), 0);
    starts.SetInts(from);
  }
  void FillCache() {
    k.FillNormal(4);
    v.FillNormal(5);
    EXPECT_EQ(Synchronize(nullptr), 0);
  }
  // Blocks from `first` on, request by request, backwards for odd seeds.
  void Set(const std::vector<int64_t>& lengths, int64_t first, bool backwards) {
    std::vector<int64_t> entries(requests * columns, 2147480000), at(requests, -1);
    for (int64_t b = 0; b < requests; ++b) {
      const int64_t used = (lengths[b] + kBlockSize - 1) / kBlockSize;
      for (int64_t c = 0; c < used; ++c) {
        entries[b * columns + c] = first + b * columns + (backwards ? columns - 1 - c : c);
      }
      if (lengths[b] > 0) {
        const int64_t p = lengths[b] - 1;
        at[b] = entries[b * columns + p / kBlockSize] * kBlockSize + p % kBlockSize;
      }
    }
    table.SetInts(entries);
    lens.SetInts(lengths);
    slots.SetInts(at);
  }

  ConstKvCacheView cache() const { return {KvLayout::kNhd, k.view, v.view}; }
  absl::Status Write(const ExecContext& context) const {
    ReshapeAndCacheArgs args;
    args.k = new_k.view;
    args.v = new_v.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(KvLayout::kNhd, k.view, v.view);
    return Cuda().ReshapeAndCache(context, args);
  }
  absl::Status Decode(const ExecContext& context) const {
    PagedDecodeArgs args;
    args.q = q.view;
    args.cache = cache();
    args.block_table = table.view;
    args.seq_lens = lens.view;
    args.max_seq_len = columns * kBlockSize;
    args.params.scale = 0.0884f;
    args.out = out.view;
    args.lse = lse.view;
    return Cuda().PagedDecode(context, args);
  }
  // The same by prefill's kernels or, block-sparse with every block local, by the general ones.
  absl::Status Prefill(const ExecContext& context, bool general) const {
    PagedPrefillArgs args;
    args.q = q.view;
    args.cache = cache();
    args.query_start_loc = starts.view;
    args.seq_lens = lens.view;
    args.block_table = table.view;
    args.max_query_len = general ? 1 : 64;  // a bound: not for the decode kernels
    args.max_seq_len = columns * kBlockSize;
    args.params.scale = 0.0884f;
    args.params.split = split;
    if (general) args.params.block_sparse = {.local_blocks = 1 << 20, .vert_stride = 2};
    args.out = out.view;
    args.lse = lse.view;
    return Cuda().PagedPrefill(context, args);
  }
};

TEST(GpuOnlyTest, T31FiftyRunsGiveTheSameBits) {
  constexpr int64_t kRequests = 5, kMaxLen = 9000;
  OnStream on;
  Step step(kRequests, kMaxLen, 1 + kRequests * (kMaxLen / kBlockSize + 1));
  step.FillCache();
  step.Set({9000, 1, 4097, 77, 8191}, 1, false);
  const std::function<absl::Status()> operations[] = {
      [&] { return step.Decode(on.context); },
      [&] { return step.Prefill(on.context, false); },
      [&] { return step.Prefill(on.context, true); },
  };
  for (const auto& operation : operations) {
    ASSERT_TRUE(operation().ok());
    const std::vector<std::byte> out = on.Bytes(step.out), lse = on.Bytes(step.lse);
    for (int run = 1; run < 50; ++run) {
      ASSERT_TRUE(operation().ok());
      ASSERT_EQ(on.Bytes(step.out), out) << run;
      ASSERT_EQ(on.Bytes(step.lse), lse) << run;
    }
  }
}

// Numbers of a 16-bit or 32-bit tensor.
std::vector<float> FloatsOf(const std::vector<std::byte>& bytes, bool bf16) {
  std::vector<float> values(bytes.size() / (bf16 ? 2 : 4));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    if (bf16) {
      uint16_t upper;
      std::memcpy(&upper, bytes.data() + 2 * i, 2);
      bits = uint32_t{upper} << 16;
    } else {
      std::memcpy(&bits, bytes.data() + 4 * i, 4);
    }
    std::memcpy(&values[i], &bits, 4);
  }
  return values;
}

TEST(GpuOnlyTest, T8PrefillWithKeysCutIsTheSame) {
  constexpr int64_t kRequests = 8, kMaxLen = 9000;
  OnStream on;
  Step step(kRequests, kMaxLen, 1 + kRequests * (kMaxLen / kBlockSize + 1));
  step.FillCache();
  step.Set({9000, 1, 4097, 77, 0, 8191, 130, 2500}, 1, true);
  std::vector<std::byte> outs[2];
  std::vector<float> lses[2];
  for (const bool whole : {true, false}) {
    step.split = whole ? SplitPolicy::None() : SplitPolicy::Auto();
    ASSERT_TRUE(step.Prefill(on.context, false).ok());
    outs[whole] = on.Bytes(step.out);
    lses[whole] = FloatsOf(on.Bytes(step.lse), false);
  }
  EXPECT_NE(outs[0], outs[1]);  // it was cut
  const std::vector<float> cut = FloatsOf(outs[0], true), whole = FloatsOf(outs[1], true);
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_NEAR(cut[i], whole[i], 0.01 * std::abs(whole[i]) + 2e-4) << i;
  }
  for (size_t i = 0; i < lses[1].size(); ++i) {
    if (lses[1][i] == -INFINITY) {
      ASSERT_EQ(lses[0][i], lses[1][i]) << i;
    } else {
      ASSERT_NEAR(lses[0][i], lses[1][i], 1e-4) << i;
    }
  }
  EXPECT_EQ(on.flags(), 0u);
}

TEST(GpuOnlyTest, T32BlocksBehindTheReachOf32BitOffsets) {
  constexpr int64_t kRequests = 3, kMaxLen = 1000;
  constexpr int64_t kUsed = kRequests * (kMaxLen / kBlockSize + 1);
  // Elements beyond 2^31, bytes beyond 2^32.
  constexpr int64_t kBlocks = (int64_t{1} << 31) / kBlockElements + kUsed + 2;
  OnStream on;
  Step small(kRequests, kMaxLen, kUsed), large(kRequests, kMaxLen, kBlocks);
  small.FillCache();
  large.k.FillByte(0xff);
  large.v.FillByte(0xff);
  const int64_t first = kBlocks - kUsed;
  ASSERT_GT(first * kBlockElements, int64_t{1} << 31);
  for (const auto& [from, to] : {std::pair(&small.k, &large.k), std::pair(&small.v, &large.v)}) {
    ASSERT_EQ(CopyAsync(to->view.data + first * kBlockElements * 2, from->view.data, from->bytes(),
                        nullptr),
              0);
  }
  const std::vector<int64_t> lengths = {1000, 17, 513};
  small.Set(lengths, 0, true);
  large.Set(lengths, first, true);
  ASSERT_EQ(Synchronize(nullptr), 0);
  ASSERT_TRUE(small.Write(on.context).ok());
  ASSERT_TRUE(large.Write(on.context).ok());
  for (int kernel = 0; kernel < 3; ++kernel) {
    SCOPED_TRACE(kernel);
    for (Step* step : {&small, &large}) {
      ASSERT_EQ(kernel == 0 ? step->Decode(on.context) : step->Prefill(on.context, kernel == 2),
                absl::OkStatus());
    }
    EXPECT_EQ(on.Bytes(large.out), on.Bytes(small.out));
    EXPECT_EQ(on.Bytes(large.lse), on.Bytes(small.lse));
  }
  EXPECT_EQ(on.flags(), 0u);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
