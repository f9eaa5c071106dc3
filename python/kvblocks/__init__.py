"""kvblocks: the KV cache of LLM servers - block manager, planning, simulation.

    import kvblocks
    from kvblocks import specs

    full = specs.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
    config = kvblocks.KVCacheConfig(num_blocks=1000, groups=[kvblocks.KVCacheGroup(full)])
    manager = kvblocks.KVCacheManager(config, max_model_len=8192)
    request = manager.new_request("r1", prompt)
    hits = manager.get_computed_blocks(request)
    slots = manager.allocate_slots(request, request.num_tokens - hits.num_tokens, hits)
    if slots is None: ...                       # does not fit now
    table = manager.get_blocks(request).numpy()  # what a kernel reads, without a copy
    manager.free(request)                        # its full blocks stay cached

docs/python.md goes on from here.
"""

from typing import TYPE_CHECKING, Any

from kvblocks import errors, specs
from kvblocks._core import (
    AllBlocksCleared, BlockInfo, BlockPool, BlockRemoved, Blocks, BlockStored, BlockTable, ComputedBlocks,
    DecodeBatch, KVCacheConfig, KVCacheGroup, KVCacheManager, KVCacheSpec, LookupExplanation, NativeLayout,
    PrefixCacheStats, PrefixContent, Request, Semantics, __version__,
)
from kvblocks.errors import (
    CommandError, ConcurrentUseError, InvalidArgumentError, InvariantError, KVBlocksError, NotFoundError,
    ResourceExhaustedError, StaleBlockTableError,
)

if TYPE_CHECKING:
    from kvblocks import attention, events, results, simulator
    from kvblocks.planning import ManagerPlan, make_plan
    from kvblocks.results import (
        CurveResult, ExplainResult, FleetResult, PlanResult, ReplayResult, Result, SweepResult,
    )
    from kvblocks.simulator import (
        compare, curve, explain, generate, help_text, plan, replay, stats, sweep, validate, verify,
    )
    from kvblocks.trace import Trace, TraceRequest

# Loaded when they are asked for: engines import the package for the manager alone.
_LAZY = {
    "attention": None, "events": None, "results": None, "simulator": None,
    "CurveResult": "results", "ExplainResult": "results", "FleetResult": "results", "PlanResult": "results",
    "ReplayResult": "results", "Result": "results", "SweepResult": "results", "ManagerPlan": "planning",
    "make_plan": "planning", "Trace": "trace", "TraceRequest": "trace",
    **dict.fromkeys(("compare", "curve", "explain", "generate", "help_text", "plan", "replay", "stats",
                     "sweep", "validate", "verify"), "simulator"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'kvblocks' has no attribute {name!r}")
    import importlib

    home = _LAZY[name]
    module = importlib.import_module(f"kvblocks.{home or name}")
    return module if home is None else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AllBlocksCleared", "BlockInfo", "BlockPool", "BlockRemoved", "Blocks", "BlockStored", "BlockTable",
    "CommandError", "ComputedBlocks", "ConcurrentUseError", "CurveResult", "DecodeBatch", "ExplainResult",
    "FleetResult", "InvalidArgumentError", "InvariantError", "KVBlocksError", "KVCacheConfig", "KVCacheGroup",
    "KVCacheManager", "KVCacheSpec", "LookupExplanation", "ManagerPlan", "NativeLayout", "NotFoundError",
    "PlanResult", "PrefixCacheStats", "PrefixContent", "ReplayResult", "Request", "ResourceExhaustedError", "Result",
    "Semantics", "StaleBlockTableError", "SweepResult", "Trace", "TraceRequest", "__version__", "attention", "compare",
    "curve", "errors", "events", "explain", "generate", "help_text", "make_plan", "plan", "replay", "results", "simulator",
    "specs", "stats", "sweep", "validate", "verify",
]
