// Explore: tries every sequence of a setting's actions up to a length, on library and oracle.
//
// Sequences that lead to equal observable states are continued once: states are compared by
// World::StateKey, in which blocks have no ids (except with chunks), so also states that differ by
// a permutation of blocks are explored once. What a state hides (slots of the hash table, spare
// memory) differs between the sequences that reach it; the option `merge_states` off tries all of
// them.
//
// A state is left by replaying the shortest sequence that reaches it and applying one more action.

#ifndef KVBLOCKS_TESTS_EXHAUSTIVE_EXPLORATION_H_
#define KVBLOCKS_TESTS_EXHAUSTIVE_EXPLORATION_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/exhaustive/world.h"

namespace kvblocks::exhaustive {

struct Exploration {
  int64_t num_states = 0;
  int64_t num_transitions = 0;  // actions applied and compared
  double num_sequences = 0;     // applicable sequences of `length` actions that these stand for
  int length = 0;
  bool complete = false;   // no longer sequence reaches another state
  int64_t num_steals = 0;  // most chunks taken from another class in one sequence
  int64_t num_packed = 0;  // most pages taken out of order to save a chunk
  std::string failure;     // "", or the first difference and the actions that led to it
};

Exploration Explore(const Setting& setting, int length, bool merge_states = true);

// --- The settings: tiny pools, blocks of two tokens, two or three requests that share prefixes in
// different ways ---

struct SizedSetting {
  Setting setting;
  int length = 0;  // of the sequences an optimised build tries, at most

  friend std::ostream& operator<<(std::ostream& out, const SizedSetting& sized) {
    return out << sized.setting.name;
  }
};

const std::vector<SizedSetting>& Settings();

}  // namespace kvblocks::exhaustive

#endif  // KVBLOCKS_TESTS_EXHAUSTIVE_EXPLORATION_H_
