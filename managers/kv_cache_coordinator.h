// KvCacheCoordinator: the groups of a model together - one hit length all of them can serve, one
// budget of free blocks.
//
// Three kinds: without prefix cache (look-ups give nothing, nothing is registered), unitary (one
// group) and hybrid (several groups, whose look-ups are repeated with shrinking lengths until all
// agree). Called by KvCacheManager only.
//
// Always: hits of all groups cover the same number of tokens, a multiple of hit_alignment().

#ifndef KVBLOCKS_MANAGERS_KV_CACHE_COORDINATOR_H_
#define KVBLOCKS_MANAGERS_KV_CACHE_COORDINATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class KvCacheCoordinator {
 public:
  struct Hit {
    int64_t num_tokens = 0;
    int64_t longest_lookup = 0;  // largest length any group's look-up returned
  };
  using Managers = std::vector<std::unique_ptr<SingleTypeManager>>;

  // Picks the kind. REQUIRES: block sizes validated by KvCacheManager::Create.
  static std::unique_ptr<KvCacheCoordinator> Create(Managers managers, bool enable_caching,
                                                    int64_t scheduler_block_size,
                                                    int64_t hash_block_size, int64_t hit_alignment);
  virtual ~KvCacheCoordinator() = default;

  // The longest hit of at most max_tokens; fills one list per group.
  virtual Hit FindLongestCacheHit(const PrefixContent& content, int64_t max_tokens,
                                  HitLists& lists) const = 0;

  // How many of the first n tokens a group registers.
  virtual int64_t NumTokensToRegister(const SingleTypeManager& manager, int64_t n) const = 0;

  int64_t num_groups() const { return static_cast<int64_t>(managers_.size()); }
  SingleTypeManager& group(GroupId group) { return *managers_[static_cast<size_t>(group)]; }
  const SingleTypeManager& group(GroupId group) const {
    return *managers_[static_cast<size_t>(group)];
  }
  int64_t scheduler_block_size() const { return scheduler_block_size_; }
  int64_t hash_block_size() const { return hash_block_size_; }
  // Hits end at multiples of it.
  int64_t hit_alignment() const { return hit_alignment_; }

 protected:
  KvCacheCoordinator(Managers managers, int64_t scheduler_block_size, int64_t hash_block_size,
                     int64_t hit_alignment)
      : managers_(std::move(managers)),
        scheduler_block_size_(scheduler_block_size),
        hash_block_size_(hash_block_size),
        hit_alignment_(hit_alignment) {}

  Managers managers_;
  int64_t scheduler_block_size_;
  int64_t hash_block_size_;
  int64_t hit_alignment_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_KV_CACHE_COORDINATOR_H_
