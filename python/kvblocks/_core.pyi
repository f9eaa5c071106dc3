"""The compiled part of kvblocks; use the package."""

from collections.abc import Sequence

import numpy



from array import array
from collections.abc import Iterable
from typing import Any, TypeAlias
from numpy.typing import NDArray
Int32Like: TypeAlias = Sequence[int] | NDArray[numpy.int32] | NDArray[numpy.int64] | array[int] | memoryview
__version__: str
vllm_native: Any
Hashes: TypeAlias = Sequence[bytes] | bytes | bytearray | memoryview | NDArray[Any]
Events: TypeAlias = EventBatch | Iterable[BlockStored | BlockRemoved | AllBlocksCleared]

class KVCacheSpec:
    """
    What one layer stores. Immutable, hashable. Made by the functions of kvblocks.specs.
    """

    @staticmethod
    def create(kind: str, **fields: Any) -> KVCacheSpec:
        """
        A spec of a kind by its name, "full_attention" for one; fields as the functions of kvblocks.specs have them.

        Raises InvalidArgumentError that names the field, its value and the limit.
        """

    @property
    def kind(self) -> str: ...

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its kind, defaults filled in."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def sliding_window(self) -> int | None:
        """Tokens, or None."""

    @property
    def attention_chunk_size(self) -> int | None:
        """Tokens, or None."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer."""

    def __repr__(self) -> str: ...

    def __hash__(self) -> int: ...

    def __eq__(self, arg: object, /) -> bool: ...

class KVCacheGroup:
    """Layers that share one block table. Immutable."""

    def __init__(self, spec: KVCacheSpec, layer_names: Sequence[str] = (), is_draft: bool = False) -> None:
        """is_draft: has layers of a speculative drafter (EAGLE, MTP)."""

    @property
    def spec(self) -> KVCacheSpec: ...

    @property
    def layer_names(self) -> list[str]: ...

    @property
    def is_draft(self) -> bool: ...

    def __eq__(self, arg: object, /) -> bool: ...

class NativeLayout:
    """Memory in chunks, each lent to one class of pages at a time."""

    def __init__(self, num_chunks: int, pages_per_chunk: Sequence[int], class_of_group: Sequence[int]) -> None: ...

    @property
    def num_chunks(self) -> int: ...

    @property
    def pages_per_chunk(self) -> list[int]:
        """Per class of pages."""

    @property
    def class_of_group(self) -> list[int]:
        """Per group."""

    def __eq__(self, arg: object, /) -> bool: ...

class KVCacheConfig:
    """A pool of blocks and the groups that share it. Immutable."""

    def __init__(self, num_blocks: int, groups: Sequence[KVCacheGroup], scheduler_block_size: int | None = None, hash_block_size: int | None = None, native: NativeLayout | None = None) -> None:
        """
        num_blocks: of the pool, the null block included. Block sizes, in tokens: by default derived from the groups.

        Raises InvalidArgumentError that names the field.
        """

    @property
    def num_blocks(self) -> int: ...

    @property
    def groups(self) -> list[KVCacheGroup]: ...

    @property
    def scheduler_block_size(self) -> int | None: ...

    @property
    def hash_block_size(self) -> int | None: ...

    @property
    def native(self) -> NativeLayout | None: ...

    @property
    def needs_zeroed_blocks(self) -> bool:
        """Whether a block's memory must be zeroed when a request gets it."""

    def __eq__(self, arg: object, /) -> bool: ...

class Semantics:
    """
    Whose rules a KV-cache manager follows.

    Semantics("vllm-0.33"), "vllm-0.25" or "vllm-0.33-exactly"; switches may then be set.
    """

    def __init__(self, name: str = 'vllm-0.33') -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def retention_interval(self) -> int | None:
        """Tokens; 0: the ends of prompts only; None: whatever some hit can use."""

    @retention_interval.setter
    def retention_interval(self, arg: int | None, /) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    @property
    def registers_unusable_tails(self) -> bool: ...

    @registers_unusable_tails.setter
    def registers_unusable_tails(self, arg: bool, /) -> None: ...

    @property
    def registers_earlier_states(self) -> bool: ...

    @registers_earlier_states.setter
    def registers_earlier_states(self, arg: bool, /) -> None: ...

    @property
    def trusts_hits(self) -> bool: ...

    @trusts_hits.setter
    def trusts_hits(self, arg: bool, /) -> None: ...

    @property
    def one_event_per_registration(self) -> bool: ...

    @one_event_per_registration.setter
    def one_event_per_registration(self, arg: bool, /) -> None: ...

