"""Queues of jobs, which several threads add to."""

from __future__ import annotations

from collections import deque

from scrubjay.store.jobs import first_jobs


class Changing(deque):
    """Another thread adds to it while it is listed for the first time."""

    is_listed = False

    def __iter__(self):
        for each in super().__iter__():
            yield each
            if not self.is_listed:
                self.is_listed = True
                self.append("added")


def test_a_queue_that_changes_while_it_is_listed_is_listed_again():
    assert first_jobs(Changing(["first"]), 64) == ["first", "added"]
