"""Which KV connectors a scheduler with our manager can have.

A connector hears of blocks in three ways: the ids of a request's blocks, lists of blocks with their
keys (both of which our manager hands out as vLLM's does), and, once, the manager itself with its pool.
Those that ask for the third count references or register blocks on their own and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from kvblocks.vllm import UnsupportedError


def _each(transfer: KVTransferConfig) -> Iterator[KVTransferConfig]:
    """The connector, or those that a MultiConnector puts together."""
    if transfer.kv_connector != "MultiConnector":
        yield transfer
        return
    for child in transfer.kv_connector_extra_config.get("connectors", []):
        yield from _each(KVTransferConfig(**{"engine_id": transfer.engine_id, **child}))


def _reaches_into_the_pool(connector: type) -> bool:
    return any(
        getattr(connector, name, None) is not getattr(KVConnectorBase_V1, name)
        for name in ("bind_kv_cache_manager", "bind_gpu_block_pool")
    )


def check_connectors(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises UnsupportedError for a connector that does not work with our manager, and says why."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return
    for each in _each(transfer):
        if _reaches_into_the_pool(KVConnectorFactory.get_connector_class(each)):
            raise UnsupportedError(
                f"KV connector {each.kv_connector} works on vLLM's own block pool, which kvblocks replaces; "
                "take a connector that knows blocks by their ids, or unset KVBLOCKS_VLLM"
            )
    if kv_cache_config.needs_kv_cache_zeroing:
        raise UnsupportedError(
            f"KV connector {transfer.kv_connector} with Mamba states or mixed precision: kvblocks does not tell "
            "connectors which states to move and which blocks not to zero; serve without a connector, "
            "or unset KVBLOCKS_VLLM"
        )


__all__ = ["check_connectors"]
