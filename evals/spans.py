"""Tokens as text: which stretches were accepted drafts."""

import re

_MOST_TOKENS_OF_A_CHARACTER = 4  # UTF-8: four bytes
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def spans(tokenizer, ids, sources) -> list:
    """Cut decoded text where the origin of its tokens changes.

    Tokens that share a character are one piece, accepted only if all of them were.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    ids : list of int
    sources : list of int, as long as ids
        -1 for tokens that the model wrote itself.

    Returns
    -------
    list of (str, bool)
        Text and whether it was accepted; neighbours differ. Terminal control characters
        are replaced.
    """
    found = []
    for text, start, end in _pieces(tokenizer, ids):
        accepted = all(source >= 0 for source in sources[start:end])
        if found and found[-1][1] == accepted:
            text = found.pop()[0] + text
        if text:
            found.append((text, accepted))
    return [(_CONTROL.sub("\ufffd", text), accepted) for text, accepted in found]


def _pieces(tokenizer, ids):
    """Yield text and the range of tokens it comes from, as few tokens as make whole characters.

    Decoded with the piece before it: some tokenizers drop a space where decoding begins.
    """

    def decoded(start, end):
        return tokenizer.decode(ids[start:end], clean_up_tokenization_spaces=False)

    before = start = 0
    for end in range(1, len(ids) + 1):
        text = decoded(before, end)
        cut = text.endswith("\ufffd") and end - start < _MOST_TOKENS_OF_A_CHARACTER
        if cut and end < len(ids):
            continue
        yield text[len(decoded(before, start)) :], start, end
        before, start = start, end
