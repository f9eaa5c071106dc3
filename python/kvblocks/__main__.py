"""python -m kvblocks is kvsim, with its arguments, output and exit status."""

import os
import sys

from kvblocks import _program
from kvblocks.errors import CommandError


def main() -> None:
    try:
        program = _program.path()
    except CommandError as error:
        sys.exit(f"kvblocks: {error}")
    os.execv(program, ["kvsim", *sys.argv[1:]])


if __name__ == "__main__":
    main()
