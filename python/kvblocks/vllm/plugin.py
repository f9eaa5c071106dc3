"""The entry point in vLLM's group ``vllm.general_plugins``."""

from __future__ import annotations

import functools
import os
from typing import Any

from kvblocks.vllm import TESTED_VERSIONS, UnsupportedError

SETTING = "KVBLOCKS_VLLM"
SEMANTICS_SETTING = "KVBLOCKS_VLLM_SEMANTICS"


def is_wanted(environment: dict[str, str] | None = None) -> bool:
    """Whether the environment asks for our manager: ``KVBLOCKS_VLLM=1``, with kvblocks among ``VLLM_PLUGINS``.

    Raises UnsupportedError for another value, and where only the setting is there: vLLM then loads
    every plugin it finds, and which managers run should not depend on what is installed.
    """
    env = os.environ if environment is None else environment
    value = env.get(SETTING, "0")
    if value not in ("0", "1"):
        raise UnsupportedError(f"{SETTING} is {value!r}, expected 0 (off) or 1")
    if value == "0":
        return False
    plugins = env.get("VLLM_PLUGINS")
    if plugins is None or "kvblocks" not in plugins.split(","):
        raise UnsupportedError(
            f"{SETTING} is 1, but VLLM_PLUGINS is {plugins!r}: name the plugin there (VLLM_PLUGINS=kvblocks)"
        )
    return True


def register() -> None:
    """Called by vLLM in each of its processes, perhaps several times. Does nothing unless is_wanted()."""
    if is_wanted():
        install()


def check_version(version: str) -> None:
    """Raises UnsupportedError for a vLLM that the plugin was not tested with."""
    if version.split("+")[0] not in TESTED_VERSIONS:
        raise UnsupportedError(
            f"vLLM {version} is not one that kvblocks was tested with ({', '.join(TESTED_VERSIONS)}); "
            f"install that one, or unset {SETTING}"
        )


def install() -> None:
    """Puts our manager where vLLM's scheduler looks for its own, for schedulers made from now on."""
    import vllm
    from vllm.v1.core.sched import scheduler

    from kvblocks.vllm.manager import KVCacheManager

    check_version(vllm.__version__)
    if scheduler.KVCacheManager is KVCacheManager:
        return
    build = scheduler.Scheduler.__init__

    @functools.wraps(build)
    def checked(self: Any, vllm_config: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        check_settings(vllm_config, kv_cache_config)
        build(self, vllm_config, kv_cache_config, *args, **kwargs)

    scheduler.Scheduler.__init__ = checked
    scheduler.KVCacheManager = KVCacheManager


def check_settings(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises UnsupportedError for what a scheduler with our manager cannot do."""
    from kvblocks.vllm.connectors import check_connectors

    check_connectors(vllm_config, kv_cache_config)
    aux_outputs = getattr(vllm_config, "aux_output_config", None)  # vLLM 0.32 has none
    if aux_outputs is not None and aux_outputs.enabled:
        raise UnsupportedError(
            f"auxiliary outputs (routed experts) are kept beside the blocks of vLLM's own pool, which kvblocks replaces; "
            f"switch them off, or unset {SETTING}"
        )
    if vllm_config.observability_config.kv_cache_metrics:
        raise UnsupportedError(f"kv_cache_metrics is not supported by kvblocks; switch it off, or unset {SETTING}")
    if vllm_config.cache_config.enable_mamba_shared_prefix_checkpoint:
        raise UnsupportedError(
            f"enable_mamba_shared_prefix_checkpoint is not supported by kvblocks; switch it off, or unset {SETTING}"
        )
