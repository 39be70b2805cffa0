from __future__ import annotations

import itertools
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from thinwire.errors import InputError
from thinwire.models import ModelTable, describe
from thinwire.models.bert import Bert
from thinwire.tasks.models import digits_cnn


def rows(table: ModelTable) -> dict:
    return {row.name: row for row in table.layers}


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def small_bert() -> nn.Module:
    return Bert(width=16, depth=2, heads=2, vocabulary=50, length=8)


def test_every_figure_of_a_small_network_is_as_counted_by_hand():
    table = describe(convnet(), batch=2, image=8)
    conv, linear = 2 * 2 * 36 * 8 * 27, 2 * 2 * 288 * 4
    found = [(r.name, r.num_params, r.forward_flops, r.backward_flops) for r in table.layers]
    assert found == [
        ("0", 224, conv, conv),  # the image needs no gradient
        ("1", 16, 0, 0),
        ("2", 0, 0, 0),
        ("4", 1156, linear, 2 * linear),
    ]
    plane = 2 * 8 * 36 * 4
    kept = [r.activation_bytes for r in table.layers]
    assert kept == [2 * 3 * 64 * 4, plane + 2 * 8 * 4, plane, 0]  # 4 keeps what 2 already does
    assert [r.order for r in table.layers] == [2, 1, None, 0]
    assert [t.name for t in table.tensors] == [n for n, _ in convnet().named_parameters()]
    assert table.tensors[0].ready_flops == table.backward_flops == conv + 2 * linear
    assert table.sample == "image of 3×8×8"


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (convnet, torch.zeros(2, 3, 8, 8)),
        (digits_cnn, torch.zeros(3, 1, 8, 8)),
        (small_bert, torch.zeros(2, 6, dtype=torch.long)),
        (lambda: nn.LSTM(5, 6, num_layers=2), torch.zeros(4, 2, 5)),
    ],
)
def test_gradient_order_and_kept_bytes_are_those_of_a_real_pass(make, inputs):
    torch.manual_seed(0)
    model, order, kept = make(), [], {}
    known = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    for name, param in model.named_parameters():
        param.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))

    def pack(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage()._cdata not in known:
            kept[x.untyped_storage()._cdata] = x.detach()
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = model(inputs)
        parts = [out] if torch.is_tensor(out) else [out[0], *(out[1] if len(out[1]) == 2 else [])]
        torch.stack([part.sum() for part in parts]).sum().backward()
    table = describe(make(), batch=2, inputs=inputs)
    if not isinstance(model, nn.LSTM):  # the CPU has one kernel for it, with an order of its own
        assert [table.tensors[i].name for i in table.ready_order] == order
        real = sum(x.untyped_storage().nbytes() for x in kept.values())
        assert table.activation_bytes == pytest.approx(real, rel=0.05)
    assert {table.tensors[i].name for i in table.ready_order} == set(order)


def test_grouped_convolutions_take_what_their_groups_do():
    table = describe(nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8)), image=6)
    depthwise = rows(table)["1"]
    assert depthwise.forward_flops == 2 * 32 * 16 * 8 * 9
    assert depthwise.backward_flops == 2 * depthwise.forward_flops


def test_transposed_convolutions_take_twice_the_forward_pass():
    model = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ConvTranspose2d(8, 6, 3, stride=2))
    transposed = rows(describe(model, image=6))["1"]
    assert transposed.forward_flops == 2 * 32 * 36 * 8 * 6 * 9
    assert transposed.backward_flops == 2 * transposed.forward_flops


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_follow_their_formula(kind: type[nn.RNNBase], gates: int):
    table = describe(kind(5, 7, num_layers=2), batch=3, sequence=4)
    assert table.forward_flops == 2 * 3 * 4 * gates * 7 * (5 + 7 + 7 + 7)
    assert table.sample == "sequence of 4 vectors of 5"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        x = self.project(x)
        x = self.attend(x, x, x, need_weights=False)[0]
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_attention_counts_both_products_and_owns_its_projections():
    table = describe(Attention(), batch=3, inputs=torch.zeros(3, 5, 16))
    products = 2 * 3 * 2 * 5 * 5 * 16
    attend = rows(table)["attend"]
    assert attend.num_params == 3 * 256 + 48 + 256 + 16
    assert attend.forward_flops == 2 * 3 * 5 * 4 * 256 + products
    assert attend.backward_flops == 2 * attend.forward_flops
    # The three arguments are one tensor, and no half is spared for the causal mask.
    assert rows(table)[""].forward_flops == products
    assert rows(table)[""].backward_flops == 2 * products


