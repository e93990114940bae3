"""hf-ess: the effective state-size of language models (arXiv 2504.19561).

Names are imported when they are first used, so that `import hf_ess` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "probe": "hf_ess.probing",
    "plan": "hf_ess.planning.planner",
    "Plan": "hf_ess.planning.planner",
    "study": "hf_ess.studying.running",
    "StudyOutcome": "hf_ess.studying.outcome",
    "load_outcome": "hf_ess.studying.outcome",
    "retol": "hf_ess.retolerancing",
    "verify": "hf_ess.verification",
    "compare": "hf_ess.comparing.comparison",
    "Comparison": "hf_ess.comparing.comparison",
    "load_comparison": "hf_ess.comparing.comparison",
    "compare_models": "hf_ess.comparing.model_comparison",
    "ModelComparison": "hf_ess.comparing.model_comparison",
    "register": "hf_ess.adapters.registry",
    "MixerCall": "hf_ess.adapters.base",
    "Watch": "hf_ess.adapters.base",
    "capture": "hf_ess.capturing",
    "load_result": "hf_ess.results",
    "report": "hf_ess.reporting",
    "Result": "hf_ess.results",
    "tolerance_ess": "hf_ess.spectra.ess",
    "entropy_ess": "hf_ess.spectra.ess",
    "singular_values": "hf_ess.spectra.ess",
    "causal_ess": "hf_ess.spectra.causal",
    "anticausal_ess": "hf_ess.spectra.causal",
    "DenseOperator": "hf_ess.operators",
    "RecurrentOperator": "hf_ess.operators",
    "SelectiveScan": "hf_ess.operators",
    "SoftmaxAttention": "hf_ess.operators",
    "StateSpaceOperator": "hf_ess.operators",
    "SSDScan": "hf_ess.operators",
    "DeltaRule": "hf_ess.operators",
    "ConvolutionOperator": "hf_ess.operators",
    "HfEssError": "hf_ess.errors",
    "BadInput": "hf_ess.errors",
    "UnsupportedModel": "hf_ess.errors",
    "VerificationFailed": "hf_ess.errors",
    "NonFiniteOperator": "hf_ess.errors",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from hf_ess.adapters.base import MixerCall, Watch
    from hf_ess.adapters.registry import register
    from hf_ess.capturing import capture
    from hf_ess.comparing.comparison import Comparison, compare, load_comparison
    from hf_ess.comparing.model_comparison import ModelComparison, compare_models
    from hf_ess.errors import BadInput, HfEssError, NonFiniteOperator, UnsupportedModel, VerificationFailed
    from hf_ess.operators import (
        ConvolutionOperator,
        DeltaRule,
        DenseOperator,
        RecurrentOperator,
        SelectiveScan,
        SoftmaxAttention,
        SSDScan,
        StateSpaceOperator,
    )
    from hf_ess.planning.planner import Plan, plan
    from hf_ess.probing import probe
    from hf_ess.reporting import report
    from hf_ess.results import Result, load_result
    from hf_ess.retolerancing import retol
    from hf_ess.spectra.causal import anticausal_ess, causal_ess
    from hf_ess.spectra.ess import entropy_ess, singular_values, tolerance_ess
    from hf_ess.studying.outcome import StudyOutcome, load_outcome
    from hf_ess.studying.running import study
    from hf_ess.verification import verify


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hf_ess' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
