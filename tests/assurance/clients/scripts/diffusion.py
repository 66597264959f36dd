"""diffusers: two pipelines on a GPU as on the CPU, offloaded, and their network in DataParallel."""

import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel


def network():
    torch.manual_seed(0)
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    sizes = {"sample_size": 8, "block_out_channels": (8, 16), "norm_num_groups": 4}
    return UNet2DModel(down_block_types=down, up_block_types=up, **sizes).double()


def images(pipeline):
    draws = torch.Generator().manual_seed(1)
    made = pipeline(generator=draws, num_inference_steps=2, output_type="np")
    return torch.from_numpy(made.images)


noise = DDPMScheduler()
for pipeline in (DDPMPipeline(network(), noise), DDIMPipeline(network(), DDIMScheduler())):
    wanted = images(pipeline.to("cpu"))
    assert torch.allclose(images(pipeline.to("cuda:1")), wanted)
    for offload in (pipeline.enable_model_cpu_offload, pipeline.enable_sequential_cpu_offload):
        pipeline.to("cpu")
        offload()
        assert torch.allclose(images(pipeline), wanted)

model = torch.nn.DataParallel(network().cuda())
plain, drawn = torch.randn(2, 8, 3, 8, 8, dtype=torch.double).cuda()
times = torch.arange(8).cuda() * 100
optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
for _ in range(5):
    made = model(noise.add_noise(plain, drawn, times), times, return_dict=False)[0]
    losses.append((made - drawn).square().mean())
    losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
assert losses[-1] < losses[0] * 0.7
print("{}")
