"""How many operators are measured at once: what fits into the memory given, the same numbers for any amount."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hf_ess.operators import ConvolutionOperator, DenseOperator, SelectiveScan, SSDScan
from hf_ess.spectra import ess
from hf_ess.spectra.svd_cost import operations

MIB = 2**20


class Blocks:
    """A sink that keeps the sizes of the blocks and the values."""

    def __init__(self, positions):
        self.positions, self.sizes, self.values = positions, [], []

    def __call__(self, sigma, unit, error):
        assert len(unit) == len(error) and (error >= 0).all() and len(sigma) == len(self.positions)
        self.sizes.append(len(unit))
        self.values.append(list(sigma))


def dense(count, length):
    return DenseOperator(torch.randn(count, length, length, dtype=torch.float64).tril())


def mamba(count, length, n=4):
    return SelectiveScan(
        torch.rand(count, length), -torch.rand(count, n) * 4, torch.randn(length, n), torch.randn(length, n)
    )


def large_state(count, length, n=64):
    b, c = torch.randn(1, length, n) / 8, torch.randn(1, length, n) / 8
    return SSDScan(torch.rand(count, length), -torch.rand(count), b, c, multiplicity=8)


def convolution(count, length):
    return ConvolutionOperator(torch.randn(count, 4), torch.randn(count, length), torch.randn(count, length))


@pytest.mark.parametrize("make", [dense, mamba, large_state, convolution])
def test_the_numbers_do_not_depend_on_the_memory(make):
    torch.manual_seed(0)
    op = make(7, 24)
    few, many = Blocks([3, 12, 20]), Blocks([3, 12, 20])
    a = ess.measure(op, [1e-1, 1e-3], memory=1, sink=few)
    b = ess.measure(op, [1e-1, 1e-3], memory=2**30, sink=many)
    assert few.sizes == [1] * 7 and many.sizes == [7]
    assert torch.equal(a.counts, b.counts) and torch.equal(a.resolved, b.resolved)
    assert torch.allclose(a.entropy, b.entropy, rtol=1e-9) and torch.allclose(a.frobenius, b.frobenius, rtol=1e-12)
    exact = ess.singular_values(op, [3, 12, 20])
    for p in range(3):
        width = exact[p].shape[1]
        for blocks in (few, many):
            got = torch.cat([values[p] for values in blocks.values])
            assert torch.allclose(got[:, :width], exact[p], rtol=1e-9, atol=1e-12) and (got[:, width:] == 0).all()


@pytest.mark.parametrize("relative", [False, True])
def test_a_sink_is_told_the_unit_of_each_operator(relative):
    torch.manual_seed(0)
    op = mamba(5, 16)
    blocks, units = Blocks([8]), []
    blocks_call = blocks.__call__

    class Sink:
        positions = blocks.positions

        def __call__(self, sigma, unit, error):
            units.append(unit)
            blocks_call(sigma, unit, error)

    measured = ess.measure(op, [0.5, 1e-2], relative=relative, memory=1, sink=Sink())
    assert torch.allclose(torch.cat(units) * 0.5, measured.tolerances[0])
    top = measured.sigma_1.amax(1) if relative else torch.ones(5, dtype=torch.float64)
    assert torch.allclose(torch.cat(units), top)


@pytest.mark.parametrize(("memory", "block"), [(1, 1), (8 * 8 * 100**2 * 3, 3), (2**40, 50)])
def test_dense_blocks_are_as_many_as_fit_with_their_copies(memory, block):
    assert min(50, ess._dense_block(dense(50, 100), memory)) == block


PEAK = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from hf_ess.spectra.ess import measure
from tests.spectra import test_memory as t
make, count, length, memory = getattr(t, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
measure(make(1, length), [1e-1])  # loads the kernels
op = make(count, length)
Path("/proc/self/clear_refs").write_text("5")  # the peak from here on: compiling kernels has one of its own
status = lambda: Path("/proc/self/status").read_text().splitlines()
peak = lambda: next(int(line.split()[1]) for line in status() if line.startswith("VmHWM"))
before = peak()
found = measure(op, [1e-1, 1e-3], memory=memory)
kept = sum(x.numel() * x.element_size() for x in vars(found).values() if x is not None)
print(max(0, (peak() - before) * 1024 - kept))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("make", "count", "length"),
    [("dense", 60, 512), ("mamba", 3000, 512), ("large_state", 64, 256), ("convolution", 12000, 512)],
)
def test_the_peak_of_a_process_obeys(make, count, length):
    """Above the operators and what is returned; 64 MiB are for what does not grow with a block."""
    peaks = {}
    for memory in (64 * MIB, 512 * MIB):
        command = [sys.executable, "-c", PEAK, make, str(count), str(length), str(memory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[memory] = int(done.stdout)
        assert peaks[memory] <= memory + 64 * MIB, {k // MIB: v // MIB for k, v in peaks.items()}


def test_operations_of_svds_grow_with_the_cube():
    assert operations(200, [100]) == pytest.approx(8 * operations(100, [50]))
    assert operations(100, range(1, 100)) > 50 * operations(100, [50]) * 0.3
    assert operations(100, []) == 0
