"""Every causal language model class of the installed transformers, built small, with and without drafts.

No class is known by name but for sizes that the general rules get wrong (`_OWN_SIZES`). Weights
are drawn anew with a large deviation: as initialised by default, many classes repeat one token
for ever, and then equality proves nothing.
"""

import warnings
from dataclasses import dataclass

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..integration.attach import attached
from ..integration.handle import DraftlessWarning
from ..lookup.config import LookupConfig
from .toys import Spoiled, ready, redraw

NEW_TOKENS = 40
_PROMPT = [*range(10, 19)] * 2 + [10, 11]
_EAGER = LookupConfig(price=0, deterministic=True, max_draft=7)
# Deviations of weights, and how much larger embeddings are: until what is written varies. Where every layer
# ends in a norm, large weights drown what tells tokens apart.
_SPREADS = ((0.35, 1), (0.5, 1), (0.25, 1), (0.8, 1), (0.1, 1), (0.1, 4), (0.1, 10))
_DRAWS = [(*spread, seed) for seed in (1, 2, 3) for spread in _SPREADS]
_DISTINCT, _ACCEPTED, _REJECTED = 8, 5, 5  # what a run needs to prove anything
_LAYERS = 4
_KINDS = ({}, {"do_sample": True}, {"padded": True})

_SIZES = {
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "input_embedding_size", "output_embedding_size"), 32),
    **dict.fromkeys(("attention_hidden_size", "embedding_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "dff", "d_inner", "feed_forward_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "dim_ff"), 64),
    **dict.fromkeys(("intermediate_size_mlp", "shared_intermediate_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("head_dim", "dim_head", "d_kv", "kv_channels", "rotary_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "global_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "linear_key_head_dim", "linear_value_head_dim"), 8),
    "q_lora_rank": 16,
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", "moe_topk", "moe_k"), 2
    ),
    **dict.fromkeys(
        ("n_group", "num_expert_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1
    ),
    **dict.fromkeys(("sliding_window", "attention_window_size", "window_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "chunk_size", "mamba_chunk_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_num_heads", "mamba_head_dim"), 8),
    **dict.fromkeys(("n_mamba_heads", "mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "laurel_rank": 4,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "pad_index": 0}
_SETTINGS = {"is_decoder": True, "use_mamba_kernels": False, "tie_word_embeddings": False}

_OWN_SIZES = {
    "bamba": dict(attn_layer_indices=[1, 3], mamba_expand=2),
    "big_bird": dict(attention_type="original_full"),
    "dbrx": dict(
        ffn_config=dict(ffn_hidden_size=32, moe_num_experts=4, moe_top_k=2, hidden_size=32),
        attn_config=dict(kv_n_heads=2, clip_qkv=8, rope_theta=10000.0),
    ),
    "deepseek_v2": dict(topk_method="greedy", num_experts_per_tok=2, n_group=1, topk_group=1),
    "dots1": dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2),
    "falcon_h1": dict(mamba_d_ssm=64),
    "gpt_neo": dict(attention_types=[[["global", "local"], 2]]),
    "gemma3n_text": dict(num_kv_shared_layers=2, activation_sparsity_pattern=None),
    "gemma4_text": dict(num_kv_shared_layers=2),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2),
    "hunyuan_v1_dense": dict(head_dim=8),
    "hunyuan_v1_moe": dict(head_dim=8),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8),
    "mamba2": dict(num_heads=8, head_dim=8, expand=2),
    "minimax": dict(block_size=8),
    "nemotron_h": dict(hybrid_override_pattern="M-M*"),
    "recurrent_gemma": dict(num_hidden_layers=3),
    "reformer": dict(
        num_attention_heads=2,
        attention_head_size=16,
        num_hidden_layers=2,
        attn_layers=["local", "lsh"],
        axial_pos_shape=[16, 16],
        axial_pos_embds_dim=[16, 16],
        local_attn_chunk_length=16,
        lsh_attn_chunk_length=16,
        num_buckets=2,
    ),
    "xlm": dict(lang_id=0, mask_token_id=5),
    "xmod": dict(default_language="en_XX"),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "ministral": dict(head_dim=8),
    "nemotron": dict(num_key_value_heads=2),
    "zaya": dict(num_experts_per_tok=1),
    "zamba": dict(
        attention_hidden_size=64,
        attn_layer_period=2,
        attn_layer_offset=1,
        n_mamba_heads=2,
        attention_head_dim=16,
    ),
    "zamba2": dict(
        attention_hidden_size=64,
        hybrid_layer_ids=[1, 3],
        n_mamba_heads=8,
        mamba_headdim=8,
        num_mem_blocks=1,
        layers_block_type=["mamba", "hybrid"] * 2,
    ),
}


@dataclass
class Row:
    """What became of one class.

    `status` is "served", "plain", "different", "error", "unproven" (what it writes does not vary,
    or plain itself fails) or "not built"; `why` says more; `theirs` is whether transformers' own
    prompt lookup ran and wrote plain's tokens.
    """

    model_type: str
    name: str
    status: str
    why: str = ""
    distinct: int = 0
    accepted: int = 0
    rejected: int = 0
    theirs: bool = False


def classes() -> list:
    """Return (model type, class name) of every causal language model class, sorted."""
    found = []
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for name in (names,) if isinstance(names, str) else names:
            found.append((model_type, name))
    return sorted(set(found))


def check(model_type, name) -> Row:
    """Build one class small, and compare runs of every kind with and without drafts."""
    row = Row(model_type, name, "not built")
    try:
        model = _built(model_type, name)
    except Exception as error:
        row.why = _line(error)
        return row
    for deviation, spread, seed in _DRAWS:
        redraw(model, deviation, seed)
        if spread > 1:
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(spread)
        try:
            plain = [_run(model, **kind) for kind in _KINDS]
        except Exception as error:
            row.status, row.why = "unproven", f"plain fails: {_line(error)}"
            return row
        row.distinct = min(len(set(tokens[-NEW_TOKENS:])) for tokens in plain)
        if row.distinct >= _DISTINCT:
            break
    row.theirs = _theirs(model, plain[0])
    _compare(model, plain, row)
    return row


def _compare(model, plain, row):
    row.accepted = row.rejected = NEW_TOKENS
    for kind, expected in zip(_KINDS, plain):
        last = None
        for drafter in (None, lambda config, expected=expected: Spoiled(expected)):
            try:
                found, last = _drafted(model, kind, drafter)
            except Exception as error:
                row.status, row.why = "error", _line(error)
                return
            if found != expected:
                row.status, row.why = "different", f"{kind}, plain because: {last.reason}"
                return
            if last.reason is not None:
                row.status, row.why, row.accepted, row.rejected = "plain", last.reason, 0, 0
                return
            if last.accepted >= _ACCEPTED and last.drafted - last.accepted >= _REJECTED:
                break
        row.accepted = min(row.accepted, last.accepted)
        row.rejected = min(row.rejected, last.drafted - last.accepted)
    proven = row.distinct >= _DISTINCT and row.accepted >= _ACCEPTED and row.rejected >= _REJECTED
    row.status = "served" if proven else "unproven"


def _drafted(model, kind, drafter):
    with attached(model, _EAGER, drafter=drafter) as handle, warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftlessWarning)
        return _run(model, **kind), handle.last


def _theirs(model, expected):
    try:
        return _run(model, prompt_lookup_num_tokens=7) == expected
    except Exception:
        return False


def _run(model, do_sample=False, padded=False, **options):
    torch.manual_seed(1)
    ids = torch.tensor([_PROMPT])
    if padded:
        options["attention_mask"] = torch.cat([torch.zeros(1, 5), torch.ones_like(ids)], dim=1).long()
        ids = torch.cat([torch.zeros(1, 5).long(), ids], dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=do_sample, **options)
    return out[0].tolist()  # the prompt first


def _built(model_type, name):
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    kind = CONFIG_MAPPING[model_type]
    if model_class.config_class is not None and not issubclass(kind, model_class.config_class):
        kind = model_class.config_class  # the mapping names that of a larger model, with images perhaps
    model = ready(model_class(kind(**_shrunk(kind, _OWN_SIZES.get(model_type, {})))))
    settings = model.generation_config
    settings.forced_eos_token_id = settings.forced_bos_token_id = None
    settings.bos_token_id = 1
    return model


def _shrunk(config_class, own):
    """Return small arguments for a configuration: by name, per-layer lists cut, sub-configurations too."""
    default = config_class()
    known = default.to_dict()
    given = {name: size for name, size in {**_SIZES, **_SETTINGS}.items() if known.get(name) is not None}
    given |= {name: token for name, token in _TOKENS.items() if name in known}
    layers = next(
        (known[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in known), None
    )
    for name, value in known.items():
        if isinstance(value, list) and len(value) == layers and name not in own:
            kinds = list(dict.fromkeys(map(_hashable, value)))
            given[name] = [kinds[i % len(kinds)] for i in range(_LAYERS)]
    for name in getattr(config_class, "sub_configs", {}):
        if getattr(default, name, None) is not None:
            given[name] = _shrunk(type(getattr(default, name)), {})
    if "kv_lora_rank" in known and "num_key_value_heads" in known:  # latent attention: as many as query heads
        given["num_key_value_heads"] = _SIZES["num_attention_heads"]
    return {**given, **own}


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


def _line(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:140]


def markdown(rows) -> str:
    """Return the report as a page."""
    count = {status: sum(row.status == status for row in rows) for status in _MEANS}
    theirs = sum(row.theirs for row in rows)
    lines = [
        "# Models",
        "",
        f"Made by `draftless breadth`, transformers {transformers.__version__}, torch {torch.__version__}: "
        "every class of `MODEL_FOR_CAUSAL_LM_MAPPING`, built small with random weights, "
        f"{NEW_TOKENS} tokens greedy, sampled and after left padding, compared with plain `generate`.",
        "",
        *(f"- {count[status]} {means}" for status, means in _MEANS.items()),
        f"- {theirs} run and give plain's tokens with transformers' own prompt lookup, greedy, in this run",
        "",
        "| model type | class | | accepted / rejected | transformers' own | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        drafts = f"{row.accepted} / {row.rejected}" if row.status == "served" else ""
        why = row.why.replace("|", "\\|")
        theirs = "yes" if row.theirs else "no"
        lines.append(f"| {row.model_type} | {row.name} | {row.status} | {drafts} | {theirs} | {why} |")
    return "\n".join(lines) + "\n"


_MEANS = {
    "served": f"served with drafts, equal to plain; at least {_ACCEPTED} accepted and {_REJECTED} rejected",
    "plain": "run plainly, and say why",
    "unproven": "prove nothing: plain fails, or what they write does not vary",
    "not built": "cannot be built small by these rules",
    "different": "**differ from plain**",
    "error": "**raise what plain does not**",
}
