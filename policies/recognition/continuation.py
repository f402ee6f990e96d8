"""Which session a prompt continues: the evidence, its proofs, and their order.

A candidate is a session of the tenant that an index finds: by the link where it stands, by the last messages of
its latest prompt, by the ids of its latest calls, by its name. None is found by a scan. Evidence, strongest first:

- its last answer. For: the new messages carry it, the ids of its calls or the end of its text. Against: they do
  not, and these are ids, or its client has sent an answer back before;
- where it stands. For: its whole latest prompt is the beginning, and the model has spoken once since. Against: the
  model has spoken more often, as for an earlier turn of a twin;
- time. For: it was answered and waits. Against: its turn runs, or its answer was incomplete;
- overlap. For: messages of its latest prompt stand in this one, in order. Against: they do not, or this one begins
  with a message that it never had;
- the client's id. Against: another one, which is another run;
- its kind. For: the same tools, system text and model. No tools where it has them: a side request.

Any model and any number of changed messages may be the same session. `judge` has what each proof is worth,
strongest first. Of several candidates the one with the most `Evidence` counts, then the latest. Twins that differ
in nothing that was sent are interchangeable. A run that has ended stands elsewhere, so it is no candidate for a
turn that a live one is about to send.

Unsure is split. The threshold: a changed history is a session's if it carries its answer, and if no more than
SLACK messages are lost beyond those that are kept; without a known answer, if there are _KEPT_FOR_LOST kept ones
for each lost one. A wrong split costs one lease and the prompt's computation, and the next turn finds the new
session; a wrong merge corrupts the order of two sessions for all their turns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from policies.recognition.chains import common, own_key
from policies.recognition.conversations import SEARCHED, Conversation, Conversations
from policies.recognition.passages import passages
from policies.recognition.prompts import Call, Prompt
from policies.types import SessionId, TurnKind, value

__all__ = ["Call", "Match", "Prompt", "Rule"]

FELLOWS = 1024
"""Sessions with one prompt among which the one is found whose answer the next prompt carries."""
COMPARED = 256
"""Last messages of a session's latest prompt that are compared with a prompt."""
SLACK = 3
"""Messages that clients are known to add to each prompt and take away again: reminders, todos, a date."""
_KEPT_FOR_LOST = 3
_LEAST_KEPT = 4
"""Fewer equal messages are common to many agents: the rules, the task, a first result."""
_TAIL = 2
"""Messages at the end of a history that a client replaces when an answer failed, or says little."""
MOST_ALIKE = 2 * SEARCHED
"""Sessions that are compared with a changed history."""
_LOOKED_UP = 64
"""Messages of a prompt by which candidates are looked up, the last ones."""
_LEAST_SHARED = 3
"""Equal messages that make up for another system text and other tools: the model has spoken in them."""
_TASK_BYTES = 4096
_TASK_MESSAGES = 8
"""Of a first prompt, in which an agent's task is looked for."""
_TITLE_S = 300.0
"""Within which a title and the first turn of its session come. A session may be interrupted in between."""


class Rule(StrEnum):
    """Why a prompt was given to its session."""

    NEXT = "next"
    RETRY = "retry"
    EDITED = "edited"
    """Its next turn, with a history that its client has changed."""
    RESTART = "restart"
    """The same id or agent, another history: a summary took its place."""
    FORK = "fork"
    SIBLING = "sibling"
    NEW = "new"
    SIDE = "side"


@value
class Match:
    """The rule that a prompt matches, and the session."""

    rule: Rule
    conversation: Conversation | None = None
    """The session, or the one that it forks from or serves."""


NOBODY = Match(Rule.NEW)
SIBLING = Match(Rule.SIBLING)


class Evidence(NamedTuple):
    """What speaks for a session. The larger one wins."""

    carries: int
    """Whether the new messages hold its last answer: 1 they do, -1 they do not; 0: it is not known, or too short
    to tell."""
    has_waited: bool
    """It was answered."""
    has_same_tools: bool
    surplus: int
    """Messages kept less those lost."""
    has_same_system: bool
    has_same_model: bool
    is_unserved: bool
    """No side request came since its last turn, if this is one: twins are served in turn."""
    seen_at: float

    @property
    def is_best(self) -> bool:
        """Whether nothing but a later time would speak more for it."""
        return (
            self.carries > 0
            and self.has_waited
            and self.has_same_tools
            and self.has_same_system
            and self.has_same_model
            and self.is_unserved
        )


class Standing(NamedTuple):
    """A session whose whole latest prompt is the beginning of this one."""

    conversation: Conversation
    carries: int
    """See Evidence."""
    num_messages: int
    """Of its latest prompt."""
    is_clear: bool
    """Whether this may be its very next turn."""


