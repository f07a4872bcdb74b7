"""Gym's `LineageResolver` over session folders: which captured call a request continues. Imported by Gym only.

The matching is Gym's own; this gives it the entries that `store` has written, whichever process wrote them.
"""

from pathlib import Path
from typing import Any

from nemo_gym.token_id_capture.lineage import IncrementalLineageStore
from nemo_gym.token_id_capture.records import TokenEntry

from polar_mitm.capture.gym.entries import to_fields
from polar_mitm.capture.gym.store import Store
from polar_mitm.capture.reader import read_calls


class Lineage(IncrementalLineageStore):  # type: ignore[misc]
    def __init__(self, folder: str | Path, **cache: int) -> None:
        super().__init__(**cache)
        self._store = Store(folder)

    def _fetch_new_entries(self, rollout_id: str, cursor: int | None) -> tuple[list[tuple[Any, int]], int]:
        """The entries after the first `cursor`, each with its number among all."""
        entries = self._entries(rollout_id)
        if cursor is not None and cursor > len(entries):
            raise IncrementalLineageStore.CursorReset
        return [(entries[number], number) for number in range(cursor or 0, len(entries))], len(entries)

    def _load_entry(self, rollout_id: str, ref: int) -> Any:
        return self._entries(rollout_id)[ref]

    def _load_entries(self, rollout_id: str, refs: list[int]) -> list[Any]:
        entries = self._entries(rollout_id)
        return [entries[ref] for ref in refs]

    def _entries(self, rollout_id: str) -> list[Any]:
        try:
            calls = {call.identity.call_id: call for call in read_calls(self._store.session(rollout_id).calls)}
        except FileNotFoundError:
            return []
        return [
            TokenEntry.model_validate(fields)
            for fields in (to_fields(call, calls) for call in calls.values())
            if fields is not None
        ]
