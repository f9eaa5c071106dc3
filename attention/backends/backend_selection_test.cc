// T-30: every unsupported attribute is named; forced backends; decisions are remembered.

#include "kvblocks/attention_backend.h"

#include <functional>
#include <string>
#include <vector>

#include "attention/backends/layer_params.h"
#include "attention/backends/workspace.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeBackend : public AttentionBackend {
 public:
  explicit FakeBackend(const char* name) : name_(name) {
    support_.ops = {OpKind::kPagedDecode, OpKind::kPagedPrefill};
    support_.q_dtypes = {DType::kF16, DType::kBF16};
    support_.cache_dtypes = {DType::kF16, DType::kBF16, DType::kI8};
    support_.layouts = {KvLayout::kNhd, KvLayout::kPagedX};
    support_.head_sizes = {{64, 64},   {80, 80},   {96, 96},   {112, 112},
                           {120, 120}, {128, 128}, {192, 192}, {256, 256}};
    support_.block_sizes = {.exact = {8}, .multiple_of = 16};
    support_.types = {AttentionType::kDecoder};
    support_.features = {Feature::kSinks, Feature::kWindow, Feature::kAlibi};
    support_.exclusive = {{Feature::kAlibi, Feature::kWindow}};
    support_.graph_level = GraphLevel::kUniformBatch;
    support_.on_cuda = true;
    support_.least_compute_capability = 90;
    support_.end_compute_capability = 100;
  }
  const char* name() const override { return name_; }
  const AttentionOps& ops() const override { return CpuReferenceBackend().ops(); }
  const BackendSupport& support() const override { return support_; }
  std::vector<Reason> Check(const BackendConfig& config) const override {
    ++num_checks;
    return AttentionBackend::Check(config);
  }

  BackendSupport support_;
  mutable int num_checks = 0;

 private:
  const char* name_;
};

BackendConfig OnH200() {
  BackendConfig config;
  config.device = {DeviceKind::kCuda, 0};
  config.compute_capability = 90;
  return config;
}

std::vector<std::string> Texts(const std::vector<Reason>& reasons) {
  std::vector<std::string> texts;
  for (const Reason& reason : reasons) texts.push_back(reason.text);
  return texts;
}

