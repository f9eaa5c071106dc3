from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import kvblocks
from conftest import full_spec, make_manager, refusal, window_spec
from kvblocks import events

PATIENCE = 20.0


def fill(manager: kvblocks.KVCacheManager, name: str, tokens: Any, **options: Any) -> kvblocks.Request:
    request = manager.new_request(name, tokens, **options)
    hits = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hits.num_tokens, hits) is not None
    return request


def stored(number: int, **fields: Any) -> events.BlockStored:
    return events.BlockStored([bytes([number]) * 32], block_size=16, **fields)


def await_subscribers(publisher: events.EventPublisher, count: int = 1) -> None:
    """ZeroMQ sends nothing to sockets that have not subscribed yet."""
    end = time.monotonic() + PATIENCE
    while publisher.stats.num_subscribers < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_manager_s_events_survive_the_wire() -> None:  # V-60, V-64
    manager = make_manager(full_spec(), window_spec(), enable_events=True, num_blocks=24)
    first = fill(manager, "a", list(range(100)), lora_name="l", lora_id=3, cache_salt="s", session_id="x",
                 features=[("image", 20, 30)])
    manager.free(first)
    fill(manager, "b", [7] * 150)  # evicts
    sent = manager.take_events()
    assert {type(event) for event in sent} == {events.BlockStored, events.BlockRemoved}
    batch = events.decode_events(events.encode_events(sent, timestamp=2.5, data_parallel_rank=3))
    assert batch.events == sent and len(batch) == len(sent)
    assert (batch.timestamp, batch.data_parallel_rank, batch.as_integers) == (2.5, 3, False)
    head = batch.events[0]
    assert isinstance(head, events.BlockStored) and head.session_id == "x" and head.lora_id == 3
    assert head.extra_keys[0] == (("lora", "l"), ("cache_salt", "s")) and head.kv_cache_spec_kind == "full_attention"
    assert head.extra_keys[1] == (("lora", "l"), ("mm", "image", 4))
    # What an event shows lives as long as the event.
    del batch
    gc.collect()
    assert head.medium == "GPU" and head.token_ids[:3] == [0, 1, 2]


def batch_of(*list_of_events: Any, timestamp: float = 1) -> events.EventBatch:
    return events.decode_events(events.encode_events(list_of_events, timestamp=timestamp))


def test_streams_are_checked_and_what_they_could_hit_is_counted() -> None:
    check = events.StreamCheck()
    first, second = check.add_stream("a"), check.add_stream("b")
    check.apply(first, batch_of(stored(1), stored(2)))
    check.apply(second, batch_of(stored(1), timestamp=3))
    check.apply(second, batch_of(events.BlockRemoved(bytes([9]) * 32), timestamp=2))
    totals = check.totals(first)
    assert (totals.num_batches, totals.num_stored, totals.num_first_seen, totals.num_problems) == (1, 2, 2, 0)
    totals = check.totals(second)
    assert (totals.num_held_elsewhere, totals.num_unknown_removals, totals.num_times_backwards) == (1, 1, 1)
    assert totals.num_problems == 1 and totals.first_problem and check.num_ever_seen == 2
    check.on_restart(first)
    check.on_loss(first)
    check.apply(first, batch_of(stored(2), events.BlockRemoved(bytes([8]) * 32)))
    totals = check.totals(first)
    assert (totals.num_lost_before, totals.num_removals_after_loss, totals.num_problems) == (1, 1, 0)
    assert check.holder(first).num_keys == 1 and check.holder(first).name == "a"
    for stream in (-1, 2):
        with pytest.raises(kvblocks.NotFoundError, match="of 2 that there are"):
            check.totals(stream)


def test_batches_are_encoded_again_as_they_came() -> None:
    payload = events.encode_events([stored(1), events.BlockRemoved(b"\1" * 32), events.AllBlocksCleared()], timestamp=1)
    batch = events.decode_events(payload)
    assert events.encode_events(batch, timestamp=1) == events.encode_events(batch.events, timestamp=1) == payload
    before = time.time()
    assert events.decode_events(events.encode_events([])).timestamp == pytest.approx(before, abs=60)
    assert events.decode_events(memoryview(payload)).events == batch.events


