"""Compiled: append, match, and grow a draft. One call graph, one file.

Structure: every position links to the previous position of the same token, and an
open-addressing table holds the latest position of each token. A search walks the links
of the last token from the latest occurrence to the oldest, comparing backwards, and
leaves a candidate after one look if it cannot beat the best so far. Between two
searches a match that goes on is carried: if the longest match ended at p with length m
and the next token is what followed p, then the longest match is now m + 1 and ends at
p + 1; anything longer, or as long and later, would have been found before. A search that
compares more than once through the text (long runs do that) starts again with the
Z-function of the reversed text (Gusfield, Algorithms on Strings, 1997, section 1.4).

Bounds: append O(1) expected; carrying O(1); a search at most O(text searched), mostly the
occurrences of the last token; 8 bytes a token (twice that just after growth) plus 8 to 32
a distinct token. The table's hash is multiplied by a random odd number of each index, so that a
text cannot be made to collide in it.

Kernels only: arrays in, integers out, nothing checked, nothing raised. Those that append
stop where room ends and say how far they came; `index.py` checks once and makes room.
Positions here count from the first token kept.
"""

import numpy as np
from numba import njit

# Slots of `state`, int64.
LENGTH = 0  # tokens kept
MATCH_END = 1  # where the longest match ends, -1 if there is none
MATCH_LENGTH = 2  # in tokens
DISTINCT = 3  # tokens in the table
SEED = 4  # odd multiplier of the table's hash
WINDOW = 5  # latest tokens searched; 0 = all
MAX_MATCH = 6  # 0 = no cap
STEPS = 7  # elementary steps of searches so far, for tests of the bounds
MOST_KEPT = 8  # tokens kept before the oldest are forgotten
STATE_SIZE = 9

EMPTY = -1


def _compiled(function):
    """Compile without the interpreter's lock, and keep the result where there is a place to keep it."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder can be written to
        return njit(nogil=True)(function)


# Hits that are taken for granted before a text counts as one that its matches do not foretell.
PATIENCE = 2.0
WEIGHT = 12.0  # tries of one match length that weigh as much as what is known beforehand

# A match of m tokens falls in bucket BUCKETS[min(m, len - 1)].
BUCKETS = np.array([0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7] + [8] * 16 + [9], dtype=np.int64)


@_compiled
def _slot(keys, token, seed):
    """Where `token` is in the table, or the empty slot where it belongs."""
    mask = keys.shape[0] - 1
    slot = ((token + 1) * seed >> 17) & mask
    while keys[slot] != EMPTY and keys[slot] != token:
        slot = (slot + 1) & mask
    return slot


@_compiled
def rehash(old_keys, old_heads, keys, heads, seed):
    """Fill the empty table (keys, heads) with the entries of a smaller one."""
    for i in range(old_keys.shape[0]):
        if old_keys[i] != EMPTY:
            slot = _slot(keys, np.int64(old_keys[i]), seed)
            keys[slot] = old_keys[i]
            heads[slot] = old_heads[i]


@_compiled
def _append(tokens, links, keys, heads, state, token):
    at = state[LENGTH]
    slot = _slot(keys, np.int64(token), state[SEED])
    if keys[slot] == EMPTY:
        keys[slot] = token
        heads[slot] = -1
        state[DISTINCT] += 1
    tokens[at] = token
    links[at] = heads[slot]
    heads[slot] = at
    state[LENGTH] = at + 1


@_compiled
def _has_room(tokens, keys, state):
    """Whether one more token can be appended, whatever it is, before `index.py` has to make room."""
    most = min(tokens.shape[0], state[MOST_KEPT])
    return state[LENGTH] < most and 2 * (state[DISTINCT] + 1) <= keys.shape[0]


@_compiled
def _lowest(state):
    """The first position that is searched."""
    if state[WINDOW] == 0:
        return 0
    return max(0, state[LENGTH] - state[WINDOW])


@_compiled
def _common(tokens, end, last, most):
    """How many tokens before and at `end` equal those before and at `last`; at most `most`."""
    length = 0
    while length < most and tokens[end - length] == tokens[last - length]:
        length += 1
    return length


@_compiled
def _search_everywhere(tokens, state, low, cap):
    """Set the longest match by the Z-function: how long each suffix agrees with the whole's end."""
    last = state[LENGTH] - 1
    agree = np.zeros(last - low + 1, dtype=np.int32)
    left = right = best = 0
    for back in range(1, agree.shape[0]):
        length = min(right - back, agree[back - left]) if back < right else 0
        while back + length < agree.shape[0] and tokens[last - back - length] == tokens[last - length]:
            length += 1
            state[STEPS] += 1
        agree[back] = length
        if back + length > right:
            left, right = back, back + length
        if min(length, cap) > best:
            best = min(length, cap)
            state[MATCH_END] = last - back
            state[MATCH_LENGTH] = best
    state[STEPS] += agree.shape[0]


