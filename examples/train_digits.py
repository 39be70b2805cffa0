"""An ordinary training loop, distributed by three lines (marked "thinwire").

    python examples/train_digits.py
    torchrun --nproc-per-node 4 examples/train_digits.py --method gtopk
    thinwire run --cluster office examples/train_digits.py --method gtopk

Alone it trains on all samples; in a group each rank takes its share of every epoch.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import thinwire as tw  # thinwire, 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="ssgd")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="samples of one rank's step")
    parser.add_argument("--momentum", type=float, default=0.9, help="0 suits asgd better")
    args = parser.parse_args()

    rows, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(rows).float().div(16).view(-1, 1, 8, 8)
    y = torch.as_tensor(labels)
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[shuffled], y[shuffled]
    x_train, y_train, x_test, y_test = x[:1437], y[:1437], x[1437:], y[1437:]

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=args.momentum)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    model, optimizer = tw.distribute(model, optimizer, method=args.method)  # thinwire, 2

    for epoch in range(args.epochs):
        # The same order on every rank, of which each takes every size-th sample.
        shuffle = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(y_train), generator=shuffle)[tw.rank() :: tw.size()]
        for index in order.split(args.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x_train[index]), y_train[index])
            loss.backward()
            optimizer.step()
        scheduler.step()
        if tw.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    tw.finish()  # thinwire, 3
    if tw.rank() == 0:
        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
        print(f"test accuracy {accuracy:.3f}, {tw.size()} ranks, {args.method}")


if __name__ == "__main__":
    main()
