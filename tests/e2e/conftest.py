"""The first test that looks at a pair of engines also runs them."""

import pytest

PAIR_OF_ENGINES_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/e2e/" in str(item.path) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PAIR_OF_ENGINES_TIMEOUT_S))