class Odd(nn.Module):
    """A frozen layer, one without use, and a weight that serves twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.frozen(self.words(x)))


def test_frozen_tied_and_unused_parameters():
    table = describe(Odd(), batch=2, sequence=3)
    assert [t.name for t in table.tensors] == ["words.weight", "unused.weight", "unused.bias"]
    assert [t.order for t in table.tensors] == [0, None, None]
    assert rows(table)["frozen"].backward_flops == rows(table)["frozen"].forward_flops
    assert rows(table)["unused"].order is None
    assert table.notes == (
        "20 frozen parameters are not in the table",
        "2 parameter tensors get no gradient, as 'unused.weight'",
    )


def test_recomputed_layers_add_their_forward_pass_to_backward():
    class Recomputing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x):
            return checkpoint(self.b, self.a(x), use_reentrant=False)

    table = describe(Recomputing(), batch=2)
    once = 2 * 2 * 16
    assert table.forward_flops == 3 * once
    # Both gradients of b's two and its first again (the last isn't needed), then a's weight.
    assert table.tensors[2].ready_flops == (4 + 1) * once
    assert table.backward_flops == (4 + 1 + 1) * once


def test_the_model_is_left_alone():
    model = convnet().eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    describe(model, image=8)
    assert not model.training
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Output(dict):
    """As Hugging Face's: a mapping whose entries are attributes too."""

    def __getattr__(self, name):
        return self.get(name)


class Chat(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        states = self.words(input_ids)
        return Output(logits=self.head(states), hidden_states=(states,), cache=None)


def test_a_model_that_takes_input_ids_gets_tokens():
    table = describe(Chat(), batch=2, sequence=5)
    assert table.sample == "sequence of 5 tokens"
    assert table.forward_flops == 2 * 2 * 5 * 6 * 11
    assert table.tensors[table.ready_order[-1]].name == "words.weight"


def test_a_loss_of_ones_own_decides_which_outputs_count():
    table = describe(Chat(), batch=2, sequence=5, loss=lambda out: out["hidden_states"][0].sum())
    assert [t.order for t in table.tensors] == [0, None, None]


def test_a_model_made_by_a_function(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def plain():\n    return nn.Linear(3, 2)\n"
        "def fed(batch):\n    return nn.Conv1d(3, 4, 2), torch.zeros(batch, 3, 9)\n"
        "def named():\n    return nn.Bilinear(3, 3, 2), dict(input1=torch.zeros(5, 3), "
        "input2=torch.zeros(5, 3))\n"
        "def wrong():\n    return 7\n"
        "def failing():\n    raise KeyError('x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert describe("shop:plain", batch=5).forward_flops == 2 * 5 * 6
        assert describe("shop:fed", batch=5).forward_flops == 2 * 5 * 8 * 24
        named = describe("shop:named", batch=5)
        assert named.notes == ("operators without a formula, counted as 0: aten::_trilinear",)
        for spec, message in (
            ("shop:wrong", "returned int; allowed: a torch module"),
            ("shop:failing", "calling failing raised KeyError"),
            ("shop:absent", "no function 'absent'"),
            ("no_such_shop:plain", "Python's path"),
        ):
            with pytest.raises(InputError, match=message):
                describe(spec)
        with pytest.raises(InputError, match="image = 8 has no effect: the inputs are given"):
            describe("shop:fed", image=8)
    finally:
        sys.modules.pop("shop", None)


class Tapered(nn.Module):
    """Its widths come from values, so that it cannot be built without data."""

    def __init__(self):
        super().__init__()
        widths = [int(w) for w in torch.linspace(8, 2, 4)]
        self.layers = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))

    def forward(self, x):
        return self.layers(x)