@_compiled
def _search(tokens, links, state):
    """Set the longest match, the latest of equally long ones, from nothing."""
    state[MATCH_END] = -1
    state[MATCH_LENGTH] = 0
    last = state[LENGTH] - 1
    if last < 1:
        return
    low = _lowest(state)
    cap = state[MAX_MATCH] if state[MAX_MATCH] > 0 else last
    best = 0
    patience = state[STEPS] + last - low + 1
    end = np.int64(links[last])
    while end >= low:
        room = min(end - low + 1, cap)
        if room <= best:
            break
        state[STEPS] += 1
        if tokens[end - best] == tokens[last - best]:
            length = _common(tokens, end, last, room)
            state[STEPS] += length
            if length > best:
                best = length
                state[MATCH_END] = end
                state[MATCH_LENGTH] = length
            if state[STEPS] > patience and length < room:
                _search_everywhere(tokens, state, low, cap)
                return
        end = np.int64(links[end])


@_compiled
def _carry(tokens, links, state):
    """Set the longest match after one append, from the one before it."""
    end = state[MATCH_END] + 1
    last = state[LENGTH] - 1
    length = state[MATCH_LENGTH] + 1
    goes_on = end > 0 and tokens[end] == tokens[last]
    capped = state[MAX_MATCH] > 0 and length > state[MAX_MATCH]
    clipped = end - length + 1 < _lowest(state)
    if goes_on and not capped and not clipped:
        state[MATCH_END] = end
        state[MATCH_LENGTH] = length
    else:
        _search(tokens, links, state)


@_compiled
def extend(tokens, links, keys, heads, state, new):
    """Append `new` as far as there is room, and find the longest match once, at the end.

    Returns how many were appended.
    """
    n = 0
    while n < new.shape[0] and _has_room(tokens, keys, state):
        _append(tokens, links, keys, heads, state, new[n])
        n += 1
    if n == 1:
        _carry(tokens, links, state)
    elif n > 1:
        _search(tokens, links, state)
    return n


@_compiled
def truncate(tokens, links, keys, heads, state, length):
    """Drop all but the first `length` tokens, and find the longest match again."""
    for at in range(state[LENGTH] - 1, length - 1, -1):
        heads[_slot(keys, np.int64(tokens[at]), state[SEED])] = links[at]
    state[LENGTH] = length
    _search(tokens, links, state)


@_compiled
def slide(tokens, links, keys, heads, state, drop):
    """Forget the first `drop` tokens: shift the rest down and rebuild links and table."""
    kept = state[LENGTH] - drop
    keys[:] = EMPTY
    state[DISTINCT] = 0
    state[LENGTH] = 0
    for at in range(kept):
        _append(tokens, links, keys, heads, state, tokens[at + drop])
    state[MATCH_END] -= drop
    if state[MATCH_END] < 0:
        state[MATCH_END] = -1
        state[MATCH_LENGTH] = 0


