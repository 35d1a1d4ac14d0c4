"""Adds diffusers: its UNet, and a process that reads the settings of its schedulers.

The same loop for a DDPM and for a flow-matching scheduler. `process.corrupt` equals the scheduler's own `add_noise`;
for flow matching it also spares you looking up the scheduler's descending `sigmas`.
"""

import argparse

import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DModel

import opportune as op
from opportune.embedded import load_fashion16


def make_unet():
    return UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    images = load_fashion16("train")[0].float() / 127.5 - 1
    ddpm = DDPMScheduler(beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction")
    flow = FlowMatchEulerDiscreteScheduler(shift=3.0)
    for process in (op.DDPM.from_diffusers(ddpm), op.Flow.from_diffusers(flow)):
        losses = train(process, images, options.steps)
        quarter = max(1, len(losses) // 4)
        first, last = sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter
        print(f"{process}: loss {first:.3f} -> {last:.3f}")


def train(process, images, steps):
    torch.manual_seed(0)
    unet = make_unet()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
    objective = op.objective(lambda x, time: unet(x, time).sample, process)
    sampler = op.sampler("adaptive", process)
    history = []
    for _ in range(steps):
        x0 = images[torch.randint(len(images), (16,))]
        draw = sampler.draw(x0)
        losses = objective.losses(x0, draw)
        objective.weighted(losses, draw).mean().backward()
        with sampler.watch(draw, losses, objective.probe(x0), model=unet):
            optimizer.step()
        optimizer.zero_grad()
        history.append(losses.mean().item())
    return history


if __name__ == "__main__":
    main()