TEST(BackendSelectionTest, EverySingleUnsupportedAttributeIsNamed) {
  struct Row {
    std::function<void(BackendConfig&)> ask;
    ReasonKind kind;
    const char* text;
    const char* in_config;
  };
  const std::vector<Row> rows = {
      {[](auto& c) { c.op = OpKind::kMlaDecode; }, ReasonKind::kOp, "op mla_decode not built",
       "op=mla_decode"},
      {[](auto& c) { c.q_dtype = DType::kF32; }, ReasonKind::kDType,
       "q dtype f32 not in {f16, bf16}", "q=f32"},
      {[](auto& c) { c.cache_dtype = DType::kF8E4M3; }, ReasonKind::kCacheDType,
       "cache dtype f8e4m3 not in {f16, bf16, i8}", "kv=f8e4m3"},
      {[](auto& c) { c.layout = KvLayout::kHnd; }, ReasonKind::kLayout,
       "layout hnd not in {paged_x, nhd}", "layout=hnd"},
      {[](auto& c) { c.head_size = 72; }, ReasonKind::kHeadSize,
       "head size 72 not in {64, 80, 96, 112, 120, 128, 192, 256}", "D=72"},
      {[](auto& c) { c.value_head_size = 64; }, ReasonKind::kHeadSize, "head size 128/64 not in",
       "Dv=64"},
      {[](auto& c) { c.num_heads = 10, c.num_kv_heads = 4; }, ReasonKind::kCombination,
       "10 heads no multiple of 4 KV heads", "H=10, Hkv=4"},
      {[](auto& c) { c.block_size = 24; }, ReasonKind::kBlockSize,
       "block size 24 not in {8} or multiples of 16", "BS=24"},
      {[](auto& c) { c.type = AttentionType::kEncoderOnly; }, ReasonKind::kFeature,
       "attention type encoder_only not in {decoder}", "encoder_only"},
      {[](auto& c) { c.graph_level = GraphLevel::kAlways; }, ReasonKind::kFeature,
       "graph level always above uniform_batch", "graph=always"},
      {[](auto& c) { c.compute_capability = 80; }, ReasonKind::kDevice,
       "sm_80 not in sm_90 to before sm_100", "sm_80"},
      {[](auto& c) { c.device = {}; }, ReasonKind::kDevice, "tensors are on host", "host}"},
      {[](auto& c) {
         c.features = {Feature::kAlibi, Feature::kWindow};
       },
       ReasonKind::kCombination, "alibi not together with window", "window, alibi"},
  };
  FakeBackend backend("CUDA_HOPPER");
  std::reverse(backend.support_.layouts.begin(), backend.support_.layouts.end());
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&backend, kCudaHopperPriority).ok());
  ASSERT_THAT(Texts(backend.Check(OnH200())), IsEmpty());
  for (const Row& row : rows) {
    BackendConfig config = OnH200();
    row.ask(config);
    const std::vector<Reason> reasons = backend.Check(config);
    ASSERT_EQ(reasons.size(), 1u) << row.text;
    EXPECT_EQ(reasons[0].kind, row.kind) << row.text;
    EXPECT_THAT(reasons[0].text, HasSubstr(row.text));
    const absl::Status status = SelectBackend(registry, config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(status, Says(row.text));
    EXPECT_THAT(status, Says(row.in_config));
  }
  for (int i = 0; i < kNumFeatures; ++i) {
    const auto feature = static_cast<Feature>(i);
    BackendConfig config = OnH200();
    config.features = {feature};
    if (backend.support_.features.contains(feature)) {
      EXPECT_THAT(Texts(backend.Check(config)), IsEmpty()) << Name(feature);
    } else {
      EXPECT_THAT(Texts(backend.Check(config)),
                  ElementsAre(std::string(Name(feature)) + " not supported"));
      EXPECT_THAT(SelectBackend(registry, config).status(),
                  Says(std::string("BS=16, ") + Name(feature) + ", sm_90}"));
    }
  }
  // Rows of 16 bytes.
  BackendConfig config = OnH200();
  backend.support_.head_sizes.clear();
  config.layout = KvLayout::kPagedX;
  config.head_size = 100;
  const std::vector<Reason> reasons = backend.Check(config);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].kind, ReasonKind::kAlignment);
}

TEST(BackendSelectionTest, OnlyRowsWithScalesInsideAreBytes) {
  for (const KvLayout layout :
       {KvLayout::kMlaFp8_656, KvLayout::kMlaFp8_584, KvLayout::kMlaLatent, KvLayout::kNhd}) {
    for (const DType dtype : {DType::kU8, DType::kF8E4M3}) {
      BackendConfig config;
      config.layout = layout;
      config.cache_dtype = dtype;
      if (IsMla(layout)) config.features = {Feature::kMla};
      const bool bytes = layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
      EXPECT_EQ(CpuBackend().Check(config).empty(), bytes == (dtype == DType::kU8))
          << Name(layout) << " of " << Name(dtype);
    }
  }
}

