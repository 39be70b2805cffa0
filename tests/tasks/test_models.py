from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from thinwire.tasks.models import Normalize, ResNet20, cifar_cnn, digits_cnn, fashion_cnn

BYTES = torch.uint8


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "num_params", "num_macs"),
    [
        (digits_cnn, (1, 8, 8), torch.float32, 20_122, 132_736),
        (fashion_cnn, (1, 28, 28), BYTES, 105_866, 1_117_056),
        (cifar_cnn, (3, 32, 32), BYTES, 122_570, 8_028_800),
        (ResNet20, (3, 32, 32), BYTES, 269_722, 40_551_040),
    ],
)
def test_sizes_are_as_documented(make, shape, dtype, num_params, num_macs):
    model = make().eval()
    assert sum(p.numel() for p in model.parameters()) == num_params
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        scores = model(torch.zeros(1, *shape, dtype=dtype))
    assert scores.shape == (1, 10)
    assert counter.get_total_flops() == 2 * num_macs


def test_normalize_takes_bytes_to_mean_zero_and_deviation_one():
    x = torch.tensor([0, 51, 255], dtype=BYTES).view(3, 1, 1, 1).expand(3, 2, 1, 1)
    out = Normalize([0.2, 0.5], [0.4, 0.25])(x)
    expected = torch.tensor([[-0.5, -2.0], [0.0, -1.2], [2.0, 2.0]])
    torch.testing.assert_close(out.view(3, 2), expected)


def test_normalize_adds_nothing_to_a_saved_model():
    assert list(Normalize([0.5], [0.5]).state_dict()) == []


def test_resnet_shortcuts_have_no_parameters_and_pad_with_zero_channels():
    block = ResNet20().blocks[3].eval()  # 16 to 32 channels, 32 to 16 pixels
    assert {name.split(".")[0] for name, _ in block.named_parameters()} == {
        *("conv1", "bn1", "conv2", "bn2")
    }
    torch.nn.init.zeros_(block.conv2.weight)  # leaves the shortcut alone
    x = torch.rand(2, 16, 32, 32)
    out = block(x)
    assert out.shape == (2, 32, 16, 16)
    torch.testing.assert_close(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].count_nonzero() == out[:, 24:].count_nonzero() == 0


def test_resnet_starts_with_scores_of_order_one_and_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    model = ResNet20()
    scores = model(torch.randint(0, 256, (8, 3, 32, 32), dtype=BYTES))
    assert 0.1 < scores.std().item() < 10
    torch.nn.functional.cross_entropy(scores, torch.arange(8)).backward()
    assert all(p.grad is not None and p.grad.count_nonzero() for p in model.parameters())
