// TierSection: the tiers behind the device in reports and tables (SM-106).

#ifndef KVBLOCKS_SIM_REPORT_TIER_SECTION_H_
#define KVBLOCKS_SIM_REPORT_TIER_SECTION_H_

#include "kvblocks/sim/report/report.pb.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/tiers/tier_connector.h"

namespace kvblocks::sim {

// After the run.
void FillTiers(const TierConnector& tiers, ::kvblocks::report::v1::Tiers* out);

// A few lines per tier; nothing if there are none.
void AddTiers(const ::kvblocks::report::v1::Tiers& tiers, TextPage& page);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TIER_SECTION_H_
