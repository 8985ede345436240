"""The one error tree of kvply.

Every error a user can meet derives from `KvplyError`; leaves also derive from the builtin they mean, so that
callers who know only Python catch them naturally.
"""


class KvplyError(Exception):
    """Base of everything kvply raises on purpose."""


class ConfigError(KvplyError, ValueError):
    """The user's configuration is malformed. The message names the key and what to write instead."""


class UnsupportedError(ConfigError):
    """A well-formed combination that kvply refuses. The message gives the reason and the remedy."""


class CapacityError(ConfigError):
    """The requested cache does not fit into the memory it was given. The message has the numbers."""


class LayoutError(KvplyError, ValueError):
    """Cache specs that do not have the shape kvply relies on."""


class ContractError(KvplyError, RuntimeError):
    """The installed vLLM lacks a symbol, signature or field kvply relies on."""


class AgreementError(KvplyError, RuntimeError):
    """Ranks of one group derived different plans from what should be the same inputs."""


class StepOrderError(KvplyError, RuntimeError):
    """Layers asked for their cache in an order that the plan does not allow. Always a defect, never load."""


class ExchangeError(KvplyError, RuntimeError):
    """Moving a layer's history between ranks failed. Fatal: the group can no longer agree."""


class PeerLostError(ExchangeError, ConnectionError):
    """A peer's process or connection went away."""


class ExchangeTimeoutError(ExchangeError, TimeoutError):
    """A peer did not do its part within the deadline."""
