import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

AUDIT_SEED = int(os.environ.get("AUDIT_SEED") or random.SystemRandom().randrange(10**6))


def pytest_report_header():
    return f"audit seed: {AUDIT_SEED} (a fresh one each time; AUDIT_SEED={AUDIT_SEED} pytest ... repeats it)"


@pytest.fixture(scope="session")
def audit_seed():
    """Where the audits of this run begin."""
    return AUDIT_SEED


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The toys are so small that a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["rnd", "cyc"])
def toy(request):
    """A maker of one of the two toys."""
    from toys import TOYS

    return TOYS[request.param]


@pytest.fixture(params=[False, True], ids=["greedy", "sampled"])
def do_sample(request):
    return request.param
