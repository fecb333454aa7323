"""A batch is a value: it says the same whenever, and wherever, it is read."""

import pickle
import subprocess
import sys
from dataclasses import replace

from stepweave.requests.batch import StepBatch
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.structured.grammar import GrammarSpec
from tests.requests.memory_model import limits, request, settle


class Grammar:
    """As far as a table needs one."""

    spec = GrammarSpec("choice", '["yes", "no"]')
    vocab_size = 8
    warnings = notes = ()

    def matcher(self) -> None:
        raise AssertionError("a table makes none")


def of_every_kind() -> list[Request]:
    """Requests whose rows use everything that a row can hold."""
    plain, structured, asking = request(0), request(1, prompt=5), request(2, prompt=18)
    plain.params = SamplingParams(min_tokens=2, logit_bias={3: 1.5}, stop=["end"])
    plain.stop_token_ids, plain.bad_words = frozenset({7, 2}), ((1, 2),)
    structured.grammar = Grammar()  # type: ignore[assignment]
    structured.output_ids = [4, 5]
    asking.params = SamplingParams(prompt_logprobs=2, seed=5, temperature=0.5)
    return [plain, structured, asking]


def scheduled(steps: int = 3) -> tuple[RequestTable, list[StepBatch]]:
    table = RequestTable(limits(token_budget=24))
    table.submit_all(of_every_kind())
    return table, [table.schedule(step) for step in range(steps)]


def test_a_batch_can_be_sent_to_another_process_as_it_is() -> None:
    _, batches = scheduled()
    batches[0] = replace(batches[0], padding=1)
    rows = [row for batch in batches for row in batch.rows]
    assert any(row.prompt_targets for row in rows)
    assert any(row.earlier_output for row in rows)
    assert any(row.too_short for row in rows)
    there = (
        "import pickle, sys\n"
        "found = pickle.load(sys.stdin.buffer)\n"
        "print([(b.step, b.width, b.logprobs, b.structured, b.rows[-1].queries) for b in found],\n"
        "      file=sys.stderr)\n"
        "pickle.dump(found, sys.stdout.buffer)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", there], input=pickle.dumps(batches), capture_output=True, check=True
    )
    assert pickle.loads(done.stdout) == batches
    said = [(b.step, b.width, b.logprobs, b.structured, b.rows[-1].queries) for b in batches]
    assert done.stderr.decode().strip() == str(said)


def test_what_becomes_of_the_requests_changes_no_batch_of_theirs() -> None:
    table, batches = scheduled()
    before = [pickle.dumps(batch) for batch in batches]
    settle(table, batches[0])
    table.schedule(3)
    table.preempt(table.find(0))
    table.finish(table.find(2), "cancelled")
    settle(table, batches[1])
    for uid, grammar in ((0, None), (1, None)):
        table.find(uid).grammar = grammar
        table.find(uid).bad_words = ((9,),)
    assert [pickle.dumps(batch) for batch in batches] == before


def test_a_row_knows_the_most_tokens_that_there_can_be_when_its_step_is_done() -> None:
    table = RequestTable(limits(token_budget=24))
    table.submit(request(0, prompt=6, window=3))
    first, second, third = (table.schedule(step) for step in range(3))
    assert [batch.rows[0].most for batch in (first, second, third)] == [7, 10, 13]
    settle(table, first)
    settle(table, second)  # one token of three: the bound of what follows falls
    assert table.schedule(3).rows[0].most == 6 + 1 + 1 + 3 + 3
    assert third.rows[0].most == 13


def test_a_row_may_be_too_short_until_the_steps_in_flight_alone_reach_the_least_output() -> None:
    table = RequestTable(limits(token_budget=24))
    asked = request(0, prompt=6, window=1)
    asked.params = SamplingParams(max_tokens=20, min_tokens=3)
    table.submit(asked)
    rows = [table.schedule(step).rows[0] for step in range(5)]
    assert [row.too_short for row in rows] == [True, True, True, False, False]


def test_what_was_settled_before_a_run_is_the_same_in_all_its_rows() -> None:
    table = RequestTable(limits(token_budget=24))
    asked = request(0, prompt=4, window=1)
    asked.grammar = Grammar()  # type: ignore[assignment]
    table.submit(asked)
    for step in range(3):
        batch = table.schedule(step)
        assert batch.rows[0].earlier_output == ()
        settle(table, batch)
    for step in range(3):  # a run that begins anew
        batch = table.schedule(step)
        assert batch.rows[0].earlier_output == (1, 1, 1)
        settle(table, batch)


def test_a_grammar_is_there_as_long_as_a_step_in_flight_names_it() -> None:
    table = RequestTable(limits(token_budget=24))
    asked = request(0, prompt=4, window=1)
    asked.grammar = Grammar()  # type: ignore[assignment]
    table.submit(asked)
    flying = [table.schedule(step) for step in range(3)]
    table.finish(asked, "cancelled")
    for batch in flying:
        assert table.grammars.of(0) is asked.grammar
        settle(table, batch)
        table.take_ended()
    assert len(table.grammars) == 0
