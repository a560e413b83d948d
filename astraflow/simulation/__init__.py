"""A run without models, machines or waiting: the real manager, virtual pools and trainers, a virtual clock."""

from astraflow.simulation.report import Report
from astraflow.simulation.scenario import Scenario, load_scenario
from astraflow.simulation.world import World, simulate

__all__ = ["Report", "Scenario", "World", "load_scenario", "simulate"]
