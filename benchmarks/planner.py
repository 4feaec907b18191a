"""The planner in figures: is its prediction right, its plan the best, its budget kept, and what does it cost in time.

    python benchmarks/planner.py accuracy [--sets 25] [--models ernie vit ...]
    python benchmarks/planner.py solver
    python benchmarks/planner.py budgets [--budgets 200]
    python benchmarks/planner.py half [--steps 5]

Run from the repository's root. Models are tiny; without PaddleNLP its four are left out.
"""

import argparse
import gc
import importlib.util
import random
import statistics
import sys
import time
import zlib  # noqa: F401  before paddle, see the package's first lines
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import paddle

import paddle_memcallbacks as pm
from paddle_memcallbacks.planner.measure import measured_peak
from paddle_memcallbacks.planner.measured import Profile
from paddle_memcallbacks.planner.peak import segment_peaks
from paddle_memcallbacks.planner.plan import size_text
from paddle_memcallbacks.planner.solver import Infeasible, all_choices, least_peak, plan_of
from paddle_memcallbacks.planner.state import TrainingState
from paddle_memcallbacks.planner.tradeoff import baseline, halving
from tests.planner.models import Case, plain_case, seed_all
from tests.planner.nlp_models import nlp_case
from tests.planner.random_profiles import random_profile

NLP = ("ernie", "bert", "gpt", "llama")
VISION = ("resnet50", "mobilenet_v2", "vit", "unet")
SHAPES = ("densenet", "blocks", "dicts", "inception", "encoder_decoder", "towers", "shared", "residual", "frozen")


def case_of(name: str, rows: int) -> Case:
    gc.collect()
    seed_all()
    case = nlp_case(name, rows) if name in NLP else plain_case(name, rows)
    case.model.train()
    return case


def known(names: Iterable[str]) -> list[str]:
    has_nlp = importlib.util.find_spec("paddlenlp") is not None
    return [name for name in names if has_nlp or name not in NLP]


def row(cells: Sequence[Any], widths: Sequence[int]) -> None:
    print(
        "".join(
            f"{cell!s:<{w}}" if i == 0 else f"{cell!s:>{w}}"
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ),
        flush=True,
    )


def pick(units: Sequence[str], rng: random.Random) -> list[str]:
    share = rng.choice((0.2, 0.5, 0.8))
    return [unit for unit in units if rng.random() < share]


# ---- accuracy


def accuracy(names: Sequence[str], sets: int) -> None:
    """Predicted against measured peak of random sets of units at two sizes; errors in percent of the measured peak."""
    widths = (18, 6, 7, 11, 11, 11, 13, 13, 9)
    row(("model", "rows", "units", "static", "none", "all", "most under", "most over", "profile"), widths)
    for name in names:
        for rows in (2, 4):
            case = case_of(name, rows)
            optimizer = paddle.optimizer.AdamW(1e-4, parameters=case.model.parameters())
            step = case.step(optimizer)
            begun = time.perf_counter()
            profile = pm.profile_step(case.model, step, case.units, optimizer)
            seconds = time.perf_counter() - begun
            units = [unit.name for unit in profile.units]
            errors = list(errors_of(case, optimizer, step, profile, units, sets))
            row(
                (
                    name,
                    rows,
                    len(units),
                    size_text(profile.static_bytes),
                    size_text(pm.predict_peak(profile)),
                    size_text(pm.predict_peak(profile, units)),
                    f"{min(0.0, *errors):+.4f} %",
                    f"{max(0.0, *errors):+.4f} %",
                    f"{seconds:.1f} s",
                ),
                widths,
            )


def errors_of(
    case: Case, optimizer: Any, step: Callable[[], None], profile: Profile, units: Sequence[str], sets: int
) -> Iterator[float]:
    step()
    state = TrainingState(case.model, [optimizer])
    rng = random.Random(11)
    for _ in range(sets):
        chosen = pick(units, rng)
        state.rewind()
        measured = measured_peak(case.model, step, chosen)
        yield 100 * (pm.predict_peak(profile, chosen) / measured - 1)


# ---- the solver


def greedy(profile: Profile, limit: int) -> float | None:
    """Take the unit that lowers the peak most per second, until it fits; its seconds, or None."""
    size, chosen = profile.sizes[-1], []
    while max(segment_peaks(size, chosen)) > limit:
        now = max(segment_peaks(size, chosen))
        left = [unit for unit in size.units if unit.calls and unit.name not in chosen]
        if not left:
            return None
        gains = {
            u.name: (now - max(segment_peaks(size, [*chosen, u.name]))) / max(u.recompute_seconds, 1e-9) for u in left
        }
        held = {u.name: u.saved_bytes / max(u.recompute_seconds, 1e-9) for u in left}
        chosen.append(max(left, key=lambda u: (gains[u.name], held[u.name])).name)
    return size.seconds(chosen)


