#include "sim/engine/skipped_decodes.h"

#include <algorithm>

#include "kvblocks/check.h"

namespace kvblocks::sim {

void SkippedDecodes::Add(SimRequest& request, int64_t step, int64_t due) {
  KVBLOCKS_CHECK(step + 2 <= due && due <= step + kHorizon, "due outside the horizon");
  request.skipped_since = step;
  request.due = due;
  BucketOf(due).push_back(&request);
  latest_admission_ =
      size_ == 0 ? request.admission : std::max(latest_admission_, request.admission);
  ++size_;
  sum_computed_ += request.num_computed;
}

void SkippedDecodes::Forget(SimRequest& request, int64_t next) {
  --size_;
  sum_computed_ -= NumComputed(request, next);
}

void SkippedDecodes::Remove(SimRequest& request, int64_t next) {
  std::vector<SimRequest*>& bucket = BucketOf(request.due);
  const auto it = std::find(bucket.begin(), bucket.end(), &request);
  KVBLOCKS_CHECK(it != bucket.end(), "not a skipped request");
  bucket.erase(it);
  Forget(request, next);
}

void SkippedDecodes::TakeDue(int64_t next, std::vector<SimRequest*>* out) {
  std::vector<SimRequest*>& bucket = BucketOf(next);
  for (SimRequest* request : bucket) {
    Forget(*request, next);
    out->push_back(request);
  }
  bucket.clear();
}

void SkippedDecodes::TakeAll(int64_t next, std::vector<SimRequest*>* out) {
  for (int64_t i = 0; i < kHorizon && size_ > 0; ++i) {
    std::vector<SimRequest*>& bucket = BucketOf(next + i);
    for (SimRequest* request : bucket) {
      Forget(*request, next);
      out->push_back(request);
    }
    bucket.clear();
  }
}

}  // namespace kvblocks::sim
