"""Who sees whom unreachable: one record per observer and subject, never one verdict.

Decides how two versions of a record merge and which records count. Does not decide when one is
made: that is `gossip.probing` and `gossip.evidence`. Called by `gossip.table`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import NodeId

HOLDERS_MIN = 2
"""One alone is as likely to be the one whose network is bad."""


@dataclass(frozen=True, slots=True)
class Record:
    """`observer` holds `subject`, at this incarnation, unreachable or reachable again.

    Only the observer writes a new `version`. A record is void once the subject shows a higher
    incarnation: it lives, and has answered the accusation. Not so when two observers *hold* it: it
    comes and goes, or hardly answers, so that its word that it lives is no news.
    """

    observer: NodeId
    subject: NodeId
    unreachable: bool
    version: int
    subject_incarnation: int
    held: bool = False

    @property
    def key(self) -> tuple[NodeId, NodeId]:
        """What the record is about."""
        return (self.observer, self.subject)


def merge_records(ours: Record, theirs: Record) -> Record:
    """The newer of two records about one pair; a tie (only a liar makes one) by content."""
    return max(
        ours,
        theirs,
        key=lambda record: (
            record.version,
            record.unreachable,
            record.subject_incarnation,
            record.held,
        ),
    )
