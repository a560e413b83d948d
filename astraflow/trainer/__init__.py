"""The trainer: consume a batch, optimise, publish. It knows nothing about rollouts.

``loop.run_trainer`` reads top to bottom; everything else here is a part of it that can be read on its own.
"""
