"""Where spectra are stored."""

from __future__ import annotations

import pytest

from hf_ess import BadInput
from hf_ess.text.positions import cuts, parsed

FOUND = {".": [3, 9], "eos": [], "\n": [4]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("delimiters", [3, 4, 5, 6, 9]),
        ("all", list(range(1, 10))),
        ("every:4", [4, 8]),
        ("every:1", list(range(1, 10))),
        ("5, 7-9,8", [5, 7, 8, 9]),
        ([2, 1, 2], [1, 2]),
    ],
)
def test_the_cuts_of_a_text_of_ten_tokens(given, expected):
    assert cuts(parsed(given), [10], [FOUND]) == [expected]


def test_every_text_has_its_own_cuts():
    assert cuts("delimiters", [10, 4], [FOUND, {".": [], "eos": [2]}]) == [[3, 4, 5, 6, 9], [2, 3]]
    assert cuts("delimiters", [10, 4], [FOUND, {".": []}])[1] == []
    assert cuts("2-8", [10, 4], [{}, {}]) == [[2, 3, 4, 5, 6, 7, 8], [2, 3]]


@pytest.mark.parametrize("given", ["", "every", "every:0", "every:-1", "0", "5-", "9-3", "a", "1,,2", [], [-1]])
def test_what_is_no_position(given):
    with pytest.raises(BadInput, match="positions"):
        parsed(given)


def test_what_leaves_nothing():
    with pytest.raises(BadInput, match=r"no delimiter \(\., eos\) was found.*--positions all"):
        cuts("delimiters", [10], [{".": [], "eos": []}])
    with pytest.raises(BadInput, match=r"position 20 is not a cut.*10 tokens.*1 \.\. 9"):
        cuts("3,12-20", [10, 5], [{}, {}])
    with pytest.raises(BadInput, match="every:10 leaves nothing"):
        cuts("every:10", [10], [{}])
