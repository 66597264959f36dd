"""Triton's interpreter, which a program turns on by TRITON_INTERPRET=1, on simulated devices."""

from tests.assurance.clients.support import needs

NAME = "triton_kernels"


def test_kernels_run_as_launches_of_the_devices(client):
    seen = client(NAME, 2, TRITON_INTERPRET="1", SIMGPU_MODEL="A100")
    assert (seen["device"], seen["target"]) == ("cuda:0", 80)
    assert seen["kernels"] == "triton.add_kernel"
    assert seen["replicas"] == [True, True]
    assert all(seen[name] for name in ("added", "scaled", "captured", "bench", "queued"))
    assert seen["races"] == [["triton.add_kernel", "triton.add_kernel"]]
    other, host = seen["errors"]
    assert other.startswith("DeviceMismatchError: ")
    assert "cuda:0, but x_ptr is on cuda:1" in other
    assert host.startswith("ValueError: Pointer argument x_ptr of add_kernel cannot be accessed")
    assert seen["registers"].startswith("UnsupportedError: add_kernel.warmup(...).n_regs is of")


def test_launch_of_a_compiled_kernel_names_the_variable(simgpu_run, tmp_path):
    needs("triton")
    (tmp_path / "program.py").write_text(
        "import torch, triton\n"
        "@triton.jit\n"
        "def kernel(x):\n"
        "    pass\n"
        "try:\n"
        "    kernel[(1,)](torch.ones(1, device='cuda'))\n"
        "except NotImplementedError as error:\n"
        "    print(error)\n"
    )
    done = simgpu_run(tmp_path / "program.py", 1, TRITON_INTERPRET="0")
    assert done.stdout.startswith("the kernel kernel in Triton is compiled for a GPU")
    assert "set TRITON_INTERPRET=1 in the environment" in done.stdout
