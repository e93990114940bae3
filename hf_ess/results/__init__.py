"""What a probe found: rows, summary, files."""

from hf_ess.results.result import ESS_SCHEMA, SCHEMA_VERSION, TOKENS_SCHEMA, Result, ess_table, load_result

__all__ = ["ESS_SCHEMA", "SCHEMA_VERSION", "TOKENS_SCHEMA", "Result", "ess_table", "load_result"]
