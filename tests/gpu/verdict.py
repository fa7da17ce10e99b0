"""What the run says in the end: a table of timings, a line for each thing that is judged, a hardware sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Records = Sequence[dict[str, Any]]

OTHERS = ("tokens", "graph", "fp8-model", "sheet", "executor", "device")  # checks of no single kernel
TIMED = {
    "decode-bf16": "decode attention in bf16, 85 % of the copy where 1 GB or more is read",
    "decode-fp8": "decode attention over FP8, 75 % of the copy where 1 GB or more is read",
    "prefill": "prefill attention at 8k, 60 % of the product",
    "step": "decode step of 70B layers at batch 64 in a graph, within 1.25 of its bytes over the copy",
    "gap": "host gap between steps at 256 sequences, under 100 us",
}


def not_run(planned: Sequence[str], done: Records) -> list[dict[str, Any]]:
    """A record without a verdict for each planned check that no record names."""
    named = {record["check"] for record in done}
    return [
        {"check": name, "ok": None, "s": 0.0, "error": "not run"} for name in planned if name not in named
    ]


def verdicts(checks: Records, rows: Records) -> list[dict[str, str]]:
    """met, missed or unknown for every judged line."""
    groups: dict[str, Callable[[str], bool]] = {
        "kernels against plain torch": lambda name: not name.startswith(OTHERS),
        "kernels at the shapes of the model sheets": lambda name: name.startswith("sheet"),
        "tokens against transformers, FP8 against bf16": lambda name: name.startswith(
            ("tokens", "fp8-model")
        ),
        "captured graph against eager": lambda name: name.startswith("graph"),
        "the executor: graphs, draws, memory": lambda name: name.startswith(("executor", "device")),
    }
    lines = [_checked(line, [c for c in checks if belongs(c["check"])]) for line, belongs in groups.items()]
    return [
        *lines,
        *(_timed(line, [row for row in rows if row.get("judged") == key]) for key, line in TIMED.items()),
    ]


def _checked(line: str, checks: Records) -> dict[str, str]:
    failed = [check["check"] for check in checks if check["ok"] is False]
    missing = [check["check"] for check in checks if check["ok"] is None]
    found = f"{len(checks) - len(failed) - len(missing)} of {len(checks)}"
    for what, names in (("failed", failed), ("not run", missing)):
        if names:
            found += f"; {what}: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
    verdict = "missed" if failed else "unknown" if missing or not checks else "met"
    return {"line": line, "verdict": verdict, "found": found}


def _timed(line: str, rows: Records) -> dict[str, str]:
    if not rows:
        return {"line": line, "verdict": "unknown", "found": "not measured"}
    met = all(_is_met(row) for row in rows)
    return {"line": line, "verdict": "met" if met else "missed", "found": ", ".join(map(_figure, rows))}


def _is_met(row: dict[str, Any]) -> bool:
    if "gap_us" in row:
        return row["gap_us"] < row["target_us"]
    return row.get("of_copy", row.get("of_matmul", 0.0)) >= row["target"]


def _figure(row: dict[str, Any]) -> str:
    if "gap_us" in row:
        return f"{row['gap_us']:.0f} us"
    return f"{row.get('of_copy', row.get('of_matmul', 0.0)):.1%}"


def table(rates: dict[str, float], rows: Records) -> str:
    """The timings for people."""
    lines = []
    if rates:
        lines.append(f"copy {rates['copy'] / 1e12:.2f} TB/s, product {rates['matmul'] / 1e12:.0f} TFLOP/s")
    for row in rows:
        shares = [f"{row[key]:.1%} {key.replace('_', ' ')}" for key in ("of_copy", "of_matmul") if key in row]
        shares += [f"{row[key]:.0f} {key.replace('_', ' ')}" for key in ("gap_us", "host_us") if key in row]
        goal = f" (target {row['target']:.0%})" if row.get("target") else ""
        took = row.get("us", float("nan"))
        lines.append(f"{row['what']:<58} {took:>10.1f} us  {', '.join(shares)}{goal}{row.get('error', '')}")
    return "\n".join(lines)


def sheet(machine: dict[str, Any], rates: dict[str, float]) -> str:
    """A hardware sheet of this machine, in the form of `presets/hardware`."""
    lines = [
        f"name: {machine['gpu']}", "aliases: []", f"source: measured by tests/gpu/run.py with torch {machine['torch']}",
        f"memory_gib: {machine['memory_gib']:.2f}", f"memory_bandwidth_gb_s: {rates['copy'] / 1e9:.0f}",
        "compute_tflops:", f"  bfloat16: {rates['matmul'] / 1e12:.0f}",
    ]  # fmt: skip
    if rates.get("matmul_fp8"):
        lines.append(f"  fp8: {rates['matmul_fp8'] / 1e12:.0f}")
    return "\n".join(
        [*lines, f"l2_mib: {machine['l2_mib']:.0f}", f"compute_capability: '{machine['capability']}'", ""]
    )
