// Scenario: a configuration to test - a shape of KV-cache groups and randomly drawn options, for
// library and oracle alike.

#ifndef KVBLOCKS_TESTS_PROPERTY_SCENARIO_H_
#define KVBLOCKS_TESTS_PROPERTY_SCENARIO_H_

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kvblocks/kv_cache_manager.h"

namespace kvblocks::property {

struct Shape {
  std::string name;  // letters and digits, for test names
  std::vector<KvCacheGroup> groups;
  std::optional<int64_t> scheduler_block_size = std::nullopt;
  std::optional<int64_t> hash_block_size = std::nullopt;
  bool use_eagle = false;
  bool always_caching_off = false;
  // Page classes in chunks, whose number is drawn; default: every block serves every group.
  std::optional<NativeLayout> native = std::nullopt;
  std::optional<int64_t> retention_interval = std::nullopt;  // default: drawn
  bool register_unreachable = false;
  bool partial_hits = false;
  int64_t decode_ranks = 1;  // BM-113
  int64_t prefill_ranks = 1;
  int64_t checkpoint_alignment = 1;  // V-45
  bool is_drawn = false;             // options that go with drafts are drawn without any, too

  // Whether some group is of this kind, or its specs have such a field set.
  template <typename Predicate>
  bool Has(Predicate predicate) const {
    return std::any_of(groups.begin(), groups.end(),
                       [&](const KvCacheGroup& group) { return predicate(group.spec); });
  }
  bool is_spread() const { return decode_ranks * prefill_ranks > 1; }
  bool has_output_windows() const {
    return Has([](const KvCacheSpec& spec) { return spec.output_window().has_value(); });
  }
  bool has_rings() const {
    return Has([](const KvCacheSpec& spec) { return spec.kind() == KvCacheSpecKind::kRing; });
  }
  bool is_replayed() const {
    return Has([](const KvCacheSpec& spec) { return spec.options().bounded_replay; });
  }
  bool has_checkpoints() const {
    return Has([](const KvCacheSpec& spec) { return spec.options().num_checkpoint_blocks > 0; });
  }

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << shape.name;
  }
};

// Every kind of spec alone, and mixes of two to four groups; some with page classes in chunks.
const std::vector<Shape>& Shapes();

// A shape drawn as widely as configurations allow: one to eight groups of any kind in any order,
// with equal and unequal block sizes, windows from one token on, finer hash blocks, drafts, ranks,
// chunks. Managers refuse some of them. `stores` are random: the first for the whole, the others
// for a group each.
inline constexpr size_t kStoresPerShape = 9;
Shape DrawShape(const std::vector<uint64_t>& stores);

struct Scenario {
  KvCacheConfig config;
  KvCacheManagerOptions options;

  std::string ToString() const;
};

// A pool of about this many blocks; in chunks, if the configuration has them, at least
// `min_chunks`.
void SetPoolSize(KvCacheConfig& config, int64_t num_blocks, int64_t min_chunks = 1);

// Options drawn from `numbers`: pool size, lengths, caching, events, watermark, free order, hash,
// cap formula; the semantics of an engine or one switch away from them; retention; for shapes with
// drafts the lookahead of hashes and prefills.
Scenario MakeScenario(const Shape& shape, uint64_t numbers);

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_SCENARIO_H_
