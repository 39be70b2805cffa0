from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.planner import MODELS, find_model

TORCHVISION = [name for name, m in MODELS.items() if m.source.startswith("torchvision")]


def test_names_are_found_whatever_their_capitals_and_underscores():
    assert find_model("ResNet50") is MODELS["resnet50"]
    assert find_model(" bert_base ") is MODELS["bert-base"]


def test_unknown_model_names_the_nearest_and_what_to_give_instead():
    with pytest.raises(InputError, match=r"'resnet51'.*did you mean 'resnet5?0?.*step_time"):
        find_model("resnet51")


def test_training_costs_three_forward_passes_of_two_operations_per_mac():
    assert MODELS["resnet50"].flops == 6 * 4_089_184_256


def test_published_totals():
    expected = {
        "resnet20": (269_722, 0.0406),
        "vgg16-cifar": (14_728_266, 0.3132),
        "alexnet": (61_100_840, 0.714),
        "resnet50": (25_557_032, 4.089),
        "inception-v4": (42_679_816, 12.254),
        "densenet201": (20_013_928, 4.291),
        "vgg16": (138_357_544, 15.470),
        "bert-base": (110_106_428, 7.05),
        "bert-large": (336_226_108, 21.60),
    }
    for name, (params, gmacs) in expected.items():
        assert MODELS[name].num_params == params
        assert MODELS[name].macs == pytest.approx(gmacs * 1e9, rel=2e-3)  # four digits at most


def test_lstm_figures_follow_from_its_layers():
    vocabulary, width, words = 10_000, 1500, 35
    gates = 2 * 4 * width * width  # weights of one layer: input and recurrent
    params = 2 * vocabulary * width + vocabulary + 2 * (gates + 8 * width)
    assert MODELS["lstm-ptb"].num_params == params
    assert MODELS["lstm-ptb"].macs == words * (2 * gates + vocabulary * width)


def test_vgg_cifar_figures_follow_from_its_layers():
    widths = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512]
    params, macs, side, before = 0, 0, 32, 3
    for width in widths:
        if not width:
            side //= 2
            continue
        params += 9 * before * width + width + 2 * width  # convolution, bias, batch norm
        macs += 9 * before * width * side * side
        before = width
    assert MODELS["vgg16-cifar"].num_params == params + 512 * 10 + 10
    assert MODELS["vgg16-cifar"].macs == pytest.approx(macs + 5120, rel=1e-3)


@pytest.mark.parametrize(
    ("width", "depth", "name"), [(768, 12, "bert-base"), (1024, 24, "bert-large")]
)
def test_bert_figures_follow_from_its_layers(width: int, depth: int, name: str):
    words, tokens = 30_522, 64
    layer = 12 * width * width + 13 * width
    embeddings = words * width + 512 * width + 2 * width + 2 * width
    heads = 2 * (width * width + width) + 2 * width + words + 2 * width + 2
    assert MODELS[name].num_params == embeddings + depth * layer + heads
    attention = depth * 2 * tokens * tokens * width
    head = tokens * (width * width + words * width)
    macs = tokens * depth * 12 * width * width + attention + head
    assert MODELS[name].macs == pytest.approx(macs, rel=0.01)


@pytest.mark.slow
def test_a_model_outside_the_table_is_described_on_the_spot():
    found = find_model("thinwire.models.lstm_ptb:LSTMPTB")
    assert found.num_params == 66_034_000
    assert found.macs == 64 * 51_000_000  # 64 words, unless the function says otherwise


def test_a_function_that_makes_no_model_is_said_so_with_the_way_out():
    with pytest.raises(InputError, match=r"returned str; allowed: a torch module.*step_time"):
        find_model("os:getcwd")


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_models_count_as_the_table_says(name: str):
    models = pytest.importorskip("torchvision").models
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = getattr(models, name.replace("-", "_"))(weights=None).eval()
        image = torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    assert MODELS[name].num_params == sum(p.numel() for p in model.parameters())
    assert MODELS[name].macs == pytest.approx(counter.get_total_flops() / 2, rel=1e-9)
