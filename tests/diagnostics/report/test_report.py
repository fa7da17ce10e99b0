"""The three forms of a report: one line first, the published JSON, a page that needs nothing beside itself."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import get_args

from camshaft.diagnostics.diagnose import Change, Report, Verdict, diagnose, read_subject
from camshaft.diagnostics.diagnose.model import Bottleneck
from camshaft.diagnostics.evidence import observed_mapping
from camshaft.diagnostics.report import page, structured, text
from camshaft.diagnostics.report.svg import Line, over_time
from camshaft.diagnostics.simulate import PART_NAMES, PARTS

KEYS = [
    "verdict",
    "alternatives",
    "limits",
    "memory",
    "evidence",
    "assumptions",
    "flags",
    "about",
    "slo",
    "servers",
    "as_it_is",
]
VERDICT_KEYS = [
    "bottleneck", "default_at_fault", "knob", "from", "to", "direction", "changes", "why", "confidence", "predicted",
    "missed", "within_error", "at_the_ends", "unexplained",
]  # fmt: skip


@cache
def _report() -> Report:
    observed = {
        "metrics": {"running": 2, "waiting": 14, "per_request_tok_s": 30},
        "workload": {"concurrency": 16, "input_len": 64, "output_len": 16},
        "config": {"max_num_seqs": 2},
    }
    evidence = observed_mapping(observed, "<b>figures</b>")
    return diagnose(read_subject(None, evidence), evidence)


def test_the_first_line_names_one_knob_with_both_values_and_a_range() -> None:
    first = text.render(_report()).splitlines()[0]
    assert re.match(
        r"raise max_num_seqs from 2 to 16: .* -> .* \(.* to .*\) \[fitted\]",
        first,
    )


def test_json_has_the_published_keys() -> None:
    told = json.loads(structured.render(_report()))
    assert list(told) == KEYS
    assert list(told["verdict"]) == VERDICT_KEYS
    assert (told["verdict"]["from"], told["verdict"]["to"], told["verdict"]["direction"]) == (2, 16, "raise")
    assert all({"from", "to", "range"} <= set(row) for row in told["verdict"]["predicted"].values())


def test_the_page_is_self_contained_and_its_plots_are_drawn() -> None:
    html = page.render(_report())
    assert not re.search(r"(src|href)=|@import|url\(", html)
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(figures) == 9  # three over time for each of two replays, three latencies
    for figure in figures:
        drawn = [
            node
            for node in ElementTree.fromstring(figure).iter()
            if node.tag in ("polyline", "polygon", "circle")
        ]
        assert drawn
    assert "<b>figures</b>" not in html
    assert "&lt;b&gt;figures" in html


def test_on_a_narrow_screen_the_other_knobs_are_stacked_and_nothing_is_wider_than_it() -> None:
    narrow = page.render(_report()).split("@media (max-width: 44rem) {")[1].split("@media")[0]
    assert ".others td { display: block" in narrow
    assert ".others td:last-child { min-width: 0" in narrow


def test_stacked_areas_end_where_the_sum_is() -> None:
    import numpy as np

    ones = np.ones(3)
    drawn = over_time(
        "t", "", np.array([1.0, 2.0, 3.0]), (Line("a", ones, "a", True), Line("b", 3 * ones, "b", True))
    )
    second = drawn.split('class="b area"')[1]
    heights = {point.split(",")[1] for point in re.search(r'points="([^"]+)"', second)[1].split()}  # type: ignore[index]
    assert heights == {"12.0", "111.0"}  # the top of the plot, and a quarter above its floor


def test_no_knob_says_why_and_no_spelling_of_one() -> None:
    verdict = Verdict(
        bottleneck="offered_load", knob=None, before=None, after=None, why="too much", confidence="fitted"
    )
    assert text.headline(verdict) == "no knob alone is enough: too much"
    assert verdict.to_dict()["direction"] is None


def test_a_switch_is_spelled_as_the_command_line_takes_it(tmp_path: Path) -> None:
    change = Change(before=1.0, after=2.0, low=1.5, high=2.5)
    verdict = Verdict(
        bottleneck="kernel_launch", knob="enforce_eager", before=True, after=False, why="w", confidence="fitted",
        predicted={"output_tokens_per_s": change},
    )  # fmt: skip
    shown = text.render(Report(title="t", verdict=verdict))
    assert shown.startswith("turn off enforce_eager from on to off: output 1 -> 2 tokens/s")
    assert "how: remove --enforce-eager" in shown


def test_every_bottleneck_and_every_part_of_a_step_has_words() -> None:
    for name in get_args(Bottleneck):
        told = Report(title="t", verdict=Verdict(bottleneck=name, why="w", confidence="simulated"))
        assert name == "none" or f"bottleneck: {name} (" in text.render(told)
    assert PART_NAMES.keys() == set(PARTS)
