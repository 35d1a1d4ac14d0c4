"""A comparison of seconds on the embedded images."""

from __future__ import annotations

from pathlib import Path

from opportune.compare import Plan, parse_plan

HEAD = """
title = "tiny"
recipe = "fashion16"
seeds = [0]

[base]
run.steps = 240
data.batch_size = 8
model = { name = "dit", settings = { width = 16, depth = 1, heads = 2, patch_size = 4, dropout = 0.1 } }
schedule.warm_up_steps = 2
ema.decay = 0.9
validation = { every_steps = 60, examples = 16 }
checkpoint.every_steps = 20
logs = { every_steps = 20, bins = 4 }
hardware.device = "cpu"
"""
UNIFORM = """
[[methods]]
label = "uniform"
baseline = true
"""
DIVERGES = """
[[methods]]
label = "diverges"
optimizer = { learning_rate = 1e30, max_skips = 1 }
"""
SPEED = """
[[methods]]
label = "SpeeD"
sampler.name = "speed"
"""
EVALUATE = """
[evaluate]
points = 2
count = 8
steps = 2
features = "pixels"
"""


def tiny_plan(text: str = HEAD + UNIFORM + SPEED + EVALUATE) -> Plan:
    """The plan in ``text``."""
    return parse_plan(text, name="tiny", folder=Path())
