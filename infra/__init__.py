"""Command line, local stack, deployments and recipes."""
