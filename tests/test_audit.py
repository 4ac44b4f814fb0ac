"""The audit finds nothing on the toys, and finds every fault that is planted."""

import json

import pytest
from toys import OLD, TOYS, rnd

from draftless.integration import cache, hooks, versions
from draftless.integration import call as one_call
from draftless.integration import outputs as views

pytest.importorskip("click")
from click.testing import CliRunner  # noqa: E402

from draftless.evals import audit, breadth  # noqa: E402
from draftless.evals.commands import cli  # noqa: E402
from draftless.evals.forks import Fork, judged  # noqa: E402
from draftless.evals.fuzz import FEATURES, case  # noqa: E402


@pytest.mark.parametrize("make", TOYS.values(), ids=TOYS)
def test_nothing_is_found_on_a_toy(make, audit_seed):
    report = audit.audit(make(), n=40, seed=audit_seed, longest=48)
    again = f"draftless audit --model toy-{make.__name__} --seed {audit_seed} --max-new-tokens 48 --only ..."
    assert not report.failures, (again, report.failures)
    assert report.runs == 40
    assert report.stats.accepted > 50 and report.stats.drafted - report.stats.accepted > 50
    assert report.stats.reasons == {}


def forgets_to_roll_back(monkeypatch):
    monkeypatch.setattr(cache.CallCache, "roll_back", lambda self, n: None)


def forgets(name, monkeypatch):
    def lengthened(model, kwargs, n):
        longer = whole(model, kwargs, n)
        if kwargs.get(name) is not None:
            longer[name] = kwargs[name]
        return longer

    whole = versions.lengthened
    monkeypatch.setattr(versions, "lengthened", lengthened)


def forgets_the_mask(monkeypatch):
    forgets("attention_mask", monkeypatch)


def forgets_the_positions(monkeypatch):
    forgets("position_ids", monkeypatch)


FAULTS = [forgets_to_roll_back, forgets_the_mask, forgets_the_positions]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    fault(monkeypatch)
    monkeypatch.setattr(hooks.Hooks, "reason_by_probe", lambda *args: None)
    assert audit.audit(rnd(), n=25, seed=0, features=("padding",)).failures


@pytest.mark.parametrize("fault", [forgets_to_roll_back, forgets_the_positions])
def test_a_planted_fault_is_noticed_before_the_first_draft(fault, monkeypatch):
    fault(monkeypatch)
    report = audit.audit(rnd(), n=12, seed=0, longest=40, features=("padding",))
    assert not report.failures
    assert report.stats.reasons and report.stats.drafted == 0


def test_a_call_is_made_from_its_seed_and_number_alone():
    one, same, other = (case(rnd(), None, 5, number) for number in (3, 3, 4))
    assert str(one) == str(same) != str(other)
    assert one.ids.tolist() == same.ids.tolist()
    assert one.generate(rnd()).sequences.tolist() == same.generate(rnd()).sequences.tolist()


def test_prompts_are_text_where_there_is_a_tokenizer():
    from test_contract import spelling

    calls = [case(rnd(), spelling(), 0, number) for number in range(40)]
    assert any("stop_strings" in call.options for call in calls)
    assert not audit.audit(rnd(), spelling(), n=8, seed=0).failures


def test_every_feature_occurs_and_can_be_left_out():
    calls = [case(rnd(), None, 0, number) for number in range(200)]
    assert {call.options["do_sample"] for call in calls} == {False, True}
    assert any(call.filled for call in calls) and any(call.streams for call in calls)
    assert any("output_logits" in call.options for call in calls)
    assert any("attention_mask" in call.options for call in calls) and any(call.stateful for call in calls)
    assert any("eos_token_id" in call.options for call in calls) and any(call.stops_after for call in calls)
    for call in (case(rnd(), None, 0, number, features=()) for number in range(50)):
        assert set(call.options) == {"max_new_tokens", "do_sample"}
        assert not (call.filled or call.streams or call.stateful or call.stops_after)
    assert set(FEATURES) == {"sampling", "processors", "stops", "padding", "cache", "streamer", "outputs"}


@pytest.mark.parametrize("features", [(), ("sampling",)])
def test_a_fork_is_judged_by_plains_own_scores(features):
    """The gap printed is what has to be added to the second best score for it to be chosen."""
    model = rnd()
    made = case(model, None, 2, 4, features)
    row = made.generate(model).sequences[0].tolist()
    at = made.ids.shape[1] + 1
    wrong = [*row[:at], (row[at] + 1) % 64, *row[at + 1 :]]
    fork = judged(model, made, row, wrong)
    assert (fork.at, fork.plain, fork.ours) == (at, row[at], wrong[at])
    assert 0 < fork.rounding < 1e-2 < fork.behind and fork.gap <= fork.behind and not fork.is_tie
    best = made.generate(model, output_logits=True).logits[1][0].topk(2)
    if not made.options["do_sample"]:
        assert fork.gap == pytest.approx(float(best.values[0] - best.values[1]), abs=1e-5)


def test_a_tie_is_no_failure_and_an_end_is():
    assert Fork(3, 7, 8, gap=1e-6, behind=1e-6, rounding=1e-5).is_tie
    assert not Fork(3, 7, 8, gap=1e-6, behind=1.0, rounding=1e-5).is_tie  # another token than the second
    assert not Fork(3, 7, None, gap=1e-6, behind=1e-6, rounding=1e-5).is_tie
    assert Fork(3, 7, 8, gap=1.0, behind=1.0, rounding=1e-5, follows=True).is_tie


