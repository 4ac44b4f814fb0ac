"""Who may import whom, what an import loads, and what every public name owes its reader."""

import ast
import doctest
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import config as numba_config

import draftless

ROOT = Path(draftless.__file__).parent
ALLOWED = {  # package: what of the project it may import
    "draftless": {"draftless.integration", "draftless.lookup"},
    "draftless.lookup": {"draftless.lookup"},
    "draftless.integration": {"draftless.integration", "draftless.lookup"},
    "draftless.evals": {"draftless.evals", "draftless.integration", "draftless.lookup"},
}
LOOKUP_MODULES = ["config", "cost", "draft", "drafter", "index", "kernels"]


def files(package):
    """The source files of one package, those of packages inside it left out."""
    places = importlib.util.find_spec(package).submodule_search_locations
    found = sorted({path.resolve() for place in places for path in Path(place).glob("*.py")})
    assert found
    return found


def imported(path, package):
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name, packages):
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("package", ALLOWED)
def test_the_arrows_between_packages_point_one_way(package):
    for path in files(package):
        ours = [
            name for name in imported(path, package) if within(name, ["draftless"]) and name != "draftless"
        ]
        wrong = [name for name in ours if not within(name, ALLOWED[package])]
        assert wrong == [], path


def test_the_lookup_knows_numpy_and_numba_only():
    known = {"numpy", "numba", "draftless", *sys.stdlib_module_names}
    for path in files("draftless.lookup"):
        wrong = [name for name in imported(path, "draftless.lookup") if name.split(".")[0] not in known]
        assert wrong == [], path


def test_the_reader_of_imports_sees_them_all(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import torch.nn as nn\ndef f():\n    from ..evals import cli\n    from . import x\n")
    assert list(imported(path, "draftless.lookup")) == [
        "torch.nn",
        *["draftless.evals", "draftless.evals.cli"],
        *["draftless.lookup", "draftless.lookup.x"],
    ]


@pytest.mark.parametrize("package", ["draftless", "draftless.lookup", "draftless.integration"])
def test_nothing_is_printed(package):
    for path in files(package):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert [call.lineno for call in calls if getattr(call, "id", "") == "print"] == [], path


# -- what an import loads ----------------------------------------------------------------------------

PROBE = """
import json, sys
found = {}
def loaded():
    return [name for name in ("numba", "numpy", "torch", "transformers") if name in sys.modules]
import draftless
found["draftless"] = loaded()
from draftless.lookup import LookupConfig, LookupDrafter, SuffixIndex
index = SuffixIndex([1, 2, 3, 1, 2], window=100)
index.extend([3])
found["match"] = index.match(), len(index.occurrences(3).positions)
from draftless.lookup import kernels
from draftless.lookup.drafter import warm_up
warm_up()
names = ["extend", "follow", "propose", "rehash", "slide", "truncate"]
def compiled():
    return {name: len(getattr(getattr(kernels, name), "signatures", [])) for name in names}
found["warm"] = compiled()
import numpy as np
drafter = LookupDrafter(LookupConfig(window=600, price=0))
drafter.begin(np.arange(3000))
for tokens in ([5], [6, 7], np.array([8, 9]), []):
    drafter.commit(tokens)
    drafter.learn(drafter.draft(8), range(0))
found["after a call"] = compiled()
found["lookup"] = loaded()
sys.stdout.write(json.dumps(found))
"""


@pytest.fixture(scope="module")
def probe():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_draftless_loads_nothing_large(probe):
    assert probe["draftless"] == []


def test_the_lookup_works_without_torch(probe):
    assert probe["match"] == [[3, 3], 1]
    assert probe["lookup"] == ["numba", "numpy"]


@pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="nothing is compiled")
def test_warm_up_leaves_nothing_to_compile(probe):
    assert min(probe["warm"].values()) > 0
    assert probe["after a call"] == probe["warm"]


# -- the front door ----------------------------------------------------------------------------------


def test_every_public_name_resolves_and_is_documented():
    assert draftless.__all__[0] == "__version__"
    for module in (draftless, importlib.import_module("draftless.lookup")):
        for name in module.__all__:
            value = getattr(module, name)
            assert name == "__version__" or (value.__doc__ and value.__name__ == name), name


def test_the_names_for_type_checkers_are_the_public_names():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    names = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    block = next(node for node in names if node.test.id == "TYPE_CHECKING")
    assert sorted(alias.name for node in block.body for alias in node.names) == sorted(draftless.__all__[1:])


def test_one_name_is_one_object_at_every_door():
    lookup = importlib.import_module("draftless.lookup")
    for name in set(lookup.__all__) & set(draftless.__all__):
        assert getattr(lookup, name) is getattr(draftless, name)


@pytest.mark.parametrize("module", ["draftless", "draftless.lookup"])
def test_an_unknown_name_is_an_attribute_error_that_names_it(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Atach'"):
        importlib.import_module(module).Atach  # noqa: B018


def test_dir_lists_the_public_names():
    assert set(draftless.__all__) <= set(dir(draftless))


@pytest.mark.parametrize("module", ["draftless", *[f"draftless.lookup.{name}" for name in LOOKUP_MODULES]])
def test_doctests_hold(module):
    module = importlib.import_module(module)
    runner, output = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), []
    for test in doctest.DocTestFinder().find(module, extraglobs={"np": np}):
        runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


@pytest.mark.parametrize("name", ["CostModel", "Draft", "LookupConfig", "LookupDrafter", "SuffixIndex"])
def test_every_class_of_the_lookup_shows_an_example(name):
    examples = doctest.DocTestFinder().find(getattr(draftless, name), name)
    assert sum(len(test.examples) for test in examples) > 0


def test_every_module_of_the_lookup_is_looked_at():
    assert {path.stem for path in files("draftless.lookup")} == {"__init__", *LOOKUP_MODULES}


def test_a_checkout_can_be_used_from_its_own_folder(tmp_path):
    """`python` started there finds the folder `draftless` before the installed package."""
    here = Path(__file__).parent.parent
    code = "import draftless, os; print(os.path.dirname(draftless.__file__)); draftless.SuffixIndex([1])"
    found = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(here / "draftless")
