"""Histories worked out by hand: oracle, index and drafter must all meet them."""

import naive
import pytest

from draftless import LookupConfig, LookupDrafter, SuffixIndex

GOLDEN = {  # name: (history, length of the longest match, first four tokens of its continuation)
    "plain repeat": ([1, 2, 3, 4, 1, 2, 3], 3, [4, 1, 2, 3]),
    # Not [100, 1, 2, 3] or [200, 1, 2, 3]: of equal matches the latest wins.
    "latest of equals": ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, [300, 1, 2, 3]),
    "nothing repeats": ([1, 2, 3, 4, 5], 0, []),
    # Only [7] is left of the history: copying runs on past its end.
    "period one": ([7, 7, 7, 7], 3, [7, 7, 7, 7]),
    "period two": ([4, 5, 4, 5, 4], 3, [5, 4, 5, 4]),
    # Not [9, 1, 2, 8], what followed 1 2 first.
    "longer beats first": ([1, 2, 9, 1, 2, 8, 1, 2, 8, 1, 2], 5, [8, 1, 2, 8]),
    # Not [8, 5, 1, 2]: 1 2 was written later, but 5 1 2 is longer.
    "longer and older beats later": ([5, 1, 2, 9, 6, 1, 2, 8, 5, 1, 2], 3, [9, 6, 1, 2]),
    # Not [5, 1, 2, 3], which the first occurrence of the last three tokens would give.
    "no cap": ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 4, [1, 2, 3, 4]),
    # Not [6, 2, 3, 4]: no trade of context for a longer draft.
    "no trade": ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, [4, 1, 2, 3]),
    "long copy": ([*range(10, 30), 1, *range(10, 16)], 6, [16, 17, 18, 19]),
    "one token": ([1], 0, []),
    "empty history": ([], 0, []),
    "shortest period": ([3, 3], 1, [3, 3, 3, 3]),
    # The whole earlier half matches, and the copy overlaps itself.
    "the half repeats": ([1, 2, 3, 1, 2, 3], 3, [1, 2, 3, 1]),
}

golden = pytest.mark.parametrize(("tokens", "length", "draft"), GOLDEN.values(), ids=GOLDEN)


@golden
def test_oracle_meets_the_table(tokens, length, draft):
    assert naive.match(tokens)[1] == length
    assert naive.continuation(tokens, 4) == draft


@golden
def test_index_meets_the_table(tokens, length, draft):
    index = SuffixIndex(tokens)
    assert index.match()[1] == length
    assert index.continuation(4).tolist() == draft


@golden
def test_index_fed_token_by_token_meets_the_table(tokens, length, draft):
    index = SuffixIndex()
    for token in tokens:
        index.extend([token])
    assert index.match()[1] == length
    assert index.continuation(4).tolist() == draft


@golden
def test_drafter_meets_the_table(tokens, length, draft):
    drafter = LookupDrafter(LookupConfig(price=0, max_draft=4))
    drafter.begin(tokens)
    assert drafter.draft(64).tokens.tolist() == draft
