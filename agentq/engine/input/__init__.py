"""Rows from files: JSONL, the batch files of providers, CSV, TSV, plain text, each of them also gzipped."""

from agentq.engine.input.form import FORMS
from agentq.engine.input.original import line_of
from agentq.engine.input.reader import read_rows
from agentq.engine.input.rowmap import RowMap, parse_map

__all__ = ["FORMS", "RowMap", "line_of", "parse_map", "read_rows"]
