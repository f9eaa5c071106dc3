// T-11: attention through an explicit mask is attention by lengths, windows and chunks, to the bit;
// and that is what the dense oracle gets.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_masks.h"

namespace kvblocks::attention {
namespace {

// Backends whose masked and implicit paths must agree bit for bit.
std::vector<const AttentionOps*> Backends() { return {&CpuReference(), &Cpu()}; }

Tolerance ToleranceOf(const AttentionOps& ops, DType out) {
  return &ops == &CpuReference() ? ReferenceTolerance(out) : CpuTolerance(out);
}

// What both operations write, paged and contiguous. `error` says what failed or, of implicit rules,
// is off.
std::vector<std::byte> RunBoth(const AttentionOps& ops, PagedCase& paged, std::string* error) {
  const Tolerance tolerance = ToleranceOf(ops, paged.options().q_dtype);
  std::vector<std::byte> bytes;
  const auto add = [&](const absl::Status& status) {
    if (!status.ok()) *error = std::string(status.message());
    if (error->empty() && !paged.params.mask.enabled()) *error = paged.Mismatch(tolerance);
    const std::vector<std::byte> more = OutputBytes(paged);
    bytes.insert(bytes.end(), more.begin(), more.end());
    paged.ClearOutputs();
  };
  paged.ClearOutputs();
  add(ops.PagedPrefill({}, paged.PrefillArgs()));
  add(ops.VarlenSelfAttention({}, paged.VarlenArgs()));
  return bytes;
}

// A visibility that parameters can say, and the same as a rule over absolute positions.
struct Rule {
  AttnParams params;  // what is not visibility is left at its default
  std::function<bool(int64_t p, int64_t j, int64_t h)> visible;
  int64_t window = 0;  // of a causal window, else 0
  // Keys before and after the query that it sees, for rules that are bands.
  std::optional<std::pair<int64_t, int64_t>> band;
  bool causal_only = false;
  bool everything = false;
  bool by_head = false;
};

Rule DrawRule(int64_t block_size) {
  Rule rule;
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      rule.causal_only = true;
      rule.band = {kUnlimitedTokens, 0};
      rule.visible = [](int64_t p, int64_t j, int64_t) { return j <= p; };
      break;
    case 1: {
      rule.window = *rc::gen::inRange<int64_t>(1, 12);
      rule.params.window_left = rule.window - 1;
      rule.band = {rule.window - 1, 0};
      rule.visible = [w = rule.window](int64_t p, int64_t j, int64_t) {
        return j <= p && j > p - w;
      };
      break;
    }
    case 2: {
      const int64_t left = *rc::gen::inRange<int64_t>(0, 8);
      const int64_t right = *rc::gen::inRange<int64_t>(0, 8);
      rule.params.causal = false;
      rule.params.window_left = left;
      rule.params.window_right = right;
      rule.band = {left, right};
      rule.visible = [left, right](int64_t p, int64_t j, int64_t) {
        return j >= p - left && j <= p + right;
      };
      break;
    }
    case 3: {
      rule.params.chunk = block_size * *rc::gen::inRange<int64_t>(1, 4);
      rule.visible = [c = rule.params.chunk](int64_t p, int64_t j, int64_t) {
        return j <= p && j / c == p / c;
      };
      break;
    }
    case 4: {
      const int64_t local = *rc::gen::inRange<int64_t>(1, 3);
      const int64_t stride = *rc::gen::inRange<int64_t>(2, 4);
      rule.by_head = true;
      rule.params.block_sparse = {static_cast<int32_t>(local), static_cast<int32_t>(stride),
                                  block_size, 1, 0};
      rule.visible = [=](int64_t p, int64_t j, int64_t h) {
        const int64_t q_block = p / block_size, k_block = j / block_size;
        return j <= p && (k_block > q_block - local || (k_block + h + 1) % stride == 0);
      };
      break;
    }
    default:
      rule.everything = true;
      rule.params.causal = false;
      rule.visible = [](int64_t, int64_t, int64_t) { return true; };
  }
  return rule;
}

// A mask, and the memory it is in.
struct OwnedMask {
  ExplicitMask mask;
  MaskRef ref;
  Tensor tensor;
};

// The rule as a full mask of a drawn form, element and mode.
OwnedMask DrawFullMask(const Rule& rule, const PagedCaseOptions& batch) {
  const int64_t num_requests = static_cast<int64_t>(batch.lengths.size());
  OwnedMask owned;
  std::vector<MaskForm> forms = {MaskForm::kPerHead};
  if (!rule.by_head) {
    forms.insert(forms.end(), {MaskForm::kPerRequest, MaskForm::kRaggedBits, MaskForm::kShared});
  }
  const MaskForm form = *rc::gen::elementOf(forms);
  const auto [dtype, encoding] = *rc::gen::element(std::pair(DType::kBool, MaskEncoding::kMarker),
                                                   std::pair(DType::kF16, MaskEncoding::kMarker),
                                                   std::pair(DType::kBF16, MaskEncoding::kMarker),
                                                   std::pair(DType::kF16, MaskEncoding::kAdditive),
                                                   std::pair(DType::kF32, MaskEncoding::kAdditive));
  owned.mask.form = form;
  owned.mask.sparse_mode = *rc::gen::element(0, 1);  // without a band 0 is the mask, too
  if (form == MaskForm::kRaggedBits) {
    int64_t bits = 0;
    for (int64_t b = 0; b < num_requests; ++b) bits += batch.q_lens[b] * batch.lengths[b];
    owned.tensor = Tensor(DType::kU8, {(bits + 7) / 8});
    int64_t bit = 0;
    for (int64_t b = 0; b < num_requests; ++b) {
      for (int64_t i = 0; i < batch.q_lens[b]; ++i) {
        for (int64_t j = 0; j < batch.lengths[b]; ++j, ++bit) {
          if (!rule.visible(batch.lengths[b] - batch.q_lens[b] + i, j, 0)) {
            owned.tensor.bytes[bit / 8] |= std::byte(1 << (bit % 8));
          }
        }
      }
    }
    owned.mask.tensor = owned.tensor.view;
    return owned;
  }
  const int64_t size = *std::max_element(batch.lengths.begin(), batch.lengths.end());
  // Rows of one tensor for all requests can only be positions.
  owned.mask.rows_are_absolute = form == MaskForm::kShared || *rc::gen::arbitrary<bool>();
  owned.mask.encoding = encoding;
  const int64_t head_extent = form == MaskForm::kPerHead ? batch.num_heads : 1;
  const int64_t batch_extent = form == MaskForm::kShared ? 1 : num_requests;
  std::vector<double> values;
  for (int64_t b = 0; b < batch_extent; ++b) {
    for (int64_t h = 0; h < head_extent; ++h) {
      for (int64_t row = 0; row < size; ++row) {
        const int64_t p =
            owned.mask.rows_are_absolute ? row : batch.lengths[b] - batch.q_lens[b] + row;
        for (int64_t j = 0; j < size; ++j) {
          values.push_back(rule.visible(p, j, h) ? 0.0 : *MaskedValue(dtype, encoding));
        }
      }
    }
  }
  std::vector<int64_t> extents = {size, size};
  if (form == MaskForm::kPerHead) extents.insert(extents.begin(), head_extent);
  if (form != MaskForm::kShared) extents.insert(extents.begin(), batch_extent);
  owned.tensor = Tensor(dtype, extents);
  owned.tensor.Set(values);
  owned.mask.tensor = owned.tensor.view;
  return owned;
}

// The rule as a template in mode 2, 3 or 4, or as mode 0's band or nothing, if it can be one.
std::optional<OwnedMask> DrawTemplate(const Rule& rule, const PagedCaseOptions& batch) {
  static AttentionMaskBuilder* const builder = new AttentionMaskBuilder;
  OwnedMask owned;
  if (rule.everything) {
    owned.mask.sparse_mode = 0;
    return owned;
  }
  // A mask that hides nothing and mode 0's band, counted from the upper left: from positions.
  if (rule.band.has_value() && (!rule.params.causal || *rc::gen::arbitrary<bool>())) {
    const int64_t longest = *std::max_element(batch.lengths.begin(), batch.lengths.end());
    owned.tensor = Tensor(DType::kI8, {longest, longest});
    owned.tensor.Set(std::vector<double>(longest * longest));
    owned.mask.tensor = owned.tensor.view;
    owned.mask.form = MaskForm::kShared;
    owned.mask.rows_are_absolute = true;
    owned.mask.sparse_mode = 0;
    owned.mask.pre_tokens = rule.band->first;
    owned.mask.next_tokens = rule.band->second;
    return owned;
  }
  if (!rule.causal_only && rule.window == 0) return std::nullopt;
  constexpr MaskElement kI8{DType::kI8, MaskEncoding::kMarker};
  const int64_t size = *rc::gen::inRange<int64_t>(2, 50);  // of the template: any will do
  if (rule.window > 0) {
    if (rule.window < size && *rc::gen::arbitrary<bool>()) {
      owned.ref = *builder->SlidingWindow({rule.window, size, kI8, MaskForm::kTemplate});
      owned.mask = owned.ref.ToExplicit(3);
      return owned;
    }
    owned.ref = *builder->Causal(size, kI8);
    owned.ref.form = MaskForm::kTemplate;
    owned.mask = owned.ref.ToExplicit(4, rule.window - 1, 0);
    return owned;
  }
  owned.ref = *builder->Causal(size, kI8);
  owned.ref.form = MaskForm::kTemplate;
  // Mode 2 counts from the upper left corner: the same where nothing is cached.
  const bool fresh = batch.lengths == batch.q_lens;
  owned.mask = owned.ref.ToExplicit(fresh && *rc::gen::arbitrary<bool>() ? 2 : 3);
  return owned;
}

RC_GTEST_PROP(MaskedAttentionPropertyTest, T11ExplicitEqualsImplicitBitForBit, ()) {
  PagedCaseOptions options;
  options.lengths.clear();
  options.q_lens.clear();
  const bool fresh = *rc::gen::arbitrary<bool>();
  for (int64_t b = *rc::gen::inRange<int64_t>(1, 4); b > 0; --b) {
    options.lengths.push_back(*rc::gen::inRange<int64_t>(1, 30));
    options.q_lens.push_back(fresh ? options.lengths.back()
                                   : *rc::gen::inRange<int64_t>(0, options.lengths.back() + 1));
  }
  options.block_size = *rc::gen::element(1, 4, 5);
  options.key_dim = options.value_dim = 8;
  options.q_dtype = options.cache_dtype = *rc::gen::element(DType::kF32, DType::kBF16);
  options.layout = options.q_dtype == DType::kBF16
                       ? *rc::gen::element(KvLayout::kNhd, KvLayout::kPagedX)
                       : *rc::gen::element(KvLayout::kNhd, KvLayout::kHnd);
  options.seed = *rc::gen::inRange<uint64_t>(1, 1 << 20);
  const Rule rule = DrawRule(options.block_size);
  const OwnedMask full = DrawFullMask(rule, options);
  const std::optional<OwnedMask> by_template = DrawTemplate(rule, options);
  const bool keep_causal = rule.params.causal && *rc::gen::arbitrary<bool>();

  for (const AttentionOps* ops : Backends()) {
    PagedCase paged(options);
    const AttnParams plain = paged.params;
    paged.params = rule.params;
    paged.params.scale = plain.scale;
    std::string error;
    const std::vector<std::byte> implicit = RunBoth(*ops, paged, &error);
    if (!error.empty()) RC_FAIL("implicit: " + error);

    for (const OwnedMask* owned : {&full, by_template.has_value() ? &*by_template : nullptr}) {
      if (owned == nullptr) continue;
      paged.params = plain;
      paged.params.causal = keep_causal;
      paged.params.mask = owned->mask;
      const std::vector<std::byte> explicitly = RunBoth(*ops, paged, &error);
      if (!error.empty()) RC_FAIL("explicit: " + error);
      RC_ASSERT(explicitly == implicit);
    }
  }
}

TEST(MaskedAttentionTest, FiniteAdditiveMaskIsAddedAndDoesNotHide) {
  PagedCaseOptions options;
  options.lengths = {3};
  options.q_lens = {1};
  options.key_dim = options.value_dim = 8;
  PagedCase paged(options);
  AttentionMaskBuilder builder;
  ASSERT_TRUE(
      builder.Register("all", [](int64_t, int64_t, std::string_view) { return true; }).ok());
  const auto run = [&](const AttentionOps& ops, MaskEncoding encoding) {
    const auto mask = builder.Custom(
        {.name = "all", .rows = 1, .columns = 3, .element = {DType::kF16, encoding}});
    paged.params.mask = mask->ToExplicit(1);
    EXPECT_EQ(ops.PagedPrefill({}, paged.PrefillArgs()), absl::OkStatus());
    return paged.out.Get();
  };
  for (const AttentionOps* ops : Backends()) {
    paged.params.mask = {};
    ASSERT_TRUE(ops->PagedPrefill({}, paged.PrefillArgs()).ok());
    const std::vector<double> plain = paged.out.Get();
    const std::vector<double> finite = run(*ops, MaskEncoding::kAdditiveFinite);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(finite[i], plain[i], 1e-6);
    EXPECT_EQ(run(*ops, MaskEncoding::kAdditive), std::vector<double>(plain.size()));
    EXPECT_EQ(run(*ops, MaskEncoding::kMarker), std::vector<double>(plain.size()));
  }
}

}  // namespace
}  // namespace kvblocks::attention
