"""One `generate` call: what is committed, which logits are at hand, and the wide forward.

The loop stays transformers' own. `Call.prepare` and `Call.forward` stand in for the
model's two methods while it runs: the first learns which token the loop picked, and
rolls the cache back if it is not the drafted one; the second hands out the logits at
hand, or has the model check a whole draft in one wide forward.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from ..lookup.draft import Draft
from . import outputs as views
from . import support, versions, warm
from .cache import PROBE_ROOM, CallCache, is_out_of_memory
from .stats import Stats


@dataclass
class Announced:
    """Inputs that the loop has asked for and will pass to its next forward."""

    ids: torch.Tensor  # (1, length), all ids so far
    kwargs: dict
    prepare: object
    inputs: dict
    replay: bool = False

    def is_for(self, kwargs) -> bool:
        """Whether these are the arguments of the forward that was announced."""
        cache = versions.cache_of(self.inputs)
        return (cache is not None and versions.cache_of(kwargs) is cache) or any(
            self.inputs.get(key) is not None and kwargs.get(key) is self.inputs[key]
            for key in ("input_ids", "decoder_input_ids", "inputs_embeds")
        )


@dataclass
class Wide:
    """A draft checked in one forward, and how far the loop has followed it."""

    draft: object
    tokens: list
    outputs: object
    length: int  # ids before the draft, the last committed one included
    at: int = 0  # drafted tokens that the loop picked too

    def expects(self, token, length) -> bool:
        return (
            self.at < len(self.tokens)
            and length == self.length + self.at + 1
            and token == self.tokens[self.at]
        )


class Call:
    """State of one call; dies with it.

    Parameters
    ----------
    hooks : Hooks
        The wrappers on the model, and what was learned about it.
    speculation : Speculation
        Whose settings and statistics this call uses.
    config : LookupConfig
    arguments : dict
        Those of `generate` that decide whether it can be served: see `support.reason_at_start`.

    Attributes
    ----------
    over : bool
        Whether it has ended.
    late : bool
        Whether it began after its `generate` and has not ended: see `Hooks._logits_processor`.
    before, frame
        Of a late call: the one that ran before it, and what `generate` it belongs to.
    """

    over = late = False
    before = frame = None

    def __init__(self, hooks, speculation, config, arguments):
        self.hooks = hooks
        self.model = hooks.model()
        self.speculation = speculation
        self.config = config
        self.stats = Stats(calls=1)
        self._arguments = arguments
        self._planned = False
        self._running = False  # inside a forward of the model's own
        self._open_clock = None
        self._on_cpu = self.model.device.type == "cpu"  # a forward that returned has ended
        self._began = time.perf_counter()
        self._begin_loop(None)

    def _begin_loop(self, max_length):
        """Forget the loop before: a model's own `generate` may run several."""
        self._serving = False
        self._max_length = max_length
        self._loop_cache = None  # what the prefill filled
        self._cache: CallCache | None = None  # the same, once it is known to roll back
        self._trusted = False  # a wide forward of this model and cache has been tried, and was right
        self._drafter = None
        self._written: list = []  # committed since the drafter last heard
        self._written_ids = None
        self._length = 0  # ids at the last decode step, its token included
        self._offset = 0  # entries in the cache before that step's forward, minus those ids
        self._most_drafted = 1 << 30  # as far as memory is known to allow
        self._last_place = 0  # the last entry that the model and its cache have a place for
        self._boundary = 0  # the first entry with which a forward is computed otherwise
        self._unsettled = False  # the cache may hold entries of a wide forward that is not noted yet
        self._announced: Announced | None = None
        self._wide: Wide | None = None

    # -- the plan, before the loop -----------------------------------------------------------------

    def plan(self, generation_config, criteria):
        """Decide whether this call is served, and return criteria that tell of every committed token."""
        self.end_loop()
        self._begin_loop(criteria.max_length)
        self._planned = True
        reason = support.reason_at_start(self.model, generation_config, self._arguments)
        if reason is not None:
            self.run_plainly(reason)
            return criteria
        self._serving = True
        return Watched(criteria, self)

    def run_plainly(self, reason) -> None:
        """Stop drafting for the rest of the call, and say why; the first reason counts."""
        self._settle()
        self._serving = False
        if self._cache is not None:
            self._cache.release()
        if self.stats.reason is not None:
            return
        self.stats.reason = reason
        self.speculation.say_once(f"this call of generate runs plainly, without drafts: {reason}")

    def committed(self, ids) -> None:
        """Be told that the loop appended a token to `ids`."""
        self.stats.tokens += 1
        self._written_ids = ids

    # -- the loop asks for inputs ------------------------------------------------------------------

    def prepare(self, original, ids, kwargs):
        """Stand in for the model's `prepare_inputs_for_generation`."""
        if not self._serving or self._running:
            return original(ids, **kwargs)
        if self._loop_cache is None:  # the prefill, or a chunk of it
            return self._announce(original, ids, kwargs)
        if versions.cache_of(kwargs) is not self._loop_cache:
            return original(ids, **kwargs)
        if not versions.is_decode_step(ids, kwargs):
            return self._announce(original, ids, kwargs)
        if self._cache is None and not self._start(original, ids, kwargs):
            return original(ids, **kwargs)
        return self._prepare_step(original, ids, kwargs)

    def _announce(self, original, ids, kwargs):
        self._settle()
        inputs = original(ids, **kwargs)
        if self._cache is not None and versions.cache_of(inputs) is None:  # the model reads all anew
            self._cache.release()
            self._cache = self._loop_cache = None
        self._announced = Announced(ids, kwargs, original, dict(inputs))  # who gets them may change them
        return inputs

    def _prepare_step(self, original, ids, kwargs):
        token = ids.select(1, -1).item()
        self._stop_clock()
        replay = self._wide is not None and self._wide.expects(token, ids.shape[1])
        self._note(token, ids, self._wide.draft.sources[self._wide.at] if replay else -1)
        if replay:
            stub = {
                ("decoder_input_ids" if self.model.config.is_encoder_decoder else "input_ids"): ids[:, -1:]
            }
            self._announced = Announced(ids, kwargs, original, stub, replay=True)
            self._announced.inputs[versions.cache_key(kwargs)] = self._loop_cache
            return dict(self._announced.inputs)
        return self._announce(original, ids, kwargs)

    def _start(self, original, ids, kwargs) -> bool:
        """At the first decode step: whether the cache says it can be rolled back."""
        reason = support.reason_after_prefill(ids, kwargs)
        if reason is not None:
            self.run_plainly(reason)
            return False
        self._cache = CallCache(self._loop_cache)
        self._offset = len(self._cache) - ids.shape[1]
        position = versions.last_position(kwargs)
        shift = position - len(self._cache) if position is not None else 0
        places = [1 << 30, self._cache.size]
        if self.hooks.positions is not None:
            places.append(self.hooks.positions - shift)
        self._last_place = min(place for place in places if place is not None) - 1
        self._boundary = (self.hooks.boundary or 0) - shift
        return True

    def _note(self, token, ids, source):
        """Take note of the token committed last."""
        if len(self.stats.sources) < self.stats.tokens:
            self.stats.sources.append(int(source))
        if ids.shape[1] != self._length + 1:  # the first step, or ids that the loop did not grow by one
            self._drafter = None
        self._length = ids.shape[1]
        self._written.append(token)
        self._token = token

    # -- the loop runs the model -------------------------------------------------------------------

    def forward(self, original, args, kwargs):
        """Stand in for the model's `forward`."""
        if self._running or not self._serving:
            return original(*args, **kwargs)
        announced = self._announced
        if announced is None or args or not announced.is_for(kwargs):
            if self._wide is not None and versions.cache_of(kwargs) is self._loop_cache:
                self._settle()  # someone else uses the loop's cache: let it see what plain would hold
            return original(*args, **kwargs)
        self._announced = None
        if support.is_edited(announced.inputs, kwargs):
            return self._edited(original, announced, kwargs)
        if announced.replay and self._wide is not None:
            self._wide.at += 1
            return self._node()
        if self._loop_cache is None or self._cache is None:
            return self._prefill(original, kwargs)
        return self._step(original, announced, kwargs)

    def _edited(self, original, announced, kwargs):
        """Run as plain would: a wide forward would miss what someone does to the inputs on their way."""
        self.run_plainly(
            "something (a hook, a wrapper, prompt learning) changes the model's inputs between "
            "prepare_inputs_for_generation and forward"
        )
        if announced.replay:
            inputs = announced.prepare(announced.ids, **announced.kwargs)
            kwargs = {**inputs, "return_dict": True}
        return original(**kwargs)

    def _prefill(self, original, kwargs):
        outputs = self._run(original, kwargs, width=None)
        self.stats.forwards += self._loop_cache is None  # chunks count as one
        self._loop_cache = versions.cache_of(outputs)
        if self._loop_cache is None:
            self.run_plainly("the model returns no cache")
        return outputs

    def _step(self, original, announced, kwargs):
        draft, before = self._draft(announced, kwargs)
        while draft is not None and len(draft):
            try:
                outputs = self._check(original, announced, kwargs, draft)
            except Exception as error:
                self._ran_out(error, 1 + len(draft), before)
                draft = draft.head(self._most_drafted)
            else:
                if outputs is not None:
                    return outputs
                break
        outputs = self._run(original, kwargs, width=1)
        if self._serving:
            self._cache.roll_back(0)
        return outputs

    def _ran_out(self, error, width, before):
        """After a wide forward that found too little memory: undo it and draft half as much from now on."""
        if not is_out_of_memory(error):
            raise error
        self._running, self._open_clock, self._wide, self._unsettled = False, None, None, False
        self._cache.restore(before, self._entries)
        self._most_drafted = (width - 1) // 2
        self.speculation.say_once(
            "a forward of several tokens ran out of memory; drafts are halved until it fits. "
            "Smaller drafts from the start: LookupConfig(max_draft=...)"
        )

    def _draft(self, announced, kwargs):
        """Return the draft to check now, None for none, and what the cache was before."""
        draft = self._proposed(announced.ids)
        if draft is None:
            return None, None
        before = self._cache.snapshot()
        return (draft if self._is_trusted(announced, kwargs, before) else None), before

    def _is_trusted(self, announced, kwargs, before) -> bool:
        """Before a call's first wide forward: whether one has been tried, or can be now, and was right."""
        if self._trusted:
            return True
        settings = {name: value for name, value in kwargs.items() if isinstance(value, bool)}
        if not self.hooks.is_probed(self._loop_cache, settings) and self._places() < PROBE_ROOM:
            return False
        self._running = True
        try:
            reason = self.hooks.reason_by_probe(announced.prepare, announced.ids, announced.kwargs, settings)
        except Exception as error:
            self._ran_out(error, 1, before)
            return False
        self._running = False
        self._trusted = reason is None
        if reason is not None:
            self.run_plainly(reason)
        return self._trusted

    def _proposed(self, ids):
        began = time.perf_counter()
        try:
            if self._drafter is None:
                if not self._begin(ids):
                    return None
            else:
                self._drafter.commit(self._written)
            self._written = []
            budget = self._room()
            if budget <= 0 or not self.hooks.is_word(self._token):
                return None
            draft = checked_draft(self._drafter.draft(budget))
            if len(draft):
                draft = self.hooks.words_of(draft.first_chain().head(budget))
            return draft if len(draft) else None
        finally:
            self.stats.seconds_lookup += time.perf_counter() - began

    def _begin(self, ids) -> bool:
        if self.speculation.uses_lookup and not warm.ready(wait=self.config.deterministic):
            return False
        self._drafter = self.speculation.new_drafter(self.config)
        seen = np.concatenate([self._arguments["encoder_ids"], ids[0].cpu().numpy()])
        self._drafter.begin(self.hooks.searchable(seen))
        return True

    @property
    def _entries(self):
        """Committed entries in the cache before the next forward."""
        return self._length + self._offset

    def _room(self):
        """How many drafted tokens can be of use, and have a place."""
        if self._max_length is None:
            return min(self._places(), self._most_drafted)
        return min(self._places(), self._most_drafted, self._max_length - self._length - 1)

    def _places(self):
        """How many tokens after the last the model and its cache have a place for."""
        last = self._last_place
        if self._entries < self._boundary:
            last = min(last, self._boundary - 1)
        return last - self._entries

    def _check(self, original, announced, kwargs, draft):
        """Run the wide forward and return the logits of its first position; None if the model would not."""
        n = len(draft)
        tokens = draft.tokens.tolist()
        added = torch.as_tensor([tokens], dtype=announced.ids.dtype, device=announced.ids.device)
        longer = versions.lengthened(self.model, announced.kwargs, n)
        inputs = announced.prepare(torch.cat([announced.ids, added], dim=1), **longer)
        inputs = {**{key: value for key, value in kwargs.items() if key not in inputs}, **inputs}
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = n + 1
        self._unsettled = True
        outputs = self._run(original, inputs, width=n + 1)
        columns = self._cache.size or self._entries + n + 1
        reason = views.reason_against_outputs(outputs, n + 1, None if self._cache.records_past else columns)
        if reason is not None:
            self._cache.roll_back(n + 1)
            self._unsettled = False
            self.run_plainly(reason)
            return None
        self._wide = Wide(draft, tokens, outputs, announced.ids.shape[1])
        self._unsettled = False
        return self._node()

    def _node(self):
        """Return the outputs of the position of the wide forward that the loop has come to."""
        return views.node_of(self._wide.outputs, self._wide.at, grows=self._cache.size is None)

    def _run(self, original, kwargs, width):
        """Run a forward of the model's own; `width` None is the prefill."""
        self._running = True
        began = time.perf_counter()
        outputs = original(**kwargs)
        self._running = False
        self._open_clock = (width, began)
        if self._on_cpu:
            self._stop_clock()
        if width is not None:
            self.stats.forwards += 1
        return outputs

    def _stop_clock(self):
        """Note the seconds of the last forward; an accelerator's has ended once a token was looked at."""
        if self._open_clock is None:
            return
        width, began = self._open_clock
        self._open_clock = None
        seconds = time.perf_counter() - began
        self.stats.seconds_forward += seconds
        if width is not None:
            self.speculation.cost.observe(width, seconds)

    # -- rolling back ------------------------------------------------------------------------------

    def _settle(self):
        """Roll the cache back to the committed tokens, and learn from the draft."""
        if self._wide is None:
            return
        self._unsettled = True
        wide, self._wide = self._wide, None
        self._cache.roll_back(len(wide.tokens) - wide.at)
        self._unsettled = False
        self.stats.count_draft(len(wide.tokens), wide.at)
        began = time.perf_counter()
        self._drafter.learn(wide.draft, range(wide.at))
        self.stats.seconds_lookup += time.perf_counter() - began

    def end_loop(self) -> None:
        """The loop has written its last token: its cache holds the committed tokens from here on."""
        self._stop_clock()
        self._count_last()
        if self._cache is not None:
            if self._running or self._unsettled:
                self._cache.roll_back_to(self._entries)
            else:
                self._settle()
            self._cache.release()

    def close(self, ended=True) -> None:
        """End the call, however it ended, and count it.

        `ended` is False after an exception, which says nothing about whether drafts were possible.
        """
        self.end_loop()
        if ended and self.stats.reason is None:
            self._look_for_a_reason()
        self.stats.seconds_total = time.perf_counter() - self._began
        self.speculation.ended(self.stats)

    def _look_for_a_reason(self):
        """A call that never came to its first decode step was not served, whatever was planned."""
        if not self._planned:
            self.run_plainly("it did not reach generate's own loop")
        elif self._loop_cache is None:
            self.run_plainly(
                "it did not pass through the model's own prepare_inputs_for_generation and forward where "
                "draftless stands (replaced, compiled in place, generated by an inner model); attach after "
                "the last change to the model, or to the model whose loop runs"
            )
        elif self._cache is None and self.stats.tokens > 2:
            self.run_plainly(f"its cache, a {type(self._loop_cache).__name__}, is not kept from step to step")

    def _count_last(self):
        """The last token has no forward of its own; see whether it was drafted."""
        if self._written_ids is None or len(self.stats.sources) >= self.stats.tokens:
            return
        wide, source = self._wide, -1
        if wide is not None and wide.expects(int(self._written_ids[0, -1]), self._written_ids.shape[1]):
            source = int(wide.draft.sources[wide.at])
            self.stats.count_last_accepted(wide.at)
        self.stats.sources.append(source)


class Watched(StoppingCriteriaList):
    """The loop's own stopping criteria, telling the call of every token before they judge it."""

    def __init__(self, criteria, call):
        super().__init__(criteria)
        self._call = call
        self.when_done = self.when_failed = None

    def __call__(self, input_ids, scores, **kwargs):
        try:
            self._call.committed(input_ids)
            done = super().__call__(input_ids, scores, **kwargs)
        except BaseException:
            if self.when_failed is not None:
                self.when_failed()
            raise
        if all(done.tolist()):
            self._call.end_loop()
            if self.when_done is not None:
                self.when_done()
        return done


class Guarded(LogitsProcessorList):
    """The loop's own processors, telling of an error in one of them."""

    def __init__(self, processors, when_failed):
        super().__init__(processors)
        self._when_failed = when_failed

    def __call__(self, input_ids, scores, **kwargs):
        try:
            return super().__call__(input_ids, scores, **kwargs)
        except BaseException:
            self._when_failed()
            raise


def checked_draft(draft) -> Draft:
    """Return what a drafter proposed, if it is a draft."""
    if not isinstance(draft, Draft):
        raise TypeError(f"a drafter's draft() must return a Draft, empty if there is none; found {draft!r}")
    return draft
