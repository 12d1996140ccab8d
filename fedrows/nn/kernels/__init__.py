"""Kernels of layers: `.cu` files for a GPU, which `nn/fused.py` calls, and `.cpp` files for a CPU.

NVRTC, which comes with PyTorch, compiles a `.cu` file for the sizes at hand when it is first
needed. `cpp_library` has the machine's own compiler make a library of a `.cpp` file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = Path(__file__).parent


@cache
def missing() -> str | None:
    """Why there are no kernels on this machine, or None."""
    try:
        torch.cuda._compile_kernel('extern "C" __global__ void nothing() {}', "nothing")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return None


def launch(
    name: str,
    sizes: Mapping[str, int],
    grid: Sequence[int],
    threads: int,
    arguments: Sequence[Tensor | int | float],
    shared: int = 0,
) -> None:
    """Runs the kernel `layer_direction` of layer.cu with some bytes of shared memory."""
    device = next(x.device for x in arguments if isinstance(x, Tensor))
    kernel = _compiled(name, tuple(sizes.items()), shared, device)
    # PyTorch's own way to call it takes several times as long as the kernel.
    values = [_as_c(x) for x in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(x) for x in values))
    whole = (*grid, *[1] * (3 - len(grid)))
    stream = torch.cuda.current_stream(device).cuda_stream
    status = _driver().cuLaunchKernel(
        kernel.func, *whole, threads, 1, 1, shared, ctypes.c_void_p(stream), pointers, None
    )
    if status:
        raise RuntimeError(f"Kernel {name} could not be started: CUDA's error {status}.")


def _as_c(x: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_double:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return ctypes.c_int(x) if isinstance(x, int) else ctypes.c_double(x)


@cache
def _driver() -> Any:
    return torch.cuda._utils._get_gpu_runtime_library()


@cache
def _compiled(
    name: str, sizes: tuple[tuple[str, int], ...], shared: int, device: torch.device
) -> Any:
    lines = [f"#define {what} {value}" for what, value in sizes]
    source = (_FOLDER / f"{name.split('_')[0]}.cu").read_text(encoding="utf-8")
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel("\n".join([*lines, source]), name)
        if shared:
            kernel.set_shared_memory_config(shared)
    return kernel
