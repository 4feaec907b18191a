"""What recompute saved, said in one line."""

from __future__ import annotations

POOR_SHARE = 0.05
_MIB = 2**20


def savings_report(
    held_before: float,
    held_after: float,
    peak_before: float,
    peak_after: float,
    seconds_before: float,
    seconds_after: float,
) -> tuple[str, bool]:
    """Compare a step without recompute (before) and one with it (after).

    Args:
        held_before, held_after: bytes of activations held after forward.
        peak_before, peak_after: peak allocated bytes of the step.
        seconds_before, seconds_after: seconds of the step.

    Returns:
        The report as one line, and whether it is poor: the peak fell by less than 5 %. What counts is the peak, since
        one big unit saves much of what is held and nothing at the peak.
    """
    peak_share = _fallen(peak_before, peak_after)
    is_poor = peak_share < POOR_SHARE
    slower = f", step {seconds_before:.3g} -> {seconds_after:.3g} s" if seconds_before > 0 else ""
    text = (
        f"recompute: held after forward {_change(held_before, held_after)}, "
        f"peak {_change(peak_before, peak_after)}{slower}"
    )
    if is_poor:
        text += (
            ". It saved under 5 % of the peak -> choose units that hold activations (several of the repeated blocks, "
            "not one big unit), or turn recompute off"
        )
    return text, is_poor


def _fallen(before: float, after: float) -> float:
    return 0.0 if before <= 0 else (before - after) / before


def _change(before: float, after: float) -> str:
    return f"{before / _MIB:.1f} -> {after / _MIB:.1f} MiB ({-100 * _fallen(before, after):+.1f} %)"
