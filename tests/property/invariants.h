// The invariants of the block manager that hold after every operation (INV-1 to INV-28), checked on
// the library's state alone.

#ifndef KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_
#define KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_

#include <string>
#include <vector>

#include "kvblocks/tests/property/live_request.h"
#include "kvblocks/tests/property/snapshot.h"

namespace kvblocks::property {

// "": all hold. Else the name of the first that does not, and what shows it. `outside` counts, per
// block, references of popped lists and pins.
std::string BrokenInvariant(const KvCacheManager& manager, const std::vector<LiveRequest>& requests,
                            const std::vector<int>& outside);

// INV-12 and INV-13 for the answer of a look-up.
std::string BrokenHitInvariant(const KvCacheManager& manager, const Request& request,
                               const ComputedBlocks& hits);

// INV-20: real ids of a table do not change, except where scratch blocks of states give way; INV-19:
// what became null stays null. For a request that held blocks before and still does.
std::string BrokenTableInvariant(const KvCacheManager& manager, const Tables& before,
                                 const Tables& after);

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_INVARIANTS_H_
