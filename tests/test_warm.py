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
