"""FSDP2 (``fully_shard``), and states that are the same whether the model was sharded or not.

Checkpoints always hold whole tensors, so a run may resume with another number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opportune.models.dit import DiT
from opportune.train.state import State


def shard(model: nn.Module, *, bf16: bool, device_type: str) -> nn.Module:
    """Shard ``model`` in place over all ranks: each list of blocks by block, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device_type, (torch.distributed.get_world_size(),))
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
        if bf16
        else MixedPrecisionPolicy()
    )
    for block in _blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The elements of the outermost lists of modules: the blocks of a network."""
    found: list[nn.Module] = []
    for child in module.children():
        inner = list(child) if isinstance(child, nn.ModuleList) else None
        found.extend(_blocks(child) if inner is None else [b for b in inner if any(True for _ in b.parameters())])
    # diffusers' DiT uses the time embedding of its first block a second time, outside of that block's own forward,
    # where its weights would not have been gathered: it stays with the rest.
    return found[1:] if isinstance(module, DiT) else found


def whole(state: State) -> State:
    """A nested state with every sharded tensor gathered; every rank must call it."""
    if _is_sharded(state):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state


def load_parameters(module: nn.Module, state: dict[str, Tensor]) -> None:
    """``module.load_state_dict(state)`` with whole tensors, whether or not the module is sharded."""
    own = module.state_dict()
    module.load_state_dict({key: _like(value, own[key]) if key in own else value for key, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """``optimizer.load_state_dict(state)`` with whole tensors, whether or not its parameters are sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {
            name: _like(value, parameters[index]) if isinstance(value, Tensor) and value.ndim else value
            for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _like(tensor: Tensor, example: Tensor) -> Tensor:
    if not _is_sharded(example):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shards: Any = example
    return distribute_tensor(tensor.to(shards.device), shards.device_mesh, shards.placements)


def _is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")