def test_integer_hashes_and_joined_removals() -> None:  # V-63
    removed = [events.BlockRemoved(bytes(range(32))), events.BlockRemoved(b"\2" * 32)]
    batch = events.decode_events(events.encode_events(removed, as_integers=True, join_removals=True))
    assert batch.as_integers
    got = [event.block_hash for event in batch.events if isinstance(event, events.BlockRemoved)]
    assert got == [bytes(24) + bytes(range(24, 32)), bytes(24) + b"\2" * 8]
    assert len(events.encode_events(removed, join_removals=True)) < len(events.encode_events(removed))


def test_events_made_in_python_have_every_field() -> None:
    event = events.BlockStored(
        [b"a" * 16, b"b" * 16], block_size=2, parent_block_hash=b"p" * 16, token_ids=[1, 2, 3, 4], lora_id=1,
        lora_name="n", medium="CPU", group_idx=2,
        extra_keys=[None, (("cache_salt", "s"), ("prompt_embeds", b"\0\xff"), ("mm", "i", -2))],
        kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=64, session_id="s",
        lookahead_token_ids=[[3], [5]], locality="LOCAL", ownership="SHARED")
    assert event.block_hashes == [b"a" * 16, b"b" * 16] and event.parent_block_hash == b"p" * 16
    assert event.extra_keys == [None, (("cache_salt", "s"), ("prompt_embeds", b"\0\xff"), ("mm", "i", -2))]
    assert (event.medium, event.kv_cache_spec_kind, event.locality, event.ownership) == (
        "CPU", "sliding_window", "LOCAL", "SHARED")
    assert events.decode_events(events.encode_events([event])).events == [event]
    removed = events.BlockRemoved(b"a" * 16, reason="evicted", medium="CPU", group_idx=1)
    assert (removed.reason, removed.medium, removed.group_idx) == ("evicted", "CPU", 1)
    assert removed != events.BlockRemoved(b"b" * 16, medium="CPU", group_idx=1)


@pytest.mark.parametrize("make,text", [
    (lambda: events.BlockStored([b"a"], block_size=0), "block_size is 0"),
    (lambda: events.BlockStored([b"a"], block_size=2, token_ids=[1]), "1 token_ids, expected none or 2"),
    (lambda: events.BlockStored([b"a", b"bb"], block_size=1), "a hash has 2 bytes and another 1"),
    (lambda: events.BlockStored([b"a"], block_size=1, extra_keys=[None, None]), "2 entries in extra_keys"),
    (lambda: events.BlockStored([b"a"], block_size=1, extra_keys=[(("colour", "red"),)]), "colour"),
    (lambda: events.BlockRemoved(b""), "0 bytes"),
    (lambda: events.BlockRemoved(b"a", reason="lost"), 'reason is "lost"'),
    (lambda: events.encode_events([events.BlockRemoved(b"a"), events.BlockRemoved(b"bb")]), "of 1 and of 2 bytes"),
    (lambda: events.encode_events([events.BlockRemoved(b"a")], as_integers=True), "at least 8"),
    (lambda: events.decode_events(b"\x93\x01"), "KV event batch"),
])
def test_bad_events_are_refused(make: Any, text: str) -> None:
    refusal(text, make)


def test_what_is_no_event_is_a_type_error() -> None:
    for wrong in ([None], ["x"], 3):
        with pytest.raises(TypeError):
            events.encode_events(wrong)  # type: ignore[arg-type]


