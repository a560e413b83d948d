"""The commands that operate, explain and take out: one module a group, each a few lines over the core."""
