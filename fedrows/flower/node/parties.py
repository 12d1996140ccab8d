"""Who is in a sum: a server may invite nodes that this node knows, each of them once.

The server's message lists the parties by number and name. A key comes from the node's own list of
peers. Two parties with one name or one key would be one node that opens its own masks: it could
play all others, and read what the last honest node has put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedrows.privacy.protocol import ProtocolError


def party_keys(
    facts: Mapping[str, Any], name: str, key: bytes, peers: Mapping[str, bytes]
) -> dict[int, bytes]:
    """The keys of a sum's parties by their numbers, or a ProtocolError.

    name, key: this node's own name and public key, which the list must have under its own number.
    """
    parties = _read(facts.get("parties"))
    twice = [node for node, times in Counter(parties.values()).items() if times > 1]
    if twice:
        raise ProtocolError(
            f"Node {twice[0]!r} is a party of the sum more than once: this node takes no part."
        )
    missing = [node for node in parties.values() if node not in peers]
    if missing:
        raise ProtocolError(
            f"Node {missing[0]!r} is not among the peers that this node knows: it takes no part in "
            "a sum with it."
        )
    keys = {number: peers[node] for number, node in parties.items()}
    if len(set(keys.values())) < len(keys):
        raise ProtocolError("Two parties of the sum have one key: this node takes no part.")
    me = facts.get("party")
    if type(me) is not int or parties.get(me) != name or keys[me] != key:
        raise ProtocolError(
            f"The sum does not have this node as {name!r} under the number and the key that are "
            "its own: it takes no part."
        )
    return keys


def _read(value: object) -> dict[int, str]:
    """The parties of a message; numbers are written in one way only."""
    if not isinstance(value, dict) or not all(isinstance(node, str) for node in value.values()):
        raise ProtocolError("The message does not say who takes part in the sum.")
    parties = {}
    for number, node in value.items():
        if not number.isascii() or not number.isdecimal() or number != str(int(number)):
            raise ProtocolError("The message does not number the parties of the sum.")
        parties[int(number)] = node
    return parties