TEST(BackendSelectionTest, RowFormatsAreAskedFor) {
  const auto reasons = [](const AttentionBackend& backend, auto change) {
    BackendConfig config;
    config.cache_dtype = DType::kU8;
    config.row_format = KvRowFormat::kNvfp4;
    change(config);
    return Texts(backend.Check(config));
  };
  const AttentionBackend& cpu = CpuBackend();
  EXPECT_THAT(reasons(cpu, [](auto&) {}), IsEmpty());
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.layout = KvLayout::kHnd; }), IsEmpty());
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.layout = KvLayout::kPagedX; }),
              ElementsAre("rows of nvfp4 with layout paged_x"));
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.head_size = 72; }),
              ElementsAre("head size 72 no multiple of 16 for rows of nvfp4"));
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.cache_dtype = DType::kI8; }),
              ElementsAre("rows of nvfp4 with cache dtype i8"));
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.features = {Feature::kMla}; }),
              ElementsAre("rows of nvfp4 with mla"));
  const auto per_token_head = [](auto& c) {
    c.row_format = KvRowFormat::kPerTokenHead, c.cache_dtype = DType::kF8E4M3;
  };
  EXPECT_THAT(reasons(cpu, per_token_head), IsEmpty());
  EXPECT_THAT(reasons(cpu, [](auto& c) { c.row_format = KvRowFormat::kPerTokenHead; }),
              ElementsAre("rows of per_token_head with cache dtype u8"));
  const auto record = [](auto& c) {
    c.row_format = KvRowFormat::kMlaNvfp4, c.layout = KvLayout::kMlaLatent;
    c.features = {Feature::kMla};
    c.head_size = 576, c.value_head_size = 512;
  };
  EXPECT_THAT(reasons(cpu, record), IsEmpty());
  EXPECT_THAT(reasons(cpu,
                      [&](auto& c) {
                        record(c);
                        c.head_size = 512, c.row_format = KvRowFormat::kMlaNvfp4;
                      }),
              ElementsAre("head size 512 not the 576/512 of mla_nvfp4_352"));
  // A backend that has none of them.
  FakeBackend fake("FAKE");
  fake.support_.cache_dtypes.push_back(DType::kU8);
  fake.support_.on_cuda = false;
  EXPECT_THAT(reasons(fake, [](auto&) {}), ElementsAre("rows of nvfp4 not in {elements}"));
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&fake, kCudaHopperPriority).ok());
  BackendConfig config;
  config.cache_dtype = DType::kU8;
  config.row_format = KvRowFormat::kNvfp4;
  EXPECT_THAT(SelectBackend(registry, config).status(),
              Says("rows=nvfp4, host}: FAKE: [rows of nvfp4 not in {elements}]"));
  ASSERT_TRUE(registry.Register(&cpu, kCpuPriority).ok());
  EXPECT_EQ(*SelectBackend(registry, config), &cpu);
}

TEST(BackendSelectionTest, MessageListsEveryBackendWithAllReasons) {
  FakeBackend hopper("CUDA_HOPPER"), portable("CUDA_PORTABLE");
  portable.support_.head_sizes = {{64, 64}};
  portable.support_.cache_dtypes = {DType::kBF16};
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&CpuReferenceBackend(), kCpuReferencePriority).ok());
  ASSERT_TRUE(registry.Register(&portable, kCudaPortablePriority).ok());
  ASSERT_TRUE(registry.Register(&hopper, kCudaHopperPriority).ok());
  BackendConfig config = OnH200();
  config.cache_dtype = DType::kI8;
  config.head_size = 72;
  EXPECT_EQ(SelectBackend(registry, config).status(),
            absl::NotFoundError(
                "no backend for {op=decode, q=bf16, kv=int8, D=72, BS=16, sm_90}: "
                "CUDA_HOPPER: [head size 72 not in {64, 80, 96, 112, 120, 128, 192, 256}]; "
                "CUDA_PORTABLE: [cache dtype i8 not in {bf16}, head size 72 not in {64}]; "
                "CPU_REFERENCE: [tensors are on cuda:0]"));
  // A forced one: the same, for it alone.
  EXPECT_EQ(SelectBackend(registry, config, "CPU_REFERENCE").status(),
            absl::NotFoundError("no backend for {op=decode, q=bf16, kv=int8, D=72, BS=16, sm_90}: "
                                "CPU_REFERENCE: [tensors are on cuda:0]"));
  EXPECT_EQ(SelectBackend(registry, config, "NPU").status(),
            absl::NotFoundError("no attention backend NPU; there are {CUDA_HOPPER, CUDA_PORTABLE, "
                                "CPU_REFERENCE}"));
  EXPECT_EQ(SelectBackend({}, config).status(),
            absl::NotFoundError("no backend for {op=decode, q=bf16, kv=int8, D=72, BS=16, sm_90}: "
                                "none is registered"));
}

