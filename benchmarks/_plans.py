"""What to run: methods, settings, data, seeds. A plan is a dict; a TOML file of the same shape is a plan too.

settings = ["linear", "cosine"]
data = ["tune-modes16"]
seeds = [0, 1]
[[methods]]
label = "uniform"
sampler = "uniform"
fixed = true
[[methods]]
sampler = "kim"
settings = { objective = "vlb" }
[budget]
steps = 3000
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from benchmarks._cell import DATA, SETTINGS, cell

import opportune as op

Method = dict[str, Any]

EVERYWHERE = list(SETTINGS)
TUNE = [name for name in DATA if name.startswith("tune-")]
REPORT = [name for name in DATA if name.startswith("report-")]

# u = 1 is noise, so b > a trains on clean data more often.
BETAS = (
    (0.7, 0.7), (0.7, 1), (0.7, 2), (1, 1.5), (1, 2), (1, 3), (1, 5), (1.5, 1), (2, 1), (1.5, 2), (1.5, 3),
    (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 5),
)  # fmt: skip


def method(sampler: str, *, label: str = "", fixed: bool = False, weighting: str = "", **settings: Any) -> Method:
    """A method's description; ``settings`` are the sampler's."""
    described: Method = {"label": label or sampler, "sampler": sampler, "settings": settings, "fixed": fixed}
    return described | ({"weighting": weighting, "label": label or f"{sampler}+{weighting}"} if weighting else {})


def beta(a: float, b: float) -> Method:
    """Beta(a, b) over u."""
    return method("beta", label=f"Beta({a:g},{b:g})", fixed=True, a=float(a), b=float(b))


UNIFORM = method("uniform", fixed=True)
GRID = [UNIFORM, *(beta(a, b) for a, b in BETAS)]
NAMED = [
    method("logit_normal", fixed=True),
    method("log_normal", fixed=True),
    method("speed", fixed=True),
    method("uniform", weighting="min_snr"),
]
PROTOTYPE = [UNIFORM, beta(1, 2), beta(1, 3), beta(1, 5), beta(2, 4), *NAMED]
LEARNING = [method(name) for name in ("second_moment", "kingma_gao", "info_noise", "kim", "adaptive")]

PLANS: dict[str, dict[str, Any]] = {
    "smoke": {
        "settings": ["linear", "flow"],
        "data": ["report-modes2"],
        "methods": [UNIFORM, method("log_normal", fixed=True)],
        "seeds": [0, 1],
        "budget": {"steps": 60, "pairs": 1024, "generated": 128, "width": 32},
    },
    "quick": {"settings": ["linear", "cosine"], "data": ["tune-modes16"], "methods": PROTOTYPE, "seeds": [0]},
    "grid": {"settings": EVERYWHERE, "data": TUNE, "methods": [*GRID, *NAMED], "seeds": [0, 1]},
    "learning": {"settings": EVERYWHERE, "data": TUNE, "methods": [*GRID, *NAMED, *LEARNING], "seeds": [0, 1]},
    "full": {
        "settings": EVERYWHERE,
        "data": REPORT,
        "methods": [*GRID, *NAMED, *LEARNING],
        "seeds": [100, 101, 102, 103, 104],
    },
}


def read(name: str) -> dict[str, Any]:
    """A plan by name, or from a ``.toml`` file."""
    if name in PLANS:
        return PLANS[name]
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise SystemExit(f"--plan {name!r} is neither a plan ({', '.join(PLANS)}) nor a .toml file.")
    plan = tomllib.loads(path.read_text())
    missing = {"settings", "data", "methods", "seeds"} - set(plan)
    if missing:
        raise SystemExit(f"--plan {name}: {', '.join(sorted(missing))} missing; see benchmarks/_plans.py.")
    for described in plan["methods"]:
        described.setdefault("label", described["sampler"])
        described.setdefault("settings", {})
    return plan


def cells(plan: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """``(cells, labels left out)``: seed by seed, so that a run cut short has whole comparisons.

    A method that is not installed is left out, and said so.
    """
    left_out = [m["label"] for m in plan["methods"] if not _available(m)]
    methods = [m for m in plan["methods"] if m["label"] not in left_out]
    found = [
        cell(setting, data, m, seed, **plan.get("budget", {}))
        for seed in plan["seeds"]
        for data in plan["data"]
        for setting in plan["settings"]
        for m in methods
    ]
    return found, left_out


def _available(described: Method) -> bool:
    try:
        op.names.sampler_class(described["sampler"])
        if described.get("weighting"):
            op.names.weighting_class(described["weighting"])
    except ModuleNotFoundError:
        return False
    return True
