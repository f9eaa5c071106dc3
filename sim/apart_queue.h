// ApartQueue: what replicas that run apart tell, kept until it can be told in order.
//
//   queue.Add(r, time, row);     // by whichever thread runs replica r
//   queue.TakeAll([&](size_t replica, SimTime time, const Row& row) { ... });
//
// Taken in order of `Order`, and of equal ones in replica order, each replica's own as they came: so the
// threads that ran the replicas cannot be told from what comes out. Cost: n log n; nothing is allocated
// in steady state, but for what items own.

#ifndef KVBLOCKS_SIM_APART_QUEUE_H_
#define KVBLOCKS_SIM_APART_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvblocks::sim {

template <typename Order, typename Item>
class ApartQueue {
 public:
  void Resize(size_t num_replicas) { lists_.resize(num_replicas); }

  // For one replica by one thread at a time. REQUIRES: `order` never goes back for one replica.
  void Add(size_t replica, const Order& order, Item item) {
    lists_[replica].entries.push_back({order, std::move(item)});
  }

  // take(replica, order, item). Nothing is left. REQUIRES: nobody adds meanwhile.
  template <typename Take>
  void TakeAll(Take take) {
    places_.clear();
    for (size_t r = 0; r < lists_.size(); ++r) {
      for (Entry& entry : lists_[r].entries) places_.push_back({r, &entry});
    }
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
      if (a.entry->order != b.entry->order) return a.entry->order < b.entry->order;
      return a.replica != b.replica ? a.replica < b.replica : a.entry < b.entry;
    });
    for (const Place& place : places_) take(place.replica, place.entry->order, place.entry->item);
    for (List& list : lists_) list.entries.clear();
  }

 private:
  struct Entry {
    Order order;
    Item item;
  };
  struct Place {
    size_t replica;
    Entry* entry;
  };
  // Of threads that write side by side.
  struct alignas(64) List {
    std::vector<Entry> entries;
  };

  std::vector<List> lists_;  // by replica
  std::vector<Place> places_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_APART_QUEUE_H_
