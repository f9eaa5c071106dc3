#include "sim/testing/naive_engine.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::sim {
namespace {

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool Before(const NaiveRequest* a, const NaiveRequest* b) {
  return std::tie(a->priority, a->arrival, a->row) < std::tie(b->priority, b->arrival, b->row);
}

template <typename List>
void Drop(List& list, NaiveRequest* r) {
  list.erase(std::remove(list.begin(), list.end(), r), list.end());
}

}  // namespace

void NaiveRequest::TakeTokens(int64_t document) {
  for (int64_t t = 0; t < prompt; ++t) {
    tokens.push_back(document == 3 ? 100000 + row * 100 + t : (t < 6 ? t : document * 100 + t));
  }
}

ReplayRequest NaiveRequest::ForReplay() const {
  return {.id = id,
          .prompt = prompt,
          .output = output,
          .at = static_cast<double>(arrival),
          .priority = static_cast<int32_t>(priority),
          .content = tokens,
          .abort_after = abort_at < 0 ? 0 : static_cast<double>(abort_at - arrival),
          .session = session};
}

NaiveEngine::NaiveEngine(const NaiveOptions& options)
    : o_(options), stage_free_(options.stages.size()) {
  for (int id = 1; id < o_.num_blocks; ++id) free_.push_back(id);
}

void NaiveEngine::Run(std::vector<NaiveRequest> requests) {
  std::vector<NaiveRequest*> pending, aborts;
  for (NaiveRequest& r : requests) {
    pending.push_back(&r);
    if (r.abort_at >= 0) aborts.push_back(&r);
  }
  std::sort(aborts.begin(), aborts.end(), [](const NaiveRequest* a, const NaiveRequest* b) {
    return std::tie(a->abort_at, a->row) < std::tie(b->abort_at, b->row);
  });
  int64_t now = 0;
  for (int guard = 0; guard < 100000; ++guard) {
    while (!pending.empty() && pending.front()->arrival <= now) {
      Arrive(pending.front());
      pending.erase(pending.begin());
    }
    Abort(aborts, now);
    EndLoads(now);
    step_.clear();
    preempted_.clear();
    loaded_.clear();
    step_sync_ = step_layerwise_ = 0;
    AdvanceTime(now);
    const bool has_requests = !running_.empty() || !waiting_.empty() || !holding_.empty();
    if (has_requests) Schedule();
    if (!step_.empty() || !preempted_.empty() || !loaded_.empty()) Start(now);
    if (step_.empty() && has_requests && !under_way_.empty()) under_way_.push_back({});
    const size_t depth = o_.stages.size() + (o_.async ? 1 : 0);
    if (has_requests && !under_way_.empty() && under_way_.size() < depth) continue;
    if (!under_way_.empty()) {
      now = under_way_.front().end;
      Abort(aborts, now);
      AdvanceTime(now);
      Finish();
      while (!under_way_.empty() && under_way_.front().entries.empty()) under_way_.pop_front();
      continue;
    }
    if (!preempted_.empty()) continue;
    std::vector<int64_t> next;
    if (!pending.empty()) next.push_back(pending.front()->arrival);
    if (!aborts.empty()) next.push_back(aborts.front()->abort_at);
    if (NextEnd() >= 0) next.push_back(NextEnd());
    if (next.empty()) return;
    now = std::max(now, *std::min_element(next.begin(), next.end()));
  }
}

// --- One of several ---

void NaiveEngine::Hand(NaiveRequest* r) {
  if (waits_) {
    inbox_.push_back(r);
    return;
  }
  Arrive(r);
  if (r->abort_at >= 0 && !r->ended) aborts_.push_back(r);
  again_ = true;
}

bool NaiveEngine::EndStep(int64_t now) {
  Abort(aborts_, now);
  const bool has_part = !under_way_.empty() && under_way_.front().end <= now;
  if (has_part) {
    Finish();
    TellCounts(now);
  }
  had_requests_ = has_requests();
  waits_ = false;
  held_until_ = -1;
  again_ = true;
  for (NaiveRequest* r : std::exchange(inbox_, {})) Hand(r);
  return has_part;
}

