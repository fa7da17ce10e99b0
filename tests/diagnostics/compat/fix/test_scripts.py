"""Fixes of shell scripts: no option leaves its branch, loop or function, and no block is left without a statement."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from camshaft.diagnostics.compat.fix.files import Fixed, fix_all
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all

OLD, NEW = "--guided-decoding-backend xgrammar", """--structured-outputs-config '{"backend": "xgrammar"}'"""
SERVE = '\nvllm serve m "${ARGS[@]}"\n'
GONE = "export VLLM_ATTENTION_BACKEND=XFORMERS"
KEPT = "export VLLM_ATTENTION_BACKEND=FLASHINFER"


def outcome(text: str) -> tuple[str, Fixed]:
    """A script as `--fix` leaves it."""
    (fixed,) = fix_all(read_text(text, "a.sh"), lambda c: check_all([c], targets=["0.33.0"])[0])
    return fixed.plan.texts.get("a.sh", (text, text))[1], fixed


@pytest.mark.parametrize(
    "around",
    [
        "ARGS=(--seed 1 {} --port 1)",
        "if x; then ARGS+=({}); fi",
        "if x; then ARGS+=(--seed 1); elif y; then ARGS+=({}); else ARGS+=(--seed 2); fi",
        "case $1 in\n  a) ARGS+=(--seed 1);;\n  b|c) ARGS+=({} );;\nesac",
        "for i in 1 2; do ARGS+=({}); done",
        "while x; do\n  ARGS+=(\n    --seed 1\n    {}  # why\n  )\ndone",
        "f() {\n  ARGS+=({})\n}\nf",
        "function f {\n  local ARGS=({})\n}",
        "[[ -n $X ]] && ARGS+=({})",
        "[ -n $X ] || { y; ARGS+=({}); }",
    ],
)
def test_an_option_is_replaced_where_it_stands(around: str) -> None:
    before = around.replace("{}", OLD) + SERVE
    after, fixed = outcome(before)
    assert not fixed.refused
    assert after == around.replace("{}", NEW) + SERVE
    assert fixed.results[0].starts


@pytest.mark.parametrize(
    "script",
    [
        f"if x; then ARGS=({OLD}); else ARGS=(--guided-decoding-backend guidance); fi{SERVE}",
        f"ARGS=(--num-speculative-tokens 5)\nif x; then ARGS+=(--speculative-model [ngram]); fi{SERVE}",
        f'ARGS=({OLD})\n[ x ] && ARGS+=(--structured-outputs-config \'{{"backend": "a"}}\'){SERVE}',
        f'if x; then A="{OLD}"; fi\nvllm serve m $A\n',
        f"if x; then {KEPT}; fi\nvllm serve m\n",
        f"[ x ] && {KEPT}\nvllm serve m\n",
        f"f() {{ {KEPT}; }}\nf\nvllm serve m\n",
        f"( {KEPT} )\nvllm serve m\n",
        f'A="{OLD}"\nvllm serve m $A &\nvllm serve n $A\n',
    ],
)
def test_what_would_move_to_other_runs_or_servers_is_left_to_a_person(script: str) -> None:
    after, fixed = outcome(script)
    assert after == script
    assert fixed.refused
    assert all("edit it by hand" in why for why in fixed.refused)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"cd x && {KEPT} && vllm serve m", "cd x && vllm serve m --attention-backend FLASHINFER"),
        (
            f"{KEPT}\nif x; then vllm serve m; fi",
            "if x; then vllm serve m --attention-backend FLASHINFER; fi",
        ),
        (f'A="--seed 1 {OLD}"\nvllm serve m $A', f'A="--seed 1"\nvllm serve m {NEW} $A'),
    ],
)
def test_what_holds_at_every_run_of_the_server_may_move_to_it(before: str, after: str) -> None:
    assert outcome(before)[0] == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"if x; then {GONE}; fi", "if x; then :; fi"),
        (f"if x; then\n  {GONE} VLLM_USE_V1=1\nfi", "if x; then\n  :\nfi"),
        (f"if x; then\n  {GONE}\n  export VLLM_USE_V1=1\nfi", "if x; then\n  :\nfi"),
        (f"if x; then\n  {GONE}\n  y\nelse z; fi", "if x; then\n  y\nelse z; fi"),
        (f"if x; then y\nelse\n  {GONE}; fi", "if x; then y\nelse\n  :; fi"),
        (f"f() {{ {GONE}; }}", "f() { :; }"),
        (f"for i in 1; do {GONE}; done", "for i in 1; do :; done"),
        (f"case $1 in\n  a) {GONE};;\nesac", "case $1 in\n  a);;\nesac"),
        (f"[ x ] && {GONE}", "[ x ] && :"),
        (f"x || {GONE} && y", "x || : && y"),
        (f"x && {GONE} && y", "x && y"),
        (f"x && {GONE}; y", "x && :; y"),
    ],
)
def test_a_block_is_not_left_empty(before: str, after: str) -> None:
    new, _ = outcome(f"{before}\nvllm serve m\n")
    assert new == f"{after}\nvllm serve m\n"
    bash = shutil.which("bash")
    if bash is not None:
        assert subprocess.run([bash, "-n"], input=new, text=True, check=False).returncode == 0


def test_a_line_that_keeps_an_option_keeps_its_indentation() -> None:
    script = "vllm serve m \\\n    --swap-space 4 --seed 1 \\\n    --port 1\n"
    assert outcome(script)[0] == script.replace("--swap-space 4 ", "")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("goes_on", ["\\", "`", "^"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vllm serve m +\n  --swap-space 4 +\n  --port 1\n", "vllm serve m +\n  --port 1\n"),
        ("vllm serve m +\n  --port 1 +\n  --swap-space +\n  4\n", "vllm serve m +\n  --port 1\n"),
        ("vllm serve m +\n  --num-lookahead-slots 3 +\n  --swap-space 4\necho\n", "vllm serve m\necho\n"),
        ("export VLLM_USE_V1=1\nvllm serve m\n", "vllm serve m\n"),
    ],
)
def test_no_empty_line_is_left_however_lines_end_and_go_on(
    before: str, after: str, goes_on: str, newline: str
) -> None:
    before, after = (text.replace("+", goes_on).replace("\n", newline) for text in (before, after))
    assert outcome(before)[0] == after


def test_an_array_goes_on_over_lines_that_end_as_on_windows() -> None:
    before = 'A=(\n  --swap-space 4 \\\n  --port 1\n)\nvllm serve m "${A[@]}"\n'.replace("\n", "\r\n")
    after, fixed = outcome(before)
    assert after == before.replace("  --swap-space 4 \\\r\n", "")
    assert fixed.results[0].starts
