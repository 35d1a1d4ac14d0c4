"""Bring up the ranks that were asked for, and let them exchange plain data (never pickles)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from opportune.distributed import gather, place
from opportune.train.config import HardwareConfig
from opportune.train.data.errors import DataError, WorkerDied
from opportune.train.errors import (
    CheckpointError,
    ConfigError,
    NonFiniteError,
    RankFailed,
    RanksError,
    RunFolderError,
    RunLockError,
)
from opportune.train.state import State, decode, encode

Result = TypeVar("Result")

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(CheckpointError, ConfigError, NonFiniteError, RankFailed, RanksError, RunFolderError, RunLockError),
        *(DataError, WorkerDied, OSError, ImportError),
    )
}
_ANOTHER_IS_GONE = re.compile(r"gloo|NCCL|Connection (closed|reset) by peer|Timed out waiting")

_REMEDY = (
    "Start them with torchrun --nproc-per-node N -m opportune train ..., or set --hardware.ranks to what is meant."
)


def asked_for(environment: Mapping[str, str], command_above: str = "") -> tuple[int, str] | None:
    """How many processes the launcher was asked for, and who says so; None where nobody does.

    Only what a launcher leaves behind that has *not* told this process its rank: torchrun and working multi-process
    launches set WORLD_SIZE.
    """
    if "WORLD_SIZE" in environment:
        return None
    words = command_above.split("\0")
    for flag in ("--num_processes", "--num-processes", "-n"):
        if any("accelerate" in word for word in words) and flag in words[:-1]:
            value = words[words.index(flag) + 1]
            if value.isdigit():
                return int(value), f"accelerate launch {flag} {value}"
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environment.get(name, "").isdigit():
            return int(environment[name]), f"{name}={environment[name]}"
    if "SLURM_PROCID" in environment and environment.get("SLURM_NTASKS", "").isdigit():
        return int(environment["SLURM_NTASKS"]), f"SLURM_NTASKS={environment['SLURM_NTASKS']}"
    if "MASTER_ADDR" in environment and "ACCELERATE_MIXED_PRECISION" in environment:
        return 2, "accelerate launch, which set MASTER_ADDR for several processes"
    return None


def check_ranks(came_up: int, config: HardwareConfig, environment: Mapping[str, str], command_above: str = "") -> None:
    """Raise RanksError where N ranks were asked for and another number came up."""
    if config.ranks is not None:
        if config.ranks != came_up:
            raise RanksError(f"hardware.ranks={config.ranks} were asked for, and {came_up} came up. {_REMEDY}")
        return
    asked = asked_for(environment, command_above)
    if asked is not None and asked[0] != came_up:
        raise RanksError(f"{asked[1]} asks for {asked[0]} or more processes, and {came_up} came up alone. {_REMEDY}")


def refuse_ranks(program: str) -> None:
    """Raise RanksError where a launcher started ``program`` several times, and all would write the same files."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "").isdigit() and int(os.environ[name]) > 1:
            raise RanksError(
                f"{program} works as one process, and {os.environ[name]} came up ({name}); start it without a launcher."
            )


def start(config: HardwareConfig) -> Accelerator:
    """The Accelerate handle of this process, with its ranks checked. No object of ours is registered with it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    check_ranks(world, config, os.environ, _command_of_parent())
    precision = {"fp32": "no"}.get(config.precision, config.precision)
    on_cpu = config.device == "cpu" or not torch.accelerator.is_available()
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("hardware.device='cuda' but no CUDA device is visible; use device='auto' or 'cpu'.")
    if precision == "fp16" and on_cpu:
        raise ConfigError("hardware.precision='fp16' needs a GPU, and this run is on the CPU; use bf16 or fp32.")
    # Accelerate keeps the precision of the first run of a process for all later ones, unless told to forget it.
    AcceleratorState._reset_state()
    made = Accelerator(
        cpu=on_cpu,
        mixed_precision=precision,
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(seconds=config.timeout_seconds)),
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        ],
    )
    check_ranks(made.num_processes, config, os.environ, _command_of_parent())
    return made


@contextmanager
def joined() -> Iterator[None]:
    """The processes torchrun started as ranks that talk to one another, outside of training; alone: nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def on_main(function: Callable[[], Result]) -> Result | None:
    """Run ``function`` on rank 0 alone; an error there is raised on every rank."""
    result, caught = None, None
    if place()[0] == 0:
        try:
            result = function()
        except Exception as error:
            caught = error
    _raise(caught, broadcast_json(None if caught is None else [_kind(caught), str(caught)]))
    return result


def on_all(function: Callable[[], Result]) -> Result:
    """Run ``function`` on every rank; an error on any of them is raised on all, so that none waits for it."""
    caught = None
    try:
        result = function()
    except Exception as error:
        caught = error
    reports = gather_states(None if caught is None else [_kind(caught), str(caught)])
    _raise(caught, next(([r[0], f"rank {rank}: {r[1]}"] for rank, r in enumerate(reports) if r is not None), None))
    return result


@contextmanager
def alone() -> Iterator[None]:
    """Around what ranks do without telling one another: what goes wrong on one of several becomes a RankFailed."""
    rank, world = place()
    try:
        yield
    except (DataError, WorkerDied, OSError) as error:
        if world == 1:
            raise
        raise RankFailed(f"rank {rank}: {error}") from error
    except RuntimeError as error:
        if world == 1 or not _ANOTHER_IS_GONE.search(str(error)):
            raise
        raise RankFailed(
            f"rank {rank}: another rank has ended, or did not answer for hardware.timeout_seconds; see its message."
        ) from error


def _kind(error: Exception) -> str:
    """Which of the errors that may travel between ranks this is; RuntimeError for those nobody expects."""
    return next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "RuntimeError")


def _raise(caught: Exception | None, report: list[str] | None) -> None:
    """This rank's own error, or else the one that another rank reports."""
    if caught is not None:
        raise caught
    if report is not None:
        raise _KINDS.get(report[0], RuntimeError)(report[1])


def broadcast_json(value: Any) -> Any:
    """Rank 0's ``value`` on every rank."""
    rank, world = place()
    if world == 1:
        return value
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(_device())
    length = torch.tensor([len(data)], device=_device())
    dist.broadcast(length, src=0)
    if rank != 0:
        data = torch.empty(int(length), dtype=torch.uint8, device=_device())
    dist.broadcast(data, src=0)
    return json.loads(data.cpu().numpy().tobytes())


def gather_states(state: State) -> list[State]:
    """The states of all ranks, in their order, on every rank; as safetensors and JSON in between."""
    _, world = place()
    if world == 1:
        return [state]
    structure, tensors = encode(state)
    text = json.dumps(structure, allow_nan=False).encode()
    packed = len(text).to_bytes(8, "little") + text + safetensors.torch.save(tensors)
    data = torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(_device())
    lengths = [int(n) for n in gather(torch.tensor([len(data)], device=_device()))]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=_device())
    padded[: len(data)] = data
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return [_unpacked(part[:n].cpu().numpy().tobytes()) for part, n in zip(parts, lengths, strict=True)]


def _unpacked(packed: bytes) -> State:
    end = 8 + int.from_bytes(packed[:8], "little")
    return decode(json.loads(packed[8:end]), safetensors.torch.load(packed[end:]))


def _device() -> torch.device:
    if dist.get_backend() == dist.Backend.NCCL:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _command_of_parent() -> str:
    """Words of the command that started this process, separated by NUL; empty where the system does not tell."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
