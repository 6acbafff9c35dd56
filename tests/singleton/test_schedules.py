"""Schedules that broke other clusters, or an earlier draft of this one.

Guards S4, S5, S6 (as far as level none goes), I-26, I-34 to I-38, I-40, I-48; the names of the
schedules are those of the design review (F…) and of the collected bugs (BC-…).
"""

from __future__ import annotations

from typing import Any

import pytest

from gossip.effects import Paused
from gossip.membership import Cause, Status
from singleton.election import hosted_type
from singleton.events import LeaveStarted, StartRequested, StopRequested
from singleton.settings import SingletonSettings
from tests.singleton.troupe import Troupe, altered
from tests.singleton.worlds import TYPE, A, B, C, member, node


def with_a_hosting(names: str = "a b c", *, stop_s: float = 0.5) -> Troupe:
    """The oldest hosts; a second later nothing is under way."""
    troupe = Troupe(names, stop_s=stop_s)
    troupe.show(names)
    troupe.run_for(1.0)
    assert troupe.running == "a"
    assert set(troupe.hosts.values()) == {A}
    return troupe


def leave(troupe: Troupe, name: str) -> None:
    troupe.tell(name, LeaveStarted())


# F4: two candidates


@pytest.mark.parametrize("reversed_start", [False, True])
def test_two_candidates_that_ask_each_other(reversed_start: bool) -> None:
    """F4: both believe they are elected, neither runs anything, each asks the other."""
    troupe = Troupe("a b", members=[member("a"), member("b")])
    order = [("a", "a b", ""), ("b", "a b", "a")]
    for name, members, unreachable in reversed(order) if reversed_start else order:
        troupe.show(name, members, unreachable=unreachable)
    troupe.run_for(5.0)
    assert troupe.running == "a"
    assert len(troupe.tenures) == 1
    assert troupe.warnings == []


def test_start_called_on_all_nodes_before_their_records_show_it() -> None:
    """F4: each sees only itself host the type, so each believes itself elected."""
    troupe = Troupe("a b c")
    for name in "abc":
        others = [altered(each, types=()) for each in "abc" if each != name]
        troupe.show(name, changed=others)
    troupe.run_for(0.2)
    assert troupe.running == "a"
    troupe.show("a b c")
    troupe.run_for(5.0)
    assert [tenure.name for tenure in troupe.tenures] == ["a"]
    assert set(troupe.hosts.values()) == {A}


def test_a_candidate_that_was_promised_to_keeps_its_promise() -> None:
    """F4: c answers the older b after voiding its round, and starts nothing on the old answers."""
    troupe = Troupe("a b c", delay_s=0.1)
    troupe.show("c", unreachable="a b")
    troupe.run_for(0.15)
    troupe.show("b", unreachable="a")
    troupe.show("a", changed=[altered("a", types=())])
    troupe.run_for(5.0)
    assert troupe.running == "b"
    assert len(troupe.tenures) == 1


# F5: downed, but reachable


def test_a_downed_host_that_still_runs_is_waited_for() -> None:
    """F5: `node down a` at b, before a has heard of it: a refuses, then stops, then says so."""
    troupe = with_a_hosting(stop_s=2.0)
    troupe.show("b c", changed=[altered("a", status=Status.DOWN, cause=Cause.DOWNED)])
    troupe.run_for(0.3)
    assert troupe.running == "a"
    assert "10.0.0.1:25520 refuses" in troupe.nodes["b"].explain(troupe.now)
    leave(troupe, "a")  # it heard the verdict: ordered end
    troupe.run_for(1.0)
    troupe.show("b c", "b c", gone={"a": Cause.DOWNED})
    assert "10.0.0.1:25520 is stopping its instance" in troupe.nodes["b"].explain(troupe.now)
    troupe.run_for(2.0)
    assert troupe.running == "b"
    assert troupe.overlap_s == 0.0
    assert troupe.warnings == []
    former, present = troupe.tenures
    assert present.started_at - former.ended_at <= 0.05


def test_a_downed_host_that_never_answers_is_hosted_over_with_a_warning() -> None:
    """F5, S5: an operator's word is no proof."""
    troupe = with_a_hosting()
    troupe.cut("a", "b c")
    troupe.show("b c", "b c", gone={"a": Cause.DOWNED})
    troupe.run_for(9.9)
    assert troupe.running == "a"
    troupe.run_for(0.2)
    assert troupe.running == "a b"
    assert troupe.warnings == [("b", (A,))]


# leaving


