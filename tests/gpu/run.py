"""Proves the GPU path on one Hopper GPU in a few minutes: `python tests/gpu/run.py --out results.json --sheet sheet.yaml`.

Needs torch, triton, numpy, safetensors and transformers, and no network. Correctness of every kernel, tokens of
small random models against transformers, a captured graph against eager, then timings beside the device's own
copy and product. `--dry` runs the correctness part on a CPU, through Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def check_all(dry: bool, only: str) -> list[dict[str, Any]]:
    """One record a check and dtype; a failed one holds its error."""
    import torch
    from tests.gpu import (
        attention_checks,
        executor_checks,
        expert_checks,
        fp8_checks,
        model_checks,
        row_checks,
        sample_checks,
    )
    from tests.gpu.check import Place

    rooms = (attention_checks, row_checks, fp8_checks, expert_checks, sample_checks)
    kernels = [check for room in rooms for check in room.CHECKS if not (dry and check.heavy)]
    whole = [*model_checks.ANYWHERE, *executor_checks.ANYWHERE]
    whole += [] if dry else [*model_checks.ON_A_GPU, *executor_checks.ON_A_GPU]
    device = torch.device("cpu" if dry else "cuda")
    # The interpreter's bf16 product is wrong; on a GPU a float32 product is in tf32.
    kernel_dtypes = [torch.float16] if dry else [torch.bfloat16, torch.float16]
    jobs = [(check, dtype) for check in kernels for dtype in kernel_dtypes]
    jobs += [(check, torch.float32 if dry else torch.bfloat16) for check in whole]
    if dry:
        model_checks.force_triton()
    records = []
    for check, dtype in jobs:
        if only not in check.name:
            continue
        begun, error = time.perf_counter(), None
        try:
            check.run(Place(device, dtype))
        except Exception:  # what failed is reported, and the rest still runs
            error = traceback.format_exc()[-1500:]
        name = f"{check.name} {str(dtype).removeprefix('torch.')}"
        records.append({"check": name, "ok": error is None, "s": time.perf_counter() - begun, "error": error})
        print(f"{'ok  ' if error is None else 'FAIL'} {name}", flush=True)
        if error:
            print(error, flush=True)
    return records


def describe() -> dict[str, Any]:
    """The machine and the versions that ran."""
    import torch
    import triton

    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        found |= {"gpu": p.name, "sms": p.multi_processor_count, "memory_gib": p.total_memory / 2**30}
        found |= {"capability": f"{p.major}.{p.minor}", "l2_mib": getattr(p, "L2_cache_size", 0) / 2**20}
    return found


def sheet(machine: dict[str, Any], measured: dict[str, Any]) -> str:
    """A hardware sheet of this machine, in the form of `presets/hardware`."""
    return "\n".join([
        f"name: {machine['gpu']}", "aliases: []", f"source: measured by tests/gpu/run.py with torch {machine['torch']}",
        f"memory_gib: {machine['memory_gib']:.2f}",
        f"memory_bandwidth_gb_s: {measured['copy_bytes_per_s'] / 1e9:.0f}",
        "compute_tflops:", f"  bfloat16: {measured['matmul_flops'] / 1e12:.0f}",
        f"l2_mib: {machine['l2_mib']:.0f}", f"compute_capability: '{machine['capability']}'", "",
    ])  # fmt: skip


def table(measured: dict[str, Any]) -> str:
    """The timings for people."""
    lines = [
        f"copy {measured['copy_bytes_per_s'] / 1e12:.2f} TB/s, product {measured['matmul_flops'] / 1e12:.0f} TFLOP/s"
    ]
    for row in measured["rows"]:
        shares = ", ".join(
            f"{row[key]:.0%} {key.replace('_', ' ')}" for key in ("of_copy", "of_matmul") if key in row
        )
        goal = f" (target {row['target']:.0%})" if row.get("target") else ""
        lines.append(
            f"{row['what']:<58} {row.get('us', float('nan')):>10.1f} us  {shares}{goal}{row.get('error', '')}"
        )
    return "\n".join(lines)


def main() -> int:
    """Exit status 1 when a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dry", action="store_true", help="correctness only, on a CPU through the interpreter"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose name holds this")
    parser.add_argument("--no-timings", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results as JSON")
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="this machine's hardware sheet as YAML")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    sys.path[:0] = [str(ROOT), str(ROOT / ".pkg")]

    results: dict[str, Any] = {"machine": describe(), "checks": check_all(options.dry, options.only)}
    if not options.dry and not options.no_timings:
        from tests.gpu.executor_checks import host_timings
        from tests.gpu.timings import timings

        results["timings"] = measured = timings()
        measured["rows"] += host_timings()
        print(table(measured))
        if options.sheet:
            options.sheet.write_text(sheet(results["machine"], measured))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    failed = [record["check"] for record in results["checks"] if not record["ok"]]
    print(f"{len(results['checks']) - len(failed)} of {len(results['checks'])} checks passed")
    return 1 if failed or not results["checks"] else 0


if __name__ == "__main__":
    sys.exit(main())
