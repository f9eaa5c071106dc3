// What refusals say. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_SAYS_H_
#define KVBLOCKS_ATTENTION_TESTING_SAYS_H_

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"

namespace kvblocks::attention {

// A status that is not OK and whose message has these words in it.
inline auto Says(const std::string& words) {
  return ::testing::ResultOf(
      [](const absl::Status& status) { return std::string(status.message()); },
      ::testing::HasSubstr(words));
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_SAYS_H_
