"""Where two runs part: how close was plain's choice, and how much does the model round there?"""

from dataclasses import dataclass

import torch

from ..integration import versions

_TRIES = 16
_WIDTHS = (1, 2, 3, 5, 8, 16)  # pieces in which what was written is fed, besides all at once


@dataclass
class Fork:
    """The first token that differs.

    Attributes
    ----------
    at : int
        Its index in the row, prompt included.
    plain, ours : int or None
        The two tokens; None where a run had ended.
    gap : float
        Plain's chosen score minus its second best, the random draw counted where one is made
        (the Gumbel-max form of a multinomial draw).
    behind : float
        Plain's chosen score minus its score of draftless's token.
    rounding : float
        How much two scores may move against each other when the same tokens are fed in
        pieces of other widths: measured there, on the bare model.
    follows : bool
        Plain chooses draftless's token when its logits are moved by that much: what a filter
        such as top-p lets through can turn on less than a gap between scores shows.
    """

    at: int
    plain: int | None
    ours: int | None
    gap: float
    behind: float
    rounding: float
    follows: bool = False

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        ended = self.plain is None or self.ours is None
        return not ended and (self.behind <= self.rounding or self.follows)


def judged(model, made, expected, found) -> Fork:
    """Return the fork of two rows of ids, None standing for a run that raised."""
    expected, found = expected or [], found or []
    shorter = min(len(expected), len(found))
    at = next((i for i in range(shorter) if expected[i] != found[i]), shorter)
    tokens = [row[at] if at < len(row) else None for row in (expected, found)]
    if at < made.ids.shape[1]:
        return Fork(at, *tokens, float("inf"), float("inf"), 0.0)
    (gap, behind), moves = _gaps(model, made, at, tokens[1]), rounding(model, made, expected[:at])
    follows = behind > moves and _follows(model, made, at, moves / 2, tokens[1])
    return Fork(at, *tokens, gap, behind, moves, follows)


def _follows(model, made, at, most, ours):
    """Whether plain chooses `ours` when the logits of that step are moved by up to `most`."""
    steps = at - made.ids.shape[1] + 1
    for attempt in range(_TRIES):
        noise = torch.Generator().manual_seed(attempt)
        left = [steps + (made.filled > 0)]

        def move(module, args, outputs, noise=noise, left=left):
            left[0] -= 1
            if left[0] == 0:
                row = outputs.logits[:, -1]
                row += (most * (2 * torch.rand(row.shape, generator=noise) - 1)).to(row)

        hook = model.register_forward_hook(move)
        try:
            row = made.generate(model, max_new_tokens=steps).sequences[0]
        finally:
            hook.remove()
        if len(row) > at and int(row[at]) == ours:
            return True
    return False


def _gaps(model, made, at, ours):
    """Run plain up to the fork, and look at what it chose between."""
    steps = at - made.ids.shape[1] + 1
    out = made.generate(model, max_new_tokens=steps, output_scores=True)
    if len(out.scores) < steps:
        return float("inf"), float("inf")
    scores = out.scores[-1][0].double()
    if made.options["do_sample"]:
        if steps > 1:
            made.generate(model, max_new_tokens=steps - 1)  # leaves the generator as before the draw
        else:
            torch.manual_seed(made.seed)
        draw = torch.empty_like(out.scores[-1]).exponential_(1)[0].double()
        scores = torch.log_softmax(scores, -1) - draw.log()
    best = scores.topk(2).values
    return float(best[0] - best[1]), float("inf") if ours is None else float(best[0] - scores[ours])


@torch.no_grad()
def rounding(model, made, row, everywhere=False) -> float:
    """How far two scores move against each other when the same ids are fed in pieces of other widths.

    After all of `row`; with `everywhere`, the most after any id that was written.
    """
    ids, start = torch.tensor([row], device=model.device), made.ids.shape[1]
    given = made.options.get("attention_mask")
    if given is not None:
        pads = int((given == 0).sum())
        ids, start = ids[:, pads:], start - pads
    seen = [model(ids).logits[0, start - 1 :].double()]
    seen += [_in_pieces(model, ids, start, width) for width in _WIDTHS]
    seen = torch.nan_to_num(torch.stack(seen), posinf=0.0, neginf=0.0)
    if not everywhere:
        seen = seen[:, -1:]
    hotter = max(1.0, 1.0 / made.options.get("temperature", 1.0))
    return 2 * hotter * float((seen - seen[1]).abs().max())


def _in_pieces(model, ids, start, width):
    """Logits from the last prompt id on: `start` ids in one forward, the others `width` at a time."""
    outputs = model(ids[:, :start], use_cache=True)
    seen = [outputs.logits[0, -1:]]
    for at in range(start, ids.shape[1], width):
        more = {versions.CACHE: versions.cache_of(outputs)}
        outputs = model(ids[:, at : at + width], **more, use_cache=True)
        seen.append(outputs.logits[0])
    return torch.cat(seen).double()
