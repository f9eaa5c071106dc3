"""Imported first: starts the program again unless its hashes are fixed. vLLM walks through sets of names, and seeds its hashes of blocks."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *(f"-W{w}" for w in sys.warnoptions), *sys.argv])
