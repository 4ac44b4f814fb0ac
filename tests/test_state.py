"""11: each call is as if it were the first, and the model is as if nobody had touched it."""

import copy
import gc
import pickle
import sys
import threading
import warnings
import weakref

import pytest
import torch
from toys import CACHE, CYCLE, EAGER, NEW_TOKENS, OLD, PROMPT, cyc, rnd, run, sequences, spoiled
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    LogitsProcessor,
    MistralConfig,
    MistralForCausalLM,
    StoppingCriteria,
)

import draftless
from draftless.integration import call

OTHER = torch.tensor([[20, 21, 22, 20, 21, 22, 30, 20, 21]])


def attached(make, **speculation):
    model = make()
    draftless.attach(model, EAGER, **speculation)
    return model


def test_11_the_same_call_three_times_and_two_prompts_in_turn(toy, do_sample):
    plain = [run(toy(), ids, do_sample=do_sample).tolist() for ids in (PROMPT, PROMPT, OTHER, PROMPT, OTHER)]
    model = attached(toy)
    assert [
        run(model, ids, do_sample=do_sample).tolist() for ids in (PROMPT, PROMPT, OTHER, PROMPT, OTHER)
    ] == plain


class Bang(Exception):
    pass


class RaisesAt(LogitsProcessor, StoppingCriteria):
    """Raises at its n-th call: as a processor, a criterion or a streamer."""

    def __init__(self, n, error=Bang):
        self.left, self.error = n, error

    def __call__(self, input_ids, scores):
        self.count()
        return scores if torch.is_tensor(scores) else torch.zeros(len(input_ids), dtype=torch.bool)

    def count(self):
        self.left -= 1
        if self.left == 0:
            raise self.error

    def put(self, ids):
        self.count()

    def end(self):
        pass


@pytest.mark.parametrize("error", [Bang, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "streamer"])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_11_an_exception_in_the_middle(toy, where, n, error):
    plain = run(toy()).tolist()
    model, cache = attached(toy), DynamicCache()
    thrower = RaisesAt(n, error)
    with pytest.raises(error):
        run(model, **{where: thrower if where == "streamer" else [thrower], CACHE: cache})
    assert cache.get_seq_length() <= PROMPT.shape[1] + n
    assert run(model).tolist() == plain
    draftless.detach(model)
    assert "forward" not in vars(model)


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("layer", [0, 1])
def test_11_an_exception_in_a_forward_leaves_the_cache_as_before_it(toy, at, layer):
    model, cache, calls = attached(toy), DynamicCache(), []
    run(model)
    inner = model.model.layers[layer].mlp.forward

    def fails(*args, **kwargs):
        calls.append(cache.get_seq_length())
        if len(calls) == at:
            raise Bang
        return inner(*args, **kwargs)

    model.model.layers[layer].mlp.forward = fails
    with pytest.raises(Bang):
        run(model, **{CACHE: cache})
    lengths = {layer.get_seq_length() for layer in cache.layers}
    assert len(lengths) == 1
    assert PROMPT.shape[1] <= lengths.pop() < PROMPT.shape[1] + NEW_TOKENS


class Cramped(LlamaForCausalLM):
    """A model with memory for forwards of `fits` tokens, the prefill apart; runs out in its last layer."""

    fits, error = 3, torch.OutOfMemoryError("tried to allocate more than there is")

    def forward(self, *args, **kwargs):
        width = kwargs["input_ids"].shape[1]
        outputs = super().forward(*args, **kwargs)
        if self.fits < width < PROMPT.shape[1]:
            raise self.error
        return outputs


@pytest.mark.parametrize("fits", [1, 2, 4, 5])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), RuntimeError("x: can't allocate memory: y")])
def test_11_a_wide_forward_that_runs_out_of_memory_is_halved(toy, do_sample, fits, error, monkeypatch):
    monkeypatch.setattr(Cramped, "fits", fits)
    monkeypatch.setattr(Cramped, "error", error)
    plain = run(toy(), do_sample=do_sample)
    model = toy(Cramped)
    handle = draftless.attach(model, EAGER, drafter=spoiled(plain[0]))
    for again in range(2):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert run(model, do_sample=do_sample).tolist() == plain.tolist()
        assert handle.last.reason is None
        assert [str(one.message).split(";")[0] for one in said] == [
            "a forward of several tokens ran out of memory"
        ] * (again == 0)
    assert (handle.last.accepted > 0) == (fits >= 4)  # the probe is a forward of four tokens
    assert len(handle.last.drafted_at) < fits


