// Blends with everything in device memory against the CPU's. Runs emulated and on GPUs.

#include "kvblocks/cache_blend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "attention/blend/testing/paged_model.h"
#include "attention/cuda/device_metadata.h"
#include "attention/cuda/testing/device_mirror.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

// Dense rows of any type on any device, as floats on the host and back.
std::vector<float> Load(const ConstTensorView& view) {
  const int64_t size = ElementBytes(view.dtype), count = view.num_elements();
  std::vector<std::byte> bytes(count * size);
  EXPECT_EQ(CopyAsync(bytes.data(), view.data, bytes.size(), nullptr), 0);
  EXPECT_EQ(Synchronize(nullptr), 0);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(LoadElement(view.dtype, bytes.data() + i * size));
  }
  return values;
}
void Store(const std::vector<float>& values, const TensorView& view) {
  const int64_t size = ElementBytes(view.dtype);
  std::vector<std::byte> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    StoreElement(view.dtype, values[i], bytes.data() + static_cast<int64_t>(i) * size);
  }
  EXPECT_EQ(CopyAsync(view.data, bytes.data(), bytes.size(), nullptr), 0);
  EXPECT_EQ(Synchronize(nullptr), 0);
}
TensorView Floats(std::vector<float>& values, const ConstTensorView& like) {
  TensorView view = TensorView::Contiguous(reinterpret_cast<std::byte*>(values.data()), DType::kF32,
                                           absl::MakeConstSpan(like.extent.data(), like.rank));
  return view;
}

// The model's layers on the host, whatever the rows are and wherever. All must outlive the result.
BlendModel Model(const SmallTransformer& transformer, const AttentionOps& ops,
                 const ExecContext& context) {
  BlendModel model;
  model.project = [&](int layer, const ConstTensorView& hidden, const TensorView& q,
                      const TensorView& k, const TensorView& v) {
    std::vector<float> rows = Load(hidden);
    std::vector<float> queries(q.num_elements()), keys(k.num_elements()), values(v.num_elements());
    const absl::Status status = transformer.Project(layer, Floats(rows, hidden), Floats(queries, q),
                                                    Floats(keys, k), Floats(values, v));
    Store(queries, q), Store(keys, k), Store(values, v);
    return status;
  };
  model.attend = [&](int, const PagedPrefillArgs& args) { return ops.PagedPrefill(context, args); };
  model.finish = [&](int layer, const ConstTensorView& attention, const TensorView& hidden) {
    std::vector<float> attended = Load(attention), rows = Load(hidden);
    const absl::Status status =
        transformer.Finish(layer, Floats(attended, attention), Floats(rows, hidden));
    Store(rows, hidden);
    return status;
  };
  return model;
}

std::vector<int32_t> Tokens(int64_t count, int32_t salt) {
  std::vector<int32_t> ids(count);
  for (int64_t t = 0; t < count; ++t) ids[t] = static_cast<int32_t>(1 + (t * 37 + salt * 11) % 120);
  return ids;
}

struct Precision {
  DType dtype;
  int64_t head_dim;
  double tolerance;  // of final rows, relative to values of about 1
};

