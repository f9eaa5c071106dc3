// EventPublisher and EventSubscriber: KV events over ZeroMQ. In a build without it there are none.
//
// Calls that may wait release the interpreter lock and take it again ten times a second, so that
// Ctrl-C acts.

#include "python/src/events.h"

#ifdef KVBLOCKS_WITH_ZMQ

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_events_zmq.h"

namespace kvblocks::python {

using events::EventPublisher;
using events::EventSubscriber;
using std::chrono::milliseconds;

namespace {

// Calls `step(milliseconds)` without the interpreter lock until it answers true or the time is
// over. Negative: for ever. Raises what a signal's handler raised.
template <typename Step>
bool Wait(int64_t total, Step&& step) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + milliseconds(std::max<int64_t>(total, 0));
  while (true) {
    const int64_t left = total < 0 ? std::numeric_limits<int64_t>::max()
                                   : std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    bool done;
    {
      const nb::gil_scoped_release released;
      done = step(milliseconds(std::clamp<int64_t>(left, 0, 100)));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    if (left <= 100) return false;
  }
}

template <typename T>
nb::handle_t<T> Self(nb::handle_t<T> self) {
  return self;
}

// --- Publisher ---

class PyPublisher {
 public:
  PyPublisher(const EventPublisher::Options& options)
      : hash_bytes_(options.hash_form.digest_size),
        waits_(options.when_full == EventPublisher::WhenFull::kWait) {
    core_ = Value(EventPublisher::Create(options));
  }
  ~PyPublisher() { Close(); }

  EventPublisher& core() const {
    if (core_ == nullptr) Raise("InvalidArgumentError", "EventPublisher: it is closed");
    return *core_;
  }

  // Sends what is queued, at most for `linger`.
  void Close() {
    if (core_ == nullptr) return;
    if (num_inside_ > 0)
      Raise("ConcurrentUseError", "EventPublisher.close: another thread is in a call of it");
    std::unique_ptr<EventPublisher> core = std::move(core_);
    const nb::gil_scoped_release released;
    core.reset();
  }

  bool Publish(Events list, std::optional<double> timestamp) {
    EventsArgument argument(list);
    const bool has_hashes =
        std::any_of(argument.events().begin(), argument.events().end(),
                    [](const KvEvent& e) { return !std::holds_alternative<AllBlocksCleared>(e); });
    if (has_hashes) CheckHashBytes(argument.hash_bytes());
    std::vector<KvEvent> batch = argument.Take();
    for (KvEvent& event : batch) KeepTexts(event);
    return Send(std::move(batch), timestamp);
  }
  bool PublishFrom(PyManager& manager, std::optional<double> timestamp) {
    CheckUse(manager);
    (void)core();  // a refusal comes before the events are taken
    CheckHashBytes(HashBytesOf(*manager.core));
    CheckPublishing();
    return Send(manager.core->TakeEvents(), timestamp);
  }

  bool Flush(double timeout) {
    EventPublisher& publisher = core();
    const Inside inside(num_inside_);
    return Wait(Milliseconds(timeout, "EventPublisher.flush: timeout"),
                [&](milliseconds time) { return publisher.Flush(time); });
  }

 private:
  void CheckPublishing() const {
    if (is_publishing_ > 0) {
      Raise("ConcurrentUseError",
            "EventPublisher.publish: another thread publishes; one thread at a time");
    }
  }
  void CheckHashBytes(size_t got) const {
    if (got == hash_bytes_) return;
    Raise("InvalidArgumentError",
          absl::StrCat("EventPublisher.publish: hashes have ", got, " bytes, expected ",
                       hash_bytes_, ", the publisher's digest_size"));
  }
  // Another thread encodes the events later, when the memory of their texts may be gone.
  void KeepTexts(KvEvent& event) {
    if (auto* stored = std::get_if<BlockStored>(&event)) {
      stored->medium = Kept(stored->medium);
      stored->kv_cache_spec_kind = Kept(stored->kv_cache_spec_kind);
    } else if (auto* removed = std::get_if<BlockRemoved>(&event)) {
      removed->medium = Kept(removed->medium);
    }
  }
  std::string_view Kept(std::string_view text) {
    constexpr size_t kMost = 1000;
    auto it = texts_.find(text);
    if (it == texts_.end()) {
      if (texts_.size() == kMost) {
        Raise("InvalidArgumentError", absl::StrCat("EventPublisher.publish: more than ", kMost,
                                                   " different media and kinds of groups"));
      }
      it = texts_.emplace(text).first;
    }
    return *it;
  }
  bool Send(std::vector<KvEvent> batch, std::optional<double> timestamp) {
    EventPublisher& publisher = core();
    CheckPublishing();
    const Inside publishing(is_publishing_);
    const Inside inside(num_inside_);
    const ReleaseIf released(waits_);
    return timestamp ? publisher.Publish(std::move(batch), *timestamp)
                     : publisher.Publish(std::move(batch));
  }

