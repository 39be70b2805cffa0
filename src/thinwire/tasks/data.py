"""Reading image data sets from the formats people have them in.

Fashion-MNIST: the four IDX files, gzipped or not, as the Debian package installs them or as
torchvision lays them out. CIFAR-10: the binary version of its home page, or an .npz file of JPEG
images. CIFAR-10's Python version is a pickle, and unpickling a file runs whatever is in it, so it
is refused by name.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from thinwire.errors import InputError
from thinwire.tasks.base import Split

__all__ = [
    "CIFAR10",
    "DATA_VARIABLE",
    "FASHION_MNIST",
    "Source",
    "check_limit",
    "first",
    "read_cifar_binary",
    "read_cifar_npz",
    "read_idx",
]

DATA_VARIABLE = "THINWIRE_DATA"
"""Environment variable with the place to search where no `data` is given."""

_DEBIAN = Path("/usr/share/datasets")
_NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set comes from.

    Args:
        find: the file or folder that holds it, given where the user says it is; raises
            `InputError` where there is none, without reading much.
        read: the samples of "train" or "test" in a place that was found, at most so many.
    """

    find: Callable[[Path | None], Path]
    read: Callable[[Path, str, int | None], Split]


def check_limit(key: str, limit: int | None) -> None:
    """Refuse a number of samples that no data set can have.

    Raises:
        InputError: not a whole number of 1 or more.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InputError(f"{key} = {limit!r}; allowed: whole numbers, 1 or more")


def first(x: torch.Tensor, y: torch.Tensor, key: str, limit: int | None) -> Split:
    """The first `limit` samples, or all.

    Raises:
        InputError: more than there are.
    """
    count = _num_taken(len(y), key, limit)
    # A copy, so that the rest need not stay in memory.
    return (x, y) if count == len(y) else (x[:count].clone(), y[:count].clone())


def _num_taken(num_samples: int, key: str, limit: int | None) -> int:
    if limit is not None and limit > num_samples:
        raise InputError(f"{key} = {limit}; allowed: 1..{num_samples}, the samples that there are")
    return num_samples if limit is None else limit


def _places(data: Path | None) -> list[Path]:
    """Where to search: what the caller says, or else what the environment says, or else Debian."""
    if data is not None:
        return [data]
    variable = os.environ.get(DATA_VARIABLE)  # a user's folder, not a setting of the run
    return [Path(variable).expanduser()] if variable else [_DEBIAN]


def _not_found(what: str, places: Iterable[Path], help_text: str) -> InputError:
    looked = ", ".join(str(place) for place in places)
    return InputError(
        f"no {what} in {looked}. {help_text} Say where it is with --data PATH or the environment "
        f"variable {DATA_VARIABLE}"
    )


# Fashion-MNIST


def _find_fashion_mnist(data: Path | None) -> Path:
    places = _places(data)
    for place in places:
        for folder in (".", "fashion-mnist", "FashionMNIST/raw"):
            if _idx_file(place / folder, "train", "images") is not None:
                return place / folder
    raise _not_found(
        "Fashion-MNIST (train-images-idx3-ubyte, also .gz, there or in fashion-mnist/ or "
        "FashionMNIST/raw/)",
        places,
        "On Debian and Ubuntu: apt install dataset-fashion-mnist; elsewhere: the four files of "
        "github.com/zalandoresearch/fashion-mnist.",
    )


def _idx_file(folder: Path, split: str, content: str) -> Path | None:
    stem = "train" if split == "train" else "t10k"
    name = f"{stem}-{content}-idx{3 if content == 'images' else 1}-ubyte"
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    return None


def _read_fashion_mnist(folder: Path, split: str, limit: int | None) -> Split:
    parts = []
    for content in ("images", "labels"):
        path = _idx_file(folder, split, content)
        if path is None:
            raise InputError(f"{folder} has no {content} of the {split} split of Fashion-MNIST")
        parts.append(read_idx(path))
    x, y = parts
    if x.dim() != 3 or x.shape[1:] != (28, 28) or y.shape != x.shape[:1]:
        raise InputError(
            f"{folder}: {split} images of shape {tuple(x.shape)} and labels of {tuple(y.shape)}; "
            "expected (n, 28, 28) and (n,)"
        )
    return _checked_split(x.unsqueeze(1), y, folder, split, limit)


def read_idx(path: Path) -> torch.Tensor:
    """An array of bytes in the IDX format, gzipped where the name ends in .gz.

    Returns:
        uint8 tensor of the shape that the file declares.

    Raises:
        InputError: not an IDX file of bytes, or cut short.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    num_dims = raw[3] if len(raw) >= 4 else 0
    if raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * num_dims:
        raise InputError(f"{path} is not an IDX file of bytes: it begins {raw[:4].hex()}")
    shape = np.frombuffer(raw, ">u4", count=num_dims, offset=4).astype(np.int64)
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * num_dims)
    if body.size != shape.prod():
        raise InputError(f"{path} declares the shape {shape.tolist()} and holds {body.size} bytes")
    return torch.from_numpy(body.reshape(shape).copy())


