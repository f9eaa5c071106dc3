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
#include <unordered_map>
#include <vector>

#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/tests/exhaustive/action.h"
#include "kvblocks/tests/oracle/manager.h"

namespace kvblocks::exhaustive {

// What is explored: a configuration, the prompts of requests A, B, ..., and the actions to try.
struct Setting {
  std::string name;
  KvCacheConfig config;
  KvCacheManagerOptions options;
  oracle::Options oracle_options;
  std::vector<oracle::Content> prompts;
  std::vector<Action> alphabet;
};

// Small numbers for contents, one for each prefix name and its hash. Shared by all worlds of a
// setting.
class ContentNumbers {
 public:
  // False if hashes and names are not a bijection.
  bool Add(const BlockHash& hash, const std::string& name);
  // -1 if unknown.
  int Of(const BlockHash& hash) const;
  int Of(const std::string& name) const;

 private:
  std::unordered_map<uint64_t, int> by_hash_;  // by the first word; Add() finds equal ones
  std::unordered_map<std::string, int> by_name_;
};

class World {
 public:
  World(const Setting& setting, ContentNumbers* numbers);

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
  void CompareEvents();
  void ComparePool();
  void CompareChunks();
  void Expect(bool condition, const char* what) {
    if (!condition && error_.empty()) error_ = what;
  }

  const Setting* setting_;
  ContentNumbers* numbers_;
  std::unique_ptr<KvCacheManager> real_;
  oracle::Manager model_;
  std::vector<Slot> slots_;
  std::vector<BlockId> popped_;
  std::string error_;
};

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_WORLD_H_
