// The settings whose action sequences are all tried: tiny pools, blocks of two tokens, two or three
// requests that share prefixes in different ways.

#ifndef KVBLOCKS_TESTS_EXHAUSTIVE_SETTINGS_H_
#define KVBLOCKS_TESTS_EXHAUSTIVE_SETTINGS_H_

#include <ostream>
#include <vector>

#include "kvblocks/tests/exhaustive/world.h"

namespace kvblocks::exhaustive {

struct SizedSetting {
  Setting setting;
  int length = 0;  // of the sequences an optimised build tries, at most

  friend std::ostream& operator<<(std::ostream& out, const SizedSetting& sized) {
    return out << sized.setting.name;
  }
};

const std::vector<SizedSetting>& Settings();

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_SETTINGS_H_
