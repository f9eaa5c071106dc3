// Processor time in seconds: what other processes take of a busy machine is not counted.

#ifndef KVBLOCKS_BENCH_THREAD_TIME_H_
#define KVBLOCKS_BENCH_THREAD_TIME_H_

#include <time.h>

namespace kvblocks::bench {

inline double CpuSeconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
inline double ThreadSeconds() { return CpuSeconds(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_THREAD_TIME_H_
