"""KV events on the wire: what engines report to routers about their caches, as vLLM 0.33 does.

    with events.EventPublisher("tcp://*:5557", replay_endpoint="tcp://*:5558") as publisher:
        publisher.publish_from(manager)             # after each step

    source = events.EventSource("tcp://engine:5557", "tcp://engine:5558", name="replica-a")
    with events.EventSubscriber([source]) as subscriber:
        for received in subscriber:                 # in order, gaps filled
            subscriber.index.find_longest_prefix(prompt_hashes)

``encode_events`` and ``decode_events`` are the bytes alone, ``BlockIndex`` the index alone, and
``StreamCheck`` tells whether a stream is one that a cache can have sent. docs/events.md has the protocol.
"""

from typing import TYPE_CHECKING, Any

from kvblocks import _core
from kvblocks._core import (
    AllBlocksCleared, BlockIndex, BlockRemoved, BlockStored, EventBatch, IndexHolder, PrefixContent,
    StreamCheck, StreamTotals, decode_events, encode_events,
)

if TYPE_CHECKING:
    from kvblocks._core import (
        EventPublisher, EventPublisherStats, EventSource, EventStream, EventSubscriber, EventSubscriberStats,
        Received,
    )

_SOCKETS = ("EventPublisher", "EventPublisherStats", "EventSource", "EventStream", "EventSubscriber",
            "EventSubscriberStats", "Received")


def __getattr__(name: str) -> Any:
    if name not in _SOCKETS:
        raise AttributeError(f"module 'kvblocks.events' has no attribute {name!r}")
    try:
        return getattr(_core, name)
    except AttributeError:
        raise ImportError(f"kvblocks.events.{name}: this package was built without ZeroMQ; install libzmq3-dev "
                          "and cppzmq-dev (Debian's names) and build it again") from None


__all__ = [
    "AllBlocksCleared", "BlockIndex", "BlockRemoved", "BlockStored", "EventBatch", "EventPublisher",
    "EventPublisherStats", "EventSource", "EventStream", "EventSubscriber", "EventSubscriberStats",
    "IndexHolder", "PrefixContent", "Received", "StreamCheck", "StreamTotals", "decode_events", "encode_events",
]
