"""The predicted peak of a choice: pure arithmetic on a profile, exact in integers.

The peak of a step is the largest over its segments of transient + held. Where no owner of a segment is recomputed the
transient comes from the step with nothing recomputed, else from the step in which that owner was; what is held follows
from each storage's conditions. With one storage a unit this is, for s = held - still held when recomputed:
forward segments peak_none - sum(s, recomputed and already run); backward segment of unit i, not recomputed:
peak_none[i] - sum(s, recomputed and still held), recomputed: peak_all[i] + sum(s, not recomputed and still held).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil

from paddle_memcallbacks.planner.holdings import held_bytes
from paddle_memcallbacks.planner.measured import Profile, SizeProfile


@dataclass(frozen=True)
class PeakPart:
    """Where a step's peak stands.

    Attributes:
        peak_bytes: the segment's predicted peak, correction not applied.
        key: the segment's key.
        phase: ``forward``, ``backward`` or ``step``.
    """

    peak_bytes: int
    key: str
    phase: str


def segment_peaks(size: SizeProfile, recompute: Iterable[str] = ()) -> list[int]:
    """Predicted peak bytes of every segment when the units ``recompute`` are recomputed."""
    chosen = frozenset(recompute)
    held = held_bytes(size.holdings, len(size.segments), chosen)
    return [segment.transient(chosen) + h for segment, h in zip(size.segments, held, strict=True)]


def peak_part(size: SizeProfile, recompute: Iterable[str] = ()) -> PeakPart:
    """The segment with the highest predicted peak, the first of equals."""
    peaks = segment_peaks(size, recompute)
    index = max(range(len(peaks)), key=lambda i: (peaks[i], -i))
    return PeakPart(peaks[index], size.segments[index].key, size.segments[index].phase)


def predict_peak(profile: Profile, recompute: Iterable[str] = (), micro_batch_size: int | None = None) -> int:
    """The peak allocated bytes of a step in which the units ``recompute`` are recomputed.

    Args:
        profile: measured steps.
        recompute: names of units.
        micro_batch_size: rows of a micro-batch; default: the largest measured size.

    Raises:
        ValueError: an unknown unit, two nested units, or a size that the profile cannot reach.
    """
    chosen = list(recompute)
    check_choice(profile, chosen)
    return corrected(profile, peak_part(profile.at(micro_batch_size), chosen).peak_bytes)


def corrected(profile: Profile, peak_bytes: int) -> int:
    """A predicted peak times what a real run measured over the prediction."""
    return peak_bytes if profile.correction == 1.0 else ceil(peak_bytes * profile.correction)


def check_choice(profile: Profile, recompute: Iterable[str]) -> None:
    """Raises ValueError for a name that is no unit of the profile, and for two of which one contains the other."""
    units = {unit.name: unit for unit in profile.units}
    chosen = set(recompute)
    for name in sorted(chosen):
        if name not in units:
            near = get_close_matches(name, units, 1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise ValueError(f"{name!r} is no unit of this profile{hint}")
        clash = sorted(units[name].excludes & chosen)
        if clash:
            raise ValueError(f"{name!r} and {clash[0]!r} are nested: one of them can be recomputed, not both")
