"""Singular values of one mixer call in one safetensors file, written block by block of operators as they come.

The values are ragged: position p of every operator holds `widths[p]` = min(TSS, i, L-i) numbers, descending, and those
of one operator lie one after the other.  Tensors of a file:

    offsets   int64 (P + 1)                values of position p: values[:, offsets[p] : offsets[p + 1]]
    unit      float64 (operator)           what a tolerance of the result is multiplied by: 1, or with relative
                                           tolerances the operator's largest singular value over all cuts
    error     float64 (operator)           bound of the rounding error of the computation, absolute
    positions int32 (P)                    cuts i
    tss       int32 (operator or 1, P)     theoretical state size
    values    (operator, offsets[P])       bfloat16 or float32
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

#: Dtypes of stored values, and the largest relative error of rounding to them.
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
ROUNDING = {"bfloat16": 2.0**-8, "float32": 2.0**-24}

_NAMES = {torch.int64: "I64", torch.float64: "F64", torch.int32: "I32", torch.bfloat16: "BF16", torch.float32: "F32"}


class ShardWriter:
    """Fills a file with the spectra of one mixer call; only a block of operators is ever in memory.

    The size of every tensor is known before the first value, so that the header can be written first.

    Args:
        file: open for writing, seekable, empty.
        operators: how many there are.
        positions: cuts i, ascending.
        widths: number of values at each of them.
        tss: (operator or 1, P) theoretical state size at them.
        dtype: a key of DTYPES.
        about: what the file says of itself, JSON values.
    """

    def __init__(
        self,
        file: IO[bytes],
        operators: int,
        positions: Sequence[int],
        widths: Sequence[int],
        tss: Tensor,
        dtype: str,
        about: dict[str, Any] | None = None,
    ) -> None:
        self.file, self.positions, self.widths, self.dtype = file, list(positions), list(widths), DTYPES[dtype]
        offsets = torch.tensor([0, *widths], dtype=torch.int64).cumsum(0)
        self.shape = (operators, int(offsets[-1]))
        self._unit, self._error = (torch.zeros(operators, dtype=torch.float64) for _ in range(2))
        self._done = 0
        tensors = {
            "offsets": offsets,
            "unit": self._unit,
            "error": self._error,
            "positions": torch.tensor(self.positions, dtype=torch.int32),
            "tss": tss.to(torch.int32),
        }
        header: dict[str, dict[str, object]] = {"__metadata__": {"hf_ess": json.dumps(about or {})}}
        starts: dict[str, int] = {}
        end = 0
        for name, tensor in tensors.items():
            starts[name] = end
            header[name], end = _entry(tensor.dtype, tensor.shape, end)
        header["values"], _ = _entry(self.dtype, self.shape, end)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the format's alignment
        file.write(len(text).to_bytes(8, "little") + text)
        self._unit_at = file.tell() + starts["unit"]
        for tensor in tensors.values():
            file.write(_bytes(tensor))

    def __call__(self, sigma: Sequence[Tensor], unit: Tensor, error: Tensor) -> None:
        """The next block of operators.

        Args:
            sigma: for each position (operator, k) float64, descending, k >= its width.
            unit: (operator,).
            error: (operator,).

        Raises:
            ValueError: there are values beyond the width that are no rounding errors.
        """
        count = len(unit)
        rows = torch.empty(count, self.shape[1], dtype=self.dtype)
        start = 0
        for values, width in zip(sigma, self.widths, strict=True):
            if (values[:, width:] > error[:, None].to(values.device)).any():
                raise ValueError(f"H_i has more singular values than min(TSS, i, L-i) = {width}")
            rows[:, start : start + width] = values[:, :width]
            start += width
        self.file.write(_bytes(rows))
        self._unit[self._done : self._done + count] = unit
        self._error[self._done : self._done + count] = error
        self._done += count

    def finish(self) -> None:
        """Writes what is known only at the end.

        Raises:
            ValueError: operators are missing.
        """
        if self._done != self.shape[0]:
            raise ValueError(f"spectra of {self._done} operators were written, expected {self.shape[0]}")
        self.file.seek(self._unit_at)
        self.file.write(_bytes(self._unit))
        self.file.write(_bytes(self._error))


def _entry(dtype: torch.dtype, shape: Sequence[int], start: int) -> tuple[dict[str, object], int]:
    """A tensor in the header, and where it ends."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    return {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, start + size]}, start + size


def _bytes(tensor: Tensor) -> memoryview:
    """What a tensor holds, not copied."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def about(path: Path) -> dict[str, Any]:
    """What a file says of itself; its header alone is read.

    Raises:
        ValueError: it is no such file, or cut off.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:  # which compares the header with the length of the file
            return json.loads(file.metadata()["hf_ess"])
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error


class Shard:
    """Stored singular values of one mixer call, read as they are asked for.

    Args:
        path: the file.

    Attributes:
        positions: (P,) cuts i.
        offsets: (P + 1,).
        unit, error: (operator,) float64; see the module.
        tss: (operator or 1, P) int32.
        operators: how many there are.
        dtype: of the stored values, a key of DTYPES.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        with safe_open(path, framework="pt") as file:
            self.offsets, self.positions = file.get_tensor("offsets"), file.get_tensor("positions")
            self.unit, self.error, self.tss = (file.get_tensor(name) for name in ("unit", "error", "tss"))
            values = file.get_slice("values")
            self.operators = values.get_shape()[0]
            self.dtype = {"BF16": "bfloat16", "F32": "float32"}[values.get_dtype()]

    def blocks(self, memory: int = 2**27) -> Iterator[tuple[slice, Tensor]]:
        """The stored values, (operators, offsets[P]) float64, block by block of operators with the range of each.

        Args:
            memory: bytes that a block may take.
        """
        from safetensors import safe_open

        size = max(1, memory // (24 * max(1, int(self.offsets[-1]))))
        with safe_open(self.path, framework="pt") as file:
            values = file.get_slice("values")
            for start in range(0, self.operators, size):
                part = slice(start, min(start + size, self.operators))
                yield part, values[part.start : part.stop].double()

    def at(self, position: int) -> Tensor:
        """Singular values of H_i at one stored cut, (operator, width) float64, descending.

        Raises:
            ValueError: nothing is stored there.
        """
        where = (self.positions == position).nonzero()
        if not len(where):
            raise ValueError(f"no spectra are stored at position {position}")
        from safetensors import safe_open

        p = int(where[0])
        with safe_open(self.path, framework="pt") as file:
            return file.get_slice("values")[:, int(self.offsets[p]) : int(self.offsets[p + 1])].double()
