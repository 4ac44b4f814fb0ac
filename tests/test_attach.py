"""The two ways in: attach, attached, detach; the per-call switch; LookupProcessor."""

import gc
import inspect
import threading
import warnings
import weakref

import pytest
import torch
from toys import CACHE, EAGER, NEW_TOKENS, PROMPT, Knows, cyc, rnd, run, spoiled
from transformers import DynamicCache, LogitsProcessorList, pipeline

import draftless
from draftless.integration.hooks import running_call

WRAPPED = {"generate", "forward", "prepare_inputs_for_generation"}


def is_wrapped(model):
    return set(vars(model)) >= WRAPPED


# attach


def test_attach_returns_a_handle_and_serves(toy):
    model = toy()
    handle = draftless.attach(model, EAGER)
    assert isinstance(handle, draftless.Handle)
    assert run(model).tolist() == run(toy()).tolist()
    assert handle.last.reason is None and handle.last.drafted > 0


def test_attach_again_replaces_the_configuration_and_keeps_the_statistics():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    run(model)
    assert draftless.attach(model, EAGER.replace(max_draft=2)) is handle
    assert handle.config.max_draft == 2
    run(model)
    assert handle.stats.calls == 2
    assert len(handle.last.drafted_at) == 2
    draftless.detach(model)
    assert not is_wrapped(model)


def test_attached_is_undone_after_the_block_and_after_an_exception():
    model = cyc()
    with draftless.attached(model) as handle:
        assert is_wrapped(model) and isinstance(handle, draftless.Handle)
    assert not is_wrapped(model)
    with pytest.raises(KeyError), draftless.attached(model):
        raise KeyError
    assert not is_wrapped(model)


def test_attached_inside_attach_gives_the_outer_configuration_back():
    model = cyc()
    outer = draftless.attach(model, EAGER)
    with draftless.attached(model, EAGER.replace(max_draft=1)) as inner:
        run(model)
    run(model)
    assert (inner.stats.calls, outer.stats.calls) == (1, 1)
    assert len(inner.stats.drafted_at) == 1 and len(outer.stats.drafted_at) == 7


def test_detach_twice_and_of_a_model_never_attached():
    model = cyc()
    draftless.detach(model)
    handle = draftless.attach(model)
    handle.detach()
    draftless.detach(model)
    assert not is_wrapped(model)


@pytest.mark.parametrize(
    "thing", [None, "model", torch.nn.Linear(2, 2), rnd().model], ids=lambda t: type(t).__name__
)
def test_attach_refuses_what_cannot_generate(thing):
    with pytest.raises(TypeError, match=f"can generate.*found {type(thing).__name__}"):
        draftless.attach(thing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"window": 3}}, "LookupConfig or None; found"),
        ({"drafter": 3}, "callable"),
        ({"cost": [1, 2]}, "CostModel"),
    ],
)
def test_attach_refuses_options_of_the_wrong_type_and_changes_nothing(options, message):
    model = rnd()
    with pytest.raises(TypeError, match=message):
        draftless.attach(model, **options)
    assert not is_wrapped(model)


def test_signatures_stay_as_they_were():
    model = rnd()
    before = {name: inspect.signature(getattr(model, name)) for name in sorted(WRAPPED)}
    draftless.attach(model)
    assert {name: inspect.signature(getattr(model, name)) for name in sorted(WRAPPED)} == before
    assert model.forward.__doc__ == type(model).forward.__doc__


# the per-call switch


def test_lookup_false_runs_one_call_plainly_and_silently():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    with warnings.catch_warnings():
        warnings.simplefilter("error", draftless.DraftlessWarning)
        assert run(model, lookup=False).tolist() == run(cyc()).tolist()
    assert handle.stats.calls == handle.stats.plain_calls == 0


def test_lookup_config_is_used_for_one_call():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    run(model, lookup=EAGER.replace(max_draft=3))
    assert len(handle.last.drafted_at) == 3
    run(model, lookup=True)
    assert len(handle.last.drafted_at) == 7


