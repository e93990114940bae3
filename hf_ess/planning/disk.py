"""What a result takes on disk, in bytes: rows of ess.parquet by kind, stored spectra, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_ess.planning.survey import PlannedLayer
from hf_ess.results.recording import ESS_REDUCTIONS, Options, few_units

# Bytes of a value in parquet with zstd (measured on results of trained and random models): real numbers do not
# compress, counts take few bits.
_REAL, _WHOLE = 7.9, 0.3
_WHOLE_REDUCTIONS = {"sum_heads", "sum_channels", "min", "max", "q10", "q50", "q90"}  # of counts
_PICTURES = 600_000  # three of them
_PER_TOKEN, _PER_LAYER, _SUMMARY = 14, 1000, 8000  # tokens.parquet, a row of summary.json, the rest of it


@dataclass(frozen=True)
class Disk:
    """Bytes of a finished result, and of the folder while it is built.

    Attributes:
        curves: ess.parquet.
        spectra: singular values (--keep spectra); None where the positions depend on a text that was not given.
        other: tokens, summary, pictures.
        building: the most that exists at once: the pieces of all layers beside the whole.
        free: on the disk of the output; None without one.
    """

    curves: int
    spectra: int | None
    other: int
    building: int
    free: int | None = None

    @property
    def result(self) -> int:
        """The finished result."""
        return self.curves + (self.spectra or 0) + self.other


def rows(layer: PlannedLayer, options: Options) -> tuple[int, int]:
    """How many curves of real and of whole numbers ess.parquet has of one mixer call."""
    tolerances, units = len(options.tolerances), layer.operators if few_units(options.keep, layer.operators) else 0
    whole_reductions = sum(name in _WHOLE_REDUCTIONS for name in ESS_REDUCTIONS)
    real = tolerances * (len(ESS_REDUCTIONS) - whole_reductions + 2) + 2  # utilisation, saturation; two of the norm
    whole = tolerances * (whole_reductions + units) + 4  # TSS and bound
    if options.entropy:
        real += len(ESS_REDUCTIONS) + units
    if options.norms:
        real += 4 + 2 * units
    return real, whole


def curves(layers: Sequence[PlannedLayer], lengths: Sequence[int], options: Options) -> tuple[float, float]:
    """Bytes of all curves on disk, and in memory."""
    per_layer = [rows(layer, options) for layer in layers]
    totals = 2 * (len(options.tolerances) + 2)  # over all layers
    real, whole = sum(r for r, _ in per_layer) + totals, sum(w for _, w in per_layer)
    cuts = sum(length - 1 for length in lengths)
    return cuts * (_REAL * real + _WHOLE * whole), cuts * 9.0 * (real + whole)


def estimated(
    layers: Sequence[PlannedLayer],
    lengths: Sequence[int],
    cuts: Sequence[Sequence[int]] | None,
    options: Options,
    plots: bool,
    output: Path | None,
) -> Disk:
    """The disk that a run takes.

    Args:
        layers: that will be measured.
        lengths: tokens of each prompt.
        cuts: where spectra are stored, for each prompt; None where that is not known.
        options: what is kept.
        plots: whether pictures are drawn.
        output: the result's directory to be, or None.
    """
    size, _ = curves(layers, lengths, options)
    spectra: float | None = 0.0
    if options.spectra_dtype is not None:
        spectra = None if cuts is None else stored(layers, lengths, cuts, options.spectra_dtype)
    tokens = _PER_TOKEN * sum(lengths)
    other = tokens + _PER_LAYER * len(layers) * len(lengths) + _SUMMARY + (_PICTURES if plots else 0)
    free = None if output is None else free_bytes(output)
    building = 2 * size + (spectra or 0.0) + other
    return Disk(int(size), None if spectra is None else int(spectra), int(other), int(building), free)


def stored(layers: Sequence[PlannedLayer], lengths: Sequence[int], cuts: Sequence[Sequence[int]], dtype: str) -> float:
    """Bytes of the singular values at the cuts: min(TSS, i, L-i) for each operator."""
    from hf_ess.results.shards import DTYPES

    total = 0.0
    for length, at in zip(lengths, cuts):
        for layer in layers:
            width = sum(min(layer.tss.at(i), layer.tss.block * min(i, length - i)) for i in at)
            total += layer.operators * (width * DTYPES[dtype].itemsize + 16) + 16 * len(at) + 500
    return total


def free_bytes(output: Path) -> int | None:
    """Free bytes where a folder that may not exist yet would be; None where that cannot be told."""
    import shutil

    for folder in (output, *output.absolute().parents):
        if folder.exists():
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                return None
    return None
