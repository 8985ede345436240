from dataclasses import fields

from kvply.observe.metrics import RankCounters, StepCounters


def test_adding_adds_every_counter() -> None:
    names = [field.name for field in fields(StepCounters)]
    one = StepCounters(**{name: 2**i for i, name in enumerate(names)})
    ten = StepCounters(**{name: 10 * 2**i for i, name in enumerate(names)})
    one.add(ten)
    assert one.as_dict() == {name: 11 * 2**i for i, name in enumerate(names)}
    assert ten.steps == 10


def test_closing_a_step_makes_it_the_last_and_adds_it_to_the_total() -> None:
    counters = RankCounters()
    first, second = StepCounters(steps=1, bytes_sent=10), StepCounters(steps=1, bytes_sent=5)
    counters.close_step(first)
    counters.close_step(second)
    assert counters.last_step == second
    assert counters.total == StepCounters(steps=2, bytes_sent=15)


def test_total_does_not_alias_the_first_step() -> None:
    counters, first = RankCounters(), StepCounters(steps=1)
    counters.close_step(first)
    counters.close_step(StepCounters(steps=1))
    assert first.steps == 1
