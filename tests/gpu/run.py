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

BUDGET_S = 465.0  # of all parts together
CHECKS_S = 230.0
ALONE_S = 40.0  # of these for checks that need the device alone
SILENCE_S = 75.0  # that a check or a timing may take, its compilation included
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
                _waited(child, 10.0)  # a driver may hold on to it, which is no reason to wait for ever
                break
        if code:
            trouble = f"exit status {code}"
        whole = out.read_text().rpartition("\n")[0]  # a process that was ended may have left half a line
    return [json.loads(line) for line in whole.splitlines()], trouble


def _waited(child: subprocess.Popen[bytes], for_s: float = 0.2) -> int | None:
    try:
        return child.wait(for_s)
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
        planned = ["device-memory"] if part == workers else list[str]()  # until it says so itself
        until = deadline if part == workers else deadline - ALONE_S
        while (left_s := until - time.monotonic()) > 0:
            arguments = ["--part", f"{part}/{workers + 1}", "--skip", str(len(done)), "--only", only]
            records, trouble = run_part(arguments, left_s, silence_s=SILENCE_S, cores=cores)
            planned = next((record["planned"] for record in records if "planned" in record), planned)
            finished = [record for record in records if "ok" in record]
            begun = [record["check"] for record in records if "check" in record and "ok" not in record]
            done += finished
            late = time.monotonic() >= until  # whoever was at it then is not to blame
            at = begun[-1] if len(begun) > len(finished) else "" if finished else f"worker {part}"
            if trouble and at:
                print(f"{'not run' if late else 'FAIL'} {at}: {trouble}", flush=True)
                done.append({"check": at, "ok": None if late else False, "s": 0.0, "error": trouble})
            if not trouble or at.startswith("worker"):
                break
        return done + not_run(planned, done)

    with ThreadPoolExecutor(workers) as pool:
        shared = list(pool.map(work, range(workers)))
    dead = [part for part, records in enumerate(shared) if _never_began(part, records)]
    if len(dead) < workers:  # a GPU that is set to take one process at a time took the first
        for part in dead:
            shared[part] = work(part)
    return [record for part in (*shared, work(workers)) for record in part]


def _never_began(part: int, records: list[dict[str, Any]]) -> bool:
    return [record["check"] for record in records] == [f"worker {part}"] and records[0]["ok"] is False


def measure(
    name: str, limit_s: float, rates: dict[str, float], deadline: float
) -> tuple[list[dict[str, Any]], str]:
    """(rows of a section, what went wrong or nothing); a process that dies is begun again behind the job it was at."""
    until = min(time.monotonic() + limit_s, deadline)
    rows: list[dict[str, Any]] = []
    begun, troubles = 0, list[str]()
    while (left_s := until - time.monotonic()) > 0:
        arguments = ["--section", name, "--rates", json.dumps(rates), "--skip", str(begun)]
        records, trouble = run_part(arguments, left_s, silence_s=SILENCE_S)
        rows += [record for record in records if "job" not in record]
        jobs = [record["job"] for record in records if "job" in record]
        begun += len(jobs)
        if trouble:
            troubles.append(f"{jobs[-1] if jobs else 'before the first job'}: {trouble}")
            print(f"FAIL section {name}, {troubles[-1]}", flush=True)
        if not trouble or not jobs:
            return rows, "; ".join(troubles)
    return rows, "; ".join([*troubles, "out of time"])


def everything(options: argparse.Namespace) -> int:
    """The parent: exit status 1 when a check failed or a judged line is not met."""
    begun = time.monotonic()
    if "TRITON_CACHE_DIR" not in os.environ and not os.access(Path.home(), os.W_OK):
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    results: dict[str, Any] = {"machine": {}, "checks": [], "sections": {}, "rates": {}, "rows": []}
    _write(options, results)  # that it cannot be written is better known now
    machine, trouble = run_part(["--section", "machine"], 90.0)
    results["machine"] = next(iter(machine), {"trouble": trouble})
    print(json.dumps(results["machine"]), flush=True)
    if problem := results["machine"].get("problem", ""):
        print(f"FAIL nothing runs on this machine: {problem}", flush=True)
        return _finish(options, results, begun)
    workers = options.workers or max(1, min(10, (os.cpu_count() or 1) * 2 // 3))
    results["checks"] = run_checks(workers, begun + CHECKS_S, options.only)
    # Rates once more if they failed: without them nothing is judged.
    for name in () if options.no_timings else ("rates", *SECTIONS_S):
        if name == "rates" and "copy" in results["rates"]:
            continue
        _write(options, results)  # what is known so far outlives this process
        rows, trouble = measure(name, SECTIONS_S[name], results["rates"], begun + BUDGET_S)
        results["sections"][name] = trouble or "ok"
        if name == "rates":
            results["rates"] |= {
                key: value for row in rows if "error" not in row for key, value in row.items()
            }
            rows = [row for row in rows if "error" in row]
        results["rows"] += rows
    return _finish(options, results, begun)


def _write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _finish(options: argparse.Namespace, results: dict[str, Any], begun: float) -> int:
    """Writes and tells it all; the exit status."""
    results["seconds"] = time.monotonic() - begun
    results["verdict"] = verdicts(results["checks"], results["rows"])
    _write(options, results)
    written = sheet(results["machine"], results["rates"])
    if options.sheet and written:
        options.sheet.write_text(written)
    print(table(results["rates"], results["rows"]))
    for line in results["verdict"]:
        print(f"{line['verdict']:<8} {line['line']}: {line['found']}")
    print(f"{results['seconds']:.0f} s")
    return 0 if all(line["verdict"] == "met" for line in results["verdict"]) else 1


def one_part(options: argparse.Namespace) -> int:
    """A process that the parent started: writes one JSON record a line."""
    with options.records.open("w") as file:

        def write(record: dict[str, Any]) -> None:
            print(json.dumps(record), file=file, flush=True)

        if options.section:
            from tests.gpu.sections import run_section

            return run_section(options.section, json.loads(options.rates), write, options.skip)
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
