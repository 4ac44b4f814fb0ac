"""SuffixIndex says what the oracle says, whatever is done to it and in whatever order."""

import random
import threading

import naive
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numba import config as numba_config

from draftless import SuffixIndex

LARGEST = 2**31 - 1
BUCKETS = 10  # of match lengths, in the acceptance table
KEEP = 0.75
PRIOR = np.array([0.0, 0.25, 0.5, 0.75, 1.0] * 2)  # twelve of them and four tries make sixteenths

# In pure Python the product of a large id and the hash's multiplier warns before it wraps.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
needs_speed = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="too slow in pure Python")

texts = st.lists(st.integers(0, 3), max_size=40)
windows = st.none() | st.integers(1, 20)
caps = st.none() | st.integers(1, 6)


def examples(n):
    """`n` examples, the same in every run."""
    return settings(max_examples=n, deadline=None, derandomize=True)


def pairs(occurrences):
    return list(zip(occurrences.positions.tolist(), occurrences.lengths.tolist(), strict=True))


def assert_says_what_the_oracle_says(index, tokens, window=None, max_match=None):
    expected = naive.occurrences(tokens, window, max_match)
    assert len(index) == len(tokens)
    assert index.match() == (expected[0] if expected else (len(tokens), 0))
    assert pairs(index.occurrences(len(tokens) + 1)) == expected
    assert index.continuation(9).tolist() == naive.continuation(tokens, 9, window, max_match)
    if window is None:
        assert index.tokens.tolist() == tokens
    else:
        assert index.tokens.tolist()[-window:] == tokens[-window:]


def fibonacci_word(n):
    older, word = [0], [0, 1]
    while len(word) < n:
        older, word = word, word + older
    return word[:n]


def de_bruijn(order):
    """Every binary word of `order` letters once: the greedy sequence that prefers ones."""
    word, seen = [0] * order, {(0,) * order}
    while True:
        for letter in (1, 0):
            ending = (*word[len(word) - order + 1 :], letter)
            if ending not in seen:
                seen.add(ending)
                word.append(letter)
                break
        else:
            return word


# -- against the oracle ------------------------------------------------------------------------------


@examples(150)
@given(texts, windows, caps)
def test_all_at_once_equals_the_oracle(tokens, window, max_match):
    index = SuffixIndex(tokens, window=window, max_match=max_match)
    assert_says_what_the_oracle_says(index, tokens, window, max_match)


@examples(60)
@given(texts, windows, caps)
def test_one_by_one_equals_the_oracle_at_every_step(tokens, window, max_match):
    index = SuffixIndex(window=window, max_match=max_match)
    for n, token in enumerate(tokens, start=1):
        index.extend([token])
        assert_says_what_the_oracle_says(index, tokens[:n], window, max_match)


@examples(100)
@given(texts, windows, caps, st.lists(st.integers(0, 40), max_size=6))
def test_extend_in_pieces_equals_extend_at_once(tokens, window, max_match, cuts):
    whole = SuffixIndex(tokens, window=window, max_match=max_match)
    pieces = SuffixIndex(window=window, max_match=max_match)
    cuts = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    for start, end in zip(cuts, cuts[1:], strict=False):
        pieces.extend(tokens[start:end])
    assert pieces.match() == whole.match()
    assert pairs(pieces.occurrences(50)) == pairs(whole.occurrences(50))
    assert pieces.tokens.tolist() == whole.tokens.tolist()


@examples(100)
@given(texts, windows, caps, st.integers(1, 4))
def test_occurrences_are_the_first_of_all_for_every_limit(tokens, window, max_match, min_match):
    index = SuffixIndex(tokens, window=window, max_match=max_match)
    expected = naive.occurrences(tokens, window, max_match, min_match)
    for limit in (0, 1, 2, 3, 7, 1000):
        assert pairs(index.occurrences(limit, min_match)) == expected[:limit]


@examples(100)
@given(texts, st.integers(0, 12), st.integers(0, 30))
def test_occurrences_with_little_work_begin_with_the_longest_match(tokens, limit, work):
    index = SuffixIndex(tokens)
    found, expected = pairs(index.occurrences(limit, work=work)), naive.occurrences(tokens)
    assert found[:1] == expected[: min(limit, 1)]
    assert found == [occurrence for occurrence in expected if occurrence in found]


