"""What the run says in the end: a table of timings, a line for each thing that is judged, a hardware sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Records = Sequence[dict[str, Any]]

# Of a data sheet's figures: an H200 copies 4.3 of its 4.8 TB/s and multiplies 790 of 989 TFLOP/s; FP8 is estimated.
SHARES = {"copy": 0.9, "matmul": 0.8, "matmul_fp8": 0.75}
OTHERS = ("tokens", "graph", "fp8-model", "sheet", "executor", "device")  # checks of no single kernel
TIMED = {
    "decode-bf16": "decode attention in bf16, 85 % of the copy where 1 GB or more is read",
    "decode-fp8": "decode attention over FP8, 75 % of the copy where 1 GB or more is read",
    "prefill": "prefill attention at 8k, 60 % of the product",
    "step": "decode step of 70B layers at batch 64 in a graph, within 1.25 of its bytes over the copy",
    "gap": "host gap between steps at 256 sequences, under 100 us",
}
ROWS = {"decode-bf16": 2, "decode-fp8": 2}  # that are due; of others one


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
        *(
            _timed(key, line, [row for row in rows if row.get("judged") == key])
            for key, line in TIMED.items()
        ),
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


def _timed(key: str, line: str, rows: Records) -> dict[str, str]:
    """One row that misses is enough; rows that nothing was measured for leave it open."""
    if not rows:
        return {"line": line, "verdict": "unknown", "found": "not measured"}
    misses = any(_misses(row) for row in rows)
    whole = len(rows) >= ROWS.get(key, 1) and not any(_share(row) != _share(row) for row in rows)
    verdict = "missed" if misses else "met" if whole else "unknown"
    return {"line": line, "verdict": verdict, "found": ", ".join(map(_figure, rows))}


def _misses(row: dict[str, Any]) -> bool:
    if "gap_us" in row:
        return row["gap_us"] >= row["target_us"]
    return _share(row) < row["target"]


def _share(row: dict[str, Any]) -> float:
    """Of what the device's own copy or product reaches; NaN where that was not measured."""
    return row.get("of_copy", row.get("of_matmul", 0.0))


def _figure(row: dict[str, Any]) -> str:
    if "gap_us" in row:
        return f"{row['gap_us']:.0f} us"
    return f"{_share(row):.1%}"


def table(rates: dict[str, float], rows: Records) -> str:
    """The timings for people."""
    lines = []
    known = {name: (rates.get(name) or float("nan")) / 1e12 for name in SHARES}
    lines.append(
        f"copy {known['copy']:.2f} TB/s, product {known['matmul']:.0f} TFLOP/s, in FP8 {known['matmul_fp8']:.0f}"
    )
    for row in rows:
        shares = [f"{row[key]:.1%} {key.replace('_', ' ')}" for key in ("of_copy", "of_matmul") if key in row]
        shares += [f"{row[key]:.0f} {key.replace('_', ' ')}" for key in ("gap_us", "host_us") if key in row]
        goal = f" (target {row['target']:.0%})" if row.get("target") else ""
        took = row.get("us", float("nan"))
        lines.append(f"{row['what']:<58} {took:>10.1f} us  {', '.join(shares)}{goal}{row.get('error', '')}")
    return "\n".join(lines)


def sheet(machine: dict[str, Any], rates: dict[str, float]) -> str | None:
    """A hardware sheet of this machine, in the form of `presets/hardware`; None where too little was measured.

    Its curves are an H100's, shares of a data sheet's figures; so its own are those that what was measured is the
    usual share of.
    """
    if not machine.get("gpu") or not rates.get("copy") or not rates.get("matmul"):
        return None
    peaks = {name: rates[name] / 1e12 / SHARES[name] for name in SHARES if rates.get(name)}
    found = ", ".join(f"{name} {rates[name] / 1e12:.4g}" for name in SHARES if rates.get(name))
    lines = [
        f"name: {machine['gpu']}", "aliases: []",
        f'source: "measured by tests/gpu/run.py with torch {machine["torch"]}, in TB/s and TFLOP/s: {found}; '
        f'figures are these over {", ".join(f"{share}" for share in SHARES.values())}"',
        f"memory_gib: {machine['memory_gib']:.2f}", f"memory_bandwidth_gb_s: {peaks['copy'] * 1e3:.0f}",
        "compute_tflops:", f"  bfloat16: {peaks['matmul']:.0f}", f"  float16: {peaks['matmul']:.0f}",
    ]  # fmt: skip
    if "matmul_fp8" in peaks:
        lines.append(f"  fp8: {peaks['matmul_fp8']:.0f}")
    lines += [
        f"l2_mib: {machine['l2_mib']:.0f}", f"compute_capability: '{machine['capability']}'",
        "curves_of: h100-sxm",
    ]  # fmt: skip
    return "\n".join([*lines, ""])
