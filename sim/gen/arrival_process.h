// ArrivalProcess: when sessions begin, one after the other.
//
// Rates that change with time come from thinning: candidates at the highest rate, each kept with the
// chance that its time has. Of a closed loop nothing is drawn here.

#ifndef KVBLOCKS_SIM_GEN_ARRIVAL_PROCESS_H_
#define KVBLOCKS_SIM_GEN_ARRIVAL_PROCESS_H_

#include <cstdint>

#include "kvblocks/sim/gen/philox.h"
#include "kvblocks/sim/gen/workload.pb.h"

namespace kvblocks::sim {

class ArrivalProcess {
 public:
  // `arrivals` must outlive this.
  ArrivalProcess(const workload::v1::Arrivals& arrivals, uint64_t seed);

  // Of the next session, in ns since the start.
  int64_t Next();
  // Whether Next reached the latest time there is, from which on everything would arrive at once.
  bool has_ended() const { return has_ended_; }

 private:
  double Gap();
  double Thinned();
  double OnOffGap();
  double RateAt(double seconds) const;

  const workload::v1::Arrivals& arrivals_;
  const PhiloxKey gaps_, stays_;
  uint64_t session_ = 0;
  uint64_t candidate_ = 0;
  uint64_t stay_ = 0;
  double stay_ends_ = 0;
  double seconds_ = 0;       // of the last arrival or candidate
  double most_rate_ = 0;     // of a rate that changes
  double cycle_s_ = 0;       // of all steps
  double weibull_scale_ = 0;
  int64_t replay_ns_ = 0;
  bool has_ended_ = false;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_ARRIVAL_PROCESS_H_
