"""The keys, section by section: the same words in every toolkit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from paddle_memcallbacks.config import kinds
from paddle_memcallbacks.config.contradictions import accumulation_contradictions
from paddle_memcallbacks.config.errors import Complaint
from paddle_memcallbacks.config.section import SECTION_TYPES, Section

Flag = Annotated[bool, kinds.flag()]
MaybeFlag = Annotated[bool | None, kinds.or_null(kinds.flag())]
Count = Annotated[int, kinds.whole()]
MaybeCount = Annotated[int | None, kinds.or_null(kinds.whole())]
Names = Annotated[tuple[str, ...], kinds.names("op names")]
MaybePath = Annotated[str | None, kinds.or_null(kinds.path())]
Reaction = Annotated[
    Literal["warn", "checkpoint", "stop", "raise"], kinds.choice("warn", "checkpoint", "stop", "raise")
]

# the inverse of a larger one is a subnormal fp32 number, flushed to zero: every update becomes zero, none is skipped
LARGEST_LOSS_SCALE = 2.0**126


class AmpConfig(Section):
    """Mixed precision: auto_cast and GradScaler, in Paddle's own words. Off unless the section is written."""

    NAME = "amp"
    MAIN_KEYS = ("level", "dtype")
    ON_WHEN_ABSENT = False

    level: Annotated[Literal["O1", "O2"], kinds.choice("O1", "O2")] = Field(
        "O1", description="O1 casts op by op and keeps fp32 weights; O2 casts the model."
    )
    dtype: Annotated[Literal["float16", "bfloat16"], kinds.choice("float16", "bfloat16")] = Field(
        "float16", description="The lower precision; bfloat16 needs no loss scale."
    )
    master_weight: MaybeFlag = Field(
        None, description="Keep fp32 copies of the weights under O2; null leaves it to Paddle.", examples=[True]
    )
    master_grad: MaybeFlag = Field(
        None,
        description="Keep and accumulate gradients in fp32 under O2; null: when a step has several micro-batches.",
        examples=[True],
    )
    init_loss_scaling: Annotated[float, kinds.real(above=0, most=LARGEST_LOSS_SCALE)] = Field(
        65536.0, description="The loss scale at the start."
    )
    incr_ratio: Annotated[float, kinds.real(above=1, most=65536)] = Field(
        2.0, description="The loss scale is multiplied by it when it grows."
    )
    decr_ratio: Annotated[float, kinds.real(above=0, below=1)] = Field(
        0.5, description="The loss scale is multiplied by it after non-finite gradients."
    )
    incr_every_n_steps: Count = Field(2000, description="Good steps in a row before the loss scale grows.")
    decr_every_n_nan_or_inf: Count = Field(1, description="Skipped steps in a row before the loss scale falls.")
    use_dynamic_loss_scaling: Flag = Field(True, description="false keeps the loss scale at init_loss_scaling.")
    custom_white_list: Names = Field(
        (), description="Ops that run in the lower precision besides Paddle's own list.", examples=[["matmul"]]
    )
    custom_black_list: Names = Field(
        (), description="Ops that stay in fp32 besides Paddle's own list.", examples=[["softmax"]]
    )


class AccumulationConfig(Section):
    """Micro-batches inside the step. Off unless the section is written; needs steps or micro_batch_size."""

    NAME = "gradient_accumulation"
    MAIN_KEYS = ("steps", "micro_batch_size")
    ON_WHEN_ABSENT = False

    steps: MaybeCount = Field(
        None,
        description="Micro-batches in a step: a toolkit's reader gives batches this many times as large; a plain "
        "loop's batch is cut into this many.",
        examples=[4],
    )
    micro_batch_size: Annotated[int | Literal["auto"] | None, kinds.or_null(kinds.or_word("auto", kinds.whole()))] = (
        Field(
            None,
            description="Rows of a micro-batch; the loader's batch stays. auto: the planner chooses.",
            examples=[8],
        )
    )
    slice_by: Annotated[Literal["length", "order"], kinds.choice("length", "order")] = Field(
        "length",
        description="length: rows of like length go together, trimmed where that is exact; order: as they come.",
    )
    weight: Annotated[
        Literal["found", "samples", "tokens", "positions", "boxes"],
        kinds.choice("found", "samples", "tokens", "positions", "boxes"),
    ] = Field("found", description="What the loss divides by; found: a probe on the first batch finds it.")

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> list[Complaint]:
        return accumulation_contradictions(values)


