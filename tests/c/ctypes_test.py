#!/usr/bin/env python3
"""The C interface from Python's ctypes, through the same shared library: ctypes_test.py libkvblocks_c.so"""

import ctypes
import json
import sys
import threading

LIB = ctypes.CDLL(sys.argv.pop(1))
LIB.kvb_last_error.restype = ctypes.c_char_p
LIB.kvb_version.restype = ctypes.c_char_p
LIB.kvb_string_free.argtypes = [ctypes.c_void_p]
LIB.kvb_events_count.restype = ctypes.c_size_t

OK, NO_SPACE, INVALID_ARGUMENT = 0, 1, 3


class Growing(ctypes.Structure):
    """A struct that says its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class RequestOptions(Growing):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("id", ctypes.c_char_p),
        ("token_ids", ctypes.POINTER(ctypes.c_int32)),
        ("num_tokens", ctypes.c_size_t),
    ]  # the first fields are enough: the others are zero


class Allocation(Growing):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_new_tokens", ctypes.c_int64),
        ("num_lookahead_tokens", ctypes.c_int64),
        ("num_external_tokens", ctypes.c_int64),
        ("reserved_blocks", ctypes.c_int64),
        ("num_encoder_tokens", ctypes.c_int64),
        ("use_hits", ctypes.c_int32),
        ("delay_cache_blocks", ctypes.c_int32),
        ("full_sequence_must_fit", ctypes.c_int32),
        ("has_scheduled_requests", ctypes.c_int32),
    ]


class Event(Growing):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("medium", ctypes.c_char_p),
        ("block_hashes", ctypes.c_void_p),
        ("num_block_hashes", ctypes.c_size_t),
    ]


def check(status):
    if status != OK:
        raise AssertionError(f"status {status}: {LIB.kvb_last_error().decode()}")


def expect_equal(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r}, expected {expected!r}")


def manager_of(config):
    text = json.dumps(config).encode()
    manager = ctypes.c_void_p()
    check(LIB.kvb_manager_create(text, ctypes.c_size_t(len(text)), 1, ctypes.byref(manager)))
    return manager


def request_of(manager, tokens):
    ids = (ctypes.c_int32 * len(tokens))(*tokens)
    options = RequestOptions(id=b"r", token_ids=ids, num_tokens=len(tokens))
    request = ctypes.c_void_p()
    check(LIB.kvb_request_create(manager, ctypes.byref(options), ctypes.byref(request)))
    return request


def prefill(request, num_tokens):
    hit = ctypes.c_int64()
    check(LIB.kvb_request_lookup(request, ctypes.byref(hit)))
    step = Allocation(num_new_tokens=num_tokens - hit.value, use_hits=1)
    return hit.value, LIB.kvb_request_allocate(request, ctypes.byref(step))


def table_of(request):
    blocks, count = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
    check(LIB.kvb_request_get_blocks(request, 0, ctypes.byref(blocks), ctypes.byref(count)))
    return blocks[: count.value]


CONFIG = {
    "cache": {
        "num_blocks": 8,
        "groups": [
            {
                "num_layers": 1,
                "spec": {
                    "sliding_window": {
                        "block_size": 4,
                        "num_kv_heads": 1,
                        "head_size": 8,
                        "dtype": "bf16",
                        "sliding_window": 8,
                    }
                },
            }
        ],
    },
    "options": {"max_model_len": 64, "enable_events": True, "retention_interval": -1},
}


def test_life():
    manager = manager_of(CONFIG)
    first = request_of(manager, range(12))
    expect_equal(prefill(first, 12), (0, OK))
    expect_equal(table_of(first), [1, 2, 3])
    second = request_of(manager, list(range(12)) + [99])
    expect_equal(prefill(second, 13), (12, OK))
    expect_equal(table_of(second), [0, 2, 3, 4])  # outside of the window: the null block
    third = request_of(manager, range(100, 120))
    expect_equal(prefill(third, 20), (0, NO_SPACE))

    events = ctypes.c_void_p()
    check(LIB.kvb_manager_take_events(manager, ctypes.byref(events)))
    expect_equal(LIB.kvb_events_count(events), 1)
    event = Event()
    check(LIB.kvb_events_get(events, ctypes.c_size_t(0), ctypes.byref(event)))
    expect_equal((event.kind, event.medium, event.num_block_hashes), (0, b"GPU", 3))
    LIB.kvb_events_destroy(events)

    text = ctypes.c_void_p()
    check(LIB.kvb_request_explain_json(third, ctypes.byref(text)))
    why = json.loads(ctypes.string_at(text))
    LIB.kvb_string_free(text)
    expect_equal((why["num_tokens"], why["num_hit_tokens"]), (20, 0))
    expect_equal(sum(run["num_tokens"] for run in why["missed"]), 20)
    expect_equal(why["groups"][0]["kind"], "sliding_window")

    check(LIB.kvb_manager_check_invariants(manager))
    LIB.kvb_manager_destroy(manager)
    for request in (first, second, third):
        LIB.kvb_request_destroy(request)


def test_errors_are_per_thread():
    expect_equal(LIB.kvb_manager_start_step(None), INVALID_ARGUMENT)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(LIB.kvb_last_error()))
    thread.start()
    thread.join()
    expect_equal(seen, [b""])
    expect_equal(LIB.kvb_last_error(), b"kvb_manager_start_step: manager is NULL")


expect_equal(LIB.kvb_version().count(b"."), 2)
for name, test in sorted(globals().items()):
    if name.startswith("test_"):
        test()
        print(name, "passed")
