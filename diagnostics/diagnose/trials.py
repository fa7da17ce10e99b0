"""Everything that is replayed of a situation before anything is concluded: as it is, and each knob turned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.workload import Workload
from ..simulate import Prepared, Replay
from .choose import rig_for
from .decide import judged, ranked, unreachable
from .demand import Demand, demand
from .flags import has_knobs
from .model import Limit, Proof, Proposal
from .prove import Objective, best_pair, prove
from .rig import Rig
from .rules import Rule, propose
from .situation import Situation
from .turns import turns

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The replay as it is, what the knobs gained, and what they are judged by."""

    situation: Situation
    rig: Rig
    limits: Sequence[Limit]  # floors that no knob moves
    seen: Replay
    objective: Objective
    asked: Demand
    proofs: Sequence[Proof]  # best first
    pair: Proof | None  # the two best turns together, where that beats the best one

    @property
    def targets_given(self) -> bool:
        return self.seen.result.targets.any


def try_knobs(
    situation: Situation,
    prepared: Prepared | None,
    workload: Workload | None,
    rules: tuple[Rule, ...],
    tell: Tell,
) -> Trials:
    """Raises ConfigError or CapacityError where the load cannot be replayed as it is."""
    tell("replaying the load as it is")
    rig, limits = rig_for(situation, prepared, workload)
    if (beyond := unreachable(situation, limits, ())) is not None:
        tell(
            f"the target of {beyond[0]:g} ms is below what one request takes that is alone, {beyond[1].value:.3g} ms"
        )
    seen = rig.play({})
    objective = Objective.of(situation, seen.result)
    tell("replaying it with knobs turned, one at a time")
    asked = demand(situation, rig)
    proposals = _possible(situation, [*propose(situation, rules), *turns(situation, seen)])
    proofs = ranked(judged(situation, prove(rig, proposals, objective), limits, asked))
    both = best_pair(rig, proofs, objective)
    return Trials(
        situation=situation,
        rig=rig,
        limits=limits,
        seen=seen,
        objective=objective,
        asked=asked,
        proofs=proofs,
        pair=judged(situation, [both], limits, asked)[0] if both is not None else None,
    )


def suggested(situation: Situation, seen: Replay) -> list[Proposal]:
    """The turns that a replay suggests and the release has."""
    return _possible(situation, turns(situation, seen))


def _possible(situation: Situation, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Each turn that the release has, once; of two proposals for it the first."""
    known = [p for p in proposals if has_knobs(situation.subject, p.turned)]
    unique = {repr(sorted(p.turned.items())): p for p in reversed(known)}
    return list(reversed(unique.values()))