class Candidate(NamedTuple):
    """A session that may have sent the prompt, and the evidence for it."""

    evidence: Evidence
    conversation: Conversation
    is_clear: bool = True
    """Whether the model has spoken once since."""


# ---- the decision


def judge(conversations: Conversations, prompt: Prompt, under: SessionId | None = None) -> Match:
    """Return whose prompt it is, by the strongest proof. `under`: only sessions of this name count."""
    standing = _standing(conversations, prompt, under)
    is_next = standing is not None and standing.is_clear
    if standing is not None and is_next and standing.carries > 0 and not prompt.call.says_retry:
        return _turn(standing.conversation, Rule.NEXT, prompt)
    failed, is_repeated = _repeated(conversations, prompt, under)
    if failed is not None and not (
        standing is not None and is_next and standing.carries > 0 and failed.is_complete
    ):
        return Match(Rule.RETRY, failed)
    if standing is not None and is_next:
        return _turn(standing.conversation, Rule.NEXT, prompt)
    edited = _edited(conversations, prompt, under) if prompt.has_history else None
    if edited is not None and not edited.is_clear:
        chain = prompt.links.chain
        fork = _fork(conversations, prompt, under, common(edited.conversation.links.chain, chain))
        trunk = fork.conversation if fork is not None else None
        if fork is not None and not (trunk and common(trunk.links.chain, chain) == len(chain)):
            return fork  # one that has sent all of this is a twin
    if edited is not None and (edited.evidence.carries > 0 or standing is None):
        return _turn(edited.conversation, Rule.EDITED, prompt)
    if standing is not None:
        deeper = _fork(conversations, prompt, under, standing.num_messages)
        return deeper or _turn(standing.conversation, Rule.NEXT, prompt)
    if served := _served(conversations, prompt, under):
        return served
    return SIBLING if is_repeated else _fork(conversations, prompt, under) or NOBODY


def _turn(conversation: Conversation, rule: Rule, prompt: Prompt) -> Match:
    """Return a turn of a session; without tools where it has them, a side request."""
    return Match(Rule.SIDE if conversation.tools and not prompt.tools else rule, conversation)


# ---- where a session stands


def _standing(conversations: Conversations, prompt: Prompt, under: SessionId | None) -> Standing | None:
    """Return the deepest session that this may be the very next turn of; without one, the deepest of any."""
    chain, there = prompt.links.chain, conversations.standing.there
    unclear = None
    for last in range(len(chain) - 2, 0, -1):
        one = there.get(chain[last])
        if one is None:
            continue
        if type(one) is Conversation and under is None:
            found = _stand(one, prompt, last)
        else:
            fellows = conversations.standing.at(chain[last], FELLOWS)
            found = _likeliest([one for one in fellows if under in (None, one.name)], prompt, last)
        if found is not None and found.is_clear:
            return found
        unclear = unclear or found
    return unclear


def _stand(conversation: Conversation, prompt: Prompt, last: int) -> Standing | None:
    """Return the session that stands at link `last`, if this may be its next turn."""
    is_beside = prompt.tools and not conversation.tools and conversation.kind is TurnKind.SIDE
    if conversation.running or is_beside:
        return None
    carries = prompt.carries(conversation.marks, last)
    if carries < 0 and (conversation.has_calls or conversation.has_carried):
        return None
    if carries <= 0 and last < _LEAST_SHARED and not _is_kin(conversation, prompt, last):
        return None
    return Standing(conversation, carries, last, carries >= 0 and prompt.num_answers(last) < 2)


def _is_kin(conversation: Conversation, prompt: Prompt, last: int) -> bool:
    """Whether a prompt that shares little more than a task may be of the session that stands there. Siblings share
    their tools, too: under another system text the model has to have spoken since."""
    if conversation.system == prompt.system:
        return True
    return conversation.tools == prompt.tools and any(map(prompt.says, range(last, len(prompt.links.hashes))))


def _likeliest(candidates: Iterable[Conversation], prompt: Prompt, last: int) -> Standing | None:
    """Return the likeliest of the sessions that stand at link `last`."""
    best, most = None, None
    for conversation in candidates:
        found = _stand(conversation, prompt, last)
        if found is None:
            continue
        evidence = _evidence(conversation, prompt, found.carries, last)
        if most is None or evidence > most:
            best, most = found, evidence
            if evidence.is_best:
                break
    return best


def _evidence(conversation: Conversation, prompt: Prompt, carries: int, surplus: int) -> Evidence:
    return Evidence(
        carries,
        conversation.is_complete,
        conversation.tools == prompt.tools,
        surplus,
        conversation.system == prompt.system,
        conversation.key == prompt.call.key,
        prompt.tools != 0 or not conversation.is_served,
        conversation.seen_at,
    )


