// KvCacheVerifier: a step of layers that keep states - the one it begins with read, those that it
// leaves written.

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/verify/kv_cache_verifier.h"

namespace kvblocks::attention {

// What the layer's state is behind so many tokens; good until the next call.
absl::Span<const float> KvCacheVerifier::StateOf(size_t layer, const Held& held,
                                                 int64_t num_tokens) {
  state_.resize(static_cast<size_t>(Shape(GroupOf(layer)).floats()));
  values_.Fill(held.prefixes[static_cast<size_t>(num_tokens - 1)], static_cast<int64_t>(layer),
               TokenValueKind::kKeyAndValue, absl::MakeSpan(state_));
  return state_;
}

void KvCacheVerifier::WriteState(size_t layer, const Held& held, int64_t num_tokens,
                                 int32_t block) {
  memory_.Write(layer, block, 0, StateOf(layer, held, num_tokens).data());
  ++stats_.num_states_written;
}

absl::Status KvCacheVerifier::ReadStates(const Part& part) {
  if (part.num_computed == 0) return absl::OkStatus();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (!group.is_state) continue;
    const size_t entry = static_cast<size_t>((part.num_computed - 1) / group.block_size);
    const int32_t block = part.held->tables[layers_[layer].group][entry];
    ++stats_.num_states_read;
    const float* expected = StateOf(layer, *part.held, part.num_computed).data();
    if (memory_.Equals(layer, block, 0, expected)) continue;
    return Fail({.request = part.held->name,
                 .layer = static_cast<int64_t>(layer),
                 .position = part.num_computed,
                 .key_position = part.num_computed - 1,
                 .block = block,
                 .text = absl::StrCat("the state behind token ", part.num_computed - 1,
                                      ", with which the step begins, is not there: block ", block,
                                      ", entry ", entry, " of the table, ",
                                      DescribeBlock(layer, block, 0))});
  }
  return absl::OkStatus();
}

absl::Status KvCacheVerifier::WriteStates(const Part& part) {
  const Held& held = *part.held;
  const int64_t end = held.num_tokens();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (!group.is_state) continue;
    const size_t g = layers_[layer].group;
    const auto write = [&](int64_t num_tokens) {
      const int64_t entry = (num_tokens - 1) / group.block_size;
      WriteState(layer, held, num_tokens, held.tables[g][static_cast<size_t>(entry)]);
    };
    for (int64_t at = (part.num_computed / group.block_size + 1) * group.block_size;
         group.at_boundaries && at < end; at += group.block_size) {
      write(at);
    }
    write(end);
    for (const VerifiedCheckpoint& checkpoint : part.checkpoints) {
      if (checkpoint.group == g) WriteState(layer, held, checkpoint.num_tokens, checkpoint.block);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
