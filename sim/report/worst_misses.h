// WorstMisses: the requests whose first admission missed most tokens because they were evicted.
//
// Ties go to the earlier row. Memory: the requests listed. Cost: O(log of them) per admission.

#ifndef KVBLOCKS_SIM_REPORT_WORST_MISSES_H_
#define KVBLOCKS_SIM_REPORT_WORST_MISSES_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "kvblocks/sim/report/explanation.pb.h"
#include "kvblocks/sim/report/miss_classifier.h"

namespace kvblocks::sim {

class WorstMisses final : public AdmissionSink {
 public:
  explicit WorstMisses(size_t num_requests) : num_requests_(num_requests) {}

  bool wants_runs() const override { return false; }
  void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                const RequestProgress& progress, SimTime now) override;

  void Fill(::kvblocks::report::v1::Explanation* out) const;

 private:
  struct Entry {
    int64_t evicted_blocks, row, line;
    std::string id;
    SimTime admitted;
    int64_t known_tokens, hit_tokens, block_tokens, full_blocks, hit_blocks;
    EvictedRun largest;
    bool operator<(const Entry& other) const {
      return evicted_blocks != other.evicted_blocks ? evicted_blocks > other.evicted_blocks
                                                    : row < other.row;
    }
  };

  const size_t num_requests_;
  std::set<Entry> entries_;  // worst first
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_WORST_MISSES_H_
