"""Which files a model's name stands for: a shipped demo, a folder, a GGUF file or a Hub repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_ess import hub
from hf_ess.configs import CONFIG
from hf_ess.errors import BadInput

DEMO = "demo:"
DEMOS = Path(__file__).parent / "demo"


@dataclass
class Source:
    """Where a checkpoint is.

    Attributes:
        name: as the user gave it.
        folder: the local folder; for the Hub, the snapshot in the cache.
        gguf: the name of the GGUF file in it, if that is what is to be read.
        repository: the repository on the Hub, if it came from there.
    """

    name: str
    folder: Path
    gguf: str | None = None
    repository: hub.Repository | None = None

    @property
    def location(self) -> str:
        """What transformers is given: the folder, or the Hub id, by which it finds all other files."""
        return self.repository.id if self.repository is not None else str(self.folder)

    @property
    def where(self) -> dict[str, Any]:
        """Further arguments for from_pretrained."""
        where = {} if self.repository is None else self.repository.where
        return where if self.gguf is None else {**where, "gguf_file": self.gguf}

    @property
    def revision(self) -> str | None:
        return None if self.repository is None else self.repository.commit


def find_source(
    name: str | Path,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    tokenizer_only: bool = False,
) -> Source:
    """Find a checkpoint by its name; on the Hub, fetch its config.json (or GGUF file) and nothing else.

    Raises:
        BadInput: no such file, folder, demo or Hub id.
    """
    text = str(name)
    if not text.strip():
        raise BadInput("the model's name is empty: give a folder, a Hub id (owner/name) or a .gguf file")
    if text.startswith(DEMO):
        return Source(text, _demo(text.removeprefix(DEMO)))
    path = Path(text).expanduser()
    if path.exists():
        if revision is not None:
            raise BadInput(f"a revision ({revision}) belongs to a Hub id, but {path} is on this machine")
        return _local(text, path, gguf_file)
    looks_like_path = (
        text.startswith(("/", ".", "~")) or text.count("/") > 1 or "\\" in text or text.endswith("/")
    )
    if looks_like_path or path.suffix in (".gguf", ".safetensors", ".bin", ".json"):
        raise BadInput(f"there is no file or folder {text}")
    return _on_hub(text, revision, gguf_file, tokenizer_only)


def _demo(name: str) -> Path:
    folder = DEMOS / name
    if not name or "/" in name or not (folder / CONFIG).is_file():
        shipped = sorted(f"{DEMO}{path.parent.name}" for path in DEMOS.glob(f"*/{CONFIG}"))
        choice = f"there is {' and '.join(shipped)}" if shipped else "this copy of hf-ess ships none"
        raise BadInput(f"there is no demo checkpoint {name!r}: {choice}")
    return folder


def _local(text: str, path: Path, gguf_file: str | None) -> Source:
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadInput(f"{path} is a file: give the folder that holds it (or a .gguf file)")
        return Source(text, path.parent, path.name)
    if gguf_file is not None:
        if (path / gguf_file).is_file():
            return Source(text, path, gguf_file)
        if Path(gguf_file).is_file():
            return Source(text, Path(gguf_file).parent, Path(gguf_file).name)
        raise BadInput(f"there is no GGUF file {gguf_file} in {path}{_ggufs(path, '; there is ')}")
    if not (path / CONFIG).is_file() and (files := sorted(path.glob("*.gguf"))):
        if len(files) > 1:
            raise BadInput(
                f"{path} holds several GGUF files: choose one with --gguf-file{_ggufs(path, ' from ')}"
            )
        return Source(text, path, files[0].name)
    return Source(text, path)


def _ggufs(folder: Path, lead: str) -> str:
    names = sorted(path.name for path in folder.glob("*.gguf"))
    return lead + ", ".join(names) if names else ""


def _on_hub(text: str, revision: str | None, gguf_file: str | None, tokenizer_only: bool) -> Source:
    repository = hub.open_repository(text, revision, gguf_file or CONFIG)
    if gguf_file is not None:
        path = repository.file(gguf_file)
        if path is None or repository.folder is None:
            raise BadInput(f"{text} has no file {gguf_file}")
        return Source(text, repository.folder, gguf_file, repository)
    if tokenizer_only:
        return Source(text, Path(), None, repository)
    return Source(text, hub.fetch_config(repository), None, repository)
