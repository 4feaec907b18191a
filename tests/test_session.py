"""A plain loop on a Session: the same training, whatever the keys."""

import json

import numpy as np
import paddle
import pytest

import paddle_memcallbacks as pm
from paddle_memcallbacks.moments import create_moments
from paddle_memcallbacks.writers import WriterGroup


def build():
    paddle.seed(3)
    blocks = [
        paddle.nn.Sequential(
            paddle.nn.Linear(16, 64), paddle.nn.GELU(), paddle.nn.Dropout(0.1), paddle.nn.Linear(64, 16)
        )
        for _ in range(3)
    ]
    return paddle.nn.Sequential(*blocks, paddle.nn.Linear(16, 1))


def batches(count, rows=12):
    rng = np.random.RandomState(0)
    return [
        {
            "x": paddle.to_tensor(rng.randn(rows, 16).astype("float32")),
            "y": paddle.to_tensor(rng.randn(rows, 1).astype("float32")),
        }
        for _ in range(count)
    ]


def squared(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def train(keys, tmp_path=None, steps=4, rows=12, drop=True, **arguments):
    model = build()
    if not drop:
        for layer in model.sublayers():
            if isinstance(layer, paddle.nn.Dropout):
                layer.p = 0.0
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    paddle.seed(11)
    with pm.Session(keys, model=model, optimizer=optimizer, logdir=tmp_path, **arguments) as session:
        results = [session.step(batch, squared) for batch in batches(steps, rows)]
    return model, results, session


def plain(steps=4, rows=12, drop=True):
    model = build()
    if not drop:
        for layer in model.sublayers():
            if isinstance(layer, paddle.nn.Dropout):
                layer.p = 0.0
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    paddle.seed(11)
    losses = []
    for batch in batches(steps, rows):
        loss = squared(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return model, losses


def same_bits(one, other):
    return all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_no_keys_change_no_bit():
    ours, results, _ = train({})
    theirs, losses = plain()
    assert [float(result) for result in results] == losses
    assert same_bits(ours, theirs)


def test_recompute_changes_no_bit_with_dropout_on():
    ours, results, session = train({"recompute": {"layers": ["0", "1", "2"]}})
    theirs, losses = plain()
    assert [float(result) for result in results] == losses
    assert same_bits(ours, theirs)
    assert session.switch is not None
    assert not session.switch.active


@pytest.mark.parametrize("size", [1, 5, 12, 40])
def test_micro_batches_are_the_whole_batch(size):
    ours, results, _ = train({"gradient_accumulation": {"micro_batch_size": size}}, drop=False)
    theirs, losses = plain(drop=False)
    assert [float(result) for result in results] == pytest.approx(losses, rel=1e-5)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-3, atol=2e-5)
    assert results[0].micro_batches == -(-12 // min(size, 12))


def test_recompute_is_measured_once_and_its_saving_told(tmp_path, caplog):
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        _, _, session = train({"recompute": {"layers": ["0", "1", "2"], "verify": True}}, tmp_path, rows=64)
    assert caplog.text.count("recompute: held after forward") == 1
    assert caplog.text.count("3 units, gradients and buffers equal bit for bit") == 1
    assert session.metrics()["recompute/units"] == 3


def test_the_start_line_and_the_record(tmp_path, caplog):
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        train({"gradient_accumulation": {"steps": 4}, "memory": {"budget": "1GiB"}}, tmp_path, name="run")
    assert "micro-batch 3 x accumulation 4 x ranks 1 = batch 12" in caplog.text
    assert "budget 1.00 GiB" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "run" / "memcallbacks.jsonl").read_text().splitlines()]
    assert lines[0]["run"]["config"]["memory"]["budget"] == 2**30
    assert [line["step"] for line in lines if "metrics" in line] == [1, 2, 3, 4]
    assert lines[-1]["end"]["reason"] == "finished"
    metrics = lines[-2]["metrics"]
    assert metrics["memory/peak_forward_gib"] >= metrics["memory/base_gib"] > 0
    assert metrics["accumulation/micro_batches"] == 4


def test_peaks_repeat_byte_for_byte():
    keys = {"recompute": {"layers": ["0", "1", "2"]}, "gradient_accumulation": {"micro_batch_size": 4}}
    above = []
    for _ in range(2):
        _, results, session = train(keys, rows=64)
        base = round(session.metrics()["memory/base_gib"] * 2**30)
        above.append([result.peak_bytes - base for result in results[2:]])
        del session
    assert above[0] == above[1]
    assert min(above[0]) > 0


def test_an_oom_is_replayed_with_half_the_micro_batch(caplog):
    def hungry(model, batch):
        if len(batch["x"]) > 6:
            paddle.zeros([1 << 44])
        return squared(model, batch)

    model = build()
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    paddle.seed(11)
    with pm.Session({}, model=model, optimizer=optimizer) as session:
        results = [session.step(batch, hungry) for batch in batches(4)]
    halves, expected, _ = train({"gradient_accumulation": {"micro_batch_size": 6}})
    assert [result.micro_batches for result in results] == [2, 2, 2, 2]
    assert [float(result) for result in results] == [float(result) for result in expected]
    assert same_bits(model, halves)
    assert caplog.text.count("the batch is replayed") == 1


def test_moments_stand_before_the_first_step():
    model = build()
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    session = pm.Session({}, model=model, optimizer=optimizer)
    session.begin()
    moments = {name for name in optimizer.state_dict() if "moment" in name}
    assert len(moments) == 2 * len(model.parameters())
    session.close()


