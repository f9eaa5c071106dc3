// How many requests a model of the catalogue serves at once.
#include "kvblocks/planning.h"

#include <cstdio>

int main() {
  using namespace kvblocks;
  const auto model = Catalogue::BuiltIn().FindModel("gemma-3-27b");
  const auto layers = LayerCaches(*model, {.tensor_parallel = 2});
  const PlanResult result =
      MakePlan(*layers, {.limits = {.max_model_len = 32768, .max_in_flight_tokens = 8192},
                         .available_bytes = {int64_t{48} << 30}});
  if (!result.ok()) return 1;
  const double requests = result.plan->Concurrency(32768);
  std::printf("planning: %.1f requests\n", requests);
  return requests > 1 ? 0 : 1;
}
