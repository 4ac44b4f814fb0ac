"""LookupConfig: what is refused and how it says so, and what every option does to a draft."""

import dataclasses
import json
import math

import numpy as np
import pytest

from draftless import CostModel, LookupConfig, LookupDrafter

EVERYTHING_PAYS = {"price": 0, "max_draft": 4}


def draft_of(tokens, cost=None, **options):
    drafter = LookupDrafter(LookupConfig(**options), cost)
    drafter.begin(tokens)
    return drafter.draft(4096).tokens.tolist()


# -- ranges and types --------------------------------------------------------------------------------

OUT_OF_RANGE = {  # name: (options, what the message says)
    "window 0": ({"window": 0}, "window must be a whole number, at least 1, or None; found 0"),
    "window negative": ({"window": -5}, "window must be .* found -5"),
    "min_match 0": ({"min_match": 0}, "min_match must be a whole number, at least 1; found 0"),
    "max_match 0": ({"max_match": 0}, "max_match must be a whole number, at least 1, or None; found 0"),
    "max_draft negative": ({"max_draft": -1}, "max_draft must be .* at least 0 and at most 4096; found -1"),
    "max_draft large": ({"max_draft": 4097}, "max_draft must be .* at least 0 and at most 4096; found 4097"),
    "max_match below min_match": (
        {"min_match": 3, "max_match": 2},
        "max_match must be at least min_match, found max_match=2 and min_match=3; raise the one or lower",
    ),
    "price negative": ({"price": -0.5}, "price must be finite and at least 0, found -0.5; 1 is the default"),
    "price infinite": ({"price": math.inf}, "price must be finite .* found inf"),
    "price not a number": ({"price": math.nan}, "price must be finite .* found nan"),
}

WRONG_TYPE = {
    "window float": ({"window": 8.0}, r"window must be a whole number, .* or None; found 8\.0"),
    "window text": ({"window": "8"}, "window must be .* found '8'"),
    "window bool": ({"window": True}, "window must be .* found True"),
    "min_match none": ({"min_match": None}, "min_match must be a whole number, at least 1; found None"),
    "min_match bool": ({"min_match": True}, "min_match must be .* found True"),
    "max_match float": ({"max_match": 2.5}, r"max_match must be .* found 2\.5"),
    "max_draft none": ({"max_draft": None}, "max_draft must be .* found None"),
    "max_draft bool": ({"max_draft": False}, "max_draft must be .* found False"),
    "price text": ({"price": "1"}, "price must be a number, found '1'"),
    "price none": ({"price": None}, "price must be a number, found None"),
    "price bool": ({"price": True}, "price must be a number, found True"),
    "deterministic number": ({"deterministic": 1}, "deterministic must be True or False, found 1"),
    "deterministic none": ({"deterministic": None}, "deterministic must be True or False, found None"),
}

EDGES = [
    {"window": 1},
    {"window": None},
    {"min_match": 1},
    {"max_match": 1},
    {"max_match": None},
    {"min_match": 7, "max_match": 7},
    {"max_draft": 0},
    {"max_draft": 4096},
    {"price": 0},
    {"price": 2.5},
    {"deterministic": True},
]


