from __future__ import annotations

from pathlib import Path

import pytest

import kvblocks
from kvblocks import Trace, TraceRequest

ROWS = [
    TraceRequest(input_length=40, output_length=5, timestamp=0, hash_ids=[1, 2, 3], session_id=7),
    TraceRequest(input_length=60, output_length=6, hash_ids=[1, 2, 3, 4], session_id=7, delay=1500),
    TraceRequest(input_length=20, output_length=7, timestamp=9.5, hash_ids=[1, 9], tenant="t", priority=-1),
]


def test_requests_come_back(tmp_path: Path) -> None:
    trace = Trace.from_requests(ROWS, block_size=16, path=tmp_path / "a.jsonl.gz")
    back = list(trace)
    assert [(r.input_length, r.output_length, r.hash_ids) for r in back] == [
        (r.input_length, r.output_length, r.hash_ids) for r in ROWS]
    assert back[1].delay == 1500 and back[1].wait_for == [0] and back[1].timestamp is None
    assert back[2].tenant == "t" and back[2].priority == -1 and back[2].timestamp == 9.5


def test_conversions_keep_all(tmp_path: Path) -> None:
    trace = Trace.from_requests(ROWS, block_size=16)
    native = trace.convert(tmp_path / "a.kvt.zst")
    assert list(native) == list(trace)
    assert kvblocks.stats(native).requests == 3
    with pytest.raises(kvblocks.CommandError, match="to"):
        trace.convert(tmp_path / "b", to="none")


def test_temporary_files_go_with_their_trace() -> None:
    trace = Trace.from_requests(ROWS, block_size=16)
    path = trace.path
    assert path.exists()
    del trace
    assert not path.exists()


def test_data_frames_in_and_out() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": [40, 60], "answer": [5, 6], "timestamp": [0.0, 3.0], "user": ["a", None],
                              "ids": [[1, 2, 3], [1, 2, 3, 4]], "noise": [1, 2]})
    trace = Trace.from_pandas(frame, block_size=16, columns={"prompt": "input_length", "answer": "output_length",
                                                           "user": "tenant", "ids": "hash_ids"})
    back = trace.to_pandas()
    assert back.input_length.tolist() == [40, 60] and back.timestamp.tolist() == [0, 3]
    assert kvblocks.stats(trace).prefix_hits == 3


def test_arrow_tables() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"n": [40, 60], "output_length": [5, 6], "timestamp": [0, 3]})
    trace = Trace.from_arrow(table, columns={"n": "input_length"})
    assert [request.input_length for request in trace] == [40, 60]


def test_bad_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(kvblocks.InvalidArgumentError, match="request 1: unknown field colour"):
        Trace.from_requests([{"input_length": 1, "output_length": 1, "timestamp": 0}, {"colour": 1}])
    with pytest.raises(kvblocks.InvalidArgumentError, match="request 0: output_length is missing"):
        Trace.from_requests([{"input_length": 1}], path=tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists(), "no half of a file stays"
    with pytest.raises(kvblocks.InvalidArgumentError, match="hash_ids without block_size"):
        Trace.from_requests(ROWS)
    with pytest.raises(FileNotFoundError):
        Trace(tmp_path / "none")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": [], "block_size": 16}\n')
    with pytest.raises(kvblocks.CommandError, match="bad.jsonl:1"):
        list(Trace(bad))
