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

from kvblocks import errors, specs
from kvblocks._core import (
    AllBlocksCleared, BlockInfo, BlockPool, BlockRemoved, Blocks, BlockStored, BlockTable, ComputedBlocks,
    KVCacheConfig, KVCacheGroup, KVCacheManager, KVCacheSpec, LookupExplanation, NativeLayout,
    PrefixCacheStats, Request, Semantics, __version__,
)
from kvblocks.errors import (
    CommandError, ConcurrentUseError, InvalidArgumentError, InvariantError, KVBlocksError, NotFoundError,
    ResourceExhaustedError, StaleBlockTableError,
)

__all__ = [
    "AllBlocksCleared", "BlockInfo", "BlockPool", "BlockRemoved", "BlockStored", "BlockTable", "Blocks",
    "CommandError", "ComputedBlocks", "ConcurrentUseError", "InvalidArgumentError", "InvariantError",
    "KVBlocksError", "KVCacheConfig", "KVCacheGroup", "KVCacheManager", "KVCacheSpec", "LookupExplanation",
    "NativeLayout", "NotFoundError", "PrefixCacheStats", "Request", "ResourceExhaustedError", "Semantics",
    "StaleBlockTableError", "__version__", "errors", "specs",
]
