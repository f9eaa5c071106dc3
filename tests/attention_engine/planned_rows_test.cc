// Whatever the catalogue plans has views that operations take: every model, in every format of rows
// that it has, in all pool layouts.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"

namespace kvblocks {
namespace {

using attention::KvRowFormat;

TEST(PlannedRowsTest, EveryModelAndFormatOfTheCatalogueHasViews) {
  std::set<KvRowFormat> seen;
  int64_t num_plans = 0;
  for (const char* name : {"llama-3.1-8b", "gemma-4", "gpt-oss-120b", "deepseek-v3",
                           "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4.1-flash",
                           "qwen3.5-35b-a3b"}) {
    const auto model = Catalogue::BuiltIn().FindModel(name);
    ASSERT_TRUE(model.ok()) << model.status();
    for (const char* dtype : {"auto", "fp8", "int8_per_token_head", "fp8_per_token_head",
                              "int4_per_token_head", "nvfp4", "fp8_ds_mla", "nvfp4_ds_mla"}) {
      const auto caches = LayerCaches(*model, {.cache_dtype = dtype});
      if (!caches.ok()) continue;  // a format that the model has not
      bool is_planned = false;
      std::string refusals;
      for (const PoolLayout layout :
           {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
        const PlanResult planned = MakePlan(*caches, {.layout = layout,
                                                      .limits = {.max_model_len = 512,
                                                                 .max_in_flight_tokens = 64},
                                                      .num_blocks_override = 600});
        if (!planned.ok()) {  // pages that the layout does not take
          refusals += std::string(LayoutName(layout)) + ": " + planned.errors[0].message + "; ";
          continue;
        }
        is_planned = true;
        ++num_plans;
        const auto memory = PlannedMemory::Create(*planned.plan, {});
        ASSERT_TRUE(memory.ok()) << name << ", " << dtype << ", " << LayoutName(layout) << ": "
                                 << memory.status();
        for (const LayerMemory& of : memory->layers()) {
          const bool has_view = !of.cache.absent() || !of.rows.absent() || !of.states.empty();
          // Engines budget scales for latent rows, too, but no kernel of theirs reads such rows.
          const KvCacheSpec& spec = planned.plan->layers[static_cast<size_t>(of.layer)].stored;
          const bool budget_only =
              spec.has_one_vector_per_row() && (HasPerTokenHeadScales(spec.quant_mode()) ||
                                                spec.quant_mode() == QuantMode::kNvfp4);
          EXPECT_EQ(has_view, !budget_only) << name << ", " << dtype << ", " << of.name << ": "
                                            << of.opaque;
          if (!of.cache.absent()) seen.insert(of.cache.format);
        }
      }
      EXPECT_TRUE(is_planned) << name << ", " << dtype << ": " << refusals;
    }
  }
  // V4.1's records are planned where a configuration says model_version: deepseek_v4_1, not by the
  // catalogue: memory/planned_memory_test.cc.
  EXPECT_EQ(seen, (std::set{KvRowFormat::kElements, KvRowFormat::kPerTokenHead,
                            KvRowFormat::kInt4PerTokenHead, KvRowFormat::kNvfp4,
                            KvRowFormat::kMlaNvfp4}));
  EXPECT_GT(num_plans, 50);
}

}  // namespace
}  // namespace kvblocks
