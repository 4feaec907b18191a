"""Small models of every shape of graph: chains, branches, skips, towers, encoder-decoders, shared and idle units."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

HIDDEN, TOKENS = 64, 32


@dataclass
class Case:
    """A model with its batch, loss and units; ``units`` None: `find_units` finds them."""

    model: nn.Layer
    batch: dict[str, paddle.Tensor]
    loss: Callable[[Any, Any], paddle.Tensor]
    units: list[str] | None = None

    def step(self, optimizer: Any) -> Callable[[], None]:
        """One forward, backward and optimizer step on the whole batch."""

        def run_step() -> None:
            loss = self.loss(self.model, self.batch)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()

        return run_step


def seed_all(seed: int = 7) -> None:
    paddle.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Block(nn.Layer):
    """A transformer block, norm before or after, attention and MLP as layers of their own."""

    def __init__(self, before: bool = True, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.attention = Attention(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
        self.norms = nn.LayerList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.dropout = nn.Dropout(0.1)
        self.before = before

    def forward(self, x: Any) -> Any:
        if self.before:
            x = x + self.dropout(self.attention(self.norms[0](x)))
            return x + self.dropout(self.mlp(self.norms[1](x)))
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.dropout(self.mlp(x)))


class Attention(nn.Layer):
    def __init__(self, hidden: int = HIDDEN, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden), heads

    def forward(self, x: Any) -> Any:
        rows, tokens, hidden = x.shape
        qkv = self.qkv(x).reshape([rows, tokens, 3, self.heads, hidden // self.heads]).transpose([2, 0, 3, 1, 4])
        weights = F.dropout(F.softmax(qkv[0] @ qkv[1].transpose([0, 1, 3, 2])), 0.1, training=self.training)
        return self.out((weights @ qkv[2]).transpose([0, 2, 1, 3]).reshape([rows, tokens, hidden]))


class Chain(nn.Layer):
    def __init__(self, blocks: list[nn.Layer], head: nn.Layer) -> None:
        super().__init__()
        self.blocks, self.head = nn.LayerList(blocks), head

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class DictChain(Chain):
    """Blocks that take and give dicts, keyword arguments included, as detection backbones do."""

    def forward(self, x: Any) -> Any:
        features = {"x": x, "kept": []}
        for block in self.blocks:
            features = block(features, scale=1.0)
        return self.head(features["x"] + sum(features["kept"]))


class DictBlock(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, features: dict[str, Any], scale: float) -> dict[str, Any]:
        x = self.block(features["x"]) * scale
        return {"x": x, "kept": [*features["kept"], x.mean(1, keepdim=True)]}


class ViT(nn.Layer):
    def __init__(self, depth: int = 6, size: int = 32, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2D(3, HIDDEN, patch, patch)
        self.position = self.create_parameter([1, (size // patch) ** 2 + 1, HIDDEN])
        self.token = self.create_parameter([1, 1, HIDDEN])
        self.blocks = nn.LayerList([Block() for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 10)

    def forward(self, image: Any) -> Any:
        x = self.patches(image).flatten(2).transpose([0, 2, 1])
        x = paddle.concat([self.token.expand([x.shape[0], -1, -1]), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Convs(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers = []
        for size in (inputs, outputs):
            layers += [nn.Conv2D(size, outputs, 3, padding=1), nn.BatchNorm2D(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Layer):
    def __init__(self, base: int = 8) -> None:
        super().__init__()
        sizes = [3, base, 2 * base, 4 * base, 8 * base]
        self.down = nn.LayerList([Convs(a, b) for a, b in zip(sizes, sizes[1:], strict=False)])
        self.up = nn.LayerList([Convs(a + b, b) for a, b in zip(sizes[:1:-1], sizes[-2:0:-1], strict=False)])
        self.out = nn.Conv2D(base, 2, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for i, block in enumerate(self.down):
            x = block(x)
            if i + 1 < len(self.down):
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for block in self.up:
            x = block(paddle.concat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return self.out(x)


class Inception(nn.Layer):
    """Parallel units that share their input; paddle's backward goes through them side by side."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (1, 3, 5)
        self.branches = nn.LayerList(
            [nn.Sequential(nn.Conv2D(16, 16, k, padding=k // 2), nn.BatchNorm2D(16), nn.ReLU()) for k in sizes]
        )
        self.mix = nn.Conv2D(16 * len(sizes), 16, 1)

    def forward(self, x: Any) -> Any:
        return self.mix(paddle.concat([branch(x) for branch in self.branches], 1))


class Towers(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.LayerList([Block(before) for _ in range(3)]) for before in (True, False))

    def forward(self, x: Any) -> Any:
        left = right = x
        for block in self.left:
            left = block(left)
        for block in self.right:
            right = block(right)
        return left * right


class Shared(nn.Layer):
    """Three blocks, each run twice, and one that is never run."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList([Block(i % 2 == 0) for i in range(4)])

    def forward(self, x: Any) -> Any:
        for _ in range(2):
            for block in self.blocks[:3]:
                x = block(x)
        return x


class Residual(nn.Layer):
    """Blocks whose output only they themselves save: the sum outside needs none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList([nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Sigmoid()) for _ in range(6)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def plain_case(name: str, rows: int = 4) -> Case:
    """The case of that name; see `PLAIN`."""
    return PLAIN[name](rows)


def _tokens(model: nn.Layer, rows: int, units: list[str] | None = None) -> Case:
    batch = {"x": paddle.randn([rows, TOKENS, HIDDEN]), "y": paddle.randint(0, 10, [rows])}
    return Case(model, batch, lambda m, b: F.cross_entropy(m(b["x"]).mean(1)[:, :10], b["y"]), units)


def _images(model: nn.Layer, rows: int, size: int, units: list[str] | None = None) -> Case:
    batch = {"image": paddle.randn([rows, 3, size, size]), "y": paddle.randint(0, 10, [rows])}
    return Case(model, batch, lambda m, b: F.cross_entropy(m(b["image"]), b["y"]), units)


def _names(model: nn.Layer, kind: str) -> list[str]:
    return [name for name, layer in model.named_sublayers() if type(layer).__name__ == kind]


def _vision(rows: int, make: Callable[..., nn.Layer], kind: str, size: int = 64) -> Case:
    model = make(num_classes=10)
    return _images(model, rows, size, _names(model, kind))


def _unet(rows: int) -> Case:
    model = UNet()
    batch = {"image": paddle.randn([rows, 3, 32, 32]), "y": paddle.randint(0, 2, [rows, 32, 32])}
    return Case(model, batch, lambda m, b: F.cross_entropy(m(b["image"]), b["y"], axis=1), _names(model, "Convs"))


def _inception(rows: int) -> Case:
    model = nn.Sequential(nn.Conv2D(3, 16, 1), Inception(), Inception(), nn.AdaptiveAvgPool2D(1), nn.Flatten())
    return _images(model, rows, 16, [f"{i}.branches.{j}" for i in (1, 2) for j in range(3)])


def _encoder_decoder(rows: int) -> Case:
    model = nn.Transformer(HIDDEN, 4, 3, 3, 128)
    batch = {"source": paddle.randn([rows, TOKENS, HIDDEN]), "target": paddle.randn([rows, TOKENS // 2, HIDDEN])}
    units = [f"{side}.layers.{i}" for side in ("encoder", "decoder") for i in range(3)]
    return Case(model, batch, lambda m, b: m(b["source"], b["target"]).mean(), units)


def _frozen(rows: int) -> Case:
    case = _tokens(Chain([Block() for _ in range(5)], nn.Linear(HIDDEN, 10)), rows)
    for parameter in case.model.blocks[:2].parameters():
        parameter.stop_gradient = True
    return case


PLAIN: dict[str, Callable[[int], Case]] = {
    "vit": lambda rows: _images(ViT(), rows, 32),
    "resnet50": lambda rows: _vision(rows, paddle.vision.models.resnet50, "BottleneckBlock"),
    "resnet18": lambda rows: _vision(rows, paddle.vision.models.resnet18, "BasicBlock", 32),
    "mobilenet_v2": lambda rows: _vision(rows, paddle.vision.models.mobilenet_v2, "InvertedResidual"),
    "densenet": lambda rows: _vision(rows, paddle.vision.models.densenet121, "DenseLayer", 32),
    "unet": _unet,
    "blocks": lambda rows: _tokens(Chain([Block(i % 2 == 0) for i in range(6)], nn.Linear(HIDDEN, 10)), rows),
    "dicts": lambda rows: _tokens(DictChain([DictBlock() for _ in range(5)], nn.Linear(HIDDEN, 10)), rows),
    "inception": _inception,
    "encoder_decoder": _encoder_decoder,
    "towers": lambda rows: _tokens(Towers(), rows, [f"{side}.{i}" for side in ("left", "right") for i in range(3)]),
    "shared": lambda rows: _tokens(Shared(), rows, [f"blocks.{i}" for i in range(4)]),
    "residual": lambda rows: _tokens(Residual(), rows, [f"blocks.{i}" for i in range(6)]),
    "frozen": _frozen,
}
