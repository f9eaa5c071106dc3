// SchedulerModel: a scheduler of a few lines over a KvCacheManager, small enough that all its
// states can be visited.
//
// First come, first served. A step gives every running request, oldest first, up to `budget`
// tokens; when one does not fit, the youngest running request is preempted and returns to the head
// of the queue. A step without preemptions admits from the head of the queue until one does not
// fit. Requests end by length.

#ifndef KVBLOCKS_TESTS_EXHAUSTIVE_SCHEDULER_MODEL_H_
#define KVBLOCKS_TESTS_EXHAUSTIVE_SCHEDULER_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kvblocks/kv_cache_manager.h"

namespace kvblocks::exhaustive {

struct Job {
  std::vector<TokenId> prompt;
  int64_t num_output_tokens = 1;
};

struct SchedulerSetting {
  std::string name;
  KvCacheConfig config;
  KvCacheManagerOptions options;
  std::vector<Job> jobs;
  bool full_sequence_must_fit = false;

  friend std::ostream& operator<<(std::ostream& out, const SchedulerSetting& setting) {
    return out << setting.name;
  }
};

class SchedulerModel {
 public:
  explicit SchedulerModel(const SchedulerSetting& setting);

  // False: it has arrived already.
  bool Arrive(size_t job);
  // One engine step with up to `budget` tokens for each request.
  void Step(int64_t budget);
  // Ends the running request `index` early, as a stop token or a client does. False: no such.
  bool Stop(size_t index);

  size_t num_waiting() const { return waiting_.size(); }
  size_t num_running() const { return running_.size(); }
  size_t num_finished() const { return num_finished_; }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const KvCacheManager& manager() const { return *manager_; }

  // Everything that decides what comes next, blocks named by their first mention.
  std::string StateKey() const;

 private:
  struct State {
    std::unique_ptr<Request> request;
    bool arrived = false;
    bool finished = false;
  };

  bool Allocate(size_t job, int64_t budget);
  // False: does not fit.
  bool Admit(size_t job, int64_t budget);
  void Advance(size_t job, int64_t num_new);
  void Finish(size_t job);

  const SchedulerSetting* setting_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<State> jobs_;
  std::deque<size_t> waiting_;
  std::vector<size_t> running_;
  size_t num_finished_ = 0;
};

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_SCHEDULER_MODEL_H_