def test_a_constructor_that_looks_at_values_runs_with_data_and_draws_nothing(monkeypatch):
    before = torch.get_rng_state()
    monkeypatch.setitem(sys.modules, "shop", sys.modules[Tapered.__module__])
    table = describe("shop:Tapered", batch=2)
    assert table.num_params == 8 * 6 + 6 + 6 * 4 + 4 + 4 * 2 + 2
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_that_are_made_have_the_models_dtype():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    single = describe(model, batch=2).activation_bytes
    assert describe(model.to(torch.bfloat16), batch=2).activation_bytes == single // 2


def test_a_loss_must_be_one_number():
    with pytest.raises(InputError, match=r"the loss is \(2, 4\); allowed: a tensor of one"):
        describe(nn.Linear(4, 4), batch=2, loss=lambda out: out)


class Peeking(nn.Linear):
    """Looks at a value, and knows the device it is on, as rotary embeddings do."""

    def forward(self, x):
        with torch.autocast(device_type=x.device.type, enabled=False):
            return super().forward(x) if (x > 0).any() else super().forward(super().forward(x))


class Choosing(nn.Linear):
    def forward(self, x):
        return super().forward(x)[x[:, 0] > 0]


class Endless(nn.Linear):
    def forward(self, x):
        while not (x > 0).any():
            x = x + 1
        return super().forward(x)


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("no kernel")


class Stuck(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(NoBackward.apply(self.a(x)))


def test_values_that_a_model_looks_at_are_zero_and_said_so():
    table = describe(Peeking(3, 3), batch=2)
    assert table.forward_flops == 2 * 2 * 2 * 9
    assert table.notes == ("the model looked at a value once and got 0, there being no data",)
    with pytest.raises(RuntimeError):  # as before
        torch.autocast("meta", enabled=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Choosing, Endless])
def test_shapes_that_follow_from_values_and_endless_loops_are_refused(kind: type[nn.Linear]):
    message = f"model {kind.__name__}: the forward pass did not run on the meta"
    with pytest.raises(InputError, match=message):
        describe(kind(3, 3))


def test_where_backward_does_not_run_it_is_estimated_and_said_so():
    table = describe(Stuck(), batch=2)
    assert table.backward_flops == 2 * table.forward_flops
    assert [t.order for t in table.tensors] == [3, 2, 1, 0]
    assert table.tensors[3].ready_flops == rows(table)["b"].backward_flops
    assert (
        "backward did not run on the meta device (NotImplementedError: no kernel)"
        in (table.notes[0])
    )


@pytest.mark.parametrize(
    ("make", "sizes", "message"),
    [
        (lambda: nn.Conv1d(3, 4, 2), {}, "begins with Conv1d.*give inputs"),
        (nn.ReLU, {}, "has no parameters"),
        (convnet, {"sequence": 5}, "sequence = 5 has no effect: the model takes images"),
        (small_bert, {"image": 5}, "image = 5 has no effect: the model takes sequences"),
        (convnet, {"batch": 0}, "batch = 0; allowed: a whole number, 1 or more"),
        (convnet, {"image": -1}, "image = -1; allowed"),
        (lambda: nn.Linear(3, 3).requires_grad_(False), {}, "depends on a trainable parameter"),
    ],
)
def test_what_cannot_be_described_says_why(make, sizes, message):
    with pytest.raises(InputError, match=message):
        describe(make(), **sizes)


def test_an_unknown_name_is_told_the_nearest_without_all_of_torchvision():
    pytest.importorskip("torchvision")
    with pytest.raises(InputError, match=r"did you mean 'regnet-y-8gf'\? valid") as raised:
        describe("regnet-y-8fg")
    assert len(str(raised.value)) < 500
    with pytest.raises(InputError, match="detection models cannot be described by name"):
        describe("ssd300-vgg16")


def test_torchvisions_other_models_at_the_size_of_their_weights():
    pytest.importorskip("torchvision")
    table = describe("squeezenet1-1", batch=1)
    assert table.num_params == 1_235_496
    assert table.sample == "image of 3×224×224"
