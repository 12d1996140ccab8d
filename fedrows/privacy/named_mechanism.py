"""Mechanisms by name or reference, with their options: as dials, and as config.json has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from fedrows import catalogue
from fedrows.errors import PlanError, UnknownNameError
from fedrows.options import options
from fedrows.privacy.mechanism import Mechanism

DEFAULT_MECHANISM = "gaussian"
DIAL = "dp_"  # before an option of a mechanism, as a dial


def default_mechanism() -> Mechanism:
    """The mechanism of mode full unless another is named."""
    mechanism: Mechanism = catalogue.own("mechanism", DEFAULT_MECHANISM)()
    return mechanism


def mechanism_of(
    named: str | Mechanism | None, dials: Mapping[str, Any], taken: Collection[str]
) -> Mechanism | None:
    """A mechanism with dials such as `dp_noise`; None if nothing is given.

    named: a mechanism, its name or its reference. taken: names of dials that no mechanism may have.
    """
    if named is None and not dials:
        return None
    if isinstance(named, Mechanism):
        if dials:
            raise PlanError(
                f"{next(iter(dials))} is given beside a mechanism: set that option of the "
                "mechanism."
            )
        return named
    name = named or DEFAULT_MECHANISM
    of: type[Mechanism] = catalogue.mechanism(name)
    known = [f"{DIAL}{item.name}" for item in options(of)]
    if clash := [dial for dial in known if dial in taken]:
        raise PlanError(
            f"The mechanism {name} has an option {clash[0].removeprefix(DIAL)}, whose flag "
            f"--{clash[0].replace('_', '-')} is that of every private run: rename it."
        )
    for dial in dials:
        if dial not in known:
            raise UnknownNameError(f"option of the mechanism {name}", dial, known)
    return of(**{dial.removeprefix(DIAL): value for dial, value in dials.items()})


def stored(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism as config.json has it."""
    return {**catalogue.stored_name("mechanism", mechanism.name), **asdict(mechanism)}


def restored(config: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `stored` has written down."""
    own = dict(config)
    name = own.pop("name")
    mechanism: Mechanism = catalogue.mechanism(own.pop(catalogue.FROM, name))(**own)
    return mechanism
