"""The live view on a terminal, and the plain lines where there is none."""

import asyncio
import io
import os
import re
import signal
import threading
from types import SimpleNamespace

import pytest

from alphazero_llm_trainer import live
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.engine.protocol import EngineStats
from alphazero_llm_trainer.live import Progress, last_tree
from alphazero_llm_trainer.types import Cost


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self):
        return True


def test_a_bar_shows_rate_notes_and_lines(clock):
    out = Terminal()
    with Progress(out=out, clock=clock) as progress:
        progress.start(10, 4, "tree", "cell")
        clock.now += 2
        progress.advance(tokens=5)
        progress.note("last tree", last_tree("k/1", 12, 24, 3, 8, "tokens"))
        progress.note("reward", "1")
        progress.note("reward", "2 [bold]")  # text, not markup
        progress.say("a line that stays")
        progress.at(10)
    text = plain(out.getvalue())
    assert "cell: 10/10 trees, 3.0 trees/s, 5 tokens, 2 tokens/s" in text
    assert "last tree: k/1: 12 nodes, 24 simulations, 3 of 8 responses right, tokens" in text
    assert "a line that stays" in text
    assert text.rstrip().endswith("reward: 2 [bold]")  # the newest note of a name takes its place


def test_a_narrow_terminal_shows_all_of_a_line(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    with Progress(out=out, clock=clock) as progress:
        progress.start(10, doing="2 of 4, embedded, majority at 160 tokens")
        clock.now += 5
        progress.advance(5, tokens=700)
        progress.note("round", "a note that is longer than the terminal is wide, to its very end")
    text = " ".join(plain(out.getvalue()).split())
    assert "ETA 5 s, 700 tokens, 140 tokens/s" in text and "to its very end" in text


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def out():
    """No terminal."""
    return io.StringIO()


def test_ten_seconds_of_silence_are_one_line(clock, out):
    with Progress(out=out, clock=clock) as progress:
        progress.start(20, doing="searching")
        for second in range(1, 36):  # nothing is finished: one long question is being searched
            clock.now = 100.0 + second
            progress.beat()
        progress.advance(tokens=70)  # within ten seconds of a line: no other one
        clock.now += 5
        progress.beat()
    assert out.getvalue().splitlines() == [
        *[f"searching: 0/20 questions, {seconds} s so far" for seconds in (10, 20, 30)],
        "searching: 1/20 questions, 40.0 s/question, ETA 13 min, 70 tokens, 2 tokens/s",
    ]


def test_what_is_counted_within_a_stretch_has_its_own_pace(clock, out):
    with Progress(out=out, clock=clock) as progress:
        progress.start(40)
        clock.now += 100
        progress.advance(10, 1000)
        with progress.within(4, "update", "round 1/4"):
            clock.now += 30
            progress.advance()
        with progress.within(5, "problem", "validation"):
            assert progress.line() == "validation: 0/5 problems, 0 s so far"
        progress.advance(3, 50)
        assert (
            progress.line()
            == "13/40 questions, 10.0 s/question, ETA 4 min, 1,050 tokens, 8 tokens/s"
        )
    assert out.getvalue().splitlines() == [
        "10/40 questions, 10.0 s/question, ETA 5 min, 1,000 tokens, 10 tokens/s",
        "round 1/4: 1/4 updates, 30.0 s/update, ETA 90 s",
    ]


def test_tokens_are_counted_while_a_batch_is_under_way(clock, out):
    """The time left is that of the tokens that are missing, here and in what comes after."""
    sampled = 500
    with Progress(out=out, clock=clock) as progress:
        progress.meter = lambda: sampled
        progress.start(10, 2, tokens=200, rest=4000)
        clock.now += 10
        sampled += 400
        assert progress.line() == "2/10 questions, 10 s so far, 600 tokens, 40 tokens/s"
        progress.advance(2, 200)  # 100 each; the other 200 are of questions under way
        with progress.within(1, "update", "round 1"):
            sampled += 1000  # of none of the questions
        assert (
            progress.line() == "4/10 questions, 5.0 s/question, ETA 110 s, 600 tokens, 40 tokens/s"
        )


def test_long_prompts_are_counted_while_nothing_is_sampled_yet(clock, out):
    engine = SimpleNamespace(cost=Cost(), stats=EngineStats(computed_tokens=70))
    with Progress(out=out, clock=clock) as progress:
        progress.follow(engine)
        progress.start(10)
        clock.now += 10
        engine.stats.computed_tokens += 5000
        said = "0/10 questions, 10 s so far, 0 tokens, 5,000 with prompts, 500 tokens/s"
        assert progress.line() == said
        engine.cost.sampled_tokens, engine.stats.computed_tokens = 4000, 9070
        assert progress.line() == "0/10 questions, 10 s so far, 4,000 tokens, 400 tokens/s"


def test_no_time_left_is_told_where_more_is_drawn_than_was_expected(clock, out):
    sampled = 0
    with Progress(out=out, clock=clock) as progress:
        progress.meter = lambda: sampled
        progress.start(10)
        clock.now += 10
        sampled += 4000
        progress.advance(1, 100)  # the shortest one ends first
        assert progress.line() == "1/10 questions, 10.0 s/question, 4,000 tokens, 400 tokens/s"


def test_ctrl_c_says_what_is_waited_for(clock, out, capsys):
    # A shell in the background has none.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with Progress(out=out, clock=clock) as progress, live.Stop(progress) as stop:
        progress.start(8, unit="simulation", held="after the simulation in hand")
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        assert (
            capsys.readouterr().err
            == "\nending after the simulation in hand; Ctrl-C again ends at once\n"
        )
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_what_is_awaited_is_given_up_soon_after_a_stop():
    asked, ended = [False], []

    async def work(seconds):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "done"

    def stop():
        asked.append(len(asked) > 2)
        return asked[-1]

    assert live.run_until(lambda: False, work(0)) == "done"
    with pytest.raises(live.StoppedError):
        live.run_until(stop, work(60))
    assert ended == ["cancelled"]


def test_the_heart_beats_while_the_work_is_in_one_call(monkeypatch):
    monkeypatch.setattr(live, "TICK", 0.001)
    monkeypatch.setattr(live, "BEAT", 0.001)
    written = threading.Event()

    class Out(io.StringIO):
        def write(self, text):
            written.set()
            return super().write(text)

    def hearts():
        return [thread for thread in threading.enumerate() if thread.name == "heartbeat"]

    with Progress(out=Out()) as progress:
        progress.wait("one long call")
        assert written.wait(30.0)
        [thread] = hearts()
    thread.join(30.0)
    assert not thread.is_alive()
    for silent in (Progress(quiet=True), Progress(tell=print)):
        silent.wait("one long call")
        assert not hearts()


@pytest.mark.parametrize(
    "flags, said", [("", ["loading PyTorch and embedded"]), ("--json", []), ("-q", [])]
)
def test_loading_is_told_before_it_takes_seconds(flags, said, monkeypatch, capsys):
    import torch  # noqa: F401

    monkeypatch.setattr(live, "BEAT", 1e9)  # this machine may be slow
    arguments = ["search", "2 + 2?", *f"--model embedded --simulations 1 {flags}".split()]
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""  # it is there already
    load = Progress.load
    never = "never_imported"
    monkeypatch.setattr(Progress, "load", lambda shown, what, module: load(shown, what, never))
    assert main(arguments) == 0
    assert capsys.readouterr().err.splitlines() == said
