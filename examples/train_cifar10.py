"""ResNet-20 on CIFAR-10 by an ordinary training loop, distributed by three lines (marked
"thinwire").

    python examples/train_cifar10.py --data ~/data
    torchrun --nproc-per-node 4 examples/train_cifar10.py --data ~/data --method gtopk
    thinwire run --cluster office examples/train_cifar10.py --data ~/data --method gtopk
    python examples/train_cifar10.py --synthetic 512

The data are CIFAR-10's binary version, or its images in an .npz file, in the folder given or in the
one that THINWIRE_DATA names; `--synthetic N` draws N images instead, to try the script. Needs no
torchvision, but takes its transforms: give any as `transform=`.
"""

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import thinwire as tw  # thinwire, 1
from thinwire.tasks.data import CIFAR10


class Images(Dataset):
    """Images (3, 32, 32) of 0..1 and labels, each image transformed when it is read."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, transform: Callable):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.x[index].float().div(255)), self.y[index]


def normalize(image: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    return (image - mean) / 0.25


def augment(image: torch.Tensor) -> torch.Tensor:
    """A random crop of the image padded by 4 pixels, mirrored half of the time."""
    image = nn.functional.pad(normalize(image), (4, 4, 4, 4))
    top, left, mirror = (int(torch.randint(n, ())) for n in (9, 9, 2))
    image = image[:, top : top + 32, left : left + 32]
    return image.flip(2) if mirror else image


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, before: int, width: int):
        super().__init__()
        stride = 1 if before == width else 2
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        # The way past has no weights: fewer pixels, and empty channels.
        past = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0,) * 4 + (0, self.more))
        return (y + past).relu()


def resnet(blocks: int) -> nn.Module:
    """6·blocks + 2 layers of weights."""
    widths = [16] * (blocks + 1) + [32] * blocks + [64] * blocks
    body = [Block(a, b) for a, b in pairwise(widths)]
    head = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(*head, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def read(data: str | None, synthetic: int, transform: Callable, split: str) -> Dataset:
    if synthetic:
        count = synthetic if split == "train" else synthetic // 4
        draw = torch.Generator().manual_seed(count)
        y = torch.arange(count) % 10
        noise = torch.randint(0, 128, (count, 3, 32, 32), generator=draw)
        colour = torch.stack([y * 37 % 128, y * 59 % 128, y * 83 % 128], dim=1)  # of each class
        return Images((noise + colour[:, :, None, None]).to(torch.uint8), y, transform)
    place = CIFAR10.find(Path(data).expanduser() if data else None)
    return Images(*CIFAR10.read(place, split, None), transform)


def accuracy_of(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x.to(device)).argmax(dim=1) == y.to(device)).sum())
            total += len(y)
    model.train()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="where CIFAR-10 is; by default where THINWIRE_DATA says")
    parser.add_argument("--synthetic", type=int, default=0, help="images to draw instead")
    parser.add_argument("--method", default="ssgd")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128, help="samples of a step, of all ranks")
    parser.add_argument(
        "--blocks", type=int, default=3, help="in each of three stages; 3: 20 layers"
    )
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    local = int(os.environ.get("LOCAL_RANK", 0))
    device = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(tw.rank())  # of the augmentation; rank 0's model is everybody's
    train = read(args.data, args.synthetic, augment, "train")
    sampler = DistributedSampler(train, tw.size(), tw.rank(), shuffle=True, drop_last=True)
    batches = DataLoader(train, args.batch // tw.size(), sampler=sampler, drop_last=True)
    tests = DataLoader(read(args.data, args.synthetic, normalize, "test"), 500)

    model = resnet(args.blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * len(batches)
    )
    model, optimizer = tw.distribute(model, optimizer, method=args.method)  # thinwire, 2

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()
            tw.log(loss=loss)  # if you like: into the record and the view
        if tw.rank() == 0:
            accuracy = accuracy_of(model, tests, device)
            tw.log(accuracy=accuracy)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy:.3f}")

    tw.finish()  # thinwire, 3
    if tw.rank() == 0:
        print(f"{tw.size()} ranks, {args.method}: test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
