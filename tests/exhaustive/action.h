// Action: one call, or the few calls a scheduler makes together, from the small alphabet whose
// sequences are all tried.
//
// An action is a plain value whose meaning depends on nothing but the state it is applied in, so a
// sequence of them can be replayed.

#ifndef KVBLOCKS_TESTS_EXHAUSTIVE_ACTION_H_
#define KVBLOCKS_TESTS_EXHAUSTIVE_ACTION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvblocks::exhaustive {

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

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_ACTION_H_
