"""What each codec costs and saves on a vector of normal numbers.

    python benchmarks/codecs.py [--numel 1000000] [--rounds 5]

Per codec: bytes of its packet as a share of float32, and CPU time of one thread to encode and to
decode, per million elements, the least of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from thinwire.compress import (
    Codec,
    cast,
    feedback,
    packed,
    per_layer,
    qsgd,
    randk,
    sampled_threshold,
    sign,
    stochastic_cast,
    threshold,
    topk,
)
from thinwire.seeds import generator_for


def codecs(numel: int) -> dict[str, Codec]:
    """By the text that makes each."""
    layers = [numel // 50] * 49 + [numel - 49 * (numel // 50)]
    return {
        "topk(0.001)": topk(0.001),
        "topk(0.01)": topk(0.01),
        "sampled_threshold(0.01)": sampled_threshold(0.01),
        "threshold(2.576)": threshold(2.576),
        "randk(0.01)": randk(0.01),
        'packed(topk(0.001), "bf16")': packed(topk(0.001), "bf16"),
        'packed(topk(0.01), "bf16")': packed(topk(0.01), "bf16"),
        'packed(topk(0.01), "int8")': packed(topk(0.01), "int8"),
        "per_layer(topk(0.01), layers)": per_layer(topk(0.01), layers),
        "feedback(topk(0.01))": feedback(topk(0.01)),
        'cast("bf16")': cast("bf16"),
        'cast("int8")': cast("int8"),
        'stochastic_cast("bf16")': stochastic_cast("bf16"),
        'stochastic_cast("int8")': stochastic_cast("int8"),
        "qsgd(bits=4)": qsgd(bits=4),
        "sign()": sign(),
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU seconds."""
    before = time.thread_time()
    result = call()
    return result, time.thread_time() - before


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(args.numel, generator=generator_for(0))
    print(f"{'codec':32} {'of float32':>10} {'encode ms':>10} {'decode ms':>10}")
    for name, codec in codecs(args.numel).items():
        state, encode, decode, share = codec.init(x), [], [], 0.0
        for _ in range(args.rounds):
            packet, spent = timed(lambda codec=codec, state=state: codec.encode(x, state))
            encode.append(spent)
            _, spent = timed(lambda codec=codec, packet=packet: codec.decode(packet))
            decode.append(spent)
            share = packet.payload_nbytes / (4 * args.numel)
        per_million = 1e3 * 1e6 / args.numel
        print(
            f"{name:32} {share:10.3%} {min(encode) * per_million:10.2f}"
            f" {min(decode) * per_million:10.2f}"
        )


if __name__ == "__main__":
    main()
