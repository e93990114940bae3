"""Every H_i = T[i:, :i] of dense causal operators in one divide and conquer, O(L^3) for each shift.

For a shift w > 0 let A_i = [[w I, H_i], [s H_i^T, w I]], whose rows are the future indices j >= i and then the
past ones j < i: its size is L for every i.  With s = +1 its negative eigenvalues number #{sigma(H_i) > w}; with
s = -1 det A_i = w^L det(I + H_i H_i^T / w^2).  From i to i + 1 only index i changes its role, from future row to
past column, so with f_i and p_i the Schur complements of index i in either role, all others eliminated,

    det A_{i+1} / det A_i = p_i / f_i,    and the count moves by [p_i < 0] - [f_i < 0].

The 2 L numbers f, p give every cut.  A node [a, b) of the divide and conquer holds the Schur complement of its
indices in both roles with everything outside eliminated, as three blocks: P (future x future), Q (past x past) and
M (future x past, strictly lower: future row j reaches past column k only if k < j).  Its children eliminate their
siblings, each in the one role that it can have: seen from the left child the right one lies in the future, and
conversely.

Eliminations are symmetric (block L D L^T, no pivoting).  LU with pivoting, or an explicit inverse of more than a few
rows, breaks the symmetry and gave hundreds of wrong counts at L = 512 on attention with a sink.

Outside the first half of the indices all is future, w I with nothing inside, so that eliminating it leaves
Q = w I - s H^T H / w: Gram matrices that all shifts share.  The second half is the first half of the operator
reversed in time, T[L-1-j, L-1-i], with f and p exchanged.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import compiled_for, power_of_two, squares, strictly_lower

SMALL = 16  # up to this length the SVD of every H_i takes no longer (measured)

Task = TypeVar("Task")
Result = TypeVar("Result")


class Sweep(ABC):
    """Operators made ready to be swept.

    Args:
        T: (B, L, L) floating point, read below the diagonal only.
        length: n >= L, to which T is padded with zeros.

    Attributes:
        T: (B, n, n) float64, strictly lower triangular, in units: each operator divided by a power of two (so that
            nothing is rounded), entries below 2.

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal.
    """

    def __init__(self, T: Tensor, length: int) -> None:
        self.B, self.L = T.shape[:2]
        lower, largest = strictly_lower(T)
        self.unit = power_of_two(largest)
        lower.div_(self.unit[:, None, None])
        pad = length - self.L
        self.T = torch.nn.functional.pad(lower, (0, pad, 0, pad)) if pad else lower

    @functools.cached_property
    def squares(self) -> tuple[Tensor, Tensor, Tensor]:
        """Squared Frobenius norms, in units, of all H_i (B, L-1), of the rows of T and of its columns, (B, L)."""
        cuts, rows, columns = squares(self.T)
        return cuts[:, : self.L - 1], rows[:, : self.L], columns[:, : self.L]

    @abstractmethod
    def __call__(self, w: Tensor, sign: int, single: bool = False) -> Tensor:
        """f / w and p / w, stacked, (2, K, B, L) float64.

        Args:
            w: (K, B) shifts > 0, in units.
            sign: +1 (counts) or -1 (determinants).
            single: whether single precision is enough.
        """


class CompiledSweep(Sweep):
    """Sweep by the loops of kernels_dense.py, on the CPU, in as many threads as torch uses."""

    def __init__(self, T: Tensor) -> None:
        from hf_ess.spectra import kernels_dense

        self.kernels = kernels_dense
        super().__init__(T, -(-T.shape[1] // 8) * 8)  # halves are multiples of 4
        self.size = self.T.shape[1] // 2
        halves = [(b, later) for b in range(self.B) for later in (False, True)]
        self.halves = dict(zip(halves, _parallel(self._half, halves)))

    def _half(self, half: tuple[int, bool]):  # type: ignore[no-untyped-def]
        b, later = half
        T = self.T[b].numpy()
        T = self.kernels.mirror(T, self.size) if later else T
        return T, self.kernels.gram_matrices(T, self.size)

    def __call__(self, w: Tensor, sign: int, single: bool = False) -> Tensor:
        K, s, n = w.shape[0], self.size, 2 * self.size
        out = np.empty((2, self.B, K, n))
        # One task for each half of an operator, and finer ones where these cannot keep all threads busy.
        share = K if torch.get_num_threads() <= self.B else 1
        tasks = [(half, k) for half in self.halves for k in range(0, K, share)]

        def run(task: tuple[tuple[int, bool], int]) -> None:
            (b, later), k = task
            T, grams = self.halves[b, later]
            shifts = w[k : k + share, b].numpy().copy()
            fp = np.empty((2, len(shifts), s))
            self.kernels.sweep(T, s, grams, shifts, float(sign), fp[0], fp[1])
            here = out[:, b, k : k + share]
            if later:
                here[..., s:] = fp[::-1, :, ::-1]
            else:
                here[..., :s] = fp

        list(_parallel(run, tasks))
        return torch.from_numpy(out).transpose(1, 2)[..., : self.L]


def _parallel(function: Callable[[Task], Result], tasks: list[Task]) -> Iterator[Result]:
    threads = min(torch.get_num_threads(), len(tasks))
    if threads <= 1:
        yield from map(function, tasks)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, tasks)


def prepare(T: Tensor, compiled: bool | None = None) -> Sweep:
    """Operators made ready; the compiled sweep on the CPU where numba is installed, unless told otherwise."""
    if compiled_for(T) if compiled is None else compiled:
        return CompiledSweep(T)
    from hf_ess.spectra.dense_batched import BatchedSweep

    return BatchedSweep(T)
