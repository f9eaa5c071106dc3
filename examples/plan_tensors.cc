// From a model's name to what a server allocates: groups, blocks, and the tensor that an attention
// backend asks for in each layer.
#include <cstdio>
#include <string>

#include "kvblocks/specs/catalogue/catalogue.h"
#include "kvblocks/specs/catalogue/layer_caches.h"
#include "kvblocks/specs/planning/backend_shapes.h"
#include "kvblocks/specs/planning/planner.h"

int main() {
  using namespace kvblocks;
  const auto model = Catalogue::BuiltIn().FindModel("gemma-3-27b");
  if (!model.ok()) return 1;
  const auto caches = LayerCaches(*model, {.tensor_parallel = 2});
  if (!caches.ok()) return 1;
  const PlanResult result =
      MakePlan(*caches, {.limits = {.max_model_len = 131'072, .max_in_flight_tokens = 8'192},
                         .available_bytes = {int64_t{40} << 30}});
  if (!result.ok()) {
    for (const PlanError& error : result.errors) std::printf("%s\n", error.message.c_str());
    return 1;
  }
  const Plan& plan = *result.plan;
  std::printf("%lld blocks, %.2f requests of %lld tokens\n",
              static_cast<long long>(plan.num_blocks()),
              plan.Concurrency(plan.limits.max_model_len),
              static_cast<long long>(plan.limits.max_model_len));
  for (const PlannedGroup& group : plan.groups) {
    const auto shape = ShapeOf(BackendFamily::kFlash, group.spec, plan.num_blocks());
    if (!shape.ok()) return 1;
    std::printf("%zu layers of %s, each", group.layers.size(),
                std::string(group.spec.kind_name()).c_str());
    for (size_t d = 0; d < shape->dims.size(); ++d) {
      std::printf(" %s=%lld", std::string(shape->names[d]).c_str(),
                  static_cast<long long>(shape->dims[d]));
    }
    std::printf(" of %lld bytes\n", static_cast<long long>(shape->element_bytes));
  }
}
