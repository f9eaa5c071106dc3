"""From a model and a device to a manager, inside the process; ``kvblocks.plan`` has the whole report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvblocks._core import KVCacheManager, plan_json
from kvblocks.results import Record

__all__ = ["ManagerPlan", "make_plan"]


class ManagerPlan(Record):
    """How much cache a model has, and the configuration of its manager.

    Fields: model, policy, layout, available_bytes, max_model_len (tokens), num_blocks, allocatable_blocks,
    groups (kind, layers, block_size, page_bytes), lengths (length, blocks_per_request, concurrency),
    longest_context (tokens), config.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        object.__setattr__(self, "config_text", json.dumps(data["config"]))

    config_text: str

    def make_manager(self, **options: Any) -> KVCacheManager:
        """The manager; options as a configuration file has them, enable_events=True for one."""
        config = json.loads(self.config_text)
        config.setdefault("options", {}).update(options)
        return KVCacheManager.from_config(json.dumps(config))


def make_plan(model: str | None = None, device: str | None = None, *,
              hf_config: str | os.PathLike[str] | None = None, available_bytes: int | None = None,
              tensor_parallel: int = 1, kv_cache_dtype: str = "auto", block_size: int | None = None,
              max_model_len: int | None = None, max_in_flight_tokens: int | None = None,
              policy: str = "exact", layout: str | None = None, prefix_caching: bool = True,
              memory_utilization: float | None = None, activation_gb: float | None = None,
              graph_gb: float | None = None, lengths: Sequence[int] = ()) -> ManagerPlan:
    """Groups, blocks and concurrency of a model.

    model: of the catalogue; or hf_config: path of a config.json. device: of the catalogue; or
    available_bytes: for the cache, on one device. max_model_len: tokens (default: the longest that fits).
    max_in_flight_tokens: scheduled and not settled (default: 8192). policy: "exact" or "upstream". layout:
    "uniform", "slab" or "native" (default: the best). memory_utilization: share of the device. lengths:
    tokens, where concurrency is stated.

    Takes a millisecond. Raises InvalidArgumentError that says what is wrong, or by how much it does not fit.
    """
    asked = {"model": model, "device": device, "available_bytes": available_bytes,
             "tensor_parallel": tensor_parallel, "kv_cache_dtype": kv_cache_dtype, "block_size": block_size,
             "max_model_len": max_model_len, "max_in_flight_tokens": max_in_flight_tokens, "policy": policy,
             "layout": layout, "prefix_caching": prefix_caching, "memory_utilization": memory_utilization,
             "activation_gb": activation_gb, "graph_gb": graph_gb, "lengths": list(lengths) or None}
    options = json.dumps({name: value for name, value in asked.items() if value is not None})
    text = Path(hf_config).read_text() if hf_config is not None else None
    return ManagerPlan(json.loads(plan_json(options, text)))
