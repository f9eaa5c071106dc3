// BlockCountFormula: which formula counts the blocks of windowed kinds (see request_footprint.h).

#ifndef KVBLOCKS_SPECS_BLOCK_COUNT_FORMULA_H_
#define KVBLOCKS_SPECS_BLOCK_COUNT_FORMULA_H_

namespace kvblocks {

// kExact is the true worst case; kUpstream repeats vLLM's formulas for comparisons, which are at most
// one block higher.
enum class BlockCountFormula { kExact, kUpstream };

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_BLOCK_COUNT_FORMULA_H_
