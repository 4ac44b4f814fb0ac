"""Kinds of model and cache beyond the two toys: what hears, what sees, what rounds its cache."""

import pytest
import torch
from toys import (
    CACHE,
    EAGER,
    NEW_TOKENS,
    OLD,
    PROMPT,
    VOCABULARY,
    compare,
    cyc,
    ready,
    redraw,
    rnd,
    run,
    spoiled,
)
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    FalconConfig,
    FalconForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import draftless
from draftless.integration import hooks

newest = pytest.mark.skipif(OLD, reason="this version of transformers cannot roll this cache back")
TOKENS = dict(bos_token_id=1, eos_token_id=None, pad_token_id=0)
LAYERS = dict(d_model=32, encoder_layers=2, decoder_layers=2, **TOKENS)
HEADS = dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64)


def redrawn(model, std=0.5):
    redraw(model, std, seed=5)
    settings = ready(model).generation_config
    settings.forced_bos_token_id = settings.forced_eos_token_id = None
    return model


def bart():
    sizes = dict(vocab_size=VOCABULARY, max_position_embeddings=256, decoder_start_token_id=2)
    return redrawn(BartForConditionalGeneration(BartConfig(**LAYERS, **HEADS, **sizes)))


def test_bart(do_sample):
    compare(bart, offset=PROMPT.shape[1], do_sample=do_sample, counts=do_sample)


def whisper():
    sizes = dict(vocab_size=VOCABULARY, num_mel_bins=8, max_source_positions=32, max_target_positions=128)
    starts = dict(decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None)
    model = redrawn(WhisperForConditionalGeneration(WhisperConfig(**LAYERS, **HEADS, **sizes, **starts)))
    model.generation_config.no_timestamps_token_id = VOCABULARY - 1
    return model


def test_whisper_with_toy_audio(do_sample):
    sound = torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(0))
    _, every = compare(whisper, sound, do_sample=do_sample, counts=False)
    assert every[1].drafted > 0


IMAGE, START, END = 60, 61, 62


def qwen2_vl():
    text = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    rope = dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=10000.0)
    text |= dict(vocab_size=VOCABULARY, num_key_value_heads=2, rope_scaling=rope, **TOKENS)
    vision = dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=4, mlp_ratio=2)
    ids = dict(image_token_id=IMAGE, video_token_id=59, vision_start_token_id=START, vision_end_token_id=END)
    model = redrawn(
        Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, **ids))
    )
    patches = torch.randn(16, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(0))
    more = {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]])}
    if not OLD:
        more["mm_token_type_ids"] = (SEEN == IMAGE).long()
    return model, more


SEEN = torch.tensor([[10, 11, 12, START, *[IMAGE] * 4, END, 13, 14, 10, 11, 12]])


def test_qwen2_vl_where_text_before_the_image_recurs(do_sample):
    compare(qwen2_vl, SEEN, do_sample=do_sample, counts=do_sample)


# -- caches ------------------------------------------------------------------------------------------


@newest
@pytest.mark.parametrize("make", [rnd, cyc])
def test_9_a_quantised_cache_runs_plainly(make):
    from transformers.cache_utils import QuantizedLayer

    class Rounded(QuantizedLayer):
        """Eighths, in a plain tensor: what a quantised layer forgets, without its libraries."""

        def _quantize(self, tensor, axis):
            return (tensor * 8).round()

        def _dequantize(self, quantized):
            return quantized / 8

    def made():
        cache = DynamicCache()
        cache.layers = [Rounded(residual_length=8) for _ in range(2)]
        cache.layer_class_to_replicate = None
        return make(), {CACHE: cache}

    _, every = compare(made, served=False)
    assert all("cannot be rolled back" in one.reason or "differ" in one.reason for one in every)


@newest
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [6, 24, 60])
def test_9_hybrid_of_sliding_and_full_layers(attention, length, do_sample):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    def make():
        kinds = ["sliding_attention", "full_attention"]
        config = dict(layer_types=kinds, sliding_window=8, head_dim=8, attn_implementation=attention)
        return redrawn(rnd(Gemma3ForCausalLM, Gemma3TextConfig, **config), std=0.35)

    compare(make, PROMPT.repeat(1, 3)[:, :length], do_sample=do_sample, counts=length > 6)


def lfm2():
    from transformers import Lfm2Config, Lfm2ForCausalLM

    kinds = ["conv", "full_attention"] * 2
    return redrawn(rnd(Lfm2ForCausalLM, Lfm2Config, num_hidden_layers=4, layer_types=kinds), std=0.35)


