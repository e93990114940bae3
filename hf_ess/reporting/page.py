"""Puts the page together: template, style, program, data and plotly.js in one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import secrets
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput

if TYPE_CHECKING:
    from hf_ess.comparing.comparison import Comparison
    from hf_ess.results import Result

GENERATOR = '<meta name="generator" content="hf-ess report">'


def report(
    source: Result | Comparison | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Writes one HTML page of a result or a comparison, to be opened as a file: it loads nothing from anywhere.

    Args:
        source: what probe() or compare() returned, or a directory that they saved.
        path: the file; default report.html in that directory, which replaces an earlier report there.
        overwrite: replace a file that exists.

    Returns:
        The path written.

    Raises:
        BadInput: the source is neither, the file exists or cannot be written, or plotly is not installed.
    """
    library = _plotly()  # before anything slow
    target = _target(source, path, overwrite)
    _write(page(source, library), target)
    return target


def page(source: Result | Comparison | str | os.PathLike[str], library: str | None = None) -> str:
    """The page as a string.

    Args:
        source: as in report().
        library: the text of plotly.js, where it is at hand.
    """
    data = page_data(source)
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    scripts = [library or _plotly(), _program(data["document"])]
    title = html.escape(f"{data['header']['model']} - {data['header']['eyebrow']}")
    # No address is allowed to be loaded, and no script but these two: their hashes are in the policy.
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    body = _asset("page.html")
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            f'{GENERATOR}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{title}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n{body}",
            f'<script type="application/json" id="data">{text}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def page_data(source: Result | Comparison | str | os.PathLike[str]) -> dict[str, Any]:
    """What the page shows, as plain JSON values."""
    from hf_ess.comparing.comparison import Comparison
    from hf_ess.reporting.comparison_data import comparison_data
    from hf_ess.reporting.result_data import result_data
    from hf_ess.reporting.saved import load_saved
    from hf_ess.results import Result
    from hf_ess.studying.outcome import StudyOutcome

    found = load_saved(source) if isinstance(source, str | os.PathLike) else source
    if isinstance(found, Comparison):
        return comparison_data(found)
    if isinstance(found, Result):
        return result_data(found)
    if isinstance(found, StudyOutcome):
        raise BadInput("the outcome of this study is a page already: outcome.md in its directory")
    raise BadInput(f"a report needs a Result, a Comparison or a directory of one, got {type(source).__name__}")


def _plotly() -> str:
    """The text of plotly.js, which the package plotly carries."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise BadInput("a report needs plotly: pip install 'hf-ess[report]'") from error
    return str(get_plotlyjs()).replace("\r", "")


def _program(document: str) -> str:
    """The page's own script."""
    names = ("colour.js", "elements.js", "charts.js", "tokens.js", f"{document}.js")
    return '"use strict";\n(() => {\n' + "\n".join(map(_asset, names)) + "})();\n"


def _asset(name: str) -> str:
    return resources.files("hf_ess.reporting").joinpath("assets", name).read_text(encoding="utf-8").replace("\r", "")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _target(source: Any, path: str | os.PathLike[str] | None, overwrite: bool) -> Path:
    """Where to write; an earlier report at the default place may be replaced, nothing else without `overwrite`."""
    if path is None and not isinstance(source, str | os.PathLike):
        raise BadInput("name the file to write the report to, such as report.html")
    target = Path(path) if path is not None else Path(os.fspath(source)) / "report.html"
    if target.is_dir():
        raise BadInput(f"{target} is a directory; name a file for the report, such as {target / 'report.html'}")
    if target.exists() and not overwrite and not (path is None and _is_report(target)):
        raise BadInput(f"{target} exists already; choose another file or pass --overwrite")
    return target


def _is_report(path: Path) -> bool:
    with open(path, "rb") as f:
        return GENERATOR.encode("ascii") in f.read(4096)


def _write(text: str, target: Path) -> None:
    """Durable and atomic."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.writing")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as f:
            f.write(text.encode("utf-8"))
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadInput(f"cannot write the report to {target}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
