"""Keep other libraries' progress bars and advice off stderr for a while, and give them back their voice."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the bars and warnings of transformers and huggingface_hub inside the block.

    What matters in them (random tensors, unused tensors, dropped settings) is found by our own checks, and
    the advice to install faster kernels is wrong for us: they never form the operator. Download bars stay
    where stderr is a terminal, since fetching weights may take minutes. Afterwards everything is as verbose
    as before.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as voice

    verbosity, bars = voice.get_verbosity(), voice.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    levels = {name: logging.getLogger(name).level for name in ("huggingface_hub", "accelerate")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            voice.set_verbosity(logging.CRITICAL)
            voice.disable_progress_bar()  # the Hub's bars too
            for name in levels:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            if hub_bars and sys.stderr is not None and sys.stderr.isatty():
                enable_progress_bars()
            yield
        finally:
            voice.set_verbosity(verbosity)
            if bars:
                voice.enable_progress_bar()
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            if hub_bars:
                enable_progress_bars()
            else:
                disable_progress_bars()
