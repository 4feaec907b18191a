"""What `layers: auto` means for a detector, on plain descriptions of layers."""

from __future__ import annotations

from paddle_memcallbacks.recompute.names import LayerInfo

from .conftest import ROOT, load_file

stages = load_file(ROOT / "integrations" / "paddledet" / "stages.py")


def layers(*lines: str) -> list[LayerInfo]:
    """``name`` is a layer with a forward, ``name=2`` holds two matrices; ``[a]`` a Sequential, ``(a)`` a LayerList."""
    found = [LayerInfo(name="", class_name="Detector", key=0)]
    for key, line in enumerate(lines, 1):
        name, _, matrices = line.strip("[]()").partition("=")
        listing = line[0] in "[("
        found.append(
            LayerInfo(
                name=name,
                class_name="X",
                key=key,
                called=line[0] != "(",
                listing=listing,
                matrices=int(matrices or 0),
            )
        )
    return found


def test_stages_of_backbone_neck_and_head() -> None:
    model = layers(
        "backbone",
        "[backbone.stem]",
        "backbone.stem.conv1=1",
        "backbone.stem.conv2=1",
        "[backbone.stages]",
        "backbone.stages.0=3",
        "backbone.stages.1=3",
        "backbone.norm=1",
        "neck",
        "(neck.fpn)",
        "neck.fpn.0=2",
        "neck.fpn.1=1",
        "head",
        "head.pred=1",
    )
    assert stages.stage_names(model) == ["backbone.stem", "backbone.stages.0", "backbone.stages.1", "neck.fpn.0"]


def test_names_may_hold_dots_of_their_own() -> None:
    model = layers("head", "head.feat", "head.feat.conv0.0=1", "head.feat.conv0.1=1")
    assert stages.stage_names(model) == ["head.feat"]


def test_a_model_without_stages_has_none() -> None:
    assert stages.stage_names(layers("backbone", "backbone.conv=1")) == []
