"""Norms and singular values of single H_i = T[i:, :i], safe at any scale."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator

TOLERANCE = 1e-7  # of the largest singular values, relatively (by an estimate; 1e-6 is what is promised)
GROUP = 64  # cuts that share their matrix products
FEW = 4  # fewer cuts than this go to SVD
STEPS = 64  # of Lanczos at most


@functools.cache
def compiled_available() -> bool:
    """Whether numba, the optional extra `fast`, can be imported."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def compiled_for(T: Tensor) -> bool:
    """Whether to use the kernels for T (B, L, L).  Short operators gain too little to load them, let alone compile."""
    return T.device.type == "cpu" and T.shape[1] > 64 and compiled_available()


def chunks(T: Tensor) -> Iterator[slice]:
    """Ranges of operators to make ready at once: what stays near the caches, or fills a GPU."""
    B, L = T.shape[:2]
    if T.device.type == "cpu":
        threads = torch.get_num_threads() if compiled_for(T) else 1
        size = max(threads, threads * 2**20 // L**2)
    else:
        size = max(1, 2**26 // L**2)
    for start in range(0, B, size):
        yield slice(start, min(start + size, B))


def magnitude(T: Tensor) -> Tensor:
    """The largest absolute value of each matrix, (B,); NaN if there is one.  (Ten times as fast as a vector_norm.)"""
    return torch.maximum(T.amax((1, 2)), -T.amin((1, 2)))


def strictly_lower(T: Tensor) -> tuple[Tensor, Tensor]:
    """What lies below the diagonal, float64, a copy; and its `magnitude`.

    Raises:
        NonFiniteOperator: NaN or Inf there.
    """
    T = torch.tril(T.detach().double(), -1)
    largest = magnitude(T)
    if not largest.isfinite().all():
        raise NonFiniteOperator("the operator is not finite: it holds NaN or Inf below the diagonal")
    return T, largest


def power_of_two(x: Tensor) -> Tensor:
    """The power of two with x / 2 < it <= x, and 1 for 0: division by it rounds nothing."""
    return torch.where(x > 0, x / (2 * torch.frexp(x).mantissa), torch.ones_like(x))


def svdvals(H: Tensor) -> Tensor:
    """Singular values of (B, r, c), descending; zero matrices never reach LAPACK."""
    out = H.new_zeros(H.shape[0], min(H.shape[1:]))
    size = magnitude(H)
    some = size > 0
    if some.any():
        unit = power_of_two(size[some])
        out[some] = torch.linalg.svdvals(H[some] / unit[:, None, None]) * unit[:, None]
    return out


def squares(T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|H_i|_F^2 at every cut, (B, L-1), and the squared norms of rows and columns, (B, L): sums of positive terms.

    Args:
        T: (B, L, L), strictly lower triangular.
    """
    if compiled_for(T):
        from hf_ess.spectra import kernels_dense

        B, L = T.shape[:2]
        cuts, rows, columns = T.new_empty(B, L - 1), T.new_empty(B, L), T.new_empty(B, L)
        for b in range(B):
            kernels_dense.squares(T[b].contiguous().numpy(), *(x[b].numpy() for x in (cuts, rows, columns)))
        return cuts, rows, columns
    square = T**2
    below = square.flip(1).cumsum(1).flip(1)  # of each column, from a row on
    return below.tril(-1).sum(2)[:, 1:], square.sum(2), square.sum(1)


def zero_cuts(T: Tensor) -> Tensor:
    """Where H_i = 0 exactly, (B, L-1): no row from i on has its first entry before column i."""
    L = T.shape[1]
    there = T != 0
    first = there.to(torch.uint8).argmax(2).masked_fill(~there.any(2), L)
    earliest = first.flip(1).cummin(1).values.flip(1)[:, 1:]
    return earliest >= torch.arange(1, L, device=T.device)


def frobenius(T: Tensor) -> Tensor:
    """|H_i|_F, (B, L-1); T: (B, L, L), strictly lower triangular."""
    unit = power_of_two(magnitude(T))
    cuts = squares(T / unit[:, None, None])[0]
    out = cuts.sqrt() * unit[:, None]
    small = cuts < 1e-280  # the squares of small entries underflow: these cuts one by one, unless H_i = 0
    if small.any():
        for b, i in (small & ~zero_cuts(T)).nonzero().tolist():
            H = T[b, i + 1 :, : i + 1]
            out[b, i] = (H / H.abs().max()).norm() * H.abs().max()
    return out


def largest(T: Tensor, cuts: Sequence[int]) -> Tensor:
    """sigma_1(H_i) at the cuts i, (B, len(cuts)), to a relative TOLERANCE.

    Lanczos for neighbouring cuts at once: their H_i lie in one block of T, so that a step is two matrix products
    (O(L^3) / 3 multiplications for all cuts; trained attention takes four steps).  What does not converge, and few
    cuts, by SVD.

    Args:
        T: (B, L, L), strictly lower triangular.
    """
    unit = power_of_two(magnitude(T)) if len(T) else T.new_ones(0)
    T = T / unit[:, None, None]
    out = T.new_zeros(T.shape[0], len(cuts))
    order = sorted(range(len(cuts)), key=lambda k: cuts[k])
    for here in chunks(T):
        for start in range(0, len(order), GROUP):
            group = order[start : start + GROUP]
            values, converged = _lanczos(T[here], [cuts[k] for k in group])
            for k in (~converged).any(0).nonzero()[:, 0].tolist():
                i = cuts[group[k]]
                values[:, k] = svdvals(T[here, i:, :i])[:, 0]
            out[here, group] = values
    return out * unit[:, None]


def _lanczos(T: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
    """sigma_1(H_i) by Golub-Kahan bidiagonalisation, (B, cut), and whether it converged; cuts ascending."""
    B, low, high = T.shape[0], cuts[0], cuts[-1]
    if len(cuts) < FEW:
        return T.new_zeros(B, len(cuts)), torch.zeros(B, len(cuts), dtype=torch.bool, device=T.device)
    H = T[:, low:, :high]
    cut = torch.tensor(cuts, device=T.device)
    past = (torch.arange(high, device=T.device)[:, None] < cut).double()
    future = (torch.arange(low, T.shape[1], device=T.device)[:, None] >= cut).double()
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(high, 1, generator=generator, dtype=T.dtype).to(T.device) + 0.5

    def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
        norm = x.norm(dim=1)
        return x / norm.clamp_min(1e-300)[:, None], norm

    v, _ = normalised((start * past).expand(B, -1, -1))
    u, alpha = normalised(H @ v * future)
    diagonal, above = [alpha], []
    values, exact = alpha, torch.zeros_like(alpha, dtype=torch.bool)
    for step in range(1, STEPS):
        v, beta = normalised((H.mT @ u - alpha[:, None] * v) * past)
        above.append(beta)
        if step % 4 == 0:
            values, exact = _ritz(torch.stack(diagonal, -1), torch.stack(above, -1))
            if exact.all():
                break
        u, alpha = normalised((H @ v - beta[:, None] * u) * future)
        diagonal.append(alpha)
    return values, exact


def _ritz(diagonal: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """Largest singular value of the upper bidiagonal matrix, and whether its error bound is below TOLERANCE.

    Args:
        diagonal: (B, cut, k); above: (B, cut, k), whose last entry couples to the next step.
    """
    bidiagonal = torch.diag_embed(diagonal) + torch.diag_embed(above[..., :-1], 1)
    left, s, _ = torch.linalg.svd(bidiagonal)
    residual = above[..., -1] * left[..., -1, 0].abs()
    gap = (s[..., 0] - s[..., 1]).clamp_min(1e-300)
    error = torch.minimum(residual, residual**2 / gap)
    return s[..., 0], error <= TOLERANCE * s[..., 0]
