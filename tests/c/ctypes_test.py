#!/usr/bin/env python3
"""Python's ctypes loads the shared library, and the texts of errors are per thread: ctypes_test.py libkvblocks_c.so"""

import ctypes
import sys
import threading

LIB = ctypes.CDLL(sys.argv.pop(1))
LIB.kvb_last_error.restype = ctypes.c_char_p
LIB.kvb_version.restype = ctypes.c_char_p

INVALID_ARGUMENT = 3


def expect_equal(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r}, expected {expected!r}")


def test_errors_are_per_thread():
    expect_equal(LIB.kvb_manager_start_step(None), INVALID_ARGUMENT)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(LIB.kvb_last_error()))
    thread.start()
    thread.join()
    expect_equal(seen, [b""])
    expect_equal(LIB.kvb_last_error(), b"kvb_manager_start_step: manager is NULL")


expect_equal(LIB.kvb_version().count(b"."), 2)
test_errors_are_per_thread()