def test_a_graceful_move_takes_the_stop_and_about_a_round_trip() -> None:
    """BC-003: nobody's view says yet that a leaves, and no repetition is needed."""
    troupe = with_a_hosting(stop_s=0.4)
    leave(troupe, "a")
    troupe.run_for(1.0)
    former, present = troupe.tenures
    assert present.name == "b"
    assert former.ended_at - 1.0 == pytest.approx(0.4)
    assert 0 < present.began_at - former.ended_at <= 2 * troupe.delay_s
    assert troupe.released == {"a": former.ended_at}
    assert set(troupe.hosts.values()) == {B}


def test_a_graceful_move_of_an_instance_that_stops_at_once() -> None:
    """`leave_gap_ms`: the answers of the others are not there yet, so one round trip more."""
    troupe = with_a_hosting(stop_s=0.0)
    leave(troupe, "a")
    troupe.run_for(1.0)
    former, present = troupe.tenures
    assert 0 < present.started_at - former.ended_at <= 3 * troupe.delay_s + troupe.start_s


def test_a_lost_word_of_the_leaver_costs_a_gossip_round_not_the_timeout() -> None:
    """BC-003, I-39."""
    troupe = with_a_hosting(stop_s=0.4)
    troupe.cut("a", "b c")
    leave(troupe, "a")
    troupe.run_for(0.6)
    troupe.heal()
    troupe.show("b c", changed=[altered("a", status=Status.LEAVING)])
    troupe.run_for(0.1)
    assert troupe.running == "b"
    assert troupe.warnings == []


@pytest.mark.parametrize("order", ["a b c", "c b a", "b a c", "b c a"])
def test_several_oldest_leave_at_once(order: str) -> None:
    """F25, BC-001: nobody answers for another's instance; the fourth hosts when a has stopped."""
    troupe = with_a_hosting("a b c d", stop_s=5.0)
    for delay, name in enumerate(order.split()):
        troupe.at(0.02 * delay, leave, troupe, name)
    troupe.run_for(0.5)
    everybody = [altered(name, status=Status.LEAVING) for name in "abc"]
    troupe.show("a b c d", changed=everybody[1:])
    troupe.run_for(4.0)
    assert troupe.running == "a"
    troupe.run_for(1.0)
    troupe.show("a b c d", changed=everybody)
    troupe.run_for(1.0)
    assert [tenure.name for tenure in troupe.tenures] == ["a", "d"]
    assert troupe.overlap_s == 0.0
    assert set(troupe.released) == {"a", "b", "c"}
    assert set(troupe.hosts.values()) == {node("d")}


def test_the_successor_leaves_before_it_has_started() -> None:
    """F25: b was told first, and goes too."""
    troupe = with_a_hosting(stop_s=1.0)
    leave(troupe, "a")
    troupe.run_for(0.5)
    leave(troupe, "b")
    troupe.run_for(2.0)
    assert [tenure.name for tenure in troupe.tenures] == ["a", "c"]
    assert troupe.overlap_s == 0.0


def test_a_leaver_that_left_is_proof() -> None:
    """I-40: it stopped before it announced."""
    troupe = with_a_hosting(stop_s=0.1)
    troupe.cut("a", "b c")
    leave(troupe, "a")
    troupe.run_for(0.2)
    troupe.show("b c", "b c", gone={"a": Cause.LEFT})
    troupe.run_for(0.1)
    assert troupe.running == "b"
    assert troupe.warnings == []


def test_a_leaver_that_crashes_while_it_stops() -> None:
    troupe = with_a_hosting(stop_s=5.0)
    leave(troupe, "a")
    troupe.run_for(0.1)
    troupe.crash("a")
    troupe.show("b c", "b c", gone={"a": Cause.CRASHED})
    troupe.run_for(0.1)
    assert troupe.running == "b"


def test_the_oldest_leaves_while_a_partition_is_undecided() -> None:
    """BC-014 at level none: its end is bounded, and its successor waits for the other side."""
    troupe = with_a_hosting("a b c d e", stop_s=0.5)
    troupe.cut("a b", "c d e")
    troupe.show("a b", unreachable="c d e")
    troupe.show("c d e", unreachable="a b")
    troupe.run_for(5.0)
    leave(troupe, "a")
    troupe.run_for(1.0)
    assert "a" in troupe.released, "its shutdown goes on"
    assert troupe.running == ""
    troupe.run_for(6.0)
    assert troupe.running == "c", "silent since the cut"
    troupe.run_for(5.0)
    assert troupe.running == "b c"
    assert [name for name, _ in troupe.warnings] == ["c", "b"], "both halves host, and say so"


