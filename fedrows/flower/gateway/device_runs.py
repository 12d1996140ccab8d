"""Which private runs devices can take part in, and who learns what of a device."""

from __future__ import annotations

from fedrows.data.federation import FederatedData
from fedrows.privacy.options import Privacy

MOST_ROWS = 2**20  # of all shared tables: a device sends a word for each to find a union
# Lines of `fedrows privacy explain`:
TITLE = "Devices behind a gateway (`fedrows deploy gateway`):"
CLEAR = """
  the gateway learns of each device   its address, when it is there, its index sets, how
                                      many examples it has, and every single update
  the server learns of each device    what it learns of a client of a node: its name, its
                                      index sets, its examples' number, single updates
  other devices learn                 nothing but the model's rows that they hold
  what never leaves a device          its examples, rows of local tables, kept state, if
                                      the gateway's program is an honest one"""
PRIVATE = """
  the gateway learns of each device   its address, when it is there, and its rounds
  the gateway learns of all together  how many of its devices hold each row, which rows a
                                      round's devices hold, their weight, loss and dense
                                      tensors together, and the sums of rows to which
                                      enough of them contribute
  the server learns of a gateway      what it learns of a node, and its devices' names; not
                                      which rows they want, for it is asked for all
  other devices learn                 the rows of a round's union and their values; two of
                                      them, the openers, how many hold each
  what never leaves a device          its examples and their number, its index set, its own
                                      update, rows of local tables
  This holds if the gateway keeps to the protocol. Devices have no list of each other's
  keys, and a tab runs the page that its gateway serves: a gateway that makes up the other
  devices, or the page, can read a device's rows and update. The light client in Python
  takes no part in private runs."""


def why_declined(privacy: Privacy, weighting: str, data: FederatedData) -> str | None:
    """Why a gateway declines a private run; None if devices can take part in it."""
    shared = {table: rows for table, rows in data.tables.items() if table not in data.local}
    grouped = [table for table in shared if data.groups.get(table)]
    if privacy.mechanism is not None:
        return (
            f"The run's privacy is {privacy.privacy}, but devices add no noise to secure sums: a "
            "gateway takes part in runs with privacy clear or index."
        )
    if weighting != "uniform":
        return (
            f"The run's weighting is {weighting}, but in a private run devices tell nobody how "
            "many examples they have: choose weighting uniform."
        )
    if grouped and privacy.min_contributors > 1:
        return (
            f"The rows of {grouped[0]} are in groups, and devices do not know the rule by which "
            "such rows open together: a gateway takes part with data without groups, or with "
            "min-contributors 1."
        )
    if (rows := sum(shared.values())) > MOST_ROWS:
        return (
            f"The shared tables have {rows} rows, and a device sends a word for each to find a "
            f"union: a gateway takes part in private runs with up to {MOST_ROWS} rows."
        )
    return None


def explain_devices(secret_sums: bool, declined: str | None = None) -> list[str]:
    """Who learns what of a device. secret_sums: whether the run hides single updates.

    declined: why a gateway takes no part in the run, if it does not.
    """
    if declined:
        return [TITLE, "  A gateway declines this run.", f"  {declined}"]
    return (TITLE + (PRIVATE if secret_sums else CLEAR)).splitlines()