@pytest.mark.parametrize("window", [None, 8, 25])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 6, 9])
def test_11_memory_that_runs_out_inside_a_layers_update(window, nth, monkeypatch):
    """A layer that raises half-way misreports its length: what it held before is put back instead."""

    def make():
        return rnd() if window is None else rnd(MistralForCausalLM, MistralConfig, sliding_window=window)

    plain = run(make())
    model = make()
    handle = draftless.attach(model, EAGER, drafter=spoiled(plain[0]))
    run(model)  # the probe is passed
    whole, calls = torch.cat, []

    def cramped(tensors, *args, **kwargs):
        if sys._getframe(1).f_code.co_name == "update" and 1 < tensors[-1].shape[-2] < 9:
            calls.append(None)
            if len(calls) == nth:
                raise torch.OutOfMemoryError("no")
        return whole(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "cat", cramped)
    assert run(model).tolist() == plain.tolist()
    assert len(calls) >= nth or handle.last.reason is not None
    monkeypatch.undo()
    assert run(model).tolist() == plain.tolist()


def test_11_memory_that_runs_out_when_outputs_are_cut(monkeypatch):
    options = dict(output_hidden_states=True, return_dict_in_generate=True)
    plain = run(rnd(), **options).sequences
    model = rnd()
    draftless.attach(model, EAGER, drafter=spoiled(plain[0]))
    whole, left = call.views.node_of, [3]

    def cramped(*args, **kwargs):
        left[0] -= 1
        if left[0] >= 0:
            raise torch.OutOfMemoryError("no")
        return whole(*args, **kwargs)

    monkeypatch.setattr(call.views, "node_of", cramped)
    assert run(model, **options).sequences.tolist() == plain.tolist()


def test_11_another_error_of_a_wide_forward_is_the_callers(toy, monkeypatch):
    plain = run(toy())
    model = toy(Cramped)
    handle = draftless.attach(model, EAGER, drafter=spoiled(plain[0]))
    monkeypatch.setattr(Cramped, "fits", 4)
    monkeypatch.setattr(Cramped, "error", RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        run(model)
    monkeypatch.setattr(Cramped, "fits", 100)
    assert run(model).tolist() == plain.tolist() and handle.last.accepted > 0


def test_11_threads_on_one_model(toy, do_sample):
    prompts = [PROMPT, OTHER, PROMPT[:, 4:], OTHER[:, 2:]] * 3
    # sampling threads share one generator: only that nothing breaks can be said
    plain = None if do_sample else [run(toy(), ids).tolist() for ids in prompts]
    model, results = attached(toy), [None] * len(prompts)

    def work(i):
        results[i] = model.generate(prompts[i], max_new_tokens=NEW_TOKENS, do_sample=do_sample).tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results)
    if plain is not None:
        assert results == plain


class CallsTheModel(LogitsProcessor):
    """Uses the model while it generates: by a forward, with a cache of its own, by `generate`."""

    def __init__(self, model, how):
        self.model, self.how, self.seen = model, how, []
        self.cache = None

    def __call__(self, input_ids, scores):
        with torch.no_grad():
            if self.how == "forward":
                logits = self.model(input_ids).logits[:, -1]
            elif self.how == "cached":
                new = input_ids if self.cache is None else input_ids[:, -1:]
                out = self.model(new, use_cache=True, **{CACHE: self.cache})
                self.cache, logits = out[CACHE], out.logits[:, -1]
            elif self.how == "generate":
                logits = scores
                self.seen.append(
                    self.model.generate(input_ids[:, -4:], max_new_tokens=3, do_sample=False).tolist()
                )
            else:
                logits = scores
                position = {"cache_position": torch.arange(input_ids.shape[1])} if OLD else {}
                prepared = self.model.prepare_inputs_for_generation(
                    input_ids, attention_mask=torch.ones_like(input_ids), **position
                )
                self.seen.append(prepared["input_ids"].tolist())
        self.seen.append(logits.tolist())
        return scores + 0.5 * logits


@pytest.mark.parametrize("how", ["forward", "cached", "generate", "prepare"])
def test_11_calls_of_the_model_that_are_not_the_loops(toy, how):
    def once(model):
        processor = CallsTheModel(model, how)
        return run(model, logits_processor=[processor]).tolist(), processor.seen

    plain, plain_saw = once(toy())
    for speculation in ({}, {"drafter": spoiled(plain[0])}):
        ours, saw = once(attached(toy, **speculation))
        assert ours == plain
        for mine, theirs in zip(saw, plain_saw, strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=1e-3, atol=1e-3)


def test_11_guidance_scale(toy):
    options = dict(guidance_scale=1.5, negative_prompt_ids=PROMPT[:, :5])
    assert run(attached(toy), **options).tolist() == run(toy(), **options).tolist()


