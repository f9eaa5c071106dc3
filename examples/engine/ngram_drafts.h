// Drafts of an n-gram drafter: what followed the last tokens where they stood before.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_NGRAM_DRAFTS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_NGRAM_DRAFTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kvblocks::engine {

// `count` tokens for behind `known`: those behind the latest earlier place of its last three
// tokens, or two, or one; where nothing is left, the last token again. O(known). REQUIRES: known is
// not empty.
std::vector<int32_t> NgramDrafts(absl::Span<const int32_t> known, int64_t count);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_NGRAM_DRAFTS_H_