@pytest.mark.parametrize("groups", [True, False])
def test_moments_made_early_change_no_bit(groups):
    def run(early):
        model = build()
        members = [{"params": layer.parameters()} for layer in model] if groups else model.parameters()
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=members)
        if early:
            assert create_moments(optimizer)
        paddle.seed(11)
        for batch in batches(3):
            squared(model, batch).backward()
            optimizer.step()
            optimizer.clear_grad()
        return model

    assert same_bits(run(True), run(False))


def test_resume_goes_on_bit_equal(tmp_path):
    keys = {"gradient_accumulation": {"micro_batch_size": 5}}
    whole, _, _ = train(keys, steps=4)
    model, optimizer, data = build(), None, batches(4)
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters())
    paddle.seed(11)
    session = pm.Session(keys, model=model, optimizer=optimizer)
    for batch in data[:2]:
        session.step(batch, squared)
    state, rng = session.state_dict(), paddle.get_rng_state()
    session.close()
    resumed = pm.Session(keys, model=model, optimizer=optimizer)
    paddle.set_rng_state(rng)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    resumed.begin(step=2)
    for batch in data[2:]:
        resumed.step(batch, squared)
    assert resumed.step_index == 4
    assert same_bits(model, whole)


def test_a_failing_writer_is_left_out_and_training_goes_on(caplog):
    class Broken:
        def write(self, step, metrics):
            raise OSError(28, "No space left on device")

        def write_text(self, step, tag, text): ...

        def close(self): ...

    _, results, _ = train({}, writers=[Broken()])
    assert len(results) == 4
    assert caplog.text.count("Broken failed and is left out") == 1


def test_wrong_keys_fail_at_once():
    model = build()
    with pytest.raises(pm.ConfigError, match="recompute.layers"):
        pm.Session({"recompute": {"layerz": ["0"]}}, model=model)
    with pytest.raises(pm.RecomputeError):
        pm.Session({"recompute": {"layers": ["encoder.*"]}}, model=model)


def test_step_without_an_optimizer_says_so():
    with pytest.raises(ValueError, match="needs an optimizer"):
        pm.Session({}, model=build()).step(batches(1)[0], squared)


def test_groups_keep_the_writers_that_work():
    seen = []

    class Works:
        def write(self, step, metrics):
            seen.append(step)

        def write_text(self, step, tag, text): ...

        def close(self): ...

    class Fails(Works):
        def write(self, step, metrics):
            raise RuntimeError("no")

    group = WriterGroup([Fails(), Works()])
    group.write(1, {})
    group.write(2, {})
    assert seen == [1, 2]


def test_an_interrupted_batch_leaves_no_gradient_to_the_next():
    def breaks(model, batch):
        breaks.calls += 1
        if breaks.calls == 3:
            raise KeyboardInterrupt
        return squared(model, batch)

    model, data = build(), batches(3)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    session = pm.Session({"gradient_accumulation": {"micro_batch_size": 3}}, model=model, optimizer=optimizer)
    session.step(data[0], squared)
    breaks.calls = 0
    with pytest.raises(KeyboardInterrupt):
        session.step(data[1], breaks)
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())
    session.close()


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("seed", range(6))
def test_rare_positives_do_not_hide_what_a_loss_divides_by(dtype, seed):
    """Most rows count for nothing: alone each loses 0, and 0 against 0 says nothing of the weight."""

    def over_positives(model, batch):
        mask = batch["y"].astype("float32")
        return ((model(batch["x"]) - 3) ** 2 * mask).sum() / paddle.clip(mask.sum(), min=1.0)

    def run(keys):
        model = build()
        model.eval()
        optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
        rng = np.random.RandomState(seed)
        with pm.Session(keys, model=model, optimizer=optimizer) as session:
            losses = []
            for _ in range(5):
                y = (rng.rand(32, 1) < 0.15).astype(dtype)
                batch = {"x": paddle.to_tensor(rng.randn(32, 16).astype("float32")), "y": paddle.to_tensor(y)}
                losses.append(float(session.step(batch, over_positives)))
            return losses

    whole = run({})
    try:
        ours = run({"gradient_accumulation": {"micro_batch_size": 8}})
    except pm.MicroBatchError:
        # a float mask is no label that could be counted: refused is right, silently wrong is not
        assert dtype == "float32"
        return
    assert ours == pytest.approx(whole, rel=1e-5)


def test_warnings_reach_the_record_once(tmp_path):
    from paddle_memcallbacks.alerts import logger, warn

    model = build()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    before = list(logger.handlers)
    with pm.Session({}, model=model, optimizer=optimizer, logdir=tmp_path) as session:
        session.step(batches(1)[0], squared)
        warn("something to know")
    warn("after the run")
    lines = [json.loads(line) for line in (tmp_path / "memcallbacks.jsonl").read_text().splitlines()]
    assert [line["text"]["text"] for line in lines if "text" in line] == ["something to know"]
    assert [
        handler for handler in logger.handlers if handler not in before and "Record" in type(handler).__name__
    ] == []


def test_a_closed_session_says_so():
    model = build()
    session = pm.Session({}, model=model, optimizer=paddle.optimizer.SGD(0.1, parameters=model.parameters()))
    with session:
        session.step(batches(1)[0], squared)
    with pytest.raises(RuntimeError, match="this run is closed"):
        session.step(batches(1)[0], squared)
