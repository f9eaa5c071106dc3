// IdWindow: the content ids of the last requests of a native trace, which later requests copy from.
//
// Writer and reader follow the same rule, so that what one refers to the other still has: the last
// `max_requests` requests, without the oldest ones while all have more than `max_ids` ids. The last
// request always stays.

#ifndef KVBLOCKS_SIM_TRACE_ID_WINDOW_H_
#define KVBLOCKS_SIM_TRACE_ID_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace kvblocks::sim {

inline constexpr int64_t kDefaultCopyWindow = 65536;
inline constexpr int64_t kDefaultCopyWindowIds = int64_t{1} << 24;
// What a reader accepts; a file that asks for more is hostile: a few bytes copy as many.
inline constexpr int64_t kMostCopyWindow = int64_t{1} << 20;
inline constexpr int64_t kMostCopyWindowIds = int64_t{1} << 25;

class IdWindow {
 public:
  IdWindow(int64_t max_requests, int64_t max_ids)
      : max_requests_(max_requests), max_ids_(max_ids) {}

  // Calls dropped(request) for each request that leaves, counted from 0 since the start.
  template <typename Dropped>
  void Push(std::vector<int64_t> ids, Dropped dropped) {
    num_ids_ += static_cast<int64_t>(ids.size());
    requests_.push_back(std::move(ids));
    while (requests_.size() > 1 &&
           (static_cast<int64_t>(requests_.size()) > max_requests_ || num_ids_ > max_ids_)) {
      dropped(first_);
      num_ids_ -= static_cast<int64_t>(requests_.front().size());
      requests_.pop_front();
      ++first_;
    }
  }

  // The ids of a request, or null if it has left or is not there yet.
  const std::vector<int64_t>* Find(int64_t request) const {
    const int64_t index = request - first_;
    if (index < 0 || index >= static_cast<int64_t>(requests_.size())) return nullptr;
    return &requests_[static_cast<size_t>(index)];
  }

 private:
  int64_t max_requests_;
  int64_t max_ids_;
  std::deque<std::vector<int64_t>> requests_;
  int64_t first_ = 0;
  int64_t num_ids_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_ID_WINDOW_H_
