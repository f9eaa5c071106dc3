#include "examples/engine/engine.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/host_tiers.h"
#include "examples/engine/model_runner.h"

namespace kvblocks::engine {
namespace {

// Checks what the model cannot compute, and makes room for the output.
class PromptReader final : public sim::ForwardingReader {
 public:
  PromptReader(std::unique_ptr<sim::TraceReader> trace, int64_t vocabulary, bool has_drafts,
               const RequestAttentions& requests)
      : ForwardingReader(std::move(trace)),
        vocabulary_(vocabulary),
        has_drafts_(has_drafts),
        requests_(requests) {
    for (const auto& [id, asks] : requests) unseen_.insert(id);
  }

  absl::StatusOr<bool> Next(sim::TraceRequest& out) override {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, ForwardingReader::Next(out));
    if (!more && !unseen_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("request ", *unseen_.begin(),
                       ": something is asked of its attention, expected it in the trace"));
    }
    if (!more) return false;
    if (out.ids_cover_output || static_cast<int64_t>(out.content_ids.size()) != out.input_length) {
      return absl::InvalidArgumentError(
          absl::StrCat("request ", out.id, ": got ", out.content_ids.size(),
                       " ids, expected a token id for each of ", out.input_length,
                       " prompt tokens and none of the output"));
    }
    for (const int64_t id : out.content_ids) {
      if (id >= 0 && id < vocabulary_) continue;
      return absl::InvalidArgumentError(absl::StrCat("request ", out.id, ": got token ", id,
                                                     ", expected 0 to ", vocabulary_ - 1));
    }
    if (const auto asks = requests_.find(out.id); asks != requests_.end()) {
      const absl::Status status = asks->second.Check(out.input_length);
      if (!status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("request ", out.id, ": ", status.message()));
      }
      // Answers have it, too, so that a replay of them has the same hits.
      absl::StrAppend(&out.salt, asks->second.Salt(out.row, out.input_length));
      unseen_.erase(out.id);
    }
    out.output_length = std::max<int64_t>(out.output_length, 1);
    out.output_ids.assign(static_cast<size_t>(out.output_length), 0);
    // A step with drafts yields a token at least.
    out.accepted_drafts.assign(has_drafts_ ? out.output_ids.size() : 0, 0);
    return true;
  }

 private:
  const int64_t vocabulary_;
  const bool has_drafts_;
  const RequestAttentions& requests_;
  std::set<std::string> unseen_;  // of them
};

class Collector final : public sim::EngineObserver {
 public:
  void OnRejection(const sim::SimRequest& request, sim::SimTime) override { Take(request); }
  void OnFinish(const sim::SimRequest& request, sim::SimTime) override { Take(request); }

  std::vector<sim::TraceRequest> Sorted() {
    std::sort(requests_.begin(), requests_.end(),
              [](const auto& a, const auto& b) { return a.row < b.row; });
    return std::move(requests_);
  }

 private:
  void Take(const sim::SimRequest& request) {
    sim::TraceRequest& taken = requests_.emplace_back(request.spec);
    if (!request.is_completed()) {
      taken.output_ids.clear();
      taken.accepted_drafts.clear();
      return;
    }
    // The longest sequence may end it earlier.
    taken.output_length = request.num_outputs();
    taken.output_ids.resize(static_cast<size_t>(taken.output_length));
    taken.accepted_drafts.resize(static_cast<size_t>(request.num_verifications));
  }

  std::vector<sim::TraceRequest> requests_;
};

}  // namespace

absl::StatusOr<Served> Serve(const Model& model, const Plan& plan, sim::SimulationConfig config,
                             std::unique_ptr<sim::TraceReader> trace, const RunnerOptions& options,
                             const std::vector<sim::EngineObserver*>& observers,
                             sim::TierConnector* tiers, AttentionPlace* place) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto runner,
                            ModelRunner::Create(model, plan, config, options, place));
  return ServeBy(*runner, model.config().facts.vocab_size, plan, std::move(config),
                 std::move(trace), observers, tiers);
}

absl::StatusOr<Served> ServeBy(StepRunner& runner, int64_t vocabulary, const Plan& plan,
                               sim::SimulationConfig config,
                               std::unique_ptr<sim::TraceReader> trace,
                               const std::vector<sim::EngineObserver*>& observers,
                               sim::TierConnector* tiers) {
  if (trace->info().block_tokens != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the trace's ids stand for ", trace->info().block_tokens,
                     " tokens each, expected token ids, blocks of 1"));
  }
  config.kv_cache = plan.config;
  config.progress_interval = 1;
  auto reader = std::make_unique<PromptReader>(
      std::move(trace), vocabulary, config.drafts.num_draft_tokens > 0, runner.options().requests);
  Collector collector;
  std::vector<sim::EngineObserver*> all = {&runner, &collector};
  all.insert(all.end(), observers.begin(), observers.end());
  // First, so that the others can ask it what it found.
  if (tiers != nullptr) all.insert(all.begin(), tiers);
  KVBLOCKS_ASSIGN_OR_RETURN(const auto simulation,
                            sim::Simulation::Create(config, reader.get(), &runner, all));
  std::optional<HostTiers> host;
  if (tiers != nullptr) {
    if (tiers->NeedsEvents()) {
      return absl::InvalidArgumentError(
          "tiers that take what the device evicts: it is known when its block has been written "
          "anew; expected another store");
    }
    KVBLOCKS_RETURN_IF_ERROR(tiers->Attach(simulation->manager()));
    simulation->set_connector(tiers);
    KVBLOCKS_ASSIGN_OR_RETURN(host, HostTiers::Create(*tiers, plan, runner.memory()));
    tiers->set_on_copies([&](absl::Span<const sim::KvCopy> copies) { host->Copy(copies); });
    runner.set_hooks(&*host);
  }
  const absl::Status status = simulation->Run();
  runner.set_hooks(nullptr);
  if (!runner.status().ok()) return runner.status();
  if (!status.ok()) return status;
  return Served{
      .requests = collector.Sorted(), .result = simulation->result(), .trace = std::move(reader)};
}

}  // namespace kvblocks::engine