std::vector<NaiveRequest*> NaiveEngine::Crash(int64_t now) {
  Abort(aborts_, now);
  std::vector<NaiveRequest*> lost = std::exchange(inbox_, {});
  for (NaiveRequest* r : lost) r->ended = true;
  while (!waiting_.empty() || !running_.empty()) {
    lost.push_back(waiting_.empty() ? running_.back() : waiting_.front());
    Leave(lost.back());
  }
  while (!under_way_.empty()) Finish();
  keys_.clear();
  table_.clear();
  parents_.clear();
  aborts_.clear();
  waits_ = again_ = false;
  std::fill(stage_free_.begin(), stage_free_.end(), now);
  return lost;
}

void NaiveEngine::Go(int64_t now) {
  if (waits_) return;
  const size_t count = aborts_.size();
  Abort(aborts_, now);
  if (!again_ && aborts_.size() == count) return;
  again_ = false;
  step_.clear();
  preempted_.clear();
  if (has_requests()) {
    Schedule();
    TellCounts(now);
  }
  if (!step_.empty() || !preempted_.empty()) Start(now);
  const size_t depth = o_.async ? 2 : 1;
  if (!step_.empty() && under_way_.size() < depth) {
    again_ = true;
  } else if (!under_way_.empty()) {
    waits_ = true;
  } else {
    again_ = !preempted_.empty();
  }
}

void NaiveEngine::GiveUp(int64_t now) {
  if (waits_) return;
  const size_t count = aborts_.size();
  Abort(aborts_, now);
  again_ = again_ || aborts_.size() != count;
}

void NaiveEngine::Plan(int64_t now, bool holds) {
  again_ = false;
  step_.clear();
  preempted_.clear();
  told_to_hold_ = holds;
  if (has_requests()) {
    Schedule();
    TellCounts(now);
  }
  if (!step_.empty() || !preempted_.empty()) Start(now);
}

int64_t NaiveEngine::planned_tokens(bool of_prompts) const {
  int64_t sum = 0;
  for (const Entry& e : step_) sum += e.prefill == of_prompts ? e.tokens : 0;
  return sum;
}

void NaiveEngine::Wait(int64_t until) {
  waits_ = until >= 0;
  held_until_ = until;
}

int64_t NaiveEngine::Next(int64_t now) const {
  if (waits_) return WaitsUntil();
  if (again_) return now;
  int64_t next = -1;
  for (const NaiveRequest* r : aborts_) {
    if (!r->ended && (next < 0 || r->abort_at < next)) next = r->abort_at;
  }
  return next;
}

std::set<NaiveEngine::Key> NaiveEngine::cached() const {
  std::set<Key> keys;
  for (const auto& [key, ids] : table_) keys.insert(key);
  return keys;
}

int64_t NaiveEngine::Leading(const NaiveRequest& r, const std::set<Key>& keys) const {
  int64_t blocks = 0;
  while (blocks < (r.prompt - 1) / o_.block_size && keys.count(KeyOf(r, blocks))) ++blocks;
  return blocks * o_.block_size;
}

// --- Requests ---

void NaiveEngine::Abort(std::vector<NaiveRequest*>& aborts, int64_t now) {
  std::stable_sort(aborts.begin(), aborts.end(), [](const NaiveRequest* x, const NaiveRequest* y) {
    return std::pair(x->abort_at, x->row) < std::pair(y->abort_at, y->row);
  });
  for (NaiveRequest* r : aborts) {
    if (!r->ended && r->arrived && r->abort_at <= now) Leave(r);
  }
  std::erase_if(aborts, [](const NaiveRequest* r) { return r->ended; });
}

void NaiveEngine::Arrive(NaiveRequest* r) {
  r->arrived = true;
  if (r->prompt >= o_.max_len || r->encoder > o_.max_encoder ||
      LongestBlocks(*r) > o_.num_blocks - 1) {
    r->ended = true;
    return;
  }
  waiting_.push_back(r);
  Sort();
}

