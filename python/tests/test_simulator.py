from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvblocks
from kvblocks import TraceRequest, _program


@pytest.fixture(scope="module")
def report() -> kvblocks.ReplayResult:
    return kvblocks.replay(num_blocks=2000)


def test_a_report_reads_like_an_object(report: kvblocks.ReplayResult) -> None:
    assert report.exit_status == 0 and report.outcome == "complete"
    assert report.totals.requests_finished == 396 and isinstance(report.setup.num_blocks, int)
    assert 0.6 < report.hit_rate == report["whole_run"]["token_hit_rate"]["value"] < 0.7
    assert report.hit_groups.turns[0].name == "0", "names that look like numbers stay texts"
    assert report.to_dict()["totals"]["steps"] == report.totals.steps
    assert "series" in dir(report) and "totals=..." in repr(report)
    with pytest.raises(AttributeError, match="no field colour; there are: schema_version"):
        report.colour
    with pytest.raises(AttributeError, match="read-only"):
        report.outcome = "none"
    assert pickle.loads(pickle.dumps(report)) == report


def test_tables_are_data_frames(report: kvblocks.ReplayResult) -> None:
    pytest.importorskip("pandas")
    series = report.to_pandas()
    assert len(series) == len(report.series.points) and series.hit_tokens.sum() == report.prompt_tokens.hit
    causes = report.to_pandas("first_admission_misses.causes")
    assert causes.tokens.sum() == report.first_admission_misses.missed_tokens
    assert "hit_groups.turns" in report.tables()
    with pytest.raises(LookupError, match="no table 'none'; there are: .*series.points"):
        report.to_pandas("none")


def test_notebooks_show_the_page(report: kvblocks.ReplayResult) -> None:
    shown = report._repr_html_()
    assert shown.startswith("<iframe") and "&lt;html" in shown.lower() and len(shown) > 100_000
    assert "<table>" in report.totals._repr_html_()
    assert kvblocks.replay(num_blocks=2000, limit=5, page=False)._repr_html_().startswith("<table>")


def test_other_commands() -> None:
    curve = kvblocks.curve(sizes=[1000, 2000])
    assert [point.num_blocks for point in curve.points if point.num_blocks in (1000, 2000)] == [1000, 2000]
    plan = kvblocks.plan("gemma-3-27b", "h200", max_model_len=8192)
    assert plan.model == "gemma-3-27b" and [p.policy for p in plan.plans] == ["upstream", "exact"]
    explained = kvblocks.explain(num_blocks=2000, top=3)
    assert len(explained.worst) == 3 and explained.worst[0].evicted_tokens > 0
    assert kvblocks.stats().requests == 396
    a, b = kvblocks.replay(num_blocks=2000, limit=50), kvblocks.replay(num_blocks=1500, limit=50)
    assert kvblocks.compare(a, a).exit_status == 0 and kvblocks.compare(a, b, tolerance="0").exit_status == 1
    assert "--num-blocks" in kvblocks.help_text("replay")


def test_several_replicas_are_a_fleet() -> None:
    fleet = kvblocks.replay(num_blocks=2000, replicas=3, router="prefix", page=False)
    assert isinstance(fleet, kvblocks.FleetResult) and len(fleet.replicas) == 3
    assert fleet.totals.steps == sum(replica.report.totals.steps for replica in fleet.replicas)
    assert fleet.hit_rate == sum(row.hit_tokens for row in fleet.replicas) / sum(
        row.queried_tokens for row in fleet.replicas)
    swept = kvblocks.sweep(grid={"router": ["random", "prefix"]}, num_blocks=2000, replicas=3, metrics="hit-rate")
    assert swept.rows[1]["values"][0].value == fleet.hit_rate
    mixed = kvblocks.replay(num_blocks=2000, replica="device=h200;2:num-blocks=1000", page=False)
    assert [kind.count for kind in mixed.kinds] == [1, 2]


def test_a_missed_limit_is_a_result() -> None:
    missed = kvblocks.replay(slo="ttft:1us:p99", limit=20)
    assert missed.exit_status == 1 and missed.goodput.good_share == 0


