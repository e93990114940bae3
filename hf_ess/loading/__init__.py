"""From a user's words to a model and a tokenizer, with one sentence for everything that can be wrong."""

from hf_ess.loading.models import LoadedModel, load, load_tokenizer

__all__ = ["LoadedModel", "load", "load_tokenizer"]