def _repeated(
    conversations: Conversations, prompt: Prompt, under: SessionId | None
) -> tuple[Conversation | None, bool]:
    """Return the session whose last prompt is sent again, since its answer is incomplete or the client says so;
    and whether any has sent this prompt last. Without a reason it is a sibling: best-of-n is n sessions."""
    there = conversations.standing.at(prompt.links.chain[-1])
    if under is not None:
        there = [conversation for conversation in there if conversation.name == under]
    if not there or len(prompt.links.chain) < 2:
        return None, False
    is_said_in = len(prompt.links.chain) > _LEAST_SHARED

    def is_same(one: Conversation) -> bool:
        return one.tools == prompt.tools and (is_said_in or one.system == prompt.system)

    failed = next((one for one in there if not one.is_complete and not one.running and is_same(one)), None)
    if failed is None and prompt.call.says_retry and (same := list(filter(is_same, there))):
        failed = max(same, key=lambda conversation: (conversation.running > 0, conversation.serial))
    return failed, True


# ---- histories that clients have changed


def _edited(conversations: Conversations, prompt: Prompt, under: SessionId | None) -> Candidate | None:
    """Return the session whose history this is, without some of its messages or with others in their place."""
    best = None
    for conversation in _alike(conversations, prompt, under):
        found = _compare(conversations, conversation, prompt)
        if found is not None and (best is None or found[:1] > best[:1]):
            best = found
    return best


def _alike(conversations: Conversations, prompt: Prompt, under: SessionId | None) -> list[Conversation]:
    """Return idle sessions that have something in common with the prompt, those first that share what is rare."""
    tenant = prompt.links.chain[0]
    if under is not None:
        found = dict.fromkeys(conversations.named.at(under))
    else:
        found = {}
        for opening in prompt.opening:
            found.update(dict.fromkeys(conversations.begun.at(opening)))
        for id_ in passages(prompt.latest_answer):
            found.update(dict.fromkeys(conversations.answered.at(own_key(tenant, id_))))
        sizes = ((conversations.recent.size(message), message) for message in prompt.links.hashes[-_LOOKED_UP:])
        for size, message in sorted(sizes):
            if size and len(found) < MOST_ALIKE:
                found.update(dict.fromkeys(conversations.recent.at(message)))
    return list(islice((one for one in found if not one.running), MOST_ALIKE))


def _compare(conversations: Conversations, conversation: Conversation, prompt: Prompt) -> Candidate | None:
    """Return an idle session and the evidence that it goes on with a changed history, if there is enough."""
    if prompt.tools and not conversation.tools:
        return None
    kept, lost, new = _overlap(conversation.links.hashes, prompt)
    if not _has_same_head(conversation, prompt):
        return None
    surplus = kept - lost
    if not conversation.marks:
        is_near = _is_near(conversation, prompt) or (
            kept >= max(_LEAST_KEPT, _KEPT_FOR_LOST * lost) and any(map(prompt.says, new))
        )
        return Candidate(_evidence(conversation, prompt, 0, surplus), conversation) if is_near else None
    if surplus < -SLACK and not any(conversations.answered.is_only(id_, conversation) for id_ in conversation.ids):
        return None
    if not prompt.holds(conversation.marks, new):
        return None
    says = [prompt.says(at) for at in new]
    num_answers = sum(one and not before for one, before in zip(says, [False, *says], strict=False))
    return Candidate(_evidence(conversation, prompt, 1, surplus), conversation, num_answers < 2)


def _overlap(messages: Sequence[int], prompt: Prompt) -> tuple[int, int, list[int]]:
    """Return how many of a session's last messages stand in the prompt in their order, how many behind the first
    of those do not, and the places of the prompt's own messages behind that."""
    places, limit, kept, missed, lost = prompt.places, len(prompt.links.hashes), 0, 0, 0
    taken = set()
    for message in reversed(messages[-COMPARED:]):
        there = places.get(message, ())
        before = bisect_left(there, limit)
        if before:
            kept, lost, limit = kept + 1, missed, there[before - 1]
            taken.add(limit)
        else:
            missed += 1
    start = limit if kept else 0
    lost = lost if kept else missed
    return kept, lost, [at for at in range(start, len(prompt.links.hashes)) if at not in taken]


def _has_same_head(conversation: Conversation, prompt: Prompt) -> bool:
    """Whether the prompt begins with a message that the session had: its task, or a later message if those before
    are dropped."""
    first, own = prompt.links.hashes[0], conversation.links.hashes
    return first in own[-COMPARED:] or first == conversation.first or conversation.task == prompt.opening != ()


