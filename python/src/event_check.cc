// StreamCheck: whether a stream of KV events is one that a cache can have sent.

#include <nanobind/stl/string.h>

#include "absl/strings/str_cat.h"
#include "python/src/events.h"

namespace kvblocks::python {
namespace {

using events::HolderId;
using events::StreamCheck;

struct PyStreamCheck {
  StreamCheck core;
  int num_inside = 0;  // calls without the interpreter lock

  StreamCheck& ToUse() {
    CheckAlone(num_inside, "StreamCheck");
    return core;
  }
  HolderId Stream(int64_t stream) {
    const int64_t count = ToUse().index().num_holders();
    if (stream >= 0 && stream < count) return static_cast<HolderId>(stream);
    Raise("NotFoundError", absl::StrCat("StreamCheck: stream is ", stream, ", of ", count,
                                        " that there are, counted from 0"));
  }
};

void Apply(PyStreamCheck& self, int64_t stream, const PyEventBatch& batch) {
  constexpr size_t kManyEvents = 16;
  const HolderId id = self.Stream(stream);
  const std::shared_ptr<const events::EventBatch> kept = batch.batch;
  const Inside inside(self.num_inside);
  const ReleaseIf released(kept->events.size() > kManyEvents);
  self.core.Apply(id, *kept);
}

void BindTotals(nb::module_& module) {
  using Totals = StreamCheck::Totals;
  nb::class_<Totals>(module, "StreamTotals",
                     "What a StreamCheck counted of one stream, at that moment.")
      .def_ro("num_batches", &Totals::num_batches)
      .def_ro("num_events", &Totals::num_events)
      .def_ro("num_stored_events", &Totals::num_stored_events)
      .def_ro("num_removed", &Totals::num_removed, "Hashes.")
      .def_ro("num_cleared", &Totals::num_cleared)
      .def_ro("num_tokens", &Totals::num_tokens, "Token ids of stored events.")
      .def_ro("num_other_media", &Totals::num_other_media, "Events passed over.")
      .def_ro("num_unknown_extra_keys", &Totals::num_unknown_extra_keys)
      .def_ro("num_stored", &Totals::num_stored, "Hashes; the sum of the four that follow.")
      .def_ro("num_first_seen", &Totals::num_first_seen,
              "New to all caches: no cache could have hit.")
      .def_ro("num_lost_before", &Totals::num_lost_before,
              "Held once, by no cache now: a larger one would have hit.")
      .def_ro("num_held_elsewhere", &Totals::num_held_elsewhere,
              "Another cache held it: another routing would have hit.")
      .def_ro("num_held_here", &Totals::num_held_here,
              "Stored twice: computed side by side, or reported as reused.")
      .def_ro("num_unknown_removals", &Totals::num_unknown_removals,
              "A problem: of what was not stored.")
      .def_ro("num_two_parents", &Totals::num_two_parents, "A problem: hashes behind two parents.")
      .def_ro("num_unequal_lists", &Totals::num_unequal_lists, "A problem: lists of wrong length.")
      .def_prop_ro("num_problems", &Totals::num_problems,
                   "Of all kinds; 0: a cache can have sent this.")
      .def_ro("first_problem", &Totals::first_problem, "In words; empty: none.")
      .def_ro("num_unknown_parents", &Totals::num_unknown_parents,
              "No problem: what precedes a masked block is never stored.")
      .def_ro("num_removals_after_loss", &Totals::num_removals_after_loss,
              "No problem: a lost batch may have stored it.")
      .def_ro("num_times_backwards", &Totals::num_times_backwards,
              "Batches with a time before the last one's.")
      .def_ro("first_time", &Totals::first_time, "Seconds since 1970, as the first batch says.")
      .def_ro("last_time", &Totals::last_time)
      .def("__repr__", [](const Totals& t) {
        return absl::StrCat("StreamTotals(", t.num_events, " events, ", t.num_problems(),
                            " problems)");
      });
}

}  // namespace

void BindEventCheck(nb::module_& module) {
  BindTotals(module);
  nb::class_<PyStreamCheck>(
      module, "StreamCheck",
      R"(Whether streams of KV events are ones that caches can have sent, and what they could hit.

What `kvsim events` counts. Each stream is one cache's. 40 bytes per hash ever seen beside an index;
about 150 ns per hash. One thread at a time; long calls release the interpreter lock.)")
      .def(
          "__init__",
          [](PyStreamCheck* self, std::string medium) {
            new (self) PyStreamCheck{StreamCheck(std::move(medium))};
          },
          nb::kw_only(), nb::arg("medium") = "GPU",
          "Events of other media are passed over; \"\": all count.")
      .def(
          "add_stream",
          [](PyStreamCheck& self, std::string name) {
            return self.ToUse().AddStream(std::move(name));
          },
          nb::arg("name"), "A cache that is empty; its number.")
      .def("apply", &Apply, nb::arg("stream"), nb::arg("batch"),
           "The stream's next batch. Raises NotFoundError for no such stream.")
      .def(
          "on_loss",
          [](PyStreamCheck& self, int64_t stream) { self.core.OnLoss(self.Stream(stream)); },
          nb::arg("stream"),
          "Batches are missing, from the first one on or from here on: removals of what is not "
          "known prove nothing then.")
      .def(
          "on_restart",
          [](PyStreamCheck& self, int64_t stream) { self.core.OnRestart(self.Stream(stream)); },
          nb::arg("stream"), "The cache restarted, and is empty.")
      .def(
          "totals",
          [](PyStreamCheck& self, int64_t stream) { return self.core.totals(self.Stream(stream)); },
          nb::arg("stream"), "Raises NotFoundError for no such stream.")
      .def(
          "holder",
          [](PyStreamCheck& self, int64_t stream) {
            return self.core.index().holder(self.Stream(stream));
          },
          nb::arg("stream"), "What the cache holds now.")
      .def_prop_ro(
          "num_ever_seen", [](PyStreamCheck& self) { return self.ToUse().num_ever_seen(); },
          "Distinct hashes and groups, over all streams.");
}

}  // namespace kvblocks::python
