"""What a layer computed, as data: causal linear operators.  Knows torch only."""

from hf_ess.operators.base import Operator
from hf_ess.operators.dense import DenseOperator
from hf_ess.operators.recurrent import RecurrentOperator, SelectiveScan

__all__ = ["DenseOperator", "Operator", "RecurrentOperator", "SelectiveScan"]
