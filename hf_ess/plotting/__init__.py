"""The parts of hf_ess.plots: data of a figure, its labels, its look, and one module per kind of figure."""
