"""Studies: fixed inputs, a claim, and what a model says to it."""
