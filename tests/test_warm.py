"""Kernels are compiled by a process of their own, and only loaded by the one that generates."""

import os
import subprocess
import sys

import pytest

LOADS = """
from draftless.integration import warm
from draftless.lookup import kernels
assert not kernels.are_cached()
assert warm.ready(wait=True)
assert kernels.are_cached()
for kernel in (kernels.extend, kernels.follow, kernels.propose):
    assert kernel.signatures, "nothing was compiled: the warm-up passed nothing"
    assert sum(kernel.stats.cache_hits.values()) == 1, "compiled here"
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled in this mode")
def test_an_empty_cache_is_filled_by_another_process(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LOADS], env=environment, check=True, timeout=300)


def test_where_no_process_can_be_started_the_kernels_compile_here(monkeypatch):
    from draftless.integration import warm

    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(subprocess, "run", None)
    warm._compile_elsewhere()


FORKS = """
import os, sys
from draftless.integration import warm
warm.begin()
child = os.fork()
if child == 0:
    os._exit(0 if warm.ready(wait=True) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_kernels_load_loads_its_own(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORKS], env=environment, check=True, timeout=300)
