// StopMatcher: where a plan of tokens ends because a stop text or a stop token of its request comes
// up behind min_tokens.
//
// All stop texts are sought at once, byte by byte, in the automaton of Aho and Corasick: what a
// token costs does not depend on how many stop texts there are and how long. A plan's text begins
// again behind its end, so the search stops where it has seen a whole turn from the same state.
//
// Memory: 24 bytes per byte of the stop texts. Cost of Apply: O(bytes of the plan's text up to its
// end or two turns).

#ifndef KVBLOCKS_SIM_SERVE_STOP_MATCHER_H_
#define KVBLOCKS_SIM_SERVE_STOP_MATCHER_H_

#include <cstdint>
#include <vector>

#include "kvblocks/sim/serve/answer.h"
#include "kvblocks/sim/serve/api_request.h"

namespace kvblocks::sim {

class StopMatcher {
 public:
  // `request` must outlive it.
  explicit StopMatcher(const CompletionRequest& request);

  // Ends the plan at the first stop. Of several that are complete with one token, the one counts
  // that begins first.
  void Apply(AnswerPlan* plan) const;

 private:
  // What was read last is the longest beginning of a stop text that it can be.
  struct Node {
    int32_t first_child = 0;  // 0: none
    int32_t sibling = 0;      // 0: the last one
    int32_t suffix = 0;       // the node of its longest end that is a beginning, too
    int32_t end = 0;          // the first node along suffixes, from itself, that is a stop; 0: none
    int32_t stop = -1;        // the request's stop that ends here
    char byte = 0;
  };

  int32_t Child(int32_t node, char byte) const;
  int32_t Next(int32_t node, char byte) const;

  const CompletionRequest& request_;
  std::vector<Node> nodes_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_STOP_MATCHER_H_