def solver(names: Sequence[str]) -> None:
    """The plan beside brute force, a greedy plan and all-or-nothing; and how long 200 units take."""
    widths = (18, 12, 12, 12, 12, 12, 10)
    row(("model", "budget", "plan", "brute force", "greedy", "all units", "equal"), widths)
    for name in names:
        case = case_of(name, 4)
        optimizer = paddle.optimizer.SGD(1e-4, parameters=case.model.parameters())
        profile = pm.profile_step(case.model, case.step(optimizer), case.units, optimizer)
        units = [unit.name for unit in profile.units]
        low, high = least_peak(profile).predicted_peak_bytes, pm.predict_peak(profile)
        for part in (0.0, 0.25, 0.5, 0.75):
            limit = int(low + part * (high - low))
            plan = pm.solve(profile, limit, margin=0.0)
            fits = [profile.sizes[0].seconds(c) for c in all_choices(profile) if pm.predict_peak(profile, c) <= limit]
            everything = profile.sizes[0].seconds(units) if pm.predict_peak(profile, units) <= limit else None
            found = greedy(profile, limit)
            row(
                (
                    name,
                    size_text(limit),
                    f"{plan.predicted_step_seconds:.4f} s",
                    f"{min(fits):.4f} s",
                    "-" if found is None else f"{found:.4f} s",
                    "-" if everything is None else f"{everything:.4f} s",
                    abs(min(fits) - plan.predicted_step_seconds) < 1e-9,
                ),
                widths,
            )
    for seed in range(3):
        profile = random_profile(seed, 200)
        low, high = least_peak(profile).predicted_peak_bytes, pm.predict_peak(profile)
        begun = time.perf_counter()
        plan = pm.solve(profile, (low + high) // 2, margin=0.0)
        print(f"200 units: {len(plan.recompute)} recomputed, solved in {time.perf_counter() - begun:.2f} s")


# ---- budgets


def session_of(case: Case) -> Any:
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=case.model.parameters())
    return pm.Session(
        {"gradient_accumulation": {"enable": True, "steps": 1}}, model=case.model, optimizer=optimizer, writers=[]
    )


def run_plan(session: Any, case: Case, plan: Any, steps: int = 2) -> tuple[int, float]:
    """Measured peak and median seconds of a step under a plan."""
    peaks, seconds = [], []
    session.loop.micro_batch_size = plan.micro_batch_size
    with pm.recompute_units(case.model, list(plan.recompute)):
        for _ in range(steps):
            begun = time.perf_counter()
            peaks.append(session.step(case.batch, case.loss).peak_bytes)
            seconds.append(time.perf_counter() - begun)
    return max(peaks), statistics.median(seconds)


def budgets(names: Sequence[str], count: int) -> None:
    """Random feasible budgets: is the measured peak of the planned step within them."""
    held = 0
    each = -(-count // len(names))
    for name in names:
        case = case_of(name, 8)
        session = session_of(case)
        profile = pm.profile(session, case.batch, case.loss, units=case.units)
        low, high = least_peak(profile).predicted_peak_bytes / 0.97, baseline(profile).predicted_peak_bytes * 1.1
        rng, closest = random.Random(name), 0.0
        begun, seconds = time.perf_counter(), 0.0
        for _ in range(each):
            budget = round(rng.uniform(low * 1.0001, high))
            peak, _ = run_plan(session, case, pm.solve(profile, budget))
            held += peak <= budget
            closest = max(closest, peak / budget)
        session.close()
        seconds = time.perf_counter() - begun
        print(
            f"{name:<18}{each} budgets from {size_text(round(low))} to {size_text(round(high))}: "
            f"largest peak/budget {closest:.4f} ({seconds:.0f} s)",
            flush=True,
        )
    print(f"measured peak within the budget: {held} of {each * len(names)}")


# ---- half of the baseline's peak


def half(names: Sequence[str], steps: int, rows: int) -> None:
    """At half of the baseline's peak: step time of the plan, of everything recomputed and of halving the batch."""
    widths = (12, 26, 12, 12, 12, 12, 10)
    row(("model", "plan", "micro-batch", "recomputed", "peak", "s a step", "ratio"), widths)
    for name in names:
        case = case_of(name, rows)
        session = session_of(case)
        profile = pm.profile(session, case.batch, case.loss, units=case.units)
        whole = baseline(profile)
        units = [unit.name for unit in profile.units]
        budget = whole.predicted_peak_bytes // 2
        try:
            plan = pm.solve(profile, budget, margin=0.0)
        except Infeasible as error:
            print(f"{name:<12}{error}")
            session.close()
            continue
        everything = plan_of(profile, units, profile.sizes[-1].micro_batch_size, budget, 0.0)
        plans = [
            ("baseline", whole),
            (f"plan, budget {size_text(budget)}", plan),
            ("everything recomputed", everything),
        ]
        halved = halving(profile, budget)
        if halved is not None:
            plans.append(("halving", halved))
        base_seconds = 0.0
        for label, other in plans:
            peak, seconds = run_plan(session, case, other, steps)
            base_seconds = base_seconds or seconds
            row(
                (
                    name,
                    label,
                    other.micro_batch_size,
                    len(other.recompute),
                    size_text(peak),
                    f"{seconds:.3f}",
                    f"{seconds / base_seconds:.2f}",
                ),
                widths,
            )
        session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("accuracy", "solver", "budgets", "half"))
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--sets", type=int, default=25)
    parser.add_argument("--budgets", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16)
    options = parser.parse_args()
    if options.part == "accuracy":
        accuracy(known(options.models or (*NLP, *VISION, *SHAPES)), options.sets)
    elif options.part == "solver":
        solver(known(options.models or ("ernie", "resnet18", "vit", "unet")))
    elif options.part == "budgets":
        budgets(known(options.models or (*NLP, "mobilenet_v2", "vit", "unet", "blocks")), options.budgets)
    else:
        half(known(options.models or ("ernie", "llama", "vit")), options.steps, options.rows)


if __name__ == "__main__":
    main()