@_compiled
def occurrences(tokens, links, state, min_match, work, ends, lengths):
    """Fill `ends`, `lengths` with the best occurrences: longest first, then latest first.

    Stops after `work` elementary steps; the longest match is in any case the first.
    Returns how many were found.
    """
    limit = ends.shape[0]
    if limit == 0 or state[MATCH_LENGTH] < min_match or state[MATCH_END] < 0:
        return 0
    last = state[LENGTH] - 1
    low = _lowest(state)
    cap = state[MAX_MATCH] if state[MAX_MATCH] > 0 else last
    ends[0] = state[MATCH_END]
    lengths[0] = state[MATCH_LENGTH]
    found = 1
    end = np.int64(links[last])
    while end >= low and work > 0:
        work -= 1
        if end != state[MATCH_END]:
            length = _common(tokens, end, last, min(end - low + 1, cap))
            work -= length
            if length >= min_match and (found < limit or length > lengths[found - 1]):
                at = found if found < limit else limit - 1
                while at > 1 and lengths[at - 1] < length:
                    ends[at] = ends[at - 1]
                    lengths[at] = lengths[at - 1]
                    at -= 1
                if at < limit and at > 0:
                    ends[at] = end
                    lengths[at] = length
                    found = min(found + 1, limit)
        end = np.int64(links[end])
    return found


@_compiled
def copy_on(tokens, state, start, out, sources):
    """Copy what followed: `out` from `start` on, past the end of the history into itself."""
    length = state[LENGTH]
    for i in range(out.shape[0]):
        at = start + i
        if at < length:
            out[i] = tokens[at]
            sources[i] = at
        else:
            out[i] = out[at - length]
            sources[i] = sources[at - length]


@_compiled
def bucket(length):
    """The row of the acceptance table for a match of `length` tokens."""
    return BUCKETS[min(length, BUCKETS.shape[0] - 1)]


@_compiled
def follow(tokens, links, keys, heads, state, new, prior, hits, tries, luck, min_match, keep):
    """Append `new` one by one, and learn from each whether the match before it was right.

    Stops where room ends, and returns how many were appended.

    `hits` and `tries` count by match length (`bucket`) how often the token that
    followed the match was the next one; `luck[0]` counts hits of all lengths, `luck[1]`
    how many `prior` (by match length) foretold. Old counts fade by `keep`.
    """
    n = 0
    while n < new.shape[0] and _has_room(tokens, keys, state):
        if state[MATCH_LENGTH] >= min_match:
            row = bucket(state[MATCH_LENGTH])
            luck *= keep
            luck[1] += prior[row]
            hits[row] *= keep
            tries[row] *= keep
            tries[row] += 1.0
            if tokens[state[MATCH_END] + 1] == new[n]:
                hits[row] += 1.0
                luck[0] += 1.0
        _append(tokens, links, keys, heads, state, new[n])
        _carry(tokens, links, state)
        n += 1
    return n


@_compiled
def propose(tokens, state, min_match, prior, hits, tries, luck, curve, rate, out, probabilities, sources):
    """Draft the continuation of the longest match, as long as it pays.

    A match of some length is right as often as `prior` says, less where the text has been
    unlucky so far (long matches are hardly touched by that), corrected by the `hits` of
    `tries` seen for that length.

    Of all lengths k the one is taken that maximises the expected tokens saved minus
    `rate` (tokens per unit of time) times the time that width 1 + k adds (`curve`).
    With `rate` 0 that is all of them. Returns k; the draft is in `out[:k]`,
    `probabilities[:k]`, `sources[:k]`.
    """
    if state[MATCH_LENGTH] < min_match or state[MATCH_END] < 0:
        return 0
    copy_on(tokens, state, state[MATCH_END] + 1, out, sources)
    fortune = min(1.0, (luck[0] + PATIENCE) / (luck[1] + PATIENCE))
    p = 1.0
    gain = 0.0
    best = 0.0
    k = 0
    for i in range(out.shape[0]):
        row = bucket(state[MATCH_LENGTH] + i)
        foretold = prior[row] * fortune ** (1.0 - prior[row])
        p *= (WEIGHT * foretold + hits[row]) / (WEIGHT + tries[row])
        probabilities[i] = p
        gain += p
        value = gain - rate * (curve[i + 1] - curve[0])
        if value > best or rate == 0.0:
            best = value
            k = i + 1
    return k


def are_cached() -> bool:
    """Whether Numba's cache on disk holds the kernels that a call needs, as they are now."""
    try:
        return all(kernel._cache._cache_file._load_index() for kernel in (extend, follow, propose))
    except Exception:  # not compiled at all, or a Numba that keeps its cache elsewhere
        return False
