"""Glyphs: which characters can be drawn with the fonts at hand, and what is drawn for the others."""

from __future__ import annotations

from functools import lru_cache

from matplotlib import font_manager

from hf_ess.plotting import labels

#: Tried in this order after DejaVu Sans, which comes with matplotlib; those that are not installed are left out.
CANDIDATES = (
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Noto Emoji",
    "Symbola",
    "Segoe UI Symbol",
    "Noto Sans Symbols 2",
    "Unifont",
)
DEFAULT = "DejaVu Sans"


@lru_cache(maxsize=1)
def available() -> dict[str, frozenset[int]]:
    """Families that are installed, each with the code points that it has glyphs for."""
    files: dict[str, str] = {}
    for entry in font_manager.fontManager.ttflist:
        if entry.name not in files and entry.style == "normal" and str(entry.weight) in ("400", "normal", "regular"):
            files[entry.name] = entry.fname
    found = {}
    for family in (DEFAULT, *CANDIDATES):
        if family in files:
            try:
                found[family] = frozenset(font_manager.get_font(files[family]).get_charmap())
            except (OSError, RuntimeError):  # listed in the font cache, gone or unreadable since
                continue
    return found


def families() -> list[str]:
    """What to give as fontfamily: matplotlib takes each glyph from the first family that has it."""
    return list(available()) or [DEFAULT]


def drawable(text: str) -> bool:
    """Whether every character has a glyph."""
    return all(any(ord(c) in glyphs for glyphs in available().values()) for c in text)


def literal(text: str) -> str:
    r"""Text of which everything can be drawn: control characters and missing glyphs as \n, U+706F."""
    return "".join(c if drawable(c) else f"U+{ord(c):04X}" for c in labels.visible(text))


def token(text: str, id_: int, most: int = 13) -> str:
    """A short label for a token; the space before a word is dropped, what cannot be drawn is its code point or id.

    Args:
        text: what the token stands for in the text; "" for a token without text.
        id_: its id.
        most: longest label.
    """
    shown = labels.visible(text)
    if not shown:
        return f"#{id_}"
    if not shown.strip(" "):
        return "␣" * min(len(shown), most) if drawable("␣") else "space"
    if len(shown) > 1 and shown[0] == " " and shown[1] != " ":
        shown = shown[1:]
    if not drawable(shown):
        shown = literal(shown) if len(shown) == 1 else f"#{id_}"
    return labels.shortened(shown, most)
