// How a command ended, as the exit status of the process.

#ifndef KVBLOCKS_SIM_COMMANDS_EXIT_STATUS_H_
#define KVBLOCKS_SIM_COMMANDS_EXIT_STATUS_H_

namespace kvblocks::sim {

enum ExitStatus {
  kDone = 0,
  kMissed = 1,      // a comparison or a service level objective failed
  kBadInput = 2,    // options, configuration, trace or output file
  kNoProgress = 3,  // nothing could ever move again
  kInternal = 4,    // an internal check failed
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_EXIT_STATUS_H_