def _is_near(conversation: Conversation, prompt: Prompt) -> bool:
    """Whether only the end of a history has changed, after an answer that failed or that says little."""
    chain, own = prompt.links.chain, conversation.links.chain
    shared = common(own, chain)
    lost, new = len(own) - shared, len(chain) - shared
    if not 1 <= lost <= _TAIL or shared < conversation.first_len or (not new and shared == conversation.first_len):
        return False
    return not conversation.is_complete or new > lost


# ---- what is no turn of a known session


def _served(conversations: Conversations, prompt: Prompt, under: SessionId | None) -> Match | None:
    """Match a request without tools or history that quotes the task of a session that has just begun: a title."""
    if prompt.tools or under is not None or prompt.has_history or not prompt.links.hashes:
        return None
    for conversation in conversations.recent.at(prompt.links.hashes[-1]):
        is_young = conversation.num_turns == 1 and prompt.now - conversation.seen_at <= _TITLE_S
        if conversation.tools and is_young and conversation.system != prompt.system and not conversation.has_title:
            conversation.has_title = True
            return Match(Rule.SIDE, conversation)
    return None


def title_of(conversations: Conversations, prompt: Prompt) -> Conversation | None:
    """Return an earlier request for a title of the session that begins with this prompt."""
    if not prompt.tools or prompt.has_history:
        return None
    for conversation in _tasked(conversations, prompt):
        is_fresh = not conversation.is_taken and prompt.now - conversation.seen_at <= _TITLE_S
        is_one = conversation.num_turns == 1 and conversation.name is None
        if is_fresh and is_one and conversation.system != prompt.system:
            return conversation
    return None


def _tasked(conversations: Conversations, prompt: Prompt) -> Iterator[Conversation]:
    """Sessions without tools that were sent the last message of a first prompt, or another one of its first
    messages at last."""
    *others, last = prompt.links.hashes[:_TASK_MESSAGES] or (0,)
    yield from [one for one in conversations.recent.at(last) if not one.tools]  # twins with tools may be many
    for message in others:
        there = conversations.recent.at(message)
        yield from [one for one in there if not one.tools and one.links.hashes[-1] == message]


def parent_of(conversations: Conversations, prompt: Prompt) -> Conversation | None:
    """Return the session whose answer called a tool with the text of this first prompt: that of a sub-agent.

    Twins that made the same call are interchangeable. Among others the one with the most passages in the prompt
    counts, if there is one.
    """
    if not conversations.sent or prompt.has_history:
        return None
    tenant = prompt.links.chain[0]
    first = b"".join([message[:_TASK_BYTES] for message in prompt.call.messages[:_TASK_MESSAGES]])
    text = frozenset([own_key(tenant, passage) for passage in passages(first)])
    best: tuple[int, tuple[int, ...], Conversation] | None = None
    is_sure = True
    for passage in text:
        for conversation in conversations.sent.at(passage):
            for errand in conversation.errands:
                if errand[0] != passage:
                    continue
                quoted = len(text.intersection(errand))
                if best is None or quoted > best[0]:
                    best, is_sure = (quoted, errand, conversation), True
                elif quoted == best[0] and errand != best[1]:
                    is_sure = False
    return best[2] if best is not None and is_sure else None


def _fork(conversations: Conversations, prompt: Prompt, under: SessionId | None, beyond: int = 0) -> Match | None:
    """Match another continuation of what a session has sent, beyond so many messages: a new session with a
    parent."""
    chain, ended, standing = prompt.links.chain, conversations.ended.there, conversations.standing.there
    for last in range(len(chain) - 1, beyond, -1):
        if chain[last] not in ended and chain[last] not in standing:
            continue  # nearly all of them
        for conversation in _at(conversations, chain[last]):
            if under is not None and conversation.name != under:
                continue
            shared = common(conversation.links.chain, chain)
            is_kin = conversation.tools == prompt.tools or conversation.system == prompt.system
            if shared < conversation.first_len or not (is_kin or last >= _LEAST_SHARED):
                continue
            is_first = shared == conversation.first_len == len(chain)
            if conversation.tools and not prompt.tools and not is_first:
                return Match(Rule.SIDE, conversation)
            return Match(Rule.SIBLING if is_first else Rule.FORK, conversation)
    return None


def _at(conversations: Conversations, link: int) -> Iterator[Conversation]:
    """Sessions that have sent a prompt ending at a link."""
    yield from conversations.ended.at(link)
    yield from conversations.standing.at(link)


def is_restart(conversation: Conversation, prompt: Prompt) -> bool:
    """Whether an idle session of the same agent and id goes on with another history, which is no first message."""
    if conversation.key != prompt.call.key or conversation.kind is not TurnKind.AGENT or conversation.running:
        return False
    is_same_agent = conversation.system == prompt.system or (
        prompt.tools != 0 and conversation.tools == prompt.tools
    )
    return is_same_agent and (conversation.was_summed_up or prompt.has_history)