void NaiveEngine::Leave(NaiveRequest* r) {
  Drop(running_, r);
  Drop(waiting_, r);
  Drop(holding_, r);
  r->ended = true;
  const auto script = o_.script.find(r->row);
  const bool has_all = static_cast<int64_t>(r->tokens.size()) >=
                       std::min(r->prompt + r->output, o_.max_len);
  if (r->loading) {
    kept_.push_back({r->load_end, r->load_number, true, r->table});
  } else if (has_all && script != o_.script.end() && script->second.hold > 0) {
    kept_.push_back({now_ + script->second.hold, load_numbers_++, false, r->table});
  } else {
    FreeAll(r);
  }
}

// Also one that was preempted since.
bool NaiveEngine::IsUnderWay(const NaiveRequest& r) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const Step& step) {
    return std::any_of(step.entries.begin(), step.entries.end(),
                       [&](const Entry& e) { return e.request == &r; });
  });
}

// With what steps under way compute, as if all their drafts will be accepted.
int64_t NaiveEngine::Computed(const NaiveRequest& r) const {
  int64_t sum = r.settled;
  for (const Step& step : under_way_) {
    for (const Entry& e : step.entries) {
      if (e.request == &r && !e.lost) sum += e.tokens;
    }
  }
  return sum;
}

// Tokens and drafts that steps under way will settle.
int64_t NaiveEngine::ToCome(const NaiveRequest& r) const {
  int64_t sum = 0;
  for (const Step& step : under_way_) {
    for (const Entry& e : step.entries) {
      if (e.request == &r && !e.chunk) sum += 1 + e.verified;
    }
  }
  return o_.async ? sum : 0;
}

// --- One step ---

int64_t NaiveEngine::LongestPart() const {
  const auto count =
      static_cast<int64_t>(running_.size() + waiting_.size() + holding_.size());
  if (o_.threshold == 0 || (o_.as_in_033 && count <= 1)) return o_.max_len;
  return o_.adaptive ? std::max(o_.threshold, o_.budget / std::max<int64_t>(count, 1))
                     : o_.threshold;
}

bool NaiveEngine::HoldsPrompts() const {
  if (o_.interval == 1 || queue_was_left_) return false;
  if (told_to_hold_ ? !*told_to_hold_ : num_steps_ - last_prompt_step_ >= o_.interval) return false;
  return std::any_of(running_.begin(), running_.end(),
                     [](const NaiveRequest* r) { return !r->chunk; });
}

void NaiveEngine::Schedule() {
  ++num_calls_;
  budget_ = o_.scheduled_budget > 0 ? o_.scheduled_budget : o_.budget;
  slots_ = o_.budget;
  encoder_slots_ = std::max(o_.budget, o_.max_encoder);
  longest_part_ = LongestPart();
  holds_prompts_ = HoldsPrompts();
  has_prompt_ = false;
  WalkRunning();
  const size_t num_walked = step_.size();
  if (preempted_.empty()) {
    if (AdmitHolding(num_walked)) Admit(num_walked);
    if (!holds_prompts_) {
      queue_was_left_ = std::any_of(waiting_.begin(), waiting_.end(),
                                    [](const NaiveRequest* r) { return !r->deferred; });
    }
  }
  for (size_t i = num_walked; i < step_.size(); ++i) has_prompt_ = has_prompt_ || step_[i].prefill;
  if (has_prompt_) last_prompt_step_ = num_steps_ - (step_.empty() ? 1 : 0);
}

void NaiveEngine::Preempt(NaiveRequest* r) {
  Drop(running_, r);
  for (auto e = step_.begin(); e != step_.end(); ++e) {
    if (e->request != r) continue;
    budget_ += e->tokens;
    slots_ += e->tokens + o_.draft_slots;
    step_.erase(e);
    break;
  }
  for (Step& step : under_way_) {
    for (Entry& e : step.entries) e.lost = e.lost || e.request == r;
  }
  FreeAll(r);
  r->settled = r->drafts = 0;
  r->prefilling = false;
  waiting_.push_front(r);
  Sort();
  preempted_.push_back(r->id);
}

