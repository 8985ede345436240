import pytest

from kvply.errors import LayoutError
from kvply.layout.bundle import Bundle, Component

MAIN, INDEXER, SCALES = Component("main", 4096), Component("indexer", 512), Component("scales", 64)


@pytest.mark.parametrize("page_bytes", [0, -16, 8, 24, 4100])
def test_page_that_would_misalign_the_next_component_is_refused(page_bytes: int) -> None:
    with pytest.raises(LayoutError, match=rf"layers\.3\.attn.*{page_bytes} bytes.*--block-size"):
        Component("layers.3.attn", page_bytes)


@pytest.mark.parametrize("page_bytes", [16, 48, 147_456])
def test_aligned_page_is_accepted(page_bytes: int) -> None:
    assert Component("layers.3.attn", page_bytes).page_bytes == page_bytes


def test_bundle_without_components_is_refused() -> None:
    with pytest.raises(LayoutError, match="layer 3"):
        Bundle.of(3, [])


def test_components_are_ordered_by_falling_page_size() -> None:
    assert Bundle.of(0, [SCALES, MAIN, INDEXER]).components == (MAIN, INDEXER, SCALES)


def test_equal_pages_are_ordered_by_name() -> None:
    first, second = Component("a", 512), Component("b", 512)
    assert Bundle.of(0, [second, first]) == Bundle.of(0, [first, second])


def test_bundle_adds_up_its_components() -> None:
    bundle = Bundle.of(0, [MAIN, INDEXER, SCALES])
    assert bundle.pages == (4096, 512, 64)
    assert bundle.bytes_per_block == 4672
    assert bundle.size_bytes(10) == 46_720


def test_each_component_holds_all_blocks_before_the_next_begins() -> None:
    bundle = Bundle.of(0, [MAIN, INDEXER, SCALES])
    assert bundle.component_offsets_bytes(10) == (0, 40_960, 46_080)
    assert bundle.component_offsets_bytes(0) == (0, 0, 0)
