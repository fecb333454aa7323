"""Images as callers hand them in: what is taken, and what is refused before it costs anything."""

from __future__ import annotations

import warnings
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from math import prod
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stepweave.models.images import ImageError, ImageReader, digest_of
from stepweave.models.vision import Pixels
from stepweave.testing.vision import save_tiny_vision


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ImageReader:
    path = save_tiny_vision(tmp_path_factory.mktemp("model"))
    return ImageReader(str(path), max_bytes=4000, max_pixels=32 * 32)


def encoded(size: tuple[int, int] = (24, 16), seed: int = 0, kind: str = "PNG") -> bytes:
    colours = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    stream = BytesIO()
    Image.fromarray(colours).save(stream, kind)
    return stream.getvalue()


def read(reader: ImageReader, source: str, *, files: bool) -> Pixels:
    return reader.pixels(reader.open(source, files=files))


def url(raw: bytes) -> str:
    return f"data:image/png;base64,{b64encode(raw).decode()}"


def test_an_image_is_the_same_from_a_file_and_from_a_url(
    reader: ImageReader, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    of_file = read(reader, str(tmp_path / "a.png"), files=True)
    of_url = read(reader, url(encoded()), files=False)
    assert of_file.grid == of_url.grid == (1, 4, 6)
    assert len(of_url.patches) == 4 * 6 * 3 * 2 * 4 * 4 * 4
    assert digest_of(of_file) == digest_of(of_url)
    assert digest_of(of_url) != digest_of(read(reader, url(encoded(seed=1)), files=False))
    turned = read(reader, url(encoded((16, 24))), files=False)
    assert turned.grid == (1, 6, 4)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("http://example.com/a.png", "a http address is not fetched"),
        ("https://example.com/a.png", "a https address is not fetched"),
        ("ftp://example.com/a.png", "a ftp address is not fetched"),
        ("/etc/passwd", "no file is opened"),
        ("data:image/png;base64,####", "its data URL is not base64"),
        ("data:image/png;base64,AAé=", "its data URL is not base64"),
        ("data:image/png,AAAA", "a data address is not fetched"),
        (url(b"no image"), "it cannot be read: it is no PNG, JPEG, WEBP, GIF or BMP"),
        (url(encoded()[:200]), "it cannot be read"),
        (url(encoded(kind="TIFF")), "it cannot be read: it is no PNG, JPEG, WEBP, GIF or BMP"),
        (url(encoded((33, 32))), "it has 33 x 32 pixels, more than 1024"),
        (url(bytes(4001)), "it has more than 4000 bytes"),
    ],
)
def test_what_is_no_image_of_that_size_is_refused(
    reader: ImageReader, source: str, said: str
) -> None:
    with pytest.raises(ImageError) as caught:
        read(reader, source, files=False)
    assert said in str(caught.value)


def test_an_error_of_a_decoder_is_told_without_the_places_of_objects(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(stream: BytesIO, **given: Any) -> None:
        raise OSError(f"nothing is in {stream} for {broken}")

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(ImageError) as caught:
        read(reader, url(encoded()), files=False)
    assert str(caught.value).startswith("it cannot be read: OSError: nothing is in <_io.BytesIO> ")
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("size", [(24, 16), (1, 1), (32, 32), (5, 31), (32, 9)])
@pytest.mark.parametrize("turned", [False, True])
def test_how_many_patches_there_will_be_is_known_before_anything_is_decoded(
    reader: ImageReader, size: tuple[int, int], turned: bool
) -> None:
    exif, stream = Image.Exif(), BytesIO()
    exif[0x0112] = 6 if turned else 1  # by a quarter
    Image.open(BytesIO(encoded(size))).save(stream, "PNG", exif=exif)
    picture = reader.open(url(stream.getvalue()), files=False)
    assert picture.patches == prod(reader.pixels(picture).grid)


@pytest.mark.parametrize("name", ["photo:1.png", "data1:2.png"])
def test_the_name_of_a_file_may_have_a_colon(
    reader: ImageReader, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(encoded())
    assert read(reader, name, files=True).grid == (1, 4, 6)
    with pytest.raises(ImageError, match="a https address is not fetched"):
        read(reader, f"https://{name}", files=True)


def test_a_file_is_read_no_further_than_the_limit(reader: ImageReader, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5000))
    with pytest.raises(ImageError, match="more than 4000 bytes"):
        read(reader, str(tmp_path / "large"), files=True)
    with pytest.raises(ImageError, match="cannot be opened"):
        read(reader, str(tmp_path / "nowhere.png"), files=True)


def test_images_that_are_read_at_once_leave_the_process_s_warnings_as_they_are(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filters of warnings belong to the process: who changed them first must not end first."""
    opened, entered, first_is_done = Image.open, Event(), Event()

    def slowly(*given: Any, **more: Any) -> Any:
        if not entered.is_set():
            entered.set()
            second_is_in.wait(0.2)
        else:
            second_is_in.set()
            first_is_done.wait(10)
        return opened(*given, **more)

    second_is_in, before = Event(), list(warnings.filters)
    monkeypatch.setattr(Image, "open", slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read, reader, url(encoded()), files=False)
        assert entered.wait(10)
        second = threads.submit(read, reader, url(encoded()), files=False)
        first.add_done_callback(lambda done: first_is_done.set())
        assert digest_of(first.result(20)) == digest_of(second.result(20))
    assert list(warnings.filters) == before
