"""``python -m opportune`` is ``opportune``; ``torchrun -m opportune train ...`` starts one per rank."""

from opportune.cli import run

if __name__ == "__main__":
    run()
