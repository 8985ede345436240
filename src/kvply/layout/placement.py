"""Which rank of a group owns which target layer."""


def contiguous_owners(num_layers: int, num_ranks: int) -> tuple[int, ...]:
    """Owner rank of each ordinal: contiguous, count-balanced partitions in rank order.

    The remainder goes to the first ranks; ranks beyond the last layer own nothing. (Rule of the KVPP design
    document, section 2.1; the remainder-first reading reproduces the published capacities.)
    """
    if num_layers < 0 or num_ranks < 1:
        raise ValueError(f"cannot place {num_layers} layers on {num_ranks} ranks")
    share, remainder = divmod(num_layers, num_ranks)
    owners: list[int] = []
    for rank in range(num_ranks):
        owners.extend([rank] * (share + (rank < remainder)))
    return tuple(owners)
