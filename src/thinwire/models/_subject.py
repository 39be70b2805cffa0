"""From what a user names to a model on the meta device and inputs for it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree

from thinwire.errors import InputError, nearest
from thinwire.models.bert import bert_base, bert_large
from thinwire.models.inception_v4 import inception_v4
from thinwire.models.lstm_ptb import LSTMPTB
from thinwire.models.published import PUBLISHED
from thinwire.models.vgg_cifar import vgg16_cifar
from thinwire.operations import without_data
from thinwire.tasks.models import ResNet20

__all__ = ["Make", "Sizes", "Subject", "runnable", "subject_of"]


Make: TypeAlias = Callable[[Callable[[], Any]], Any]
"""How a model is built: on the meta device, or with data."""


@dataclass(frozen=True)
class Sizes:
    """How large the inputs are to be, where thinwire makes them.

    Args:
        batch: samples, 1 or more.
        sequence: length of a sequence, 1 or more; None: as the model is published, or 64.
        image: height and width, 1 or more; None: as the model is published, or 224.
    """

    batch: int
    sequence: int | None = None
    image: int | None = None

    def __post_init__(self) -> None:
        for key in ("batch", "sequence", "image"):
            value = getattr(self, key)
            if value is None and key != "batch":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{key} = {value!r}; allowed: a whole number, 1 or more")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model on the meta device in training mode, and inputs of `batch` samples."""

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    batch: int
    sample: str
    source: str


def subject_of(model: str | nn.Module, sizes: Sizes, inputs: Any = None) -> Subject:
    """The model of that name, or a copy of that module without its data.

    Raises:
        InputError: an unknown name, a module or function that cannot be imported or fails, inputs
            that cannot be guessed, or a size that has no effect.
    """
    if inputs is not None:
        _refuse_sizes(sizes)
    if isinstance(model, nn.Module):
        name = type(model).__name__
        return _with_inputs(name, model, sizes, inputs, f"module {name}")
    if ":" in model:
        made, given = _call(model, sizes.batch, _on_meta)
        if given is not None:
            _refuse_sizes(sizes)
        inputs = given if inputs is None else inputs
        return _with_inputs(model, made, sizes, inputs, f"what {model} returns")
    name = model.strip().lower().replace("_", "-")
    own = _OWN.get(name)
    if own is not None:
        return _with_inputs(name, _on_meta(own[0]), own[1](sizes), inputs, own[2])
    made, image = _torchvision(name, _on_meta)
    if sizes.image is None:
        sizes = Sizes(sizes.batch, sizes.sequence, image)
    return _with_inputs(name, made, sizes, inputs, "torchvision model")