  std::set<std::string, std::less<>> texts_;  // outlive the publisher's thread
  std::unique_ptr<EventPublisher> core_;
  const size_t hash_bytes_;
  const bool waits_;
  int num_inside_ = 0;
  int is_publishing_ = 0;
};

struct NewPublisher : EventPublisher::Options {
  int64_t digest_size = sizeof(BlockHash);
};

void CreatePublisher(NewPublisher options, PyPublisher* self, std::string endpoint) {
  const int64_t least = options.hash_form.as_integers ? 8 : 1;
  if (options.digest_size < least ||
      options.digest_size > static_cast<int64_t>(sizeof(BlockHash))) {
    Raise("InvalidArgumentError",
          absl::StrCat("digest_size is ", options.digest_size, ", expected ", least, " to ",
                       sizeof(BlockHash), " bytes"));
  }
  options.endpoint = std::move(endpoint);
  options.hash_form.digest_size = static_cast<size_t>(options.digest_size);
  new (self) PyPublisher(options);
}

EventPublisher::WhenFull WhenFullByName(const std::string& name) {
  return Value(ParseWord("when_full", name, "drop", EventPublisher::WhenFull::kDrop, "wait",
                         EventPublisher::WhenFull::kWait));
}

// A time in seconds.
template <typename At>
auto Seconds(const char* name, double fallback, At at) {
  return Take<double>(nb::arg(name) = fallback, [=](auto& options, double seconds) {
    options.*at = milliseconds(Milliseconds(seconds, name));
  });
}

void BindPublisher(nb::module_& module) {
  using Stats = EventPublisher::Stats;
  nb::class_<Stats>(module, "EventPublisherStats", "Counts of a publisher, at that moment.")
      .def_ro("num_batches", &Stats::num_batches, "Given to the socket.")
      .def_ro("num_events", &Stats::num_events)
      .def_ro("num_bytes", &Stats::num_bytes, "Of payloads.")
      .def_ro("num_dropped_batches", &Stats::num_dropped_batches, "The queue was full.")
      .def_ro("num_dropped_events", &Stats::num_dropped_events)
      .def_ro("num_queued_batches", &Stats::num_queued_batches, "Now.")
      .def_ro("num_failed_sends", &Stats::num_failed_sends)
      .def_ro("num_replay_requests", &Stats::num_replay_requests)
      .def_ro("num_bad_requests", &Stats::num_bad_requests)
      .def_ro("num_replayed_batches", &Stats::num_replayed_batches)
      .def_ro("num_subscribers", &Stats::num_subscribers, "Subscriptions, now.");

  nb::class_<PyPublisher> publisher(
      module, "EventPublisher",
      R"(Sends KV events to routers over ZeroMQ, as vLLM 0.33's publisher does.

A thread of its own encodes and sends; publish hands the events over and returns. Use it in a with
statement, or close it: both send what is queued. publish: one thread at a time; the rest from
any.)");
  using O = NewPublisher;
  Define(publisher, "__init__", &CreatePublisher,
         R"(endpoint: bound if it has "*" or "::", or is ipc or inproc, else connected to; port 0:
any free one.

replay_endpoint: answers who missed batches, of the last buffer_batches; "": nobody.
data_parallel_rank is added to ports. high_water_mark: messages that wait per subscriber. when_full,
of the queue: "drop" and count, or "wait". digest_size: bytes of the hashes. poll_interval: seconds,
0.001 to 1, that a batch waits at most. linger: seconds that close waits at most. docs/events.md has
the wire.

Raises InvalidArgumentError for options out of range, KVBlocksError for an endpoint that cannot be
bound.)",
         std::tuple(nb::arg("endpoint") = "tcp://*:5557"), Parameters(),
         Parameters(Field("replay_endpoint", &O::replay_endpoint), Field("topic", &O::topic),
                    Field("data_parallel_rank", &O::data_parallel_rank),
                    Field("buffer_batches", &O::buffer_batches),
                    Field("high_water_mark", &O::high_water_mark),
                    Field("queue_batches", &O::queue_batches),
                    Word("when_full", "drop", &O::when_full, &WhenFullByName),
                    Field("digest_size", &O::digest_size),
                    Number("as_integers", KVBLOCKS_AT(hash_form.as_integers), false),
                    Field("join_removals", &O::join_removals),
                    Seconds("poll_interval", 0.001, &O::poll_interval),
                    Seconds("linger", 1.0, &O::linger)));
  publisher
      .def("publish", &PyPublisher::Publish, nb::arg("events"), nb::arg("timestamp") = nb::none(),
           "One batch, at Unix seconds `timestamp` or now; no events, no batch. Whether it was "
           "queued: False, and counted, if the queue is full.\n\n"
           "Raises InvalidArgumentError for hashes of another length than digest_size.")
      .def("publish_from", &PyPublisher::PublishFrom, nb::arg("manager"),
           nb::arg("timestamp") = nb::none(),
           "publish(manager.take_events()) without an object per event: for each step of a "
           "scheduler.")
      .def("flush", &PyPublisher::Flush, nb::arg("timeout") = 1.0,
           "Whether all that was queued before was given to the socket within so many seconds.")
      .def("close", &PyPublisher::Close,
           "Sends what is queued, then closes the sockets. Again: no-op.")
      .def_prop_ro(
          "endpoint", [](const PyPublisher& p) { return p.core().endpoint(); },
          "As bound, with the port that the system chose.")
      .def_prop_ro("replay_endpoint",
                   [](const PyPublisher& p) { return p.core().replay_endpoint(); })
      .def_prop_ro("stats", [](const PyPublisher& p) { return p.core().stats(); })
      .def("__enter__", &Self<PyPublisher>)
      .def(
          "__exit__", [](PyPublisher& self, nb::args) { self.Close(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

// --- Subscriber ---

class PySubscriber {
 public:
  explicit PySubscriber(const EventSubscriber::Options& options)
      : keeps_index_(options.keep_index),
        num_sources_(options.sources.size()),
        core_(Value(EventSubscriber::Create(options))) {}
  ~PySubscriber() { Close(); }

  EventSubscriber& core() const {
    if (core_ == nullptr) Raise("InvalidArgumentError", "EventSubscriber: it is closed");
    CheckAlone(is_inside_, "EventSubscriber");
    return *core_;
  }
  const std::string& endpoint(int64_t source) const {
    if (source < 0 || source >= static_cast<int64_t>(num_sources_)) {
      Raise("NotFoundError", absl::StrCat("EventSubscriber.endpoint: source is ", source,
                                          ", expected 0 to ", num_sources_ - 1));
    }
    return core().endpoint(static_cast<size_t>(source));
  }
  PyBlockIndex::Use index() {
    if (!keeps_index_) {
      Raise("InvalidArgumentError",
            "EventSubscriber.index: it keeps none, expected keep_index=True");
    }
    return {core().index(), is_inside_};
  }
  void Close() {
    if (core_ == nullptr) return;
    (void)core();
    const nb::gil_scoped_release released;
    core_.reset();
  }
  std::optional<EventSubscriber::Received> Receive(std::optional<double> timeout) {
    EventSubscriber& subscriber = core();
    const int64_t total = timeout ? Milliseconds(*timeout, "EventSubscriber.receive: timeout") : -1;
    const Inside inside(is_inside_);
    std::optional<EventSubscriber::Received> received;
    Wait(total, [&](milliseconds time) {
      received = subscriber.Receive(time);
      return received.has_value();
    });
    return received;
  }

 private:
  const bool keeps_index_;
  const size_t num_sources_;
  std::unique_ptr<EventSubscriber> core_;
  int is_inside_ = 0;
};

// What came, with the batch as an object.
struct PyReceived {
  EventSubscriber::Kind kind;
  int64_t stream, sequence, num_lost;
  bool is_replayed;
  nb::bytes payload;
  std::optional<PyEventBatch> batch;
  std::string error;
};

const char* KindName(EventSubscriber::Kind kind) {
  switch (kind) {
    case EventSubscriber::Kind::kBatch:
      return "batch";
    case EventSubscriber::Kind::kLoss:
      return "loss";
    case EventSubscriber::Kind::kRestart:
      return "restart";
  }
  return "unknown";
}

std::optional<PyReceived> Receive(PySubscriber& self, std::optional<double> timeout) {
  auto received = self.Receive(timeout);
  if (!received) return std::nullopt;
  std::optional<PyEventBatch> batch;
  if (received->kind == EventSubscriber::Kind::kBatch) {
    batch = PyEventBatch{std::make_shared<const events::EventBatch>(std::move(received->batch))};
  }
  return PyReceived{
      received->kind,        received->stream,
      received->sequence,    received->num_lost,
      received->is_replayed, nb::bytes(received->payload.data(), received->payload.size()),
      std::move(batch),      std::move(received->error)};
}

void CreateSubscriber(EventSubscriber::Options options, PySubscriber* self,
                      std::vector<EventSubscriber::Source> sources) {
  options.sources = std::move(sources);
  new (self) PySubscriber(options);
}

void BindReceived(nb::module_& module) {
  using Source = EventSubscriber::Source;
  nb::class_<Source>(module, "EventSource", "Where events come from.")
      .def(
          "__init__",
          [](Source* self, std::string endpoint, std::string replay_endpoint, std::string name) {
            new (self) Source{std::move(endpoint), std::move(replay_endpoint), std::move(name)};
          },
          nb::arg("endpoint"), nb::arg("replay_endpoint") = "", nb::arg("name") = "",
          "endpoint: connected to; bound if it has \"*\", for publishers that connect. name: of "
          "the holder in the index, default the endpoint.")
      .def_ro("endpoint", &Source::endpoint)
      .def_ro("replay_endpoint", &Source::replay_endpoint)
      .def_ro("name", &Source::name);
  using Stream = EventSubscriber::Stream;
  nb::class_<Stream>(module, "EventStream", "What came from one source under one topic, so far.")
      .def_ro("source", &Stream::source, "Its name.")
      .def_ro("topic", &Stream::topic)
      .def_ro("next_sequence", &Stream::next_sequence)
      .def_ro("num_batches", &Stream::num_batches)
      .def_ro("num_replayed", &Stream::num_replayed, "Of them.")
      .def_ro("num_duplicates", &Stream::num_duplicates)
      .def_ro("num_gaps", &Stream::num_gaps)
      .def_ro("num_lost", &Stream::num_lost, "Messages, those before the first one included.")
      .def_ro("num_restarts", &Stream::num_restarts)
      .def_ro("num_undecodable", &Stream::num_undecodable);
  using Stats = EventSubscriber::Stats;
  nb::class_<Stats>(module, "EventSubscriberStats", "Counts over all streams.")
      .def_ro("num_malformed", &Stats::num_malformed, "Not the frames of a message.")
      .def_ro("num_replay_requests", &Stats::num_replay_requests)
      .def_ro("num_replay_timeouts", &Stats::num_replay_timeouts)
      .def_ro("num_streams_refused", &Stats::num_streams_refused,
              "Messages of streams beyond max_streams.");
  nb::class_<PyReceived>(module, "Received", "A batch, a loss or a restart of one stream.")
      .def_prop_ro(
          "kind", [](const PyReceived& r) { return KindName(r.kind); },
          "\"batch\"; \"loss\": num_lost messages from `sequence` on will not come; \"restart\": "
          "the publisher counts from 0 again. After the latter two the index has forgotten the "
          "cache.")
      .def_ro("stream", &PyReceived::stream, "Its number, also that of the holder in the index.")
      .def_ro("sequence", &PyReceived::sequence)
      .def_ro("num_lost", &PyReceived::num_lost)
      .def_ro("is_replayed", &PyReceived::is_replayed)
      .def_ro("payload", &PyReceived::payload, "As it came.")
      .def_ro("batch", &PyReceived::batch, "None of a loss or restart.")
      .def_ro("error", &PyReceived::error,
              "Of a loss: what is wrong with the payload, if that is the reason.")
      .def("__repr__", [](const PyReceived& r) {
        return absl::StrCat("Received(kind='", KindName(r.kind), "', stream=", r.stream,
                            ", sequence=", r.sequence,
                            r.num_lost > 0 ? absl::StrCat(", num_lost=", r.num_lost) : "", ")");
      });
}

void BindSubscriber(nb::module_& module) {
  nb::class_<PySubscriber> subscriber(
      module, "EventSubscriber",
      R"(Receives KV events of one or many publishers, vLLM's or ours, in order.

Gaps are asked for again as far as the publisher still has them, and an index of all caches is kept.
A stream is what comes from one source under one topic. All work is done inside receive; one thread
at a time. Use it in a with statement, or close it.)");
  using O = EventSubscriber::Options;
  Define(subscriber, "__init__", &CreateSubscriber,
         R"(topic: only topics that begin with it. max_queue_bytes: what may wait per source; each
message counts as one of max_message_bytes. Further ones wait at the publisher. Who sends a longer
one is disconnected.

replay_timeout: seconds of silence after which a gap is given up as a loss. replay_at_start: ask for
what is still buffered. medium: that the index keeps.

Raises InvalidArgumentError for options out of range, KVBlocksError for an endpoint that cannot be
had.)",
         std::tuple(nb::arg("sources")), Parameters(),
         Parameters(Field("topic", &O::topic), Field("max_queue_bytes", &O::max_queue_bytes),
                    Field("max_message_bytes", &O::max_message_bytes),
                    Seconds("replay_timeout", 5.0, &O::replay_timeout),
                    Field("replay_at_start", &O::replay_at_start),
                    Field("max_streams", &O::max_streams), Field("keep_index", &O::keep_index),
                    Field("medium", &O::medium)));
  subscriber
      .def("receive", &Receive, nb::arg("timeout") = nb::none(),
           "The next batch, loss or restart; None if there was none within `timeout` seconds "
           "(None: wait for ever). Lets go of the interpreter lock; Ctrl-C ends it.")
      .def(
          "catch_up", [](PySubscriber& self) { self.core().CatchUp(); },
          "Asks every source for what came after the last message: a gap at the end of a stream "
          "does not show otherwise. receive gives the answers.")
      .def("close", &PySubscriber::Close, "Again: no-op.")
      .def_prop_ro(
          "streams",
          [](const PySubscriber& self) {
            const auto streams = self.core().streams();
            return std::vector<EventSubscriber::Stream>(streams.begin(), streams.end());
          },
          "By number.")
      .def_prop_ro(
          "index",
          [](nb::handle_t<PySubscriber> self) {
            (void)nb::cast<PySubscriber&>(self).index();  // raises where there is none
            return PyBlockIndex{nullptr, nb::borrow(self), [](nb::handle owner) {
                                  return nb::cast<PySubscriber&>(owner).index();
                                }};
          },
          "What the streams hold, to read; a stream's number is its holder's.")
      .def_prop_ro("stats", [](const PySubscriber& self) { return self.core().stats(); })
      .def("endpoint", &PySubscriber::endpoint, nb::arg("source") = 0, "As bound or connected to.")
      .def("__iter__", &Self<PySubscriber>, "receive() without end.")
      .def("__next__", [](PySubscriber& self) { return *Receive(self, std::nullopt); })
      .def("__enter__", &Self<PySubscriber>)
      .def(
          "__exit__", [](PySubscriber& self, nb::args) { self.Close(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace

void BindEventSockets(nb::module_& module) {
  BindPublisher(module);
  BindReceived(module);
  BindSubscriber(module);
}

}  // namespace kvblocks::python

#else

namespace kvblocks::python {
void BindEventSockets(nb::module_&) {}
}  // namespace kvblocks::python

#endif  // KVBLOCKS_WITH_ZMQ