void NaiveEngine::WalkRunning() {
  for (size_t i = 0; i < running_.size() && budget_ > 0 && slots_ > o_.draft_slots; ++i) {
    NaiveRequest* r = running_[i];
    if (holds_prompts_ && r->chunk) continue;
    const int64_t n = static_cast<int64_t>(r->tokens.size());
    const int64_t computed = Computed(*r);
    const int64_t to_come = ToCome(*r);
    if (to_come > 0 && computed + 2 - to_come >= r->prompt + r->output) continue;
    if (num_calls_ < r->next_call) continue;
    int64_t tokens = n + r->drafts + to_come - computed;
    const bool prefill = n - computed > 1;
    tokens = std::min({tokens, longest_part_, budget_, slots_ - o_.draft_slots,
                       o_.max_len - 1 - computed});
    if (tokens <= 0) continue;
    const int64_t slots = std::min(computed + tokens + o_.lookahead, o_.max_len);
    bool is_victim = false;
    while (!is_victim && Ceil(slots, o_.block_size) - static_cast<int64_t>(r->table.size()) >
                             static_cast<int64_t>(free_.size())) {
      const auto victim = by_priority() ? std::max_element(running_.begin(), running_.end(), Before)
                                      : running_.end() - 1;
      is_victim = *victim == r;
      const bool had_part = std::any_of(step_.begin(), step_.end(),
                                        [&](const Entry& e) { return e.request == *victim; });
      const bool stood_before = static_cast<size_t>(victim - running_.begin()) < i;
      if (o_.as_in_033 ? stood_before : had_part) --i;
      Preempt(*victim);
    }
    if (is_victim) {
      if (!by_priority() || !o_.as_in_033) return;
      --i;
      continue;
    }
    const std::string taken = Grow(r, slots);
    Register(r, std::min(computed + tokens, n));
    const int64_t verified =
        std::max<int64_t>(0, std::min(r->drafts, tokens + computed - n - to_come));
    r->drafts = 0;
    has_prompt_ = has_prompt_ || r->chunk;
    step_.push_back(
        {r, tokens, verified, false, prefill, absl::StrCat(r->id, ":", tokens, " ", taken)});
    budget_ -= tokens;
    slots_ -= tokens + o_.draft_slots;
  }
}

// Whether a request that enters with one token is filled up.
bool NaiveEngine::Pads(size_t num_walked, int64_t hit_tokens) const {
  if (o_.drafts == 0) return false;
  if (!o_.as_in_033) {
    return !step_.empty() &&
           std::none_of(step_.begin(), step_.end(), [](const Entry& e) { return e.prefill; });
  }
  for (size_t i = 0; i < num_walked; ++i) {
    if (step_[i].request->chunk) return false;
  }
  return (num_walked > 0 || hit_tokens > 0) && hit_tokens + 1 + o_.drafts + 1 <= o_.max_len;
}

// How many tokens enter behind `computed` ones; 0: none of anybody.
int64_t NaiveEngine::Part(const NaiveRequest& r, int64_t computed, size_t num_walked,
                          bool* padded) const {
  const int64_t budget = std::min(budget_, slots_ - o_.draft_slots);
  int64_t tokens = static_cast<int64_t>(r.tokens.size()) - computed;
  if (holds_prompts_ && tokens > 1) return 0;  // V-77
  *padded = tokens == 1 && Pads(num_walked, computed);
  if (*padded) {
    tokens = 1 + o_.drafts;
    if (tokens > budget || computed + tokens > o_.max_len) return 0;
  }
  tokens = std::min(tokens, longest_part_);
  if (!o_.chunked && tokens > budget) return 0;
  return std::min(tokens, budget);
}

