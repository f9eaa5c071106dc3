// The shipped example workload: chats and questions about documents, in Mooncake JSONL with blocks
// of 16 tokens.
//
// Four system prompts of unequal popularity; chats of several turns whose next prompt holds the
// previous prompt, the reply and a new message; long documents that several people ask about. About
// 400 requests in ten minutes. Every draw is an integer from std::mt19937_64, so the text is the
// same everywhere.

#ifndef KVBLOCKS_SIM_EXAMPLE_EXAMPLE_WORKLOAD_H_
#define KVBLOCKS_SIM_EXAMPLE_EXAMPLE_WORKLOAD_H_

#include <cstdint>
#include <string>

namespace kvblocks::sim {

inline constexpr uint64_t kExampleSeed = 20240917;

std::string MakeExampleWorkload(uint64_t seed = kExampleSeed);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_EXAMPLE_EXAMPLE_WORKLOAD_H_