class RecomputeConfig(Section):
    """Recompute (activation checkpointing). Off unless the section is written."""

    NAME = "recompute"
    MAIN_KEYS = ("layers",)
    ON_WHEN_ABSENT = False

    layers: Annotated[
        tuple[str, ...] | Literal["auto"],
        kinds.names_or_auto("layer names, patterns or class names"),
    ] = Field(
        "auto",
        description="Units to recompute; * matches within a dotted part, ** across. auto: the planner's choice under a "
        "budget or plan, else every repeated block.",
        examples=[["encoder.layers.*"]],
    )
    every_n: Count = Field(1, description="Recompute one unit in this many.")
    first: MaybeCount = Field(None, description="Recompute only this many units from the front.", examples=[6])
    last: MaybeCount = Field(None, description="Recompute only this many units from the back.", examples=[6])
    verify: Flag = Field(False, description="Compare one step's gradients with and without recompute, unit by unit.")


class MemorySection(Section):
    """What is measured, and the budget. On unless it is turned off."""

    NAME = "memory"
    MAIN_KEYS = ("budget",)

    budget: Annotated[int | Literal["auto"] | None, kinds.or_null(kinds.or_word("auto", kinds.size()))] = Field(
        None,
        description="Peak allocated bytes that a step may reach, e.g. 14GiB. auto: the device's memory.",
        examples=["14GiB"],
    )
    margin: Annotated[float, kinds.real(least=0, below=1, percent=True)] = Field(
        0.03, description="Part of the budget that a plan leaves free."
    )
    plan: MaybePath = Field(None, description="A plan file, as `paddle-mem plan -o` writes it.", examples=["plan.yml"])
    interval: Count = Field(10, description="Steps between two readings of the counters.")
    per_layer: Flag = Field(True, description="Tell once what each repeated block holds after its forward.")
    on_oom: Annotated[Literal["replay", "raise"], kinds.choice("replay", "raise")] = Field(
        "replay", description="replay: halve the micro-batch and repeat the batch; raise: stop with the report."
    )


class LossScaleConfig(Section):
    """The watch on the loss scale. On unless it is turned off."""

    NAME = "loss_scale"

    min_loss_scale: Annotated[float, kinds.real(above=0, most=LARGEST_LOSS_SCALE)] = Field(
        1.0, description="The floor of the loss scale; see on_floor."
    )
    max_consecutive_skips: Count = Field(5, description="Skipped steps in a row that count as a storm.")
    max_skip_rate: Annotated[float, kinds.real(above=0, most=1, percent=True)] = Field(
        0.1, description="Share of skipped steps above which it counts as a storm."
    )
    on_storm: Reaction = Field("checkpoint", description="What follows when steps are skipped in a storm.")
    on_floor: Reaction = Field(
        "warn", description="What follows when a step is skipped although the loss scale is at its floor."
    )
    every_skip: Flag = Field(False, description="Report every skipped step, not only storms.")
    sample_interval: Count = Field(
        100, description="Steps between two counts of gradient elements that became zero (underflow)."
    )


class VisualDLConfig(Section):
    """Curves in VisualDL. On unless it is turned off."""

    NAME = "visualdl"
    MAIN_KEYS = ("logdir",)

    logdir: MaybePath = Field(
        None, description="Where the runs are written; null: the toolkit's own log directory.", examples=["runs"]
    )
    interval: Count = Field(10, description="Steps between two points of a curve.")


SECTIONS: tuple[str, ...] = tuple(SECTION_TYPES)
