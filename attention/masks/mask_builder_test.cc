// What masks contain, how they are cached and how they grow: EX-21, EX-36, T-24.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "attention/testing/says.h"
#include "kvblocks/attention_masks.h"

namespace kvblocks::attention {
namespace {

constexpr MaskElement kBoolMarker{DType::kBool, MaskEncoding::kMarker};
constexpr MaskElement kF32Additive{DType::kF32, MaskEncoding::kAdditive};

double At(const MaskRef& mask, int64_t i, int64_t j) {
  return LoadElement(mask.view.dtype, mask.view.At(i, j));
}

int64_t CountHidden(const MaskRef& mask) {
  int64_t hidden = 0;
  for (int64_t i = 0; i < mask.view.extent[0]; ++i) {
    for (int64_t j = 0; j < mask.view.extent[1]; ++j) hidden += At(mask, i, j) != 0;
  }
  return hidden;
}

// "0111 0011 0001 0000": 1 hides.
std::string Picture(const MaskRef& mask) {
  std::string text;
  for (int64_t i = 0; i < mask.view.extent[0]; ++i) {
    if (i > 0) text += ' ';
    for (int64_t j = 0; j < mask.view.extent[1]; ++j) text += At(mask, i, j) != 0 ? '1' : '0';
  }
  return text;
}

WindowMaskSpec Window(int64_t window, int64_t size, MaskElement element = kBoolMarker) {
  return {.window = window, .size = size, .element = element};
}

// --- Contents ------------------------------------------------------------------------------------

TEST(MaskContentTest, Ex21CausalMarkerRows) {
  AttentionMaskBuilder builder;
  for (const DType dtype : {DType::kBool, DType::kI8, DType::kU8, DType::kBF16, DType::kF32}) {
    const auto mask = builder.Causal(4, {dtype, MaskEncoding::kMarker});
    ASSERT_TRUE(mask.ok()) << mask.status();
    EXPECT_EQ(Picture(*mask), "0111 0011 0001 0000") << Name(dtype);
    EXPECT_EQ(At(*mask, 0, 1), 1) << Name(dtype);
  }
}

// EX-21, a window as large as its mask, every second key before the last two; of eight tokens two
// ranks have chunks 0 and 3, or 1 and 2.
TEST(MaskContentTest, PicturesOfSmallMasks) {
  AttentionMaskBuilder builder;
  EXPECT_EQ(Picture(*builder.SlidingWindow(Window(2, 6))),
            "011111 001111 100111 110011 111001 111100");
  EXPECT_EQ(Picture(*builder.SlidingWindow(Window(1, 3))), "011 101 110");
  EXPECT_EQ(Picture(*builder.SlidingWindow(Window(8, 8))),
            Picture(*builder.Causal(8, kBoolMarker)));
  EXPECT_EQ(Picture(*builder.Strided(2, 5, kBoolMarker)), "01111 00111 00011 10001 01000");
  EXPECT_EQ(Picture(*builder.PrefillContextParallel({8, 2, 0}, kBoolMarker)),
            "01111111 00111111 00000001 00000000");
  EXPECT_EQ(Picture(*builder.PrefillContextParallel({8, 2, 1}, kBoolMarker)),
            "00011111 00001111 00000111 00000011");
  EXPECT_EQ(*ContextParallelPositions({8, 2, 0}), (std::vector<int64_t>{0, 1, 6, 7}));
}

TEST(MaskContentTest, Ex21HiddenCountsOfTemplates) {
  AttentionMaskBuilder builder;
  const auto split_fuse = builder.SplitFuse();
  ASSERT_TRUE(split_fuse.ok());
  EXPECT_EQ(split_fuse->view.dtype, DType::kI8);
  EXPECT_EQ(split_fuse->form, MaskForm::kTemplate);
  EXPECT_EQ(split_fuse->view.num_elements(), 4'194'304);
  EXPECT_EQ(CountHidden(*split_fuse), 2'096'128);
  const auto mla = builder.Mla({DType::kF16, MaskEncoding::kMarker});
  ASSERT_TRUE(mla.ok());
  EXPECT_EQ(CountHidden(*mla), 130'816);
  EXPECT_EQ(At(*mla, 0, 1), -INFINITY);  // min(float32) cast to f16
}

TEST(MaskContentTest, MaskedValueOfEveryTypeAndEncoding) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    EXPECT_EQ(MaskedValue(dtype, MaskEncoding::kAdditive).value(), -INFINITY);
    EXPECT_EQ(MaskedValue(dtype, MaskEncoding::kMarker).value(),
              dtype == DType::kF16 ? -INFINITY : 1.0);
    EXPECT_EQ(MaskedValue(dtype, MaskEncoding::kAdditiveFinite).ok(), dtype == DType::kF16);
  }
  EXPECT_EQ(MaskedValue(DType::kF16, MaskEncoding::kAdditiveFinite).value(), -10000);
  for (const DType dtype : {DType::kBool, DType::kI8, DType::kU8}) {
    EXPECT_EQ(MaskedValue(dtype, MaskEncoding::kMarker).value(), 1);
    const absl::Status refused = MaskedValue(dtype, MaskEncoding::kAdditive).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused, Says(Name(dtype)));
  }
  EXPECT_FALSE(MaskedValue(DType::kI32, MaskEncoding::kMarker).ok());
}

