#include "kvblocks/sim/serve/stop_matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/json_text.h"

namespace kvblocks::sim {

StopMatcher::StopMatcher(const CompletionRequest& request) : request_(request), nodes_(1) {
  for (size_t i = 0; i < request.stop.size(); ++i) {
    int32_t at = 0;
    for (const char byte : request.stop[i]) {
      int32_t child = Child(at, byte);
      if (child == 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.sibling = nodes_[at].first_child, .byte = byte});
        nodes_[at].first_child = child;
      }
      at = child;
    }
    if (nodes_[at].stop < 0) nodes_[at].stop = static_cast<int32_t>(i);
  }
  // Shorter beginnings first: a suffix is shorter than what it is a suffix of.
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t parent = order[i];
    for (int32_t child = nodes_[parent].first_child; child != 0; child = nodes_[child].sibling) {
      Node& node = nodes_[child];
      node.suffix = parent == 0 ? 0 : Next(nodes_[parent].suffix, node.byte);
      node.end = node.stop >= 0 ? child : nodes_[node.suffix].end;
      order.push_back(child);
    }
  }
}

int32_t StopMatcher::Child(int32_t node, char byte) const {
  int32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

int32_t StopMatcher::Next(int32_t node, char byte) const {
  while (true) {
    const int32_t child = Child(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].suffix;
  }
}

void StopMatcher::Apply(AnswerPlan* plan) const {
  const std::vector<TokenId>& ids = request_.stop_token_ids;
  if (request_.stop.empty() && ids.empty()) return;
  const auto turn = static_cast<int64_t>(plan->tokens->size());
  int32_t node = 0, node_of_turn = -1;
  size_t text_bytes = 0;
  for (int64_t i = 0; i < plan->length; ++i) {
    const bool counts = i >= request_.min_tokens;
    if (counts && (i - request_.min_tokens) % turn == 0) {
      if (node == node_of_turn) return;
      node_of_turn = node;
    }
    if (counts && std::find(ids.begin(), ids.end(), plan->token(i)) != ids.end()) {
      plan->length = i + 1;
      plan->is_stop = true;
      plan->stop_reason = absl::StrCat(plan->token(i));
      if (!request_.include_stop) plan->text_bytes = text_bytes;
      return;
    }
    size_t first = SIZE_MAX;
    int32_t found = -1;
    for (const char byte : plan->piece(i)) {
      node = Next(node, byte);
      ++text_bytes;
      if (!counts) continue;
      for (int32_t end = nodes_[node].end; end != 0; end = nodes_[nodes_[end].suffix].end) {
        const int32_t stop = nodes_[end].stop;
        const size_t begin = text_bytes - request_.stop[static_cast<size_t>(stop)].size();
        if (begin < first || (begin == first && stop < found)) first = begin, found = stop;
      }
    }
    if (found >= 0) {
      const std::string& stop = request_.stop[static_cast<size_t>(found)];
      plan->length = i + 1;
      plan->is_stop = true;
      plan->stop_reason.clear();
      AppendJsonString(stop, &plan->stop_reason);
      plan->text_bytes = first + (request_.include_stop ? stop.size() : 0);
      return;
    }
  }
}

}  // namespace kvblocks::sim