def test_lookup_of_another_type_is_refused():
    model = cyc()
    draftless.attach(model)
    with pytest.raises(TypeError, match="LookupConfig"):
        run(model, lookup="yes")


def test_lookup_without_attach_is_refused_as_any_unknown_argument():
    with pytest.raises(ValueError, match="lookup"):
        run(cyc(), lookup=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [("window", 4), ("min_match", 40), ("max_draft", 1), ("max_draft", 0), ("price", 50.0)],
)
def test_every_option_has_an_effect_on_generate(option, value):
    model = cyc()
    with draftless.attached(model, EAGER) as handle:
        run(model)
        usual = handle.last
        run(model, lookup=EAGER.replace(**{option: value}))
        assert handle.last.drafted < usual.drafted


def test_max_match_has_an_effect_on_generate():
    """After `9 1 2`, the longest match says 3, and the latest of those capped at 2 says 4."""
    ids = torch.tensor([[9, 1, 2, 3, 8, 1, 2, 4, 5, 9, 1]])
    forced = {11: [2], 12: [3], 13: [6]}
    accepted = {}
    for cap in (None, 2):
        model = rnd()
        handle = draftless.attach(model, EAGER.replace(max_match=cap, max_draft=1))
        run(model, ids, max_new_tokens=3, prefix_allowed_tokens_fn=lambda batch, so_far: forced[len(so_far)])
        accepted[cap] = (handle.last.accepted, handle.last.sources)
    assert accepted == {None: (1, [-1, 3, -1]), 2: (0, [-1, -1, -1])}


# LookupProcessor


def test_a_processor_speculates_for_its_call_alone(toy, do_sample):
    plain = run(toy(), do_sample=do_sample).tolist()
    model = toy()
    processor = draftless.LookupProcessor(model, EAGER)
    assert run(model, do_sample=do_sample, logits_processor=[processor]).tolist() == plain
    assert processor.last.drafted > 0 and processor.stats.calls == 1
    assert run(model, do_sample=do_sample).tolist() == plain
    assert processor.stats.calls == 1


@pytest.mark.parametrize("how", ["list", "processor list", "third argument"])
def test_a_processor_is_found_however_it_is_passed(how):
    model = cyc()
    processor = draftless.LookupProcessor(model, EAGER)
    if how == "third argument":
        model.generate(PROMPT, None, [processor], max_new_tokens=NEW_TOKENS, do_sample=False)
    else:
        run(
            model,
            logits_processor=LogitsProcessorList([processor]) if how == "processor list" else [processor],
        )
    assert processor.last.accepted > 5


class Telling(draftless.LookupProcessor):
    """A processor that leaves the statistics of its calls in a list, for when it is gone."""

    def __init__(self, model, calls, drafter=None):
        super().__init__(model, EAGER, drafter=drafter)
        self.calls = calls

    def ended(self, call):
        self.calls.append(call)
        super().ended(call)


def inline(model, calls, *, others=(), drafter=None, **options):
    """Run `generate`, found before the processor is made, as in one line of code."""
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **options}
    assert not is_wrapped(model)
    return model.generate(PROMPT, logits_processor=[Telling(model, calls, drafter), *others], **options)


def test_a_processor_made_within_the_call_speculates_and_is_gone_after(toy, do_sample):
    plain = run(toy(), do_sample=do_sample)
    model, calls = toy(), []
    torch.manual_seed(1)
    drafter = spoiled(plain[0])
    assert inline(model, calls, drafter=drafter, do_sample=do_sample).tolist() == plain.tolist()
    assert [call.reason for call in calls] == [None]
    assert calls[0].accepted >= 5 and calls[0].drafted > calls[0].accepted
    gc.collect()
    assert not is_wrapped(model) and running_call() is None
    assert run(model).tolist() == run(toy()).tolist()


def test_a_model_is_tried_once_however_many_processors_it_is_given():
    model, calls, forwards = cyc(), [], []
    model.model.register_forward_hook(lambda *_: forwards.append(1))
    inline(model, calls)
    tried = len(forwards)
    inline(model, calls)
    assert calls[0].forwards == calls[1].forwards == len(forwards) - tried < tried


