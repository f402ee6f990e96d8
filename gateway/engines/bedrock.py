"""Amazon Bedrock: as Anthropic's API, for the models of many makers."""

from __future__ import annotations

from gateway.engines.anthropic import Anthropic
from gateway.engines.base import CHAT, Abilities


class Bedrock(Anthropic):
    """Models that cannot cache refuse the markers of the first call; then none are sent to this address."""

    kind = "bedrock"
    name = "Bedrock"
    paths = frozenset((CHAT,))

    def abilities(self) -> Abilities:
        return Abilities(honours_priority=False, paths=self.paths)
