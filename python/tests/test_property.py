"""The manager against the naive one: every answer equal over random sequences of calls."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvblocks
from conftest import full_spec, make_manager
from naive import NaiveManager, NaiveRequest

BLOCK = 4

actions = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.lists(st.integers(0, 1), min_size=1, max_size=40)),
        st.tuples(st.just("step"), st.integers(0, 5), st.integers(1, 20)),
        st.tuples(st.just("free"), st.integers(0, 5)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=actions, num_blocks=st.integers(2, 30))
def test_all_answers_are_those_of_the_naive_manager(actions: list[tuple[object, ...]], num_blocks: int) -> None:
    manager = make_manager(full_spec(BLOCK), num_blocks=num_blocks, max_model_len=1 << 20)
    naive = NaiveManager(num_blocks, BLOCK)
    requests: list[tuple[kvblocks.Request, NaiveRequest]] = []
    for action in actions:
        if action[0] == "new":
            tokens = action[1]
            assert isinstance(tokens, list)
            requests.append((manager.new_request(str(len(requests)), tokens), NaiveRequest(tokens)))
            continue
        if not requests:
            continue
        assert isinstance(action[1], int)
        request, expected = requests[action[1] % len(requests)]
        if action[0] == "free":
            manager.free(request)
            naive.free(expected)
            request.num_computed_tokens = 0
        else:
            assert isinstance(action[2], int)
            step(manager, naive, request, expected, action[2])
        assert manager.get_block_ids(request)[0] == expected.table
        assert manager.num_free_blocks == len(naive.queue)
    assert manager.pool.free_list() == naive.queue
    manager.check_invariants()


def step(manager: kvblocks.KVCacheManager, naive: NaiveManager, request: kvblocks.Request, expected: NaiveRequest,
         most: int) -> None:
    hits, naive_hits = None, []
    if not expected.table:
        hits = manager.get_computed_blocks(request)
        naive_hits = naive.lookup(expected)
        assert hits.block_ids() == (naive_hits,)
    computed = expected.num_computed + len(naive_hits) * BLOCK
    if computed == len(expected.tokens):
        request.append_tokens(most % 2)
        expected.tokens.append(most % 2)
    num_new = min(most, len(expected.tokens) - computed)
    blocks = manager.allocate_slots(request, num_new, hits)
    naive_blocks = naive.allocate(expected, num_new, naive_hits)
    assert (None if blocks is None else blocks.block_ids()[0]) == naive_blocks
    if naive_blocks is not None:
        expected.num_computed = request.num_computed_tokens = computed + num_new
