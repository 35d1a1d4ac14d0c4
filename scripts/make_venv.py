"""Create the virtual environment the Makefile works in.

Standard library only: it runs before anything is installed.

A torch >= 2.6 in an *active* environment (virtualenv or conda) is reused, so that a GPU build stays. The
active environment itself is never changed: .venv gets a .pth file that lets it see the other one's packages,
and whatever is missing there, or has another version than constraints.txt, goes into .venv, which comes first
on the path.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
INSPECT = """
import sys, sysconfig, torch
print(torch.__version__, *sys.version_info[:2], sysconfig.get_path("purelib"))
"""


class ActiveTorch(NamedTuple):
    version: str
    python: Path
    python_version: tuple[int, int]
    site_packages: str


def main(venv: Path) -> None:
    torch = active_torch()
    if not has_pip(venv):
        refuse_missing_venv()
        creator = torch.python if torch else Path(sys.executable)  # .venv must be of the torch's own Python
        run([creator, "-m", "venv", venv], f"could not create {venv}")
    constraints = (ROOT / "constraints.txt").read_text()
    if torch and share(torch, venv):
        print(f"Keeping torch {torch.version} of the active environment ({torch.site_packages}).")
        others = [line for line in constraints.splitlines() if not line.startswith("torch==")]
        constraints = "\n".join([*others, f"torch=={torch.version}", ""])
    pinned = venv / "constraints.txt"
    pinned.write_text(constraints)
    print(f"Installing into {venv} (the first time: about two minutes and 2 GB) ...", flush=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    run([*pip, "-c", pinned, "-e", f"{ROOT}[test]"], "installing failed; run the same command again to go on")


def refuse_missing_venv() -> None:
    # Debian and Ubuntu ship venv without ensurepip; `python -m venv` then fails halfway with a longer text.
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        sys.exit(f"{sys.executable} cannot make virtual environments. To go on, run: sudo apt install {package}")


def active_torch() -> ActiveTorch | None:
    """The torch of the active environment, where it and its Python are new enough; otherwise None."""
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not prefix or not (Path(prefix) / "bin" / "python").exists():
        return None
    python = Path(prefix) / "bin" / "python"
    answer = subprocess.run([python, "-c", INSPECT], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    version, major, minor, site_packages = answer.stdout.splitlines()[-1].split(" ", 3)
    found = ActiveTorch(version, python, (int(major), int(minor)), site_packages)
    torch_is_new = tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH
    return found if torch_is_new and found.python_version >= OLDEST_PYTHON else None


def share(torch: ActiveTorch, venv: Path) -> bool:
    """Let .venv see the active environment's packages; False where it has its own torch or another Python."""
    ours = venv / "lib" / "python{}.{}".format(*torch.python_version) / "site-packages"
    if ours.resolve() == Path(torch.site_packages).resolve():
        return True
    if not ours.exists() or (ours / "torch").exists():
        return False
    (ours / "active_environment.pth").write_text(torch.site_packages + "\n")
    return True


def has_pip(venv: Path) -> bool:
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def run(command: Sequence[str | Path], failure: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"opportune: {failure}.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv"))
