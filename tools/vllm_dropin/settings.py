"""Checks which settings of vLLM the plugin takes, and that it says why it refuses the others.

    python settings.py

The last line counts.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import vllm
from connector import RandomConnector
from vllm.config import KVTransferConfig

from kvblocks.vllm import UnsupportedError, plugin
from kvblocks.vllm.connectors import check_connectors


class OwnPool(RandomConnector):
    """A connector from elsewhere that wants vLLM's pool."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        raise AssertionError("was not refused")


def connector(name: str, zeroing: bool = False, **settings: Any) -> None:
    transfer = KVTransferConfig(kv_connector=name, kv_role="kv_both", **settings)
    check_connectors(
        types.SimpleNamespace(kv_transfer_config=transfer), types.SimpleNamespace(needs_kv_cache_zeroing=zeroing)
    )


def multi(*names: str) -> None:
    children = [{"kv_connector": name, "kv_role": "kv_both", "engine_id": str(i)} for i, name in enumerate(names)]
    connector("MultiConnector", kv_connector_extra_config={"connectors": children})


def setting(**environment: str) -> None:
    assert plugin.is_wanted(environment)


# What is tried, and what the refusal says; "" where nothing is refused.
CASES: list[tuple[Any, str]] = [
    (lambda: check_connectors(types.SimpleNamespace(kv_transfer_config=None), None), ""),
    (lambda: connector("ExampleConnector"), ""),
    (lambda: connector("OffloadingConnector"), ""),
    (lambda: connector("NixlConnector"), ""),
    (lambda: connector("RandomConnector", kv_connector_module_path="connector"), ""),
    (lambda: multi("ExampleConnector", "OffloadingConnector"), ""),
    (lambda: connector("SimpleCPUOffloadConnector"), "SimpleCPUOffloadConnector works on vLLM's own block pool"),
    (lambda: connector("HiSparseConnector"), "HiSparseConnector works on vLLM's own block pool"),
    (lambda: connector("OwnPool", kv_connector_module_path="settings"), "OwnPool works on vLLM's own block pool"),
    (lambda: multi("ExampleConnector", "MooncakeStoreConnector"), "MooncakeStoreConnector works on"),
    (lambda: connector("ExampleConnector", zeroing=True), "ExampleConnector with Mamba states"),
    (lambda: setting(KVBLOCKS_VLLM="1", VLLM_PLUGINS="kvblocks"), ""),
    (lambda: setting(KVBLOCKS_VLLM="yes"), "KVBLOCKS_VLLM is 'yes', expected 0"),
    (lambda: setting(KVBLOCKS_VLLM="1"), "VLLM_PLUGINS is None: name the plugin there"),
    (lambda: plugin.check_version(vllm.__version__), ""),
    (lambda: plugin.check_version("0.34.0"), "vLLM 0.34.0 is not one that kvblocks was tested with"),
]


def main() -> int:
    num_failed = 0
    for number, (attempt, expected) in enumerate(CASES):
        try:
            attempt()
            got = ""
        except UnsupportedError as error:
            got = str(error)
        if got != expected and (not expected or expected not in got):
            num_failed += 1
            print(f"case {number}: got {got!r}, expected {expected!r}")
    print(f"{len(CASES) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
