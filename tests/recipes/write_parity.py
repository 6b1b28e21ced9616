"""Writes the outputs of small PyTorch networks, for `test_models.py` on every backend.

    KERAS_BACKEND=torch python tests/recipes/write_parity.py [--resnets | --full]

needs torch, and transformers unless `--resnets` writes the ResNets only. `--full`
writes nothing, but compares ViT-Small and Swin-Tiny in full size.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812

FOLDER = Path(__file__).parent / "parity"


def conv(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.added = (outputs - inputs) // 2
        self.stride = stride

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(x, (0, 0, 0, 0, self.added, self.added)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = conv(inputs, outputs, 1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv3 = conv(outputs, 4 * outputs, 1)
        self.bn3 = nn.BatchNorm2d(4 * outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != 4 * outputs:
            self.shortcut = nn.Sequential(
                conv(inputs, 4 * outputs, 1, stride), nn.BatchNorm2d(4 * outputs)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class PreActivation(nn.Module):
    expansion = 1

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.first = False
        if inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride))

    def forward(self, x):
        y = F.relu(self.bn1(x))
        shortcut = y if self.first else x
        if hasattr(self, "shortcut"):
            shortcut = self.shortcut(y)
        return self.conv2(F.relu(self.bn2(self.conv1(y)))) + shortcut


class PreActivationBottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3, stride)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.conv3 = conv(outputs, 4 * outputs, 1)
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != 4 * outputs:
            self.downsample = nn.Sequential(conv(inputs, 4 * outputs, 1, stride))

    def forward(self, x):
        y = self.conv1(F.relu(self.bn1(x)))
        y = self.conv2(F.relu(self.bn2(y)))
        return self.conv3(F.relu(self.bn3(y))) + self.downsample(x)


PRE_ACTIVATION = (PreActivation, PreActivationBottleneck)


class ResNet(nn.Module):
    def __init__(self, block, width, blocks, classes=10):
        super().__init__()
        features = width
        self.conv1 = conv(3, width, 3)
        if block not in PRE_ACTIVATION:
            self.bn1 = nn.BatchNorm2d(width)
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                stride = 2 if stage and not i else 1
                layers.append(block(features, width * 2**stage, stride))
                features = width * 2**stage * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        if block in PRE_ACTIVATION:
            self.layer1[0].first = True
            self.bn = nn.BatchNorm2d(features)
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        x = self.conv1(x)
        if hasattr(self, "bn1"):
            x = F.relu(self.bn1(x))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        if hasattr(self, "bn"):
            x = F.relu(self.bn(x))
        return self.linear(x.mean((2, 3)))


def randomised(model):
    """Gives every weight and statistic a value that matters."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            value.copy_(1.0 + 0.5 * torch.tanh(noise))
        elif value.is_floating_point():
            value.add_(0.1 * noise)
    return model.eval()


def hugging_face_state(model):
    """Returns the state dict with the names that a published file has."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder, "model.safetensors"))


def answer(model, x):
    with torch.no_grad():
        y = model(torch.tensor(x.transpose(0, 3, 1, 2)))
    return getattr(y, "logits", y).numpy()


def images(side):
    return np.random.default_rng(0).normal(size=(4, side, side, 3)).astype("float32")


def write(name, model, state, x):
    path = FOLDER / f"{name}.npz"
    arrays = {f"state/{key}": value for key, value in state.items()}
    np.savez_compressed(path, x=x, logits=answer(model, x), **arrays)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def write_resnets():
    resnets = {
        "cifar_resnet": ResNet(Basic, 4, (1, 1, 1)),
        "bottleneck_resnet": ResNet(Bottleneck, 2, (2, 1)),
        "preresnet": ResNet(PreActivation, 4, (2, 2, 2)),
        "preresnet_bottleneck": ResNet(PreActivationBottleneck, 2, (2, 2, 2)),
    }
    for name, model in resnets.items():
        state = randomised(model).state_dict()
        state = {f"module.{key}": value.numpy() for key, value in state.items()}
        write(name, model, state, images(8))


def write_transformers():
    from transformers import (
        SwinConfig,
        SwinForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    transformers = {
        "vit": ViTForImageClassification(
            ViTConfig(
                image_size=8,
                patch_size=4,
                hidden_size=8,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                num_labels=10,
            )
        ),
        "swin": SwinForImageClassification(
            SwinConfig(
                image_size=16,
                patch_size=2,
                embed_dim=4,
                depths=[2, 1],
                num_heads=[1, 2],
                window_size=4,
                num_labels=10,
            )
        ),
    }
    for name, model in transformers.items():
        randomised(model)
        side = 8 if name == "vit" else 16
        write(name, model, hugging_face_state(model), images(side))


def compare_full():
    from transformers import (
        SwinConfig,
        SwinForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    from recipes import models

    small = ViTConfig(
        hidden_size=384,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=1000,
    )
    for name, reference in (
        ("vit_small", ViTForImageClassification(small)),
        ("swin_tiny", SwinForImageClassification(SwinConfig(num_labels=1000))),
    ):
        randomised(reference)
        x = images(224)
        model = models.build(name, 1000)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(reference.state_dict(), Path(folder, "weights.pth"))
            models.load_pretrained(model, Path(folder, "weights.pth"))
        logits = answer(reference, x)
        difference = np.abs(model.predict(x, verbose=0) - logits).max()
        print(
            f"{name}: logits differ by {difference:.1e} at most,"
            f" of a standard deviation of {logits.std():.2f}"
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    if "--full" in sys.argv:
        compare_full()
    else:
        write_resnets()
        if "--resnets" not in sys.argv:
            write_transformers()
