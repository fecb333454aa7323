"""Where a browser really puts the words of a drawing."""

from __future__ import annotations

from typing import Any

_WORDS = """
const svg = document.querySelector(`svg.view.${arguments[0]}`);
const unit = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
const frame = svg.getBoundingClientRect();
return {
  unit, frame: frame.toJSON(),
  words: [...svg.querySelectorAll("text")]
    .filter((text) => text.checkVisibility() && text.textContent.trim())
    .map((text) => ({ said: text.textContent, box: text.getBoundingClientRect().toJSON() })),
};
"""


def _words(driver: Any, view: str) -> dict[str, Any]:
    found: dict[str, Any] = driver.execute_script(_WORDS, view)
    assert found["words"], f"{view} has no words"
    return found


def overlapping(driver: Any, view: str, allowed: float = 1.5) -> list[tuple[str, str]]:
    """Pairs of labels whose boxes share more than `allowed` units both ways.

    A line's box is higher than its letters by a quarter on either side, which is taken off.
    """
    found = _words(driver, view)
    least = allowed * found["unit"]
    boxes = [(word["said"], _letters(word["box"])) for word in found["words"]]
    return [
        (a, b)
        for k, (a, first) in enumerate(boxes)
        for b, second in boxes[k + 1 :]
        if min(first[2], second[2]) - max(first[0], second[0]) > least
        and min(first[3], second[3]) - max(first[1], second[1]) > least
    ]


def outside(driver: Any, view: str, allowed: float = 1.0) -> list[str]:
    """Labels that leave the drawing."""
    found = _words(driver, view)
    frame = found["frame"]
    return [
        word["said"]
        for word in found["words"]
        for box in [word["box"]]
        if box["left"] < frame["left"] - allowed
        or box["top"] < frame["top"] - allowed
        or box["right"] > frame["right"] + allowed
        or box["bottom"] > frame["bottom"] + allowed
    ]


def _letters(box: dict[str, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = box["left"], box["top"], box["right"], box["bottom"]
    if right - left >= bottom - top:
        spare = (bottom - top) * 0.12
        return left, top + spare, right, bottom - spare
    spare = (right - left) * 0.12
    return left + spare, top, right - spare, bottom
