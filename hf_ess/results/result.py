"""What a probe found: a directory of plain files, and the same thing in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hf_ess.errors import BadInput
from hf_ess.results.files import whole_directory, write_json, write_table

if TYPE_CHECKING:
    import datasets
    from matplotlib.figure import Figure

    from hf_ess.results.stored import StoredSpectra

SCHEMA_VERSION = 1

# One row per prompt, mixer call, unit or reduction, metric and tolerance.  values[k] belongs to the cut before
# token k + 1 (H_i = T[i:, :i] with i = k + 1), so a list has L - 1 of them.
ESS_SCHEMA = pa.schema(
    [
        ("prompt", pa.int32()),
        ("layer", pa.int32()),  # null: all layers together
        ("call", pa.int32()),
        ("module", pa.string()),
        ("kind", pa.string()),
        ("unit", pa.int32()),  # head or channel; null for a reduction
        ("reduction", pa.string()),  # null for a unit
        ("metric", pa.string()),
        ("tolerance", pa.float64()),  # null where the metric has none
        ("values", pa.list_(pa.float64())),  # null: not measured (failed verification, not finite)
    ]
)

TOKENS_SCHEMA = pa.schema(
    [
        ("prompt", pa.int32()),
        ("position", pa.int32()),
        ("id", pa.int64()),
        ("text", pa.string()),
        ("start", pa.int32()),  # character span in the prompt; null for a token without text
        ("end", pa.int32()),
        ("delimiter", pa.list_(pa.string())),  # names of the delimiters that lie in this token
    ]
)


class Result:
    """ESS of every layer of a model on one or several prompts.

    Attributes:
        summary: provenance, options, one row per layer, what was skipped; what summary.json holds.
        ess: pyarrow table in ESS_SCHEMA.
        tokens: pyarrow table in TOKENS_SCHEMA.
        path: the directory it was read from or written to, where its spectra are; None for a result in memory.
    """

    def __init__(self, summary: dict[str, Any], ess: pa.Table, tokens: pa.Table, path: Path | None = None) -> None:
        self.summary, self.ess, self.tokens, self.path = summary, ess, tokens, path

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One row per prompt and mixer call: layer, kind, operators, tss, mean ESS, utilisation, error, status."""
        return self.summary["layers"]

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Mixers that ran on the text and could not be measured: layer, module, class, reason."""
        return self.summary["skipped"]

    @property
    def tolerances(self) -> list[float]:
        """The tolerances asked for, in the order given."""
        return self.summary["options"]["tolerances"]

    def rows(self, **where: Any) -> list[dict[str, Any]]:
        """Rows of the ess table whose columns equal the given values, e.g. metric="tolerance", reduction="mean".

        A value of None asks for null.
        """
        import pyarrow.compute as pc

        table = self.ess
        for column, value in where.items():
            keep = pc.is_null(table[column]) if value is None else pc.equal(table[column], value)
            table = table.filter(pc.fill_null(keep, False))
        return table.to_pylist()

    def to_dataset(self) -> datasets.Dataset:
        """The result with one row per position, as a `datasets.Dataset`.

        Columns: prompt, layer, call, module, kind, unit, reduction, position, token, metric, tolerance, value.
        """
        import datasets
        import numpy as np
        import pyarrow.compute as pc

        kept = self.ess.filter(pc.is_valid(self.ess["values"])).combine_chunks()
        lengths = pc.list_value_length(kept["values"]).to_numpy()
        row = np.repeat(np.arange(kept.num_rows), lengths)
        ends = np.cumsum(lengths)
        position = np.arange(len(row)) - np.repeat(ends - lengths, lengths) + 1
        texts: dict[tuple[int, int], str] = {
            (t["prompt"], t["position"]): t["text"]
            for t in self.tokens.select(["prompt", "position", "text"]).to_pylist()
        }
        prompts = np.repeat(kept["prompt"].to_numpy(), lengths)
        columns = {
            name: kept[name].take(pa.array(row))
            for name in ("prompt", "layer", "call", "module", "kind", "unit", "reduction", "metric", "tolerance")
        }
        columns["position"] = pa.array(position, pa.int32())
        columns["token"] = pa.array([texts.get((int(p), int(i))) for p, i in zip(prompts, position)], pa.string())
        columns["value"] = pc.list_flatten(kept["values"])
        order = [
            "prompt",
            "layer",
            "call",
            "module",
            "kind",
            "unit",
            "reduction",
            "position",
            "token",
            "metric",
            "tolerance",
            "value",
        ]
        return datasets.Dataset(pa.table({name: columns[name] for name in order}))

    @property
    def spectra(self) -> StoredSpectra:
        """The stored singular values.

        Raises:
            BadInput: there are none.
        """
        from hf_ess.results.stored import StoredSpectra

        if self.path is None:
            raise BadInput('this result has no directory, so no spectra: probe with keep="spectra" and output=')
        return StoredSpectra(self.path)

    def plot(self, kind: str = "lines", **options: Any) -> Figure:
        """A matplotlib figure, never shown: kind "lines", "heatmap" or "utilisation" (see hf_ess.plots)."""
        from hf_ess import plots

        return plots.draw(self, kind, **options)

    def report(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes one self-contained HTML page (see hf_ess.report); needs plotly."""
        from hf_ess.reporting import report

        return report(self, path, overwrite=overwrite)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Writes the result as a directory that is either whole or not there.

        Raises:
            BadInput: the path exists (and overwrite is False), or cannot be written.
            HfEssError: the disk is full; nothing is left behind.
        """
        target = Path(path)
        with whole_directory(target, overwrite, "the result") as folder:
            if self.path is not None and (self.path / "spectra").is_dir():
                shutil.copytree(self.path / "spectra", folder / "spectra", dirs_exist_ok=True)
            write_table(self.ess, folder / "ess.parquet")
            write_table(self.tokens, folder / "tokens.parquet")
            write_json(self.summary, folder / "summary.json")
        return target

    def __repr__(self) -> str:
        s = self.summary
        lengths = ", ".join(str(p["tokens"]) for p in s["prompts"])
        return (
            f"<hf_ess.Result of {s['provenance']['model']}: {len(s['layers'])} layers measured, "
            f"{len(s['skipped'])} skipped, tokens: {lengths}>"
        )


def load_result(path: str | os.PathLike[str]) -> Result:
    """Reads a result directory.

    Raises:
        BadInput: it is not a result directory, is incomplete, or was written by a newer schema.
    """
    folder = Path(path)
    for name in ("summary.json", "ess.parquet", "tokens.parquet"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder} is not a result of hf-ess: it has no {name}")
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        version = summary["schema_version"]
        if version > SCHEMA_VERSION:
            raise BadInput(f"{folder} has schema version {version}; this hf-ess reads up to {SCHEMA_VERSION}")
        ess, tokens = pq.read_table(folder / "ess.parquet"), pq.read_table(folder / "tokens.parquet")
        _check(summary, ess, tokens)
        return Result(summary, ess, tokens, folder)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OSError) as error:
        raise BadInput(
            f"{folder} cannot be read as a result of hf-ess: {error or type(error).__name__}; it is damaged, or its "
            "files are not of one run"
        ) from error


def _check(summary: dict[str, Any], ess: pa.Table, tokens: pa.Table) -> None:
    """Raises ValueError where the files of a result do not go together."""
    if not set(ESS_SCHEMA.names) <= set(ess.column_names) or not set(TOKENS_SCHEMA.names) <= set(tokens.column_names):
        raise ValueError("its tables have other columns")
    lengths = [prompt["tokens"] for prompt in summary["prompts"]]
    counted = {row["prompt"]: row["position_count"] for row in _counted(tokens)}
    if [counted.get(n) for n in range(len(lengths))] != lengths or not isinstance(summary["layers"], list):
        raise ValueError("the summary and the tokens are of different texts")
    cuts = pc.list_value_length(ess["values"])
    expected = pc.take(pa.array([length - 1 for length in lengths]), ess["prompt"])
    if not pc.all(pc.fill_null(pc.equal(cuts, expected), True)).as_py():
        raise ValueError("the curves and the tokens are of different texts")


def _counted(tokens: pa.Table) -> list[dict[str, int]]:
    return tokens.group_by("prompt").aggregate([("position", "count")]).to_pylist()


def ess_table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows in ESS_SCHEMA as a table; missing columns are null."""
    return pa.Table.from_pylist(list(rows), schema=ESS_SCHEMA)
