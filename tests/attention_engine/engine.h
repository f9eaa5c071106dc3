// Engine: a little serving engine that lives on chance, outside of sim/ and on public API alone:
// the block manager decides, a KvCacheVerifier computes each step with tensors and compares.
//
// Each step admits, prefills in chunks, decodes with and without drafts, preempts and resumes,
// finishes, evicts and resets by the seed. Prompts begin alike, so that prefixes are hit. Requests
// that continue another one's tokens stand for forks, which the manager does not have.

#ifndef KVBLOCKS_TESTS_ATTENTION_ENGINE_ENGINE_H_
#define KVBLOCKS_TESTS_ATTENTION_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_cache_verifier.h"

namespace kvblocks::testing {

// The verifier's view of a manager's groups; query heads get the sink logits `sinks`.
std::vector<attention::VerifiedGroup> GroupsOf(const KvCacheManager& manager,
                                               std::vector<float> sinks);
attention::BlockUse UseOfBlock(const KvCacheManager& manager, int32_t block);

struct EngineOptions {
  std::vector<KvCacheSpec> specs;
  int64_t num_blocks = 40;
  int64_t max_model_len = 96;
  int64_t max_running = 5;
  int64_t max_step_tokens = 24;
  uint64_t seed = 1;
};

// What happened, so that tests can ask for it.
struct EngineCounts {
  int64_t steps = 0, admissions = 0, hits = 0, preemptions = 0, resumes = 0, finished = 0;
  int64_t rejected_drafts = 0, evicted = 0, resets = 0, forks = 0, nulls = 0;
};

class Engine {
 public:
  Engine(const EngineOptions& options, const attention::AttentionOps& ops);

  // OK, or the verifier's failure.
  absl::Status Step();
  // Ends all requests.
  absl::Status Drain();

  const EngineCounts& counts() const { return counts_; }
  const attention::KvCacheVerifier& verifier() const { return *verifier_; }
  const KvCacheManager& manager() const { return *manager_; }

 private:
  struct Live {
    uint64_t id = 0;
    std::unique_ptr<Request> request;
    std::vector<int64_t> tokens;  // known ones, then those it will produce
    int64_t end = 0;              // known tokens at which it finishes
    int64_t scheduled = 0;        // in this step, drafts included
    int64_t drafts = 0;
  };

  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  void Arrive();
  void ScheduleRunning();
  void Admit();
  absl::Status Preempt(size_t index);
  absl::Status Verify();
  absl::Status Settle();
  absl::Status Evict();
  std::vector<TokenId> TokenIds(const Live& live, int64_t begin, int64_t end) const;

  const EngineOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<attention::KvCacheVerifier> verifier_;
  std::vector<std::unique_ptr<Live>> running_, waiting_;
  uint64_t next_id_ = 0;
  absl::Status status_;
  EngineCounts counts_;
};

}  // namespace kvblocks::testing

#endif  // KVBLOCKS_TESTS_ATTENTION_ENGINE_ENGINE_H_
