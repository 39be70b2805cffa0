"""The readers, on small files of each format written here; and the real sets where they are."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from thinwire.errors import InputError
from thinwire.tasks import Task, load_task
from thinwire.tasks.data import DATA_VARIABLE, read_cifar_binary, read_cifar_npz, read_idx

RANDOM = np.random.default_rng(0)
X_FASHION = RANDOM.integers(0, 256, (12, 28, 28), np.uint8)
X_CIFAR = RANDOM.integers(0, 256, (12, 3, 32, 32), np.uint8)
LABELS = (np.arange(12) % 10).astype(np.uint8)


@pytest.fixture(autouse=True)
def _no_places_of_this_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        monkeypatch.setattr("thinwire.tasks.data._DEBIAN", Path("/nonexistent"))


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _write_fashion(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "t10k"):
        for name, array in (("images-idx3", X_FASHION), ("labels-idx1", LABELS)):
            data = _idx(array)
            path = folder / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    return folder


def _write_cifar_binary(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate([LABELS[:, None], X_CIFAR.reshape(12, -1)], axis=1)
    for i in range(5):
        records[2 * i : 2 * i + 2].tofile(folder / f"data_batch_{i + 1}.bin")
    records[10:].tofile(folder / "test_batch.bin")
    return folder


def _write_cifar_npz(path: Path, **changes: np.ndarray) -> Path:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for split in ("train", "test"):
        files = []
        for i in range(12):
            smooth = np.full((32, 32, 3), [20 * i, 100, 255 - 20 * i], np.uint8)
            image.fromarray(smooth).save(file := io.BytesIO(), "JPEG", quality=95)
            files.append(file.getvalue())
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{split}_offset"] = np.cumsum([0, *map(len, files)])
        arrays[f"{split}_label"] = LABELS
    np.savez(path, **(arrays | changes))
    return path


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("layout", [".", "fashion-mnist", "FashionMNIST/raw"])
def test_fashion_mnist_is_found_in_each_layout(tmp_path: Path, layout: str, packed: bool):
    _write_fashion(tmp_path / layout, packed)
    task = load_task("fashion-mnist", tmp_path)
    for x, y in (task.train_data(), task.test_data()):
        assert torch.equal(x, torch.from_numpy(X_FASHION).unsqueeze(1))
        assert y.tolist() == LABELS.tolist()
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("layout", [".", "cifar10", "cifar-10-batches-bin"])
@pytest.mark.parametrize("name", ["cifar10", "cifar10-resnet20"])
def test_cifar10_is_found_in_each_layout(tmp_path: Path, layout: str, name: str):
    _write_cifar_binary(tmp_path / layout)
    task = load_task(name, tmp_path)
    x, y = task.train_data()
    assert torch.equal(x, torch.from_numpy(X_CIFAR[:10]))
    assert y.tolist() == LABELS[:10].tolist()
    assert torch.equal(task.test_data()[0], torch.from_numpy(X_CIFAR[10:]))


@pytest.mark.parametrize("point_at", ["cifar10/cifar10_jpeg.npz", "cifar10", "."])
def test_cifar10_is_read_from_jpeg_images(tmp_path: Path, point_at: str):
    _write_cifar_npz(tmp_path / "cifar10" / "cifar10_jpeg.npz")
    x, y = load_task("cifar10", tmp_path / point_at).train_data()
    expected = torch.tensor([[20 * i, 100, 255 - 20 * i] for i in range(12)])
    assert x.shape == (12, 3, 32, 32)
    assert (x.int() - expected.view(12, 3, 1, 1)).abs().max() <= 2
    assert y.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("fashion-mnist", _write_fashion),
        ("cifar10", _write_cifar_binary),
        ("cifar10", lambda folder: _write_cifar_npz(folder / "cifar10.npz")),
    ],
)
def test_limits_take_the_first_samples(tmp_path: Path, name: str, write: Callable[[Path], Path]):
    write(tmp_path)
    whole, few = load_task(name, tmp_path), load_task(name, tmp_path, train_limit=7, test_limit=2)
    assert torch.equal(few.train_data()[0], whole.train_data()[0][:7])
    assert torch.equal(few.train_data()[1], whole.train_data()[1][:7])
    assert few.num_train == 7
    assert len(few.test_data()[1]) == 2
    with pytest.raises(InputError, match=r"train_limit = 13; allowed: 1\.\.1[02]"):
        load_task(name, tmp_path, train_limit=13).train_data()
    with pytest.raises(InputError, match="test_limit = 0"):
        load_task(name, tmp_path, test_limit=0)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar10-resnet20"])
def test_an_image_task_trains_and_evaluates(tmp_path: Path, name: str):
    _write_fashion(tmp_path)
    _write_cifar_binary(tmp_path)
    task = load_task(name, tmp_path)
    model, (x, y) = task.model(), task.train_data()
    task.loss(model, x, y).backward()
    assert all(p.grad is not None for p in model.parameters())
    accuracy, loss = task.evaluate(model)
    assert 0 <= accuracy <= 1
    assert loss > 0


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_missing_data_say_what_to_get_and_where_to_point(tmp_path: Path, name: str):
    with pytest.raises(InputError) as error:
        load_task(name, tmp_path)
    for part in (str(tmp_path), "--data", DATA_VARIABLE, "binary" if name == "cifar10" else "apt"):
        assert part in str(error.value)


def test_the_environment_is_searched_only_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _write_fashion(tmp_path / "here")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "here"))
    assert load_task("fashion-mnist").num_train == 12
    with pytest.raises(InputError, match="elsewhere"):
        load_task("fashion-mnist", tmp_path / "elsewhere")


def test_the_pickled_version_is_refused_by_name(tmp_path: Path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"\x80\x02.")
    with pytest.raises(InputError, match="pickle"):
        load_task("cifar10", tmp_path)


def test_the_binary_version_is_taken_where_both_are(tmp_path: Path):
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02.")
    _write_cifar_binary(tmp_path)
    assert load_task("cifar10", tmp_path).num_train == 10


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not an IDX file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "not an IDX file of bytes: it begins 00000d01"),
        (b"\x00\x00\x08\x03\x00\x00", "not an IDX file"),
        (_idx(LABELS)[:-1], r"declares the shape \[12\] and holds 11 bytes"),
        (_idx(LABELS) + b"\x00", "holds 13 bytes"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path: Path, content: bytes, match: str):
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        read_idx(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content", [gzip.compress(_idx(LABELS), mtime=0)[:-9], b"plainly not gzip"]
)
def test_a_broken_gzip_file_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"labels\.gz cannot be read"):
        read_idx(path)


def test_images_and_labels_that_do_not_fit_are_refused(tmp_path: Path):
    _write_fashion(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(LABELS[:-1]))
    with pytest.raises(InputError, match=r"\(12, 28, 28\) and labels of \(11,\)"):
        load_task("fashion-mnist", tmp_path).train_data()
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(LABELS + 5))
    with pytest.raises(InputError, match=r"labels are not all in 0\.\.9"):
        load_task("fashion-mnist", tmp_path).train_data()
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="no labels of the test split"):
        load_task("fashion-mnist", tmp_path).test_data()


def test_a_broken_cifar_batch_is_named(tmp_path: Path):
    _write_cifar_binary(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_3.bin has 6145 bytes, not whole records"):
        read_cifar_binary(tmp_path, "train")
    path.unlink()
    with pytest.raises(InputError, match=r"data_batch_3.bin cannot be read"):
        read_cifar_binary(tmp_path, "train")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_offset": np.arange(5)}, "train_offset does not fit"),
        ({"train_offset": np.arange(13)[::-1]}, "train_offset does not fit"),
        ({"train_offset": np.arange(13) * 10**6}, "train_offset does not fit"),
        ({"train_jpeg": np.zeros(10**5, np.uint8)}, "image 0 of train cannot be decoded"),
        ({"train_label": np.array([{}] * 12)}, "cannot be read"),  # objects would be unpickled
    ],
)
def test_a_broken_npz_is_named(tmp_path: Path, changes: dict[str, np.ndarray], match: str):
    path = _write_cifar_npz(tmp_path / "cifar10.npz", **changes)
    with pytest.raises(InputError, match=match) as error:
        read_cifar_npz(path, "train")
    assert str(path) in str(error.value)


def test_an_npz_of_something_else_is_named(tmp_path: Path):
    pytest.importorskip("PIL.Image", reason="needs Pillow")
    path = tmp_path / "cifar10.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(InputError, match="lacks an array"):
        read_cifar_npz(path, "train")
    path.write_bytes(b"no archive at all")
    with pytest.raises(InputError, match="cannot be read"):
        read_cifar_npz(path, "train")


@pytest.fixture
def real_data() -> Callable[..., Task]:
    def load(name: str, **settings: int) -> Task:
        try:
            return load_task(name, **settings)
        except InputError as error:
            pytest.skip(str(error))

    return load


def test_the_real_fashion_mnist(real_data: Callable[..., Task]):
    task = real_data("fashion-mnist")
    assert torch.bincount(task.train_data()[1]).tolist() == [6000] * 10
    assert torch.bincount(task.test_data()[1]).tolist() == [1000] * 10
    x = task.train_data()[0].float() / 255
    assert x.mean().item() == pytest.approx(0.2860, abs=1e-4)
    assert x.std().item() == pytest.approx(0.3530, abs=1e-4)


def test_the_real_cifar10(real_data: Callable[..., Task]):
    pytest.importorskip("PIL.Image", reason="the images may be JPEG: needs Pillow")
    task = real_data("cifar10", train_limit=2000, test_limit=500)
    x = task.train_data()[0].float() / 255
    assert x.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.02)
    assert torch.bincount(task.train_data()[1]).min() > 150
    assert len(task.test_data()[1]) == 500