TEST(BackendSelectionTest, FirstByPriorityWithoutReasons) {
  FakeBackend hopper("CUDA_HOPPER"), portable("CUDA_PORTABLE");
  hopper.support_.q_dtypes = {DType::kBF16};
  portable.support_.least_compute_capability = 80;
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&portable, kCudaPortablePriority).ok());
  ASSERT_TRUE(RegisterCpuBackends(registry).ok());
  ASSERT_TRUE(registry.Register(&hopper, kCudaHopperPriority).ok());
  BackendConfig config = OnH200();
  EXPECT_EQ(*SelectBackend(registry, config), &hopper);
  EXPECT_EQ(*SelectBackend(registry, config, "CUDA_PORTABLE"), &portable);
  config.q_dtype = DType::kF16;
  EXPECT_EQ(*SelectBackend(registry, config), &portable);
  config.device = {};
  EXPECT_EQ(*SelectBackend(registry, config), &CpuBackend());
  config.q_dtype = DType::kF64;
  EXPECT_EQ(*SelectBackend(registry, config), &CpuReferenceBackend());
}

TEST(BackendSelectionTest, DecisionsAreRemembered) {
  FakeBackend hopper("CUDA_HOPPER");
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&hopper, kCudaHopperPriority).ok());
  BackendSelector selector(&registry);
  BackendConfig config = OnH200();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*selector.Select(config), &hopper);
  EXPECT_EQ(hopper.num_checks, 1);
  // Another configuration, a refusal, a forced backend: decisions of their own.
  config.head_size = 72;
  const absl::Status refusal = selector.Select(config).status();
  EXPECT_EQ(selector.Select(config).status(), refusal);
  EXPECT_EQ(hopper.num_checks, 2);
  config.head_size = 128;
  EXPECT_EQ(*selector.Select(config, "CUDA_HOPPER"), &hopper);
  EXPECT_EQ(hopper.num_checks, 3);
  EXPECT_EQ(selector.num_decisions(), 3);
  // A backend more may change any of them.
  FakeBackend wide("WIDE");
  wide.support_.head_sizes.clear();
  ASSERT_TRUE(registry.Register(&wide, kCudaPortablePriority).ok());
  config.head_size = 72;
  EXPECT_EQ(*selector.Select(config), &wide);
  EXPECT_EQ(selector.num_decisions(), 1);
}

