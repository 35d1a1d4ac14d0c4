"""Methods × settings × seeds as one plan that can be stopped and continued: ``opportune compare``."""

from .cells import Cell, cells_of
from .plan import Evaluate, Method, Plan, parse_plan, read_plan
from .run import Outcome, run_plan
from .shipped import plans, shipped_plan
from .summary import Table, summarise

__all__ = [
    "Cell",
    "Evaluate",
    "Method",
    "Outcome",
    "Plan",
    "Table",
    "cells_of",
    "parse_plan",
    "plans",
    "read_plan",
    "run_plan",
    "shipped_plan",
    "summarise",
]
