"""The storm's alert names the layer and the parameter where a fault was planted; without one nothing is named."""

from __future__ import annotations

import paddle
import pytest

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import LossScaleWatch
from tests.loss_scale.plants import Plant, plantable, planted, random_plants


class Encoder(paddle.nn.Layer):
    """Two small transformer blocks between an embedding of features and a classifier."""

    def __init__(self):
        super().__init__()
        self.features = paddle.nn.Linear(4, 8)
        block = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)
        self.encoder = paddle.nn.TransformerEncoder(block, 2)
        self.act = paddle.nn.GELU()
        self.head = paddle.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.act(self.encoder(self.features(x)).mean(axis=1)))


def _config(**keys):
    return load_config({"loss_scale": keys}).loss_scale


def _loss(model):
    return paddle.nn.functional.cross_entropy(model(paddle.randn([2, 3, 4])), paddle.to_tensor([0, 1]))


def _train(model, scaler, steps, *, clip=True, **keys):
    """A plain loop of ``steps`` steps; every alert, and the watch."""
    clipping = paddle.nn.ClipGradByGlobalNorm(1.0) if clip else None
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), grad_clip=clipping)
    alerts = []
    watch = LossScaleWatch(scaler, optimizer, model, _config(**keys), on_alert=alerts.append)
    watch.attach(auto=True)
    for _ in range(steps):
        scaler.scale(_loss(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    watch.detach()
    return alerts, watch


def _hooks(model):
    return sum(len(layer._forward_pre_hooks) + len(layer._forward_post_hooks) for layer in model.sublayers(True))


def test_fifty_of_fifty_plants_are_named_and_nothing_without_one(real_scaler):
    paddle.seed(7)
    model = Encoder()
    plants = random_plants(plantable(model, lambda: _loss(model)), 50, seed=3)
    assert {plant.how for plant in plants} == {"forward", "backward"} and len({p.layer for p in plants}) > 15
    missed = []
    for plant in plants:
        with planted(model, plant):
            alerts, watch = _train(model, real_scaler(), 5)
        storms = [alert for alert in alerts if alert.kind == "loss_scale_storm"]
        layer = dict(model.named_sublayers())[plant.layer]
        own = [f"{plant.layer}.{name}" for name, _ in layer.named_parameters()]
        named = (
            len(storms) == 1
            and storms[0].step == 5
            and storms[0].data["layer"] == plant.layer
            and storms[0].data["cause"] == plant.how
            and f"`{plant.layer}`" in storms[0].text()
            and (not own or any(name in storms[0].text() for name in own))
        )
        if not named or plant.layer not in watch.summary()["layers"]:
            missed.append((plant, [alert.text() for alert in alerts]))
        assert _hooks(model) == 0
    assert not missed, f"{len(missed)} of 50 missed, the first: {missed[0]}"
    alerts, watch = _train(model, real_scaler(), 8)
    assert alerts == [] and watch.summary()["layers"] == {}


def test_the_names_survive_clipping_by_a_nan_norm(real_scaler):
    # the optimizer's clip makes every gradient NaN before anyone can look
    plant = Plant("encoder.layers.0.linear1", "backward", float("nan"))
    for clip in (True, False):
        model = Encoder()
        with planted(model, plant):
            alerts, _ = _train(model, real_scaler(), 5, clip=clip)
        names = alerts[-1].data["parameters"]
        assert alerts[-1].kind == "loss_scale_storm" and len(names) < len(model.parameters())
        assert "head.weight" not in names and "encoder.layers.0.linear1.weight" in names


def test_a_unit_whose_own_backward_overflows_is_named(real_scaler):
    class Overflow(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("inf")

    class Faulty(paddle.nn.Linear):
        def forward(self, x):
            return Overflow.apply(super().forward(x))

    model = Encoder()
    model.head = Faulty(8, 3)
    alerts, _ = _train(model, real_scaler(), 5)
    assert alerts[-1].data["layer"] == "head" and alerts[-1].data["cause"] == "parameter"
    assert "head.weight" in alerts[-1].message

    model = Encoder()
    model.act.forward = lambda x: Overflow.apply(paddle.nn.functional.gelu(x))
    alerts, _ = _train(model, real_scaler(), 5)
    # a layer without parameters: the gradient of what goes into it is the first that is bad, both ends are in the text
    assert "`encoder.layers.1.norm2`" in alerts[-1].message and "leads to `act` (GELU)" in alerts[-1].message


def test_nan_in_the_data_is_told_as_data(real_scaler):
    model = Encoder()
    for value in (float("nan"), float("inf")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paddle, "randn", lambda shape, value=value: paddle.full(shape, value))
            alerts, _ = _train(model, real_scaler(), 5)
        assert alerts[-1].data["cause"] == "data"
        assert "the model's own input is not finite" in alerts[-1].message and "look at the batch" in alerts[-1].remedy


def test_nan_in_the_loss_names_what_is_nearest_to_it(real_scaler):
    model = Encoder()
    scaler = real_scaler()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    watch = LossScaleWatch(scaler, optimizer, model, _config())
    watch.attach()
    for _ in range(5):
        scaler.scale(_loss(model) * float("nan")).backward()
        scaler.step(optimizer)
        scaler.update()
        verdict = watch.after_step()
    (storm,) = [alert for alert in verdict.alerts if alert.kind == "loss_scale_storm"]
    assert storm.data["layer"] in ("", "head") and "forward was finite" in storm.message


def test_a_function_between_layers_is_named_by_the_layer_that_holds_it(real_scaler):
    class Between(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.last = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.first(x) / 0.0)

    class Model(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.part = Between()

        def forward(self, x):
            return self.part(x).mean(axis=1)

    alerts, _ = _train(Model(), real_scaler(), 5)
    assert alerts[-1].data["cause"] == "function" and alerts[-1].data["layer"] == "part"
    assert "made by a function in `part`" in alerts[-1].message and "`part.last`" in alerts[-1].message


def test_a_mask_of_minus_inf_is_no_fault(real_scaler):
    class Masked(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.attention = paddle.nn.MultiHeadAttention(4, 2)
            self.head = paddle.nn.Linear(4, 2)

        def forward(self, x):
            mask = paddle.to_tensor([[0.0, float("-inf"), 0.0]] * 3)
            return self.head(self.attention(x, attn_mask=mask)).mean(axis=1)

    model = Masked()
    with planted(model, Plant("attention.q_proj", "forward", float("inf"))):
        alerts, _ = _train(model, real_scaler(), 5)
    # the mask is an input of `attention`, and not what was wrong with it
    assert alerts[-1].data["layer"] == "attention.q_proj" and alerts[-1].data["cause"] == "forward"


def test_every_skip_is_named_by_its_key_and_hooks_live_for_one_step(real_scaler):
    model = Encoder()
    scaler = real_scaler()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    told = []
    watch = LossScaleWatch(scaler, optimizer, model, _config(every_skip=True), on_alert=told.append)
    watch.attach(auto=True)
    seen = []
    with planted(model, Plant("head", "forward", float("inf")), when=lambda: step in (25, 28, 29)):
        for step in range(1, 31):  # noqa: B007
            scaler.scale(_loss(model)).backward()
            seen.append(_hooks(model) - 1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
    hooked = [step for step, hooks in enumerate(seen, 1) if hooks]
    assert hooked == [26, 29, 30]
    named = [(alert.step, alert.kind) for alert in told if alert.kind.startswith("nonfinite")]
    assert named == [(25, "nonfinite_parameters"), (28, "nonfinite_parameters"), (29, "nonfinite_layer")]
    assert "head.weight" in told[-1].message and "`head`" in told[-1].message


def test_without_the_key_a_single_skip_names_nothing_and_hooks_nothing(real_scaler):
    model = Encoder()
    scaler = real_scaler()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    watch = LossScaleWatch(scaler, optimizer, model, _config())
    watch.attach()
    with planted(model, Plant("head", "forward", float("inf")), when=lambda: step == 25):
        for step in range(30):
            scaler.scale(_loss(model)).backward()
            assert _hooks(model) == 1
            scaler.step(optimizer)
            scaler.update()
            verdict = watch.after_step()
            assert verdict.skipped == (step == 25)
            assert [alert.kind for alert in verdict.alerts] == (["loss_scale_skip"] if step == 25 else [])


def test_a_storm_by_rate_is_followed_by_one_traced_step(real_scaler):
    model = Encoder()
    scaler = real_scaler()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    told, hooked = [], []
    watch = LossScaleWatch(scaler, optimizer, model, _config(), on_alert=told.append)
    watch.attach(auto=True)
    bad = [step % 2 == 0 for step in range(1, 21)] + [True, False, True]
    with planted(model, Plant("head", "forward", float("inf")), when=lambda: bad[step - 1]):
        for step in range(1, len(bad) + 1):
            scaler.scale(_loss(model)).backward()
            hooked += [step] if _hooks(model) > 1 else []
            scaler.step(optimizer)
            scaler.update()
    assert hooked == [21]
    storm, layer = (alert for alert in told if alert.severity == "warning")
    assert (storm.step, storm.kind, storm.data["cause"]) == (20, "loss_scale_storm", None)
    assert "nearest the loss among them: `head`" in storm.message
    assert (layer.step, layer.kind, layer.data["layer"]) == (21, "nonfinite_layer", "head")
    assert layer.remedy == "amp.custom_black_list: [linear_v2, matmul_v2] keeps that op in fp32"


def test_layers_near_overflow_in_float16_are_named(real_scaler):
    class Half(paddle.nn.Layer):
        def forward(self, x):
            return (x * 0 + 40000.0).astype("float16").astype("float32") * 0 + x

    class Large(paddle.nn.Layer):
        def forward(self, x):
            return (x * 0 + 40000.0).astype("float16")

    class Model(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.large, self.calm, self.head = Large(), Half(), paddle.nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.calm(x) + self.large(x).astype("float32") * 0).mean(axis=1)

    model = Model()
    with planted(model, Plant("head", "forward", float("inf"))):
        alerts, _ = _train(model, real_scaler(), 5)
    assert alerts[-1].data["near_overflow"] == {"large": 40000.0}
    assert "near overflow in float16: `large` (40000)" in alerts[-1].message
    assert "keep the overflowing op in fp32 (amp.custom_black_list: [linear_v2, matmul_v2])" in alerts[-1].remedy


def test_evaluation_between_steps_is_not_part_of_the_trace(real_scaler):
    model = Encoder()
    scaler = real_scaler()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    watch = LossScaleWatch(scaler, optimizer, model, _config())
    watch.attach()
    in_eval = Plant("features", "forward", float("nan"))
    with (
        planted(model, Plant("head", "forward", float("inf"))),
        planted(model, in_eval, when=lambda: not model.training),
    ):
        for _ in range(5):
            model.eval()
            with paddle.no_grad():
                model(paddle.randn([2, 3, 4]))
            model.train()
            scaler.scale(_loss(model)).backward()
            scaler.step(optimizer)
            scaler.update()
            verdict = watch.after_step()
    assert verdict.alerts[-1].data["layer"] == "head"


def test_a_failing_hook_ends_the_search_not_the_training(real_scaler, monkeypatch, caplog):
    from paddle_memcallbacks.loss_scale import trace

    def fail(_value):
        raise MemoryError("planted")

    monkeypatch.setattr(trace, "_tensors", fail)
    model = Encoder()
    with planted(model, Plant("head", "forward", float("inf"))):
        alerts, _ = _train(model, real_scaler(), 6)
    assert [alert.kind for alert in alerts][-1] == "loss_scale_storm"
    assert caplog.text.count("ended early: planted") == 1
    assert _hooks(model) == 0
