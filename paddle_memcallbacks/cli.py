"""The command line: ``paddle-mem run | plan | verify | report | doctor | schema | demo``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer
from rich.console import Console

from paddle_memcallbacks.config import ConfigError, MemoryConfig, json_schema, load_config

app = typer.Typer(
    name="paddle-mem",
    help="Make PaddlePaddle training fit in memory, and see where the memory goes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_console = Console()
_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

Config = Annotated[Optional[Path], typer.Option("--config", help="YAML or JSON file with our keys.")]  # noqa: UP045
Script = Annotated[Path, typer.Argument(help="The training script, followed by its own arguments.", exists=True)]


@app.command(context_settings=_THROUGH)
def run(context: typer.Context, script: Script, config: Config = None) -> None:
    """Run a toolkit's own training script unchanged, with the plugin on.

    [dim]paddle-mem run --config mem.yml train.py --output_dir out[/dim]

    [dim]python -m paddle.distributed.launch --nproc_per_node 2 $(which paddle-mem) run train.py[/dim]
    """
    _launch(_read(config), script, context.args)


@app.command(context_settings=_THROUGH)
def verify(context: typer.Context, script: Script, config: Config = None) -> None:
    """Run one step of your own model whole, in micro-batches and recomputed, and compare the gradients.

    Prints exact, approximate (by how much) or refused for each group of parameters, and stops the script there.

    [dim]paddle-mem verify train.py --output_dir /tmp/out[/dim]
    """
    from paddle_memcallbacks.verify import verify_and_stop

    _launch(_read(config), script, context.args, first_batch=verify_and_stop(_console))


@app.command(context_settings=_THROUGH)
def plan(
    context: typer.Context,
    script: Script,
    budget: Annotated[str, typer.Option(help="Peak that a step may reach, e.g. 8GiB; auto: the device's memory.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The plan file to write.")] = Path("plan.yml"),
    config: Config = None,
) -> None:
    """Profile your own training, and write the fastest plan that fits the budget.

    [dim]paddle-mem plan --budget 8GiB -o plan.yml train.py --output_dir out[/dim]
    """
    from paddle_memcallbacks.planning import plan_and_stop

    settings = _read(config)
    _launch(settings, script, context.args, first_batch=plan_and_stop(settings, budget, output, _console))


@app.command()
def report(
    logdir: Annotated[Path, typer.Argument(help="A run's folder, or one that holds several.", exists=True)],
    html: Annotated[Optional[Path], typer.Option(help="Also write a page with the curves.")] = None,  # noqa: UP045
) -> None:
    """A table of the runs below a folder: peak, held, step time, saved, skipped.

    [dim]paddle-mem report output --html report.html[/dim]
    """
    from paddle_memcallbacks.report import page, record

    runs = record.read_runs(logdir)
    if not runs:
        _fail(f"{logdir} holds no run: there is no memcallbacks.jsonl below it.")
    _console.print(page.table(runs))
    if html is not None:
        try:
            page.write_html(runs, html)
        except OSError as error:
            _fail(f"{html} cannot be written: {error.strerror}")
        _console.print(f"written: {html}")


@app.command()
def doctor() -> None:
    """Versions, device, AMP support, and known breakages with their pins."""
    from paddle_memcallbacks.doctor import examine

    healthy = examine(_console)
    raise typer.Exit(0 if healthy else 1)


@app.command()
def schema() -> None:
    """The JSON Schema of the keys, for editors.

    [dim]paddle-mem schema > memcallbacks.schema.json[/dim]
    """
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command()
def demo(
    steps: Annotated[int, typer.Option(help="Optimizer steps of each run.", min=2)] = 30,
    output: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("demo_output"),
) -> None:
    """Train ERNIE on real reviews four times: baseline, accumulation, recompute, both; print the memory table."""
    script = Path(__file__).resolve().parent.parent / "examples" / "ernie_reviews" / "demo.py"
    if not script.is_file():
        _fail("the examples are in the repository, not in the installed package: clone it and run `make demo`.")
    raise typer.Exit(subprocess.call([sys.executable, str(script), f"--steps={steps}", f"--output={output}"]))


def _read(config: Path | None) -> MemoryConfig:
    try:
        return load_config(config if config is not None else {})
    except ConfigError as error:
        _fail(str(error))


def _launch(config: MemoryConfig, script: Path, arguments: list[str], first_batch: object = None) -> None:
    from paddle_memcallbacks import launch

    if first_batch is not None:
        from paddle_memcallbacks.driver import RunDriver

        RunDriver.first_batch = staticmethod(first_batch)  # type: ignore[assignment,arg-type]
    for plugin in launch.plugins():
        launch.activate_on_import(plugin, config)
    try:
        launch.run_script(script, arguments)
    except ConfigError as error:
        _fail(str(error))
    except RuntimeError as error:
        if type(error).__module__.startswith("paddle_memcallbacks."):
            _fail(str(error))
        raise
    _tell_if_unused(first_batch is not None)


def _tell_if_unused(must_begin: bool) -> None:
    """A script that starts no training of ours has not used the keys: never in silence."""
    module = sys.modules.get("paddle_memcallbacks.driver")
    if module is not None and module.RunDriver.begun and not must_begin:
        return
    message = (
        "the script has ended, and no Trainer of PaddleNLP or PaddleDetection and no Session ran a training step in "
        "it: the keys did nothing. A plain loop uses paddle_memcallbacks.Session itself."
    )
    if must_begin:
        _fail(message)
    Console(stderr=True).print(f"[bold yellow]warning:[/] {message}", highlight=False, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"[bold red]error:[/] {message}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def main() -> None:
    """Entry point of ``paddle-mem``."""
    app()