def test_a_model_whose_forward_is_replaced_is_tried_anew():
    model, calls = cyc(), []
    inline(model, calls)
    whole = model.forward

    def shifted(*args, cache=None, past_key_values=None, **kwargs):
        given = {"cache": cache, "past_key_values": past_key_values}
        out = whole(*args, **{name: value for name, value in given.items() if value is not None}, **kwargs)
        if out.logits.shape[1] > 1:
            out.logits = out.logits.roll(1, dims=-1)
        return out

    model.forward = shifted
    with pytest.warns(draftless.DraftlessWarning, match="other logits"):
        inline(model, calls)
    assert calls[-1].reason is not None


def test_a_processor_made_within_the_call_rolls_the_cache_back():
    plain = run(cyc())
    for length in range(1, 12):
        out = inline(
            cyc(), [], drafter=spoiled(plain[0]), max_new_tokens=length, return_dict_in_generate=True
        )
        cache = out.get("cache", out.get("past_key_values"))
        assert cache.get_seq_length() == PROMPT.shape[1] + length - 1


class Breaks:
    """What breaks a call after nine tokens, in each of the places where a user's code may."""

    def __init__(self, error=KeyboardInterrupt):
        self.error = error

    def processor(self, ids, scores):
        if ids.shape[1] > PROMPT.shape[1] + 9:
            raise self.error
        return scores

    def criterion(self, ids, scores, **kwargs):
        self.processor(ids, scores)
        return torch.zeros(len(ids), dtype=torch.bool)

    def hook(self, model, args, kwargs, output):
        if self.left == 0:
            raise self.error
        self.left -= 1

    def put(self, tokens):
        self.hook(None, None, None, None)

    def end(self):
        pass

    def options(self, place, model):
        self.left = 10
        if place == "processor":
            return dict(others=[self.processor])
        if place == "criterion":
            return dict(stopping_criteria=[self.criterion])
        if place == "streamer":
            return dict(streamer=self)
        self.left = 5
        self.removable = model.model.register_forward_hook(self.hook, with_kwargs=True)
        return {}


PLACES = ["processor", "criterion", "forward", "streamer"]


@pytest.mark.parametrize("kept", [False, True], ids=["exception forgotten", "exception kept"])
@pytest.mark.parametrize("place", PLACES)
def test_a_processor_made_within_the_call_leaves_nothing_after_an_exception(place, kept):
    plain = run(cyc())
    model, calls, errors, breaks = cyc(), [], [], Breaks()
    try:
        inline(model, calls, **breaks.options(place, model))
    except KeyboardInterrupt as error:
        if kept:
            errors.append(error)
    if place == "forward":
        breaks.removable.remove()
    gc.collect()
    assert len(calls) == (0 if kept and place == "streamer" else 1)
    assert kept or (not is_wrapped(model) and running_call() is None)
    assert model(PROMPT).logits.shape[1] == PROMPT.shape[1]
    assert run(model).tolist() == plain.tolist()
    assert len(calls) == 1
    assert (
        model.generate(
            PROMPT, max_new_tokens=NEW_TOKENS, do_sample=False, logits_processor=[Telling(model, calls)]
        ).tolist()
        == plain.tolist()
    )
    assert calls[-1].accepted > 5
    errors.clear()
    gc.collect()
    assert len(calls) == 2
    assert not is_wrapped(model) and running_call() is None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["within", "attached"])
def test_11_while_its_exception_lives_a_cache_of_the_users_is_as_plain_would_leave_it(place, way):
    def broken(model, cache, calls=None):
        breaks = Breaks()
        options = breaks.options(place, model)
        try:
            if calls is None:
                options["logits_processor"] = options.pop("others", [])
                run(model, **options, **{CACHE: cache})
            else:
                inline(model, calls, drafter=spoiled(plain[0]), **options, **{CACHE: cache})
        except KeyboardInterrupt as error:
            if place == "forward":
                breaks.removable.remove()
            return error

    plain = run(cyc(), max_new_tokens=40)
    model = cyc()
    ours, theirs = DynamicCache(config=model.config), DynamicCache(config=model.config)
    kept = [broken(cyc(), theirs)]
    if way == "attached":
        draftless.attach(model, EAGER, drafter=spoiled(plain[0]))
        kept.append(broken(model, ours))
    else:
        kept.append(broken(model, ours, []))
    if place != "forward" and not (place == "streamer" and way == "within"):
        assert ours.get_seq_length() == theirs.get_seq_length()
    committed = plain[:, : ours.get_seq_length() + 1]
    again = run(model, committed, max_new_tokens=12, **{CACHE: ours})
    assert again.tolist() == plain[:, : committed.shape[1] + 12].tolist()
    assert all(kept)