def test_the_command(tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    good = CliRunner().invoke(
        cli, ["audit", "--model", "toy-rnd", "--n", "5", "--seed", "1", "--json", str(file)]
    )
    assert good.exit_code == 0, good.output
    assert "0 differences" in good.output and "transformers" in good.output
    assert json.loads(file.read_text())["runs"] == 5
    forgets_to_roll_back(monkeypatch)
    monkeypatch.setattr(hooks.Hooks, "reason_by_probe", lambda *args: None)
    bad = CliRunner().invoke(cli, ["audit", "--model", "toy-rnd", "--n", "10", "--seed", "1"])
    assert bad.exit_code == 1
    again = next(line for line in bad.output.splitlines() if "--only" in line).split()
    once = CliRunner().invoke(cli, again[1:])
    assert once.exit_code == 1 and "1 calls" in once.output


# -- breadth: a dozen of the most different classes --------------------------------------------------

DIFFERENT = [
    ("llama", "LlamaForCausalLM", "served"),
    ("gpt2", "GPT2LMHeadModel", "served"),
    ("bloom", "BloomForCausalLM", "served"),
    ("opt", "OPTForCausalLM", "served"),
    ("gemma2", "Gemma2ForCausalLM", "served"),
    ("mixtral", "MixtralForCausalLM", "served"),
    ("deepseek_v3", "DeepseekV3ForCausalLM", "served"),
    ("falcon", "FalconForCausalLM", "served"),
    ("gpt_neox", "GPTNeoXForCausalLM", "served"),
    ("deepseek_v4", "DeepseekV4ForCausalLM", "plain"),
    ("gemma4_text", "Gemma4ForCausalLM", "served"),
    ("lfm3", "Lfm3ForCausalLM", "served"),
    ("mamba", "MambaForCausalLM", "plain"),
    ("jamba", "JambaForCausalLM", "plain"),
    ("recurrent_gemma", "RecurrentGemmaForCausalLM", "plain"),
    ("qwen3_next", "Qwen3NextForCausalLM", "plain"),
]


@pytest.mark.skipif(OLD, reason="sliding windows run plainly on this version")
@pytest.mark.parametrize(("model_type", "name", "status"), DIFFERENT)
def test_a_class_of_its_own_kind(model_type, name, status):
    row = breadth.check(model_type, name)
    assert row.status == status, row
    assert (row.why == "") == (status == "served")


@pytest.mark.parametrize("fault", FAULTS)
def test_breadth_shows_a_fault(fault, monkeypatch):
    fault(monkeypatch)
    monkeypatch.setattr(hooks.Hooks, "reason_by_probe", lambda *args: None)
    names = [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("bloom", "BloomForCausalLM")]
    rows = [breadth.check(*one) for one in names]
    assert any(row.status in ("different", "error") for row in rows), rows


def test_the_page_counts_and_names_every_class():
    rows = [
        breadth.Row("a", "AForCausalLM", "served", accepted=7, rejected=9, theirs=True),
        breadth.Row("b", "BForCausalLM", "plain", "no | rollback"),
    ]
    page = breadth.markdown(rows)
    assert "- 1 served with drafts" in page and "- 1 run plainly" in page
    assert "| AForCausalLM | served | 7 / 9 | yes |  |" in page
    assert "| BForCausalLM | plain |  | no | no \\| rollback |" in page


def scribbles_in_the_cache(monkeypatch):
    """Tokens stay as they are: what the call leaves is wrong."""

    def end_loop(self):
        whole(self)
        if self._cache is not None and self._serving and self.stats.tokens > 1:
            self._cache.cache.layers[0].values[:, :, 3] += 0.5

    whole = one_call.Call.end_loop
    monkeypatch.setattr(one_call.Call, "end_loop", end_loop)


def hands_out_the_neighbours_logits(monkeypatch):
    """By so little that no token changes."""

    def node_of(outputs, at, grows=True):
        one = whole(outputs, at, grows)
        one["logits"] = one["logits"] + 0.01
        return one

    whole = views.node_of
    monkeypatch.setattr(views, "node_of", node_of)


def leaves_out_hidden_states(monkeypatch):
    def shortened(outputs, at, grows=True):
        one = whole(outputs, at, grows)
        if one.get("hidden_states") is not None:
            one["hidden_states"] = one["hidden_states"][1:]
        return one

    whole = views.node_of
    monkeypatch.setattr(views, "node_of", shortened)


LEFT = {
    scribbles_in_the_cache: "next turn",
    hands_out_the_neighbours_logits: "logits",
    leaves_out_hidden_states: "outputs",
}


@pytest.mark.parametrize("fault", LEFT)
def test_a_fault_that_changes_no_token_is_found(fault, monkeypatch):
    fault(monkeypatch)
    found = audit.audit(rnd(), n=25, seed=0, features=("outputs",)).failures
    assert {one.what for one in found} == {LEFT[fault]}


@pytest.mark.slow
@pytest.mark.parametrize("make", TOYS.values(), ids=TOYS)
def test_nothing_is_found_in_two_thousand_calls(make, audit_seed):
    report = audit.audit(make(), n=2000, seed=audit_seed)
    assert not report.failures
    assert report.stats.reasons == {}