@pytest.mark.parametrize(("options", "message"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LookupConfig(**options)


@pytest.mark.parametrize(("options", "message"), WRONG_TYPE.values(), ids=WRONG_TYPE)
def test_values_of_the_wrong_type_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        LookupConfig(**options)


@pytest.mark.parametrize("options", EDGES, ids=str)
def test_values_at_the_edge_are_taken_and_kept(options):
    kept = LookupConfig(**options).to_dict()
    assert {name: kept[name] for name in options} == options


def test_defaults():
    assert LookupConfig().to_dict() == {
        "window": None,
        "min_match": 1,
        "max_match": None,
        "max_draft": 64,
        "price": 1.0,
        "deterministic": False,
    }


# -- changing, writing down, reading back ------------------------------------------------------------


@pytest.mark.parametrize("options", EDGES, ids=str)
def test_dictionary_round_trip(options):
    config = LookupConfig(**options)
    assert LookupConfig.from_dict(config.to_dict()) == config
    assert LookupConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_missing_names_keep_their_defaults():
    assert LookupConfig.from_dict({"window": 9}) == LookupConfig(window=9)
    assert LookupConfig.from_dict({}) == LookupConfig()


def test_replace_changes_a_copy():
    config = LookupConfig(window=100)
    changed = config.replace(max_draft=3, window=None)
    assert (changed.window, changed.max_draft) == (None, 3)
    assert (config.window, config.max_draft) == (100, 64)


def test_replace_checks_values_and_pairs_of_values():
    with pytest.raises(ValueError, match="max_draft must be"):
        LookupConfig().replace(max_draft=-1)
    with pytest.raises(ValueError, match="max_match must be at least min_match"):
        LookupConfig(max_match=2).replace(min_match=3)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_drafts", "did you mean 'max_draft'"),
        ("maxmatch", "did you mean 'max_match'"),
        ("windows", "did you mean 'window'"),
        ("Price", "did you mean 'price'"),
        ("zzz", "known are window, min_match, max_match, max_draft, price, deterministic"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known(name, hint):
    with pytest.raises(ValueError, match=f"unknown option '{name}' for LookupConfig; {hint}"):
        LookupConfig.from_dict({name: 1})
    with pytest.raises(ValueError, match=f"unknown option '{name}' for LookupConfig; {hint}"):
        LookupConfig().replace(**{name: 1})


def test_a_configuration_is_frozen():
    config = LookupConfig()
    for name in config.to_dict():
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, name, 1)


def test_equal_configurations_have_one_hash():
    assert hash(LookupConfig(window=5)) == hash(LookupConfig().replace(window=5))
    assert len({LookupConfig(), LookupConfig(), LookupConfig(window=5)}) == 2


# -- what each option does ---------------------------------------------------------------------------


def test_window_hides_older_text():
    tokens = [1, 2, 3, 4, 9, 9, 8, 7, 1, 2]
    assert draft_of(tokens, **EVERYTHING_PAYS) == [3, 4, 9, 9]
    assert draft_of(tokens, window=len(tokens), **EVERYTHING_PAYS) == [3, 4, 9, 9]
    assert draft_of(tokens, window=5, **EVERYTHING_PAYS) == []


def test_min_match_refuses_shorter_matches():
    tokens = [1, 2, 3, 9, 1, 2, 3]
    for min_match, draft in [(1, [9, 1, 2, 3]), (3, [9, 1, 2, 3]), (4, [])]:
        assert draft_of(tokens, min_match=min_match, **EVERYTHING_PAYS) == draft


def test_max_match_lets_a_later_occurrence_win():
    tokens = [5, 1, 2, 9, 6, 1, 2, 8, 5, 1, 2]  # 5 1 2 was followed by 9, and later 1 2 by 8
    for max_match, first in [(None, 9), (3, 9), (2, 8), (1, 8)]:
        assert draft_of(tokens, max_match=max_match, **EVERYTHING_PAYS)[0] == first


@pytest.mark.parametrize("max_draft", [0, 1, 7, 64, 4096])
def test_max_draft_bounds_the_draft(max_draft):
    assert draft_of([1, 2] * 40, price=0, max_draft=max_draft) == ([1, 2] * 2048)[:max_draft]


def test_a_higher_price_drafts_less_and_no_price_all():
    cost = CostModel.fixed([1, 5, 17, 65], [1.0, 1.5, 8.0, 40.0])
    tokens = [*range(100), *range(50, 60)]
    lengths = [len(draft_of(tokens, cost, price=price)) for price in (0, 0.5, 1, 2, 8, 1000)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (64, 0)
    assert len(set(lengths)) >= 3


def test_price_zero_drafts_all_however_often_drafts_were_wrong():
    drafter = LookupDrafter(LookupConfig(price=0))
    drafter.begin([0, 1] * 4)
    for _ in range(1000):  # whatever the longest match proposes, something else is written
        drafter.commit([1 - int(drafter.index.continuation(1)[0])])
        assert len(drafter.draft(64)) == 64


def test_deterministic_does_not_draft_by_measured_seconds():
    tokens = list(range(30)) + list(range(25))
    cost = CostModel()
    drafters = {fixed: LookupDrafter(LookupConfig(deterministic=fixed), cost) for fixed in (False, True)}
    for drafter in drafters.values():
        drafter.begin(tokens)
    before = {fixed: len(drafter.draft(64)) for fixed, drafter in drafters.items()}
    for _ in range(40):  # wide forwards turn out to be very dear
        cost.observe(1, 0.01)
        for width in (2, 4, 16, 64):
            cost.observe(width, 0.01 * width**2)
    after = {fixed: len(drafter.draft(64)) for fixed, drafter in drafters.items()}
    assert before[False] == before[True] > 1
    assert after == {False: 0, True: before[True]}


def test_deterministic_is_blind_to_what_was_measured_before():
    cost = CostModel()
    for _ in range(40):
        cost.observe(1, 0.01)
        cost.observe(8, 1.0)
    assert draft_of([1, 2] * 30, cost, deterministic=True) == draft_of([1, 2] * 30, deterministic=True) != []
    assert draft_of([1, 2] * 30, cost) == []


def test_numpy_integers_are_refused_with_their_name():
    with pytest.raises(TypeError, match="window must be a whole number"):
        LookupConfig(window=np.int64(8))
