"""A detector small enough for a second of training, without BatchNorm, whose loss is a mean over samples.

Run in a process of its own: PaddleDetection's config is global and a model changes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from ppdet.core import workspace
from ppdet.modeling.architectures.meta_arch import BaseArch

CONFIG = """
architecture: TinyDetector
normalize: &normalize {{is_scale: true, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}}
use_gpu: false
use_npu: false
use_mlu: false
use_xpu: false
log_iter: 100
save_dir: {save_dir}
snapshot_epoch: 1
worker_num: 0
metric: COCO
num_classes: 10
use_ema: true
epoch: 2
TrainDataset: {{name: COCODataSet, image_dir: images, anno_path: train.json, dataset_dir: {scenes},
  data_fields: [image, gt_bbox, gt_class, is_crowd]}}
EvalDataset: {{name: COCODataSet, image_dir: images, anno_path: val.json, dataset_dir: {scenes}, allow_empty: true}}
TestDataset: {{name: ImageFolder, anno_path: val.json, dataset_dir: {scenes}}}
LearningRate:
  base_lr: 0.05
  schedulers:
    - {{name: PiecewiseDecay, gamma: 0.1, milestones: [1]}}
    - {{name: LinearWarmup, start_factor: 0.1, steps: 2}}
OptimizerBuilder:
  clip_grad_by_norm: 0.5
  optimizer: {{type: Momentum, momentum: 0.9}}
  regularizer: {{type: L2, factor: 0.0001}}
TrainReader:
  sample_transforms: [Decode: {{}}, NormalizeImage: *normalize, Permute: {{}}]
  batch_transforms: [PadGT: {{}}]
  batch_size: 8
  shuffle: {shuffle}
  drop_last: false
EvalReader: {{sample_transforms: [Decode: {{}}, NormalizeImage: *normalize, Permute: {{}}], batch_size: 8}}
TestReader: {{sample_transforms: [Decode: {{}}, NormalizeImage: *normalize, Permute: {{}}], batch_size: 1}}
"""


@workspace.register
class TinyDetector(BaseArch):
    """Two stages with dropout between them; predicts how many boxes an image has and their mean centre."""

    __category__ = "architecture"

    def __init__(self, dropout: float = 0.0, talk: bool = False) -> None:
        super().__init__()
        self.talk = talk
        layers = [paddle.nn.Conv2D(3, 8, 3, stride=8), paddle.nn.Swish()]
        self.backbone = paddle.nn.Sequential(*layers, paddle.nn.Conv2D(8, 8, 3, stride=2))
        self.head = paddle.nn.Sequential(paddle.nn.Linear(8, 16), paddle.nn.Tanh(), paddle.nn.Linear(16, 3))
        self.dropout = paddle.nn.Dropout(dropout)
        self.poison: list[int] = []
        self.batches: list[int] = []
        self.forwards = 0

    def get_loss(self) -> dict[str, Any]:
        image = self.inputs.pop("image")
        features = self.dropout(self.backbone(image).mean(axis=[2, 3]))
        found = self.head(features)
        mask = self.inputs["pad_gt_mask"]
        count = mask.sum(axis=[1, 2])
        centre = (self.inputs["gt_bbox"].reshape([mask.shape[0], -1, 2, 2]).mean(axis=2) * mask).sum(axis=1) / 160.0
        loss_count = ((found[:, 0] - count / 6.0) ** 2).mean()
        loss_centre = ((found[:, 1:] - centre / count.unsqueeze(-1).clip(min=1.0)) ** 2).mean()
        if self.talk:
            boxes = mask.sum() * 1.0
            if paddle.distributed.get_world_size() > 1:
                paddle.distributed.all_reduce(boxes)
                boxes = boxes / paddle.distributed.get_world_size()
            loss_count = loss_count * mask.shape[0] / boxes
        self.forwards += 1
        self.batches.append(mask.shape[0])
        loss = loss_count + loss_centre
        if self.forwards in self.poison:
            loss = loss * float("inf")
        return {"loss": loss, "loss_count": loss_count, "loss_centre": loss_centre}

    def get_pred(self) -> dict[str, Any]:
        rows = self.inputs["image"].shape[0]
        return {"bbox": paddle.zeros([rows, 6]), "bbox_num": paddle.ones([rows], "int32")}


def load(scenes: Path, save_dir: Path, shuffle: bool = False, **overrides: Any) -> Any:
    """The tiny config as PaddleDetection merges it, in place of whatever was loaded before."""
    save_dir.mkdir(parents=True, exist_ok=True)
    file = save_dir / "tiny.yml"
    file.write_text(CONFIG.format(scenes=scenes, save_dir=save_dir, shuffle=str(shuffle).lower()), encoding="utf-8")
    registered = workspace.get_registered_modules()
    for key in [key for key in workspace.global_config if key not in registered]:
        del workspace.global_config[key]
    cfg = workspace.load_config(str(file))
    workspace.merge_config(overrides)
    return cfg


def build(scenes: Path, save_dir: Path, seed: int = 7, **overrides: Any) -> Any:
    """A Trainer with the same weights for the same seed, its parameters named as in a new process."""
    from ppdet.engine import Trainer

    paddle.utils.unique_name.switch()
    paddle.seed(seed)
    return Trainer(load(scenes, save_dir, **overrides), mode="train")