def test_the_user_stops_it_here_and_the_next_one_hosts() -> None:
    """I-60, I-61: stop concerns this node; start brings it back into the election."""
    troupe = with_a_hosting(stop_s=0.1)
    troupe.tell("a", StopRequested(TYPE))
    troupe.run_for(0.2)
    troupe.show("a b c", changed=[altered("a", types=())])
    assert troupe.running == "b"
    troupe.tell("a", StartRequested(TYPE, SingletonSettings()))
    troupe.show("a b c")
    troupe.run_for(5.0)
    assert troupe.running == "b", "a running host is not displaced"
    assert set(troupe.hosts.values()) == {B}
    assert troupe.overlap_s == 0.0


# crash, partition, pause


def test_a_proven_crash_moves_it_at_once() -> None:
    """BC-004, in both orders of the news."""
    for first_removed in (False, True):
        troupe = with_a_hosting()
        troupe.crash("a")
        if not first_removed:
            troupe.show("b c", unreachable="a")
            troupe.run_for(0.2)
            assert troupe.running == ""
        troupe.show("b c", "b c", gone={"a": Cause.CRASHED})
        troupe.run_for(0.1)
        assert troupe.running == "b"
        assert troupe.warnings == []


def test_an_unproven_crash_runs_the_timeout_and_is_named() -> None:
    """S5, I-36: even alone in its view a node waits for whom it knows (I-37, BC-006)."""
    troupe = with_a_hosting("a b")
    troupe.crash("a")
    troupe.show("b", unreachable="a")
    troupe.run_for(9.9)
    assert troupe.running == ""
    assert "hosts anyway in 0.1 s, uniqueness not proven" in troupe.nodes["b"].explain(troupe.now)
    troupe.run_for(0.2)
    assert troupe.running == "b"
    assert troupe.warnings == [("b", (A,))]


def test_both_halves_host_after_the_timeout_and_the_younger_stands_down_after_the_heal() -> None:
    """S4, BC-011 at level none: shown, not hidden; over within 3 s."""
    troupe = with_a_hosting("a b c d e")
    troupe.cut("a b", "c d e")
    troupe.show("a b", unreachable="c d e")
    troupe.show("c d e", unreachable="a b")
    troupe.run_for(30.0)
    assert troupe.running == "a c"
    (warned,) = troupe.warnings
    assert warned == ("c", (A, B)), "a never had to ask: its instance ran all along"
    assert troupe.hosts["d"] == C
    troupe.heal()
    for name in "edcba":
        troupe.at(0.1, troupe.show, name)
    troupe.run_for(1.0)
    assert troupe.running == "a"
    assert set(troupe.hosts.values()) == {A}
    assert len(troupe.tenures) == 2


def test_the_younger_host_stands_down_although_the_first_notices_are_lost() -> None:
    """Level none: within 3 s, by the notices that are repeated while an older member is there."""
    troupe = with_a_hosting("a b", stop_s=0.1)
    troupe.cut("a", "b")
    troupe.show("a", unreachable="b")
    troupe.show("b", unreachable="a")
    troupe.run_for(15.0)
    assert troupe.running == "a b"
    troupe.show("a b")  # reachable again by everybody's word, but the next frames are lost
    troupe.run_for(0.9)
    troupe.heal()
    troupe.run_for(2.0)
    assert troupe.running == "a"


def test_the_younger_host_keeps_it_when_the_older_member_comes_back_without_an_instance() -> None:
    """A running host is not displaced: a was never host, it only was away."""
    troupe = Troupe("a b c")
    troupe.show("b c", unreachable="a")
    troupe.cut("a", "b c")
    troupe.run_for(11.0)
    assert troupe.running == "b"
    troupe.heal()
    troupe.show("a b c")
    troupe.run_for(30.0)
    assert [tenure.name for tenure in troupe.tenures] == ["b"]
    assert set(troupe.hosts.values()) == {B}
    assert "is older but does not host" in troupe.nodes["b"].explain(troupe.now)


def test_a_younger_host_that_crashes_gives_way_to_the_older_member() -> None:
    troupe = Troupe("a b c")
    troupe.show("b c", unreachable="a")
    troupe.cut("a", "b c")
    troupe.run_for(11.0)
    troupe.heal()
    troupe.show("a b c")
    troupe.run_for(5.0)
    troupe.crash("b")
    troupe.show("a c", "a c", gone={"b": Cause.CRASHED})
    troupe.run_for(0.1)
    assert troupe.running == "a"


def test_a_paused_host_that_was_hosted_over_finds_the_other_at_once() -> None:
    """The older of two goes on; here it is the one that slept."""
    troupe = with_a_hosting("a b c", stop_s=0.1)
    troupe.cut("a", "b c")  # it sleeps: nothing goes in or out
    troupe.show("b c", unreachable="a")
    troupe.run_for(12.0)
    assert troupe.running == "a b"
    troupe.heal()
    troupe.tell("a", Paused(12.0))
    troupe.show("b c")
    troupe.run_for(0.2)
    assert troupe.running == "a"