void NaiveEngine::Admit(size_t num_walked) {
  const int64_t most = o_.max_active > 0 ? o_.max_active : o_.max_seqs;
  std::vector<NaiveRequest*> aside;
  bool alone_without_load = false;
  const auto set_aside = [&](NaiveRequest* r) {
    r->deferred = true;
    aside.push_back(r);
    waiting_.pop_front();
  };
  const auto put_back = [&] {
    waiting_.insert(waiting_.begin(), aside.begin(), aside.end());
    Sort();
  };
  if (budget_ > 0 && slots_ > o_.draft_slots && static_cast<int64_t>(running_.size()) < most) {
    SortByHits();
  }
  while (!waiting_.empty() && budget_ > 0 && slots_ > o_.draft_slots &&
         static_cast<int64_t>(running_.size()) < most) {
    NaiveRequest* r = waiting_.front();
    if (IsUnderWay(*r)) {
      set_aside(r);
      continue;
    }
    const int64_t n = static_cast<int64_t>(r->tokens.size());
    std::vector<int> hits;
    for (int64_t b = 0; b < (n - 1) / o_.block_size; ++b) {
      const auto found = table_.find(KeyOf(*r, b));
      if (found == table_.end()) break;
      hits.push_back(found->second.front());
    }
    const int64_t hit_tokens = static_cast<int64_t>(hits.size()) * o_.block_size;
    const Offer offer = alone_without_load ? Offer() : Ask(*r, hit_tokens);
    if (offer.pending) {
      set_aside(r);
      continue;
    }
    if (!HasReserve(*r)) break;
    int64_t idle_hits = 0;
    for (int id : hits) idle_hits += references_[id] == 0;
    if (offer.tokens > 0 && offer.load.mode == LoadMode::kAsync) {
      if (Load(r, hits, offer, idle_hits)) continue;
      const bool is_alone = running_.empty() && holding_.empty() && kept_.empty();
      if (!is_alone) break;
      alone_without_load = true;
      continue;
    }
    const int64_t computed = hit_tokens + offer.tokens;
    const bool prefill = n - computed > 1;
    bool padded = false;
    const int64_t tokens = Part(*r, computed, num_walked, &padded);
    if (tokens == 0) break;
    if (r->encoder > encoder_slots_) {
      set_aside(r);
      continue;
    }
    const auto need = [&](int64_t slots) {
      return std::max<int64_t>(Ceil(slots, o_.block_size) - static_cast<int64_t>(hits.size()), 0) +
             EncoderBlocks(*r) + idle_hits;
    };
    const int64_t spare =
        static_cast<int64_t>(free_.size()) - (running_.empty() ? 0 : o_.watermark_blocks);
    const int64_t slots = std::min(computed + tokens + o_.lookahead, o_.max_len);
    if (o_.gate && need(std::min(n, o_.max_len)) > spare) break;
    if (need(slots) > spare) break;

    alone_without_load = false;
    waiting_.pop_front();
    running_.push_back(r);
    r->admitted = true;
    r->deferred = false;
    for (int id : hits) {
      if (references_[id]++ == 0) free_.erase(std::find(free_.begin(), free_.end(), id));
      ++uses_[id];
      num_retained_hits_ += static_cast<int64_t>(retained_.count(id));
    }
    r->table = hits;
    r->settled = computed;
    if (offer.tokens > 0) Grow(r, computed);
    encoder_slots_ -= r->encoder;
    num_encoder_ += r->encoder;
    std::string taken = Grow(r, slots);
    for (int64_t b = EncoderBlocks(*r); b > 0; --b) {
      r->encoder_table.push_back(Take());
      taken.insert(taken.size() - 1,
                   absl::StrCat(taken == "[]" ? "" : ",", r->encoder_table.back()));
    }
    Register(r, std::min(computed + tokens, n));
    std::string hit_text = hit_tokens > 0 ? absl::StrCat("h", hit_tokens) : "";
    if (offer.tokens > 0) {
      absl::StrAppend(&hit_text, "+", offer.tokens);
      ++r->loads;
      ++load_numbers_;
      num_external_ += offer.tokens;
      if (offer.load.mode == LoadMode::kSync) step_sync_ += offer.load.seconds;
      if (offer.load.mode == LoadMode::kLayerwise) {
        step_layerwise_ = std::max(step_layerwise_, offer.load.seconds);
      }
    }
    r->prefilling = computed + tokens < n;
    step_.push_back({r, tokens, padded ? tokens - 1 : 0, padded, prefill,
                     absl::StrCat(r->id, ":", tokens, hit_text, " ", taken)});
    budget_ -= tokens;
    slots_ -= tokens + o_.draft_slots;
  }
  put_back();
}

