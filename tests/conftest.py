"""One thread per test process: the suite runs several processes, and results must not depend on how many."""

import os

import pytest

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)
