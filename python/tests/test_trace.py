from __future__ import annotations

import sys
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


def test_parquet_of_baseten(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    # Hashes of full blocks, unsigned; a session that is not always said.
    path = tmp_path / "b.parquet"
    parquet.write_table(pyarrow.table({
        "timestamp_start_unix_ms": [1_700_000_000_000, 1_700_000_000_500], "input_tokens": [40, 64],
        "output_tokens": [5, 6], "total_hashes": pyarrow.array([[1, 2**64 - 1], [1, 2**64 - 1, 7, 8]],
                                                               pyarrow.list_(pyarrow.uint64())),
        "block_size": [16, 16], "provided_session_id": ["s", None], "model": ["a", "b"]}), path)
    back = list(Trace.read(path))
    assert [(r.timestamp, r.input_length, r.output_length) for r in back] == [
        (1_700_000_000_000, 40, 5), (1_700_000_000_500, 64, 6)]
    assert back[0].hash_ids == [1, -1] and back[1].hash_ids == [1, -1, 7, 8]
    assert kvblocks.stats(Trace.read(path)).prefix_hits == 2
    with pytest.raises(kvblocks.CommandError, match=r"kvblocks\.Trace\.read"):
        list(Trace(path))
    with pytest.raises(kvblocks.InvalidArgumentError, match="no column none; there are: block_size"):
        Trace.read(path, columns={"none": "tenant"})
    with pytest.raises(kvblocks.InvalidArgumentError, match="trace_format is not for Parquet"):
        Trace.read(path, trace_format="azure")


def test_parquet_of_any_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "any"
    table = pyarrow.table({"n": [40, 60], "output_length": [5, 6], "at": [0.0, 3.5],
                           "blocks": [["x", "y", "z"], ["x", "y", "a", "b"]]})
    parquet.write_table(table, path, row_group_size=1)
    names = {"n": "input_length", "at": "timestamp", "blocks": "hash_ids"}
    back = list(Trace.read(path, columns=names, block_size=16))
    assert [r.hash_ids for r in back] == [[0, 1, 2], [0, 1, 3, 4]] and back[1].timestamp == 3.5
    assert [r.hash_ids for r in Trace.from_arrow(table, columns=names, block_size=16)] == [r.hash_ids for r in back]
    with pytest.raises(kvblocks.InvalidArgumentError, match="no column for input_length"):
        Trace.read(path)
    jsonl = Trace.from_requests(ROWS, block_size=16, path=tmp_path / "a.jsonl").path
    assert len(list(Trace.read(jsonl))) == 3
    with pytest.raises(kvblocks.InvalidArgumentError, match="for Parquet, and this is none"):
        Trace.read(jsonl, columns=names)


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        Trace.read(path)


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