def runnable(model: str, sizes: Sizes) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model of that name with data, drawn from torch's global seed, and inputs to call it with.

    Inputs that thinwire makes are random: normal numbers, and whole ones below the rows of the
    model's first embedding (2 without one).

    Args:
        model: a name, or "module:function", as in `subject_of`.
        sizes: of the inputs, where they are made here.

    Returns:
        The model in training mode, and the positional and named arguments of a call.

    Raises:
        InputError: as `subject_of`.
    """
    subject = subject_of(model, sizes)
    name, given = model.strip().lower().replace("_", "-"), None
    if ":" in model:
        made, given = _call(model, sizes.batch, lambda make: make())
    elif name in _OWN:
        made = _OWN[name][0]()
    else:
        made, _ = _torchvision(name, lambda make: make())
    if given is not None:
        kwargs = dict(given) if isinstance(given, Mapping) else {}
        args = () if kwargs else given if isinstance(given, tuple) else (given,)
        return made.train(), args, kwargs
    rows = [m.num_embeddings for m in made.modules() if isinstance(m, nn.Embedding)]
    args, kwargs = _pytree.tree_map_only(
        torch.Tensor, lambda x: _drawn(x, next(iter(rows), 2)), (subject.args, subject.kwargs)
    )
    return made.train(), args, kwargs


def _drawn(like: torch.Tensor, below: int) -> torch.Tensor:
    if like.dtype.is_floating_point:
        return torch.randn(like.shape, dtype=like.dtype)
    return torch.randint(below, like.shape, dtype=like.dtype)


def _refuse_sizes(sizes: Sizes) -> None:
    for key in ("sequence", "image"):
        if getattr(sizes, key) is not None:
            raise InputError(f"{key} = {getattr(sizes, key)} has no effect: the inputs are given")


def _square(image: int) -> Callable[[Sizes], Sizes]:
    return lambda sizes: Sizes(sizes.batch, sizes.sequence, sizes.image or image)


def _length(sequence: int) -> Callable[[Sizes], Sizes]:
    return lambda sizes: Sizes(sizes.batch, sizes.sequence or sequence, sizes.image)


_OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[Sizes], Sizes], str]] = {
    "bert-base": (bert_base, _length(64), "BERT as published, both pre-training heads"),
    "bert-large": (bert_large, _length(64), "BERT as published, both pre-training heads"),
    "inception-v4": (inception_v4, _square(299), "Inception-v4 as published"),
    "lstm-ptb": (LSTMPTB, _length(35), "the large LSTM as published"),
    "resnet20": (ResNet20, _square(32), "ResNet-20 as published, shortcuts of option A"),
    "vgg16-cifar": (vgg16_cifar, _square(32), "VGG-16 for CIFAR, with batch normalisation"),
}


def _on_meta(make: Callable[[], Any]) -> Any:
    """What a constructor makes, without data. One that looks at values while it builds (a schedule
    of dropout rates, widths by a formula) is run with data after all."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", FutureWarning)  # of initialisations that do nothing here
        try:
            with torch.device("meta"):
                return make()
        except Exception:  # whatever an operator without data raises; the next call tells
            return make()


