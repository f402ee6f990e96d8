"""Laws of a service's list of models."""

from __future__ import annotations

from gateway.engines.providers.replies import KEEP_S, Listing, WholeReply, refusal


async def test_it_is_asked_for_again_only_after_a_while_and_a_refusal_is_not_kept() -> None:
    now, num_asked = [0.0], [0]
    listing = Listing(lambda: now[0])

    async def ask() -> WholeReply:
        num_asked[0] += 1
        return refusal(500, "no") if num_asked[0] == 1 else WholeReply(200, [], b"{}")

    statuses = []
    for at in (0, 0, KEEP_S - 1, KEEP_S + 1):
        now[0] = at
        statuses.append((await listing.reply(ask)).status)
    assert (statuses, num_asked[0]) == ([500, 200, 200, 200], 3)
