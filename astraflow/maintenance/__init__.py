"""Tidying up: many small trajectory objects into few, and the removal of what nobody can need of a run that is over."""
