"""The simulator's commands as functions.

Every option of ``kvsim COMMAND`` is a keyword argument: ``--block-size=16`` is ``block_size=16``, a flag is
``True``, ``--no-spread`` is ``spread=False``, and lists have several values. ``print(help_text("replay"))``
lists them with units and defaults; what kvsim refuses raises CommandError with its message. A trace is a
path, a Trace, or None for the workload that comes with the package.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kvblocks import _program
from kvblocks._program import Progress
from kvblocks.errors import CommandError
from kvblocks.results import CurveResult, ExplainResult, FleetResult, PlanResult, ReplayResult, Result, SweepResult
from kvblocks.trace import Trace

__all__ = ["compare", "curve", "explain", "generate", "help_text", "plan", "replay", "stats", "sweep",
           "validate", "verify"]

TraceLike = Trace | str | os.PathLike[str] | None
ResultT = TypeVar("ResultT", bound=Result)


def _run(command: str, inputs: list[str], result: type[ResultT], progress: Progress | bool | None,
         options: dict[str, Any], page: bool = False) -> ResultT:
    """One command with JSON output. What a new command needs is a call of this."""
    call = _program.default_progress() if progress is True else progress or None
    with tempfile.TemporaryDirectory(prefix="kvblocks-") as folder:
        page_file = Path(folder) / "page.html"
        arguments = [command, *inputs, "--json", *_program.arguments_of(options)]
        if page:
            arguments.append(f"--html={page_file}")
        status, text, messages = _program.run(arguments, call)
        # With an answer the status is about what was asked: a limit missed, a trace that is bad.
        if status < 0 or not text:
            raise CommandError(messages.strip() or f"kvsim {command} ended with status {status}", status)
        html = page_file.read_text() if page_file.exists() else ""
    return result(json.loads(text), status, messages, html)


def _trace(trace: TraceLike) -> list[str]:
    if trace is None:
        return []
    return [str(trace.path) if isinstance(trace, Trace) else os.fspath(trace)]


def help_text(command: str = "") -> str:
    """All options of a command, with units and defaults."""
    _, text, messages = _program.run([command, "--help=all"] if command else ["--help"])
    if not text:
        raise CommandError(messages.strip())
    return text


def replay(trace: TraceLike = None, *, progress: Progress | bool | None = None, page: bool = True,
           **options: Any) -> ReplayResult:
    """Replays a trace through scheduler and cache, and reports hit rates, misses, latency, the pool.

    progress: a callable (share 0 to 1 or None, text), or True for a bar of tqdm. page: keep the page that
    notebooks show; 200 KB. options: those of ``kvsim replay``, num_blocks=2000 for one. A missed slo is
    exit_status 1. Ctrl-C ends the run. With several replicas (replicas=4, router="prefix") it is a FleetResult.
    """
    result = _run("replay", _trace(trace), ReplayResult, progress, options, page)
    if not result.get("replicas"):
        return result
    return FleetResult(result.to_dict(), result.exit_status, result.messages, result.page)


def curve(trace: TraceLike = None, *, progress: Progress | bool | None = None, **options: Any) -> CurveResult:
    """The hit rate of every pool size from one pass, and how many blocks are enough."""
    return _run("curve", _trace(trace), CurveResult, progress, options)


def plan(model: str | None = None, device: str | None = None, *, page: bool = True,
         **options: Any) -> PlanResult:
    """What a model's layers store and how many requests a device holds.

    model: of the catalogue, or the path of a config.json. exit_status 1: the longest request does not fit.
    """
    return _run("plan", [], PlanResult, None, {"model": model, "device": device, **options}, page)


def explain(trace: TraceLike = None, *, progress: Progress | bool | None = None,
            **options: Any) -> ExplainResult:
    """Why prompts missed the cache; request="ID" shows one request step by step."""
    return _run("explain", _trace(trace), ExplainResult, progress, options)


def stats(trace: TraceLike = None, **options: Any) -> Result:
    """What a trace holds, and the most that a cache can reach."""
    return _run("stats", _trace(trace), Result, None, options)


def validate(trace: TraceLike = None, *, progress: Progress | bool | None = None, **options: Any) -> Result:
    """Everything that is wrong with a trace; exit_status 1 if it is bad."""
    return _run("validate", _trace(trace), Result, progress, options)


def verify(trace: TraceLike = None, *, progress: Progress | bool | None = None, **options: Any) -> Result:
    """A replay with real tensors: every wrong number is a bug."""
    return _run("verify", _trace(trace), Result, progress, options)


def compare(a: ReplayResult | str | os.PathLike[str], b: ReplayResult | str | os.PathLike[str],
            **options: Any) -> Result:
    """What differs between two replays; exit_status 1 if more does than tolerance=... allows."""
    with tempfile.TemporaryDirectory(prefix="kvblocks-") as folder:
        paths = []
        for name, report in (("a", a), ("b", b)):
            if isinstance(report, ReplayResult):
                path = Path(folder) / f"{name}.json"
                path.write_text(json.dumps(report.to_dict()))
                paths.append(str(path))
            else:
                paths.append(os.fspath(report))
        return _run("compare", paths, Result, None, options)


def sweep(trace: TraceLike = None, grid: Mapping[str, Iterable[object]] | None = None, *,
          progress: Progress | bool | None = None, **options: Any) -> SweepResult:
    """Replays every combination of values of options on all cores: grid={"num_blocks": [1000, 2000]}.

    options: those of ``kvsim sweep`` and ``kvsim replay``; results="FILE" keeps finished points. exit_status 1:
    a point has no figures, and its row says why.
    """
    inputs = _trace(trace)
    for name, values in (grid or {}).items():
        texts = [_program.text_of(value) for value in values]
        # Commas part values, bars those that have commas in them.
        joined = "|".join(texts) + ("|" if len(texts) == 1 else "") if any("," in t for t in texts) else ",".join(texts)
        inputs += ["--grid", f"{name.replace('_', '-')}={joined}"]
    return _run("sweep", inputs, SweepResult, progress, options)


def generate(path: str | os.PathLike[str], spec: str | os.PathLike[str] | None = None, **options: Any) -> Trace:
    """A synthetic workload, written to `path`: from a specification, or from options of ``kvsim gen``
    (requests=1000, rate=5, like="trace.jsonl" and others)."""
    inputs = [] if spec is None else [os.fspath(spec)]
    status, _, messages = _program.run(
        ["gen", *inputs, "--quiet", *_program.arguments_of(options), f"--output={os.fspath(path)}"])
    if status != 0:
        raise CommandError(messages.strip(), status)
    return Trace(path)
