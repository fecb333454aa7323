"""Lines between boxes in a grid: through the gaps between columns and rows, never over a box.

Every line leaves its box on the right and enters the other on the left. Between two columns it
runs up or down on a track of its own, between two rows left or right, so no two lines lie on each
other unless they belong to the same link, and a label on its track meets no other label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .svg import number, text_width

BOX = 50.0  # least height of a box
_TRACK, _LABELLED, _LANE = 6.0, 14.0, 4.0  # pitch of tracks: plain, with a label; of vertical ones
_TURN, _APART = 3.0, 8.0
LABEL_SIZE = 10.5


@dataclass(frozen=True)
class Link:
    """Lines from one box to others, which share a label and the way to the last fork."""

    source: str
    targets: tuple[str, ...]
    words: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Routed:
    """Where boxes, lines and labels lie."""

    boxes: Mapping[str, Rect]
    paths: Mapping[tuple[int, str], str]  # (link, target) -> the `d` of a path
    labels: Sequence[tuple[int, float, float]]  # link, left, baseline
    rows: Sequence[tuple[float, float]]  # top and bottom of each row of boxes
    width: float
    height: float


@dataclass
class _Stub:
    """The part of a line between two columns, from a box to a channel or another box."""

    low: float  # coarse heights: row r is 2r + 1, the channel above it 2r
    high: float
    upward: bool  # seen from the box
    x: float = 0.0
    y: float = 0.0  # where it meets its box


@dataclass
class _Segment:
    """The part of a link that runs in one channel between rows."""

    link: int
    channel: int
    targets: list[str]
    out: _Stub
    into: dict[str, _Stub] = field(default_factory=dict)
    left: float = 0.0
    right: float = 0.0
    label: float | None = None
    y: float = 0.0


def route(
    links: Sequence[Link],
    grid: Mapping[str, tuple[int, int]],
    widths: Mapping[str, float],
    *,
    left: float,
    top: float,
) -> Routed:
    """Lay out boxes at their (column, row) and lead all links between them."""
    columns = 1 + max((column for column, _ in grid.values()), default=0)
    rows = 1 + max((row for _, row in grid.values()), default=0)
    segments = [part for k, link in enumerate(links) for part in _split(k, link, grid)]
    outs, ins = _stubs_of(segments, links, grid)
    heights = _row_heights(rows, grid, outs, ins)
    xs, breadth = _columns(columns, grid, widths, outs, ins, left)
    for segment in segments:
        _stretch(segment, links[segment.link])
    right = _fit_labels(segments, left, max(xs[-1] + breadth[-1], left) + 40)
    channels = _tracks(segments, rows + 1, links)
    tops, bottom = _ys(channels, heights, top)
    boxes = {op: Rect(xs[c], tops[r], breadth[c], heights[r]) for op, (c, r) in grid.items()}
    for op, box in boxes.items():
        _ports(box, outs.get(op, []), ins.get(op, []))
    return Routed(
        boxes,
        dict(_paths(segments, links, boxes)),
        [(s.link, s.label, s.y + 3.5) for s in segments if s.label is not None],
        [(tops[r], tops[r] + heights[r]) for r in range(rows)],
        right,
        bottom,
    )


def _split(index: int, link: Link, grid: Mapping[str, tuple[int, int]]) -> Iterator[_Segment]:
    """One segment for each channel that the link needs: the one beside the targets' row."""
    column, row = grid[link.source]
    channels: dict[int, list[str]] = {}
    for target in link.targets:
        c, r = grid[target]
        above = c > column if r == row else r > row
        channel = r if above else r + 1
        channels.setdefault(channel, []).append(target)
    for channel, targets in channels.items():
        segment = _Segment(index, channel, targets, _stub(row, channel))
        segment.into = {target: _stub(grid[target][1], channel) for target in targets}
        yield segment


def _stub(row: int, channel: int) -> _Stub:
    here, there = 2 * row + 1, 2 * channel
    return _Stub(min(here, there), max(here, there), there < here)


def _stubs_of(
    segments: Iterable[_Segment], links: Sequence[Link], grid: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, list[_Stub]], dict[str, list[_Stub]]]:
    outs: dict[str, list[_Stub]] = {op: [] for op in grid}
    ins: dict[str, list[_Stub]] = {op: [] for op in grid}
    for segment in segments:
        outs[links[segment.link].source].append(segment.out)
        for target, stub in segment.into.items():
            ins[target].append(stub)
    return outs, ins


def _row_heights(
    rows: int,
    grid: Mapping[str, tuple[int, int]],
    outs: Mapping[str, list[_Stub]],
    ins: Mapping[str, list[_Stub]],
) -> list[float]:
    """High enough for the ports of the fullest box; half of a side each for above and below."""
    heights = [BOX] * rows
    for op, (_, row) in grid.items():
        for stubs in (outs[op], ins[op]):
            up = sum(stub.upward for stub in stubs)
            heights[row] = max(heights[row], 2 * (max(up, len(stubs) - up) * 5 + 8))
    return heights


