#include "kvblocks/managers/request.h"

#include <atomic>

#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {
namespace {
std::atomic<uint64_t> next_serial{1};
}  // namespace

Request::Request(std::string id, PrefixContent content, bool skip_reading_prefix_cache)
    : id_(std::move(id)),
      content_(std::move(content)),
      num_prompt_tokens_(content_.num_tokens()),
      skip_reading_prefix_cache_(skip_reading_prefix_cache),
      serial_(next_serial.fetch_add(1, std::memory_order_relaxed)) {}

Request::~Request() {
  if (holder_ != nullptr) holder_->Release(*this);
}

}  // namespace kvblocks
