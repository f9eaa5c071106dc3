#include "kvblocks/sim/fleet/sent_blocks.h"

#include <algorithm>

namespace kvblocks::sim {

int64_t SentBlocks::Match(absl::Span<const BlockHash> prompt) const {
  const auto missing = std::find_if(prompt.begin(), prompt.end(), [&](const BlockHash& block) {
    return !places_.contains(block);
  });
  return missing - prompt.begin();
}

void SentBlocks::Add(absl::Span<const BlockHash> prompt) {
  const size_t count = std::min(prompt.size(), static_cast<size_t>(capacity_));
  // From the last to the first: what goes first is a prompt's end.
  for (size_t i = count; i-- > 0;) {
    const auto [place, is_new] = places_.try_emplace(prompt[i]);
    if (is_new) {
      order_.push_front(prompt[i]);
    } else {
      order_.splice(order_.begin(), order_, place->second);
    }
    place->second = order_.begin();
  }
  while (size() > capacity_) {
    places_.erase(order_.back());
    order_.pop_back();
  }
}

}  // namespace kvblocks::sim
