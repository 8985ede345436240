"""Hypothesis strategies for bundles, plans and step histories."""

from hypothesis import strategies as st

from kvply.kvpp.history import StepHistory
from kvply.kvpp.plan import StagePlan
from kvply.layout.bundle import Bundle
from support.plans import make_bundle, make_history, make_plan, runs_of

# Pages on both sides of the gap that payloads fill.
PAGES = st.lists(st.sampled_from((16, 48, 4096, 16_384, 32_768, 32_784, 147_456)), min_size=1, max_size=4)


def bundles() -> st.SearchStrategy[Bundle]:
    return PAGES.map(lambda pages: make_bundle(0, *pages))


def plans() -> st.SearchStrategy[StagePlan]:
    return st.builds(
        make_plan,
        group_size=st.integers(1, 9),
        target_pages=st.lists(PAGES, min_size=1, max_size=8),
        local_pages=st.lists(PAGES, max_size=2),
    )


def histories(num_blocks: int) -> st.SearchStrategy[StepHistory]:
    """Steps in which at least one of `num_blocks` blocks holds history: in a few runs or in very many."""
    some = st.sets(st.integers(0, num_blocks - 1), min_size=1, max_size=20)
    stretch = st.builds(
        lambda ends, stride: set(range(min(ends), max(ends), stride)),
        st.tuples(st.integers(0, num_blocks - 1), st.integers(0, num_blocks)),
        st.integers(1, 4),
    )
    return st.builds(lambda ids, more: make_history(*runs_of(ids | more)), some, stretch)
