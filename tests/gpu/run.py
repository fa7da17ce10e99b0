"""Proves the GPU path on one Hopper GPU in a few minutes: `python tests/gpu/run.py --out results.json --sheet sheet.yaml`.

Needs torch, triton, numpy, safetensors and transformers, and no network. Correctness of every kernel, also at the
shapes of every model sheet, tokens of small random models against transformers, a captured graph against eager;
then timings beside the device's own copy and product, and a verdict a judged line. Every part runs in a process of
its own, so that one that dies costs nothing but itself. `--dry` runs what a CPU can, through Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / ".pkg")]

from tests.gpu.verdict import sheet, table, verdicts  # noqa: E402 - these need no torch

BUDGET_S = 450.0  # of all parts together
CHECKS_S = 200.0
SECTIONS_S = {"rates": 40.0, "attention": 90.0, "linear": 60.0, "steps": 120.0, "host": 90.0}


def run_part(arguments: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """(records that a process of this script wrote, what went wrong or nothing)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records"
        command = [sys.executable, __file__, *arguments, "--records", str(out)]
        trouble = ""
        try:
            code = subprocess.run(command, timeout=max(limit_s, 1.0), check=False).returncode
            trouble = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            trouble = f"not done after {limit_s:.0f} s"
        lines = out.read_text().splitlines() if out.exists() else []
    return [json.loads(line) for line in lines], trouble


def run_checks(workers: int, deadline: float, only: str) -> list[dict[str, Any]]:
    """Every check, dealt out to processes; those that need the device alone at the end, in one of their own.

    A process that dies is begun again behind the check that killed it.
    """
    from concurrent.futures import ThreadPoolExecutor

    def work(part: int) -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        while True:
            arguments = ["--part", f"{part}/{workers + 1}", "--skip", str(len(done)), "--only", only]
            records, trouble = run_part(arguments, deadline - time.monotonic())
            finished = [record for record in records if "ok" in record]
            done += finished
            begun = [record for record in records if "ok" not in record]
            if not trouble:
                return done
            lost = begun[-1]["check"] if len(begun) > len(finished) else f"worker {part}"
            print(f"FAIL {lost}: {trouble}", flush=True)
            done.append({"check": lost, "ok": False, "s": 0.0, "error": trouble})
            if not begun or time.monotonic() > deadline:
                return done

    with ThreadPoolExecutor(workers) as pool:
        shared = [record for part in pool.map(work, range(workers)) for record in part]
    return shared + work(workers)


def everything(options: argparse.Namespace) -> int:
    """The parent: exit status 1 when a check failed or a judged line is not met."""
    begun = time.monotonic()
    machine, _ = run_part(["--section", "machine"], 60.0)
    results: dict[str, Any] = {"machine": machine[0] if machine else {}, "sections": {}, "rows": []}
    workers = options.workers or max(1, min(6, (os.cpu_count() or 1) - 1))
    results["checks"] = run_checks(workers, begun + CHECKS_S, options.only)
    rates: dict[str, float] = {}
    for name, limit_s in {} if options.no_timings else SECTIONS_S.items():
        left_s = begun + BUDGET_S - time.monotonic()
        rows, trouble = run_part(["--section", name, "--rates", json.dumps(rates)], min(limit_s, left_s))
        results["sections"][name] = trouble or "ok"
        if name == "rates":
            rates = rows[0] if rows else {}
        else:
            results["rows"] += rows
        if trouble:
            print(f"FAIL section {name}: {trouble}", flush=True)
    results |= {"rates": rates, "seconds": time.monotonic() - begun}
    results["verdict"] = verdicts(results["checks"], results["rows"])
    print(table(rates, results["rows"]))
    for line in results["verdict"]:
        print(f"{line['verdict']:<8} {line['line']}: {line['found']}")
    print(f"{results['seconds']:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    if options.sheet and rates:
        options.sheet.write_text(sheet(results["machine"], rates))
    return 0 if all(line["verdict"] == "met" for line in results["verdict"]) else 1


def one_part(options: argparse.Namespace) -> int:
    """A process that the parent started: writes one JSON record a line."""
    with options.records.open("w") as file:

        def write(record: dict[str, Any]) -> None:
            print(json.dumps(record), file=file, flush=True)

        if options.section:
            from tests.gpu.sections import run_section

            run_section(options.section, json.loads(options.rates), write)
            return 0
        from tests.gpu.sections import check_part

        part, parts = map(int, options.part.split("/"))
        return check_part((part, parts), options.skip, options.only, write)


def dry(options: argparse.Namespace) -> int:
    """Correctness on a CPU, and the loop that measures the host, in this process."""
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from tests.gpu.sections import check_part, run_section

    records: list[dict[str, Any]] = []
    check_part((0, 1), 0, options.only, records.append, dry=True)
    checks = [record for record in records if "ok" in record]
    if not options.only:
        run_section("host-dry", {}, print)
    failed = [record["check"] for record in checks if not record["ok"]]
    if options.out:
        options.out.write_text(json.dumps({"checks": checks}, indent=1) + "\n")
    print(f"{len(checks) - len(failed)} of {len(checks)} checks passed")
    return 1 if failed or not checks else 0


def main() -> int:
    """Exit status 1 when something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="correctness on a CPU through the interpreter")
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose name holds this")
    parser.add_argument("--no-timings", action="store_true")
    parser.add_argument("--workers", type=int, default=0, help="processes that check side by side")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results as JSON")
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="this machine's hardware sheet as YAML")
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--section", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rates", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.records:
        return one_part(options)
    return dry(options) if options.dry else everything(options)


if __name__ == "__main__":
    sys.exit(main())