def test_a_late_call_whose_exception_dies_in_another_thread_is_over_in_its_own():
    model, plain, calls, kept = cyc(), run(cyc()), [], []

    def breaks_and_goes_on():
        try:
            inline(model, calls, streamer=streamer)
        except KeyboardInterrupt as error:
            kept.append(error)
        asked.set()
        assert gone.wait(30)
        seen.append(running_call())
        seen.append(inline(model, calls).tolist())

    streamer = Breaks()
    streamer.left, seen = 10, []
    asked, gone = threading.Event(), threading.Event()
    thread = threading.Thread(target=breaks_and_goes_on)
    thread.start()
    assert asked.wait(30)
    kept.clear()
    gc.collect()
    gone.set()
    thread.join()
    assert seen == [None, plain.tolist()]
    assert len(calls) == 2 and calls[-1].accepted > 5


def test_a_call_that_fails_before_its_processors_keeps_nothing_of_its_arguments():
    model = cyc()
    cache = DynamicCache(config=model.config)
    gone = weakref.ref(cache)
    with pytest.raises(ValueError, match="no_such_argument"):
        inline(model, [], no_such_argument=1, **{CACHE: cache})
    del cache
    gc.collect()
    assert gone() is None


def test_a_processor_made_within_a_call_that_cannot_be_served_says_why_and_nothing_else(recwarn):
    model, calls = cyc(), []
    plain = cyc().generate(PROMPT, max_new_tokens=8, num_beams=2, do_sample=False)
    assert inline(model, calls, max_new_tokens=8, num_beams=2).tolist() == plain.tolist()
    said = [str(one.message) for one in recwarn if one.category is draftless.DraftlessWarning]
    assert len(said) == 1 and "beam search" in said[0]
    assert "beam search" in calls[0].reason and not is_wrapped(model) and running_call() is None


def test_processors_made_within_calls_of_two_models_do_not_disturb_each_other():
    plain, other = run(cyc()), run(rnd())
    outer, inner, calls, seen = cyc(), rnd(), [], []

    def asks(ids, scores):
        if len(seen) < 3:
            seen.append(inline(inner, calls).tolist())
        return scores

    assert inline(outer, calls, others=[asks]).tolist() == plain.tolist()
    assert seen == [other.tolist()] * 3
    assert len(calls) == 4 and calls[-1].accepted > 5


def test_a_processor_rolls_the_cache_back_at_the_end_of_its_call():
    plain = run(cyc())
    for length in range(1, 12):
        model = cyc()
        processor = draftless.LookupProcessor(model, EAGER, drafter=spoiled(plain[0]))
        out = run(model, max_new_tokens=length, return_dict_in_generate=True, logits_processor=[processor])
        cache = out.get("cache", out.get("past_key_values"))
        assert cache.get_seq_length() == PROMPT.shape[1] + length - 1


def test_a_processor_goes_when_closed_and_when_it_dies():
    model = cyc()
    one, two = draftless.LookupProcessor(model), draftless.LookupProcessor(model)
    one.close()
    one.close()
    assert is_wrapped(model)
    del two
    gc.collect()
    assert not is_wrapped(model)
    with draftless.LookupProcessor(model):
        assert is_wrapped(model)
    assert not is_wrapped(model)


def test_a_processor_beside_attach_uses_its_own_settings_and_statistics():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    processor = draftless.LookupProcessor(model, EAGER.replace(max_draft=2))
    run(model, logits_processor=[processor])
    assert len(processor.last.drafted_at) == 2 and handle.last is None
    processor.close()
    run(model)
    assert len(handle.last.drafted_at) == 7


