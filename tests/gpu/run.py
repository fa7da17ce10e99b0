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
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / ".pkg")]
# By hand, as a package of that name which something installed would win over a folder without `__init__.py`.
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.gpu.verdict import not_run, sheet, table, verdicts  # noqa: E402 - these need no torch

BUDGET_S = 440.0  # of all parts together
CHECKS_S = 200.0
SILENCE_S = 75.0  # that a check may take, its compilation included
# In the order of what is judged.
SECTIONS_S = {"rates": 40.0, "attention": 90.0, "steps": 100.0, "host": 100.0, "linear": 60.0}


def run_part(
    arguments: list[str], limit_s: float, *, silence_s: float = 1e9, cores: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """(records that a process of this script wrote, what went wrong or nothing).

    It is ended after `limit_s`, or when it has written nothing for `silence_s`.
    """
    environment = {"OMP_NUM_THREADS": str(cores)} if cores else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records"
        out.touch()
        command = [sys.executable, __file__, *arguments, "--records", str(out)]
        trouble, begun = "", time.monotonic()
        heard, size = begun, 0
        child = subprocess.Popen(command, env={**os.environ, **environment})
        while (code := _waited(child)) is None:
            now = time.monotonic()
            if out.stat().st_size != size:
                heard, size = now, out.stat().st_size
            if now - begun > limit_s:
                trouble = f"not done after {limit_s:.0f} s"
            elif now - heard > silence_s:
                trouble = f"silent for {silence_s:.0f} s"
            if trouble:
                child.kill()
                child.wait()
                break
        if code:
            trouble = f"exit status {code}"
        whole = out.read_text().rpartition("\n")[0]  # a process that was ended may have left half a line
    return [json.loads(line) for line in whole.splitlines()], trouble


def _waited(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(0.2)
    except subprocess.TimeoutExpired:
        return None


def run_checks(workers: int, deadline: float, only: str) -> list[dict[str, Any]]:
    """Every check, dealt out to processes; those that need the device alone at the end, in one of their own.

    A process that dies or falls silent is begun again behind the check that it was at. A check that nobody came
    to has no verdict: its `ok` is None.
    """
    from concurrent.futures import ThreadPoolExecutor

    cores = max(1, (os.cpu_count() or 1) // workers)

    def work(part: int) -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        planned: list[str] = []
        while (left_s := deadline - time.monotonic()) > 0:
            arguments = ["--part", f"{part}/{workers + 1}", "--skip", str(len(done)), "--only", only]
            records, trouble = run_part(arguments, left_s, silence_s=SILENCE_S, cores=cores)
            planned = next((record["planned"] for record in records if "planned" in record), planned)
            finished = [record for record in records if "ok" in record]
            begun = [record["check"] for record in records if "check" in record and "ok" not in record]
            done += finished
            if trouble and len(begun) > len(finished):
                print(f"FAIL {begun[-1]}: {trouble}", flush=True)
                done.append({"check": begun[-1], "ok": False, "s": 0.0, "error": trouble})
            elif trouble and not finished:
                print(f"FAIL worker {part}: {trouble}", flush=True)
                done.append({"check": f"worker {part}", "ok": False, "s": 0.0, "error": trouble})
                break
            if not trouble:
                break
        return done + not_run(planned, done)

    with ThreadPoolExecutor(workers) as pool:
        shared = [record for part in pool.map(work, range(workers)) for record in part]
    return shared + work(workers)


def everything(options: argparse.Namespace) -> int:
    """The parent: exit status 1 when a check failed or a judged line is not met."""
    begun = time.monotonic()
    if "TRITON_CACHE_DIR" not in os.environ and not os.access(Path.home(), os.W_OK):
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    machine, trouble = run_part(["--section", "machine"], 90.0)
    results: dict[str, Any] = {"machine": machine[0] if machine else {}, "sections": {}, "rows": []}
    trouble = trouble or results["machine"].get("problem", "")
    if trouble:
        print(f"FAIL nothing runs on this machine: {trouble}", flush=True)
        return _finish(options, results | {"checks": [], "rates": {}, "seconds": time.monotonic() - begun})
    workers = options.workers or max(1, min(6, (os.cpu_count() or 1) - 1))
    results["checks"] = run_checks(workers, begun + CHECKS_S, options.only)
    rates: dict[str, float] = {}
    for name, limit_s in {} if options.no_timings else SECTIONS_S.items():
        _write(options, results)  # what is known so far outlives this process
        left_s = begun + BUDGET_S - time.monotonic()
        rows, trouble = run_part(["--section", name, "--rates", json.dumps(rates)], min(limit_s, left_s))
        results["sections"][name] = trouble or "ok"
        if name == "rates":
            rates = rows[0] if rows else {}
        else:
            results["rows"] += rows
        if trouble:
            print(f"FAIL section {name}: {trouble}", flush=True)
    return _finish(options, results | {"rates": rates, "seconds": time.monotonic() - begun})


def _write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _finish(options: argparse.Namespace, results: dict[str, Any]) -> int:
    """Tells and writes it all; the exit status."""
    rates = results["rates"]
    results["verdict"] = verdicts(results["checks"], results["rows"])
    print(table(rates, results["rows"]))
    for line in results["verdict"]:
        print(f"{line['verdict']:<8} {line['line']}: {line['found']}")
    print(f"{results['seconds']:.0f} s")
    _write(options, results)
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
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also where there is a GPU
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
