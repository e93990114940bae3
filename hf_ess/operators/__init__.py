"""What a layer computed, as data: causal linear operators.  Knows torch only."""

from hf_ess.operators.base import Operator
from hf_ess.operators.convolution import ConvolutionOperator
from hf_ess.operators.delta import DeltaRule
from hf_ess.operators.dense import DenseOperator
from hf_ess.operators.recurrent import RecurrentOperator, SelectiveScan
from hf_ess.operators.softmax import SoftmaxAttention
from hf_ess.operators.ssd import SSDScan
from hf_ess.operators.state_space import StateSpaceOperator

__all__ = [
    "ConvolutionOperator",
    "DeltaRule",
    "DenseOperator",
    "Operator",
    "RecurrentOperator",
    "SSDScan",
    "SelectiveScan",
    "SoftmaxAttention",
    "StateSpaceOperator",
]
