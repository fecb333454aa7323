"""A histogram that sorts later has what one of Prometheus's library has, at any moment."""

from __future__ import annotations

import threading
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.samples import Sample

from stepweave.server.metrics.histograms import BETWEEN_TOKENS, OLDER_BETWEEN_TOKENS, TOKEN_S
from stepweave.server.metrics.tally import MOST_NOTED, Tally

COMMON = (("model_name", "embedded"), ("engine", "0"))
PAIR = (BETWEEN_TOKENS, OLDER_BETWEEN_TOKENS)


def exposed(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    samples: list[Sample] = [each for family in registry.collect() for each in family.samples]
    return [(s.name, s.labels, s.value) for s in samples if not s.name.endswith("_created")]


@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from([0.0, *TOKEN_S, 1e6]), st.floats(0, 100)), max_size=30),
        max_size=4,
    )
)
def test_it_says_what_the_librarys_histograms_say_whenever_it_is_read(
    scrapes: list[list[float]],
) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = Tally(PAIR, COMMON)
    ours.register(tally)
    values = [value for _, value in COMMON]
    histograms = [
        Histogram(
            each.name, each.says, [name for name, _ in COMMON], buckets=TOKEN_S, registry=theirs
        ).labels(*values)
        for each in PAIR
    ]
    assert exposed(ours) == exposed(theirs)
    for amounts in scrapes:
        for amount in amounts:
            tally.note(amount)
            for each in histograms:
                each.observe(amount)
        assert exposed(ours) == exposed(theirs)


def test_nothing_is_lost_or_counted_twice_between_who_notes_and_who_reads() -> None:
    tally = Tally(PAIR, COMMON)
    each, noted = 3 * MOST_NOTED, threading.Event()

    def note() -> None:
        for _ in range(each):
            tally.note(0.25)

    def count() -> float:
        [first, second] = tally.collect()
        counts = [
            s.value for s in chain(first.samples, second.samples) if s.name.endswith("_count")
        ]
        assert counts[0] == counts[1]
        return counts[0]

    seen: list[float] = []

    def read() -> None:
        while not noted.is_set():
            seen.append(count())

    noting = [threading.Thread(target=note) for _ in range(2)]
    reading = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*reading, *noting):
        thread.start()
    for thread in noting:
        thread.join()
    noted.set()
    for thread in reading:
        thread.join()
    assert count() == 2 * each
    assert all(number <= 2 * each for number in seen)


def test_what_waits_to_be_sorted_is_bounded_though_nobody_reads() -> None:
    tally = Tally(PAIR, COMMON)
    for _ in range(10 * MOST_NOTED):
        tally.note(0.1)
        assert len(tally._noted) < MOST_NOTED
