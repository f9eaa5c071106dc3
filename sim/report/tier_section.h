// TierSection: the tiers behind the device in reports and tables (SM-106).

#ifndef KVBLOCKS_SIM_REPORT_TIER_SECTION_H_
#define KVBLOCKS_SIM_REPORT_TIER_SECTION_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "sim/report/report.pb.h"
#include "sim/report/text_page.h"
#include "sim/tiers/tier_connector.h"

namespace kvblocks::sim {

// Why tokens did not come from a tier; causes of no tokens are left out.
void FillTierMisses(absl::Span<const int64_t> missed_tokens,
                    google::protobuf::RepeatedPtrField<::kvblocks::report::v1::TierMiss>* out);

// "114,256 never stored, 2,592 evicted"; empty for none.
std::string DescribeTierMisses(
    const google::protobuf::RepeatedPtrField<::kvblocks::report::v1::TierMiss>& misses);

// After the run. Of several replicas: sums, with what is shared once.
void FillTiers(absl::Span<const TierConnector* const> of_replicas,
               ::kvblocks::report::v1::Tiers* out);
inline void FillTiers(const TierConnector& tiers, ::kvblocks::report::v1::Tiers* out) {
  const TierConnector* const one = &tiers;
  FillTiers(absl::MakeConstSpan(&one, 1), out);
}

// A few lines per tier; nothing if there are none.
void AddTiers(const ::kvblocks::report::v1::Tiers& tiers, TextPage& page);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TIER_SECTION_H_
