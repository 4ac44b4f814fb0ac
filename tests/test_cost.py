"""CostModel: a prior, corrected by medians of what forwards took."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftless import CostModel


def examples(n):
    """`n` examples, the same in every run."""
    return settings(max_examples=n, deadline=None, derandomize=True)


def observed(*observations, device="cpu"):
    """A model that saw these (width, seconds), and one of width 1 before: the very first is dropped."""
    model = CostModel(device)
    model.observe(1, 1.0)
    for width, seconds in observations:
        model.observe(width, seconds)
    return model


def curve_of(model, most=64):
    return model.curve(most).tolist()


# -- the prior ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_prior_begins_with_one_and_never_falls(device):
    curve = CostModel(device).curve(500)
    assert (curve.dtype, curve.shape) == (np.float64, (500,))
    assert curve[0] == 1.0
    assert (np.diff(curve) >= 0).all()
    assert curve[499] > curve[63] > 1.0


def test_extra_tokens_are_nearly_free_where_launches_bound_the_forward():
    cpu, cuda = CostModel("cpu").curve(64), CostModel("cuda").curve(64)
    assert (cuda[1:] < cpu[1:]).all()
    assert cuda[63] < 1.5 < cpu[63]


def test_the_default_is_a_cpu():
    assert curve_of(CostModel()) == curve_of(CostModel("cpu")) != curve_of(CostModel("cuda"))


@pytest.mark.parametrize("model", [CostModel(), CostModel.fixed([1, 5], [1, 3])], ids=["prior", "fixed"])
def test_a_shorter_curve_is_the_beginning_of_a_longer_one(model):
    for most in (0, 1, 2, 64, 65, 300, 10):
        assert curve_of(model, most) == curve_of(model, 300)[:most]


# -- a fixed curve -----------------------------------------------------------------------------------


def test_fixed_is_linear_between_and_keeps_its_slope_after():
    assert curve_of(CostModel.fixed([1, 3, 7], [1, 2, 3]), 11) == [
        *[1.0, 1.5, 2.0],
        *[2.25, 2.5, 2.75, 3.0],
        *[3.25, 3.5, 3.75, 4.0],
    ]


def test_fixed_takes_times_of_any_unit():
    assert curve_of(CostModel.fixed([1, 9], [20, 40])) == curve_of(CostModel.fixed([1, 9], [1, 2]))


def test_fixed_at_one_width_is_flat():
    assert curve_of(CostModel.fixed([1], [0.02]), 5) == [1.0] * 5


def test_fixed_takes_arrays():
    assert curve_of(CostModel.fixed(np.array([1, 3]), np.array([1.0, 2.0])), 3) == [1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("widths", "seconds"),
    [
        ([], []),
        ([1, 2], [1.0]),
        ([2, 3], [1.0, 2.0]),
        ([1, 3, 2], [1, 2, 3]),
        ([1, 1], [1, 1]),
        ([0, 1], [1, 1]),
    ],
    ids=str,
)
def test_fixed_refuses_widths_that_are_no_curve(widths, seconds):
    message = "increasing widths that begin with 1 and one time for each; found widths .* times"
    with pytest.raises(ValueError, match=message):
        CostModel.fixed(widths, seconds)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_fixed_refuses_times_that_are_not_positive(seconds):
    with pytest.raises(ValueError, match="must be positive and finite; found"):
        CostModel.fixed([1, 2], [1.0, seconds])


def test_fixed_refuses_or_flattens_a_curve_that_falls():
    # "Curves are non-decreasing: a wider forward is never taken to be cheaper."
    try:
        model = CostModel.fixed([1, 9], [2.0, 1.0])
    except ValueError:
        return
    assert (np.diff(model.curve(40)) >= 0).all()


# -- learning ----------------------------------------------------------------------------------------


def refreshed(*models):
    """Have models look at all that they observed."""
    for model in models:
        for _ in range(100):
            model.observe(1, 1.0)


def test_a_first_forward_of_a_width_that_took_far_too_long_is_dropped():
    slow, usual = CostModel(), CostModel()
    slow.observe(1, 100.0)
    usual.observe(1, 1.0)
    for model in (slow, usual):
        model.observe(1, 1.0)
    slow.observe(8, 900.0)
    refreshed(slow, usual)
    assert curve_of(slow) == curve_of(usual) == curve_of(CostModel())
    for _ in range(20):
        for model in (slow, usual):
            model.observe(1, 1.0)
            model.observe(8, 2.5)
    refreshed(slow, usual)
    assert curve_of(slow) == curve_of(usual) != curve_of(CostModel())


def test_a_first_forward_that_took_its_time_is_kept():
    model = observed((1, 1.0), (8, 2.0))
    assert 1.65 < model.curve(8)[7] < 2.0


def test_the_step_from_one_token_to_two_is_learned_from_any_width():
    learned = observed(*[(1, 1.0), (16, 3.0)] * 20).curve(64)
    assert learned[1] / CostModel().curve(64)[1] == pytest.approx(learned[15] / CostModel().curve(64)[15])
    assert learned[0] == 1.0


def test_a_median_is_not_moved_by_outliers():
    clean = [(1, 1.0), (8, 3.0)] * 15  # 3 is within twice of what is expected
    dirty = [*clean[:-4], (1, 50.0), (8, 700.0), (1, 0.001), (8, 0.001)]
    assert curve_of(observed(*dirty)) == curve_of(observed(*clean))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("width", "ratio"), [(2, 1.6), (9, 5.0), (33, 2.5)])
def test_a_measured_ratio_is_approached_the_closer_the_more_was_seen(device, width, ratio):
    errors = [abs(CostModel(device).curve(64)[width - 1] - ratio)]
    for n in (4, 10, 32):
        learned = observed(*[(1, 0.02), (width, 0.02 * ratio)] * n, device=device)
        errors.append(abs(learned.curve(64)[width - 1] - ratio))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.25 * errors[0]


def test_what_was_measured_at_one_width_moves_its_neighbours():
    learned, prior = observed(*[(1, 1.0), (16, 8.0)] * 20).curve(64), CostModel().curve(64)
    assert (learned[1:] > prior[1:]).all()
    assert learned[0] == 1.0


def test_old_forwards_are_forgotten():
    changed = observed(*[(1, 1.0), (8, 9.0)] * 40, *[(1, 1.0), (8, 2.0)] * 40)
    assert curve_of(changed) == curve_of(observed(*[(1, 1.0), (8, 2.0)] * 40))


def test_widths_without_a_forward_of_width_one_teach_nothing():
    assert curve_of(observed(*[(8, 9.0)] * 40)) == curve_of(CostModel())


def test_time_that_did_not_pass_teaches_nothing():
    model = observed(*[(1, 1.0), (8, 3.0)] * 8)
    before = curve_of(model)
    for _ in range(40):
        model.observe(8, 0.0)
        model.observe(8, -1.0)
    assert curve_of(model) == before


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 80), st.floats(1e-4, 10.0)), max_size=80), st.integers(1, 130))
def test_whatever_was_measured_the_curve_begins_with_one_and_never_falls(observations, most):
    curve = observed(*observations, *[(1, 0.01)] * 8).curve(most)
    assert curve.shape == (most,)
    assert curve[0] == 1.0
    assert (np.diff(curve) >= 0).all()
    assert np.isfinite(curve).all()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_frozen_keeps_the_prior_and_learns_nothing(device):
    model = observed(*[(1, 1.0), (8, 30.0)] * 20, device=device)
    frozen = model.frozen()
    for _ in range(40):
        frozen.observe(1, 1.0)
        frozen.observe(8, 70.0)
    assert curve_of(frozen, 300) == curve_of(CostModel(device), 300)
    assert curve_of(model, 300) != curve_of(CostModel(device), 300)


def test_fixed_learns_nothing_and_frozen_keeps_it():
    model = CostModel.fixed([1, 9], [1.0, 2.0])
    before = curve_of(model)
    for _ in range(40):
        model.observe(1, 1.0)
        model.observe(9, 70.0)
    assert curve_of(model) == curve_of(model.frozen()) == before


def test_threads_may_share_a_model():
    model, failures = CostModel(), []

    def work(width):
        try:
            for i in range(300):
                model.observe(1, 1.0)
                model.observe(width, 2.0)
                assert len(model.curve(1 + i)) == 1 + i
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(width,)) for width in (4, 8, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert abs(model.curve(64)[15] - 2.0) < 0.1