TEST(BackendRegistryTest, NamesAreUnique) {
  FakeBackend one("CUDA_HOPPER"), two("CUDA_HOPPER");
  BackendRegistry registry;
  ASSERT_TRUE(registry.Register(&one, 1).ok());
  EXPECT_EQ(registry.Register(&two, 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*registry.Find("CUDA_HOPPER"), &one);
  EXPECT_FALSE(registry.Register(nullptr, 0).ok());
}

TEST(BackendRegistryTest, StaticRegistrationsAreSeenByTheDefaultRegistry) {
  static const FakeBackend backend("STATIC");
  static const BackendRegistration registration(&backend, kCudaPortablePriority);
  EXPECT_TRUE(registration.status().ok());
  EXPECT_EQ(*DefaultBackendRegistry().Find("STATIC"), &backend);
  EXPECT_EQ(*DefaultBackendRegistry().Find("CPU_REFERENCE"), &CpuReferenceBackend());
  EXPECT_EQ(BackendRegistration(&backend, 0).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(AttentionBackendTest, PreferredBlockSizeIsTheNextThatIsBuilt) {
  FakeBackend backend("FAKE");
  backend.support_.block_sizes = {.exact = {16, 64, 32}};
  EXPECT_EQ(backend.PreferredBlockSize(16), 16);
  EXPECT_EQ(backend.PreferredBlockSize(17), 32);
  EXPECT_EQ(backend.PreferredBlockSize(65), 64);
  backend.support_.block_sizes = {.exact = {8}, .multiple_of = 16};
  EXPECT_EQ(backend.PreferredBlockSize(4), 8);
  EXPECT_EQ(backend.PreferredBlockSize(9), 16);
  EXPECT_EQ(backend.PreferredBlockSize(100), 112);
}

TEST(AttentionBackendTest, CacheShapesAreThoseOfTheLayout) {
  const KvCacheGeometry geometry = {.layout = KvLayout::kNhd,
                                    .dtype = DType::kBF16,
                                    .num_blocks = 1000,
                                    .block_size = 16,
                                    .num_kv_heads = 32,
                                    .key_dim = 128,
                                    .value_dim = 128,
                                    .placement = KvPlacement::kInterleaved};
  const AttentionBackend& backend = CpuBackend();
  EXPECT_THAT(*backend.CacheShape(geometry), ElementsAre(1000, 2, 16, 32, 128));
  EXPECT_EQ(*backend.CacheBlockDim(geometry), 0);
  EXPECT_EQ(*backend.BytesPerCacheBlock(geometry), 262144);  // EX-4, per block
  EXPECT_EQ(backend.CacheStrideOrder(geometry, false)->size(), 5u);
}

// 256 sequences of 32 heads on 132 multiprocessors: O((R + parts) * H * Dv), whatever the lengths.
TEST(WorkspaceTest, DecodeNeedsPartialsOfRequestsAndParts) {
  const auto size =
      WorkspaceBytes(OpKind::kPagedDecode,
                     {.max_reqs = 256, .num_heads = 32, .value_head_size = 128, .max_parts = 132});
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->pinned, 0);
  const int64_t partials = (256 + 132) * 32 * 128 * 4, statistics = (256 + 132) * 32 * 2 * 4;
  // Plan entries, offsets of splits and of mask bits, each rounded up.
  EXPECT_EQ(size->device, partials + statistics + 4352 + 1280 + 2048);
}

// Kernels keep states of whole tiles of rows, so few heads take as much as 32.
TEST(WorkspaceTest, DecodeOfFewHeadsHasRoomForTilesOfRows) {
  const auto bytes = [](int64_t heads) {
    return WorkspaceBytes(
               OpKind::kPagedDecode,
               {.max_reqs = 8, .num_heads = heads, .value_head_size = 64, .max_parts = 264})
        ->device;
  };
  EXPECT_EQ(bytes(1), bytes(32));
  EXPECT_GE(bytes(4), 422400);  // what an H200 asked for, with two KV heads
}

TEST(WorkspaceTest, EveryOperationHasASizeThatGrowsWithTheBounds) {
  const WorkspaceBounds small = {.max_reqs = 2,
                                 .max_tokens = 100,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .value_head_size = 64,
                                 .max_parts = 4};
  WorkspaceBounds large = small;
  large.max_reqs = large.max_tokens = 10000;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    const auto a = WorkspaceBytes(op, small), b = WorkspaceBytes(op, large);
    ASSERT_TRUE(a.ok() && b.ok()) << Name(op);
    EXPECT_LE(a->device, b->device) << Name(op);
    EXPECT_EQ(a->device == 0, b->device == 0) << Name(op);
  }
}

TEST(WorkspaceTest, BadBoundsAreRefused) {
  EXPECT_THAT(WorkspaceBytes(OpKind::kPagedDecode, {.max_reqs = -1}).status(),
              Says("WorkspaceBytes(decode): a bound is -1"));
  const auto huge = WorkspaceBytes(
      OpKind::kCascade,
      {.max_tokens = int64_t{1} << 50, .num_heads = 1 << 10, .value_head_size = 1 << 10});
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(huge.status(), Says("more than 2^63 bytes"));
}

TEST(WorkspaceArenaTest, PiecesAreApartAndAligned) {
  std::vector<std::byte> memory(1024);
  WorkspaceArena arena(absl::MakeSpan(memory));
  const auto a = arena.Take(1), b = arena.Take(300);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->data(), memory.data());
  EXPECT_EQ(a->size(), 1u);
  EXPECT_EQ(b->data(), memory.data() + 256);
  EXPECT_EQ(arena.used(), 768);
  arena.Reset();
  EXPECT_EQ(arena.Take(1024)->data(), memory.data());
}

