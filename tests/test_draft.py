"""Draft: chains, trees and what is cut from them; Drafter: who is one."""

import dataclasses

import numpy as np
import pytest

from draftless import Draft, Drafter, LookupDrafter

#        last committed token
#        |-- 4 -- 1 -- 7
#        |        `--- 8
#        `-- 5
TREE = Draft(
    tokens=np.array([4, 1, 7, 8, 5], np.int32),
    parents=np.array([-1, 0, 1, 1, -1], np.int32),
    probabilities=np.array([0.9, 0.8, 0.5, 0.3, 0.1], np.float32),
    sources=np.array([3, 4, 5, 9, 7], np.int64),
)


def columns(draft):
    """All four arrays as lists, to compare."""
    return [getattr(draft, field.name).tolist() for field in dataclasses.fields(draft)]


@pytest.mark.parametrize(("n", "parents"), [(0, []), (1, [-1]), (2, [-1, 0]), (4, [-1, 0, 1, 2])])
def test_chain_gives_every_token_the_one_before_as_parent(n, parents):
    draft = Draft.chain(range(10, 10 + n))
    assert draft.tokens.tolist() == list(range(10, 10 + n))
    assert draft.parents.tolist() == parents
    assert draft.is_chain
    assert len(draft) == n


def test_chain_knows_nothing_of_probabilities_and_sources_unless_told():
    assert columns(Draft.chain([4, 1]))[2:] == [[1, 1], [-1, -1]]
    assert columns(Draft.chain([4, 1], probabilities=[0.5, 0.25], sources=[7, 8]))[2:] == [
        [0.5, 0.25],
        [7, 8],
    ]


@pytest.mark.parametrize("draft", [Draft.chain([]), Draft.chain([4, 1], [0.5, 0.2], [7, 8]), TREE])
def test_arrays_have_the_documented_types_and_one_length(draft):
    kinds = [getattr(draft, field.name).dtype for field in dataclasses.fields(draft)]
    assert kinds == [np.int32, np.int32, np.float32, np.int64]
    assert {len(column) for column in columns(draft)} == {len(draft)}


def test_a_draft_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TREE.tokens = np.zeros(5)


@pytest.mark.parametrize(
    ("parents", "chain"),
    [
        ([], True),
        ([-1], True),
        ([-1, 0], True),
        ([-1, -1], False),
        ([-1, 0, 0], False),
        ([-1, 0, 1, 1], False),
    ],
)
def test_is_chain_only_if_every_node_follows_the_one_before(parents, chain):
    n = len(parents)
    draft = Draft(np.zeros(n, np.int32), np.array(parents, np.int32), np.ones(n), np.zeros(n))
    assert draft.is_chain is chain


def test_head_cuts_every_array():
    for n in range(len(TREE) + 1):
        assert columns(TREE.head(n)) == [column[:n] for column in columns(TREE)]


def test_head_of_more_than_there_is_is_the_whole():
    assert TREE.head(5) is TREE
    assert TREE.head(99) is TREE


def test_heads_of_a_tree_are_trees():
    for n in range(len(TREE) + 1):
        assert (TREE.head(n).parents < np.arange(n)).all()


@pytest.mark.parametrize(
    ("parents", "n"),
    [([-1, 0, 1, 1, -1], 3), ([-1, -1, 0, 1, 2], 1), ([-1, 0, 1, 2, 3], 5), ([-1, 0, 1, 2, -1], 4)],
)
def test_first_chain_stops_where_a_node_does_not_follow_the_one_before(parents, n):
    draft = dataclasses.replace(TREE, parents=np.array(parents, np.int32))
    first = draft.first_chain()
    assert first.is_chain
    assert columns(first) == columns(draft.head(n))


def test_first_chain_of_a_chain_is_itself():
    for draft in (Draft.chain([]), Draft.chain([1]), Draft.chain([1, 2, 3])):
        assert draft.first_chain() is draft


class MyDrafter:
    """What a user may write, with no base class."""

    def begin(self, ids):
        self.ids = list(ids)

    def draft(self, budget):
        return Draft.chain(self.ids[:budget])

    def commit(self, tokens):
        self.ids += tokens

    def learn(self, draft, accepted):
        pass


def test_the_lookup_and_a_users_class_are_drafters():
    assert isinstance(LookupDrafter(), Drafter)
    assert isinstance(MyDrafter(), Drafter)


@pytest.mark.parametrize("missing", ["begin", "draft", "commit", "learn"])
def test_a_class_without_one_of_the_methods_is_no_drafter(missing):
    methods = {name: method for name, method in vars(MyDrafter).items() if name != missing}
    assert not isinstance(type("Incomplete", (), methods)(), Drafter)
