"""Weights through the object store: lossless sparse deltas, published, pulled and verified. See ``FORMAT.md``."""
