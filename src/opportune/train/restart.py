"""What a checkpoint of a run holds: everything that decides the next step, and the logs' lengths.

Parts: ``model``, ``ema``, ``optimizer``, ``sampler``, ``weighting``, ``data``, ``trainer`` (configuration, step, skips,
GradScaler, lengths of the logs), and for each rank ``rank0``, ... its random streams, averages not yet
logged and unreadable images.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import torch

from opportune.train.config_file import to_dict
from opportune.train.errors import CheckpointError
from opportune.train.ranks import broadcast_json, gather_states, on_main
from opportune.train.reporting import Reports
from opportune.train.rng import rng_state, set_rng_state
from opportune.train.run_folder import RunFolder
from opportune.train.saved import Checkpoint
from opportune.train.session import Session
from opportune.train.sharding import load_optimizer, load_parameters, whole
from opportune.train.state import State

_log = logging.getLogger(__name__)


class Restart:
    """Saves and restores a session."""

    def __init__(self, session: Session, folder: RunFolder) -> None:
        self.session, self.folder = session, folder
        self.log_lengths: dict[str, int] = {}
        self.reports: Reports | None = None
        self._saved_at: int | None = None

    def save(self) -> None:
        """Write a checkpoint of this step, unless it was saved, or resumed from, already."""
        session = self.session
        if self._saved_at == session.step:
            return
        saved = self._parts()
        on_main(lambda: self.folder.checkpoints.save(session.step, saved))
        self._saved_at = session.step

    def check_space(self) -> None:
        """Refuse a run whose checkpoints do not fit on the disk."""
        saved, optimizer = self._parts(), self.session.bare_optimizer
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # Both moments of Adam are made by its first step.
        moments = 0 if optimizer.state else 2 * sum(each.numel() * each.element_size() for each in trained)
        on_main(lambda: self.folder.checkpoints.check_space(saved, later_bytes=moments))

    def restore(self, resume: str, *, force: bool) -> None:
        """Continue from a checkpoint; later ones of the same folder are deleted, for the run goes on from here."""
        path = on_main(lambda: str(self.folder.to_resume(resume).path))
        checkpoint = self.folder.checkpoints.load(broadcast_json(path))
        own = checkpoint.path.resolve().parent == self.folder.checkpoints.folder.resolve()
        self._load(checkpoint, force=force)
        if own:
            on_main(lambda: self.folder.checkpoints.forget_after(checkpoint.step))
            self._saved_at = checkpoint.step
        else:  # a new run that branches off another: its logs begin here
            on_main(self.folder.check_new)
            self.log_lengths = {}

    def _parts(self) -> dict[str, State]:
        session = self.session
        parts: dict[str, State] = {
            "model": whole(session.bare.state_dict()),
            "optimizer": whole(session.bare_optimizer.state_dict()),
            "sampler": session.sampler.state_dict(),
            "data": session.loader.state_dict(),
            "trainer": self._trainer(),
        }
        if session.ema is not None:
            parts["ema"] = whole(session.ema.module.state_dict())
        if session.weighting is not None:
            parts["weighting"] = session.weighting.state_dict()
        own = {"rng": rng_state(), "meters": session.meters.state_dict(), "bad": dict(session.loader.bad)}
        parts |= {f"rank{rank}": state for rank, state in enumerate(gather_states(own))}
        return parts

    def _trainer(self) -> State:
        session = self.session
        return {
            "config": json.dumps(to_dict(session.config)),
            "step": session.step,
            "validated_at": session.validated_at,
            "world": session.world,
            "engine": session.engine.state_dict(),
            "ema_updates": None if session.ema is None else session.ema.updates,
            "momentum_decay": None if session.momentum_decay is None else session.momentum_decay.state_dict(),
            "logs": self.log_lengths if self.reports is None else self.reports.durable_lengths(),
        }

    def _load(self, checkpoint: Checkpoint, *, force: bool) -> None:
        session, trainer = self.session, checkpoint.part("trainer")
        load_parameters(session.bare, checkpoint.part("model"))
        if session.ema is not None:
            load_parameters(session.ema.module, checkpoint.part("ema"))
            session.ema.updates = trainer["ema_updates"]
        load_optimizer(session.bare_optimizer, checkpoint.part("optimizer"))
        session.sampler.load_state_dict(checkpoint.part("sampler"))
        if session.weighting is not None:
            session.weighting.load_state_dict(checkpoint.part("weighting"))
        if session.momentum_decay is not None:
            session.momentum_decay.load_state_dict(trainer["momentum_decay"])
        session.loader.load_state_dict(checkpoint.part("data"))
        session.engine.load_state_dict(trainer["engine"])
        session.step, session.validated_at = trainer["step"], trainer["validated_at"]
        self.log_lengths = dict(trainer["logs"])
        self._load_rank(checkpoint, trainer["world"], force=force)

    def _load_rank(self, checkpoint: Checkpoint, world: int, *, force: bool) -> None:
        session = self.session
        if world == session.world:
            own = checkpoint.part(f"rank{session.rank}")
            set_rng_state(own["rng"])
            session.meters.load_state_dict(own["meters"])
            session.loader.bad = dict(own["bad"])  # each rank meets others
        elif force:
            # Timesteps, noise and the order of the data do not depend on the ranks; only dropout starts anew.
            session.seed_rank()
            self._warn("resumed with %d ranks instead of %d: dropout draws other numbers", session.world, world)
        else:
            raise CheckpointError(
                f"{checkpoint.path} was saved by {world} ranks and {session.world} came up; start as many, or --force "
                "(order, timesteps and noise stay the same, dropout does not)."
            )
        if checkpoint.made_with.get("torch_threads") != torch.get_num_threads():
            self._warn(
                "resumed with %d torch threads instead of %s: results may differ in the last bits (OMP_NUM_THREADS)",
                torch.get_num_threads(),
                checkpoint.made_with.get("torch_threads"),
            )

    def _warn(self, message: str, *values: object) -> None:
        if self.session.rank == 0:
            _log.warning(message, *values)


def weights_of(checkpoint: Checkpoint, weights: str) -> dict[str, Any]:
    """The ``ema`` or ``model`` weights of a checkpoint."""
    found: dict[str, Any] = checkpoint.part("ema" if weights == "ema" else "model")
    return found
