// NaiveEngine: scheduler and block manager as plainly as the rules can be followed, to hold the
// real ones against.
//
// Contents are spelled out token by token, keys are whole prefixes, the free queue is a list, and
// every question is asked anew in every step. What steps under way will bring is not counted along
// but added up from those steps whenever it is needed. One full-attention group, steps of 1 s;
// without a prefix cache also one of cross attention.

#ifndef KVBLOCKS_SIM_TESTING_NAIVE_ENGINE_H_
#define KVBLOCKS_SIM_TESTING_NAIVE_ENGINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/engine/retention_rules.h"
#include "sim/engine/scheduler_options.h"
#include "sim/testing/replay.h"
#include "sim/testing/scripted_connector.h"

namespace kvblocks::sim {

struct NaiveOptions {
  int64_t block_size, num_blocks, budget, max_seqs, max_len, threshold, drafts, lookahead, accepted;
  bool chunked;
  SchedulingPolicy policy;
  bool gate, append_all, async;
  int64_t watermark_blocks;
  bool as_in_033;  // or as in 0.25
  bool adaptive;
  int64_t scheduled_budget = 0, draft_slots = 0, max_active = 0, interval = 1;  // 0: no limit
  uint64_t policy_seed = 0;
  std::vector<RetentionRule> retention = {};
  int64_t most_retained = 0;
  ConnectorScript script = {};  // what comes from elsewhere
  bool fails_lost = false;      // who misses some of it ends
  std::vector<int64_t> stages = {1};  // of a pipeline: seconds that each takes for a step
  bool caching = true;
  // Longest input of an encoder, with a group of cross attention behind the first; 0: without one.
  int64_t max_encoder = 0, encoder_block_size = 1;
};

struct NaiveRequest {
  std::string id;
  int64_t row, prompt, output, arrival, priority;
  int64_t abort_at = -1;        // -1: never
  uint64_t session = 0;
  std::vector<int64_t> tokens;  // known ones
  int64_t settled = 0;          // computed by steps that are over
  int64_t drafts = 0;
  int64_t encoder = 0;  // tokens of the encoder's input
  std::vector<int> table = {}, encoder_table = {};
  bool arrived = false;
  bool ended = false;
  bool chunk = false;  // after its last step
  bool admitted = false;  // at least once
  bool deferred = false;  // set aside or loading since it last ran
  int64_t next_call = 0;  // with stages: of the scheduler, that may give it a token
  // Of its latest load: until when, from where, and how much comes.
  size_t loads = 0;  // so far
  bool loading = false, unsettled = false;
  bool prefilling = false;  // or loading: others must leave it what it still needs
  int64_t load_number = -1, load_end = 0, load_hits = 0, load_tokens = 0, load_arrived = 0;

  // Tokens of a prompt: document 3 is the request's own; the others begin alike.
  void TakeTokens(int64_t document);
  // The same for the real scheduler.
  ReplayRequest ForReplay() const;
};

class NaiveEngine {
 public:
  explicit NaiveEngine(const NaiveOptions& options);

  // Requests in arrival order.
  void Run(std::vector<NaiveRequest> requests);

  // For several engines on one clock. At each instant, for all of them: EndStep, Hand, Go.
  bool EndsStep(int64_t now) const { return waits_ && WaitsUntil() <= now; }
  // Whether it had a part in the step; only in lockstep it may have none.
  bool EndStep(int64_t now);
  // Takes a request in, now or as soon as the step it waits for is over.
  void Hand(NaiveRequest* r);
  void Go(int64_t now);
  // All it has is gone, cached blocks included, and it goes on as new. Who had not ended by then.
  std::vector<NaiveRequest*> Crash(int64_t now);
  // In lockstep with others, instead of Go: aborts; then a step of which SetEnd says when it ends,
  // if there is anything to do. `holds`: prompts are left alone, with an interval.
  void GiveUp(int64_t now);
  bool wants_step() const { return again_ && !waits_; }
  void Plan(int64_t now, bool holds);
  bool has_plan() const { return !step_.empty(); }
  bool has_preempted() const { return !preempted_.empty(); }
  int64_t planned_tokens(bool of_prompts) const;
  void SetEnd(int64_t end) { under_way_.back().end = end; }
  void CallAgain() { again_ = true; }
  // Until a step of all of them ends, whether it has a part in it or not; -1: lets it go.
  void Wait(int64_t until);
  bool has_requests() const { return !running_.empty() || !waiting_.empty(); }
  bool had_requests() const { return had_requests_; }  // behind its last step, before others came
  // Called when a step was scheduled or had ended.
  std::function<void(int64_t now)> on_counts;
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_used() const { return o_.num_blocks - 1 - static_cast<int64_t>(free_.size()); }

  // When it must be called again; -1: not before it is handed a request.
  int64_t Next(int64_t now) const;
  // Leading prompt tokens in full blocks, without the last token, that `keys` has.
  using Key = std::vector<int64_t>;
  int64_t Leading(const NaiveRequest& r, const std::set<Key>& keys) const;
  std::set<Key> cached() const;
  bool idles() const { return under_way_.empty(); }

  // What happened, in the words of Replay.
  const std::vector<std::string>& lines() const { return lines_; }
  const std::map<std::string, std::vector<double>>& token_times() const { return token_times_; }
  std::vector<int> free_queue() const { return {free_.begin(), free_.end()}; }
  int64_t num_wasted() const { return num_wasted_; }
  int64_t num_rejected() const { return num_rejected_; }
  // Blocks, as in RetentionTotals.
  int64_t num_retained_hits() const { return num_retained_hits_; }
  int64_t num_retention_refused() const { return num_retention_refused_; }
  int64_t num_external() const { return num_external_; }  // tokens
  int64_t num_lost() const { return num_lost_; }
  int64_t num_encoder() const { return num_encoder_; }