TEST(WorkspaceArenaTest, TooSmallNamesTheBytesNeeded) {
  std::vector<std::byte> memory(1024);
  WorkspaceArena arena(absl::MakeSpan(memory));
  ASSERT_TRUE(arena.Take(1000).ok());
  const absl::Status status = arena.Take(500).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status, Says("needs a workspace of 1524 bytes"));
  EXPECT_THAT(status, Says("the arena has 1024"));
  EXPECT_EQ(arena.most_needed(), 1524);
  EXPECT_EQ(arena.Take(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arena.Take(INT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(arena.Take(0)->empty());
}

// --- Published rules ---

TEST(SplitRulesTest, Ex05DecodeVersion) {
  constexpr auto kV1 = DecodeVersion::kV1, kV2 = DecodeVersion::kV2;
  EXPECT_EQ(SelectDecodeVersion(2048, 8, 32), kV2);
  EXPECT_EQ(SelectDecodeVersion(16384, 4, 32), kV2);
  EXPECT_EQ(SelectDecodeVersion(4096, 16, 32), kV2);
  EXPECT_EQ(SelectDecodeVersion(4096, 17, 32), kV1);
  EXPECT_EQ(SelectDecodeVersion(32768, 2, 32), kV2);
  EXPECT_EQ(SelectDecodeVersion(512, 1, 1), kV1);
  EXPECT_EQ(SelectDecodeVersion(513, 1, 1), kV2);
  EXPECT_EQ(SelectDecodeVersion(8192, 64, 64), kV1);
  EXPECT_EQ(SelectDecodeVersion(8193, 64, 64), kV2);
}

TEST(UseCascadeTest, Ex18Heuristic) {
  const auto choice = [](int64_t prefix, int64_t num_reqs) {
    return CascadeShape{.common_prefix_len = prefix,
                        .num_reqs = num_reqs,
                        .num_heads = 32,
                        .num_kv_heads = 8,
                        .num_multiprocessors = 132};
  };
  const auto expect = [&](int64_t prefix, int64_t num_reqs, int64_t cascade, int64_t per_request) {
    const CascadeCost cost = ModelCascade(choice(prefix, num_reqs));
    EXPECT_EQ(cost.cascade, cascade);
    EXPECT_EQ(cost.per_request, per_request);
    EXPECT_EQ(UseCascade(choice(prefix, num_reqs)), cascade < per_request);
  };
  expect(2048, 64, 16, 63);
  expect(256, 8, 2, 1);
  expect(8192, 8, 64, 32);
  expect(8192, 256, 64, 993);
}

TEST(UseCascadeTest, NeedsALongPrefixOfManyRequestsAndPlainKeys) {
  CascadeShape choice = {.common_prefix_len = 256,
                         .num_reqs = 8,
                         .num_heads = 32,
                         .num_kv_heads = 8,
                         .num_multiprocessors = 132};
  EXPECT_FALSE(UseCascade(choice));  // the model says no
  const CascadeShape tie = {.common_prefix_len = 256,
                            .num_reqs = 8,
                            .num_heads = 2,
                            .num_kv_heads = 1,
                            .num_multiprocessors = 8};
  EXPECT_EQ(ModelCascade(tie).cascade, ModelCascade(tie).per_request);
  EXPECT_FALSE(UseCascade(tie));
  choice.max_query_len = 2;
  EXPECT_TRUE(UseCascade(choice));
  choice.max_query_len = 1;
  choice.num_kv_heads = 32;
  EXPECT_TRUE(UseCascade(choice));
  const auto without = [&](auto change) {
    CascadeShape changed = choice;
    change(changed);
    return UseCascade(changed);
  };
  EXPECT_FALSE(without([](auto& c) { c.common_prefix_len = 255; }));
  EXPECT_FALSE(without([](auto& c) { c.num_reqs = 7; }));
  EXPECT_FALSE(without([](auto& c) { c.has_alibi = true; }));
  EXPECT_FALSE(without([](auto& c) { c.has_window = true; }));
  EXPECT_FALSE(without([](auto& c) { c.has_chunk = true; }));
}

}  // namespace
}  // namespace kvblocks::attention
