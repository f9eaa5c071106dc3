// SM-66: what drafters cost.


#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/option_table.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;
using ::testing::HasSubstr;

ReplayConfig ConfigOf(const std::string& drafter, int64_t num_drafts,
                      const std::string& model = "llama-3.1-8b") {
  ReplayConfig given;
  given.set_model(model);
  given.set_drafter(drafter);
  given.set_num_draft_tokens(num_drafts);
  given.set_max_num_batched_tokens(2048);
  given.set_max_num_seqs(64);
  given.set_max_model_len(32768);
  auto config = EffectiveConfig({}, given);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

int64_t NumDraftLayers(const ReplayConfig& config) {
  const auto hardware = FindModelOnDevice(config);
  EXPECT_TRUE(hardware.ok()) << hardware.status();
  const auto layers = LayerCachesOf(config, hardware->model);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::count_if(layers->begin(), layers->end(),
                       [](const LayerCache& layer) { return layer.is_draft; });
}

TEST(DrafterModelTest, KindsHaveTheirPassesAndLayers) {
  struct {
    const char* drafter;
    int64_t num_passes, num_layers;
  } const cases[] = {{"ngram", 0, 0},      {"eagle", 3, 1},  {"parallel_eagle", 1, 1},
                     {"mtp", 3, 1},        {"dflash", 1, 0}, {"mtp_modules", 3, 3},
                     {"draft_model", 3, 0}};
  for (const auto& c : cases) {
    const ReplayConfig config = ConfigOf(c.drafter, 3);
    const auto drafter = DrafterOf(config, FindModelOnDevice(config)->model);
    ASSERT_TRUE(drafter.ok()) << drafter.status();
    EXPECT_EQ(drafter->num_passes, c.num_passes) << c.drafter;
    EXPECT_EQ(NumDraftLayers(config), c.num_layers) << c.drafter;
  }
  EXPECT_EQ(NumDraftLayers(ConfigOf("eagle", 0)), 0);
}

TEST(DrafterModelTest, ANamedModelBringsItsLayersAndWeights) {
  ReplayConfig config = ConfigOf("draft_model", 2, "llama-3.1-70b");
  config.set_draft_model("llama-3.1-8b");
  config.set_device("h200-sxm");
  EXPECT_EQ(NumDraftLayers(config), 32);
  const auto hardware = FindModelOnDevice(config);
  EXPECT_NEAR(MemoryOf(config, *hardware).draft_weights_gb, 16.06, 0.01);
  config.set_draft_model("no-such-model");
  EXPECT_THAT(DrafterOf(config, hardware->model).status().message(), HasSubstr("--draft-model: "));
}

TEST(DrafterModelTest, EveryModelOfTheCatalogueCanBeDrafted) {
  for (const auto& [name, model] : Catalogue::BuiltIn().models()) {
    for (const char* kind : {"eagle", "mtp"}) {
      const auto drafter = DrafterOf(ConfigOf(kind, 2, name), model);
      ASSERT_TRUE(drafter.ok()) << name << ": " << drafter.status();
      if (!drafter->model) continue;
      EXPECT_TRUE(Validate(*drafter->model).ok()) << name;
      EXPECT_EQ(drafter->model->num_layers(), 1) << name;
      EXPECT_GT(drafter->weight_bytes, 0) << name;
      EXPECT_LT(drafter->weight_bytes, model.weight_bytes() / 4) << name;
    }
  }
}

TEST(DrafterModelTest, SM66DraftsLengthenAStep) {
  const auto time = [](const ReplayConfig& config) {
    const auto hardware = FindModelOnDevice(config);
    const auto setup = MakeStepTime(config, *hardware);
    EXPECT_TRUE(setup.ok()) << setup.status();
    return *setup->model->StepTime(
        {SequenceWork{.num_context = 1000, .num_new = 4, .num_sampled = 4}});
  };
  const SimTime none = time(ConfigOf("ngram", 3));
  const SimTime eagle = time(ConfigOf("eagle", 3));
  EXPECT_GT(eagle, none);
  EXPECT_LT(eagle, 2 * none);
  EXPECT_GT(eagle, time(ConfigOf("parallel_eagle", 3)));
  ReplayConfig given = ConfigOf("eagle", 3);
  given.set_draft_time("1ms");
  EXPECT_EQ(time(given), none + 3 * kMillisecond);
  given.set_draft_time("0s");
  EXPECT_EQ(time(given), none);
}

TEST(DrafterModelTest, WhatIsNotKnownIsSaid) {
  const ReplayConfig config = ConfigOf("dspark", 3);
  const auto setup = MakeStepTime(config, *FindModelOnDevice(config));
  ASSERT_TRUE(setup.ok()) << setup.status();
  EXPECT_THAT(setup->note, HasSubstr("the drafter's time and memory are not counted: dspark"));
}

}  // namespace
}  // namespace kvblocks::sim