FASHION_MNIST = Source(find=_find_fashion_mnist, read=_read_fashion_mnist)


# CIFAR-10

_CIFAR_FILES = {
    "train": [f"data_batch_{i}.bin" for i in range(1, 6)],
    "test": ["test_batch.bin"],
}
_CIFAR_BYTES = 3 * 32 * 32


def _find_cifar10(data: Path | None) -> Path:
    places = _places(data)
    pickled = None
    for place in places:
        if place.is_file() and place.suffix == ".npz":
            return place
        for folder in (place, place / "cifar10", place / "cifar-10-batches-bin"):
            if (folder / "data_batch_1.bin").is_file():
                return folder
            found = sorted(folder.glob("cifar10*.npz"))
            if found:
                return found[0]
        for folder in (place, place / "cifar-10-batches-py"):
            if (folder / "data_batch_1").is_file():
                pickled = folder
    if pickled is not None:
        raise InputError(
            f"{pickled} holds CIFAR-10's Python version, which is a pickle and is not read, since "
            "unpickling runs whatever is in the file. Take the binary version "
            "(cifar-10-binary.tar.gz, www.cs.toronto.edu/~kriz/cifar.html)"
        )
    raise _not_found(
        "CIFAR-10 (data_batch_1.bin or cifar10*.npz, there or in cifar10/ or "
        "cifar-10-batches-bin/)",
        places,
        "The binary version is cifar-10-binary.tar.gz of www.cs.toronto.edu/~kriz/cifar.html.",
    )


def _read_cifar10(place: Path, split: str, limit: int | None) -> Split:
    if place.is_file():
        return read_cifar_npz(place, split, limit)
    return read_cifar_binary(place, split, limit)


def read_cifar_binary(folder: Path, split: str, limit: int | None = None) -> Split:
    """CIFAR-10's binary version: records of a label byte and the three planes of 32×32 bytes.

    Args:
        folder: with data_batch_1.bin ... data_batch_5.bin and test_batch.bin.
        split: "train" or "test".
        limit: take only the first samples.

    Returns:
        uint8 (n, 3, 32, 32) and int64 (n,).

    Raises:
        InputError: a file that is missing or not of whole records.
    """
    parts = []
    for name in _CIFAR_FILES[split]:
        path = folder / name
        try:
            raw = np.fromfile(path, np.uint8)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        if raw.size == 0 or raw.size % (1 + _CIFAR_BYTES):
            raise InputError(
                f"{path} has {raw.size} bytes, not whole records of {1 + _CIFAR_BYTES}"
            )
        parts.append(raw.reshape(-1, 1 + _CIFAR_BYTES))
    records = np.concatenate(parts)
    x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32))
    return _checked_split(x, torch.from_numpy(records[:, 0]), folder, split, limit)


def read_cifar_npz(path: Path, split: str, limit: int | None = None) -> Split:
    """CIFAR-10 as JPEG images in an .npz file; needs Pillow.

    The file holds, for each split, `train_jpeg` (uint8: the images' files one after the other),
    `train_offset` (int64, n+1: image i is `jpeg[offset[i]:offset[i+1]]`) and `train_label`
    (uint8, n). JPEG loses some detail, so that accuracies are not exactly those of the original.

    Args:
        path: the file.
        split: "train" or "test".
        limit: decode only the first samples.

    Returns:
        uint8 (n, 3, 32, 32) and int64 (n,).

    Raises:
        InputError: Pillow is missing, or the file is not as said.
    """
    try:
        from PIL import Image  # optional dependency
    except ImportError as error:
        raise InputError(f"{path} holds JPEG images: pip install 'thinwire[images]'") from error
    jpeg, offset, label = _npz_arrays(path, split)
    if offset.shape != (len(label) + 1,) or np.any(np.diff(offset) < 0) or offset[-1] > jpeg.size:
        raise InputError(f"{path}: {split}_offset does not fit {split}_jpeg and {split}_label")
    count = _num_taken(len(label), f"{split}_limit", limit)
    images = np.empty((count, 32, 32, 3), np.uint8)
    for i in range(count):
        try:
            with Image.open(io.BytesIO(jpeg[offset[i] : offset[i + 1]].tobytes())) as image:
                images[i] = np.asarray(image.convert("RGB"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: image {i} of {split} cannot be decoded: {error}") from error
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return _checked_split(x, torch.from_numpy(label[:count]), path, split, None)


def _npz_arrays(path: Path, split: str) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[f"{split}_{what}"] for what in ("jpeg", "offset", "label")]
    except KeyError as error:
        raise InputError(f"{path} lacks an array: {error.args[0]}") from error
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


CIFAR10 = Source(find=_find_cifar10, read=_read_cifar10)


def _checked_split(
    x: torch.Tensor, y: torch.Tensor, place: Path, split: str, limit: int | None
) -> Split:
    y = y.long()
    if len(y) == 0 or int(y.min()) < 0 or int(y.max()) >= _NUM_CLASSES:
        raise InputError(f"{place}: the {split} labels are not all in 0..{_NUM_CLASSES - 1}")
    return first(x, y, f"{split}_limit", limit)