def test_a_processor_of_another_model_or_closed_has_no_effect_and_says_so():
    other, model = cyc(), cyc()
    processor = draftless.LookupProcessor(other, EAGER)
    with pytest.warns(draftless.DraftlessWarning, match="no effect here"):
        assert run(model, logits_processor=[processor]).tolist() == run(cyc()).tolist()
    closed = draftless.LookupProcessor(other, EAGER)
    closed.close()
    with pytest.warns(draftless.DraftlessWarning, match="no effect here"):
        run(other, logits_processor=[closed])


# a drafter of the user's own


def test_a_drafter_of_the_users_own_is_made_for_every_call_and_hears_every_token():
    heard = []

    class Mine(draftless.LookupDrafter):
        def begin(self, ids):
            super().begin(ids)
            heard.append(list(ids))

        def commit(self, tokens):
            super().commit(tokens)
            heard[-1].extend(tokens)

    model = cyc()
    draftless.attach(model, EAGER, drafter=Mine)
    rows = [run(model, ids)[0].tolist() for ids in (PROMPT, PROMPT[:, 3:])]
    assert [row[: len(told)] for row, told in zip(rows, heard)] == heard
    assert all(len(told) >= len(row) - 9 for row, told in zip(rows, heard))


def test_a_drafter_that_proposes_too_much_or_a_tree_is_cut():
    plain = run(cyc())[0].tolist()

    class Wild(Knows):
        def draft(self, budget):
            chain = draftless.Draft.chain([*self.row[self.n :], *[10] * 500])
            chain.parents[3:] = 0
            return chain

    model = cyc()
    handle = draftless.attach(model, drafter=lambda config: Wild(plain))
    assert run(model)[0].tolist() == plain
    assert len(handle.last.drafted_at) == 3


# statistics


def test_statistics_add_up():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    out = run(model)
    last = handle.last
    assert last.tokens == len(last.sources) == NEW_TOKENS
    assert last.tokens_per_forward == last.tokens / last.forwards > 3
    assert last.drafted == sum(last.drafted_at) and last.accepted == sum(last.accepted_at)
    assert sum(source >= 0 for source in last.sources) == last.accepted
    row = out[0].tolist()
    for i, source in enumerate(last.sources):
        if source >= 0:
            assert row[source] == row[PROMPT.shape[1] + i]
    assert 0 < last.seconds_forward < last.seconds_total and last.seconds_lookup > 0
    assert last.seconds_around == pytest.approx(
        last.seconds_total - last.seconds_forward - last.seconds_lookup
    )
    run(model)
    assert handle.stats.tokens == 2 * NEW_TOKENS and handle.stats.calls == 2
    handle.reset()
    assert handle.last is None and handle.stats == draftless.Stats()


@pytest.mark.parametrize("embeddings", [False, True])
def test_forwards_are_counted_as_the_model_runs_them(toy, embeddings):
    model, ran = toy(), []
    inner = model.model.forward
    model.model.forward = lambda *a, **k: ran.append(1) or inner(*a, **k)
    handle = draftless.attach(model, EAGER)
    run(model)  # where a probe is needed, it is done now
    ran.clear()
    if embeddings:
        run(model, None, inputs_embeds=model.get_input_embeddings()(PROMPT).detach())
    else:
        run(model)
    assert handle.last.forwards == len(ran)
    assert handle.last.tokens == len(handle.last.sources) == NEW_TOKENS


