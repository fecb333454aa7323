"""A folder that is replaced, by its own name or through a link."""

from pathlib import Path

from training.replacing import replacing


def write(out: Path, text: str) -> None:
    with replacing(out) as fresh:
        (fresh / "weights").write_text(text)


def test_what_a_link_names_is_replaced_as_often_as_asked(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for text in ("first", "second"):
        write(link, text)
        assert (real / "weights").read_text() == text
    assert link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]