def test_what_kvsim_refuses_raises_its_message() -> None:
    with pytest.raises(kvblocks.CommandError, match="unknown option --numblocks") as caught:
        kvblocks.replay(numblocks=3)
    assert caught.value.exit_status == 2
    with pytest.raises(kvblocks.CommandError, match="none.jsonl"):
        kvblocks.replay("none.jsonl")


def test_options_are_spelled_as_arguments() -> None:
    assert _program.arguments_of({"block_size": 16, "spread": False, "closed_loop": True, "slo": None,
                                  "sizes": [1, 2], "watermark": 0.5}) == [
        "--block-size=16", "--no-spread", "--closed-loop", "--sizes", "1", "2", "--watermark=0.5"]


def test_python_m_kvblocks_is_kvsim() -> None:
    run = [sys.executable, "-m", "kvblocks"]
    version = subprocess.run([*run, "--version"], capture_output=True, text=True)
    assert version.stdout == f"kvsim {kvblocks.__version__}\n" and version.returncode == 0
    assert subprocess.run([*run, "replay", "--none"], capture_output=True).returncode == 2


def long_trace(folder: Path, num_requests: int) -> kvblocks.Trace:
    def requests() -> Iterator[TraceRequest]:
        for i in range(num_requests):
            yield TraceRequest(input_length=160, output_length=50, timestamp=20 * i, hash_ids=list(range(i, i + 10)))

    return kvblocks.Trace.from_requests(requests(), block_size=16, path=folder / "long.jsonl")


def test_progress_is_called_and_may_stop_the_run(tmp_path: Path) -> None:
    trace = long_trace(tmp_path, 40_000)
    shares: list[float | None] = []

    class Enough(Exception):
        pass

    def progress(share: float | None, text: str) -> None:
        assert "read" in text
        shares.append(share)
        if len(shares) == 3:
            raise Enough

    started = time.monotonic()
    with pytest.raises(Enough):
        kvblocks.replay(trace, num_blocks=5000, progress=progress)
    assert len(shares) == 3 and time.monotonic() - started < 10
    assert all(share is None or 0 <= share <= 1 for share in shares)


def test_ctrl_c_stops_within_a_second(tmp_path: Path) -> None:
    trace = long_trace(tmp_path, 100_000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    interrupted = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
    interrupted.start()
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            kvblocks.replay(trace, num_blocks=5000)
            pytest.fail("the run was done before the signal came: make it longer")
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 1.5
    left = subprocess.run(["ps", "-o", "stat=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert "kvsim" not in left.stdout


def test_a_sweep_is_a_frame_of_points(tmp_path: Path) -> None:
    swept = kvblocks.sweep(grid={"num_blocks": [1000, 2000]}, results=str(tmp_path / "points.jsonl"))
    pandas = pytest.importorskip("pandas")
    frame = swept.to_pandas()
    assert list(frame["num_blocks"]) == ["1000", "2000"] and swept.exit_status == 0
    assert frame["hit-rate"][1] == pytest.approx(kvblocks.replay(num_blocks=2000, page=False).hit_rate)
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == 2
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "points.parquet")
    assert pandas.read_parquet(tmp_path / "points.parquet").equals(frame)


def test_workloads_are_made_from_options_and_specifications(tmp_path: Path) -> None:
    made = kvblocks.generate(tmp_path / "chat.kvt", requests=50, turns=3, system=800)
    assert len(list(made)) == 50
    kvblocks.generate(tmp_path / "chat.txtpb", to="spec", requests=50, turns=3, system=800)
    again = kvblocks.generate(tmp_path / "again.kvt", tmp_path / "chat.txtpb")
    assert [r.input_length for r in again] == [r.input_length for r in made]
    with pytest.raises(kvblocks.CommandError, match="--turns"):
        kvblocks.generate(tmp_path / "bad.kvt", turns="none")


def test_runs_go_side_by_side() -> None:
    results: list[float] = []
    threads = [threading.Thread(target=lambda: results.append(kvblocks.replay(num_blocks=2000, page=False).hit_rate))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2 and results[0] == results[1]