class CudaBlendRunTest : public ::testing::TestWithParam<Precision> {
 protected:
  // K and V of a chunk prefilled alone.
  struct ChunkRows {
    std::vector<int32_t> ids, rotated_for;
    std::vector<Tensor> k, v;
  };
  ChunkRows MakeChunk(const std::vector<int32_t>& ids, int32_t rotated_from) {
    ChunkRows chunk{.ids = ids, .rotated_for = {}, .k = {}, .v = {}};
    const auto n = static_cast<int64_t>(ids.size());
    const auto prefilled = transformer.Prefill(CpuReference(), {}, ids);
    EXPECT_TRUE(prefilled.ok()) << prefilled.status();
    for (int64_t t = 0; rotated_from >= 0 && t < n; ++t) {
      chunk.rotated_for.push_back(rotated_from + static_cast<int32_t>(t));
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const bool key : {true, false}) {
        const std::vector<float>& rows = (key ? prefilled->k : prefilled->v)[layer];
        Tensor& tensor =
            (key ? chunk.k : chunk.v)
                .emplace_back(GetParam().dtype, std::vector<int64_t>{n, 2, GetParam().head_dim});
        tensor.Set({rows.begin(), rows.end()});
        if (!key || rotated_from < 0) continue;
        RotateKeysArgs rotate;
        rotate.in = rotate.out = tensor.view;
        rotate.positions = ViewOf(absl::MakeConstSpan(chunk.rotated_for));
        EXPECT_TRUE(CpuReference().RotateKeys({}, rotate).ok());
      }
    }
    return chunk;
  }
  // `place` passes each view of a chunk.
  template <typename Place>
  BlendSession Session(const BlendConfig& session_config, int64_t num_computed,
                       std::vector<ChunkRows>& chunks, const std::vector<int32_t>& suffix,
                       const Place& place) {
    auto session = BlendSession::Create(session_config, num_computed);
    EXPECT_TRUE(session.ok()) << session.status();
    for (ChunkRows& chunk : chunks) {
      std::vector<ConstTensorView> k, v;
      for (int layer = 0; layer < kLayers; ++layer) {
        k.push_back(place(chunk.k[layer])), v.push_back(place(chunk.v[layer]));
      }
      EXPECT_EQ(
          session->AddChunk({.ids = chunk.ids, .k = k, .v = v, .rotated_for = chunk.rotated_for}),
          absl::OkStatus());
    }
    EXPECT_EQ(session->Plan(suffix), absl::OkStatus());
    return *std::move(session);
  }
  Tensor Hidden(const PagedModel& paged) {
    Tensor hidden(GetParam().dtype, {static_cast<int64_t>(paged.hidden.size()) / kWidth, kWidth});
    hidden.Set({paged.hidden.begin(), paged.hidden.end()});
    return hidden;
  }

  static constexpr int kLayers = 4;
  static constexpr int64_t kWidth = 32;
  SmallTransformer transformer{{.num_layers = kLayers,
                                .hidden_size = kWidth,
                                .head_dim = GetParam().head_dim,
                                .ffn_size = 32}};
};

INSTANTIATE_TEST_SUITE_P(Types, CudaBlendRunTest,
                         ::testing::Values(Precision{DType::kF32, 12, 5e-5},
                                           Precision{DType::kBF16, 64, 0.1}),
                         [](const auto& parameter) { return Name(parameter.param.dtype); });

