"""A plan made and kept in a run: ``memory: {budget: 14GiB}`` profiles, plans and applies before the first step.

``memory: {plan: plan.yml}`` reads a plan instead. After the first steps the prediction is held against what was
measured, and a plan that goes over its budget is made again, once, with the measured correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import Progress

from paddle_memcallbacks.alerts import announce, warn
from paddle_memcallbacks.batches import batch_rows
from paddle_memcallbacks.config import ConfigError, MemoryConfig, parse_size
from paddle_memcallbacks.microbatch import world_size
from paddle_memcallbacks.planner import (
    Infeasible,
    Plan,
    Profile,
    budget_bytes,
    comparison,
    draw_frontier,
    facts_of,
    frontier,
    load_plan,
    plan_mismatches,
    profile_batch,
    replan,
    save_plan,
    solve,
)
from paddle_memcallbacks.planner.plan import for_run, measured_text, size_text
from paddle_memcallbacks.planner.tradeoff import frontier_text, table_text

# steps after which a prediction is held against the measured peak: the first creates what later ones reuse
_JUDGED_AT = 3


class RunPlan:
    """The plan of one run.

    Args:
        config: the run's keys.
        folder: where a plan that is made is kept, and found again by the next run of the same script; None: nowhere.
    """

    def __init__(self, config: MemoryConfig, folder: Path | None) -> None:
        self._section = config.memory
        self._fixed_size = (
            config.gradient_accumulation.enable and config.gradient_accumulation.micro_batch_size != "auto"
        )
        self._fixed_units = config.recompute.enable and config.recompute.layers != "auto"
        self._file = folder / "plan.yml" if folder is not None else None
        self._profile: Profile | None = None
        self._peak_bytes = 0
        self._judged = False
        self.plan: Plan | None = None

    @staticmethod
    def wanted(config: MemoryConfig) -> bool:
        """Whether the keys ask for a plan: a plan file, or a budget with something left to choose."""
        accumulation, recompute = config.gradient_accumulation, config.recompute
        fixed = (recompute.enable and recompute.layers != "auto") or (
            accumulation.enable and accumulation.micro_batch_size != "auto" and recompute.enable
        )
        return config.memory.plan is not None or (config.memory.budget is not None and not fixed)

    def make(self, session: Any, batch: Any, forward_backward: Any, forward_only: Any) -> Plan:
        """Read the plan, take the kept one, or profile and solve; then apply it to the session.

        Raises:
            ConfigError: no plan fits the budget (with the smallest that works), or the plan file is wrong.
        """
        facts = facts_of(session.bare_model, batch)
        plan = self._read(facts)
        if plan is None:
            if world_size() > 1:
                raise ConfigError(
                    "memory.budget: planning runs in one process. Make the plan once with `paddle-mem plan`, then set "
                    "memory.plan to its file for all ranks."
                )
            budget = _budget(self._section.budget)
            announce(f"planning for a budget of {size_text(budget)}: a few steps are measured, then put back")
            self._profile = profile_batch(
                session,
                batch,
                forward_backward,
                forward_only,
                self._sizes(session, batch),
                on_progress=_told_progress(),
            )
            plan = for_run(_solved(self._profile, budget, self._section.margin), facts)
            self._keep(plan)
        announce(f"plan: {plan.text()}")
        self.plan = plan
        session.apply_plan(plan)
        return plan

    def after_step(self, session: Any, step: int, peak_bytes: int) -> None:
        """Hold the prediction against the measured peak, once; plan again where the budget is broken."""
        if self.plan is None or self._judged:
            return
        self._peak_bytes = max(self._peak_bytes, peak_bytes)
        if step < _JUDGED_AT:
            return
        self._judged = True
        budget = self.plan.budget_bytes
        over = budget is not None and self._peak_bytes > budget
        (warn if over else announce)(measured_text(self.plan, self._peak_bytes))
        if over and self._profile is not None and budget is not None:
            try:
                self.plan = replan(self._profile, self.plan, self._peak_bytes, budget, self._section.margin)
            except Infeasible as error:
                warn(f"plan: {error}; the run goes on with the present plan")
                return
            announce(f"planned again with the measured correction: {self.plan.text()}")
            self._keep(self.plan)
            session.apply_plan(self.plan)

    def _read(self, facts: Any) -> Plan | None:
        if self._section.plan is not None:
            plan = load_plan(self._section.plan)
            for difference in plan_mismatches(plan, facts):
                warn(f"plan {self._section.plan}: {difference}")
            return plan
        if self._file is None or not self._file.is_file():
            return None
        try:
            kept = load_plan(self._file)
        except ConfigError as error:
            warn(f"the kept plan {self._file} cannot be read and is made again: {error}")
            return None
        same = kept.budget_bytes == _budget(self._section.budget) and not plan_mismatches(kept, facts)
        if same:
            announce(f"the plan of an earlier run is used again: {self._file} (delete it to plan anew)")
        return kept if same else None

    def _sizes(self, session: Any, batch: Any) -> list[int] | None:
        """Sizes to profile: the configured one alone where the user has set it."""
        if not self._fixed_size:
            return None
        rows = batch_rows(batch)
        steps = session.config.gradient_accumulation.steps or 1
        return [min(session.loop.micro_batch_size or -(-rows // steps), rows)]

    def _keep(self, plan: Plan) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            save_plan(plan, self._file)
        except OSError as error:
            warn(f"the plan could not be kept in {self._file}: {error}")


def plan_and_stop(config: MemoryConfig, budget: str, output: Path, console: Console) -> Callable[..., None]:
    """For `RunDriver.first_batch`: profile, plan, write the file and the frontier, end the script."""

    def first_batch(session: Any, batch: Any, forward_backward: Any, forward_only: Any) -> NoReturn:
        limit = _budget("auto" if budget == "auto" else parse_size(budget))
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("profiling", total=None)

            def told(done: int, total: int, text: str) -> None:
                progress.update(task, completed=done, total=total, description=text)

            profile = profile_batch(session, batch, forward_backward, forward_only, on_progress=told)
        try:
            plan = solve(profile, limit, margin=config.memory.margin)
        except Infeasible as error:
            console.print(f"[bold red]no plan fits:[/] {error}", highlight=False, soft_wrap=True)
            session.close("plan")
            raise SystemExit(1) from None
        rows = comparison(profile, plan)
        save_plan(replace(for_run(plan, facts_of(session.bare_model, batch), rows), device=plan.device), output)
        plans = frontier(profile)
        console.print(table_text(rows), highlight=False)
        console.print(frontier_text(plans), highlight=False)
        picture = output.with_suffix(".png")
        draw_frontier(plans, rows, picture)
        console.print(f"\nwritten: {output} and {picture}. Train with memory: {{plan: {output}}}", highlight=False)
        session.close("plan")
        raise SystemExit(0)

    return first_batch


def _solved(profile: Profile, budget: int, margin: float) -> Plan:
    try:
        return solve(profile, budget, margin=margin)
    except Infeasible as error:
        raise ConfigError(f"memory.budget: {error}") from error


def _budget(budget: int | str | None) -> int:
    try:
        return budget_bytes("auto" if budget is None else budget)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _told_progress() -> Callable[[int, int, str], None]:
    """Progress as log lines, one a fifth of the way: a training's own screen is the toolkit's."""
    told: set[int] = set()

    def on_progress(done: int, total: int, text: str) -> None:
        fifth = 5 * done // max(total, 1)
        if fifth not in told:
            told.add(fifth)
            announce(f"planning: {done} of {total} steps ({text})")

    return on_progress
