// KV events as Python holds them, and lists of them as arguments.
//
// An event object shares its content with the batch that it came from, if any. Nothing in it
// changes, so calls may read it without the interpreter lock.

#ifndef KVBLOCKS_PYTHON_SRC_EVENTS_H_
#define KVBLOCKS_PYTHON_SRC_EVENTS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_events.h"
#include "python/src/binding.h"

namespace kvblocks::python {

// An event, and how many bytes of its hashes count. What its texts point to lives as long as it
// does.
template <typename Event>
struct PyEvent {
  std::shared_ptr<const Event> event;
  size_t hash_bytes = sizeof(BlockHash);

  friend bool operator==(const PyEvent& a, const PyEvent& b) {
    return *a.event == *b.event && a.hash_bytes == b.hash_bytes;
  }
};
using PyStored = PyEvent<BlockStored>;
using PyRemoved = PyEvent<BlockRemoved>;

// A decoded batch; its event objects keep it alive.
struct PyEventBatch {
  std::shared_ptr<const events::EventBatch> batch;
};

// One event as an object. REQUIRES: what its texts point to lives for ever, as in a manager's
// events.
nb::object ToPython(KvEvent event, size_t hash_bytes);
using EventList = Result<"list[BlockStored | BlockRemoved | AllBlocksCleared]">;
EventList ToPython(std::vector<KvEvent> events, size_t hash_bytes);

using Events = Argument<"Events">;
// A batch, read without a copy, or any iterable of event objects.
class EventsArgument {
 public:
  explicit EventsArgument(Events events);

  absl::Span<const KvEvent> events() const {
    return batch_ == nullptr ? absl::MakeConstSpan(copies_) : absl::MakeConstSpan(batch_->events);
  }
  // Of all hashes; 32 where there is none.
  size_t hash_bytes() const { return hash_bytes_; }
  std::vector<KvEvent> Take() { return batch_ == nullptr ? std::move(copies_) : batch_->events; }

 private:
  void SetHashBytes(size_t hash_bytes);

  std::shared_ptr<const events::EventBatch> batch_;
  std::vector<KvEvent> copies_;
  std::vector<std::shared_ptr<const void>> kept_;  // what copies point to
  size_t hash_bytes_ = sizeof(BlockHash);
  bool has_hashes_ = false;
};

void BindEventIndex(nb::module_& module);
void BindEventCheck(nb::module_& module);
void BindEventSockets(nb::module_& module);

// Raises while another thread is in a call of `what`.
inline void CheckAlone(int num_inside, const char* what) {
  if (num_inside > 0) {
    Raise("ConcurrentUseError",
          absl::StrCat("another thread is in a call of this ", what, "; one thread at a time"));
  }
}
// Whether a call is inside without the interpreter lock.
class Inside {
 public:
  explicit Inside(int& count) : count_(count) { ++count_; }
  ~Inside() { --count_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  int& count_;
};

// An index as Python sees it: its own, or the one that a subscriber keeps, which nothing else
// changes.
struct PyBlockIndex {
  struct Use {
    const events::BlockIndex& index;
    int& num_inside;  // for a call that releases the interpreter lock
  };

  std::unique_ptr<events::BlockIndex> own;
  nb::object owner;                   // of the other
  Use (*find)(nb::handle) = nullptr;  // may raise
  mutable int num_inside = 0;         // of its own

  // Raises while another thread is inside.
  Use ToUse() const;
  const events::BlockIndex& ToRead() const { return ToUse().index; }
  events::BlockIndex& ToChange();
};

// Milliseconds of a time in seconds, rounded up. Raises for what is below zero, no number, or more
// than a day.
int64_t Milliseconds(double seconds, const char* what);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_EVENTS_H_