TEST(MaskContentTest, TemplateCannotTellAWindowAsLargeAsItself) {
  AttentionMaskBuilder builder;
  WindowMaskSpec spec{.window = 2048, .form = MaskForm::kTemplate};
  const absl::Status refused = builder.SlidingWindow(spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused, Says("pre_tokens = 2047"));
  spec.pre_tokens = 2047;
  EXPECT_TRUE(builder.SlidingWindow(spec).ok());
}

// --- Caching: T-24 -------------------------------------------------------------------------------

TEST(MaskCacheTest, Ex36WindowsOfFourAndEight) {
  AttentionMaskBuilder builder;
  const auto visible = [](const MaskRef& mask) {
    return mask.view.num_elements() - CountHidden(mask);
  };
  const auto four = builder.SlidingWindow(Window(4, 2048));
  EXPECT_EQ(visible(*four), 8'186);
  EXPECT_EQ(visible(*builder.SlidingWindow(Window(8, 2048))), 16'356);
  const auto again = builder.SlidingWindow(Window(4, 2048));
  EXPECT_EQ(visible(*again), 8'186);
  EXPECT_EQ(again->view.data, four->view.data);
}

TEST(MaskCacheTest, EachComponentOfTheKeyGivesAnotherMask) {
  AttentionMaskBuilder builder;
  const auto none = [](int64_t, int64_t, std::string_view) { return false; };
  ASSERT_TRUE(builder.Register("a", none).ok());
  ASSERT_TRUE(builder.Register("b", none).ok());
  const auto custom = [&](std::string name, std::string params, int64_t rows = 8) {
    return builder.Custom({.name = name, .rows = rows, .columns = 8, .params = params});
  };
  const auto window = [&](int64_t size, int64_t n, MaskElement element = kBoolMarker) {
    return builder.SlidingWindow(Window(size, n, element));
  };
  const auto shard = [&](int64_t tokens, int32_t ranks, int32_t rank) {
    return builder.PrefillContextParallel({tokens, ranks, rank}, kBoolMarker);
  };
  // Neighbours differ in one thing.
  const auto make_all = [&] {
    return std::vector<absl::StatusOr<MaskRef>>{window(4, 16),
                                                window(5, 16),
                                                window(4, 17),
                                                window(4, 16, kF32Additive),
                                                window(4, 16, {DType::kF32, MaskEncoding::kMarker}),
                                                builder.Strided(4, 16, kBoolMarker),
                                                builder.Causal(16, kBoolMarker),
                                                builder.Mla(kBoolMarker),
                                                builder.SplitFuse(DType::kBool),
                                                shard(16, 2, 0),
                                                shard(16, 2, 1),
                                                shard(16, 4, 1),
                                                shard(15, 2, 1),
                                                custom("a", ""),
                                                custom("b", ""),
                                                custom("a", "x"),
                                                custom("a", "", 7)};
  };
  const auto first = make_all(), again = make_all();
  std::set<const std::byte*> seen;
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_TRUE(first[i].ok()) << i << first[i].status();
    EXPECT_TRUE(seen.insert(first[i]->view.data).second) << i;
    EXPECT_EQ(again[i]->view.data, first[i]->view.data) << i;
    EXPECT_EQ(again[i]->storage, first[i]->storage) << i;
  }
}

TEST(MaskCacheTest, DeviceIsTheBuildersOwn) {
  std::vector<DeviceId> uploads;
  const MaskUpload upload = [&](DeviceId device, const std::byte* host,
                                size_t bytes) -> absl::StatusOr<std::shared_ptr<const std::byte>> {
    uploads.push_back(device);
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);
    std::memcpy(copy.get(), host, bytes);
    return std::shared_ptr<const std::byte>(copy, copy.get());
  };
  AttentionMaskBuilder zero({.device = {DeviceKind::kCuda, 0}, .upload = upload});
  AttentionMaskBuilder one({.device = {DeviceKind::kCuda, 1}, .upload = upload});
  const auto a = zero.Causal(4, kBoolMarker), b = one.Causal(4, kBoolMarker);
  EXPECT_EQ(a->view.device, (DeviceId{DeviceKind::kCuda, 0}));
  EXPECT_EQ(b->view.device, (DeviceId{DeviceKind::kCuda, 1}));
  EXPECT_NE(a->view.data, b->view.data);
  EXPECT_EQ(zero.Causal(3, kBoolMarker)->view.data, a->view.data);
  EXPECT_EQ(uploads.size(), 2);  // a hit transfers nothing
  EXPECT_EQ(Picture(*a), "0111 0011 0001 0000");
  AttentionMaskBuilder without({.device = {DeviceKind::kCuda, 0}, .upload = nullptr});
  EXPECT_EQ(without.Causal(4, kBoolMarker).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(MaskCacheTest, RegisteringAgainReplacesTheMask) {
  AttentionMaskBuilder builder;
  const auto all = [](int64_t, int64_t, std::string_view) { return true; };
  const auto none = [](int64_t, int64_t, std::string_view) { return false; };
  const auto first_id = builder.Register("mine", all);
  const auto first = builder.Custom({.name = "mine", .rows = 2, .columns = 3});
  const auto second_id = builder.Register("mine", none);
  const auto second = builder.Custom({.name = "mine", .rows = 2, .columns = 3});
  EXPECT_LT(first_id.value(), second_id.value());
  EXPECT_EQ(Picture(*second), "000 000");
  EXPECT_EQ(Picture(*first), "111 111");  // still whole
}

TEST(MaskCacheTest, UnknownCustomMaskIsNotFoundWithTheNames) {
  AttentionMaskBuilder builder;
  ASSERT_TRUE(
      builder.Register("prefix", [](int64_t, int64_t, std::string_view) { return true; }).ok());
  const absl::Status status = builder.Custom({.name = "prefx", .rows = 2, .columns = 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status, Says("registered: prefix"));
  EXPECT_FALSE(builder.Register("", [](int64_t, int64_t, std::string_view) { return true; }).ok());
  EXPECT_FALSE(builder.Register("empty", nullptr).ok());
}

TEST(MaskCacheTest, ThreadsGetTheSameStorage) {
  AttentionMaskBuilder builder;
  constexpr int kThreads = 4;
  std::array<const std::byte*, kThreads> data{};
  std::array<std::string, kThreads> picture;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t n = 1; n <= 40; ++n) {
        const auto mask = builder.Causal(n, kBoolMarker);
        if (mask.ok() && n == 5) picture[t] = Picture(*mask);
      }
      data[t] = builder.SlidingWindow(Window(3, 64))->view.data;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(data[t], data[0]);
    EXPECT_EQ(picture[t], "01111 00111 00011 00001 00000");
  }
}

// --- Growth --------------------------------------------------------------------------------------

TEST(MaskGrowthTest, SmallerRequestsAreCornersOfTheLargest) {
  AttentionMaskBuilder builder;
  const auto five = builder.Causal(5, kBoolMarker);
  EXPECT_EQ(five->view.extent[0], 5);
  EXPECT_EQ(five->view.stride[0], 8);  // the capacity
  const auto eight = builder.Causal(8, kBoolMarker), three = builder.Causal(3, kBoolMarker);
  EXPECT_EQ(eight->view.data, five->view.data);
  EXPECT_EQ(three->view.data, five->view.data);
  EXPECT_EQ(Picture(*three), "011 001 000");
  const auto nine = builder.Causal(9, kBoolMarker);
  EXPECT_NE(nine->view.data, five->view.data);
  EXPECT_EQ(nine->view.stride[0], 16);
  // Never shrinks: the corner now comes from the larger one, and the next size up is there.
  EXPECT_EQ(builder.Causal(2, kBoolMarker)->view.data, nine->view.data);
  EXPECT_EQ(builder.Causal(16, kBoolMarker)->view.data, nine->view.data);
}

TEST(MaskGrowthTest, EarlierRefsStayValidThroughGrowthAndClear) {
  auto builder = std::make_unique<AttentionMaskBuilder>();
  const auto early = builder->Causal(4, kF32Additive);
  const std::byte* const data = early->view.data;
  ASSERT_TRUE(builder->Causal(100, kF32Additive).ok());
  builder->Clear();
  ASSERT_TRUE(builder->Causal(4, kF32Additive).ok());
  builder.reset();
  EXPECT_EQ(early->view.data, data);
  EXPECT_EQ(Picture(*early), "0111 0011 0001 0000");
}

TEST(MaskGrowthTest, ClearShrinks) {
  AttentionMaskBuilder builder;
  ASSERT_TRUE(builder.Causal(100, kBoolMarker).ok());
  builder.Clear();
  EXPECT_EQ(builder.Causal(3, kBoolMarker)->view.stride[0], 4);
}

TEST(MaskGrowthTest, PackingFollowsAnyStride) {
  AttentionMaskBuilder builder({.device = {}, .upload = nullptr, .max_mask_bytes = 1 << 10});
  MaskRef transposed = *builder.Causal(3, kF32Additive);
  transposed.view = *transposed.view.Permute({1, 0});
  const auto packed = builder.Pack(transposed);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_TRUE(packed->view.contiguous());
  EXPECT_EQ(Picture(*packed), "000 100 110");
  EXPECT_EQ(packed->encoding, transposed.encoding);
  EXPECT_EQ(builder.Pack(*packed)->view.data, packed->view.data);
  MaskRef broadcast = transposed;
  broadcast.view.extent = {int64_t{1} << 40, int64_t{1} << 40, 1, 1, 1, 1};
  broadcast.view.stride = {};
  EXPECT_EQ(builder.Pack(broadcast).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(MaskGrowthTest, NothingIsMadeDuringACapture) {
  AttentionMaskBuilder builder;
  ASSERT_TRUE(builder.Prewarm(10, kBoolMarker).ok());
  builder.BeginCapture();
  EXPECT_TRUE(builder.Causal(16, kBoolMarker).ok());
  EXPECT_TRUE(builder.Causal(1, kBoolMarker).ok());
  const absl::Status grown = builder.Causal(17, kBoolMarker).status();
  EXPECT_EQ(grown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(grown, Says("32 x 32"));
  EXPECT_EQ(builder.SplitFuse().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(builder.Pack(*builder.Causal(5, kBoolMarker)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  builder.EndCapture();
  EXPECT_TRUE(builder.Causal(17, kBoolMarker).ok());
}

TEST(MaskGrowthTest, BadSizesAreRefusedBeforeAnythingIsAllocated) {
  AttentionMaskBuilder builder({.device = {}, .upload = nullptr, .max_mask_bytes = 1 << 20});
  EXPECT_EQ(builder.Causal(0, kBoolMarker).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(builder.Causal(-5, kBoolMarker).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(builder.Causal(int64_t{1} << 40, kBoolMarker).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status large = builder.Causal(int64_t{1} << 31, kF32Additive).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(large, Says("1048576 bytes"));
  EXPECT_FALSE(builder.Custom({.name = "x", .rows = 0, .columns = 1}).ok());
  EXPECT_FALSE(builder.Strided(0, 4, kBoolMarker).ok());
  EXPECT_FALSE(builder.SlidingWindow(Window(0, 6)).ok());
  EXPECT_FALSE(builder.PrefillContextParallel({8, 2, 2}, kBoolMarker).ok());
  EXPECT_FALSE(builder.PrefillContextParallel({0, 2, 1}, kBoolMarker).ok());
  // 3 tokens in 8 chunks: rank 3 holds chunks 3 and 4, which are empty.
  EXPECT_FALSE(builder.PrefillContextParallel({3, 4, 3}, kBoolMarker).ok());
  // Its rows would take 16 GiB to list.
  EXPECT_EQ(builder.PrefillContextParallel({int64_t{1} << 31, 1, 0}, kBoolMarker).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// --- Wiring --------------------------------------------------------------------------------------

// Two requests of two rows over three keys: one by the batch's rule, one by its own.
TEST(MaskBitsTest, ARequestMayHaveARuleOfItsOwn) {
  AttentionMaskBuilder builder;
  const MaskRule own = WindowRule(1);
  const MaskRows rows[] = {{.first_position = 1, .num_rows = 2, .num_keys = 3},
                           {.first_position = 1, .num_rows = 2, .num_keys = 3, .rule = &own}};
  const auto mask = builder.Bits(WindowRule(2), rows);
  ASSERT_TRUE(mask.ok()) << mask.status();
  const auto* bytes = reinterpret_cast<const uint8_t*>(mask->view.data);
  EXPECT_EQ(bytes[0] | bytes[1] << 8, 0b011'101'001'100);
}

TEST(MaskWiringTest, NoMasksUnlessTheBackendAsks) {
  AttentionMaskBuilder builder;
  CommonAttentionMetadata metadata;
  MaskNeeds needs{.window = 64};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_TRUE(metadata.attn_mask.null());
  EXPECT_TRUE(metadata.swa_mask.null());
  EXPECT_FALSE(ChooseMask(metadata, 64).enabled());
}

TEST(MaskWiringTest, GenerationPoolingAndWindows) {
  AttentionMaskBuilder builder;
  CommonAttentionMetadata metadata;
  MaskNeeds needs{.explicit_masks = true, .window = 64};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_EQ(metadata.attn_mask.view.dtype, DType::kI8);
  const ExplicitMask full = ChooseMask(metadata, 0), windowed = ChooseMask(metadata, 64);
  EXPECT_EQ(full.sparse_mode, 3);
  EXPECT_EQ(full.tensor.data, builder.SplitFuse()->view.data);
  EXPECT_EQ(windowed.sparse_mode, 4);
  EXPECT_EQ(windowed.pre_tokens, 63);  // the query itself is not counted
  EXPECT_EQ(windowed.next_tokens, 0);
  EXPECT_EQ(windowed.tensor.data, metadata.swa_mask.view.data);

  needs = {.explicit_masks = true, .pooling = true};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_EQ(metadata.attn_mask.view.dtype, DType::kBool);
  EXPECT_EQ(metadata.attn_mask.view.extent[0], 2048);
  EXPECT_EQ(metadata.attn_mask.form, MaskForm::kTemplate);
  EXPECT_TRUE(metadata.swa_mask.null());
}

TEST(MaskWiringTest, WindowBeyondTheTemplateIsCarriedByPreTokens) {
  AttentionMaskBuilder builder;
  CommonAttentionMetadata metadata;
  ASSERT_TRUE(AttachMasks(builder, {.explicit_masks = true, .window = 4096}, &metadata).ok());
  EXPECT_EQ(ChooseMask(metadata, 4096).pre_tokens, 4095);
}

TEST(MaskWiringTest, NonCausalStepsGetNoMask) {
  AttentionMaskBuilder builder;
  CommonAttentionMetadata metadata;
  metadata.causal = false;
  ASSERT_TRUE(AttachMasks(builder, {.explicit_masks = true, .window = 8}, &metadata).ok());
  EXPECT_FALSE(ChooseMask(metadata, 8).enabled());
}

TEST(MaskWiringTest, CustomComesBeforeWindowBeforeStandard) {
  AttentionMaskBuilder builder;
  ASSERT_TRUE(
      builder.Register("even", [](int64_t, int64_t j, std::string_view) { return j % 2 == 1; })
          .ok());
  CommonAttentionMetadata metadata;
  metadata.max_seq_len = 300;
  MaskNeeds needs{.explicit_masks = true, .window = 8};
  needs.custom = {.enabled = true, .name = "even"};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_FALSE(metadata.attn_mask.null());
  EXPECT_FALSE(metadata.swa_mask.null());
  const ExplicitMask chosen = ChooseMask(metadata, 8);
  EXPECT_EQ(chosen.tensor.data, metadata.custom_mask.view.data);
  EXPECT_EQ(chosen.sparse_mode, 1);
  EXPECT_TRUE(chosen.rows_are_absolute);
  EXPECT_EQ(chosen.tensor.extent[0], 512);

  needs.custom = {.enabled = true, .type = CustomMaskConfig::Type::kWindow, .parameter = 3};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_EQ(At(metadata.custom_mask, 10, 8), 0);
  EXPECT_EQ(At(metadata.custom_mask, 10, 7), 1);
  needs.custom = {.enabled = true, .type = CustomMaskConfig::Type::kSparse, .parameter = 4};
  ASSERT_TRUE(AttachMasks(builder, needs, &metadata).ok());
  EXPECT_EQ(At(metadata.custom_mask, 20, 16), 0);
  EXPECT_EQ(At(metadata.custom_mask, 20, 15), 1);
}

TEST(MaskWiringTest, FailureChangesNothing) {
  AttentionMaskBuilder builder;
  CommonAttentionMetadata metadata;
  ASSERT_TRUE(AttachMasks(builder, {.explicit_masks = true}, &metadata).ok());
  const std::byte* const before = metadata.attn_mask.view.data;
  MaskNeeds needs{.explicit_masks = true, .pooling = true};
  needs.custom = {.enabled = true, .name = "unknown"};
  EXPECT_EQ(AttachMasks(builder, needs, &metadata).code(), absl::StatusCode::kNotFound);
  needs.custom = {.enabled = true, .type = CustomMaskConfig::Type::kWindow, .parameter = 0};
  EXPECT_EQ(AttachMasks(builder, needs, &metadata).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AttachMasks(builder, {.explicit_masks = true, .window = -1}, &metadata).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(metadata.attn_mask.view.data, before);
}

}  // namespace
}  // namespace kvblocks::attention
