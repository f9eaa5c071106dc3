"""torch.ops.kvblocks.unified_attention: a layer's attention as one operator, which torch.compile leaves whole.

    from kvblocks import attention, torch_ops

    context = attention.ForwardContext()
    context.add_layer("layers.0", attention.KVCache(k_cache, v_cache), num_heads=8, window=128)
    attend = torch_ops.UnifiedAttention(context, "layers.0", [8, 64])   # a module; heads and head size of q
    ...
    context.set_metadata(builder.metadata())                            # each step
    with torch_ops.forward_context(context):
        compiled_model(tokens)                                          # which calls attend(q, k, v)

Importing this module needs torch and defines the operator:

    unified_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out, str layer) -> ()

It stores k and v and writes out, as ForwardContext.unified_attention does with the layer of that name. There is no
autograd. The cache is no argument but the context's own: a compiler might copy an argument that changes, all of it,
and would not capture the graph. So no other operator of a compiled graph may read or write the cache; layers that
share one are kept in order by the hidden states that go from one to the next. On CUDA give forward_context the
stream's workspace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kvblocks._attention import ForwardContext, ThreadPool, Workspace, unified_attention_mutates
from kvblocks.errors import InvalidArgumentError

# The step that runs: its context and the options of its calls. Operators of a graph have no other way to reach it.
_step: tuple[ForwardContext, dict[str, Any]] | None = None


@contextlib.contextmanager
def forward_context(context: ForwardContext, *, workspace: Workspace | None = None,
                    threads: ThreadPool | None = None) -> Iterator[None]:
    """Within it, the operator finds layers in this context. One step at a time in a process."""
    global _step
    before, _step = _step, (context, {"workspace": workspace, "threads": threads})
    try:
        yield
    finally:
        _step = before


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, layer: str) -> None:
    if _step is None:
        raise InvalidArgumentError(f"unified_attention: no context for layer {layer}; call the model within "
                                   f"torch_ops.forward_context")
    context, options = _step
    context.unified_attention(layer, q, k, v, out, **options)


def _check_shape(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, layer: str) -> None:
    """The meta function: nothing is computed. The number of tokens may be a symbol, of which nothing is asked."""
    if _step is not None:
        expected = [q.shape[0], *_step[0].output_shape(layer, [1, *q.shape[1:]])[1:]]
        if list(out.shape) != expected:
            raise InvalidArgumentError(f"unified_attention: out of layer {layer} is {list(out.shape)}; {expected}")


def _schema() -> str:
    types = {name: "Tensor(a!)" if name in unified_attention_mutates else "Tensor" for name in ("q", "k", "v", "out")}
    return f"unified_attention({', '.join(f'{of} {name}' for name, of in types.items())}, str layer) -> ()"


_library = torch.library.Library("kvblocks", "FRAGMENT")
_library.define(_schema())
for _key in ("CPU", "CUDA"):
    _library.impl("unified_attention", _run, _key)
torch.library.register_fake("kvblocks::unified_attention", _check_shape, lib=_library)


class UnifiedAttention(torch.nn.Module):  # type: ignore[misc]  # torch may be missing
    """The operator as a module of a model, with a new tensor for each output."""

    def __init__(self, context: ForwardContext, layer: str, q_shape: Sequence[int]) -> None:
        """q_shape: of a token's queries, [H, D] or [H * D]."""
        super().__init__()
        self.layer = layer
        self.out_shape = context.output_shape(layer, [1, *q_shape])[1:]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, *q_shape]; k and v of Hkv heads alike."""
        out = q.new_empty(q.shape[0], *self.out_shape)
        torch.ops.kvblocks.unified_attention(q, k, v, out, self.layer)
        return out
