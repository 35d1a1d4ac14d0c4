"""Adds the objective: `op.objective` makes the losses and the probe, and a weighting says what is to become good.

With `unbiased=True` the sampler decides only where compute goes: it may draw some noise levels more often, and the
correction takes that out again. At the end the objective is measured with uniform draws and with the sampler's own.
"""

import argparse

import torch
from torch import nn

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
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()

    torch.manual_seed(0)
    images = load_fashion16("train")[0].float() / 127.5 - 1
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    process = op.DDPM("linear", steps=1000)
    objective = op.objective(model, process, weighting="min_snr")
    sampler = op.sampler("speed", process, unbiased=True)

    for _ in range(options.steps):
        x0 = images[torch.randint(len(images), (64,))]
        draw = sampler.draw(x0)
        losses = objective.losses(x0, draw)  # raw, [B]
        objective.weighted(losses, draw).mean().backward()  # times weight and correction
        with sampler.watch(draw, losses, objective.probe(x0), model=model):
            optimizer.step()
        optimizer.zero_grad()

    uniform = op.sampler("uniform", process, seed=1)
    print(f"objective, timesteps drawn uniformly:  {measured(objective, uniform, images):.4f}")
    print(f"objective, speed's draws, corrected:   {measured(objective, sampler, images):.4f}")
    print(f"speed's draws, if left uncorrected:    {measured(objective, sampler, images, corrected=False):.4f}")


@torch.no_grad()
def measured(objective, sampler, images, corrected=True):
    """Mean weighted loss over 4,000 pictures at the sampler's own draws."""
    x0 = images[:4000]
    draw = sampler.draw(x0)
    weighted = objective.weighted(objective.losses(x0, draw), draw)
    return (weighted if corrected else weighted / draw.correction).mean().item()


if __name__ == "__main__":
    main()
