"""Household chores in text: ALFWorld's games, real ones by path and procedural ones in the same domain."""
