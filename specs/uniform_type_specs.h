// UniformTypeSpecs: layer caches with pages of different sizes that share one block table, because
// they always need the same number of token slots. DeepSeek-V3.2's latent caches and indexer caches
// are of this sort.
//
// An immutable value: members in registration order under distinct names, never empty, all of one
// uniform type (merge.h). One block id stands for one page in every member, so the aggregate's page
// is the sum of the members' pages.

#ifndef KVBLOCKS_SPECS_UNIFORM_TYPE_SPECS_H_
#define KVBLOCKS_SPECS_UNIFORM_TYPE_SPECS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {

class UniformTypeSpecs {
 public:
  using Member = std::pair<std::string, KvCacheSpec>;  // layer-cache name and spec

  static absl::StatusOr<UniformTypeSpecs> Create(std::vector<Member> members);

  const std::vector<Member>& members() const { return members_; }
  int64_t block_size() const { return representative().block_size(); }
  int64_t page_bytes() const { return page_bytes_; }

  // The spec by which a block manager sees the group; any member would do.
  const KvCacheSpec& representative() const { return members_.front().second; }

  // The members' kind if they have one in common.
  std::optional<KvCacheSpecKind> kind() const;

  absl::StatusOr<int64_t> MaxBlocksPerRequest(
      const RequestLimits& limits, BlockCountFormula formula = BlockCountFormula::kExact) const;
  absl::StatusOr<int64_t> MaxBytesPerRequest(
      const RequestLimits& limits, BlockCountFormula formula = BlockCountFormula::kExact) const;

  friend bool operator==(const UniformTypeSpecs&, const UniformTypeSpecs&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const UniformTypeSpecs& specs) {
    return H::combine(std::move(h), specs.members_);
  }

 private:
  UniformTypeSpecs(std::vector<Member> members, int64_t page_bytes)
      : members_(std::move(members)), page_bytes_(page_bytes) {}

  std::vector<Member> members_;
  int64_t page_bytes_;
};

// The block-table width of specs that share one table. Refused if they disagree.
// REQUIRES: specs is not empty.
absl::StatusOr<int64_t> SharedBlockTableWidth(const std::vector<KvCacheSpec>& specs,
                                              const RequestLimits& limits);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_UNIFORM_TYPE_SPECS_H_
