// How the campaign's servers were started, where that is not the engine's default: from the scripts
// of the public repository SemiAnalysisAI/InferenceX (benchmarks/, Apache-2.0) at the points'
// dates. Weight formats of published checkpoints come from their quantization configs.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "bench/serving_points.h"

namespace kvblocks::sim {
namespace {

constexpr absl::string_view kHopper = "h100-sxm h200-sxm";
constexpr absl::string_view kBlackwell = "b200 b300";

// A row holds from a date on; the last one that fits counts. Empty texts fit everything.
struct RecipeRow {
  absl::string_view family, devices, precision, since;
  ServingRecipe recipe;
};

constexpr int64_t kTwoPrompts = ServingRecipe::kTwoPrompts;

const RecipeRow kRecipes[] = {
    {"llama", kHopper, "", "", {.kv_dtype = "fp8"}},
    {"llama",
     kBlackwell,
     "",
     "",
     {.kv_dtype = "fp8", .fuses_allreduce = true, .max_num_seqs = 512}},
    // VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8
    {"gpt_oss",
     kBlackwell,
     "",
     "",
     {.kv_dtype = "fp8",
      .expert_dtype = "w4a8_mxfp4_mxfp8",
      .fuses_allreduce = true,
      .max_num_seqs = 512}},
    {"minimax_m2", "h100-sxm", "", "", {.max_num_seqs = 256}},
    {"minimax_m2", "h200-sxm", "", "", {.has_whole_experts = true}},
    // Neither FlashInfer's nor DeepGEMM's experts: Triton's.
    {"minimax_m2",
     "b200",
     "fp8",
     "",
     {.expert_dtype = "fp8_block_triton", .has_whole_experts = true}},
    {"minimax_m2",
     kBlackwell,
     "",
     "2026-04-02",
     {.kv_dtype = "fp8", .max_num_batched_tokens = kTwoPrompts}},
    {"kimi_k2", "", "", "", {.fuses_allreduce = true}},
    // The published NVFP4 model names an FP8 cache, which the engine then takes.
    {"kimi_k2", kBlackwell, "fp4", "", {.kv_dtype = "fp8", .fuses_allreduce = true}},
    {"kimi_k2",
     "b200",
     "fp4",
     "2026-04-20",
     {.kv_dtype = "fp8", .fuses_allreduce = true, .max_num_batched_tokens = kTwoPrompts}},
};

bool Fits(absl::string_view list, absl::string_view item) {
  return list.empty() || absl::StrContains(list, item);
}

// By default; of builds between versions those of the campaign are newer.
bool FusesByDefault(const ServingPoint& point) {
  const bool is_nightly = absl::StartsWith(point.engine_version, "nightly");
  const int first = point.device == "b300" ? 19 : 17;
  return MinorVersionOf(point).value_or(is_nightly ? first : 0) >= first;
}

}  // namespace

std::optional<int> MinorVersionOf(const ServingPoint& point) {
  const std::vector<std::string> parts = absl::StrSplit(point.engine_version, '.');
  int minor;
  if (parts.size() < 2 || parts[0] != "0" || !absl::SimpleAtoi(parts[1], &minor)) {
    return std::nullopt;
  }
  return minor;
}

ServingRecipe RecipeOf(const ServingPoint& point, const std::string& family) {
  ServingRecipe recipe{.fuses_allreduce = FusesByDefault(point)};
  if (point.campaign != "inferencex") return recipe;
  for (const RecipeRow& row : kRecipes) {
    if (row.family == family && Fits(row.devices, point.device) &&
        Fits(row.precision, point.precision) &&
        row.since <= absl::string_view(point.measured_date)) {
      recipe = row.recipe;
    }
  }
  recipe.fuses_allreduce |= FusesByDefault(point);
  if (recipe.max_num_batched_tokens == kTwoPrompts) {
    recipe.max_num_batched_tokens = 2 * point.input_tokens;
  }
  return recipe;
}

}  // namespace kvblocks::sim
