"""Scripts: branches, arrays, variables, and which of their words start a server."""

from __future__ import annotations

import pytest

from camshaft.diagnostics.compat.inputs.base import Configuration
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all


def one(text: str, name: str) -> Configuration:
    (found,) = read_text(text, name)
    return found


def words(configuration: Configuration) -> list[str]:
    return [word.text for word in configuration.words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("""C=${C:-'{"a":{"b":1}}'}\nvllm serve m --compilation-config "$C" """, '{"a":{"b":1}}'),
        ("""vllm serve m --compilation-config "${C:-{"a":"it's"}}" """, None),
        ("""vllm serve m --compilation-config "${C:-${D:-3}}" """, "${C:-${D:-3}}"),
    ],
)
def test_defaults_of_variables_with_braces(text: str, expected: str | None) -> None:
    found = one(text + "--port 1\n", "a.sh")
    assert words(found)[-2:] == ["--port", "1"]
    if expected:
        assert words(found)[2] == expected


BRANCHES = """\
A=(--port 1)
N=1
if x; then
  A+=(--headless)
  N=0
elif y; then N=7
else
  A+=(--data-parallel-hybrid-lb --data-parallel-size-local 1)
fi
E=
if z; then E="--swap-space 4"; fi
C="--seed 1"
if f; then C="$C --dtype '$N'"; fi
vllm serve m "${A[@]}" --max-num-seqs $N $E $C
"""


def test_branches_of_a_script() -> None:
    found = one(BRANCHES, "a.sh")
    assert [word.text for word in found.words if word.conditional][:2] == [
        "--headless",
        "--data-parallel-hybrid-lb",
    ]
    assert [word.text for word in found.words if word.opaque] == ["$N", "'$N'"]
    (result,) = check_all([found], targets=["0.33.0"])
    stopping = {f.code: f.depends_on for f in result.findings if f.stops}
    assert stopping["FL-02"] == ()  # whichever branch is taken, this one does not start
    assert "whether --headless is given" in stopping["VLLM-PA-32"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('A="1 $(f) 2"', [("1", False), ("$(f)", True), ("2", False)]),
        ('A="x$(f) "; A+=2', [("x$(f)", True), ("2", False)]),
        ("A=$(f)", [("$A", True)]),
        ('A="${B:-""}"', []),
        ("if x; then A=3; fi", [("3", False)]),
        ("if x; then A=3; else A=4; fi", [("$A", True)]),
        ("A=3; if x; then A=$(f); fi", [("$A", True)]),
        (
            'if x; then A="-q 3"; else A="-q 4"; fi',
            [("-q", False), ("3", False), ("-q", False), ("4", False)],
        ),
        ('A="-q 2"; if x; then A="-q 4"; fi', [("-q", False), ("4", False)]),
        ('if x; then A="-q 4"; fi; A="-p 4"', [("-p", False), ("4", False)]),
        ('if x; then A="-q 4"; elif y; then A="$A -p"; fi', [("-q", False), ("4", False), ("-p", False)]),
    ],
)
def test_what_is_known_of_a_variable(script: str, expected: list[tuple[str, bool]]) -> None:
    text = f"{script}\nvllm serve m $A --port 1\n"
    found = one(text, "a.sh").words[1:-2]
    assert [(word.text, word.opaque) for word in found] == expected
    assert all(word.text in text[word.start : word.end] for word in found)
    assert all(word.conditional for word in found if script.endswith("fi") and not word.opaque)


def test_arrays_of_every_branch_are_read() -> None:
    script = "A=(--seed 1)\nif x; then A=(-q 3); elif y; then A=(-q 4); fi\n"
    found = one(script + 'vllm serve m "${A[@]}"\n', "a.sh")
    assert words(found) == ["m", "-q", "3", "-q", "4"]
    found = one(script + 'A=(-q 5)\nvllm serve m "${A[@]}"\n', "a.sh")
    assert words(found) == ["m", "-q", "5"]
    script = 'N=8\nif x; then A=(-q 3 -p "$N"); else A=(-q "$N"); fi\nB=(-r 1 "${A[@]}")\n'
    found = one(script + 'vllm serve m "${B[@]}"\n', "a.sh")
    assert words(found) == ["m", "-r", "1", "-q", "3", "-p", "8", "-q", "8"]


@pytest.mark.parametrize(
    ("script", "twice"),
    [
        ("if x; then A=(--seed 1); else A=(--seed 2); fi", 0),
        ("if x; then A=(--seed 1); fi; if y; then A+=(--seed 2); fi", 0),
        ("A=(--seed 1); if x; then A+=(--seed 2); fi", 1),
        ("if x; then A=(--seed 1); fi; A+=(--seed 2)", 1),
        ("A=(--seed 1 --seed 2)", 1),
    ],
)
def test_options_of_two_branches_are_not_given_twice(script: str, twice: int) -> None:
    (result,) = check_all([one(f'{script}\nvllm serve m "${{A[@]}}"\n', "a.sh")], targets=["0.33.0"])
    assert [finding.code for finding in result.findings].count("FL-15") == twice


def test_a_variable_with_an_unknown_part_is_exported_unknown() -> None:
    found = one('A="x$(f)"\nexport A\nA+=y\nexport B="${C:-""}"\nvllm serve m\n', "a.sh")
    assert {name: setting.value for name, setting in found.env.items()} == {"A": None, "B": ""}


@pytest.mark.parametrize("given", ["-e VLLM_USE_V1=0", "--env VLLM_USE_V1=0", "--env=VLLM_USE_V1=0"])
@pytest.mark.parametrize("command", ["--model m", "vllm serve m"])
def test_a_containers_variables_stand_at_their_words(given: str, command: str) -> None:
    text = f"docker run --rm {given} -p 1:1 vllm/vllm-openai {command}\n"
    setting = one(text, "a.sh").env["VLLM_USE_V1"]
    assert setting.value == "0"
    assert setting.place.column == 1 + text.index(given.split()[-1])
    assert text[setting.start : setting.end] == given


def test_what_is_printed_or_looked_for_is_not_run() -> None:
    found = one(
        'CMD="vllm serve m --port 1"\npkill -f "vllm serve m" || true\necho "Running: $CMD"\nexec $CMD\n',
        "a.sh",
    )
    assert words(found) == ["m", "--port", "1"]
    assert words(one('echo "vllm serve m --port 2" > run.sh\n', "b.sh")) == ["m", "--port", "2"]


def test_servers_of_a_script_are_told_apart_by_their_lines() -> None:
    found = read_text("M=m\nvllm serve $M --port 1 &\nvllm serve $M\nvllm serve n --port 2\n", "a.sh")
    assert [item.label for item in found] == ["a.sh:2", "a.sh:3", "a.sh:4"]


@pytest.mark.parametrize(
    ("first", "doubled", "command"),
    [
        ("A=--seed", 'A="$A $A"', "vllm serve m $A"),
        ("export A=--seed", 'export A="$A $A"', "vllm serve m $A"),
        ("A=(--seed 1)", 'A=("${A[@]}" "${A[@]}")', 'vllm serve m "${A[@]}"'),
    ],
)
def test_what_doubles_without_end_becomes_unknown(first: str, doubled: str, command: str) -> None:
    (found,) = read_text("\n".join([first, *[doubled] * 60, command]), "a.sh")
    assert all(word.opaque for word in found.words[1:])
