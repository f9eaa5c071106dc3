// HitGroups: the section `hit_groups` - who hits the prefix cache - tenants, latency classes, session turns, and the prompts
// that start alike.
//
// Counts first admissions, as HitRateMetrics does: the sums over tenants, over classes and over
// turns are each those of the whole run. A prefix group is all prompts with the same first full
// block (content and scope: salt, adapter, and whatever the trace says separates ids); prompts
// shorter than a block are in none.
//
// Cost: two or three table look-ups per admission. Memory: 40 bytes per distinct first block, and
// one entry per tenant and class.

#ifndef KVBLOCKS_SIM_REPORT_HIT_GROUPS_H_
#define KVBLOCKS_SIM_REPORT_HIT_GROUPS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

class HitGroups final : public ReportSection {
 public:
  static constexpr size_t kMinTopPrefixes = 10;
  // Of tenants and of classes; the last one stands for all further ones.
  static constexpr size_t kMaxNames = 100;
  // The last turn counted apart is kNumTurns - 2.
  static constexpr size_t kNumTurns = 17;

  // Lists `top_prefixes` groups, at least kMinTopPrefixes of them if there are so many.
  HitGroups(size_t top_prefixes, const SharedFacts* facts)
      : top_prefixes_(top_prefixes), facts_(facts) {}

  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* report) override;

 private:
  struct Sums {
    int64_t requests = 0, queried = 0, hit = 0;

    void Add(int64_t num_requests, int64_t num_queried, int64_t num_hit) {
      requests += num_requests;
      queried += num_queried;
      hit += num_hit;
    }
  };
  struct Prefix {
    Sums sums;
    int64_t first_row = 0;
  };
  using Names = std::map<std::string, Sums>;

  static void FillOne(const std::string& name, const Sums& sums,
                      ::kvblocks::report::v1::HitGroup* out);
  static void FillNames(const Names& names,
                        google::protobuf::RepeatedPtrField<::kvblocks::report::v1::HitGroup>* out);

  const size_t top_prefixes_;
  const SharedFacts* const facts_;
  Names tenants_, classes_;
  std::array<Sums, kNumTurns> turns_ = {};
  absl::flat_hash_map<uint64_t, Prefix> prefixes_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_HIT_GROUPS_H_
