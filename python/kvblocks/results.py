"""What the simulator's commands answer: reports as objects.

A report is a tree of records. ``report.whole_run.token_hit_rate.value`` reads a field; ``to_dict()`` is the
whole as plain data; ``to_pandas()`` is its main table; notebooks show it as a page or a table. The fields
are those of ``kvsim COMMAND --json``.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__all__ = ["CurveResult", "ExplainResult", "FleetResult", "PlanResult", "Record", "ReplayResult", "Result", "SweepResult"]


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


class Record(Mapping[str, Any]):
    """Named values: read them as attributes or by ``record["name"]``. Read-only."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_fields", {name: _value(value) for name, value in data.items()})

    _fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(
                f"no field {name}; there are: {', '.join(self._fields)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"results are read-only: cannot set {name}")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)

    def __repr__(self) -> str:
        parts = []
        for name, value in self._fields.items():
            if isinstance(value, Record):
                parts.append(f"{name}=...")
            elif isinstance(value, list):
                parts.append(f"{name}=[{len(value)}]")
            else:
                parts.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """As dicts, lists, numbers and texts."""
        return {name: _plain(value) for name, value in self._fields.items()}

    def _repr_html_(self) -> str:
        rows = []
        for name, value in self._fields.items():
            if isinstance(value, Record):
                shown = value._repr_html_()
            elif isinstance(value, list):
                shown = f"{len(value)} rows" if value and isinstance(value[0], Record) else html.escape(str(value))
            else:
                shown = html.escape(str(value))
            rows.append(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{shown}</td></tr>")
        return f"<table>{''.join(rows)}</table>"


class Result(Record):
    """The answer of a command.

    exit_status: 0 done, 1 a limit that was asked for is missed. messages: warnings. text: what the
    command would have printed; print(result) shows it, if the command made it.
    """

    _table = ""  # of to_pandas: names from the root to a list of records

    def __init__(self, data: Mapping[str, Any], exit_status: int = 0, messages: str = "",
                 page: str = "") -> None:
        super().__init__(data)
        object.__setattr__(self, "exit_status", exit_status)
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "page", page)

    exit_status: int
    messages: str
    page: str

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(), self.exit_status, self.messages, self.page)

    def to_pandas(self, table: str = "") -> pandas.DataFrame:
        """A list of records as a data frame, one row each; nested fields are joined by dots.

        table: its name, ``"first_admission_misses.causes"`` for one; by default the command's main one.
        Raises LookupError that names the tables there are.
        """
        import pandas

        node: Any = self
        name = table or self._table
        for part in name.split("."):
            try:
                node = node[int(part)] if isinstance(node, list) else node[part]
            except (KeyError, IndexError, TypeError, ValueError):
                node = None
                break
        if not isinstance(node, list) or (node and not isinstance(node[0], Record)):
            raise LookupError(f"no table {name!r}; there are: {', '.join(self.tables())}")
        return pandas.json_normalize([record.to_dict() for record in node])

    def tables(self) -> list[str]:
        """Names that to_pandas takes."""
        found: list[str] = []

        def visit(record: Record, path: str) -> None:
            for name, value in record.items():
                if isinstance(value, Record):
                    visit(value, f"{path}{name}.")
                elif isinstance(value, list) and value and isinstance(value[0], Record):
                    found.append(path + name)
                    for i, item in enumerate(value[:8]):
                        visit(item, f"{path}{name}.{i}.")

        visit(self, "")
        return found

    def _repr_html_(self) -> str:
        if not self.page:
            return super()._repr_html_()
        # A page of its own: its style and script stay inside.
        return ("<iframe style='width:100%;height:720px;border:0' sandbox='allow-scripts' srcdoc=\""
                + html.escape(self.page, quote=True) + "\"></iframe>")


class ReplayResult(Result):
    """A replay's report. to_pandas() is its series over time."""

    _table = "series.points"

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the cache served, 0 to 1."""
        return float(self.whole_run.token_hit_rate.value)


class FleetResult(ReplayResult):
    """A replay of several replicas. to_pandas() is one row per replica; each has its own report."""

    _table = "replicas"


class CurveResult(Result):
    """Hit rates of all pool sizes. to_pandas() is one row per size."""

    _table = "points"


class SweepResult(Result):
    """The points of a sweep. to_pandas() is one row per point: its settings, its metrics, the front."""

    _table = "rows"

    def to_pandas(self, table: str = "") -> pandas.DataFrame:
        if table not in ("", "rows"):
            return super().to_pandas(table)
        import pandas

        rows = []
        for row in self.rows:
            values: dict[str, Any] = {setting.option: setting.value for setting in row.settings}
            values |= {value.metric: value.value for value in row.get("values", [])}
            rows.append(values | {"on_front": row.on_front, "problem": row.problem})
        return pandas.DataFrame(rows)


class PlanResult(Result):
    """Two plans, as vLLM makes it and the exact one. to_pandas() is one row per plan."""

    _table = "plans"


class ExplainResult(Result):
    """Why prompts missed. to_pandas() is the requests that missed most."""

    _table = "worst"
