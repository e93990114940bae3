"""hf-ess: the effective state-size of language models (arXiv 2504.19561)."""

__version__ = "0.1.0"
