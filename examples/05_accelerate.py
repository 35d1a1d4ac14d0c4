"""Adds Accelerate and gradient accumulation: `op.attach` watches the optimizer's real steps, whoever calls them.

Accelerate calls `optimizer.step()` for every micro-batch and really steps after the last one. The sampler is told how
many there are (`accumulation`), so that its schedules and warm-ups count real steps.
"""

import argparse

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader

import opportune as op
from opportune.embedded import load_fashion16

MICRO_BATCHES = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=MICRO_BATCHES)
    images = load_fashion16("train")[0].float() / 127.5 - 1
    unet = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    loader = DataLoader(images[: options.steps * MICRO_BATCHES * 16], batch_size=16, shuffle=True)
    unet, optimizer, loader = accelerator.prepare(unet, torch.optim.AdamW(unet.parameters(), lr=1e-3), loader)

    process = op.DDPM.from_diffusers(DDPMScheduler())
    objective = op.objective(lambda x, time: unet(x, time).sample, process)
    sampler = op.sampler("adaptive", process, accumulation=MICRO_BATCHES, warmup_steps=10)
    attachment = op.attach(sampler, optimizer, model=unet)
    accelerator.register_for_checkpointing(sampler)  # saved and loaded with accelerator.save_state, load_state

    steps = seen = 0
    while steps < options.steps:
        for x0 in loader:
            with accelerator.accumulate(unet):
                draw = sampler.draw(x0)
                losses = objective.losses(x0, draw)
                accelerator.backward(objective.weighted(losses, draw).mean())
                attachment.observe(draw, losses, objective.probe(x0))  # before the optimizer steps
                optimizer.step()
                optimizer.zero_grad()
            seen += 1
            steps += accelerator.sync_gradients
            if steps == options.steps:
                break
    densest = sampler.probs().argmax().item()
    print(f"{seen} micro-batches, {steps} steps, the sampler watched {sampler.steps_watched}; most drawn: t={densest}")


if __name__ == "__main__":
    main()
