"""The world as users meet it: their actors on one node, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from node.actor import Actor, Terminated, on
from node.errors import SettingsError
from node.messages import Ask, message
from node.ref import ActorRef
from node.settings import Settings
from node.system import ActorSystem
from node.testkit.checkers import StepLog, TwoOnlyWhileViewsDiffer, check_one_view
from node.testkit.subject import Subject, Toil, Work
from node.testkit.timeline import WorldError
from node.testkit.world import World
from tests.node.testkit.bare import run_script


@message("tests.testkit.remind-in")
class RemindIn:
    delay_s: float


@message("tests.testkit.reminded")
class Reminded:
    pass


@message("tests.testkit.pending")
class Pending(Ask[int]):
    pass


class Reminder(Actor):
    """Tells `listener` when a delay is over."""

    def __init__(self, listener: ActorRef[Reminded]) -> None:
        self.listener = listener
        self.pending = 0

    @on(RemindIn)
    def remind_in(self, order: RemindIn) -> None:
        self.pending += 1
        self.context.timers.once(self.pending, order.delay_s, Reminded())

    @on(Reminded)
    def due(self, reminded: Reminded) -> None:
        self.pending -= 1
        self.listener.tell(reminded)

    @on(Pending)
    def how_many(self, _: Pending) -> int:
        return self.pending


def test_reminder_comes_after_an_hour() -> None:
    """The snippet of the API page, as users write it."""
    with World(seed=1) as world:
        probe = world.probe()
        reminder = world.spawn(Reminder, probe.ref)
        reminder.tell(RemindIn(3600.0))
        world.run_for(s=3599)
        assert probe.messages == []
        world.run_for(s=2)
        assert probe.messages == [Reminded()]
        assert world.run(reminder.ask(Pending())) == 0


def test_a_probe_expects_message_by_message() -> None:
    with World(seed=1) as world:
        probe = world.probe()
        reminder = world.spawn(Reminder, probe.ref, name="reminder")
        for delay_s in (1.0, 2.0, 30.0):
            reminder.tell(RemindIn(delay_s))
        assert probe.expect(Reminded) == Reminded()
        assert world.now == 1.0
        assert probe.expect(Reminded()) == Reminded()
        probe.expect_none(within_s=27.9)
        with pytest.raises(WorldError, match=r"expected no message .* Reminded\(\) came, at 30\."):
            probe.expect_none(within_s=1.0)
        assert world.now == 30.0
        with pytest.raises(WorldError, match=r"expected a RemindIn, and Reminded\(\) came"):
            probe.expect(RemindIn)
        assert probe.expect(Reminded) == Reminded()
        with pytest.raises(WorldError, match=r"expected a Reminded within 5 s, and nothing came"):
            probe.expect(Reminded)
        assert len(probe.messages) == 3


class Clerk(Actor):
    """Asks `desk` and tells it; what comes back goes to `listener`."""

    def __init__(self, desk: ActorRef[object], listener: ActorRef[object]) -> None:
        self.desk = desk
        self.listener = listener

    @on(RemindIn)
    async def ask(self, order: RemindIn) -> None:
        self.listener.tell(await self.desk.ask(Pending(), timeout_s=order.delay_s))

    @on(Reminded)
    def pass_on(self, reminded: Reminded) -> None:
        self.desk.tell(reminded, sender=self.context.self)

    @on(int)
    def fail(self, number: int) -> None:
        raise ValueError(f"no {number}")


def test_a_probe_replies_to_asks_and_to_senders() -> None:
    """It takes further messages meanwhile, and the answer may come late."""
    with World(seed=1) as world:
        desk, listener = world.probe("desk"), world.probe("listener")
        first = world.spawn(Clerk, desk.ref, listener.ref)
        second = world.spawn(Clerk, desk.ref, listener.ref)
        for clerk in (first, second):
            clerk.tell(RemindIn(60.0))
        desk.expect(Pending())
        desk.expect(Pending())
        world.run_for(s=50.0)
        desk.reply(2)
        assert listener.expect(int) == 2
        with pytest.raises(WorldError, match=r"/user/desk has replied to Pending\(\) already"):
            desk.reply(3)
        world.run_for(s=20.0)
        assert [failure.type_name for failure in world.failures] == ["AskTimeoutError"]
        second.tell(Reminded())
        desk.expect(Reminded)
        desk.reply(Reminded())
        assert desk.expect(Reminded) == Reminded()
        desk.ref.tell(Reminded())
        desk.expect(Reminded)
        with pytest.raises(WorldError, match="told without sender=, and is no Ask"):
            desk.reply(Reminded())
        with pytest.raises(
            WorldError, match=r"/user/listener .* has replied|/user/listener cannot"
        ):
            listener.reply(1)
        with pytest.raises(WorldError, match=r"call expect\(\) first"):
            world.probe().reply(1)


def test_a_failed_expectation_tells_what_came_and_what_went_wrong() -> None:
    with World(seed=1) as world:
        probe = world.probe("probe")
        clerk = world.spawn(Clerk, probe.ref, probe.ref, name="clerk")
        clerk.tell(Reminded())
        probe.expect(Reminded)
        clerk.tell(7)
        world.stop(clerk)
        world.run_for(s=1.0)
        clerk.tell(Reminded())
        with pytest.raises(WorldError) as caught:
            probe.expect(Reminded(), within_s=2.0)
        lines = str(caught.value).splitlines()
        assert lines[:7] == [
            "/user/probe expected Reminded() within 2 s, and nothing came (at 3.000000 virtual s)",
            "  it had accepted:",
            "    0.000000 s: Reminded()",
            "  dead letters:",
            "    Reminded() to local:0/user/clerk: the actor is stopped or stopping",
            "  actors failed:",
            "    /user/clerk, int: ValueError: no 7 (restart)",
        ]
        assert lines[7] == "the last steps:"


def test_the_world_keeps_dead_letters_and_failures_of_all_nodes() -> None:
    with World(seed=1, nodes="a b") as world:
        world.until_all_up()
        clerk = world.spawn(Clerk, None, None, name="clerk", mailbox_max=2, node="b")
        for number in (1, 2, 3):
            clerk.tell(number)
        world["a"].system.resolve("/user/nobody").tell(Reminded())
        world.run_for(s=1.0)
        assert [(letter.message, letter.why.name) for letter in world.dead_letters] == [
            (3, "MAILBOX_FULL"),
            (Reminded(), "NO_ACTOR"),
        ]
        assert [failure.text for failure in world.failures] == ["no 1", "no 2"]
        assert [letter.recipient for letter in world.dead_letters] == [
            f"{world['b'].address}/user/clerk",
            f"{world['a'].address}/user/nobody",
        ]


def test_a_probe_watches_actors_end() -> None:
    with World(seed=1) as world:
        probe = world.probe()
        reminder = world.spawn(Reminder, probe.ref)
        probe.watch(reminder)
        world.run_for(s=1.0)
        world["a"].system.stop(reminder)
        assert probe.expect(Terminated).ref == reminder


def test_the_subject_writes_down_every_kind_of_step() -> None:
    with World(seed=1) as world:
        log = StepLog(world)
        subject = world.spawn(Subject, log)
        assert world.run(subject.ask(Work())) == 1
        assert world.run(subject.ask(Toil(5, 0.5))) == 1
        world.run_for(s=3.0)
        assert {step.kind for step in log.steps} == {"start", "work", "resume", "tick", "child"}
        resumes = [step.at_s for step in log.steps if step.kind == "resume"]
        assert resumes == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])
        assert [repr(instance) for instance in log.running()] == ["subject #1 on a"]
        world["a"].system.stop(subject)
        world.run_for(s=1.0)
        assert log.steps[-1].kind == "stop"
        assert log.running() == []


def test_setup_is_called_with_the_system_of_each_start() -> None:
    made: list[ActorRef[Reminded]] = []

    async def setup(system: object) -> None:
        await asyncio.sleep(1.0)
        assert world["a"].system is system
        made.append(world["a"].system.spawn(Reminder, None, name="r"))

    with World(seed=1, setup=setup) as world:
        world.run_for(s=2.0)
        assert [ref.path for ref in made] == ["/user/r"]
        world.restart("a")
        world.run_for(s=2.0)
        assert len(made) == 2
        world.crash("a")
        with pytest.raises(WorldError, match="does not run"):
            world.spawn(Reminder, None)


def test_a_node_that_leaves_ends_its_process() -> None:
    with World(seed=1) as world:
        log = StepLog(world)
        world.spawn(Subject, log)
        world.run_for(s=1.0)
        ended = world.leave("a")
        assert ended.exit_code == 0
        assert not world["a"].running
        assert log.steps[-1].kind == "stop"
        assert world["a"].ended is ended


def test_a_failing_test_is_told_seed_and_steps() -> None:
    def fail() -> None:
        with World(seed=77) as world:
            world.probe()
            world.run_for(s=1.0)
            assert world.now == 2.0

    with pytest.raises(AssertionError) as caught:
        fail()
    (note,) = caught.value.__notes__
    assert note.startswith("world of seed 77 (at 1.000000 virtual s)")
    assert "step" in note


def test_one_seed_gives_one_trace() -> None:
    def run(seed: int) -> str:
        with World(seed=seed) as world:
            probe = world.probe()
            world.spawn(Reminder, probe.ref).tell(RemindIn(world.rng.random()))
            world.run_for(s=2.0)
            return world.trace_hash()

    assert run(3) == run(3)
    assert run(3) != run(4)


# -- clusters


def _counting(nodes: int | str, *, seed: int = 5, one_host: bool = False) -> tuple[World, StepLog]:
    """A cluster in which every node is ready to host the singleton `subject`."""

    def setup(system: ActorSystem) -> None:
        system.cluster.singleton.start(type_name="subject", actor=Subject, args=(log,))

    world = World(seed, nodes, one_host=one_host, setup=setup)
    log = StepLog(world)
    TwoOnlyWhileViewsDiffer().attach(world, log, "subject")
    return world, log


def _host(world: World, log: StepLog) -> str:
    world.run_until(lambda: len(log.running()) == 1)
    return log.running()[0].node


def test_five_nodes_become_one_cluster_with_one_instance() -> None:
    world, log = _counting(5)
    with world:
        world.until_all_up()
        host = _host(world, log)
        world.run_for(s=30.0)
        check_one_view(world)
        assert [instance.node for instance in log.running()] == [host]
        assert log.overlaps() == []


def test_a_proven_crash_moves_the_instance_at_once() -> None:
    world, log = _counting(3, one_host=True)
    with world:
        world.until_all_up()
        host = _host(world, log)
        crashed_at = world.now
        world.crash(host)
        assert _host(world, log) != host
        assert world.now - crashed_at < 0.1
        world.until_all_up()
        world.restart(host)
        world.until_all_up()
        assert len(world.running) == 3


def test_a_leave_moves_the_instance_and_ends_the_process_with_a_reason() -> None:
    world, log = _counting("x y z")
    with world:
        world.until_all_up()
        host = _host(world, log)
        ended = world.leave(host)
        assert ended.exit_code == 0
        assert world[host].ended is ended
        assert _host(world, log) != host
        assert log.overlaps() == []


def test_every_node_has_its_own_settings_and_actors_of_others_answer() -> None:
    with World(2, "a b c d", settings=Settings(roles=("web",)), seeds="b") as world:
        world.until_all_up()
        assert {world.settings_of(node).name for node in world} == set("abcd")
        assert {world.settings_of(node).seeds for node in world} == {("10.0.0.2:25520",)}
        view = world["c"].view
        assert view is not None
        assert {member.roles for member in view.members} == {("web",)}
        world.spawn(Reminder, None, name="far", node="d")
        far = world["a"].system.resolve(f"{world['d'].address}/user/far")
        assert world.run(far.ask(Pending()), node="a") == 0


def test_not_all_up_says_what_is_amiss() -> None:
    with World(1, "a b c") as world:
        world.partition("a b | c")
        with pytest.raises(WorldError, match=r"not all up within 20\.0 s:\n  "):
            world.until_all_up(within_s=20.0)


def test_a_node_that_is_absent_or_cannot_start_is_told_apart() -> None:
    with World(1, "a b c", absent="c") as world:
        world.until_all_up()
        with pytest.raises(WorldError, match="c does not run, start it first"):
            world.system("c")
        world.start("c")
        world.until_all_up()
        assert world.system("c") is world["c"].system

    def refuse(_system: ActorSystem) -> None:
        raise SettingsError("not like this")

    with World(1, "a b", setup=refuse) as world:
        with pytest.raises(WorldError, match="b did not start: not like this"):
            world.system("b")
        assert isinstance(world["b"].error, SettingsError)


CLUSTER = """
import logging
from tests.node.testkit.test_world import _counting, _host

logging.disable(logging.CRITICAL)
world, log = _counting(5, seed={seed}, one_host={one_host})
with world:
    world.until_all_up()
    world.crash(_host(world, log))
    world.run_until(lambda: len(log.running()) == 1)
    world.partition("a b | c d e")
    world.run_for(s=20.0)
    world.heal_all()
    world.pause(world.running[0], s=3.0)
    world.run_for(s=20.0)
    print(world.trace_hash(), len(log.steps), world.network.frames_delivered)
"""


@pytest.mark.parametrize("one_host", [False, True])
def test_a_cluster_under_faults_has_one_trace_per_seed_in_any_process(one_host: bool) -> None:
    def run(seed: int, hash_seed: str) -> str:
        return run_script(CLUSTER.format(seed=seed, one_host=one_host), hash_seed)

    first = run(1, "0")
    assert run(1, "4242") == first
    assert run(2, "0") != first