def test_little_work_finds_less_than_much():
    index = SuffixIndex([0] * 100)
    assert len(index.occurrences(100, work=0).positions) == 1
    assert len(index.occurrences(100, work=10).positions) < len(index.occurrences(100).positions) == 99


@examples(60)
@given(texts, windows, caps, st.integers(0, 60))
def test_continuation_runs_on_past_the_end(tokens, window, max_match, n):
    index = SuffixIndex(tokens, window=window, max_match=max_match)
    found = index.continuation(n)
    assert found.dtype == np.int32
    assert found.tolist() == naive.continuation(tokens, n, window, max_match)


@examples(60)
@given(texts, texts, windows, caps, st.integers(1, 3))
def test_follow_learns_and_appends_like_the_oracle(tokens, new, window, max_match, min_match):
    index = SuffixIndex(tokens, window=window, max_match=max_match)
    hits, tries, luck = np.full(BUCKETS, 1.0), np.full(BUCKETS, 2.0), np.array([3.0, 4.0])
    index.follow(new, PRIOR, hits, tries, luck, min_match, KEEP)
    text, expected_hits, expected_tries, expected_luck = naive.follow(
        tokens, new, PRIOR, [1.0] * BUCKETS, [2.0] * BUCKETS, [3.0, 4.0], min_match, KEEP, window, max_match
    )
    assert luck.tolist() == expected_luck
    assert hits.tolist() == expected_hits
    assert tries.tolist() == expected_tries
    assert_says_what_the_oracle_says(index, text, window, max_match)