def test_an_index_tells_who_holds_a_prefix() -> None:  # BM-50
    index = events.BlockIndex()
    managers = [make_manager(enable_events=True) for _ in range(2)]
    for name, manager, length in zip("ab", managers, (64, 32)):
        request = fill(manager, name, range_of(length))
        index.apply(index.add_holder(name), manager.take_events())
        manager.free(request)
    prompt = kvblocks.PrefixContent(range_of(100))
    assert index.find_longest_prefix(prompt) == [(0, 4), (1, 2)]
    assert index.find_longest_prefix(prompt.block_hashes) == [(0, 4), (1, 2)]
    assert index.find_longest_prefix(prompt, group=1) == [] and index.find_longest_prefix([]) == []
    assert index.holders(prompt.block_hashes[0]) == [(0, 1), (1, 1)] and index.num_keys == 4
    assert (index.holder(0).name, index.holder(0).num_blocks, index.holder(1).num_stored) == ("a", 4, 2)
    managers[0].reset_prefix_cache()
    index.apply(0, managers[0].take_events())
    assert index.find_longest_prefix(prompt) == [(1, 2)] and index.holder(0).num_cleared == 1
    index.forget(1)
    assert index.num_keys == 0 and index.num_holders == 2
    index.apply(0, [stored(1, medium="CPU")])
    assert index.num_keys == 0 and index.holder(0).num_other_media == 1
    with pytest.raises(kvblocks.NotFoundError, match="holder is 2"):
        index.apply(2, [])


def test_long_calls_of_an_index_leave_the_interpreter_to_others() -> None:
    index = events.BlockIndex()
    index.add_holder("a")
    hashes = [number.to_bytes(32, "big") for number in range(200_000)]
    batch = events.decode_events(events.encode_events([events.BlockStored(hashes[i:i + 1000], block_size=1)
                                                       for i in range(0, len(hashes), 1000)]))
    errors: list[Exception] = []
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            try:
                assert index.num_holders == 1
            except kvblocks.ConcurrentUseError as error:
                errors.append(error)
            time.sleep(0)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not errors and time.monotonic() < end:
            try:
                index.apply(0, batch)
                assert index.find_longest_prefix(hashes) == [(0, len(hashes))]
                index.forget(0)
            except kvblocks.ConcurrentUseError as error:  # it was the other's turn
                errors.append(error)
    finally:
        stop.set()
        thread.join()
    assert errors


def range_of(n: int) -> list[int]:
    return list(range(n))


def test_what_is_published_arrives_in_order_with_an_index() -> None:  # V-64
    manager = make_manager(enable_events=True)
    with events.EventPublisher("tcp://127.0.0.1:*", topic="kv") as publisher, events.EventSubscriber(
            [events.EventSource(publisher.endpoint, name="replica")]) as subscriber:
        await_subscribers(publisher)
        fill(manager, "a", range_of(64))
        assert publisher.publish_from(manager, timestamp=1.5) and publisher.publish_from(manager)
        assert publisher.publish([events.BlockRemoved(b"x" * 32, medium="disk")])
        received = subscriber.receive(PATIENCE)
        assert received is not None and received.batch is not None
        assert (received.kind, received.stream, received.sequence, received.batch.timestamp) == ("batch", 0, 0, 1.5)
        assert events.decode_events(received.payload).events == received.batch.events
        assert subscriber.index.find_longest_prefix(kvblocks.PrefixContent(range_of(100))) == [(0, 4)]
        second = next(iter(subscriber))
        assert second.batch is not None and second.sequence == 1
        (event,) = second.batch.events
        assert isinstance(event, events.BlockRemoved) and event.medium == "disk"
        (stream,) = subscriber.streams
        assert (stream.source, stream.topic, stream.num_batches, stream.num_lost) == ("replica", "kv", 2, 0)
        assert publisher.flush() and publisher.stats.num_batches == 2
        refusal("a subscriber keeps this index", subscriber.index.forget, 0)


