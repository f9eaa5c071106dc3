"""kvblocks inside vLLM: its scheduler with our KV-cache manager.

Installed with the package, it is a plugin that vLLM finds by itself, and does nothing until asked for:

    VLLM_PLUGINS=kvblocks KVBLOCKS_VLLM=1 vllm serve MODEL

docs/vllm.md says what it serves, what it refuses, and how it was tested. Importing this module
imports neither vLLM nor the native part.
"""

TESTED_VERSIONS = ("0.32.0", "0.33.0")
"""Versions of vLLM that the plugin was tested with; others are refused."""


class UnsupportedError(RuntimeError):
    """vLLM, or a setting of it, that the plugin does not serve. Says which and what to do."""


__all__ = ["TESTED_VERSIONS", "UnsupportedError"]
