"""A saved result or comparison as one HTML page that needs nothing else: no network, no server, no other file."""

from hf_ess.reporting.page import report

__all__ = ["report"]
