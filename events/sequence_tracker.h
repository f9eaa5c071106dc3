// SequenceTracker: what a message's number says about one stream of messages (V-64).
//
// A publisher numbers its messages from 0 on. A number beyond the next one is a gap. A smaller one
// is either a message that came before (a replay and the live stream overlap), or the first of a
// publisher that was restarted. Fingerprints of the content decide which; those of the last 131,072
// messages are kept: 1 MiB per stream at most.

#ifndef KVBLOCKS_EVENTS_SEQUENCE_TRACKER_H_
#define KVBLOCKS_EVENTS_SEQUENCE_TRACKER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>

namespace kvblocks::events {

class SequenceTracker {
 public:
  enum class Arrival { kNext, kGap, kDuplicate, kRestart };

  // The number that the next message should have.
  int64_t next() const { return next_; }

  // REQUIRES: sequence >= 0.
  Arrival Classify(int64_t sequence, std::string_view payload) const {
    if (sequence >= next_) return sequence == next_ ? Arrival::kNext : Arrival::kGap;
    const auto back = static_cast<uint64_t>(next_ - sequence);
    return back <= recent_.size() && recent_[recent_.size() - back] == Fingerprint(payload)
               ? Arrival::kDuplicate
               : Arrival::kRestart;
  }

  // The message was processed.
  // REQUIRES: Classify says kNext.
  void Accept(std::string_view payload) {
    recent_.push_back(Fingerprint(payload));
    if (recent_.size() > kRemembered) recent_.pop_front();
    ++next_;
  }
  // What lies before `sequence` will not come. REQUIRES: sequence >= next().
  void SkipTo(int64_t sequence) {
    if (sequence == next_) return;
    recent_.clear();
    next_ = sequence;
  }
  void Restart() {
    recent_.clear();
    next_ = 0;
  }

 private:
  static constexpr size_t kRemembered = size_t{1} << 17;

  static uint64_t Fingerprint(std::string_view payload) {
    return std::hash<std::string_view>()(payload);
  }

  int64_t next_ = 0;
  std::deque<uint64_t> recent_;  // fingerprints of the messages before next_
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_SEQUENCE_TRACKER_H_
