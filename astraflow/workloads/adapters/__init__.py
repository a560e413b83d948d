"""Adapters: text environments made elsewhere, as worlds of the workflow ``environment_agent``."""
