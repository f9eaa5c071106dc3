"""kvblocks.torch_ops: the operator alone and under torch.compile, against the operations."""

from __future__ import annotations

from typing import Any

import pytest

import kvblocks
from kvblocks import attention

torch = pytest.importorskip("torch", reason="kvblocks.torch_ops needs torch")
from kvblocks import torch_ops  # noqa: E402

HEADS, KV_HEADS, DIM, VALUE_DIM, BLOCKS = 4, 2, 16, 8, 12
TABLES = [[3, 7, 1], [5, 2, 9]]
STEPS = [([0, 0], [9, 5]), ([9, 5], [1, 4]), ([10, 9], [1, 1])]  # tokens before, new ones: prefill, mixed, decode


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two layers, the second with a window, that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.context = attention.ForwardContext()
        self.layers = torch.nn.ModuleList()
        self.caches = []
        for name, window in [("full", 0), ("windowed", 6)]:
            cache = [torch.zeros(BLOCKS, 4, KV_HEADS, dim) for dim in (DIM, VALUE_DIM)]
            self.context.add_layer(name, attention.KVCache(*cache), num_heads=HEADS, window=window)
            self.layers.append(torch_ops.UnifiedAttention(self.context, name, [HEADS, DIM]))
            self.caches.append(cache)
        self.weights = [torch.randn(32, heads * dim, generator=generator) / 6
                        for heads, dim in [(HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, VALUE_DIM)]]
        self.back = torch.randn(HEADS * VALUE_DIM, 32, generator=generator) / 6
        self.builder = attention.AttentionMetadataBuilder(
            [attention.KVGroup(BLOCKS, manager_block_size=4)], max_num_reqs=2, max_num_tokens=16, max_seq_len=12)

    def project(self, x: Any) -> Any:
        shapes = [(HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, VALUE_DIM)]
        return [(x @ weight).view(-1, *shape) for weight, shape in zip(self.weights, shapes)]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(*self.project(x)).flatten(1) @ self.back
        return x

    def steps(self, call: Any) -> list[Any]:
        generator, outputs = torch.Generator().manual_seed(2), []
        for computed, new in STEPS:
            self.builder.build(computed, new, [TABLES])
            self.context.set_metadata(self.builder.metadata())
            with torch_ops.forward_context(self.context):
                outputs.append(call(torch.randn(sum(new), 32, generator=generator)))
        return outputs

    def expected(self, x: Any) -> Any:
        """The same by the operations."""
        meta = self.builder.metadata()
        for (k_cache, v_cache), window_left in zip(self.caches, [-1, 5]):
            q, k, v = self.project(x)
            cache = attention.KVCache(k_cache, v_cache)
            attention.reshape_and_cache(k, v, meta.slot_mapping, cache)
            out = attention.paged_prefill(q, cache, meta.query_start_loc, meta.seq_lens, meta.block_table,
                                          window_left=window_left, out=torch.empty(len(q), HEADS, VALUE_DIM))
            x = x + out.flatten(1) @ self.back
        return x


def test_layers_by_name_are_the_operations() -> None:
    model, other = Model(), Model()
    for got, expected in zip(model.steps(model), other.steps(other.expected)):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.caches, other.caches, rtol=1e-6, atol=1e-6)
    assert model.caches[1][1].abs().sum() > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_models_store_and_attend(backend: str) -> None:
    """One graph for all steps, without a break at the operator."""
    model, other = Model(), Model()
    graphs = []

    def compile_graph(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(model, backend=compile_graph, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for got, expected in zip(model.steps(compiled), other.steps(other)):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1
    torch.testing.assert_close(model.caches, other.caches, rtol=1e-5, atol=1e-5)


def test_the_compiler_knows_what_changes() -> None:
    schema = torch.ops.kvblocks.unified_attention.default._schema
    assert [argument.name for argument in schema.arguments if argument.alias_info] == ["out"]
    assert schema.is_mutable and not schema.returns


def test_meta_tensors_need_no_step() -> None:
    q, k, v = (torch.empty(3, heads, dim, device="meta") for heads, dim in [(4, 16), (2, 16), (2, 8)])
    torch.ops.kvblocks.unified_attention(q, k, v, torch.empty(3, 4, 8, device="meta"), "full")


def test_an_output_of_another_shape_is_refused_when_compiled() -> None:
    model = Model()
    model.builder.build([0], [3], [TABLES[:1]])
    model.context.set_metadata(model.builder.metadata())
    q, k, v = (torch.empty(3, heads, dim, device="meta") for heads, dim in [(4, 16), (2, 16), (2, 8)])
    with torch_ops.forward_context(model.context):
        with pytest.raises(kvblocks.InvalidArgumentError, match=r"out of layer full is \[3, 4, 16\]; \[3, 4, 8\]"):
            torch.ops.kvblocks.unified_attention(q, k, v, torch.empty(3, 4, 16, device="meta"), "full")


def test_refusals() -> None:
    model = Model()
    x = torch.zeros(3, 32)
    with pytest.raises(kvblocks.InvalidArgumentError, match="no context for layer full; call the model within"):
        model(x)
    model.builder.build([0], [3], [TABLES[:1]])
    model.context.set_metadata(model.builder.metadata())
    q, k, v = model.project(x)
    with pytest.raises(kvblocks.NotFoundError, match="unified_attention: no layer other among 2"):
        model.context.unified_attention("other", q, k, v)
    with pytest.raises(kvblocks.InvalidArgumentError, match=r"unified_attention: .*\[3, 4, 15\]"):
        model.context.unified_attention("full", q[..., :15], k, v)
    with pytest.raises(kvblocks.KVBlocksError, match="full"):
        model.context.add_layer("full", attention.KVCache(*model.caches[0]), num_heads=HEADS)
    with pytest.raises(TypeError, match="set_metadata: an AttentionMetadata is expected, got <class 'int'>"):
        model.context.set_metadata({"full": 1})  # type: ignore[dict-item]
    assert model.caches[0][0].abs().sum() == 0