class KVCacheManager:
    """
    What a scheduler calls: prefix look-up, slots, freeing, over all KV-cache groups of a model.

    Semantics are those of vLLM V1. One thread at a time; calls of more than 10 us release the interpreter lock, and another thread's call then raises ConcurrentUseError.
    """

    def __init__(self, config: KVCacheConfig, *, max_model_len: int, semantics: Semantics | str = 'vllm-0.33', max_in_flight_tokens: int | None = None, enable_caching: bool = True, use_eagle: bool = False, num_hash_lookahead_tokens: int = 0, prefill_lookahead_tokens: int = 0, enable_events: bool = False, log_stats: bool = True, watermark: float = 0.0, free_order: str = 'unhashed_first', eviction_policy: str = 'lru', hash_algorithm: str = 'sha256', hash_seed: str | None = None, compare_tokens_on_hit: bool = False, block_count_formula: str = 'exact', max_encoder_tokens: int | None = None, register_unreachable_blocks: bool = False, partial_hits: bool = False, decode_context_parallel: int = 1, prefill_context_parallel: int = 1, checkpoint_alignment: int = 1, lookup_history_blocks: int = 0, report_new_blocks: bool = False) -> None:
        """
        max_model_len: tokens of the longest sequence. semantics: whose rules, and switches of
        them.

        max_in_flight_tokens: most tokens scheduled but not settled, of all requests (default:
        max_model_len). use_eagle: draft groups drop the last matched block. num_hash_lookahead_tokens:
        tokens behind a block that its hash covers, 0 to 255. prefill_lookahead_tokens: that a drafter reads
        after a prefill's part. watermark: share of the pool, 0 to 1, that admissions leave free.
        free_order: "unhashed_first" or "append_all". eviction_policy: "lru" or another of docs/policies.md.
        hash_algorithm: "sha256", "xxh3_128" (faster, not for untrusted prompts), "sha256_cbor" or
        "xxhash_cbor"; hash_seed: equal in processes that exchange hashes. compare_tokens_on_hit: 4 bytes
        per token slot of the pool. lookup_history_blocks: removals that explain_lookup remembers, 96 bytes
        each. report_new_blocks: collect ids for take_new_block_ids. partial_hits: hits end inside blocks;
        run the block copies.

        Raises InvalidArgumentError that names the option, its value and the limit.
        """

    @staticmethod
    def from_config(text: str) -> KVCacheManager:
        """
        From a configuration file's text: JSON, or protobuf text format of the message KvCacheManagerConfig.

        Raises InvalidArgumentError with line, column and field.
        """

    def new_step_starts(self) -> None:
        """
        Call it before the first allocation of every step. It matters to models with Mamba layers.
        """

    def get_computed_blocks(self, request: Request, max_tokens: int | None = None) -> ComputedBlocks:
        """
        The longest cached prefix, at most num_tokens - 1 of the request and at most max_tokens. Pins nothing.

        Takes 2 ns per block. Raises InvalidArgumentError for a request without tokens.
        """

    def allocate_slots(self, request: Request, num_new_tokens: int, computed_blocks: ComputedBlocks | None = None, *, num_lookahead_tokens: int = 0, num_external_computed_tokens: int = 0, delay_cache_blocks: bool = False, num_encoder_tokens: int = 0, full_sequence_must_fit: bool = False, reserved_blocks: int = 0, has_scheduled_requests: bool = False) -> Blocks | None:
        """
        Slots for a request's next tokens: the blocks taken for them, or None if they do not
        fit now.

        num_new_tokens: to compute now, unverified drafts included. computed_blocks: the answer of
        get_computed_blocks, only for a request that holds no blocks. num_lookahead_tokens: further slots
        for drafting. num_external_computed_tokens: KV that an external store provides behind the hit.
        delay_cache_blocks: register nothing now, cache_blocks does later. full_sequence_must_fit: only if
        all known tokens fit. reserved_blocks: free blocks that must remain. has_scheduled_requests: the
        step has work already, so the watermark applies.

        Reads request.num_computed_tokens and num_inflight_tokens; the scheduler advances them.
        Raises InvalidArgumentError that names the argument, its value and the limit.
        """

    def free(self, request: Request) -> None:
        """
        Gives all blocks back; what is cached of them can still be hit. No-op without blocks.
        """

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """
        Takes the blocks from the request without freeing them: the tables of all groups in group order. Free the reversed list with free_blocks.
        """

    def free_blocks(self, block_ids: Int32Like) -> None:
        """
        Frees, in order, what pop_blocks_for_free, pin_blocks or take_block_copies kept.
        """

    def pin_blocks(self, block_ids: Int32Like) -> None:
        """
        Keeps blocks from reuse while something outside reads them, until free_blocks.
        """

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """
        Frees blocks that no token behind the first num_processed_tokens needs, as allocate_slots does by itself.
        """

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Registers what delay_cache_blocks held back, up to num_tokens."""

    def evict_blocks(self, block_ids: Int32Like) -> None:
        """Takes blocks out of the prefix cache; those in use stay in use."""

    def reset_prefix_cache(self) -> bool:
        """
        Forgets all cached content. False, and nothing changed, while a block is referenced.
        """

    def take_block_copies(self) -> list[tuple[int, int, int]]:
        """
        With partial_hits: the copies (group, source, target) to be made, in order, before the next step computes anything. Both blocks stay referenced until release_block_copies.
        """

    def release_block_copies(self, copies: list[tuple[int, int, int]]) -> None:
        """The copies have been made."""

    def take_new_block_ids(self) -> list[int]:
        """
        With report_new_blocks: the blocks that attention groups took since the last call.
        """

    def get_block_ids(self, request: Request) -> tuple[list[int], ...]:
        """
        Copies of the block tables of all groups, null blocks as 0. get_blocks copies nothing.
        """

    def get_block_ids_for_computed_tokens(self, request: Request, num_tokens: int) -> tuple[list[int], ...]:
        """The same, clipped to the blocks that cover num_tokens."""

    def get_unhashed_block_ids(self, request: Request) -> tuple[list[int], ...]:
        """Real blocks without a key, per group."""

    def get_num_common_prefix_blocks(self, request: Request) -> list[int]:
        """
        Leading blocks that all requests holding blocks share, per group; 0 for windowed groups.
        """

    def truncate_computed_blocks(self, computed_blocks: ComputedBlocks, num_tokens: int) -> ComputedBlocks:
        """The first num_tokens of a hit: a multiple of every group's block size."""

    def get_state_checkpoint(self, request: Request, group: int) -> tuple[int, int] | None:
        """
        Of a Mamba group with checkpoint blocks: (tokens, block) where the step must export the state, or None.
        """

    def holds_blocks(self, request: Request) -> bool: ...

    def check_invariants(self) -> None:
        """
        Raises InvariantError, in words, unless pool, tables and references agree. O(blocks).
        """

    @property
    def usage(self) -> float:
        """Referenced share of the pool, 0 to 1."""

    @property
    def num_blocks(self) -> int:
        """Of the pool, the null block included."""

    @property
    def num_free_blocks(self) -> int:
        """Unreferenced blocks, cached ones included."""

    @property
    def num_requests_holding_blocks(self) -> int: ...

    @property
    def num_groups(self) -> int: ...

    @property
    def max_model_len(self) -> int:
        """Tokens."""

    @property
    def enable_caching(self) -> bool: ...

    @property
    def config(self) -> KVCacheConfig: ...

    @property
    def scheduler_block_size(self) -> int:
        """Tokens."""

    @property
    def hash_block_size(self) -> int:
        """Tokens per block hash."""

    @property
    def hit_alignment(self) -> int:
        """Hits end at multiples of so many tokens."""

    def block_size(self, group: int) -> int:
        """Tokens that one entry of the group's block tables covers."""

    def new_request(self, id: str, token_ids: Int32Like, *, lora_name: str = '', lora_path: str = '', lora_id: int | None = None, cache_salt: str = '', features: Sequence[tuple[str, int, int]] = (), session_id: str | None = None, skip_reading_prefix_cache: bool = False, report_reused_blocks: bool = False) -> Request:
        """
        A request whose prompt is these tokens: a list, or any contiguous buffer of int32 or
        int64.

        Requests share blocks only if lora_name, lora_path, cache_salt and features are equal, too.
        features: (identifier, offset, length) of images and the like, in tokens, sorted. lora_id and
        session_id only appear in events. skip_reading_prefix_cache: look-ups give nothing.
        report_reused_blocks: look-ups with hits emit BlockStored; needs enable_events.

        Hashes the prompt, some 10 ns per token. Raises InvalidArgumentError that names what is wrong.
        """

    def new_request_from_hashes(self, id: str, num_tokens: int, hashes: Hashes, *, session_id: str | None = None, skip_reading_prefix_cache: bool = False) -> Request:
        """
        From block hashes of hash_block_size tokens that the caller computed: one for each full block, as bytes objects of at most 32 bytes, or 32 bytes each in one buffer.

        Raises InvalidArgumentError for a wrong number of hashes.
        """

    def get_blocks(self, request: Request, group: int = 0) -> BlockTable:
        """
        One group's block table, without a copy. Raises NotFoundError for no such group.
        """

    def allocate_decode(self, batch: DecodeBatch, num_new_tokens: int = 1, *, num_lookahead_tokens: int = 0, first: int = 0) -> int:
        """
        Slots for the next tokens of all requests of a batch, from row `first` on.

        The first row whose tokens do not fit, or len(batch): rows before it have their slots. Preempt one
        (free it and remove it from the batch) and go on with first=that row. Takes some 30 ns per row that
        stays inside its block. Raises InvalidArgumentError if a row's request has given its blocks
        back.
        """

    @property
    def pool(self) -> BlockPool: ...

    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int, explanation: LookupExplanation | None = None) -> None:
        """
        Counts an admission; with an explanation, also why the other tokens were missed.
        """

    def take_prefix_cache_stats(self) -> PrefixCacheStats:
        """The counters, which then start again from zero."""

    def explain_lookup(self, request: Request) -> LookupExplanation:
        """
        Where the tokens went that a look-up does not hit. Call it before allocate_slots. With lookup_history_blocks it tells evicted blocks from content never seen. O(tokens) probes.
        """

    def take_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """
        What changed in the prefix cache since the last call, in order; needs enable_events.
        """

