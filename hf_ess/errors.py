"""What can go wrong, by kind: every error the package raises on purpose is one of these."""


class HfEssError(Exception):
    """Base of all errors that hf-ess raises on purpose; its text is one sentence for the user."""


class BadInput(HfEssError):
    """The model, text or option given cannot be used: what, where, and what to do."""


class UnsupportedModel(BadInput):
    """The checkpoint is a real model but not one with causal operators (encoder, encoder-decoder ...)."""


class VerificationFailed(HfEssError):
    """T u differs from the layer's own output y by more than the family's bound."""


class NonFiniteOperator(HfEssError):
    """An operator holds NaN or Inf, so no singular value is defined."""
