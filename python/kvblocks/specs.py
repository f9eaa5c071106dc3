"""What layers store: one function per kind of attention.

Sizes are in tokens, heads and elements per worker; ``dtype`` is the storage type: ``"bf16"``, ``"fp16"``,
``"fp32"``, ``"uint8"``, ``"int8"``, ``"fp8_e4m3"`` or ``"fp8_e5m2"``. All raise ``InvalidArgumentError``,
which names the field, its value and the limit.
"""

from collections.abc import Sequence

from kvblocks._core import KVCacheSpec

__all__ = [
    "ChunkedLocalAttentionSpec", "CrossAttentionSpec", "EncoderOnlyAttentionSpec", "FullAttentionSpec",
    "HiddenStateSpec", "MambaSpec", "MlaAttentionSpec", "RingSpec", "SinkFullAttentionSpec",
    "SlidingWindowMlaSpec", "SlidingWindowSpec",
]


def _make(kind: str, fields: dict[str, object]) -> KVCacheSpec:
    return KVCacheSpec.create(kind, **{name: value for name, value in fields.items() if value is not None})


def FullAttentionSpec(*, block_size: int, num_kv_heads: int, head_size: int, head_size_v: int | None = None,
                      dtype: str = "bf16", quant_mode: str = "none", sliding_window: int | None = None,
                      attention_chunk_size: int | None = None, output_window: int | None = None,
                      page_size_padded: int | None = None, indexes_kv_by_block_stride: bool = False,
                      non_causal: bool = False) -> KVCacheSpec:
    """Every token sees all before it.

    sliding_window, attention_chunk_size: labels only; every token is kept. output_window: tokens of the
    output that are kept (default: all). page_size_padded: bytes.
    """
    return _make("full_attention", locals())


def MlaAttentionSpec(*, block_size: int, head_size: int, dtype: str = "bf16", quant_mode: str = "none",
                     compress_ratio: int = 1, model_version: str = "none", alignment: int | None = None,
                     page_size_padded: int | None = None, indexes_kv_by_block_stride: bool = False,
                     non_causal: bool = False, is_draft: bool = False,
                     output_window: int | None = None) -> KVCacheSpec:
    """Multi-head latent attention: one vector of head_size elements per token.

    compress_ratio: tokens per stored row. model_version: "none", "deepseek_v3_2" or "deepseek_v4".
    alignment, page_size_padded: bytes.
    """
    return _make("mla_attention", locals())


def SinkFullAttentionSpec(*, block_size: int, num_kv_heads: int, head_size: int, sink_length: int,
                          head_size_v: int | None = None, dtype: str = "bf16", quant_mode: str = "none",
                          sliding_window: int | None = None, attention_chunk_size: int | None = None,
                          page_size_padded: int | None = None, indexes_kv_by_block_stride: bool = False,
                          non_causal: bool = False) -> KVCacheSpec:
    """Full attention whose first sink_length rows (a multiple of block_size) are learned and shared."""
    return _make("sink_full_attention", locals())


def SlidingWindowSpec(*, block_size: int, num_kv_heads: int, head_size: int, sliding_window: int,
                      head_size_v: int | None = None, dtype: str = "bf16", quant_mode: str = "none",
                      page_size_padded: int | None = None, indexes_kv_by_block_stride: bool = False,
                      upstream_compatible_page_bytes: bool = False, extra_retained_tokens: int = 0) -> KVCacheSpec:
    """Query i sees tokens [i - sliding_window + 1, i]. extra_retained_tokens: kept below them for a drafter."""
    return _make("sliding_window", locals())


def SlidingWindowMlaSpec(*, block_size: int, head_size: int, sliding_window: int, dtype: str = "bf16",
                         quant_mode: str = "none", compress_ratio: int = 1, model_version: str = "none",
                         alignment: int | None = None, page_size_padded: int | None = None,
                         indexes_kv_by_block_stride: bool = False, bounded_replay: bool = False,
                         upstream_compatible_page_bytes: bool = False, extra_retained_tokens: int = 0) -> KVCacheSpec:
    """Latent attention over a window. bounded_replay: the window is computed again after a hit."""
    return _make("sliding_window_mla", locals())


def ChunkedLocalAttentionSpec(*, block_size: int, num_kv_heads: int, head_size: int,
                              attention_chunk_size: int, dtype: str = "bf16", quant_mode: str = "none",
                              page_size_padded: int | None = None,
                              indexes_kv_by_block_stride: bool = False) -> KVCacheSpec:
    """Query i sees its own chunk of attention_chunk_size tokens up to i."""
    return _make("chunked_local_attention", locals())


def MambaSpec(*, block_size: int, states: Sequence[tuple[Sequence[int], str]], cache_mode: str = "none",
              num_speculative_blocks: int = 0, num_checkpoint_blocks: int = 0,
              page_size_padded: int | None = None) -> KVCacheSpec:
    """State-space layers: one page holds one state.

    states: (shape, dtype) of each tensor. cache_mode: "none", "align" (states where a step ends at a
    block's end are kept) or "all". num_speculative_blocks, num_checkpoint_blocks: further states that a
    request holds.
    """
    return _make("mamba", locals())


def CrossAttentionSpec(*, block_size: int, num_kv_heads: int, head_size: int, head_size_v: int | None = None,
                       dtype: str = "bf16", quant_mode: str = "none", page_size_padded: int | None = None,
                       indexes_kv_by_block_stride: bool = False) -> KVCacheSpec:
    """The decoder's view of the encoder's tokens."""
    return _make("cross_attention", locals())


def EncoderOnlyAttentionSpec(*, block_size: int, num_kv_heads: int, head_size: int,
                             head_size_v: int | None = None, dtype: str = "bf16", quant_mode: str = "none",
                             page_size_padded: int | None = None,
                             indexes_kv_by_block_stride: bool = False) -> KVCacheSpec:
    """The encoder's view of itself: stores nothing between steps, so no group of a pool has it."""
    return _make("encoder_only_attention", locals())


def HiddenStateSpec(*, block_size: int, head_size: int, dtype: str = "bf16",
                    page_size_padded: int | None = None) -> KVCacheSpec:
    """Hidden states of some layers, kept for training a drafter on them."""
    return _make("hidden_state", locals())


def RingSpec(*, block_size: int, head_size: int, dtype: str = "bf16", alignment: int | None = None,
             page_size_padded: int | None = None) -> KVCacheSpec:
    """A circular buffer of block_size rows: one block per request, never reused as a prefix."""
    return _make("ring", locals())
