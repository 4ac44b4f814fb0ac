"""A wide forward's outputs as those of forwards of one token, which the loop expects."""

_STATES = ("hidden_states", "decoder_hidden_states")
_MAPS = ("attentions", "decoder_attentions")
_CROSS_MAPS = ("cross_attentions",)


def reason_against_outputs(outputs, width, columns) -> str | None:
    """Return why a wide forward's outputs cannot be cut into single positions, None if they can.

    `columns` is how many keys its last position sees: committed entries and the width, or what
    a static cache holds; None where layers differ in that, as those with a window do.
    """
    if outputs.logits.shape[1] != width:
        return f"the model gave logits for {outputs.logits.shape[1]} of {width} tokens"
    for layer in _layers(outputs, _MAPS + _CROSS_MAPS):
        if layer.ndim != 4 or layer.shape[-2] != width:
            return _uncuttable(layer, width)
    for layer in _layers(outputs, _MAPS):
        if layer.shape[-1] != columns:
            return _uncuttable(layer, width)
    return None


def reason_against_states(one, wide) -> str | None:
    """Return why a forward's hidden states cannot be cut, seen from a forward of one and a wide one."""
    width = wide.logits.shape[1]
    for narrow, layer in zip(_layers(one, _STATES), _layers(wide, _STATES)):
        expected = (*narrow.shape[:-2], width, narrow.shape[-1])
        if narrow.ndim < 3 or narrow.shape[-2] != 1 or tuple(layer.shape) != expected:
            return (
                f"the model's hidden states of {width} tokens, of shape {tuple(layer.shape)}, cannot be cut "
                f"into those of one, of shape {tuple(narrow.shape)}"
            )
    return None


def _uncuttable(layer, width):
    return (
        f"the model's attention maps of {width} tokens, of shape {tuple(layer.shape)}, cannot be "
        "cut into those of one"
    )


def _layers(outputs, names):
    return [layer for name in names for layer in outputs.get(name) or () if layer is not None]


def node_of(outputs, at, grows=True):
    """Return a wide forward's outputs as those of a forward of its position `at` alone.

    `grows`: the keys after that position are left out of attention maps too, as a static cache's are not.
    """
    one = type(outputs)()
    later = outputs.logits.shape[1] - at - 1
    for key, value in outputs.items():
        if key == "logits":
            value = value[:, at : at + 1]
        elif key in _STATES:
            value = tuple(layer[..., at : at + 1, :].clone() for layer in value)  # some stack more before
        elif key in _MAPS and grows:
            value = _each(value, lambda layer: layer[..., at : at + 1, : layer.shape[-1] - later])
        elif key in _MAPS + _CROSS_MAPS:
            value = _each(value, lambda layer: layer[..., at : at + 1, :])
        one[key] = value
    return one


def _each(layers, cut):
    return tuple(None if layer is None else cut(layer).clone() for layer in layers)