def _torchvision(name: str, make: Make) -> tuple[nn.Module, int]:
    """A torchvision classifier or segmenter, and the image size of its published weights."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except ImportError:
        raise InputError(
            f"model = {name!r}; {nearest(name, PUBLISHED)}; module:function for one of your own; "
            "torchvision's others when torchvision is installed (pip install torchvision)"
        ) from None
    known = name.replace("-", "_")
    if known not in models.list_models():
        others = [n.replace("_", "-") for n in models.list_models()]
        close = difflib.get_close_matches(name, [*PUBLISHED, *others], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"model = {name!r}; {hint}valid: {', '.join(PUBLISHED)}; torchvision's others; "
            "module:function for one of your own"
        )
    builder = models.get_model_builder(known)
    family = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    if family in ("detection", "optical_flow", "quantization", "video"):
        raise InputError(
            f"model = {name!r}: torchvision's {family} models cannot be described by name; write a "
            "function that returns the model and its inputs, and give module:function"
        )
    settings = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        settings["weights_backbone"] = None  # or it would be downloaded
    made = make(lambda: builder(**settings))
    image = getattr(made, "image_size", None)
    if image is None:
        given = next(iter(models.get_model_weights(known))).transforms.keywords
        image = given.get("crop_size", given.get("resize_size", 224))
    return made, image if isinstance(image, int) else image[0]


def _call(spec: str, batch: int, build: Make) -> tuple[nn.Module, Any]:
    """What `module:function` makes: a model, or a model and its inputs."""
    module_name, _, name = spec.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        raise InputError(
            f"model = {spec!r}: {error}; the module must lie on Python's path (PYTHONPATH)"
        ) from error
    except Exception as error:
        raise InputError(
            f"model = {spec!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    if not callable(make):
        raise InputError(f"model = {spec!r}: module {module_name} has no function {name!r}")
    try:
        given = {"batch": batch} if "batch" in inspect.signature(make).parameters else {}
        made = build(lambda: make(**given))
    except Exception as error:
        raise InputError(
            f"model = {spec!r}: calling {name} raised {type(error).__name__}: {error}"
        ) from error
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model = {spec!r}: {name} returned {type(made).__name__}; allowed: a torch module, or "
            "a module and its inputs (a tensor, a tuple, or a dict)"
        )
    return model, inputs


def _with_inputs(name: str, model: nn.Module, sizes: Sizes, inputs: Any, source: str) -> Subject:
    model = _without_data(model).train()
    if inputs is None:
        args, kwargs, sample = _guess(model, sizes)
        return Subject(
            name=name, model=model, args=args, kwargs=kwargs, batch=sizes.batch,
            sample=sample, source=source,
        )  # fmt: skip
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if kwargs else inputs if isinstance(inputs, tuple) else (inputs,)
    args, kwargs = _pytree.tree_map_only(
        torch.Tensor, lambda x: torch.empty_like(x, device="meta"), (args, kwargs)
    )
    shapes = [tuple(x.shape) for x in _pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
    return Subject(
        name=name, model=model, args=args, kwargs=kwargs, batch=sizes.batch,
        sample=f"1/{sizes.batch} of inputs {', '.join(map(str, shapes))}", source=source,
    )  # fmt: skip


def _without_data(model: nn.Module) -> nn.Module:
    try:
        return without_data(model)
    except Exception as error:
        raise InputError(
            f"model {type(model).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "give module:function instead, which makes it anew"
        ) from error


def _guess(model: nn.Module, sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Inputs by the names that forward takes, or by the first layer; and what a sample is.

    Raises:
        InputError: neither says enough, or a size has no effect on them.
    """
    names = inspect.signature(model.forward).parameters
    if "input_ids" in names:
        keys = [key for key in ("input_ids", "decoder_input_ids") if key in names]
        tokens, sample = _tokens(sizes, "tokens")
        return (), dict.fromkeys(keys, tokens), sample
    if "pixel_values" in names:
        config = getattr(model, "config", None)
        channels = getattr(config, "num_channels", 3)
        published = getattr(config, "image_size", 224)
        pixels, sample = _pixels(sizes, channels, published if isinstance(published, int) else 224)
        return (), {"pixel_values": pixels.to(_dtype(model))}, sample
    leaves = (m for m in model.modules() if not [*m.children()])
    first = next((m for m in leaves if [*m.parameters()]), None)
    if isinstance(first, nn.Conv2d):
        pixels, sample = _pixels(sizes, first.in_channels, 224)
        return (pixels.to(_dtype(model)),), {}, sample
    if isinstance(first, (nn.Embedding, nn.EmbeddingBag)):
        tokens, sample = _tokens(sizes, "words")
        return (tokens,), {}, sample
    if isinstance(first, nn.RNNBase):
        _no_effect(sizes, "image", "sequences")
        length = sizes.sequence or 64
        shape = (sizes.batch, length) if first.batch_first else (length, sizes.batch)
        x = torch.empty(*shape, first.input_size, dtype=_dtype(model), device="meta")
        return (x,), {}, f"sequence of {length} vectors of {first.input_size}"
    if isinstance(first, nn.Linear):
        for key in ("image", "sequence"):
            _no_effect(sizes, key, "vectors")
        x = torch.empty(sizes.batch, first.in_features, dtype=_dtype(model), device="meta")
        return (x,), {}, f"vector of {first.in_features}"
    what = "has no parameters" if first is None else f"begins with {type(first).__name__}"
    raise InputError(
        f"model {type(model).__name__} {what}, from which its inputs do not follow: give inputs, "
        "or a module:function that returns the model and its inputs"
    )


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _tokens(sizes: Sizes, word: str) -> tuple[torch.Tensor, str]:
    _no_effect(sizes, "image", "sequences")
    length = sizes.sequence or 64
    tokens = torch.zeros(sizes.batch, length, dtype=torch.long, device="meta")
    return tokens, f"sequence of {length} {word}"


def _pixels(sizes: Sizes, channels: int, published: int) -> tuple[torch.Tensor, str]:
    _no_effect(sizes, "sequence", "images")
    side = sizes.image or published
    pixels = torch.empty(sizes.batch, channels, side, side, device="meta")
    return pixels, f"image of {channels}×{side}×{side}"


def _no_effect(sizes: Sizes, key: str, what: str) -> None:
    if getattr(sizes, key) is not None:
        raise InputError(f"{key} = {getattr(sizes, key)} has no effect: the model takes {what}")
