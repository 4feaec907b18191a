"""Which versions get which shim, and what each shim does."""

from __future__ import annotations

import pytest

from .conftest import ROOT, load_file

shims = load_file(ROOT / "integrations" / "paddledet" / "shims.py")


@pytest.mark.parametrize(
    ("paddle", "ppdet", "names"),
    [
        ("3.3.1", "2.6.0", ["int64 labels", "concat of 0-D tensors"]),
        ("3.0.0-beta1", "2.6.0", ["int64 labels", "concat of 0-D tensors"]),
        ("0.0.0", "2.6.0", ["int64 labels", "concat of 0-D tensors"]),
        ("2.6.2", "2.6.0", ["concat of 0-D tensors"]),
        ("2.4.2", "2.6.0", []),
        ("3.3.1", "2.7.0", []),
        ("3.3.1", "0.0.0", []),
        ("3.3.1", "", []),
    ],
)
def test_versions(paddle: str, ppdet: str, names: list[str]) -> None:
    assert [shim.name for shim in shims.needed(paddle, ppdet)] == names
    assert len(shims.describe_shims(paddle, ppdet)) == len(names)


def test_concat_of_scalars_is_put_on_and_taken_off() -> None:
    import paddle

    scalars = [paddle.to_tensor(value) for value in (1, 2)]
    original = paddle.concat
    with pytest.raises(Exception, match="shape|rank|dim"):
        paddle.concat(scalars)
    remove = shims._concat_of_scalars()
    try:
        assert paddle.concat(scalars).tolist() == [1, 2]
        assert paddle.concat([paddle.ones([1, 2])] * 2, axis=1).shape == [1, 4], "all else is as ever"
    finally:
        remove()
    assert paddle.concat is original


def test_labels_become_int64_however_they_are_given() -> None:
    import paddle

    def forward(self: object, anchors: object, gt_labels: paddle.Tensor, bg_index: int = 0) -> str:
        return str(gt_labels.dtype)

    wrapped = shims._with_int64_labels(forward)
    labels = paddle.ones([2], "int32")
    assert wrapped(None, None, labels).endswith("int64")
    assert wrapped(None, None, gt_labels=labels, bg_index=3).endswith("int64")
