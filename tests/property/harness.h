// Harness: makes each operation on a KvCacheManager and on the oracle, and stops at the first
// difference or broken invariant.

#ifndef KVBLOCKS_TESTS_PROPERTY_HARNESS_H_
#define KVBLOCKS_TESTS_PROPERTY_HARNESS_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/oracle/comparison.h"
#include "tests/property/check_property.h"
#include "tests/property/invariants.h"
#include "tests/property/scenario.h"

namespace kvblocks::property {

using oracle::Show;

class Harness {
 public:
  // Empty: the pool is too small for the shape's sink blocks.
  static std::unique_ptr<Harness> Create(const Scenario& scenario);

  // Runs one operation and checks everything. Fails the RapidCheck case with the list of calls so
  // far.
  void Run(const Operation& operation);
  // Gives everything back: INV-27.
  void Finish();

  const oracle::Manager& model() const { return model_; }
  // What the operations came to.
  struct Counts {
    int64_t no_space = 0;
    int64_t hits = 0;  // admissions with one
    // Copies of hits that end inside a block, and of states about to be overwritten.
    int64_t hit_copies = 0;
    int64_t state_copies = 0;
    int64_t old_outputs = 0;     // blocks behind a prompt that were given back
    int64_t short_tables = 0;    // of a ring, beside more tokens than it has rows
    int64_t replays = 0;         // hits of which the end is computed again
    int64_t lost_hits = 0;       // of which all is
    int64_t checkpoints = 0;     // states exported inside a step

    Counts& operator+=(const Counts& other) {
      for (auto count : {&Counts::no_space, &Counts::hits, &Counts::hit_copies,
                         &Counts::state_copies, &Counts::old_outputs, &Counts::short_tables,
                         &Counts::replays, &Counts::lost_hits, &Counts::checkpoints}) {
        this->*count += other.*count;
      }
      return *this;
    }
  };
  const Counts& counts() const { return counts_; }

 private:
  Harness(const Scenario& scenario, std::unique_ptr<KvCacheManager> manager);

  // Everyday calls.
  void NewRequest(Numbers numbers);
  void AddRequest(oracle::Content content, bool skip);
  void LookUp(LiveRequest& request);
  void Admit(LiveRequest& request, Numbers numbers);
  // Where hits may end inside blocks: how many tokens a step computes that ends, as a scheduler
  // wants it, where the prompt's tail may be registered; mostly 0: it ends anywhere.
  int64_t TokensToTail(const LiveRequest& request, int64_t computed, Numbers& numbers) const;
  void Step(LiveRequest& request, Numbers numbers);
  void Append(LiveRequest& request, int64_t count);
  void Free(size_t index, bool preempt);
  void Pop(LiveRequest& request);
  void FreePopped(Numbers numbers);
  void TakeCopies();
  void Pin(LiveRequest& request, Numbers numbers);
  void Trim(LiveRequest& request, Numbers numbers);
  void CacheBlocks(LiveRequest& request, Numbers numbers);
  void Evict(Numbers numbers);
  void Reset();
  void Truncate(LiveRequest& request, Numbers numbers);
  void Stats(LiveRequest& request, Numbers numbers);
  void Query(LiveRequest& request, Numbers numbers);
  // Calls that must be refused without effect.
  void Misuse(LiveRequest& request, Numbers numbers);
  void MisuseLists(LiveRequest& request, Numbers numbers);
  void MisuseForeign();

  // One AllocateSlots on both sides with INV-16 to INV-24. `hits` of `from`, if given.
  oracle::Outcome Allocate(LiveRequest& request, oracle::AllocateParams params,
                           const LiveRequest* from);
  void CheckAllocation(const LiveRequest& request, const oracle::AllocateParams& params,
                       const Snapshot& before, int64_t need, size_t num_copies);
  void CheckCheckpoints(const LiveRequest& request);
  void ExpectRefused(const char* what, const Snapshot& before, const absl::Status& status);
  void ExpectOnlyPermanentChunks() const;
  void CheckAll();

  void Log(std::string line) { log_.push_back(std::move(line)); }
  const Semantics& semantics() const { return scenario_.options.semantics; }
  void Expect(bool condition, const std::string& message) const;
  void ExpectEmpty(const std::string& message) const { Expect(message.empty(), message); }
  LiveRequest& Pick(Numbers& numbers) {
    return requests_[static_cast<size_t>(numbers.Below(static_cast<int64_t>(requests_.size())))];
  }

  const Scenario scenario_;
  std::unique_ptr<KvCacheManager> manager_;
  oracle::Manager model_;
  std::vector<LiveRequest> requests_;
  std::vector<oracle::Content> prompts_;  // of all requests so far
  std::vector<std::vector<BlockId>> popped_;  // lists to be given back, in table order
  std::vector<int> outside_;                  // references of popped_, per block
  oracle::ContentNumbers numbers_;
  PrefixCacheStats last_stats_;
  int64_t num_created_ = 0;
  Counts counts_;
  // A request holds blocks that were evicted since its look-up, as a switch of Semantics asks for:
  // then tables and contents do not fit any more.
  bool has_stale_tables_ = false;
  std::vector<std::string> log_;  // one line per call with its outcome
};

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_HARNESS_H_
