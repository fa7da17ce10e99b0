"""What the launch of a GPU kernel asks of the host, in fractions of a microsecond.

Triton's own `cdiv` and `next_power_of_2` pass through its front end when called on the host: two to three microseconds
each, ten times a layer.
"""

from __future__ import annotations

import functools

import torch


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two not below n, which is 1 or more."""
    return 1 << (n - 1).bit_length()


def warps_of(width: int) -> int:
    """Warps of a program that keeps a row of so many numbers in registers: 32 a thread, or it spills."""
    return min(32, max(4, next_power_of_2(width) >> 10))


@functools.cache
def num_sms(device: torch.device) -> int:
    """SMs of the device; a small number stands for the interpreter, whose programs run one by one."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability; Hopper's for the interpreter."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def has_warpgroups(capability: tuple[int, int]) -> bool:
    """Whether matrix instructions span a warpgroup and a program may have 227 kB of shared memory: Hopper and
    Blackwell of data centres. Others get tiles that fit into 99 kB.
    """
    return capability[0] in (9, 10)