@examples(100)
@given(
    texts,
    windows,
    st.integers(0, 12),
    st.integers(1, 3),
    st.lists(st.integers(0, 4), min_size=BUCKETS, max_size=BUCKETS),
    st.lists(st.integers(0, 8), min_size=12, max_size=12),
    st.integers(0, 16),
    st.sampled_from([(0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (1.0, 4.0), (0.0, 6.0)]),
)
def test_propose_takes_the_length_that_an_exhaustive_search_takes(
    tokens, window, budget, min_match, quarters, slopes, rate, luck
):
    # Fractions of powers of two, so that sums are exact and ties are ties.
    hits, tries = list(quarters), [4.0] * BUCKETS
    curve = [1.0 + sum(slopes[:i]) / 8 for i in range(budget + 1)]
    drafted, probabilities, sources = SuffixIndex(tokens, window=window).propose(
        budget, min_match, PRIOR, np.array(hits), np.array(tries), np.array(luck), np.array(curve), rate / 8
    )
    expected = naive.propose(tokens, budget, min_match, PRIOR, hits, tries, luck, curve, rate / 8, window)
    assert (drafted.tolist(), sources.tolist()) == (expected[0], expected[2])
    assert probabilities.tolist() == pytest.approx(expected[1])


def test_of_lengths_worth_the_same_the_shortest_is_drafted():
    sure = np.ones(BUCKETS)
    for curve, k in [([1, 1, 2, 3, 4], 1), ([1, 2, 3, 4, 5], 0), ([1, 2, 2, 3, 4], 2), ([1, 1, 1, 1, 2], 3)]:
        drafted, _, _ = SuffixIndex([7, 7]).propose(
            4, 1, sure, sure, sure, np.zeros(2), np.array(curve, dtype=float), 1.0
        )
        assert len(drafted) == k


class AnyOrder(RuleBasedStateMachine):
    """Whatever was done, the index is one freshly built from the text that is left."""

    @initialize(
        window=st.sampled_from([None, None, 1, 2, 5, 16]), max_match=st.sampled_from([None, None, 1, 3])
    )
    def begin(self, window, max_match):
        self.window, self.max_match = window, max_match
        self.index = SuffixIndex(window=window, max_match=max_match)
        self.text = []
        self.learned = ([1.0] * BUCKETS, [2.0] * BUCKETS, [3.0, 4.0])
        self.hits, self.tries, self.luck = map(np.array, self.learned)

    @rule(tokens=st.lists(st.integers(0, 3), max_size=12))
    def extend(self, tokens):
        self.index.extend(tokens)
        self.text += tokens

    @rule(seed=st.integers(0, 9), period=st.integers(1, 40), n=st.integers(200, 700))
    @precondition(lambda self: self.window is not None)
    def extend_until_the_window_slides(self, seed, period, n):
        # Only with a window: the oracle is slow on long texts.
        piece = (random.Random(seed).choices(range(4), k=period) * n)[:n]
        self.index.extend(piece)
        self.text += piece

    @rule(tokens=st.lists(st.integers(0, 3), max_size=8))
    def follow(self, tokens):
        self.text, *self.learned = naive.follow(
            self.text, tokens, PRIOR, *self.learned, 2, KEEP, self.window, self.max_match
        )
        for token in tokens:
            self.index.follow([token], PRIOR, self.hits, self.tries, self.luck, 2, KEEP)

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction):
        # What a truncate into the forgotten part does: see the tests of `truncate` below.
        forgotten = len(self.index) - len(self.index.tokens)
        least = forgotten + self.window if forgotten else 0
        length = least + round(fraction * (len(self.text) - least))
        self.index.truncate(length)
        del self.text[length:]

    @rule(junk=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def go_on_with_a_copy(self, junk):
        original, self.index = self.index, self.index.copy()
        original.extend(junk)
        original.truncate(len(original) - 1)

    @rule()
    def clear(self):
        self.index.clear()
        self.text = []

    @rule(limit=st.integers(0, 10), min_match=st.integers(1, 3))
    def query(self, limit, min_match):
        expected = naive.occurrences(self.text, self.window, self.max_match, min_match)
        assert pairs(self.index.occurrences(limit, min_match)) == expected[:limit]

    @invariant()
    def equals_the_oracle(self):
        assert_says_what_the_oracle_says(self.index, self.text, self.window, self.max_match)
        assert (self.hits.tolist(), self.tries.tolist(), self.luck.tolist()) == tuple(self.learned)

    @invariant()
    def equals_a_rebuilt_index(self):
        rebuilt = SuffixIndex(self.text, window=self.window, max_match=self.max_match)
        assert self.index.match() == rebuilt.match()
        assert pairs(self.index.occurrences(50)) == pairs(rebuilt.occurrences(50))


AnyOrder.TestCase.settings = settings(examples(60), stateful_step_count=25)
TestAnyOrder = AnyOrder.TestCase


# -- window ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 7, 64])
def test_streamed_window_equals_a_fresh_index_at_every_step(window):
    rng, tokens = np.random.default_rng(window), [0, 1, 2]
    while len(tokens) < max(10 * window, 1400):  # matches go on for long, then break off
        tokens.append(tokens[-3] if rng.random() < 0.9 else int(rng.integers(0, 6)))
    index = SuffixIndex(window=window)
    for n, token in enumerate(tokens, start=1):
        index.extend([token])
        fresh = SuffixIndex(tokens[max(0, n - window) : n])
        hidden = n - len(fresh)
        position, length = fresh.match()
        assert index.match() == (position + hidden, length)
        positions, lengths = fresh.occurrences(5)
        assert pairs(index.occurrences(5)) == pairs(type(index.occurrences(0))(positions + hidden, lengths))
        assert index.continuation(5).tolist() == fresh.continuation(5).tolist()


@pytest.mark.parametrize("window", [300, 1000])
def test_window_streamed_in_pieces_of_any_size_equals_a_fresh_index(window):
    rng = np.random.default_rng(window)
    tokens = rng.integers(0, 9, 10 * window).tolist()
    index, n = SuffixIndex(window=window), 0
    while n < len(tokens):
        size = int(rng.choice([0, 1, 2, 50, 255, 256, 257, window - 1, window, window + 1, 3 * window]))
        index.extend(tokens[n : n + size])
        n = min(n + size, len(tokens))
        fresh = SuffixIndex(tokens[max(0, n - window) : n])
        assert len(index) == n
        assert index.match() == (fresh.match()[0] + n - len(fresh), fresh.match()[1])
        assert index.tokens.tolist()[-window:] == fresh.tokens.tolist()


@pytest.mark.parametrize("window", [1, 64, 300])
@pytest.mark.parametrize("vocabulary", [2, LARGEST])
def test_memory_is_flat_with_a_window(window, vocabulary):
    tokens = np.random.default_rng(0).integers(0, vocabulary, 10 * max(window, 256)).tolist()
    index, memory = SuffixIndex(window=window), []
    for token in tokens:
        index.extend([token])
        memory.append(index.memory_bytes)
    assert memory[-1] == memory[len(memory) // 4]
    assert memory[-1] < 100 * max(window, 256)


def test_memory_does_not_grow_with_the_number_of_pieces_of_a_window():
    piece = np.arange(10_000)
    index = SuffixIndex(piece, window=1000)
    before = index.memory_bytes
    for _ in range(3):
        index.extend(piece)
    assert index.memory_bytes == before < 100 * 1000


def test_memory_of_few_distinct_tokens_is_a_few_bytes_a_token():
    # `kernels.py`: 8 bytes a token (twice that just after the arrays were doubled) plus 8 to 32 a
    # distinct token; and the smallest index there is. At once, as `generate` hands over a prompt.
    tokens = [1, 2] * 20_000
    assert SuffixIndex(tokens).memory_bytes <= 16 * len(tokens) + 2 * 32 + SuffixIndex().memory_bytes


def test_window_larger_than_the_text_hides_nothing():
    tokens = np.random.default_rng(1).integers(0, 4, 200).tolist()
    assert pairs(SuffixIndex(tokens, window=10**9).occurrences(99)) == pairs(
        SuffixIndex(tokens).occurrences(99)
    )


def test_positions_with_a_window_count_from_the_beginning_of_the_text():
    tokens = [5, 6, 7] * 1000
    index = SuffixIndex(tokens, window=4)
    assert index.match() == (2997, 1)
    assert index.occurrences(9).positions.tolist() == [2997]


# -- truncate, copy, clear ---------------------------------------------------------------------------


def test_truncate_to_every_length_equals_the_oracle():
    tokens = np.random.default_rng(2).integers(0, 3, 60).tolist()
    whole = SuffixIndex(tokens)
    for length in range(len(tokens), -1, -1):
        whole.truncate(length)
        assert_says_what_the_oracle_says(whole, tokens[:length])


def test_after_a_truncate_the_text_may_go_on_as_before_or_otherwise():
    tokens = np.random.default_rng(2).integers(0, 3, 40).tolist()
    for length in range(len(tokens) + 1):
        for rest in (tokens[length:], tokens[:5]):
            index = SuffixIndex(tokens)
            index.truncate(length)
            for n, token in enumerate(rest, start=1):
                index.extend([token])
                assert_says_what_the_oracle_says(index, tokens[:length] + rest[:n])


@pytest.mark.parametrize("length", [-1, 4, 10**6])
def test_truncate_refuses_a_length_that_the_text_has_not(length):
    index = SuffixIndex([1, 2, 1])
    with pytest.raises(ValueError, match=f"length must be from 0 .* to 3, .*found {length}"):
        index.truncate(length)
    assert_says_what_the_oracle_says(index, [1, 2, 1])


@pytest.mark.parametrize("length", [1.5, "1", None])
def test_truncate_refuses_what_is_no_whole_number(length):
    index = SuffixIndex([1, 2, 1])
    with pytest.raises((TypeError, ValueError)):
        index.truncate(length)
    assert_says_what_the_oracle_says(index, [1, 2, 1])


def test_truncate_refuses_what_the_window_has_forgotten():
    index = SuffixIndex(range(3000), window=8)
    with pytest.raises(ValueError, match="the window is forgotten"):
        index.truncate(1000)
    assert len(index) == 3000


@pytest.mark.parametrize("window", [1, 8, 64, 600])
def test_half_a_window_can_be_taken_back_at_any_time(window):
    tokens = np.random.default_rng(0).integers(0, 4, 4 * max(window, 256)).tolist()
    index = SuffixIndex(window=window)
    for at, token in enumerate(tokens, 1):
        index.extend([token])
        if at % 7 == 0 and at > window:
            shorter = index.copy()
            shorter.truncate(at - window // 2)
            fresh = SuffixIndex(tokens[: at - window // 2][-window:])
            assert shorter.match()[1] == fresh.match()[1]


def test_truncate_with_a_window_refuses_or_equals_a_fresh_index():
    # The class: "results are those of a fresh index over the last `window` tokens"; `tokens`: "with a
    # window at least the latest `window`". Not those of a shorter one.
    tokens = np.random.default_rng(0).integers(0, 4, 513).tolist()
    index = SuffixIndex(window=64)
    for token in tokens:  # the last one lets the window slide
        index.extend([token])
    length = len(tokens) - 10
    try:
        index.truncate(length)
    except ValueError:
        length = len(tokens)
    assert_says_what_the_oracle_says(index, tokens[:length], window=64)


def test_copy_shares_nothing():
    index = SuffixIndex([1, 2, 3, 1, 2])
    twin = index.copy()
    index.extend([9, 9, 9])
    twin.extend([3])
    assert_says_what_the_oracle_says(twin, [1, 2, 3, 1, 2, 3])
    assert_says_what_the_oracle_says(index, [1, 2, 3, 1, 2, 9, 9, 9])
    twin.clear()
    assert_says_what_the_oracle_says(index, [1, 2, 3, 1, 2, 9, 9, 9])


def test_tokens_are_a_copy():
    index = SuffixIndex([1, 2, 1])
    index.tokens[:] = 7
    assert_says_what_the_oracle_says(index, [1, 2, 1])


def test_clear_keeps_window_and_cap():
    index = SuffixIndex([0] * 2000, window=5, max_match=2)
    index.clear()
    assert (len(index), index.match()) == (0, (0, 0))
    index.extend([0, 1, 2, 0, 1, 2, 0])
    assert_says_what_the_oracle_says(index, [0, 1, 2, 0, 1, 2, 0], window=5, max_match=2)


def test_an_index_leaves_the_global_random_state_alone():
    before = random.getstate()
    try:
        random.seed(0)
        expected = random.random()
        random.seed(0)
        SuffixIndex([1, 2, 1]).clear()
        assert random.random() == expected
    finally:
        random.setstate(before)


# -- any tokens, and what is refused -----------------------------------------------------------------


@pytest.mark.parametrize("tokens", [[], [0], [LARGEST], [1, 2], [2, 2], [0, LARGEST]], ids=str)
def test_sizes_zero_one_and_two(tokens):
    assert_says_what_the_oracle_says(SuffixIndex(tokens), tokens)


def test_extreme_ids():
    tokens = [LARGEST, 0, LARGEST - 1, LARGEST, 0, LARGEST - 1, 2**24, LARGEST, 0]
    assert_says_what_the_oracle_says(SuffixIndex(tokens), tokens)


@examples(40)
@given(st.lists(st.sampled_from([0, 1, 2**16, 2**24, 2**30, LARGEST - 1, LARGEST]), max_size=30))
def test_large_ids_equal_the_oracle(tokens):
    assert_says_what_the_oracle_says(SuffixIndex(tokens), tokens)


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_integer_arrays_of_every_type_are_taken(kind):
    tokens = [1, 2, 3, 100, 1, 2]
    index = SuffixIndex(np.array(tokens, dtype=kind))
    index.extend(np.array([3], dtype=kind))
    assert_says_what_the_oracle_says(index, [*tokens, 3])


def test_strided_read_only_and_reversed_arrays_are_taken():
    tokens = np.arange(20, dtype=np.int32) % 7
    tokens.flags.writeable = False
    for view in (tokens, tokens[::2], tokens[::-1], tokens.reshape(4, 5)[:, 1]):
        assert_says_what_the_oracle_says(SuffixIndex(view), view.tolist())


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_tensors_are_taken(kind):
    index = SuffixIndex(torch.tensor([1, 2, 3, 1], dtype=kind))
    index.extend(torch.tensor([2], dtype=kind))
    assert_says_what_the_oracle_says(index, [1, 2, 3, 1, 2])


def test_sequences_are_taken():
    for tokens in (range(3), (0, 1, 2), [0, np.int64(1), 2], np.array([0, 1, 2])):
        assert SuffixIndex(tokens).tokens.tolist() == [0, 1, 2]


def test_the_caller_may_change_the_array_afterwards():
    tokens = np.array([1, 2, 1], dtype=np.int32)
    index = SuffixIndex(tokens)
    tokens[:] = 9
    assert_says_what_the_oracle_says(index, [1, 2, 1])


REFUSED = {  # name: (tokens, error, what its message says)
    "negative": ([1, -1], ValueError, "from 0 to 2147483647; found -1 to 1"),
    "too large": ([2**31], ValueError, "found 2147483648"),
    "unsigned too large": (np.array([2**63], dtype=np.uint64), ValueError, "found 9223372036854775808"),
    "floats": ([1.0, 2.0], TypeError, "whole numbers; found float64"),
    "float array": (np.ones(2, dtype=np.float32), TypeError, "found float32"),
    "not a number": ([float("nan")], TypeError, "whole numbers"),
    "floats late": ([1] * 20 + [1.5], TypeError, "found float64"),
    "bools": ([True, False], TypeError, "found bool"),
    "none inside": ([1, None], TypeError, "found object"),
    "strings": (["1", "2"], TypeError, "whole numbers"),
    "two dimensions": ([[1, 2], [3, 4]], ValueError, r"one dimension; found shape \(2, 2\); pass one row"),
    "batch of one": ([[1, 2]], ValueError, r"found shape \(1, 2\)"),
    "one number": (5, ValueError, r"found shape \(\)"),
    "nothing at all": (None, (TypeError, ValueError), "token ids must"),
    "float tensor": (torch.ones(2), TypeError, "found float32"),
    "bool tensor": (torch.ones(2, dtype=torch.bool), TypeError, "found bool"),
    "tensor of two rows": (torch.ones(2, 3, dtype=torch.int64), ValueError, r"found shape \(2, 3\)"),
    "negative tensor": (torch.tensor([-100]), ValueError, "found -100"),
}


@pytest.mark.parametrize(("tokens", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_tokens_leave_the_index_as_it_was(tokens, error, message):
    index = SuffixIndex([1, 2, 1])
    hits, tries, luck = np.ones(BUCKETS), np.ones(BUCKETS), np.zeros(2)
    with pytest.raises(error, match=message):
        index.extend(tokens)
    with pytest.raises(error, match=message):
        index.follow(tokens, PRIOR, hits, tries, luck, 1, KEEP)
    with pytest.raises(error, match=message):
        SuffixIndex(tokens)
    assert (hits.tolist(), tries.tolist()) == ([1.0] * BUCKETS, [1.0] * BUCKETS)
    assert_says_what_the_oracle_says(index, [1, 2, 1])


def test_refused_tokens_after_many_good_ones_append_none_of_them():
    index = SuffixIndex([1, 2, 1], window=4)
    with pytest.raises(ValueError, match="found -1"):
        index.extend([0] * 5000 + [-1])
    assert index.tokens.tolist() == [1, 2, 1]


@pytest.mark.parametrize("name", ["window", "max_match"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_window_and_cap_out_of_range_are_refused(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be a whole number, at least 1, or None"):
        SuffixIndex([1, 2], **{name: value})


def test_window_and_cap_may_be_numpy_integers():
    assert SuffixIndex([1, 2, 1, 2, 1], window=np.int64(3), max_match=np.int32(1)).match() == (3, 1)


def test_limit_zero_finds_nothing_and_negative_is_refused():
    index = SuffixIndex([1, 2, 1])
    assert pairs(index.occurrences(0)) == []
    with pytest.raises(ValueError, match="limit must be at least 0; found -1"):
        index.occurrences(-1)


def test_continuation_of_nothing_and_of_less_than_nothing():
    index = SuffixIndex([1, 2, 1])
    assert index.continuation(0).tolist() == []
    with pytest.raises(ValueError, match="n must be at least 0; found -1"):
        index.continuation(-1)


def test_results_are_int64_arrays():
    found = SuffixIndex([1, 2, 1]).occurrences(3)
    assert (found.positions.dtype, found.lengths.dtype) == (np.int64, np.int64)


def test_representation_names_size_window_and_match():
    assert repr(SuffixIndex([1, 2, 1], window=9)) == "SuffixIndex(3 tokens, window=9, match=1)"


# -- the table ---------------------------------------------------------------------------------------


def test_table_of_many_distinct_tokens_equals_the_oracle():
    distinct = np.random.default_rng(3).permutation(100_000)[:700].tolist()
    tokens = distinct + distinct[100:200]
    index = SuffixIndex()
    for token in tokens:  # one by one: the table grows several times
        index.extend([token])
    assert_says_what_the_oracle_says(index, tokens)
    assert_says_what_the_oracle_says(SuffixIndex(tokens), tokens)


def test_every_token_is_found_again_after_the_table_grew():
    index = SuffixIndex(range(3000))
    for token in range(0, 3000, 37):
        index.extend([token])
        assert index.match() == (token + 1, 1)
        index.truncate(3000)


@pytest.mark.parametrize("stride", [1, 2**8, 2**16, 2**20])
def test_ids_of_any_stride_are_told_apart(stride):
    tokens = [stride * i for i in range(500)] * 2
    assert SuffixIndex(tokens).match() == (500, 500)


# -- bad luck ----------------------------------------------------------------------------------------


def steps_one_by_one(tokens):
    index = SuffixIndex()
    for token in tokens:
        index.extend([token])
    return index.steps


def most_searches(tokens):
    """Looks of a search after every token, and every match compared once: what no text may exceed much."""
    written, total = {}, 0
    for n, token in enumerate(tokens):
        written[token] = written.get(token, -1) + 1
        total += written[token] + naive.match(tokens[: n + 1])[1]
    return total


@pytest.mark.parametrize("period", [1, 2, 3, 50])
def test_a_match_that_goes_on_is_carried_for_free(period):
    # Two periods are searched, what comes after them costs nothing.
    tokens = list(range(period))
    assert steps_one_by_one(tokens * 100) == steps_one_by_one(tokens * 2) <= 4


@pytest.mark.parametrize("period", [1, 2, 3, 50])
def test_a_periodic_text_given_at_once_is_searched_in_linear_time(period):
    tokens = list(range(period)) * (4000 // period)
    assert SuffixIndex(tokens).steps <= 2 * len(tokens)


def test_fibonacci_word_costs_a_few_steps_a_token():
    # The match breaks off again and again, but ever more seldom.
    steps = [steps_one_by_one(fibonacci_word(n)) / n for n in (500, 2000)]
    assert max(steps) <= 10


def test_de_bruijn_costs_little_more_than_its_looks():
    # Every ending is new, so every token searches, and half of what was written is looked at.
    tokens = de_bruijn(8)
    assert len(set(zip(*[tokens[i:] for i in range(8)], strict=False))) == 2**8
    assert steps_one_by_one(tokens) <= 3 * most_searches(tokens)


@pytest.mark.parametrize("n", [50, 300])
def test_two_runs_of_one_token_are_searched_in_linear_time(n):
    # `kernels.py`: a search costs the occurrences of the last token plus the compares of candidates
    # that win. Every candidate in the second run agrees for long, and loses.
    tokens = [0] * n + [1] + [0] * n
    assert SuffixIndex(tokens).steps <= 4 * len(tokens)


@needs_speed
def test_novel_text_costs_its_looks_however_long():
    tokens = np.random.default_rng(4).integers(0, 1000, 20_000).tolist()
    assert steps_one_by_one(tokens) / len(tokens) <= 2 * len(tokens) / 1000


# -- threads -----------------------------------------------------------------------------------------


def test_two_threads_with_two_indexes_equal_serial_runs():
    def run(seed, results):
        rng, index = np.random.default_rng(seed), SuffixIndex(window=None if seed % 2 else 50)
        for _ in range(150):
            index.extend(rng.integers(0, 4, int(rng.integers(1, 12))))
            if rng.integers(0, 10) == 0:
                index.extend(rng.integers(0, LARGEST, 20))
            results.append((index.match(), pairs(index.occurrences(4)), index.continuation(6).tolist()))

    serial, threaded = ([], []), ([], [])
    for seed in (0, 1):
        run(seed, serial[seed])
    threads = [threading.Thread(target=run, args=(seed, threaded[seed])) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert threaded == serial
    assert len(serial[0]) == len(serial[1]) == 150