def test_late_subscribers_and_losses() -> None:  # V-64
    with events.EventPublisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", buffer_batches=2) as publisher:
        for number in range(4):
            publisher.publish([stored(number)])
        assert publisher.flush(PATIENCE)
        source = events.EventSource(publisher.endpoint, publisher.replay_endpoint)
        with events.EventSubscriber([source]) as subscriber:
            received = [subscriber.receive(PATIENCE) for _ in range(3)]
            assert [(r.kind, r.sequence, r.num_lost, r.is_replayed) for r in received if r] == [
                ("loss", 0, 2, False), ("batch", 2, 0, True), ("batch", 3, 0, True)]
            assert received[0] is not None and received[0].batch is None and "num_lost=2" in repr(received[0])
            assert subscriber.index.num_keys == 2 and subscriber.stats.num_replay_requests >= 1
            subscriber.catch_up()
            assert subscriber.receive(0.05) is None


def test_a_full_queue_drops_and_counts() -> None:
    with events.EventPublisher("inproc://full", queue_batches=1, poll_interval=1.0) as publisher:
        answers = [publisher.publish([stored(1)]) for _ in range(100)]
        assert False in answers
        assert publisher.stats.num_dropped_batches == answers.count(False)


def test_waiting_lets_other_threads_run_and_ends_in_time() -> None:
    with events.EventSubscriber([events.EventSource("inproc://nobody")], keep_index=False) as subscriber:
        started = time.monotonic()
        errors: list[Exception] = []

        def disturb() -> None:
            time.sleep(0.1)  # the lock is free meanwhile
            for use in (lambda: subscriber.streams, subscriber.close, lambda: subscriber.receive(0)):
                try:
                    use()
                except kvblocks.ConcurrentUseError as error:
                    errors.append(error)

        thread = threading.Thread(target=disturb)
        thread.start()
        assert subscriber.receive(0.5) is None
        thread.join()
        assert 0.4 < time.monotonic() - started < 5 and len(errors) == 3
        with pytest.raises(kvblocks.InvalidArgumentError, match="keep_index=True"):
            _ = subscriber.index


def test_ctrl_c_ends_waiting() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        with events.EventSubscriber([events.EventSource("inproc://nobody-else")]) as subscriber:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                subscriber.receive()
            assert subscriber.receive(0) is None, "and it goes on"
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_zeromq_the_sockets_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("kvblocks._core.EventPublisher")
    with pytest.raises(ImportError, match="EventPublisher: this package was built without ZeroMQ"):
        _ = events.EventPublisher
    with pytest.raises(AttributeError, match="colour"):
        events.colour


def test_misuse_of_sockets_is_named() -> None:
    refusal("udp", events.EventPublisher, "udp://x")
    refusal('when_full: got "stop", expected drop or wait', events.EventPublisher, "inproc://a", when_full="stop")
    refusal("digest_size is 33", events.EventPublisher, "inproc://a", digest_size=33)
    refusal("linger is -1", events.EventPublisher, "inproc://a", linger=-1)
    with events.EventPublisher("inproc://b") as publisher:
        with pytest.raises(kvblocks.KVBlocksError, match="inproc://b"):
            events.EventPublisher("inproc://b")
        refusal("hashes have 16 bytes, expected 32", publisher.publish, [events.BlockRemoved(b"x" * 16)])
        manager = make_manager(hash_algorithm="xxh3_128", enable_events=True)
        fill(manager, "a", range_of(32))
        refusal("hashes have 16 bytes, expected 32", publisher.publish_from, manager)
        assert len(manager.take_events()) == 1, "nothing was taken"
    for use in (publisher.flush, lambda: publisher.publish([stored(1)]), lambda: publisher.endpoint):
        refusal("closed", use)
    publisher.close()
    subscriber = events.EventSubscriber([events.EventSource("inproc://b")])
    index = subscriber.index
    with pytest.raises(kvblocks.NotFoundError, match="source is 1"):
        subscriber.endpoint(1)
    with pytest.raises(ValueError, match="timeout is -1"):
        subscriber.receive(-1)
    subscriber.close()
    closed: list[Callable[[], object]] = [subscriber.receive, lambda: index.num_keys, lambda: subscriber.streams]
    for call in closed:
        refusal("closed", call)
