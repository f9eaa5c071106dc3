// Graphs that are captured once per padded size and replayed with new batches: their metadata is
// rewritten in place. On a GPU they are graphs; emulated, where nothing can be captured, the same
// calls with the same arguments, made again.

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "attention/backends/workspace.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/testing/device_mirror.h"
#include "attention/cuda/testing/replay.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kNumHeads = 4, kNumKvHeads = 2, kDim = 64, kPage = 16, kNumPages = 40;
constexpr int32_t kSinkBlock = 39;

// Masks that steps carry: whole, of every third key and the last two; or bits, of a window of 20
// behind a block of sink rows.
enum class Masks { kNone, kWhole, kBits };

LayerConfig Layer(int64_t head_size, Masks masks = Masks::kNone) {
  return {.name = "layer",
          .num_heads = kNumHeads,
          .num_kv_heads = kNumKvHeads,
          .head_size = head_size,
          .window = masks == Masks::kBits ? 20 : 0};
}

// `query_len` 1: PagedDecode; more, or with masks: PagedPrefill of decodes with drafts.
void ExpectReplaysFollow(int64_t query_len, DType dtype, double limit, Masks masks = Masks::kNone) {
  SCOPED_TRACE(testing::Message() << "queries of " << query_len << ", " << Name(dtype) << ", masks "
                                  << static_cast<int>(masks));
  MetadataBuilderOptions options;
  options.groups = {
      {.manager_block_size = kPage, .kernel_block_size = kPage, .num_blocks = kNumPages}};
  options.max_num_reqs = 8, options.max_num_tokens = 8 * query_len, options.max_seq_len = 64;
  options.split.decode_threshold = static_cast<int32_t>(query_len);
  AttentionMaskBuilder mask_builder;
  ASSERT_TRUE(mask_builder
                  .Register("skips", [](int64_t i, int64_t j,
                                        std::string_view) { return j > i || (i - j) % 3 == 2; })
                  .ok());
  MaskNeeds needs;
  if (masks == Masks::kWhole) {
    needs.custom = {.enabled = true, .name = "skips"};
    needs.max_seq_len = options.max_seq_len;
  } else if (masks == Masks::kBits) {
    needs.window = options.groups[0].window = 20;
    options.groups[0].sink_blocks = {kSinkBlock};
    options.max_mask_bytes = options.max_num_tokens * (options.max_seq_len + kPage) / 8;
  }
  if (masks != Masks::kNone) {
    options.attach_masks = [&](const KvGroupConfig&, CommonAttentionMetadata* metadata) {
      return AttachMasks(mask_builder, needs, metadata);
    };
  }
  GraphParameterOptions sizes{.uniform_query_len = query_len};
  for (const int64_t size : GraphCaptureSizes(8)) sizes.sizes.push_back(size * query_len);
  auto graphs = GraphParameters::Create(options, sizes);
  ASSERT_TRUE(graphs.ok()) << graphs.status();

  const bool is_decode = query_len == 1 && masks == Masks::kNone;
  // Layers of two shapes share a stream, and so a workspace.
  DeviceProperties device;
  ASSERT_EQ(PropertiesOf(0, &device), 0);
  for (const int64_t head_size : {kDim, kDim / 2}) {
    const absl::Status status = graphs->RequireWorkspace(
        [&](const GraphParameterSet& set) -> absl::StatusOr<int64_t> {
          const auto bytes =
              WorkspaceBytes(is_decode ? OpKind::kPagedDecode : OpKind::kPagedPrefill,
                             {.max_reqs = set.num_reqs,
                              .max_tokens = set.num_tokens,
                              .num_heads = kNumHeads,
                              .num_kv_heads = kNumKvHeads,
                              .value_head_size = head_size,
                              .max_parts = 2 * device.num_multiprocessors});
          if (!bytes.ok()) return bytes.status();
          return bytes->device;
        });
    ASSERT_TRUE(status.ok()) << status;
  }
  const int64_t workspace_bytes = graphs->sets().back().workspace_bytes;
  ASSERT_GT(workspace_bytes, 0);
  const std::vector<std::byte> zeros(static_cast<size_t>(workspace_bytes));
  const Mirror workspace_memory(zeros);
  Workspace workspace;
  workspace.device = absl::MakeSpan(workspace_memory.data(), zeros.size());
  DeviceContext on;
  ExecContext context = on.context;
  context.workspace = &workspace;
  ASSERT_EQ(CreateStream(&context.stream), 0);

  const auto uploaded = DeviceMetadata::Create(context, &graphs->builder());
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  const Reference reference;
  const auto cpu = reference.MakeImpl(Layer(kDim, masks));
  const auto cuda = CudaBackend().MakeImpl(Layer(kDim, masks));
  ASSERT_TRUE(cpu.ok() && cuda.ok());
  std::vector<Tensor> caches;
  for (int i = 0; i < 2; ++i) {
    caches.emplace_back(dtype, std::vector<int64_t>{kNumPages, kPage, kNumKvHeads, kDim});
    FillWithPoison(caches.back());
    Tensor sinks(dtype, {kPage, kNumKvHeads, kDim});
    std::mt19937_64 random(13 + i);
    sinks.Set(NormalDraws(random, sinks.view.num_elements()));
    std::copy(sinks.bytes.begin(), sinks.bytes.end(),
              caches.back().bytes.begin() + kSinkBlock * sinks.bytes.size());
  }
  const Mirror k_cache(caches[0]), v_cache(caches[1]);
  const int64_t most = options.max_num_tokens;
  Tensor q(dtype, {most, kNumHeads, kDim}), k(dtype, {most, kNumKvHeads, kDim});
  Tensor v(dtype, {most, kNumKvHeads, kDim}), out(dtype, {most, kNumHeads, kDim});
  const Mirror q_copy(q), k_copy(k), v_copy(v), out_copy(out);

  std::vector<Replay> replays;
  for (const GraphParameterSet& set : graphs->sets()) {
    const auto rows = [&](const TensorView& view) { return *view.Slice(0, 0, set.num_tokens); };
    const LayerTensors tensors = {
        .q = q_copy.Of(rows(q.view)),
        .k = k_copy.Of(rows(k.view)),
        .v = v_copy.Of(rows(v.view)),
        .cache = {KvLayout::kNhd, k_cache.Of(caches[0].view), v_cache.Of(caches[1].view)},
        .out = out_copy.Of(rows(out.view))};
    replays.emplace_back(context.stream);
    replays.back().Capture([&cuda, context, tensors,
                            metadata = (*uploaded)->OnDevice(set.metadata[0])] {
      return (*cuda)->Forward(context, tensors, &metadata);
    });
    if (testing::Test::HasFatalFailure()) return;
  }

  // Requests come and go; each has computed `lengths` tokens, all of which were stored by replays.
  std::mt19937_64 random(11);
  std::vector<int64_t> lengths(8, 0);
  for (int step = 0; step < 9; ++step) {
    SCOPED_TRACE(step);
    std::vector<RequestInput> requests;
    std::vector<std::vector<int32_t>> blocks;
    std::vector<int64_t*> computed;
    for (int32_t r = 0; r < 8; ++r) {
      if (IntegerDraw(random, 0, 2) == 0 || lengths[r] + query_len > 64) continue;
      requests.push_back({lengths[r], query_len});
      blocks.push_back({4 * r + 1, 4 * r + 2, 4 * r + 3, 4 * r + 4});
      computed.push_back(&lengths[r]);
    }
    const std::vector<absl::Span<const int32_t>> tables(blocks.begin(), blocks.end());
    const auto set = graphs->Update({.requests = requests, .block_ids = tables});
    ASSERT_TRUE(set.ok()) << set.status();
    const auto index = static_cast<size_t>(*set - graphs->sets().data());
    for (Tensor* tensor : {&q, &k, &v})
      tensor->Set(NormalDraws(random, tensor->view.num_elements()));
    FillWithPoison(out);
    for (const auto& [mirror, tensor] :
         {std::pair<const Mirror&, const Tensor&>(q_copy, q), {k_copy, k}, {v_copy, v},
          {out_copy, out}}) {
      ASSERT_EQ(CopyAsync(mirror.data(), tensor.bytes.data(), tensor.bytes.size(), context.stream),
                0);
    }
    ASSERT_EQ((*uploaded)->Upload(context), absl::OkStatus());
    replays[index].Run();
    ASSERT_EQ(Synchronize(context.stream), 0);

    Tensor expected(dtype, {most, kNumHeads, kDim});
    ASSERT_EQ((*cpu)->Forward({},
                              {.q = q.view,
                               .k = k.view,
                               .v = v.view,
                               .cache = {KvLayout::kNhd, caches[0].view, caches[1].view},
                               .out = expected.view},
                              &graphs->builder().metadata()),
              absl::OkStatus());
    EXPECT_EQ(k_cache.Bytes(), caches[0].bytes);
    EXPECT_EQ(v_cache.Bytes(), caches[1].bytes);
    const std::vector<double> wanted = expected.Get();
    out_copy.CopyTo(out);
    const std::vector<double> got = out.Get();
    const auto tokens = static_cast<int64_t>(requests.size()) * query_len;
    const int64_t values = tokens * kNumHeads * kDim;
    ExpectNear(Part(got, 0, values), Part(wanted, 0, values), limit);
    // Rows of padding, which have no keys, are zeros where a decode writes them.
    for (int64_t i = values; is_decode && i < (*set)->num_tokens * kNumHeads * kDim; ++i) {
      ASSERT_EQ(got[i], 0) << i;
    }
    for (int64_t* length : computed) *length += query_len;
  }
  EXPECT_EQ(on.flags(), 0u);
  replays.clear();
  ASSERT_EQ(DestroyStream(context.stream), 0);
}

TEST(CudaGraphParametersTest, ReplaysFollowBatchesThatAreWrittenInPlace) {
  ExpectReplaysFollow(1, DType::kF32, 1e-4);
  ExpectReplaysFollow(1, DType::kBF16, 4e-2);
  ExpectReplaysFollow(3, DType::kBF16, 4e-2);
}

TEST(CudaGraphParametersTest, MasksAreThoseOfTheReplayedStep) {
  for (const Masks masks : {Masks::kWhole, Masks::kBits}) {
    ExpectReplaysFollow(1, DType::kBF16, 4e-2, masks);
    ExpectReplaysFollow(3, DType::kF32, 1e-4, masks);
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
