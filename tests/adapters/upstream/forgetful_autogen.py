"""Our classes without what they are for: every chat starts empty, as with AutoGen's own.

A test that fails on our classes and passes on these fails only because it expects that.
"""

from __future__ import annotations

from scrubjay.adapters import _records
from scrubjay.adapters.autogen import _agent_part, _caller

_start_agent, _start_record = _agent_part.AgentPart.__init__, _records.SavedMessages.__init__


def _start_agent_empty(self, *args, **options):
    _start_agent(self, *args, **{**options, "resume": False})


def _start_record_empty(self, *args, **options):
    _start_record(self, *args, **{**options, "is_hidden": True})


_agent_part.AgentPart.__init__ = _start_agent_empty
_records.SavedMessages.__init__ = _start_record_empty
_caller._KNOWN.pop("_prepare_chat")  # the start of a chat clears, as other calls from inside AutoGen do