def test_a_short_pause_of_the_host_moves_nothing() -> None:
    """A pause of 3 s: suspected, unreachable for a while, back; its instance ran all along."""
    troupe = with_a_hosting()
    troupe.cut("a", "b c")
    troupe.run_for(2.0)
    troupe.show("b c", unreachable="a")
    troupe.run_for(1.0)
    troupe.heal()
    troupe.tell("a", Paused(3.0))
    troupe.show("a b c")
    troupe.run_for(15.0)
    assert len(troupe.tenures) == 1
    assert set(troupe.hosts.values()) == {A}


def test_one_sided_loss_moves_nothing() -> None:
    """I-36: b holds a for unreachable, but a answers."""
    troupe = with_a_hosting()
    troupe.show("b", unreachable="a")
    troupe.run_for(60.0)
    assert len(troupe.tenures) == 1
    assert "10.0.0.1:25520 refuses: its instance runs here" in troupe.nodes["b"].explain(60.0)
    assert troupe.hosts["c"] == A


def test_flapping_links_end_in_one_host() -> None:
    """BC-013: each wait is bound to a process and ends by itself."""
    troupe = with_a_hosting("a b c", stop_s=0.05)
    for flap in range(20):
        troupe.at(0.7 * flap, troupe.show, "b c", unreachable="a" if flap % 2 else "")
        troupe.at(0.7 * flap, troupe.cut, "a", "b" if flap % 3 else "c")
        troupe.at(0.7 * flap + 0.4, troupe.heal)
    troupe.run_for(20.0)
    troupe.heal()
    troupe.show("a b c")
    troupe.run_for(3.0)
    assert troupe.running == "a"
    assert len(troupe.tenures) == 1
    assert set(troupe.hosts.values()) == {A}


# newcomers and roles


def test_a_member_that_comes_up_moves_nothing() -> None:
    """BC-005, BC-009, I-34: whatever its address, a newcomer is the youngest."""
    x: dict[str, Any] = {"roles": ("x",), "types": (hosted_type(TYPE, "x"),)}
    settings = SingletonSettings(role="x", terms="x")
    first, host, late = member("a", 1, types=()), member("c", 2, **x), member("b", 3, **x)
    troupe = Troupe("a b c", settings=settings, members=[first, host, late])
    troupe.show("a c", "a c")
    troupe.run_for(1.0)
    assert troupe.running == "c"
    troupe.show("a b c")
    troupe.run_for(30.0)
    assert [tenure.name for tenure in troupe.tenures] == ["c"]
    assert set(troupe.hosts.values()) == {C}, "managers and proxies name one host"
    leave(troupe, "c")
    troupe.run_for(1.0)
    assert troupe.running == "b"
    assert set(troupe.hosts.values()) == {B}


def test_the_oldest_starts_the_type_late() -> None:
    """F7, I-34: the older newcomer asks, is refused, and sends its messages to the host."""
    troupe = Troupe("a b c")
    troupe.show("a b c", changed=[altered("a", types=())])
    troupe.run_for(1.0)
    assert troupe.running == "b"
    troupe.show("a b c")
    troupe.run_for(30.0)
    assert [tenure.name for tenure in troupe.tenures] == ["b"]
    assert set(troupe.hosts.values()) == {B}
    leave(troupe, "b")
    troupe.run_for(1.0)
    assert troupe.running == "a"
    assert troupe.overlap_s == 0.0


def test_an_instance_that_dies_stays_where_it_was() -> None:
    """I-31: also on a host that is not the oldest."""
    troupe = Troupe("a b")
    troupe.show("a b", changed=[altered("a", types=())])
    troupe.run_for(0.5)
    troupe.show("a b")
    troupe.run_for(1.0)
    troupe.end_instance("b")
    troupe.run_for(3.0)
    assert [tenure.name for tenure in troupe.tenures] == ["b", "b"]


def test_a_restarted_process_is_another_member() -> None:
    """BC-013: what the old process was asked, promised or said does not concern the new one."""
    troupe = with_a_hosting("a b")
    troupe.crash("a")
    newcomer = member("A", 11)
    troupe._members[newcomer.id] = newcomer
    troupe.show("b", "A b", gone={"a": Cause.SUPERSEDED})
    troupe.run_for(9.0)
    assert troupe.running == "", "superseded is no proof"
    troupe.show("b", "A b", gone={"a": Cause.CRASHED})
    troupe.run_for(11.0)
    assert troupe.running == "b"
    assert troupe.warnings == [("b", (newcomer.id,))], "the new process has no manager here"
