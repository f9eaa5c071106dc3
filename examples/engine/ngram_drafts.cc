#include "examples/engine/ngram_drafts.h"

#include <algorithm>
#include <cstddef>

namespace kvblocks::engine {

std::vector<int32_t> NgramDrafts(absl::Span<const int32_t> known, int64_t count) {
  constexpr size_t kLongest = 3;
  std::vector<int32_t> drafts(static_cast<size_t>(count), known.back());
  for (size_t n = std::min(kLongest, known.size() - 1); n > 0; --n) {
    const auto last = known.subspan(known.size() - n);
    // Ends before the last place itself.
    const auto at = std::find_end(known.begin(), known.end() - 1, last.begin(), last.end());
    if (at == known.end() - 1) continue;
    const auto behind = known.subspan(static_cast<size_t>(at - known.begin()) + n);
    std::copy_n(behind.begin(), std::min(behind.size(), drafts.size()), drafts.begin());
    break;
  }
  return drafts;
}

}  // namespace kvblocks::engine
