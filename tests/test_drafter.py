"""LookupDrafter: of all lengths the one that pays, learned as it goes."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftless import CostModel, Draft, LookupConfig, LookupDrafter

texts = st.lists(st.integers(0, 3), max_size=40)
priced = st.builds(
    LookupConfig,
    price=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    max_draft=st.integers(0, 20),
    min_match=st.integers(1, 3),
    window=st.none() | st.integers(1, 30),
)
curves = st.lists(st.integers(0, 8), min_size=20, max_size=20).map(
    lambda slopes: CostModel.fixed(range(1, 22), [1 + sum(slopes[:i]) / 16 for i in range(21)])
)
FADE = 0.9  # of tokens and time, by forward: see drafter.py
NOVEL = np.random.default_rng(0).integers(0, 50, 600).tolist()  # ids repeat, their order does not


def examples(n):
    """`n` examples, the same in every run."""
    return settings(max_examples=n, deadline=None, derandomize=True)


def columns(draft):
    return [array.tolist() for array in (draft.tokens, draft.parents, draft.probabilities, draft.sources)]


def write(drafter, prompt, text, budget=64):
    """Let a target write `text` after `prompt`; yield (history, draft, accepted) for every forward."""
    history = list(prompt)
    drafter.begin(prompt)
    while len(history) < len(prompt) + len(text):
        rest = text[len(history) - len(prompt) :]
        draft = drafter.draft(min(budget, len(rest)))
        accepted = 0
        while accepted < len(draft) and draft.tokens[accepted] == rest[accepted]:
            accepted += 1
        yield list(history), draft, accepted
        if len(draft):
            drafter.learn(draft, range(accepted))
        drafter.commit(rest[: accepted + 1])
        history += rest[: accepted + 1]


def all_of(history, config):
    """The probabilities of everything that may be drafted, as a fresh drafter without a price gives them."""
    drafter = LookupDrafter(config.replace(price=0))
    drafter.begin(history)
    return drafter.draft(4096).probabilities.tolist()


# -- the price ---------------------------------------------------------------------------------------


@examples(120)
@given(texts, priced, curves, st.integers(0, 24))
def test_the_length_is_worth_as_much_as_the_best_of_an_exhaustive_search(tokens, config, cost, budget):
    drafter = LookupDrafter(config, cost)
    drafter.begin(tokens)
    draft = drafter.draft(budget)
    most = min(budget, config.max_draft)
    path, curve = all_of(tokens, config)[:most], cost.curve(most + 1).tolist()
    best = naive.best_length(path, curve, config.price)
    worth = [naive.worth(path, curve, config.price, k) for k in range(len(path) + 1)]
    assert len(draft) <= most
    assert worth[len(draft)] == pytest.approx(worth[best], abs=1e-5)
    if all(worth[best] - other > 1e-5 for k, other in enumerate(worth) if k != best):
        assert len(draft) == best
    assert draft.tokens.tolist() == naive.continuation(tokens, len(draft), config.window)
    assert draft.sources.tolist() == naive.sources(tokens, len(draft), config.window)


def test_the_rate_is_that_of_the_latest_forwards():
    # With a curve as steep as this a draft pays only while few tokens come out of a forward.
    cost, config = CostModel.fixed([1, 3], [1.0, 2.1]), LookupConfig(max_draft=12)
    drafter = LookupDrafter(config, cost)
    curve = cost.curve(13).tolist()
    rates, tokens, time = [], 1 / (1 - FADE), 1 / (1 - FADE)
    for history, draft, accepted in write(drafter, [1, 2, 3], [4, 1, 2, 3, 4, 9, 1, 2, 3, 4, 9] * 4):
        everything = LookupDrafter(config.replace(price=0), cost)
        everything.begin(history)
        everything._hits, everything._tries, everything._luck = drafter._hits, drafter._tries, drafter._luck
        path = everything.draft(64).probabilities.tolist()
        rates.append(tokens / time)
        if len(history) < 36:  # nearer to the end the budget is smaller
            assert len(draft) == naive.best_length(path, curve, rates[-1])
        tokens = FADE * tokens + 1 + accepted
        time = FADE * time + curve[len(draft)]
    assert min(rates) < 1.0 < max(rates)


def test_a_steep_curve_drafts_nothing_and_a_flat_one_everything():
    for seconds, n in [([1.0, 20.0], 0), ([1.0, 1.0], 64)]:
        drafter = LookupDrafter(cost=CostModel.fixed([1, 2], seconds))
        drafter.begin([1, 2, 3, 4, 1, 2, 3])
        assert len(drafter.draft(64)) == n


@pytest.mark.parametrize("budget", [-1, 0, 1, 2, 5])
def test_a_draft_never_exceeds_its_budget(budget):
    drafter = LookupDrafter(LookupConfig(price=0))
    drafter.begin([7] * 9)
    assert drafter.draft(budget).tokens.tolist() == [7] * max(budget, 0)


def test_no_history_no_draft():
    drafter = LookupDrafter(LookupConfig(price=0))
    assert len(drafter.draft(8)) == 0
    drafter.begin([])
    assert len(drafter.draft(8)) == 0
    drafter.commit([3, 3])
    assert drafter.draft(2).tokens.tolist() == [3, 3]


# -- learning ----------------------------------------------------------------------------------------


def test_drafts_shrink_to_nothing_on_novel_text_and_come_back_when_it_repeats():
    lengths = {}
    for history, draft, accepted in write(LookupDrafter(), NOVEL[:100], NOVEL[100:] + NOVEL[300:400]):
        lengths[len(history)] = (len(draft), accepted)
    last = [drafted for at, (drafted, _) in lengths.items() if 500 <= at < 600]
    first = [drafted for at, (drafted, _) in lengths.items() if 600 <= at < 610]
    assert sum(drafted > 0 for drafted in last) <= len(last) // 10
    assert max(first) >= 8
    forwards = sum(at >= 600 for at in lengths)
    assert forwards <= 10  # for 100 tokens


def test_wrong_matches_make_the_next_draft_less_likely_and_right_ones_more():
    def likely(prompt, written):
        drafter = LookupDrafter(LookupConfig(price=0))
        drafter.begin(prompt)
        drafter.commit(written)
        assert drafter.index.match()[1] == 1
        return drafter.draft(1).probabilities[0]

    never_told = likely([1, 2, 1], [])
    assert likely([], [1, 2, 1, 3, 1, 4, 1, 5, 1]) < never_told  # after 1 comes never what came last
    assert likely([], [1, 2, 1, 2, 9, 1]) > never_told  # after 1 came 2 again


def test_learning_is_of_every_token_written_drafted_or_not():
    drafted, silent = (LookupDrafter(LookupConfig(price=0)) for _ in range(2))
    for _ in write(drafted, NOVEL[:20], NOVEL[20:200]):
        pass
    silent.begin(NOVEL[:20])
    silent.commit(NOVEL[20:200])
    ends = [drafter.draft(9) for drafter in (drafted, silent)]
    assert columns(ends[0]) == columns(ends[1])


def test_begin_forgets_the_text_before_and_what_was_learned_from_it():
    used, fresh = LookupDrafter(), LookupDrafter()
    for _ in write(used, NOVEL[:100], NOVEL[100:]):
        pass
    for drafter in (used, fresh):
        drafter.begin([1, 2, 3, 4, 1, 2, 3])
    assert columns(used.draft(64)) == columns(fresh.draft(64))


# -- what a draft may say ----------------------------------------------------------------------------


@examples(60)
@given(texts, texts, priced)
def test_every_draft_is_a_chain_of_likely_tokens_copied_from_the_history(prompt, text, config):
    for history, draft, _ in write(LookupDrafter(config), prompt, text * 2):
        assert draft.is_chain
        probabilities = draft.probabilities.tolist()
        assert all(0 <= probability <= 1 for probability in probabilities)
        assert probabilities == sorted(probabilities, reverse=True)
        assert [history[source] for source in draft.sources] == draft.tokens.tolist()
        assert draft.tokens.tolist() == naive.continuation(history, len(draft), config.window)
        assert draft.sources.tolist() == naive.sources(history, len(draft), config.window)


@examples(60)
@given(texts, texts, priced)
def test_after_learning_and_committing_the_index_holds_the_history(prompt, text, config):
    drafter = LookupDrafter(config)
    for history, _, _ in write(drafter, prompt, text * 2):
        assert drafter.index.tokens.tolist() == history
        assert drafter.index.match() == naive.match(history, config.window)


@pytest.mark.parametrize("window", [1, 10, 300])
def test_sources_count_from_the_beginning_of_the_text_when_the_window_slides(window):
    text = (NOVEL[:90] * 20)[:1500]
    drafter, drafts = LookupDrafter(LookupConfig(window=window, price=0, max_draft=5)), 0
    for history, draft, _ in write(drafter, [], text):
        assert [history[source] for source in draft.sources] == draft.tokens.tolist()
        assert all(source >= len(history) - window for source in draft.sources)
        drafts += len(history) > 1200 and len(draft) > 0
    assert drafts > 0 or window < 90


def test_an_id_that_the_history_lacks_is_never_drafted():
    rng = np.random.default_rng(5)
    for _ in range(20):
        history = rng.choice(100_000, 6)[rng.integers(0, 6, 30)].tolist()
        drafter = LookupDrafter(LookupConfig(price=0))
        drafter.begin(history)
        tokens = drafter.draft(64).tokens.tolist()
        assert len(tokens) == 64
        assert set(tokens) <= set(history)


def test_a_deterministic_drafter_drafts_the_same_twice():
    runs, cost = [], CostModel()
    for seconds in (0.001, 1.0):
        drafter = LookupDrafter(LookupConfig(deterministic=True), cost)
        runs.append([columns(draft) for _, draft, _ in write(drafter, NOVEL[:50], NOVEL[:200] * 2)])
        for _ in range(20):
            cost.observe(1, 0.01)
            cost.observe(8, seconds)
    assert runs[0] == runs[1]
    assert any(len(tokens) > 3 for tokens, *_ in runs[0])


def test_tokens_may_come_as_arrays():
    drafter = LookupDrafter(LookupConfig(price=0))
    drafter.begin(np.array([1, 2, 3]))
    drafter.commit(np.array([1, 2], dtype=np.int32))
    assert drafter.draft(2).tokens.tolist() == [3, 1]


def test_a_draft_of_nothing_is_an_empty_chain():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3])
    draft = drafter.draft(5)
    assert isinstance(draft, Draft)
    assert columns(draft) == [[], [], [], []]
