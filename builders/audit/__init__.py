"""Audit wheels by their content: a build can exit with 0 and still have compiled nothing.

DeepSpeed builds without its ops if it finds no torch. Apex without its extensions can still be imported.
Each ``check_*`` function yields findings, which text, JSON and provenance share.
"""
