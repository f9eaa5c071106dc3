"""Runs kvsim, the program that comes with the package, as a child process.

A child, because a run may take minutes and gigabytes: Ctrl-C ends it at once, several run side by side
from threads, and neither its memory nor a crash is the caller's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from kvblocks.errors import CommandError

Progress = Callable[[float | None, str], None]

_PERCENT = re.compile(r"(\d+(?:\.\d+)?) %")


def path() -> str:
    """Where kvsim is: KVBLOCKS_KVSIM of the environment, else the one that came with the package."""
    given = os.environ.get("KVBLOCKS_KVSIM")
    if given:
        return given
    bundled = Path(__file__).resolve().parent / "bin" / "kvsim"
    beside = Path(__file__).parent / "bin" / "kvsim"  # a build folder has links
    for candidate in (beside, bundled):
        if candidate.exists():
            return str(candidate)
    raise CommandError(f"kvsim is not at {beside}: this package was built without it "
                       "(KVBLOCKS_KVSIM=OFF); build it again, or set KVBLOCKS_KVSIM to the program's path")


def run(arguments: Sequence[str], progress: Progress | None = None) -> tuple[int, str, str]:
    """Runs kvsim to its end: exit status, standard output, messages.

    progress: called at most ten times a second with the share done (0 to 1, None: unknown) and a text.
    An exception of the callback, KeyboardInterrupt included, ends kvsim.
    """
    environment = dict(os.environ, KVSIM_PROGRESS="json" if progress else "")
    # The result goes to a file, so that a pipe is read for messages only.
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([path(), *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.PIPE, env=environment, start_new_session=True)
        assert child.stderr is not None
        try:
            messages = _read_messages(child.stderr, progress)
            status = child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            child.stderr.close()
        out.seek(0)
        text = out.read().decode()
    if status < 0:
        messages += f"kvsim ended by signal {signal.Signals(-status).name}\n"
    return status, text, messages


def _read_messages(pipe: IO[bytes], progress: Progress | None) -> str:
    messages = []
    for raw in pipe:
        line = raw.decode(errors="replace")
        if progress is not None and line.startswith('{"progress"'):
            text = str(json.loads(line)["progress"])
            percent = _PERCENT.search(text)
            progress(float(percent[1]) / 100 if percent else None, text)
        else:
            messages.append(line)
    return "".join(messages)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    killer = threading.Timer(0.5, child.kill)
    killer.start()
    child.wait()
    killer.cancel()


def default_progress() -> Progress | None:
    """A bar of tqdm, if it is installed and standard error is a terminal or a notebook."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    bar = tqdm(total=100, unit="%", leave=False, disable=None)

    def show(share: float | None, text: str) -> None:
        if share is not None:
            bar.n = round(100 * share)
        bar.set_postfix_str(text, refresh=True)

    return show


def text_of(value: object) -> str:
    """A value as on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def arguments_of(options: dict[str, object]) -> list[str]:
    """Keyword arguments as options: block_size=16 is --block-size=16, spread=False is --no-spread."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is None:
            continue
        if value is True:
            arguments.append(option)
        elif value is False:
            arguments.append("--no-" + option[2:])
        elif isinstance(value, (list, tuple, range)):
            arguments.extend([option, *(str(item) for item in value)])
        else:
            arguments.append(f"{option}={value}")
    return arguments