def _columns(
    columns: int,
    grid: Mapping[str, tuple[int, int]],
    widths: Mapping[str, float],
    outs: Mapping[str, list[_Stub]],
    ins: Mapping[str, list[_Stub]],
    left: float,
) -> tuple[list[float], list[float]]:
    """x and width of each column, after giving every stub its track in the gap beside it."""
    breadth = [0.0] * columns
    leaving: list[list[_Stub]] = [[] for _ in range(columns + 1)]
    entering: list[list[_Stub]] = [[] for _ in range(columns + 1)]
    for op, (column, _) in grid.items():
        breadth[column] = max(breadth[column], widths[op])
        leaving[column + 1] += outs[op]
        entering[column] += ins[op]
    xs, at = [], left
    for gap in range(columns + 1):
        first, then = _coloured(leaving[gap]), _coloured(entering[gap])
        wide = max(22.0, _LANE * (len(first) + len(then)) + 18)
        for k, track in enumerate(first):
            for stub in track:
                stub.x = at + 5 + _LANE * k
        for k, track in enumerate(then):
            for stub in track:
                stub.x = at + wide - 12 - _LANE * k
        if gap < columns:
            at += wide if gap or then else 0
            xs.append(at)
            at += breadth[gap]
    return xs, breadth


def _coloured(stubs: Sequence[_Stub]) -> list[list[_Stub]]:
    """Tracks on which no two stubs overlap."""
    tracks: list[list[_Stub]] = []
    for stub in sorted(stubs, key=lambda s: (s.low, s.high)):
        free = next((track for track in tracks if track[-1].high < stub.low), None)
        if free is None:
            tracks.append([stub])
        else:
            free.append(stub)
    return tracks


def _stretch(segment: _Segment, link: Link) -> None:
    """How far a segment reaches, with its label beside the place where it enters the channel."""
    ends = [segment.out.x, *(stub.x for stub in segment.into.values())]
    segment.left, segment.right = min(ends), max(ends)
    if link.words:
        width = text_width(link.words, LABEL_SIZE, bold=link.bold)
        backward = segment.left < segment.out.x
        segment.label = segment.out.x - width - 5 if backward else segment.out.x + 5
        segment.left = min(segment.left, segment.label)
        segment.right = max(segment.right, segment.label + width)


def _fit_labels(segments: Sequence[_Segment], left: float, right: float) -> float:
    """Keep labels inside on the left; the picture grows on the right."""
    for segment in segments:
        if segment.label is not None and segment.label < left:
            segment.right = max(segment.right, segment.right + left - segment.label)
            segment.label = segment.left = left
    return max([right, *(segment.right + 8 for segment in segments)])


def _tracks(
    segments: Sequence[_Segment], channels: int, links: Sequence[Link]
) -> list[list[list[_Segment]]]:
    """For each channel its tracks, on which no two segments overlap."""
    found: list[list[list[_Segment]]] = [[] for _ in range(channels)]
    for segment in sorted(segments, key=lambda s: (s.left, s.right, s.link)):
        tracks, plain = found[segment.channel], not links[segment.link].words
        for track in tracks:
            same = plain == (not links[track[0].link].words)
            if same and track[-1].right + _APART <= segment.left:
                track.append(segment)
                break
        else:
            tracks.append([segment])
    return found


def _ys(
    channels: Sequence[Sequence[Sequence[_Segment]]], heights: Sequence[float], top: float
) -> tuple[list[float], float]:
    tops, at = [], top
    for row, tracks in enumerate(channels):
        at += 8
        for track in tracks:
            pitch = _TRACK if track[0].label is None else _LABELLED
            for segment in track:
                segment.y = at + pitch / 2
            at += pitch
        at += 8
        if row < len(heights):
            tops.append(at)
            at += heights[row]
    return tops, at


def _ports(box: Rect, outs: Sequence[_Stub], ins: Sequence[_Stub]) -> None:
    """Where lines meet a box: the upper half for those from above; ordered to cross least."""
    for stubs, sign in ((outs, 1), (ins, -1)):
        for upward in (True, False):
            half = [stub for stub in stubs if stub.upward == upward]
            half.sort(key=lambda stub: stub.x * sign * (1 if upward else -1))
            room = box.height / 2 - 7
            start = box.y + (3 if upward else box.height / 2 + 4)
            for k, stub in enumerate(half):
                stub.y = start + room * (k + 1) / (len(half) + 1)


def _paths(
    segments: Iterable[_Segment], links: Sequence[Link], boxes: Mapping[str, Rect]
) -> Iterator[tuple[tuple[int, str], str]]:
    for segment in segments:
        box, out = boxes[links[segment.link].source], segment.out
        for target, into in segment.into.items():
            corners = [
                (box.x + box.width, out.y),
                (out.x, out.y),
                (out.x, segment.y),
                (into.x, segment.y),
                (into.x, into.y),
                (boxes[target].x, into.y),
            ]
            yield (segment.link, target), rounded(corners)


def rounded(corners: Sequence[tuple[float, float]]) -> str:
    """A line of straight parts with round corners."""
    (x, y), *rest = corners
    path = f"M{number(x)} {number(y)}"
    for (a, b), (c, d) in pairwise(rest):
        before = _toward(a, b, x, y)
        after = _toward(a, b, c, d)
        path += f"L{number(before[0])} {number(before[1])}"
        path += f"Q{number(a)} {number(b)} {number(after[0])} {number(after[1])}"
        x, y = a, b
    end = rest[-1]
    return path + f"L{number(end[0])} {number(end[1])}"


def _toward(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """A little way from a corner to the next, at most half of it."""
    length = abs(to_x - x) + abs(to_y - y)
    if not length:
        return x, y
    part = min(_TURN, length / 2) / length
    return x + (to_x - x) * part, y + (to_y - y) * part
