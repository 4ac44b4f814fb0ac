"""What the lookup computes, said slowly: lists and slices, nothing of ours imported.

`tokens` is a list of ids, oldest first. Positions count from its first token even where a
window hides it. An occurrence is (position of the token that followed it, match length).
"""

_LAST_OF_BUCKET = [1, 2, 3, 4, 6, 8, 12, 16, 32]  # the tenth bucket holds what is longer


def occurrences(tokens, window=None, max_match=None, min_match=1):
    """All earlier occurrences of the text's end: longest first, then latest first."""
    hidden = 0 if window is None else max(0, len(tokens) - window)
    kept = tokens[hidden:]
    found = []
    for position in range(1, len(kept)):
        most = position if max_match is None else min(position, max_match)
        length = 0
        while length < most and kept[position - 1 - length] == kept[-1 - length]:
            length += 1
        if length >= max(min_match, 1):
            found.append((hidden + position, length))
    return sorted(found, key=lambda occurrence: (-occurrence[1], -occurrence[0]))


def match(tokens, window=None, max_match=None):
    """The longest match, the latest of equally long ones; (len(tokens), 0) if there is none."""
    return next(iter(occurrences(tokens, window, max_match)), (len(tokens), 0))


def continuation(tokens, n, window=None, max_match=None):
    """The next `n` tokens if the text goes on as it did after the longest match."""
    start, length = match(tokens, window, max_match)
    text = list(tokens)
    for i in range(n if length else 0):
        text.append(text[start + i])
    return text[len(tokens) :]


def sources(tokens, n, window=None, max_match=None):
    """Where in the history each token of the continuation was written, run-on tokens included."""
    start, length = match(tokens, window, max_match)
    places = list(range(len(tokens)))
    for i in range(n if length else 0):
        places.append(places[start + i])
    return places[len(tokens) :]


def bucket(length):
    """The row of the acceptance table for a match of `length` tokens."""
    return sum(length > last for last in _LAST_OF_BUCKET)


def follow(tokens, new, prior, hits, tries, luck, min_match, keep, window=None, max_match=None):
    """Append `new` one by one; return (text, hits, tries, luck) after learning from each."""
    text, hits, tries, luck = list(tokens), list(hits), list(tries), list(luck)
    for token in new:
        start, length = match(text, window, max_match)
        if length >= min_match:
            row = bucket(length)
            luck[0] = luck[0] * keep + (text[start] == token)
            luck[1] = luck[1] * keep + prior[row]
            hits[row] = hits[row] * keep + (text[start] == token)
            tries[row] = tries[row] * keep + 1.0
        text.append(token)
    return text, hits, tries, luck


def probabilities(length, n, prior, hits, tries, luck):
    """How likely each of `n` drafted tokens is to be accepted, its whole path counted."""
    path, so_far = [], 1.0
    fortune = min(1.0, (luck[0] + 2.0) / (luck[1] + 2.0))
    for i in range(n):
        row = bucket(length + i)
        foretold = prior[row] * fortune ** (1.0 - prior[row])
        so_far *= (12.0 * foretold + hits[row]) / (12.0 + tries[row])
        path.append(so_far)
    return path


def worth(path, curve, rate, k):
    """Expected tokens saved by drafting `k`, minus what the wider forward could have written."""
    return sum(path[:k]) - rate * (curve[k] - curve[0])


def best_length(path, curve, rate):
    """The length worth most, the smallest of equals; 0 is worth nothing. Where time costs nothing: all."""
    if rate == 0:
        return len(path)
    return max(range(len(path) + 1), key=lambda k: (worth(path, curve, rate, k), -k))


def propose(tokens, budget, min_match, prior, hits, tries, luck, curve, rate, window=None, max_match=None):
    """The draft that pays, of all lengths up to `budget`: (tokens, probabilities, sources)."""
    _, length = match(tokens, window, max_match)
    if length < max(min_match, 1):
        return [], [], []
    path = probabilities(length, budget, prior, hits, tries, luck)
    k = best_length(path, curve, rate)
    return (
        continuation(tokens, k, window, max_match),
        path[:k],
        sources(tokens, k, window, max_match),
    )
