"""Traces: lists of requests, as files that the simulator reads as streams.

    trace = Trace("log.jsonl.gz")                       # any of the formats of docs/traces.md
    trace = Trace.read("log.parquet")                   # Parquet, too, if pyarrow is installed
    trace = Trace.from_requests(rows, block_size=16)    # TraceRequest or dicts, one by one
    trace = Trace.from_pandas(frame, columns={"prompt": "input_length", "answer": "output_length"})
    for request in trace: ...
    trace.convert("day.kvt.zst")                        # native format, compressed by its name
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvblocks import _program
from kvblocks.errors import CommandError, InvalidArgumentError

if TYPE_CHECKING:
    import pandas

__all__ = ["Trace", "TraceRequest"]


@dataclass
class TraceRequest:
    """One request. Times are in milliseconds, lengths in tokens; None: not said.

    hash_ids: one id per block of the prompt; equal leading ids are equal content. block_size: tokens per
    id; 0: lengths only, 1: the ids are token ids. A later request of a session without timestamp waits for
    the one before it, plus delay.
    """

    input_length: int
    output_length: int
    timestamp: float | None = None
    hash_ids: list[int] | None = None
    block_size: int | None = None
    session_id: str | int | None = None
    delay: float | None = None
    request_id: str | int | None = None
    wait_for: list[str | int] | str | int | None = None
    tool_wait_ms: float | None = None
    output_token_ids: list[int] | None = None
    priority: int | None = None
    min_tokens: int | None = None
    encoder_tokens: int | None = None
    turn: int | None = None
    tenant: str | None = None
    slo_class: str | None = None
    adapter: str | None = None
    cache_salt: str | None = None
    accepted_drafts: list[int] | None = None
    abort_after_ms: float | None = None


_FIELDS = frozenset(field.name for field in dataclasses.fields(TraceRequest))

# Columns of Baseten's traces.
_BASETEN = {"timestamp_start_unix_ms": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length",
            "total_hashes": "hash_ids", "provided_session_id": "session_id"}


class Trace:
    """A trace file. Its requests are read when they are asked for."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        """options: how to read it, those of ``kvsim convert``: trace_format="azure" for one."""
        self.path = Path(path)
        self.options = options
        if not self.path.exists():
            raise FileNotFoundError(f"trace {self.path} does not exist")

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r})"

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None,
             block_size: int | None = None, **options: Any) -> Trace:
        """A trace file, of Parquet too: that is read by pyarrow, batch by batch, into a temporary file.

        columns and block_size: of Parquet, as from_pandas has them; the columns of Baseten's traces are known.
        Hashes may be integers, texts or bytes. options: of other files, as the constructor has them.
        Raises ImportError without pyarrow, InvalidArgumentError for columns that are missing.
        """
        with open(path, "rb") as start:
            is_parquet = start.read(4) == b"PAR1"
        if not is_parquet:
            if columns or block_size:
                raise InvalidArgumentError(f"{os.fspath(path)}: columns and block_size are for Parquet, and this is "
                                           "none; fields=... names the columns of CSV and JSONL")
            return cls(path, **options)
        if options:
            raise InvalidArgumentError(f"{os.fspath(path)}: {sorted(options)[0]} is not for Parquet, expected columns "
                                       "or block_size")
        try:
            from pyarrow import parquet
        except ImportError:
            raise ImportError(f"{os.fspath(path)} is Parquet, which pyarrow reads: pip install pyarrow") from None
        with parquet.ParquetFile(path) as file:
            given = set(file.schema_arrow.names)
            is_baseten = {"timestamp_start_unix_ms", "input_tokens", "output_tokens"} <= given
            names = {**(_BASETEN if is_baseten else {}), **(columns or {})}
            for name in columns or {}:
                if name not in given:
                    raise InvalidArgumentError(f"{os.fspath(path)}: no column {name}; there are: "
                                               + ", ".join(sorted(given)))
            wanted = {names.get(name, name) for name in given}
            for field in ("input_length", "output_length"):
                if field not in wanted:
                    raise InvalidArgumentError(
                        f'{os.fspath(path)}: no column for {field}, expected one of that name or columns='
                        f'{{NAME: "{field}"}}; there are: {", ".join(sorted(given))}')
            chosen = [name for name in file.schema_arrow.names if names.get(name, name) in _FIELDS]
            return cls.from_requests(_arrow_rows(file.iter_batches(columns=chosen), names), block_size=block_size)

    @classmethod
    def from_requests(cls, requests: Iterable[TraceRequest | Mapping[str, Any]], *,
                      block_size: int | None = None, path: str | os.PathLike[str] | None = None) -> Trace:
        """Writes requests as they come, so any number of them.

        block_size: tokens per id, for requests that do not say; needed where there are hash_ids. path:
        default: a temporary file, which goes with the Trace. Names ending in .gz are compressed.
        Raises InvalidArgumentError that names the row and the field.
        """
        temporary = path is None
        if path is None:
            handle, path = tempfile.mkstemp(prefix="kvblocks-", suffix=".jsonl")
            os.close(handle)
        target = Path(path)
        try:
            with gzip.open(target, "wt") if target.suffix == ".gz" else open(target, "w") as out:
                for number, request in enumerate(requests):
                    out.write(json.dumps(_row(number, request, block_size)) + "\n")
        except BaseException:
            target.unlink(missing_ok=True)  # no half of a file
            raise
        trace = cls(target, trace_format="mooncake")
        if temporary:
            weakref.finalize(trace, target.unlink, missing_ok=True)
        return trace

    @classmethod
    def from_pandas(cls, frame: pandas.DataFrame, *, columns: Mapping[str, str] | None = None,
                    block_size: int | None = None, path: str | os.PathLike[str] | None = None) -> Trace:
        """From a data frame with a row per request.

        columns: which column is which field of TraceRequest, where they are called differently. Other
        columns are left out; missing values are None.
        """
        named = frame.rename(columns=dict(columns or {}))
        chosen = [str(name) for name in named.columns if name in _FIELDS]
        rows = (
            {name: value for name, value in zip(chosen, row) if not _is_missing(value)}
            for row in named[chosen].itertuples(index=False, name=None)
        )
        return cls.from_requests(rows, block_size=block_size, path=path)

    @classmethod
    def from_arrow(cls, table: Any, *, columns: Mapping[str, str] | None = None,
                   block_size: int | None = None, path: str | os.PathLike[str] | None = None) -> Trace:
        """The same from a pyarrow Table, batch by batch. Hashes may be integers, texts or bytes."""
        return cls.from_requests(_arrow_rows(table.to_batches(), dict(columns or {})), block_size=block_size, path=path)

    def __iter__(self) -> Iterator[TraceRequest]:
        """Reads the trace as a stream. Raises CommandError at the first bad row, with its line."""
        arguments = ["convert", str(self.path), "-", "--to=mooncake", "--quiet",
                     *_program.arguments_of(self.options)]
        with tempfile.TemporaryFile() as messages:
            child = subprocess.Popen([_program.path(), *arguments], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=messages, start_new_session=True)
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    row = json.loads(line)
                    yield TraceRequest(**{name: value for name, value in row.items() if name in _FIELDS})
                if child.wait() != 0:
                    messages.seek(0)
                    raise CommandError(messages.read().decode().strip(), child.returncode)
            finally:
                child.stdout.close()  # kvsim ends when nobody reads
                child.wait()

    def convert(self, path: str | os.PathLike[str], to: str = "native", **options: Any) -> Trace:
        """Writes the trace in another form: "native", "mooncake" or "csv"; .gz and .zst are compressed."""
        status, _, messages = _program.run(
            ["convert", str(self.path), os.fspath(path), f"--to={to}",
             *_program.arguments_of({**self.options, **options})])
        if status != 0:
            raise CommandError(messages.strip(), status)
        return Trace(path)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per request; fields that no request has are left out."""
        import pandas

        frame = pandas.DataFrame([vars(request) for request in self])
        return frame.dropna(axis="columns", how="all")