class PrefixContent:
    """
    A prompt as prefix caches name it: a hash per block, of it and all before it.

    For routers, which ask an index for a prompt's blocks, and for a BlockPool without a manager. Hashes
    are equal to a manager's, or vLLM's, where algorithm, seed, block size and content are.
    """

    def __init__(self, token_ids: Int32Like, *, block_size: int = 16, hash_algorithm: str = 'sha256', hash_seed: str | None = None, num_lookahead_tokens: int = 0, lora_name: str = '', lora_path: str = '', cache_salt: str = '', features: Sequence[tuple[str, int, int]] = ()) -> None:
        """
        block_size: tokens per hash. The rest as KVCacheManager and new_request have it. Without a seed, hashes are those of this process (sha256_cbor: vLLM's).

        Some 10 ns per token. Raises InvalidArgumentError that names what is wrong.
        """

    @property
    def num_tokens(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens."""

    @property
    def num_hashes(self) -> int:
        """Full blocks."""

    @property
    def block_hashes(self) -> list[bytes]: ...

    def append_tokens(self, tokens: Int32Like) -> None:
        """More of the same sequence."""

class Request:
    """
    One sequence, made by KVCacheManager.new_request. The scheduler moves its counters; the manager keeps its block tables. Its blocks are freed when the last reference to it goes.
    """

    @property
    def id(self) -> str: ...

    @property
    def num_tokens(self) -> int:
        """Prompt and accepted output; drafts never count."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_computed_tokens(self) -> int:
        """
        Tokens computed or scheduled; the scheduler advances it. Checked by the next allocate_slots.
        """

    @num_computed_tokens.setter
    def num_computed_tokens(self, arg: int, /) -> None: ...

    @property
    def num_inflight_tokens(self) -> int:
        """The part of num_computed_tokens whose step has not been processed yet."""

    @num_inflight_tokens.setter
    def num_inflight_tokens(self, arg: int, /) -> None: ...

    @property
    def shared_prefix_boundary(self) -> int:
        """
        Tokens of a prefix that others share; blocks around it are kept where registration is sparse. 0: none.
        """

    @shared_prefix_boundary.setter
    def shared_prefix_boundary(self, arg: int, /) -> None: ...

    @property
    def status(self) -> str:
        """"waiting", "running", "preempted" or "finished"."""

    @status.setter
    def status(self, arg: str, /) -> None: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def num_hashes(self) -> int:
        """Blocks of hash_block_size tokens that have a hash."""

    def mark_preempted(self) -> None:
        """
        After KVCacheManager.free: computed tokens to 0, status preempted, one more preemption.
        """

    def append_tokens(self, tokens: int | Int32Like) -> None:
        """
        Accepted output, one token or several.

        Raises InvalidArgumentError for a request made from hashes.
        """

    def append_hashed_tokens(self, num_tokens: int, hashes: Hashes) -> None:
        """
        The same of a request made from hashes: exactly those of the blocks that the tokens complete.
        """

    def sync(self, *, num_tokens: int, block_hashes: Hashes, num_computed_tokens: int, num_inflight_tokens: int = 0) -> None:
        """
        For engines with requests of their own, made from hashes: takes over the tokens and hashes that came since, and the counters. block_hashes: all of the request's so far.

        Raises InvalidArgumentError if num_tokens shrinks or a hash is missing or too many.
        """

    def block_hash(self, index: int, block_size: int | None = None) -> bytes:
        """Hash of block `index` of block_size tokens (default: hash_block_size)."""

    @property
    def block_hashes(self) -> list[bytes]: ...

    def __repr__(self) -> str: ...

class Blocks:
    """
    The blocks that one allocate_slots took, per group: a value that stays as it is.
    """

    def __len__(self) -> int:
        """Groups."""

    def __getitem__(self, group: int, /) -> NDArray[numpy.int32]:
        """The ids of one group as a read-only array, without a copy."""

    def block_ids(self) -> tuple[list[int], ...]:
        """Per group a list of ids."""

    @property
    def num_blocks(self) -> int:
        """Over all groups."""

class ComputedBlocks:
    """
    The answer of a prefix look-up, for allocate_slots of the same request. Pins nothing: a list gone stale is refused.
    """

    def __init__(self, lists: Sequence[Sequence[int]] = (), num_tokens: int = 0) -> None:
        """
        Lists put together by the caller, one per group; allocate_slots checks every block of them.
        """

    def __len__(self) -> int:
        """Groups."""

    def __getitem__(self, group: int, /) -> NDArray[numpy.int32]:
        """The ids of one group as a read-only array, without a copy."""

    def block_ids(self) -> tuple[list[int], ...]:
        """Per group a list of ids."""

    @property
    def num_blocks(self) -> int:
        """Over all groups."""

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""

    @property
    def shared_prefix_boundary(self) -> int:
        """
        Tokens of a longer prefix that others share but a sparsely kept group lacks; 0: none.
        """

class BlockTable:
    """
    One group's block table of a request, without a copy; null blocks are 0.

    Follows the request while it grows. Once the request has given its blocks back, every use raises
    StaleBlockTableError. numpy.asarray(table) and memoryview(table) show the memory itself, read-only:
    they stay as the table was at that moment and readable for ever.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> int: ...

    def numpy(self) -> NDArray[numpy.int32]:
        """numpy.asarray(self)."""

    def __array__(self, dtype: Any | None = None, copy: bool | None = None) -> NDArray[Any]: ...

    def tolist(self) -> list[int]: ...

    @property
    def is_stale(self) -> bool: ...

    @property
    def request(self) -> Request: ...

    @property
    def group(self) -> int: ...

class DecodeBatch:
    """
    All running requests, for one call of allocate_decode per step.

    Row r is a request. block_tables(group) is one array of all their tables, which is live: the next
    call of the batch changes it in place. Removing a request moves the last row into its place.
    """

    def __init__(self, manager: KVCacheManager, max_requests: int) -> None:
        """Takes 4 bytes per block of max_model_len, request and group, at once."""

    def add(self, request: Request) -> int:
        """
        Appends a request that holds blocks; its row.

        Raises InvalidArgumentError for one without blocks or in the batch, ResourceExhaustedError at max_requests.
        """

    def remove(self, request: Request) -> None:
        """
        Takes a request out, before or after KVCacheManager.free; the last row takes its place.
        """

    def advance(self, token_ids: Int32Like) -> None:
        """
        The step has run: per row the tokens that allocate_decode made slots for are computed, and one sampled token is appended.
        """

    def block_tables(self, group: int = 0) -> NDArray[numpy.int32]:
        """
        Requests x blocks, read-only, without a copy; zeros behind the end of each table.
        """

    @property
    def new_blocks(self) -> NDArray[numpy.int32]:
        """What the latest allocate_decode took: rows of (row, group, block id)."""

    @property
    def requests(self) -> list[Request]:
        """By row."""

    def __len__(self) -> int: ...

class BlockInfo:
    """What the pool knows about one block, at that moment."""

    @property
    def block_id(self) -> int: ...

    @property
    def ref_count(self) -> int: ...

    @property
    def is_null(self) -> bool: ...

    @property
    def is_permanent(self) -> bool:
        """An attention sink's."""

    @property
    def cached_group(self) -> int | None:
        """Under which it is cached, or None."""

    @property
    def block_hash(self) -> bytes | None: ...

    def __repr__(self) -> str: ...

class BlockPool:
    """
    Blocks: who references them, which are free, which are cached.

    BlockPool(1000) is one by itself, for programs that keep block tables in Python. KVCacheManager.pool
    is the manager's, read-only: what would change it raises. One thread at a time.
    """

    def __init__(self, num_blocks: int, *, enable_caching: bool = True, enable_events: bool = False, free_order: str = 'unhashed_first', eviction_policy: str = 'lru') -> None:
        """
        num_blocks: the null block, which is block 0, included. The rest as KVCacheManager has it.

        Raises InvalidArgumentError that names the option, ResourceExhaustedError for more than memory holds.
        """

    def get_new_blocks(self, k: int) -> list[int] | None:
        """
        k blocks in the order of reuse, each with one reference and without a key; None, and nothing changed, if fewer are free.
        """

    def touch(self, block_ids: Int32Like) -> None:
        """
        One more reference to each: what a look-up found. Null blocks are skipped.
        """

    def free_blocks(self, block_ids: Int32Like, *, from_back: bool = False) -> None:
        """
        One reference less to each, in the order of their reuse: from_back for a block table, whose end goes first. Cached content stays until reuse. Null blocks are skipped.

        Raises InvalidArgumentError, and nothing has changed, for a block without so many references.
        """

    def take_permanent_blocks(self, k: int) -> list[int]:
        """
        For the life of the pool (attention sinks). Raises ResourceExhaustedError if they are not free.
        """

    def cache_full_blocks(self, block_ids: Int32Like, content: PrefixContent, *, first: int = 0, last: int | None = None, block_size: int | None = None, group: int = 0) -> None:
        """
        Registers positions first to last (default: all) of a block table that holds this content; null blocks are left out. block_size: tokens per block, by default the content's.

        Raises InvalidArgumentError for blocks without a reference, cached already or beyond the content.
        """

    def evict_blocks(self, block_ids: Int32Like) -> None:
        """Takes blocks out of the prefix cache; those in use stay in use."""

    def reset_prefix_cache(self) -> bool:
        """
        Forgets all cached content. False, and nothing changed, while a block is referenced.
        """

    def take_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """
        What changed in the prefix cache since the last call, in order; needs enable_events.
        """

    @property
    def num_blocks(self) -> int:
        """The null block included."""

    @property
    def num_free(self) -> int:
        """Unreferenced, cached ones included."""

    @property
    def num_live(self) -> int:
        """Referenced."""

    @property
    def num_permanent(self) -> int: ...

    @property
    def num_cached(self) -> int: ...

    @property
    def num_cached_unreferenced(self) -> int: ...

    @property
    def num_keys(self) -> int:
        """Distinct contents that are cached."""

    @property
    def num_evictions(self) -> int:
        """Cached blocks lost to reuse since the pool was made."""

    @property
    def usage(self) -> float:
        """0 to 1."""

    def __len__(self) -> int: ...

    def __getitem__(self, block_id: int) -> BlockInfo: ...

    def find_cached(self, block_hash: bytes, group: int = 0) -> int | None:
        """
        The earliest cached block of a group whose content has this hash, or None.
        """

    def free_list(self) -> list[int]:
        """Free blocks in the order of their reuse under lru. O(blocks)."""

    def check_invariants(self) -> None:
        """Raises InvariantError, in words. O(blocks)."""

class Absence:
    """Why one block of one group is not in the cache."""

    @property
    def reason(self) -> str: ...

    @property
    def num_blocks_since(self) -> int | None:
        """Blocks the pool has handed out since it was removed, or None."""

    def __repr__(self) -> str: ...

class MissedRun:
    """Consecutive tokens that were missed for one reason."""

    @property
    def reason(self) -> str: ...

    @property
    def meaning(self) -> str: ...

    @property
    def first_token(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def group(self) -> int | None:
        """The group that decided, or None."""

    @property
    def block(self) -> int | None:
        """Position in its block table, or None."""

    @property
    def absence(self) -> Absence | None: ...

    def __repr__(self) -> str: ...

class GroupReach:
    """What one group would hit if it were the only one."""

    @property
    def group(self) -> int: ...

    @property
    def kind(self) -> str: ...

    @property
    def num_hit_tokens(self) -> int: ...

    @property
    def stop_block(self) -> int | None:
        """The first block that a longer hit lacks, or None."""

    @property
    def absence(self) -> Absence | None: ...

class LookupExplanation:
    """
    How many tokens of a look-up were hit, and why each other was not. str() says it in a few lines.
    """

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_hit_tokens(self) -> int: ...

    @property
    def hit_alignment(self) -> int: ...

    @property
    def missed(self) -> list[MissedRun]: ...

    @property
    def groups(self) -> list[GroupReach]: ...

    @property
    def has_history(self) -> bool: ...

    @property
    def num_removals_remembered(self) -> int | None: ...

    @property
    def tokens_by_reason(self) -> dict[str, int]: ...

    def __str__(self) -> str: ...

class PrefixCacheStats:
    """Counts at admission since the last take_prefix_cache_stats, in tokens."""

    @property
    def requests(self) -> int:
        """First admissions."""

    @property
    def queries(self) -> int:
        """Tokens looked up."""

    @property
    def hits(self) -> int:
        """Tokens hit."""

    @property
    def preempted_requests(self) -> int:
        """Admissions after preemption."""

    @property
    def preempted_queries(self) -> int: ...

    @property
    def preempted_hits(self) -> int: ...

    @property
    def reset(self) -> bool:
        """The prefix cache was reset in between."""

    @property
    def missed(self) -> dict[str, int]:
        """
        Missed tokens by reason, of admissions that were recorded with an explanation.
        """

    @property
    def preempted_missed(self) -> dict[str, int]: ...

    def __repr__(self) -> str: ...

class BlockStored:
    """A run of consecutive blocks of one request entered the prefix cache."""

    def __init__(self, block_hashes: Iterable[bytes], *, block_size: int, parent_block_hash: bytes | None = None, token_ids: Int32Like = (), lora_id: int | None = None, lora_name: str = '', medium: str = 'GPU', extra_keys: Iterable[tuple[tuple[Any, ...], ...] | None] = (), group_idx: int = 0, kv_cache_spec_kind: str = '', kv_cache_spec_sliding_window: int | None = None, session_id: str | None = None, lookahead_token_ids: Sequence[Sequence[int]] | None = None, locality: str | None = None, ownership: str | None = None) -> None:
        """
        For engines with a cache of their own. Raises InvalidArgumentError for lists whose lengths do not fit together.
        """

    @property
    def block_hashes(self) -> list[bytes]: ...

    @property
    def parent_block_hash(self) -> bytes | None:
        """Of the content before the run; None at token 0."""

    @property
    def token_ids(self) -> list[int]:
        """block_size of them per hash; none for a request made from hashes."""

    @property
    def block_size(self) -> int:
        """Tokens."""

    @property
    def lora_id(self) -> int | None: ...

    @property
    def lora_name(self) -> str:
        """Empty: none."""

    @property
    def medium(self) -> str: ...

    @property
    def extra_keys(self) -> list[tuple[tuple[Any, ...], ...] | None]:
        """
        Per block (kind, value[, offset]) of what else makes its content, or None.
        """

    @property
    def group_idx(self) -> int: ...

    @property
    def kv_cache_spec_kind(self) -> str: ...

    @property
    def kv_cache_spec_sliding_window(self) -> int | None: ...

    @property
    def session_id(self) -> str | None:
        """Of the request that caused the event, or None."""

    @property
    def lookahead_token_ids(self) -> list[list[int]] | None:
        """Per hash the tokens behind the block that it covers, or None."""

    @property
    def locality(self) -> str | None:
        """Of secondary tiers, or None."""

    @property
    def ownership(self) -> str | None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class BlockRemoved:
    """One block lost one key."""

    def __init__(self, block_hash: bytes, *, medium: str = 'GPU', group_idx: int = 0, reason: str = 'reused', locality: str | None = None, ownership: str | None = None) -> None:
        """For engines with a cache of their own."""

    @property
    def block_hash(self) -> bytes: ...

    @property
    def medium(self) -> str: ...

    @property
    def group_idx(self) -> int: ...

    @property
    def reason(self) -> str:
        """"reused", "evicted" or "replaced"; "reused" of what came from a wire."""

    @property
    def locality(self) -> str | None:
        """Of secondary tiers, or None."""

    @property
    def ownership(self) -> str | None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class AllBlocksCleared:
    """The prefix cache was reset."""

    def __init__(self) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class EventBatch:
    """The events of one engine step, as they came from the wire."""

    @property
    def timestamp(self) -> float:
        """Seconds; engines send Unix time."""

    @property
    def events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """
        Objects made anew at each use; they share the batch's memory. A removal of several hashes is that many events.
        """

    @property
    def data_parallel_rank(self) -> int | None: ...

    @property
    def as_integers(self) -> bool:
        """
        Hashes travelled as integers: each is then 24 zero bytes and the 8 of its integer.
        """

    @property
    def num_unknown_extra_keys(self) -> int:
        """Of kinds that are not known; left out."""

    def __len__(self) -> int:
        """Events."""

    def __repr__(self) -> str: ...

def encode_events(events: Events, *, timestamp: float | None = None, data_parallel_rank: int | None = None, as_integers: bool = False, join_removals: bool = False) -> bytes:
    """
    The MessagePack bytes of a batch, as vLLM 0.33's publisher writes them.

    timestamp: Unix seconds, default now. as_integers: hashes as the integer of their last 8 bytes.
    join_removals: consecutive removals as one event. The reason of a removal does not travel.
    Some 15 ns per hash or token. Raises InvalidArgumentError for hashes of different lengths.
    """

def decode_events(payload: bytes | bytearray | memoryview) -> EventBatch:
    """
    The batch that these bytes are, from vLLM or us; safe for bytes from anywhere.

    Raises InvalidArgumentError that says at which event, field and byte it is none.
    """

class IndexHolder:
    """One cache of a BlockIndex, at that moment."""

    @property
    def name(self) -> str: ...

    @property
    def num_keys(self) -> int:
        """Distinct contents that it holds."""

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds."""

    @property
    def num_stored(self) -> int:
        """Since it was added; as all that follow."""

    @property
    def num_removed(self) -> int: ...

    @property
    def num_cleared(self) -> int: ...

    @property
    def num_unknown_removals(self) -> int:
        """Of what was not known to be stored: after a loss of messages."""

    @property
    def num_other_media(self) -> int:
        """Passed over."""

class BlockIndex:
    """
    Which cache holds which block, kept by KV events: what a router asks.

    A holder is a cache, numbered from 0. 40 to 70 bytes per block held; about 100 ns per event's hash.
    One thread at a time; long calls release the interpreter lock.
    """

    def __init__(self, *, medium: str = 'GPU') -> None:
        """Events of other media are passed over; "": all count."""

    def add_holder(self, name: str) -> int:
        """A cache that is empty; its number."""

    def apply(self, holder: int, events: Events) -> None:
        """
        What a cache said, in its order. Raises NotFoundError for no such holder.
        """

    def forget(self, holder: int) -> None:
        """
        Nothing is known of this cache any more: restarted, or messages lost. O(blocks).
        """

    def find_longest_prefix(self, hashes: PrefixContent | Hashes, group: int = 0) -> list[tuple[int, int]]:
        """
        (holder, leading blocks that it holds) of each holder of the first block, the longest first. For groups that need every block of a prefix, as full attention does.
        """

    def holders(self, block_hash: bytes, group: int = 0) -> list[tuple[int, int]]:
        """(holder, blocks with this content) of each that holds it."""

    def holder(self, holder: int) -> IndexHolder:
        """Name and counts of one. Raises NotFoundError."""

    @property
    def num_holders(self) -> int: ...

    @property
    def num_keys(self) -> int:
        """Distinct contents, over all holders."""

class StreamTotals:
    """What a StreamCheck counted of one stream, at that moment."""

    @property
    def num_batches(self) -> int: ...

    @property
    def num_events(self) -> int: ...

    @property
    def num_stored_events(self) -> int: ...

    @property
    def num_removed(self) -> int:
        """Hashes."""

    @property
    def num_cleared(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        """Token ids of stored events."""

    @property
    def num_other_media(self) -> int:
        """Events passed over."""

    @property
    def num_unknown_extra_keys(self) -> int: ...

    @property
    def num_stored(self) -> int:
        """Hashes; the sum of the four that follow."""

    @property
    def num_first_seen(self) -> int:
        """New to all caches: no cache could have hit."""

    @property
    def num_lost_before(self) -> int:
        """Held once, by no cache now: a larger one would have hit."""

    @property
    def num_held_elsewhere(self) -> int:
        """Another cache held it: another routing would have hit."""

    @property
    def num_held_here(self) -> int:
        """Stored twice: computed side by side, or reported as reused."""

    @property
    def num_unknown_removals(self) -> int:
        """A problem: of what was not stored."""

    @property
    def num_two_parents(self) -> int:
        """A problem: hashes behind two parents."""

    @property
    def num_unequal_lists(self) -> int:
        """A problem: lists of wrong length."""

    @property
    def num_problems(self) -> int:
        """Of all kinds; 0: a cache can have sent this."""

    @property
    def first_problem(self) -> str:
        """In words; empty: none."""

    @property
    def num_unknown_parents(self) -> int:
        """No problem: what precedes a masked block is never stored."""

    @property
    def num_removals_after_loss(self) -> int:
        """No problem: a lost batch may have stored it."""

    @property
    def num_times_backwards(self) -> int:
        """Batches with a time before the last one's."""

    @property
    def first_time(self) -> float:
        """Seconds since 1970, as the first batch says."""

    @property
    def last_time(self) -> float: ...

    def __repr__(self) -> str: ...

class StreamCheck:
    """
    Whether streams of KV events are ones that caches can have sent, and what they could hit.

    What `kvsim events` counts. Each stream is one cache's. 40 bytes per hash ever seen beside an index;
    about 150 ns per hash. One thread at a time; long calls release the interpreter lock.
    """

    def __init__(self, *, medium: str = 'GPU') -> None:
        """Events of other media are passed over; "": all count."""

    def add_stream(self, name: str) -> int:
        """A cache that is empty; its number."""

    def apply(self, stream: int, batch: EventBatch) -> None:
        """The stream's next batch. Raises NotFoundError for no such stream."""

    def on_loss(self, stream: int) -> None:
        """
        Batches are missing, from the first one on or from here on: removals of what is not known prove nothing then.
        """

    def on_restart(self, stream: int) -> None:
        """The cache restarted, and is empty."""

    def totals(self, stream: int) -> StreamTotals:
        """Raises NotFoundError for no such stream."""

    def holder(self, stream: int) -> IndexHolder:
        """What the cache holds now."""

    @property
    def num_ever_seen(self) -> int:
        """Distinct hashes and groups, over all streams."""

class EventPublisherStats:
    """Counts of a publisher, at that moment."""

    @property
    def num_batches(self) -> int:
        """Given to the socket."""

    @property
    def num_events(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Of payloads."""

    @property
    def num_dropped_batches(self) -> int:
        """The queue was full."""

    @property
    def num_dropped_events(self) -> int: ...

    @property
    def num_queued_batches(self) -> int:
        """Now."""

    @property
    def num_failed_sends(self) -> int: ...

    @property
    def num_replay_requests(self) -> int: ...

    @property
    def num_bad_requests(self) -> int: ...

    @property
    def num_replayed_batches(self) -> int: ...

    @property
    def num_subscribers(self) -> int:
        """Subscriptions, now."""

class EventPublisher:
    """
    Sends KV events to routers over ZeroMQ, as vLLM 0.33's publisher does.

    A thread of its own encodes and sends; publish hands the events over and returns. Use it in a with
    statement, or close it: both send what is queued. publish: one thread at a time; the rest from
    any.
    """

    def __init__(self, endpoint: str = 'tcp://*:5557', *, replay_endpoint: str = '', topic: str = '', data_parallel_rank: int = 0, buffer_batches: int = 10000, high_water_mark: int = 100000, queue_batches: int = 100000, when_full: str = 'drop', digest_size: int = 32, as_integers: bool = False, join_removals: bool = False, poll_interval: float = 0.001, linger: float = 1.0) -> None:
        """
        endpoint: bound if it has "*" or "::", or is ipc or inproc, else connected to; port 0:
        any free one.

        replay_endpoint: answers who missed batches, of the last buffer_batches; "": nobody.
        data_parallel_rank is added to ports. high_water_mark: messages that wait per subscriber. when_full,
        of the queue: "drop" and count, or "wait". digest_size: bytes of the hashes. poll_interval: seconds,
        0.001 to 1, that a batch waits at most. linger: seconds that close waits at most. docs/events.md has
        the wire.

        Raises InvalidArgumentError for options out of range, KVBlocksError for an endpoint that cannot be
        bound.
        """

    def publish(self, events: Events, timestamp: float | None = None) -> bool:
        """
        One batch, at Unix seconds `timestamp` or now; no events, no batch. Whether it was queued: False, and counted, if the queue is full.

        Raises InvalidArgumentError for hashes of another length than digest_size.
        """

    def publish_from(self, manager: KVCacheManager, timestamp: float | None = None) -> bool:
        """
        publish(manager.take_events()) without an object per event: for each step of a scheduler.
        """

    def flush(self, timeout: float = 1.0) -> bool:
        """
        Whether all that was queued before was given to the socket within so many seconds.
        """

    def close(self) -> None:
        """Sends what is queued, then closes the sockets. Again: no-op."""

    @property
    def endpoint(self) -> str:
        """As bound, with the port that the system chose."""

    @property
    def replay_endpoint(self) -> str: ...

    @property
    def stats(self) -> EventPublisherStats: ...

    def __enter__(self) -> EventPublisher: ...

    def __exit__(self, *args: object) -> None: ...

class EventSource:
    """Where events come from."""

    def __init__(self, endpoint: str, replay_endpoint: str = '', name: str = '') -> None:
        """
        endpoint: connected to; bound if it has "*", for publishers that connect. name: of the holder in the index, default the endpoint.
        """

    @property
    def endpoint(self) -> str: ...

    @property
    def replay_endpoint(self) -> str: ...

    @property
    def name(self) -> str: ...

class EventStream:
    """What came from one source under one topic, so far."""

    @property
    def source(self) -> str:
        """Its name."""

    @property
    def topic(self) -> str: ...

    @property
    def next_sequence(self) -> int: ...

    @property
    def num_batches(self) -> int: ...

    @property
    def num_replayed(self) -> int:
        """Of them."""

    @property
    def num_duplicates(self) -> int: ...

    @property
    def num_gaps(self) -> int: ...

    @property
    def num_lost(self) -> int:
        """Messages, those before the first one included."""

    @property
    def num_restarts(self) -> int: ...

    @property
    def num_undecodable(self) -> int: ...

class EventSubscriberStats:
    """Counts over all streams."""

    @property
    def num_malformed(self) -> int:
        """Not the frames of a message."""

    @property
    def num_replay_requests(self) -> int: ...

    @property
    def num_replay_timeouts(self) -> int: ...

    @property
    def num_streams_refused(self) -> int:
        """Messages of streams beyond max_streams."""

class Received:
    """A batch, a loss or a restart of one stream."""

    @property
    def kind(self) -> str:
        """
        "batch"; "loss": num_lost messages from `sequence` on will not come; "restart": the publisher counts from 0 again. After the latter two the index has forgotten the cache.
        """

    @property
    def stream(self) -> int:
        """Its number, also that of the holder in the index."""

    @property
    def sequence(self) -> int: ...

    @property
    def num_lost(self) -> int: ...

    @property
    def is_replayed(self) -> bool: ...

    @property
    def payload(self) -> bytes:
        """As it came."""

    @property
    def batch(self) -> EventBatch | None:
        """None of a loss or restart."""

    @property
    def error(self) -> str:
        """Of a loss: what is wrong with the payload, if that is the reason."""

    def __repr__(self) -> str: ...

class EventSubscriber:
    """
    Receives KV events of one or many publishers, vLLM's or ours, in order.

    Gaps are asked for again as far as the publisher still has them, and an index of all caches is kept.
    A stream is what comes from one source under one topic. All work is done inside receive; one thread
    at a time. Use it in a with statement, or close it.
    """

    def __init__(self, sources: Sequence[EventSource], *, topic: str = '', max_queue_bytes: int = 1073741824, max_message_bytes: int = 16777216, replay_timeout: float = 5.0, replay_at_start: bool = True, max_streams: int = 4096, keep_index: bool = True, medium: str = 'GPU') -> None:
        """
        topic: only topics that begin with it. max_queue_bytes: what may wait per source; each
        message counts as one of max_message_bytes. Further ones wait at the publisher. Who sends a longer
        one is disconnected.

        replay_timeout: seconds of silence after which a gap is given up as a loss. replay_at_start: ask for
        what is still buffered. medium: that the index keeps.

        Raises InvalidArgumentError for options out of range, KVBlocksError for an endpoint that cannot be
        had.
        """

    def receive(self, timeout: float | None = None) -> Received | None:
        """
        The next batch, loss or restart; None if there was none within `timeout` seconds (None: wait for ever). Lets go of the interpreter lock; Ctrl-C ends it.
        """

    def catch_up(self) -> None:
        """
        Asks every source for what came after the last message: a gap at the end of a stream does not show otherwise. receive gives the answers.
        """

    def close(self) -> None:
        """Again: no-op."""

    @property
    def streams(self) -> list[EventStream]:
        """By number."""

    @property
    def index(self) -> BlockIndex:
        """What the streams hold, to read; a stream's number is its holder's."""

    @property
    def stats(self) -> EventSubscriberStats: ...

    def endpoint(self, source: int = 0) -> str:
        """As bound or connected to."""

    def __iter__(self) -> EventSubscriber:
        """receive() without end."""

    def __next__(self) -> Received: ...

    def __enter__(self) -> EventSubscriber: ...

    def __exit__(self, *args: object) -> None: ...

def plan_json(options: str, hf_config: str | None = None) -> str:
    """kvb_plan_json of the C interface; kvblocks.make_plan calls it."""
