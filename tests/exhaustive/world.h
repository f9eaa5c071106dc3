// World: a KvCacheManager and the oracle with the same few requests, to which actions are applied.
//
// Everything observable is compared after an applied action if asked to: outcomes, new blocks, hit
// lists, queue order, references, keys with their holders in order, tables, events, counters,
// statistics, CheckInvariants. A world that was found different stays so: error() says how.

#ifndef KVBLOCKS_TESTS_EXHAUSTIVE_WORLD_H_
#define KVBLOCKS_TESTS_EXHAUSTIVE_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/kv_cache_manager.h"
#include "tests/oracle/comparison.h"

namespace kvblocks::exhaustive {

// An action is one call, or the few calls a scheduler makes together, from the small alphabet whose
// sequences are all tried. It is a plain value whose meaning depends on nothing but the state it is
// applied in, so a sequence of them can be replayed.
enum class ActionKind {
  kAdmit,         // look up and allocate `amount` tokens behind the hit (0: all)
  kAdmitStrict,   // the same with the full-sequence gate, a reserved block and the watermark
  kLookUp,        // keep a look-up for later
  kAdmitStale,    // allocate with the look-up kept, whatever happened since
  kAdopt,         // look up and take the hit only
  kExternal,      // look up; `amount` external tokens and one new token
  kDelayed,       // look up; `amount` external tokens that arrive later: nothing is registered
  kRegister,      // register what was delayed
  kStep,          // allocate `amount` known tokens (0: all), a new output token if none is left
  kStepLagging,   // the same, but the step stays in flight until the next one
  kStepDrafting,  // the same with two drafts and a slot of lookahead; one draft is accepted
  kTrim,          // free what the computed tokens made unreachable
  kFree,          // finish; the same prompt may come again as a new request
  kPreempt,       // free, to come back with its output
  kPop,           // take the blocks without freeing them
  kGiveBack,      // free the popped list, deepest first
  kEvictHeld,     // evict the first real block of the request's group `amount`
  kEvictFirst,    // evict the queue's first cached block
  kEvictLast,     // evict the queue's last cached block
  kReset,         // reset the prefix cache
};

struct Action {
  ActionKind kind = ActionKind::kAdmit;
  int request = 0;
  int64_t amount = 0;
};

std::string ToString(const Action& action);
std::string ToString(const std::vector<Action>& actions);

// What is explored: a configuration, the prompts of requests A, B, ..., and the actions to try.
struct Setting {
  std::string name;
  KvCacheConfig config;
  KvCacheManagerOptions options;
  std::vector<oracle::Content> prompts;
  std::vector<Action> alphabet;
};

class World {
 public:
  World(const Setting& setting, oracle::ContentNumbers* numbers);

  // False: means nothing in this state, and nothing was called.
  bool Apply(const Action& action);

  // Forgets the events so far.
  void DropEvents();

  // Compares both sides after the latest action.
  void CompareState();
  // Compares what questions give that change nothing: look-ups of every request, common prefixes.
  void CompareAnswers();

  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  const oracle::Pool& model_pool() const { return model_.pool(); }

  // Equal for states that differ only in the ids of their blocks. Everything observable is in it.
  std::string StateKey() const;

 private:
  struct Slot {
    std::unique_ptr<Request> real;
    oracle::Request model;
    bool has_hits = false;  // kept by kLookUp
    ComputedBlocks real_hits;
    oracle::Hits model_hits;
    uint64_t hits_epoch = 0;
  };

  void Renew(size_t index);
  bool Do(const Action& action);
  bool Admit(Slot& slot, const Action& action);
  bool AdmitExternal(Slot& slot, const Action& action);
  bool Step(Slot& slot, const Action& action);
  bool Pop(Slot& slot);
  bool Evict(BlockId id);
  bool EvictQueued(bool first);
  void Preempt(Slot& slot);
  oracle::Outcome Allocate(Slot& slot, const oracle::AllocateParams& params,
                           const ComputedBlocks* real_hits);
  void LookUp(const Slot& slot, ComputedBlocks& real, oracle::Hits& model);
  void AppendToken(Slot& slot);
  void SetComputed(Slot& slot, int64_t computed, int64_t inflight);
  void AddNumbers(const Slot& slot);
  void Expect(bool condition, const char* what) {
    if (!condition && error_.empty()) error_ = what;
  }
  void ExpectEmpty(std::string difference) {
    if (error_.empty()) error_ = std::move(difference);
  }

  const Setting* setting_;
  oracle::ContentNumbers* numbers_;
  std::unique_ptr<KvCacheManager> real_;
  oracle::Manager model_;
  std::vector<Slot> slots_;
  std::vector<BlockId> popped_;
  std::string error_;
};

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_WORLD_H_
