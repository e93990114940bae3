"""Which studies there are: a folder each, with its inputs, its claim and the settings of the paper's figures."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput

KINDS = ("separators", "classes", "shots")


@dataclass(frozen=True)
class Study:
    """A study as its folder describes it.

    Attributes:
        name: of the folder.
        kind: what is done: "separators", "classes" or "shots".
        title: a line.
        claim: what the paper says, or what is asked.
        folder: where its inputs are.
        options: settings by name.
        presets: settings of single figures of the paper by their number, on top of the options.
    """

    name: str
    kind: str
    title: str
    claim: str
    folder: Path
    options: dict[str, Any]
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)

    def settings(self, preset: str | None) -> dict[str, Any]:
        """The options, with those of a preset on top.

        Raises:
            BadInput: there is no such preset.
        """
        if preset is None:
            return dict(self.options)
        if preset not in self.presets:
            names = ", ".join(self.presets) or "none"
            raise BadInput(f"the study {self.name} has no preset {preset!r}; there is {names}")
        return {**self.options, **self.presets[preset]}


def home() -> Path:
    """The folder of the studies: in an installed package, or in a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "studies"
    return shipped if shipped.is_dir() else package.parent / "probes"


def names() -> list[str]:
    """Names of the studies that come with hf-ess."""
    return sorted(path.parent.name for path in home().glob("*/study.toml"))


def find(name: str) -> Study:
    """A study by its name, or by the path of a folder of one's own.

    Raises:
        BadInput: there is none, or its study.toml cannot be used.
    """
    folder = home() / name if name in names() else Path(name)
    path = folder / "study.toml"
    if not path.is_file():
        raise BadInput(f"there is no study {name!r}; there is {', '.join(names())}, or a folder with a study.toml")
    try:
        made = tomllib.loads(path.read_text(encoding="utf-8"))
        kind, title, claim = (made.pop(key) for key in ("kind", "title", "claim"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    except KeyError as error:
        raise BadInput(f"{path} has no {error.args[0]}") from error
    if kind not in KINDS:
        raise BadInput(f"{path}: there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    shared = made.pop("preset_defaults", {})
    presets = {number: {**shared, **own} for number, own in made.pop("preset", {}).items()}
    return Study(folder.resolve().name, kind, title, " ".join(claim.split()), folder, made, presets)
