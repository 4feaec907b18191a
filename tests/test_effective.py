"""The start line says what is truly active."""

from paddle_memcallbacks.effective import Effective


def test_every_part_is_told():
    line = Effective(
        rows=30,
        micro_batch_size=8,
        ranks=2,
        steps_per_epoch=7,
        amp="O1 float16",
        units=3,
        units_found=4,
        budget_bytes=2**33,
    ).line()
    assert line == (
        "active: micro-batch 8 x accumulation 4 x ranks 2 = batch 60, 7 steps an epoch, AMP O1 float16, "
        "recompute 3 of 4 units, budget 8.00 GiB"
    )


def test_what_is_off_is_said_to_be_off():
    line = Effective(rows=8, amp_note="no Tensor Cores").line()
    assert "micro-batch 8 x accumulation 1 x ranks 1 = batch 8" in line
    assert "AMP off (no Tensor Cores)" in line
    assert "recompute off, no budget" in line