def _arrow_rows(batches: Iterable[Any], names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows of record batches by the names of fields; hashes that are no 64-bit integers get numbers."""
    numbers: dict[Any, int] = {}

    def as_id(value: Any) -> int:
        if not isinstance(value, int):
            return numbers.setdefault(value, len(numbers))
        return value - 2**64 if value >= 2**63 else value

    for batch in batches:
        for row in batch.to_pylist():
            renamed = {names.get(name, name): value for name, value in row.items()}
            chosen = {name: value for name, value in renamed.items() if name in _FIELDS and value is not None}
            if "hash_ids" in chosen:
                chosen["hash_ids"] = [as_id(value) for value in chosen["hash_ids"]]
            yield chosen


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _row(number: int, request: TraceRequest | Mapping[str, Any], block_size: int | None) -> dict[str, Any]:
    given = vars(request) if isinstance(request, TraceRequest) else dict(request)
    unknown = given.keys() - _FIELDS
    if unknown:
        raise InvalidArgumentError(f"request {number}: unknown field {sorted(unknown)[0]}, expected one of "
                                   + ", ".join(sorted(_FIELDS)))
    row = {name: _plain(value) for name, value in given.items() if value is not None}
    for name in ("input_length", "output_length"):
        if name not in row:
            raise InvalidArgumentError(f"request {number}: {name} is missing, expected tokens")
    if "block_size" not in row:
        if block_size is None and row.get("hash_ids"):
            raise InvalidArgumentError(f"request {number}: has hash_ids without block_size, expected "
                                       "tokens per id: from_requests(..., block_size=16)")
        row["block_size"] = block_size or 0
    if row["block_size"] == 0:
        row["hash_ids"] = []  # lengths only
    return row


def _plain(value: Any) -> Any:
    # Numbers of numpy and their arrays.
    return value.tolist() if hasattr(value, "tolist") else value
