"""Plans: the same from the same seed, and with everything in them."""

import itertools

import pytest
from soak import plan, run
from soak.setups import SETUPS

KINDS = tuple(SETUPS)


def test_a_seed_makes_one_plan():
    assert list(plan.legs(3, 60, KINDS)) == list(plan.legs(3, 60, KINDS))
    assert list(plan.legs(3, 60, KINDS)) != list(plan.legs(4, 60, KINDS))


@pytest.mark.parametrize("seed", range(50))
def test_what_is_in_an_hour(seed):
    legs = list(plan.legs(seed, 60, KINDS))
    assert [leg.seconds for leg in legs] == [900.0] * 4
    assert {leg.kind for leg in legs} == set(KINDS)
    assert {leg.disk for leg in legs} == {True, False}
    for leg in legs:
        for strike in leg.strikes:
            assert strike.daemon != plan.spared(strike.at_s)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_in_the_first_seconds(seed):
    """Each daemon struck in each way, and each kind of reset, while a leg of three minutes still has traffic."""
    leg = plan.leg(seed, "sliding", False, True, 180)
    early = [strike for strike in leg.strikes if strike.at_s < 70]
    assert {(s.daemon, s.signal) for s in early} == set(itertools.product(plan.DAEMONS, plan.SIGNALS))
    assert {reset.kind for reset in leg.resets if reset.at_s < 40} == set(plan.RESETS)
    assert [b.at_s - a.at_s for a, b in itertools.pairwise(leg.strikes)] == [plan.STRIKE_EVERY_S] * (len(leg.strikes) - 1)


def test_each_daemon_is_spared_for_as_long_as_it_takes_to_watch_it():
    assert [plan.spared(at) for at in (0, 199, 200, 399, 400, 600, 799, 800)] == [
        *(None, None),
        *(plan.DAEMONS[0],) * 2,
        None,
        *(plan.DAEMONS[1],) * 2,
        None,
    ]


@pytest.mark.parametrize("minutes", [15, 20, 29.9, 30, 59, 60, 24 * 60])
def test_a_long_soaks_legs_are_long_enough_to_judge_daemons(minutes):
    """With two minutes for the engine to start and to give its references."""
    for leg in plan.legs(3, minutes, KINDS):
        assert leg.seconds >= run.DAEMONS_JUDGED_S
        watched = range(int(leg.seconds - run.RESERVE_S - 120))
        for daemon in plan.DAEMONS:
            assert sum(plan.spared(at) == daemon for at in watched) >= 160