 private:
  struct Entry {
    NaiveRequest* request;
    int64_t tokens, verified;
    bool padded, prefill;
    std::string text;
    bool chunk = false;
    bool lost = false;  // the request was preempted while the step was under way
  };
  struct Step {
    std::vector<Entry> entries;
    int64_t end;
    size_t line;
  };
  struct Retained {
    int64_t priority = 0;
    int64_t number = 0;  // higher: later call, or earlier block of the same one
    int64_t expires = 0;
  };

  void Arrive(NaiveRequest* r);
  void Leave(NaiveRequest* r);
  bool by_priority() const { return o_.policy == SchedulingPolicy::kPriority; }
  void Sort();
  bool IsUnderWay(const NaiveRequest& r) const;
  int64_t Computed(const NaiveRequest& r) const;
  int64_t ToCome(const NaiveRequest& r) const;

  Key KeyOf(const NaiveRequest& r, int64_t block) const;
  int Take();
  std::deque<int>::iterator Unretained();
  void Retain(const NaiveRequest& r);
  void AdvanceTime(int64_t now);
  void FreeAll(NaiveRequest* r);
  void FreeTable(std::vector<int>* table);
  void Register(NaiveRequest* r, int64_t upto);
  std::string Grow(NaiveRequest* r, int64_t slots);
  int64_t EncoderBlocks(const NaiveRequest& r) const;

  int64_t WaitsUntil() const { return held_until_ >= 0 ? held_until_ : under_way_.front().end; }
  void TellCounts(int64_t now) const {
    if (on_counts) on_counts(now);
  }
  void Abort(std::vector<NaiveRequest*>& aborts, int64_t now);
  int64_t LongestPart() const;
  bool HoldsPrompts() const;
  void Schedule();
  void WalkRunning();
  void Preempt(NaiveRequest* r);
  bool Pads(size_t num_walked, int64_t hit_tokens) const;
  void Admit(size_t num_walked);
  int64_t Part(const NaiveRequest& r, int64_t computed, size_t num_walked, bool* padded) const;

  // naive_order.cc
  void SortByHits();
  size_t BlocksHit(const NaiveRequest& r) const;
  void SortByLongestPrefix();
  void SortByPrefixTree();
  int64_t LongestBlocks(const NaiveRequest& r) const;
  bool HasReserve(const NaiveRequest& r) const;

  struct Offer {
    int64_t tokens = 0;
    bool pending = false;
    ScriptedLoad load;
  };
  Offer Ask(const NaiveRequest& r, int64_t hits);
  bool Load(NaiveRequest* r, const std::vector<int>& hits, const Offer& offer, int64_t idle_hits);
  int64_t StillNeeds(const NaiveRequest& r) const;
  void EndLoads(int64_t now);
  int64_t NextEnd() const;  // -1: none
  bool Settle(NaiveRequest* r);
  bool AdmitHolding(size_t num_walked);
  void Start(int64_t now);
  void Finish();

  const NaiveOptions o_;
  int64_t budget_ = 0, slots_ = 0, encoder_slots_ = 0, longest_part_ = 0;
  bool holds_prompts_ = false, queue_was_left_ = false, has_prompt_ = false;
  int64_t num_steps_ = 0, last_prompt_step_ = -1000000;
  std::deque<int> free_;
  std::map<int, int> references_;
  std::map<int, Key> keys_;
  std::map<Key, std::vector<int>> table_;
  std::map<int, int> parents_;  // of cached blocks, while the parent is cached
  std::map<int, int64_t> uses_;  // of cached blocks
  std::map<int, Retained> retained_;
  int64_t now_ = 0, last_retention_ = 0;
  std::deque<NaiveRequest*> waiting_;
  std::vector<NaiveRequest*> running_;
  std::vector<Entry> step_;  // being scheduled
  std::vector<std::string> preempted_;
  std::deque<Step> under_way_;  // oldest first
  std::vector<int64_t> stage_free_;
  int64_t num_calls_ = 0;
  // On a clock of several.
  std::vector<NaiveRequest*> inbox_, aborts_;
  bool waits_ = false;  // for the end of the oldest step
  bool again_ = false;  // may schedule at once
  int64_t held_until_ = -1;
  bool had_requests_ = false;
  std::optional<bool> told_to_hold_;

  std::vector<std::string> lines_;
  std::map<std::string, std::vector<double>> token_times_;
  int64_t num_wasted_ = 0, num_rejected_ = 0, num_encoder_ = 0;
  int64_t num_retained_hits_ = 0, num_retention_refused_ = 0;

  // Blocks that nobody may have before that time: of loads (by their number) or of who is gone.
  struct Kept {
    int64_t until, number;
    bool is_load;
    std::vector<int> table;
  };
  std::deque<NaiveRequest*> holding_;
  std::vector<Kept> kept_;
  std::map<int64_t, int64_t> asked_;  // rows that will be known at that time
  std::vector<std::string> loaded_;   // in this step
  int64_t load_numbers_ = 0, step_sync_ = 0, step_layerwise_ = 0;
  int64_t num_external_ = 0, num_lost_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_NAIVE_ENGINE_H_
