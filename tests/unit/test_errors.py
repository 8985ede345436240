import pytest

from kvply import errors

BUILTIN_OF = {
    "ConfigError": ValueError,
    "UnsupportedError": ValueError,
    "CapacityError": ValueError,
    "LayoutError": ValueError,
    "ContractError": RuntimeError,
    "AgreementError": RuntimeError,
    "StepOrderError": RuntimeError,
    "ExchangeError": RuntimeError,
    "PeerLostError": ConnectionError,
    "ExchangeTimeoutError": TimeoutError,
}


@pytest.mark.parametrize(("name", "builtin"), BUILTIN_OF.items())
def test_leaf_is_a_kvply_error_and_the_builtin_it_means(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), errors.KvplyError)
    assert issubclass(getattr(errors, name), builtin)


def test_exchange_failures_are_caught_as_one() -> None:
    assert issubclass(errors.PeerLostError, errors.ExchangeError)
    assert issubclass(errors.ExchangeTimeoutError, errors.ExchangeError)