TEST_P(CudaBlendRunTest, IsThatOfTheCpu) {
  PagedModel paged(transformer, {.block_size = 16, .num_blocks = 20, .dtype = GetParam().dtype});
  BlendConfig config = transformer.blend_config();
  config.dtype = GetParam().dtype;
  std::vector<ChunkRows> chunks[2];
  for (const auto& [length, from] : {std::pair(21, 0), {14, -1}}) {
    chunks[0].push_back(MakeChunk(Tokens(length, length), from));
  }
  // Tokens of the first chunk do not deviate but for rounding, and are not chosen.
  chunks[1].push_back(MakeChunk(Tokens(5, 5), 9));
  chunks[1].push_back(MakeChunk(Tokens(12, 7), 0));
  BlendConfig first = config, second = config;
  first.check_layers = {{1, 0.6}, {2, 0.3}};
  second.check_layers = {{2, 0.5}};
  second.rank_by_keys = true;
  second.mask = BlendMask::kCompatBottomRight;
  const std::vector<int32_t> suffix = Tokens(3, 2);
  const auto on_host = [](const Tensor& tensor) { return ConstTensorView(tensor.view); };
  const BlendSession sessions[] = {Session(first, 18, chunks[0], suffix, on_host),
                                   Session(second, 0, chunks[1], suffix, on_host)};
  const std::vector<int32_t> chunked = Tokens(14, 5), decoded = Tokens(19, 6);
  std::vector<StepRequest> requests = {{.session = &sessions[0], .num_computed = 18},
                                       {.ids = chunked, .num_computed = 6},
                                       {.session = &sessions[1]},
                                       {.ids = decoded, .num_computed = 18}};
  // What is computed before the step.
  std::vector<StepRequest> before;
  for (StepRequest& request : requests) {
    const auto ids = request.session == nullptr ? absl::MakeConstSpan(request.ids)
                                                : request.session->token_ids();
    request.blocks = paged.TakeBlocks(static_cast<int64_t>(ids.size()));
    if (request.num_computed == 0) continue;
    before.push_back(
        {.ids = {ids.begin(), ids.begin() + request.num_computed}, .blocks = request.blocks});
  }
  const ExecContext host;
  const BlendModel cpu = Model(transformer, CpuReference(), host);
  paged.Build(before);
  Tensor hidden = Hidden(paged);
  BlendStep step = paged.step();
  step.hidden = hidden.view;
  ASSERT_EQ(RunBlend(CpuReference(), host, config, step, cpu).status(), absl::OkStatus());

  // The step, with everything on the device as it is now.
  paged.Build(requests);
  hidden = Hidden(paged);
  DeviceContext on;
  const auto uploaded = DeviceMetadata::Create(on.context, &paged.builder);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  ASSERT_EQ((*uploaded)->Upload(on.context), absl::OkStatus());
  std::deque<Mirror> mirrors;  // a mirror does not move
  const auto on_device = [&](const Tensor& tensor) {
    return mirrors.emplace_back(tensor).Of(tensor.view);
  };
  BlendStep device_step;
  const CommonAttentionMetadata metadata = (*uploaded)->metadata();
  device_step.metadata = &metadata;
  const BlendSession device_sessions[] = {Session(first, 18, chunks[0], suffix, on_device),
                                          Session(second, 0, chunks[1], suffix, on_device)};
  std::vector<const BlendSession*> by_row = paged.sessions;
  for (const BlendSession*& session : by_row) {
    for (int i = 0; i < 2; ++i) {
      if (session == &sessions[i]) session = &device_sessions[i];
    }
  }
  device_step.sessions = by_row;
  device_step.num_registered_tokens = paged.num_registered_tokens;
  std::vector<BlendLayer> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    const TensorView k = on_device(paged.k[layer]), v = on_device(paged.v[layer]);
    layers.push_back({KvCacheView(KvLayout::kNhd, k, v)});
  }
  device_step.layers = layers;
  device_step.hidden = on_device(hidden);
  const auto bytes =
      BlendWorkBytes(config, {.max_num_reqs = 4, .max_num_tokens = 64, .max_seq_len = 64});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  Tensor memory(DType::kU8, {*bytes});
  std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0xFF});
  device_step.work = on_device(memory);
  int uploads = 0;
  device_step.upload = [&](std::byte* to, absl::Span<const std::byte> from) {
    ++uploads;
    return CopyAsync(to, from.data(), from.size(), on.context.stream) == 0
               ? absl::OkStatus()
               : absl::InternalError("no copy");
  };
  const BlendModel cuda = Model(transformer, Cuda(), on.context);
  const auto actual = RunBlend(Cuda(), on.context, config, device_step, cuda);
  ASSERT_TRUE(actual.ok()) << actual.status();
  EXPECT_EQ(uploads, 1);
  EXPECT_EQ(on.flags(), 0u);

  step = paged.step();
  step.hidden = hidden.view;
  const auto expected = RunBlend(CpuReference(), host, config, step, cpu);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(actual->row_start, expected->row_start);
  std::vector<int32_t> positions(expected->positions.extent[0]), device_positions(positions);
  const size_t size = positions.size() * sizeof(int32_t);
  ASSERT_EQ(CopyAsync(positions.data(), expected->positions.data, size, nullptr), 0);
  ASSERT_EQ(CopyAsync(device_positions.data(), actual->positions.data, size, nullptr), 0);
  ASSERT_EQ(Synchronize(nullptr), 0);
  EXPECT_EQ(device_positions, positions);
  const double tolerance = GetParam().tolerance;
  const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& e) {
    ASSERT_EQ(a.size(), e.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(e[i]) && std::isnan(a[i])) continue;  // nobody stored it
      ASSERT_NEAR(a[i], e[i], tolerance * std::max(1.0f, std::abs(e[i]))) << i;
    }
  };
  expect_near(Load(actual->hidden), Load(expected->hidden));
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(layer);
    expect_near(Load(layers[layer].cache.k), Load(paged.k[layer].view));
    expect_near(Load(layers[layer].cache.v), Load(paged.v[layer].view));
  }
  for (size_t i = 0; i < expected->layers.size(); ++i) {
    EXPECT_EQ(actual->layers[i].bytes_stored, expected->layers[i].bytes_stored);
    EXPECT_EQ(actual->layers[i].attended_rows, expected->layers[i].attended_rows);
  }

  // What a device needs more than the host, and rows that are elsewhere.
  const auto refused = [&](const BlendStep& bad, const std::string& names) {
    const absl::Status status = RunBlend(Cuda(), on.context, config, bad, cuda).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status, Says(names));
  };
  BlendStep bad = device_step;
  bad.upload = nullptr;
  refused(bad, "the step cannot upload");
  bad = device_step;
  bad.work = {};
  refused(bad, "no work memory; on a device provide BlendWorkBytes");
  bad = device_step;
  bad.sessions = paged.sessions;
  refused(bad, "on host; the run is on cuda:0");
  bad = device_step;
  bad.hidden = hidden.view;
  refused(bad, "hidden is on host");
}

}  // namespace
}  // namespace kvblocks::attention::cuda
