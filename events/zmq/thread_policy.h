// How the kernel schedules the threads that send events.
//
// They wake every millisecond and then work for up to some hundred microseconds. On a machine whose
// cores are all busy the kernel would put a thread aside for one that wakes: perhaps the scheduler's.
// A thread of the batch policy gets its share of the processor without that right.

#ifndef KVBLOCKS_EVENTS_ZMQ_THREAD_POLICY_H_
#define KVBLOCKS_EVENTS_ZMQ_THREAD_POLICY_H_

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace kvblocks::events {

// For the calling thread. Nothing changes where the system has no such policy or refuses it.
inline void DoNotPreemptOthers() {
#ifdef __linux__
  const sched_param parameters{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
#endif
}

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_THREAD_POLICY_H_
