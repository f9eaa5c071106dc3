#include "sim/curve/testing/random_workload.h"

#include <algorithm>

#include "sim/testing/draw.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

class HitRecorder final : public EngineObserver {
 public:
  HitRecorder(int64_t block_tokens, std::vector<int64_t>* hits)
      : block_tokens_(block_tokens), hits_(hits) {}
  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    if (record.is_resume) return;
    (*hits_)[static_cast<size_t>(record.request->spec.row)] = record.num_hit_tokens / block_tokens_;
  }

 private:
  const int64_t block_tokens_;
  std::vector<int64_t>* const hits_;
};

}  // namespace

RandomWorkload MakeRandomWorkload(uint64_t seed, const RandomWorkloadOptions& options) {
  Draw draw(seed);
  RandomWorkload workload;
  workload.info.block_tokens = 1;
  workload.block_tokens = draw(options.with_full_blocks ? 1 : 2, 4);
  const int64_t documents = draw(1, 4), common = draw(0, 9), longest = draw(6, 30);
  const int64_t count = draw(1, options.most_requests);
  for (int64_t row = 0; row < count; ++row) {
    TraceRequest request;
    const TraceRequest* earlier =
        row > 0 ? &workload.requests[static_cast<size_t>(draw(0, row - 1))] : nullptr;
    if (earlier != nullptr && draw.OneIn(4)) {
      request.content_ids = earlier->content_ids;  // the same prompt again
    } else if (earlier != nullptr && draw.OneIn(3)) {
      request.content_ids = earlier->content_ids;  // a further turn
      for (const uint32_t id : earlier->output_ids) request.content_ids.push_back(id);
      for (int64_t i = draw(0, 5); i > 0; --i) request.content_ids.push_back(draw(1, 2));
      if (request.content_ids.size() > 60) request.content_ids.resize(60);
    } else {
      const int64_t document = draw(1, documents);
      for (int64_t i = draw(1, longest); i > 0; --i) {
        const auto at = static_cast<int64_t>(request.content_ids.size());
        request.content_ids.push_back(at < common ? at : 1000 * document + at);
      }
    }
    if (options.with_full_blocks && draw.OneIn(2)) {
      const auto whole = static_cast<int64_t>(request.content_ids.size()) / workload.block_tokens *
                         workload.block_tokens;
      if (whole > 0) request.content_ids.resize(static_cast<size_t>(whole));
    }
    if (!options.with_full_blocks &&
        static_cast<int64_t>(request.content_ids.size()) % workload.block_tokens == 0) {
      request.content_ids.push_back(7);
    }
    request.row = row;
    request.input_length = static_cast<int64_t>(request.content_ids.size());
    request.output_length = draw(1, 9);
    // Equal prompts get equal beginnings of outputs.
    if (options.with_output_ids && draw.OneIn(2)) {
      for (int64_t i = 0; i < request.output_length; ++i) {
        request.output_ids.push_back(static_cast<uint32_t>(5 + i));
      }
    }
    workload.requests.push_back(std::move(request));
  }
  if (options.seconds_between > 0) {
    int64_t now = 0;
    for (TraceRequest& request : workload.requests) {
      now += draw(0, static_cast<int64_t>(options.seconds_between * 1e9));
      request.arrival_ns = now;
    }
  }
  return workload;
}

SimulationConfig ConfigOfPool(const RandomWorkload& workload, int64_t num_usable,
                              FreeOrder free_order, int64_t max_num_seqs) {
  SimulationConfig config;
  config.kv_cache.num_blocks = num_usable + 1;
  config.kv_cache.groups = {FullGroup(workload.block_tokens)};
  config.manager.max_model_len = 1000;
  config.manager.free_order = free_order;
  config.scheduler.async = false;
  config.scheduler.max_num_seqs = max_num_seqs;
  config.scheduler.max_num_batched_tokens = 4096;
  config.check_invariants = false;
  return config;
}

RealHits HitsOfRealPool(const RandomWorkload& workload, const SimulationConfig& config,
                        const std::vector<EngineObserver*>& further_observers) {
  RealHits real;
  real.hits.assign(workload.requests.size(), -1);
  HitRecorder recorder(workload.block_tokens, &real.hits);
  std::vector<EngineObserver*> observers = {&recorder};
  observers.insert(observers.end(), further_observers.begin(), further_observers.end());
  VectorTraceReader reader(workload.info, workload.requests);
  const auto step_time = MakeFixedStepTime(kSecond);
  const auto simulation = Simulation::Create(config, &reader, step_time->get(), observers);
  real.status = simulation.status();
  if (!simulation.ok()) return real;
  real.status = (*simulation)->Run();
  real.result = (*simulation)->result();
  return real;
}

}  // namespace kvblocks::sim