@newest
@pytest.mark.parametrize("length", [2, 20])
def test_9_hybrid_of_convolutions_and_attention(length, do_sample):
    compare(lfm2, PROMPT[:, :length], do_sample=do_sample)


@newest
@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_9_a_forward_that_breaks_off_leaves_convolutions_as_they_were(layer, error):
    plain = run(lfm2(), max_new_tokens=NEW_TOKENS)
    model, seen = lfm2(), []
    handle = draftless.attach(model, EAGER, drafter=spoiled(plain[0]))

    def breaks_off(module, args, kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        if 4 < hidden.shape[1] < 10:  # a draft's, neither the probe's nor the prefill
            seen.append(None)
            if len(seen) == 3:
                raise error("no")

    hook = model.model.layers[layer].register_forward_pre_hook(breaks_off, with_kwargs=True)
    cache = DynamicCache(config=model.config)
    try:
        assert run(model, **{CACHE: cache}).tolist() == plain.tolist()
        assert error is torch.OutOfMemoryError
    except KeyboardInterrupt:
        hook.remove()
        length = cache.get_seq_length()
        rest = model.generate(plain[:, : length + 1], max_new_tokens=8, do_sample=False, **{CACHE: cache})
        assert rest.tolist() == plain[:, : length + 9].tolist()
    assert len(seen) >= 3 and handle.last is not None


# -- models that compute a forward otherwise under some condition --------------------------------------


def longrope(model_class, config_class, boundary):
    rope = dict(short_factor=[1.0] * 4, long_factor=[4.0, 3.0, 2.0, 5.0], rope_theta=10000.0, factor=8.0)
    rope |= dict(rope_type="longrope", original_max_position_embeddings=boundary)
    rope = {"rope_scaling": rope | {"type": "longrope"}} if OLD else {"rope_parameters": rope}
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    sizes |= dict(vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=256)
    config = config_class(**sizes, **TOKENS, original_max_position_embeddings=boundary, **rope)
    return redrawn(model_class(config))


@newest  # plain Phi-3 fails at its boundary before
@pytest.mark.parametrize("kind", ["Llama", "Phi3"])
@pytest.mark.parametrize("boundary", [PROMPT.shape[1] - 1, *range(PROMPT.shape[1], PROMPT.shape[1] + 14)])
def test_drafts_do_not_cross_the_place_where_longrope_changes_its_factors(kind, boundary):
    classes = {
        "Llama": (LlamaForCausalLM, LlamaConfig),
        "Phi3": (Phi3ForCausalLM, Phi3Config),
    }[kind]
    _, every = compare(lambda: longrope(*classes, boundary))
    assert every[1].forwards < NEW_TOKENS


@newest
def test_a_model_is_tried_again_where_outputs_make_it_run_other_code():
    # Falcon with ALiBi gives other logits when attention maps are asked for.
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    config = FalconConfig(vocab_size=VOCABULARY, new_decoder_architecture=False, **sizes, **TOKENS)
    model = redrawn(FalconForCausalLM(config), std=0.35)
    maps = dict(output_attentions=True, return_dict_in_generate=True)
    plain, told = run(model), run(model, **maps).sequences
    with draftless.attached(model, EAGER, drafter=spoiled(plain[0])) as handle:
        assert run(model).tolist() == plain.tolist()
        assert run(model, **maps).sequences.tolist() == told.tolist()
        assert run(model).tolist() == plain.tolist()
        assert len({call_kind[-1] for call_kind in hooks.hooks_of(model)._probed}) == 2
    assert handle.stats.tokens == 3 * NEW_TOKENS


class Streams(type(rnd())):
    """Hidden states of several streams a token, as hyper-connections have them: (1, length, 4, hidden)."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        if outputs.hidden_states is not None:
            outputs.hidden_states = tuple(
                torch.stack([state + i for i in range(4)], dim=2) for state in outputs.hidden_states
            )
        return outputs


def test_6_hidden_states_that_cannot_be_cut_run_plainly():
    def make():
        model = rnd()
        model.__class__ = Streams
        return model

    options = dict(output_hidden_states=True, return_dict_in_generate=True)
    plain, every = compare(make, served=False, **options)
    assert all("hidden states" in one.reason for one in every)
    model = make()
    with draftless.attached(model, EAGER, drafter=spoiled(plain.sequences[0])):
        ours = run(model, **options)
    for step, other in zip(plain.hidden_states, ours.hidden_states, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(step, other, strict=True))
