"""Many small SVDs on a CPU: one thread of the BLAS each, and as many at a time as there are threads.

LAPACK's own threads do not pay for matrices of some hundred rows, and where another program takes a core they wait for
each other: 63 cuts of 3 heads at L = 512 took 0.3 s on one thread, 1 s on two, and 16 s on two of which one was taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from hf_ess.spectra import dense


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Leaves one thread to torch and its BLAS inside, and yields how many there were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def singular_values(T: Tensor, positions: Sequence[int], block: int = 1) -> list[Tensor]:
    """Singular values of H_i at chosen cuts, each (B, min(i, L-i) d), descending; as dense.singular_values.

    Args:
        T: (B, L d, L d).
        positions: cuts i in 1 .. L-1.
        block: d.
    """
    if T.device.type != "cpu" or not positions:
        return dense.singular_values(T, positions, block=block)
    with one_blas_thread() as threads:
        shares = [list(positions)[k::threads] for k in range(threads)]
        tasks = [(b, share) for b in range(T.shape[0]) for share in shares if share]
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda task: dense.singular_values(T[task[0], None], task[1], block=block), tasks))
    values: list[dict[int, Tensor]] = [{} for _ in range(T.shape[0])]
    for (b, share), parts in zip(tasks, found):
        values[b] |= dict(zip(share, parts))
    return [torch.cat([values[b][i] for b in range(T.shape[0])]) for i in positions]
