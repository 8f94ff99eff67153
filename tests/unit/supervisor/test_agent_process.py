"""The supervisor's side of a node agent: orders that it sends, and reports that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankroom.supervisor.processes.agent_process import AgentProcess
from rankroom.system.polling import poll_until

Start = Callable[[str], AgentProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a shell script in place of an agent."""
    made: list[AgentProcess] = []

    def begin(script: str) -> AgentProcess:
        argv = ["sh", "-c", script]
        log = tmp_path / "agent.log"
        agent = AgentProcess("n1", argv, dict(os.environ), str(tmp_path), log, lambda: None)
        made.append(agent)
        return agent

    yield begin
    for agent in made:
        agent.give_up()
        agent.wait(0)


def test_ending_a_rank_of_the_previous_agent_does_nothing(start: Start):
    agent = start("cat > /dev/null")
    agent.start_rank(4, 2)
    agent.end_ranks([5], 5.0)
    assert not agent.is_over


def test_launcher_output_between_agent_reports_is_logged(start: Start, tmp_path: Path):
    agent = start("""echo 4; echo null; echo module loaded; echo '{"ready": true, "host": "n1"}'""")
    assert poll_until(lambda: agent.is_over, 10, 0.01)
    assert agent.place["host"] == "n1"
    assert (tmp_path / "agent.log").read_text() == "4\nnull\nmodule loaded\n"


def test_an_agent_log_that_cannot_be_written_ends_no_rank(start: Start):
    agent = start("""read go; echo module loaded; echo '{"ready": true}'; cat > /dev/null""")
    agent.log = Path("/dev/full")
    rank = agent.start_rank(0, 1)
    assert poll_until(lambda: agent.place, 10, 0.01)
    assert not agent.is_over and not rank.ended


def test_reports_after_a_malformed_one_are_still_read(start: Start, tmp_path: Path):
    agent = start(
        """read go; echo '{"signalled": 7}'; echo '{"rank": 0}'; echo '{"ready": true}'; cat"""
    )
    rank = agent.start_rank(0, 1)
    assert poll_until(lambda: agent.place, 10, 0.01)
    assert not agent.is_over and not rank.ended
    assert (tmp_path / "agent.log").read_text() == '{"rank": 0}\n'


def test_a_rank_that_does_not_end_does_not_end_the_others(start: Start):
    answers = (
        """while read order; do case $order in *signal*) echo '{"signalled": 1}';; esac; done"""
    )
    agent = start(answers)
    ranks = [agent.start_rank(rank, 1) for rank in (4, 5)]
    agent.end_ranks([5], 1.0)
    assert not agent.is_over and not any(rank.ended for rank in ranks)
    assert agent.process.poll() is None


def test_an_agent_that_does_not_answer_is_given_up(start: Start):
    agent = start("exec sleep 60")
    rank = agent.start_rank(4, 1)
    agent.end_ranks([4], 0.1)
    assert agent.is_over and rank.ended_with_agent


def test_a_load_request_to_an_ended_agent_returns_at_once(start: Start):
    agent = start("exit 0")
    assert poll_until(lambda: agent.is_over, 10, 0.01)
    assert agent.look().result(0) == {} and agent._looks == []