// Writes the line of what was scheduled and hands it to the device.
void NaiveEngine::Start(int64_t now) {
  std::vector<std::string> texts;
  for (const Entry& e : step_) texts.push_back(e.text);
  std::string line = absl::StrCat(now, texts.empty() ? ":" : ": ", absl::StrJoin(texts, ", "));
  for (const std::string& id : preempted_) absl::StrAppend(&line, " preempt ", id);
  for (const std::string& load : loaded_) absl::StrAppend(&line, " load ", load);
  lines_.push_back(line);
  if (step_.empty()) return;
  ++num_steps_;
  for (Entry& e : step_) {
    NaiveRequest* r = e.request;
    e.chunk = r->chunk =
        Computed(*r) + e.tokens < static_cast<int64_t>(r->tokens.size()) + ToCome(*r);
    if (!e.chunk) r->prefilling = false;
    if (o_.async && !e.chunk) {
      r->drafts = o_.drafts;
      r->next_call = num_calls_ + static_cast<int64_t>(o_.stages.size());
    }
  }
  // Not before the tokens that it goes on from are there.
  int64_t at = now;
  for (const Step& before : under_way_) {
    for (const Entry& e : before.entries) {
      const bool goes_on = std::any_of(
          step_.begin(), step_.end(), [&](const Entry& mine) { return mine.request == e.request; });
      if (o_.async && !e.chunk && goes_on) at = std::max(at, before.end);
    }
  }
  for (size_t s = 0; s < o_.stages.size(); ++s) {
    const int64_t loads = s == 0 ? step_sync_ : 0;
    const int64_t seconds = s == 0 ? std::max(o_.stages[s], step_layerwise_) : o_.stages[s];
    at = std::max(at, stage_free_[s]) + loads + seconds;
    stage_free_[s] = at;
  }
  under_way_.push_back({step_, at, lines_.size() - 1});
}

// Takes in what the oldest step brought.
void NaiveEngine::Finish() {
  const Step step = under_way_.front();
  under_way_.pop_front();
  for (const Entry& e : step.entries) {
    NaiveRequest* r = e.request;
    if (r->ended) {
      num_wasted_ += e.tokens;
      continue;
    }
    if (!e.lost) r->settled += e.tokens;
    if (e.chunk) continue;
    const int64_t accepted = e.padded ? 0 : std::min(o_.accepted, e.verified);
    num_rejected_ += e.verified - accepted;
    if (!e.lost) r->settled -= e.verified - accepted;
    bool over = false;
    for (int64_t i = 0; i <= accepted; ++i) {
      if (over) {
        ++num_wasted_;
        continue;
      }
      const int64_t index = static_cast<int64_t>(r->tokens.size()) - r->prompt;
      r->tokens.push_back(-1 - (r->row * 1000 + index));
      token_times_[r->id].push_back(static_cast<double>(step.end));
      over = static_cast<int64_t>(r->tokens.size()) >= o_.max_len || index + 1 >= r->output;
    }
    if (!o_.async && !e.lost) r->drafts = o_.drafts;
    // All known tokens but the last one are computed.
    const bool registers = o_.async || (o_.drafts > 0 && o_.as_in_033);
    if (registers && !e.lost) Register(r, static_cast<int64_t>(r->tokens.size()) - 1);
    if (!over) continue;
    Retain(*r);
    Leave(r);
    absl::StrAppend(&lines_[step.line], " fin ", r->id);
  }
}

}  // namespace kvblocks::sim