class FeedsTheLoopsCache(LogitsProcessor):
    """Feeds a token by hand into the loop's own cache, and takes it out again."""

    def __init__(self, model, cache):
        self.model, self.cache, self.lengths = model, cache, []

    def __call__(self, input_ids, scores):
        with torch.no_grad():
            self.lengths.append(self.cache.get_seq_length())
            logits = self.model(input_ids[:, -1:], use_cache=True, **{CACHE: self.cache}).logits[:, -1]
            self.lengths.append(self.cache.get_seq_length())
            self.cache.crop(-1)
        return scores + 0.1 * logits


def test_11_a_processor_that_feeds_the_loops_cache(toy):
    def once(model):
        cache = DynamicCache()
        processor = FeedsTheLoopsCache(model, cache)
        out = run(model, logits_processor=[processor], **{CACHE: cache}).tolist()
        return out, processor.lengths[1::2]

    plain, lengths = once(toy())
    ours, our_lengths = once(attached(toy, drafter=spoiled(plain[0])))
    assert ours == plain
    assert our_lengths == lengths


def test_11_scoring_and_training_outside_generate(toy):
    model, twin = attached(toy), toy()
    run(model), run(twin)
    with torch.no_grad():
        assert torch.equal(model(PROMPT).logits, twin(PROMPT).logits)
    model.train()(PROMPT, labels=PROMPT).loss.backward()
    twin.train()(PROMPT, labels=PROMPT).loss.backward()
    assert torch.equal(model.lm_head.weight.grad, twin.lm_head.weight.grad)


def test_11_a_token_fed_by_hand_after_a_call(toy):
    logits = []
    for make in (toy, lambda: attached(toy, drafter=spoiled(run(toy())[0]))):
        model = make()
        out = run(model, max_new_tokens=13, return_dict_in_generate=True)
        with torch.no_grad():
            logits.append(model(out.sequences[:, -1:], use_cache=True, **{CACHE: out[CACHE]}).logits)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_11_copies_of_an_attached_model_are_plain(toy, copied):
    model = attached(toy)
    run(model)
    twin = copied(model)
    assert set(vars(twin)) == set(vars(toy()))
    with torch.no_grad():
        twin.lm_head.weight.copy_(-twin.lm_head.weight) if copied is not copy.copy else None
    if copied is not copy.copy:
        assert run(twin).tolist() != run(model).tolist() == run(toy()).tolist()
    assert "forward" in vars(model)


def test_11_save_pretrained_of_an_attached_model(toy, tmp_path):
    model = attached(toy)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert type(loaded).__name__ == "LlamaForCausalLM" and "forward" not in vars(loaded)
    assert run(loaded, eos_token_id=None, pad_token_id=0).tolist() == run(toy()).tolist()


def test_11_detach_leaves_what_a_twin_has(toy):
    model, twin = toy(), toy()
    before = dict(vars(model))
    draftless.attach(model, EAGER)
    assert set(vars(model)) - set(before) >= {"generate", "forward", "prepare_inputs_for_generation"}
    for one in (model, twin):
        run(one), run(one, do_sample=True)
    draftless.detach(model)
    assert set(vars(model)) == set(vars(twin))
    assert vars(model) == before
    assert model.forward.__func__ is type(model).forward


def test_11_detach_gives_back_an_instance_attribute_that_was_there():
    model = rnd()
    original = type(model).forward.__get__(model)

    def mine(*args, **kwargs):
        return original(*args, **kwargs)

    model.forward = mine
    plain = run(model).tolist()
    draftless.attach(model, EAGER)
    assert run(model).tolist() == plain
    assert copy.deepcopy(model).forward is mine
    draftless.detach(model)
    assert model.forward is mine


def test_11_detach_leaves_a_wrapper_put_on_later_and_falls_silent():
    model = cyc()
    plain = run(model).tolist()
    draftless.attach(model, EAGER)
    ours = model.forward
    model.forward = lambda *args, **kwargs: ours(*args, **kwargs)
    assert run(model).tolist() == plain
    theirs = model.forward
    draftless.detach(model)
    assert model.forward is theirs
    assert run(model).tolist() == plain


def test_11_a_model_detached_in_the_middle_of_a_call(toy):
    plain = run(toy()).tolist()
    model = attached(toy)

    class Detaches(LogitsProcessor):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] == PROMPT.shape[1] + 6:
                draftless.detach(model)
            return scores

    assert run(model, logits_processor=[Detaches()]).tolist() == plain
    assert "forward" not in vars(model)
    assert run(model).tolist() == plain


def test_11_an_attached_model_is_freed_with_its_last_reference():
    model = attached(rnd)
    run(model)
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_11_a_cache_given_by_the_user_records_its_past_no_longer_than_the_call():
    cache = DynamicCache()
    model = attached(cyc)
    run(model, **{CACHE: cache})
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    assert CYCLE[0] in sequences(run(model))[0].tolist()
