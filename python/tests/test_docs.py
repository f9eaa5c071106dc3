"""Runs the cells of docs/python.md from top to bottom, and the example that it names."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CELL = re.compile(r"^```(python|text)\n(.*?)^```$", re.M | re.S)


def matches(expected: str, printed: str) -> bool:
    """A line "..." stands for any lines, and ... inside a line for any text."""
    pattern = re.escape(expected).replace(r"\.\.\.\n", "(?:.*\n)*").replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, printed) is not None


def test_cells_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)  # cells write files
    namespace: dict[str, object] = {}
    printed = ""
    cells = CELL.findall((ROOT / "docs/python.md").read_text())
    assert len(cells) > 15
    for kind, text in cells:
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, "docs/python.md", "exec"), namespace)
            printed = out.getvalue()
        else:
            assert matches(text, printed), f"the page says\n{text}and the cell prints\n{printed}"


def test_the_scheduler_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/python_scheduler.py"), run_name="__main__")
    assert "40 requests, 2400 tokens" in capsys.readouterr().out