def test_statistics_print_readably():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    run(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(model, num_beams=2)
    text = str(handle.stats)
    for part in (
        "30 in",
        "per forward",
        "accepted by depth",
        "lookup",
        "1 x its mode is beam search",
        "1 plain",
    ):
        assert part in text, text


# wrapped models


def test_12_a_pipeline():
    from test_contract import spelling

    def texts(**speculation):
        model = cyc()
        handle = draftless.attach(model, **speculation) if speculation else None
        pipe = pipeline("text-generation", model=model, tokenizer=spelling(), device="cpu")
        out = pipe("klmnopqrsklmnopqrskl", max_new_tokens=20, do_sample=False)[0]["generated_text"]
        return out, handle

    plain, _ = texts()
    ours, handle = texts(config=EAGER)
    assert ours == plain and handle.last.accepted > 5


def test_12_a_peft_adapter():
    peft = pytest.importorskip("peft")

    def adapted():
        model = rnd()
        torch.manual_seed(5)
        lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return peft.get_peft_model(model, lora).eval()

    def go(model):
        return run(model, None, input_ids=PROMPT)[0].tolist()

    plain = go(adapted())
    assert plain != run(rnd())[0].tolist()
    for where in (lambda model: model, lambda model: model.get_base_model()):
        model = adapted()
        handle = draftless.attach(where(model), EAGER, drafter=spoiled(plain))
        assert go(model) == plain
        assert handle.last.accepted >= 5 and handle.last.reason is None


def test_12_a_compiled_module_around_the_model():
    model = torch.compile(cyc(), backend="eager")
    handle = draftless.attach(model, EAGER)
    assert (
        model.generate(PROMPT, max_new_tokens=20, do_sample=False).tolist()
        == run(cyc(), max_new_tokens=20).tolist()
    )
    assert handle.last.accepted > 5


def test_12_a_model_compiled_in_place_runs_plainly_and_says_so():
    model = cyc()
    model.compile(backend="eager")
    handle = draftless.attach(model, EAGER)
    with pytest.warns(draftless.DraftlessWarning, match="compiled in place"):
        assert run(model).tolist() == run(cyc()).tolist()
    assert handle.last.drafted == 0
    draftless.detach(model)


def test_12_device_map():
    pytest.importorskip("accelerate")
    from accelerate import dispatch_model

    model = dispatch_model(cyc(), device_map={"": "cpu"}, main_device="cpu", force_hooks=True)
    handle = draftless.attach(model, EAGER)
    assert run(model).tolist() == run(cyc()).tolist()
    assert handle.last.accepted > 5


def test_a_hook_taken_off_by_someone_else_is_said():
    model = cyc()
    handle = draftless.attach(model, EAGER)
    del model.forward
    with pytest.warns(draftless.DraftlessWarning, match="did not pass through"):
        assert run(model).tolist() == run(cyc()).tolist()
    assert handle.last.reason
    draftless.detach(model)
    assert not set(vars(model)) & WRAPPED


def test_blocks_that_overlap_leave_nothing_behind():
    model = cyc()
    first, second = draftless.attached(model), draftless.attached(model)
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None), second.__exit__(None, None, None)
    assert not set(vars(model)) & WRAPPED


def test_replicas_of_data_parallel_are_plain():
    model = cyc()
    draftless.attach(model, EAGER)
    assert not set(vars(model._replicate_for_data_parallel())) & WRAPPED
    assert is_wrapped(model)


def test_a_processor_in_a_call_that_asked_to_be_plain_says_nothing():
    model = cyc()
    draftless.attach(model, EAGER)
    processor = draftless.LookupProcessor(model, EAGER)
    with warnings.catch_warnings():
        warnings.simplefilter("error", draftless.DraftlessWarning)
        run(model, logits_processor=[processor], lookup=False)
    assert processor.last is None


@pytest.mark.parametrize("bad", [None, [10, 11], "1"], ids=str)
def test_a_drafter_that_returns_no_draft_is_told_so(bad):
    class Bad:
        def begin(self, ids):
            pass

        def draft(self, budget):
            return bad

    model = cyc()
    draftless.attach(model, drafter=lambda config: Bad())
    with pytest.raises(TypeError, match=r"must return a Draft"):
        run(model)
    draftless.detach(model)
    assert run(model).tolist() == run(cyc()).tolist()


def test_a_negative_id_of_a_drafter_is_never_run():
    from toys import Scripted

    model = cyc()
    handle = draftless.attach(model, EAGER, drafter=lambda config: Scripted(lambda ids: [10, -3, 4]))
    assert run(model).tolist() == run(cyc()).tolist()
    assert len(handle.last.drafted_at) == 1
