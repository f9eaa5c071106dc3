// BackendSupport: what a backend can do, as a table; and the check of a configuration against it.
//
// One table per backend says what is built, and Check reads the same table as the launch does, so
// that the two cannot disagree. Cost: O(size of the table).

#ifndef KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SUPPORT_H_
#define KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SUPPORT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kvblocks/attention/backends/backend_config.h"

namespace kvblocks::attention {

// Block sizes of a kernel: these, or all multiples of a number.
struct BlockSizes {
  std::vector<int64_t> exact = {};
  int64_t multiple_of = 0;  // 0: only the exact ones

  bool contains(int64_t block_size) const;
};

struct BackendSupport {
  std::vector<OpKind> ops = {};
  std::vector<DType> q_dtypes = {}, cache_dtypes = {};
  std::vector<KvLayout> layouts = {};
  std::vector<KvRowFormat> row_formats = {KvRowFormat::kElements};
  // (D, Dv) of what is built; empty: any.
  std::vector<std::pair<int64_t, int64_t>> head_sizes = {};
  int64_t most_head_size = INT64_MAX;  // of D and of Dv
  BlockSizes block_sizes = {};
  std::vector<AttentionType> types = {};
  FeatureSet features = {};
  // Pairs of features that are not built together.
  std::vector<std::pair<Feature, Feature>> exclusive = {};
  GraphLevel graph_level = GraphLevel::kNever;
  bool on_cuda = false;
  int32_t least_compute_capability = 0;
  int32_t end_compute_capability = INT32_MAX;  // below it
};

// The reasons against the row format of a configuration: that it is not built, or does not go with the
// cache's type, layout or head sizes. Layers that declare a format are refused for them, too.
std::vector<Reason> CheckRowFormat(const BackendSupport& support, const BackendConfig& config);

// All reasons against a configuration, in the order of the members; none if it can be done.
std::vector<Reason> CheckSupport(const BackendSupport& support, const BackendConfig& config);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SUPPORT_H_
