"""Rules of recognition on hand-made prompts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from policies.recognition.chains import block_chain, message_links
from policies.recognition.continuation import Call, Rule
from policies.recognition.lineage import Lineage, Sighting
from policies.types import BLOCK_CHARS, TurnKind

TOOLS = (b'{"name":"bash"}' * 40, b'{"name":"edit"}' * 40)
SYSTEM = b"You are an agent. " * 100


def call(*messages: str, tools: tuple[bytes, ...] = TOOLS, **said: Any) -> Call:
    """A prompt; `u`, `a`, `t` at the start of a message stand for its role."""
    roles = {"u": "user", "a": "assistant", "t": "tool"}
    texts = tuple(f'["{roles[message[0]]}",{{"content":"{message}"}}]'.encode() for message in messages)
    base = Call(key=b"tenant and model", tools=tools, system=SYSTEM, messages=texts)
    return dataclasses.replace(base, **said)


class Fleet:
    """A Lineage with a clock, so that a test reads as a conversation."""

    def __init__(self, lineage: Lineage | None = None) -> None:
        self.lineage = lineage or Lineage()
        self.now = 0.0

    def ask(self, *messages: str, **said: Any) -> Sighting:
        """Sent, and still running."""
        self.now += 1
        return self.lineage.recognise(call(*messages, **said), self.now)

    def end(self, sighting: Sighting, *, complete: bool = True, answer: str = "") -> None:
        self.lineage.answered(sighting, complete, (answer.encode(),) if answer else (), self.now)

    def turn(self, *messages: str, complete: bool = True, answer: str = "", **said: Any) -> Sighting:
        """Sent and answered."""
        sighting = self.ask(*messages, **said)
        self.end(sighting, complete=complete, answer=answer)
        return sighting


def test_a_longer_history_is_the_next_turn_of_the_session_it_extends() -> None:
    fleet = Fleet()
    first = fleet.turn("u1")
    second = fleet.turn("u1", "a1", "t1")
    third = fleet.turn("u1", "a1", "t1", "a2", "t2")
    assert [one.session_id for one in (second, third)] == [first.session_id] * 2
    assert [one.turn_index for one in (first, second, third)] == [0, 1, 2]
    assert third.rule is Rule.NEXT


def test_another_task_under_the_same_prompt_is_another_session_of_the_family() -> None:
    fleet = Fleet()
    one, other = fleet.turn("u1"), fleet.turn("u2")
    assert one.session_id != other.session_id
    assert one.family_id == other.family_id
    assert other.parent_id is None


@pytest.mark.parametrize("key", [b"another tenant", b"another model"])
def test_nothing_matches_across_keys(key: bytes) -> None:
    fleet = Fleet()
    one = fleet.turn("u1")
    other = fleet.turn("u1", "a1", "t1", key=key)
    assert one.session_id != other.session_id
    assert one.family_id != other.family_id
    assert not set(one.blocks) & set(other.blocks)


@pytest.mark.parametrize("says_retry", [False, True])
def test_the_same_prompt_after_a_failure_is_a_retry(says_retry: bool) -> None:
    fleet = Fleet()
    first = fleet.turn("u1", complete=False)
    again = fleet.turn("u1", says_retry=says_retry)
    assert (again.session_id, again.rule, again.turn_index) == (first.session_id, Rule.RETRY, 0)


def test_the_same_prompt_after_an_answer_is_a_sibling_unless_the_client_says_retry() -> None:
    fleet = Fleet()
    first = fleet.turn("u1")
    sibling = fleet.turn("u1")
    assert sibling.session_id != first.session_id
    assert sibling.family_id == first.family_id
    assert fleet.turn("u1", says_retry=True).session_id in (first.session_id, sibling.session_id)


def test_a_task_alone_is_no_history_of_a_session_with_another_system_text() -> None:
    """Siblings in other directories share it. Once the model has spoken, the system text may tell the time."""
    fleet = Fleet()
    failed = fleet.turn("u1", complete=False)
    assert fleet.turn("u1", "u2", system=b"Directory: /b. " + SYSTEM).session_id != failed.session_id
    assert fleet.turn("u1", "u2").session_id == failed.session_id
    other = fleet.turn("u3")
    assert fleet.turn("u3", "a1", "t1", system=b"Noon. " + SYSTEM).session_id == other.session_id


def test_best_of_16_at_once_is_16_sessions_of_one_family_and_stays_so() -> None:
    fleet = Fleet()
    firsts = [fleet.ask("u1") for _ in range(16)]
    assert len({one.session_id for one in firsts}) == 16
    assert len({one.family_id for one in firsts}) == 1
    for n, one in enumerate(firsts):
        fleet.end(one, answer=f"call_{n:04}")
    for n in reversed(range(16)):
        assert fleet.turn("u1", f"a call_{n:04}", f"t{n}").session_id == firsts[n].session_id


def test_a_retry_of_one_sibling_is_not_taken_for_a_new_one() -> None:
    fleet = Fleet()
    fleet.ask("u1")
    failed = fleet.turn("u1", complete=False)
    fleet.ask("u1", tools=TOOLS[:1])
    assert fleet.ask("u1").session_id == failed.session_id
    assert fleet.ask("u1").rule is Rule.SIBLING


def test_an_answer_to_an_older_attempt_says_nothing_about_the_latest() -> None:
    fleet = Fleet()
    slow = fleet.ask("u1")
    resent = fleet.ask("u1", says_retry=True)
    assert resent.session_id == slow.session_id
    fleet.end(resent, complete=False)
    fleet.end(slow)
    assert fleet.turn("u1").rule is Rule.RETRY


def test_two_continuations_of_one_prefix_are_a_fork_with_a_parent() -> None:
    fleet = Fleet()
    trunk = fleet.turn("u1")
    fleet.turn("u1", "a1", "t1", answer="call_next")
    fleet.turn("u1", "a1", "t1", "a call_next", "t2", answer="call_last")
    fork = fleet.turn("u1", "a1", "t1", "a other", "t other")
    assert fork.rule is Rule.FORK
    assert (fork.session_id != trunk.session_id, fork.parent_id) == (True, trunk.session_id)
    assert fleet.turn("u1", "a1", "t1", "a other", "t other", "a", "t").session_id == fork.session_id
    assert fleet.turn("u1", "a1", "t1", "a call_next", "t2", "a call_last", "t").session_id == trunk.session_id


def test_a_fork_that_grew_is_not_mistaken_for_a_changed_tail() -> None:
    fleet = Fleet()
    trunk = fleet.turn("u1")
    fleet.turn("u1", "a1", "t1", answer="call_of_a")
    fleet.turn("u1", "a1", "t1", "a2", "t2", answer="call_of_b")
    assert fleet.turn("u1", "a1", "t1", "a3", "t3", "t4").parent_id == trunk.session_id


def test_twins_are_served_in_turn() -> None:
    fleet = Fleet()
    twins = {fleet.turn("u1", answer="call_1").session_id for _ in range(2)}
    last = [fleet.ask("u1", "a call_1", "t1", "u say what you know", tools=()) for _ in range(2)]
    assert {one.kind for one in last} == {TurnKind.SIDE}
    assert {one.session_id for one in last} == twins
    assert fleet.turn("u1", "a call_1", "t1").session_id in twins, "a turn goes to any of them"


def test_a_twin_that_has_sent_a_whole_prompt_is_no_trunk_of_a_fork() -> None:
    fleet = Fleet()
    twins = {fleet.turn("u1", "u step 1", answer="call_1").session_id for _ in range(2)}
    ahead = fleet.turn("u1", "a call_1", "t1", "u step 2", answer="call_2")
    history = ("u1", "a call_1", "t1", "a call_2", "t2", "u step 3")
    assert fleet.ask(*history).session_id == ahead.session_id
    behind = fleet.ask(*history)
    assert (behind.rule, behind.parent_id) == (Rule.EDITED, None)
    assert {ahead.session_id, behind.session_id} == twins


def test_aider_drops_a_reminder_from_its_last_message_and_stays_one_session() -> None:
    fleet = Fleet()
    fixed = tuple(f"u fixed {n}" for n in range(8))
    first = fleet.turn(*fixed, "u1 reminder", tools=(), answer="the answer to 1")
    other = fleet.turn(*fixed, "u2 reminder", tools=(), answer="the answer to 2")
    second = fleet.turn(*fixed, "u1", "a the answer to 1", "u3 reminder", tools=(), answer="more")
    third = fleet.turn(*fixed, "u1", "a the answer to 1", "u3", "a more", "u4 reminder", tools=())
    assert {second.session_id, third.session_id} == {first.session_id}
    assert other.session_id != first.session_id
    assert [one.kind for one in (first, second, third)] == [TurnKind.SINGLE, TurnKind.AGENT, TurnKind.AGENT]


def test_opencode_drops_the_message_about_its_steps() -> None:
    fleet = Fleet()
    first = fleet.turn("u1")
    fleet.turn("u1", "a1", "t1", "a MAXIMUM STEPS REACHED", answer="a summary of the work")
    assert fleet.turn("u1", "a1", "t1", "a a summary of the work", "u2").session_id == first.session_id


def test_qwen_code_replaces_its_resume_messages() -> None:
    fleet = Fleet()
    first = fleet.turn("u1", complete=False)
    fleet.turn("u1", "a par", "u resume", answer="call_0123456789")
    assert fleet.turn("u1", "a call_0123456789", "t1").session_id == first.session_id


def test_no_tools_where_the_session_has_them_is_a_side_request_that_moves_nothing() -> None:
    fleet = Fleet()
    first = fleet.turn("u1")
    side = fleet.turn("u1", "a1", "u sum up", tools=())
    assert (side.session_id, side.kind) == (first.session_id, TurnKind.SIDE)
    assert fleet.turn("u1", "a1", "t1").turn_index == 1


def test_a_toolless_prompt_under_the_system_text_of_a_tool_using_family_is_a_side_request() -> None:
    fleet = Fleet()
    fleet.turn("u1")
    assert fleet.turn("u other", tools=()).kind is TurnKind.SIDE


def test_a_toolless_chat_is_single_until_it_is_extended() -> None:
    fleet = Fleet()
    assert fleet.turn("u1", tools=()).kind is TurnKind.SINGLE
    assert fleet.turn("u1", "a1", "u2", tools=()).kind is TurnKind.AGENT


def test_an_id_keeps_a_session_over_a_compaction_which_a_chain_cannot() -> None:
    for name, is_same in (("named", True), (None, False)):
        fleet = Fleet()
        first = fleet.turn("u1", name=name)
        fleet.turn("u history", tools=(), system=b"Sum up. " * 100, name=name)
        after = fleet.turn("u so far?", "a summary", "u go on", name=name)
        assert (after.session_id == first.session_id) is is_same
        assert after.family_id == first.family_id


def test_two_runs_under_one_id_are_two_sessions() -> None:
    fleet = Fleet()
    one = fleet.turn("u1", name="shared")
    other = fleet.turn("u2", name="shared")
    assert one.session_id != other.session_id
    assert fleet.turn("u1", "a1", "t1", name="shared").session_id == one.session_id
    assert fleet.turn("u2", "a2", "t2", name="shared").session_id == other.session_id


def test_a_title_belongs_to_its_session_whichever_comes_first_and_on_another_model() -> None:
    title: dict[str, Any] = {
        "tools": (),
        "system": b"You write titles. " * 40,
        "key": b"small model",
        "expects_tools": True,
    }
    fleet = Fleet()
    before = fleet.turn("u title", name="one", **title)
    first = fleet.turn("u1", name="one")
    after = fleet.turn("u title", "u again", name="one", **title)
    assert {one.session_id for one in (before, first, after)} == {"one"}
    assert [one.kind for one in (before, first, after)] == [TurnKind.SIDE, TurnKind.AGENT, TurnKind.SIDE]
    assert fleet.turn("u1", "a1", "t1", name="one").turn_index == 1
    unnamed = fleet.turn("u another title", **{**title, "expects_tools": False})
    assert unnamed.kind is TurnKind.SIDE, "a family that has shown itself as side stays so without an id"


def test_a_title_without_a_name_belongs_to_the_session_that_begins_with_its_last_message() -> None:
    fleet = Fleet()
    written: dict[str, Any] = {
        "tools": (),
        "system": b"You write titles. " * 40,
        "key": b"small",
        "tenant": b"one",
    }
    title = fleet.ask("u write a title", "u1", **written)
    first = fleet.turn("u1", "u2", tenant=b"one")
    assert (title.kind, first.session_id) == (TurnKind.SINGLE, title.session_id)
    known = fleet.ask("u write a title", "u9", **written)
    assert known.kind is TurnKind.SIDE, "once one was a title, all of its system text are"
    assert fleet.turn("u9", tenant=b"one").session_id == known.session_id


def test_a_title_is_no_summary_of_a_session_that_failed_with_the_same_task() -> None:
    fleet, task = Fleet(), "u explain what the main program does"
    written: dict[str, Any] = {
        "tools": (),
        "system": b"You write titles. " * 40,
        "key": b"small",
        "tenant": b"one",
    }
    titles, firsts = [], []
    for is_complete in (False, True):
        titles.append(fleet.turn("u write a title", task, **written).session_id)
        firsts.append(
            fleet.turn(task, complete=is_complete, tools=TOOLS[: 1 + is_complete], tenant=b"one").session_id
        )
    assert titles == firsts
    assert len(set(firsts)) == 2


def test_an_id_that_changes_with_every_request_does_not_split_a_session() -> None:
    fleet = Fleet()
    first = fleet.turn("u1", name="r1")
    second = fleet.turn("u1", "a1", "t1", name="r2")
    third = fleet.turn("u1", "a1", "t1", "a2", "t2", name="r3")
    assert {second.session_id, third.session_id} == {first.session_id}


def test_a_history_taken_over_by_a_new_id_is_a_fork_once_the_old_id_was_steady() -> None:
    fleet = Fleet()
    fleet.turn("u1", name="old")
    fleet.turn("u1", "a1", "t1", name="old")
    fork = fleet.turn("u1", "a1", "t1", "a2", "t2", name="new")
    assert (fork.session_id, fork.parent_id) == ("new", "old")


def test_ids_that_come_and_go_do_not_split_a_session() -> None:
    fleet = Fleet()
    first = fleet.turn("u1")
    assert fleet.turn("u1", "a1", "t1", name="late").session_id == first.session_id
    assert fleet.turn("u1", "a1", "t1", "a2", "t2").session_id == first.session_id


def test_a_parent_is_known_before_it_is_seen() -> None:
    assert Fleet().turn("u1", name="child", parent="root").parent_id == "root"


@pytest.mark.parametrize("tools", [(b'{"name":"bash"}',), ()])
def test_siblings_with_a_prompt_smaller_than_a_block_are_a_family(tools: tuple[bytes, ...]) -> None:
    fleet = Fleet()
    one = fleet.turn("u1", tools=tools, system=b"You are a helpful assistant.")
    other = fleet.turn("u2" * 2000, tools=tools, system=b"You are a helpful assistant.")
    assert one.family_id == other.family_id


def test_a_directory_at_the_start_of_the_system_text_does_not_part_a_family() -> None:
    fleet = Fleet()
    one = fleet.turn("u1", system=b"cwd /a " + SYSTEM[:600])
    other = fleet.turn("u2", system=b"cwd /b " + SYSTEM[:600])
    assert one.family_id == other.family_id


def test_agents_with_other_tools_are_another_family_unless_they_share_a_cache_key() -> None:
    fleet = Fleet()
    root = fleet.turn("u1", group=b"root")
    assert fleet.turn("u2", tools=(b"other" * 300,)).family_id != root.family_id
    assert fleet.turn("u3", tools=(b"child" * 300,), group=b"root").family_id == root.family_id


def test_memory_is_bounded_by_number_and_by_age() -> None:
    fleet = Fleet(Lineage(max_sessions=10, ttl_s=100.0, max_families=3))
    for n in range(50):
        fleet.turn(f"u{n}", tools=(f"tool {n}".encode(),), name=f"session {n}")
    assert (fleet.lineage.num_sessions, fleet.lineage.num_families) == (10, 3)
    fleet.now += 101
    first = fleet.turn("u fresh")
    assert fleet.lineage.num_sessions == 1
    assert first.rule is Rule.NEW


def test_blocks_follow_the_order_in_which_the_model_renders() -> None:
    system_first = Fleet().turn("u1")
    tools_first = Fleet().turn("u1", tools_first=True)
    whole = (SYSTEM + b"".join(TOOLS) + call("u1").messages[0])[: len(system_first.blocks) * BLOCK_CHARS]
    assert list(system_first.blocks) == list(block_chain(b"tenant and model", [whole]))
    assert system_first.blocks[0] != tools_first.blocks[0]
    assert system_first.chars == tools_first.chars


def test_a_chain_tells_where_a_message_ends() -> None:
    one = message_links(b"key", [b"ab", b"c"]).chain
    other = message_links(b"key", [b"a", b"bc"]).chain
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])
