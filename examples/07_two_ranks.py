"""Adds ranks: nothing changes in the loop. Ranks draw different timesteps and their samplers stay the same, to the bit.

torchrun --nproc-per-node 2 examples/07_two_ranks.py
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import opportune as op
from opportune.embedded import load_fashion16


class Network(nn.Sequential):
    """A few convolutions, told the time as a second channel."""

    def __init__(self):
        super().__init__(nn.Conv2d(2, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x, time):
        return super().forward(torch.cat([x, (time / 1000).reshape(-1, 1, 1, 1).expand_as(x)], dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # data and noise of this rank; DDP gives all ranks the weights of the first
    images = (load_fashion16("train")[0].float() / 127.5 - 1)[rank::ranks]
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    process = op.DDPM("linear", steps=1000)
    objective = op.objective(model, process)
    sampler = op.sampler("adaptive", process, warmup_steps=20)

    for _ in range(options.steps):
        x0 = images[torch.randint(len(images), (32,))]
        draw = sampler.draw(x0)
        losses = objective.losses(x0, draw)
        objective.weighted(losses, draw).mean().backward()
        with sampler.watch(draw, losses, objective.probe(x0), model=model):
            optimizer.step()
        optimizer.zero_grad()

    density = " ".join(f"{p:.9f}" for p in sampler.density(torch.tensor([0.05, 0.5, 0.95])))
    # In one piece, newline included: torchrun's ranks write to the same place.
    sys.stdout.write(f"rank {rank}: last draws {draw.t[:6].tolist()}, density {density}\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's threads outlive its process group, and one that still holds a tensor aborts Python as it ends


if __name__ == "__main__":
    main()
