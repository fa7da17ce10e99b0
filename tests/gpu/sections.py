"""The parts of a run, each within one process: checks dealt out, the machine, its rates, timings."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from . import (
    attention_checks,
    executor_checks,
    expert_checks,
    fp8_checks,
    model_checks,
    mxfp4_checks,
    row_checks,
    sample_checks,
    sheet_checks,
)
from .assembly import teach_interpreter
from .check import Check, Place

Write = Callable[[dict[str, Any]], object]

FP8_CAPABILITY = (8, 9)


def jobs(dry: bool, *, has_fp8: bool = True) -> list[tuple[Check, torch.dtype]]:
    """Every check with the dtypes it runs in; those of e4m3 only where Triton compiles it for the device."""
    rooms = (attention_checks, row_checks, fp8_checks, expert_checks, mxfp4_checks, sample_checks)
    kernels = [check for room in rooms for check in room.CHECKS if not (dry and check.heavy)]
    kernels = [check for check in kernels if has_fp8 or not _needs_fp8(check)]
    # The interpreter's bf16 product is wrong; on a GPU a float32 product is in tf32.
    found = [
        (check, dtype)
        for check in kernels
        for dtype in ([torch.float16] if dry else [torch.bfloat16, torch.float16])
    ]
    found += [
        (check, torch.float32 if dry else torch.bfloat16)
        for check in (*model_checks.ANYWHERE, *executor_checks.ANYWHERE)
    ]
    if not dry:
        alone = (*model_checks.ON_A_GPU, *executor_checks.ON_A_GPU, *sheet_checks.checks())
        found += [(check, torch.bfloat16) for check in alone if has_fp8 or not _needs_fp8(check)]
    return found


def _needs_fp8(check: Check) -> bool:
    return any(word in check.name for word in ("fp8", "quantize-rows"))


def needs_all(check: Check) -> bool:
    """Whether a check measures the whole device's memory, and nothing may run beside it."""
    return check.name.startswith("device-memory")


def check_part(part: tuple[int, int], skip: int, only: str, write: Write, *, dry: bool = False) -> int:
    """Runs every n-th check from number i on, (i, n) being `part`, without the first `skip` of them.

    The last part of several is that of the checks that need the device alone, and nobody else's. Writes a
    record of what it has before it, one before and one after each check. Exit status 3 when an error left the
    device unusable.
    """
    if dry:
        model_checks.force_triton()
        teach_interpreter()
    device = torch.device("cpu" if dry else "cuda")
    number, parts = part
    has_fp8 = dry or torch.cuda.get_device_capability() >= FP8_CAPABILITY
    mine = [job for job in jobs(dry, has_fp8=has_fp8) if only in job[0].name]
    if parts > 1:
        last = number == parts - 1
        mine = [job for job in mine if needs_all(job[0]) == last]
        mine = mine if last else mine[number :: parts - 1]
    write({"planned": [_named(check, dtype) for check, dtype in mine]})
    for check, dtype in mine[skip:]:
        name = _named(check, dtype)
        write({"check": name})
        begun, error, alive = time.perf_counter(), None, True
        try:
            check.run(Place(device, dtype))
        except Exception:  # what failed is reported, and the rest still runs
            error = traceback.format_exc()[-1500:]
            alive = dry or _is_alive()
        write({"check": name, "ok": error is None, "s": time.perf_counter() - begun, "error": error})
        print(f"{'ok  ' if error is None else 'FAIL'} {name}\n{error or ''}".rstrip(), flush=True)
        if not alive:
            return 3
        if not dry:
            torch.cuda.empty_cache()  # others check beside this one
    return 0


def _named(check: Check, dtype: torch.dtype) -> str:
    return f"{check.name} {str(dtype).removeprefix('torch.')}"


def _is_alive() -> bool:
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception:  # whatever it says, nothing more can run in this process
        return False
    return True


def machine() -> dict[str, Any]:
    """The machine and the versions that ran; `problem` says why nothing can run here."""
    import triton

    found: dict[str, Any] = {
        "python": sys.version.split()[0], "torch": torch.__version__, "triton": triton.__version__,
        "cores": os.cpu_count(),
    }  # fmt: skip
    if not torch.cuda.is_available():
        return found | {"problem": "torch finds no GPU"}
    p = torch.cuda.get_device_properties(0)
    found |= {"gpu": p.name, "sms": p.multi_processor_count, "memory_gib": p.total_memory / 2**30}
    found |= {"capability": f"{p.major}.{p.minor}", "l2_mib": getattr(p, "L2_cache_size", 0) / 2**20}
    found |= {"cuda": torch.version.cuda, "fp8": (p.major, p.minor) >= FP8_CAPABILITY}
    try:
        _probe()
    except Exception as error:  # whatever it is, every kernel would say the same
        found["problem"] = f"{type(error).__name__}: {error}"[:1000]
    return found


def _probe() -> None:
    """One kernel: Triton needs a C compiler, Python's headers and a place to keep what it compiles."""
    from camshaft.kernels.silu_mul import silu_mul

    torch.cuda.synchronize()
    made = silu_mul(torch.ones(1, 64, device="cuda", dtype=torch.bfloat16))
    if abs(float(made[0, 0]) - 0.731) > 0.01:
        raise AssertionError(f"silu(1) is {float(made[0, 0])}")


def run_section(name: str, rates: dict[str, float], write: Write, skip: int = 0) -> int:
    """Writes the rows of one section without its first `skip` jobs, and before each job a record of that.

    A row that fails says so, and the next is measured. Exit status 3 when an error left the device unusable.
    """
    if name == "machine":
        write(machine())
        return 0
    if name == "host-dry":
        from .steps import host_gap

        write(host_gap("tiny", torch.device("cpu"), sequences=4, prompt=20, steps=6))
        return 0
    from .timings import SECTIONS

    jobs = SECTIONS[name](rates.get("copy", float("nan")), rates.get("matmul", float("nan")))
    for number, job in enumerate(jobs[skip:], start=skip + 1):
        write({"job": f"job {number} of {len(jobs)}"})
        try:
            made = job()
        except Exception as error:  # one failure must not cost the rest of the run
            made = {"what": f"{name}: job {number} failed", "error": f"{type(error).__name__}: {error}"[:500]}
            traceback.print_exc()
        for row in made if isinstance(made, list) else [made]:
            write(row)
        if "error" in made and not _is_alive():
            return 3
        torch.cuda.empty_cache()
    return 0
