"""A session that was closed before its gateway took it holds no place at the server any more."""

from functools import partial
from pathlib import Path

from polar_mitm.client.models import StageTimes, TaskRequest
from polar_mitm.client.nodes import Report
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.server.settings import Settings
from polar_mitm.rollout.store.ends import End
from polar_mitm.rollout.store.entries import Effects
from polar_mitm.rollout.store.reports import assign, lose, take_back, take_report

TOKEN = "a-token-of-the-tests"
SCENARIO = {"instruction": "Say hello.", "evaluator": {"type": "session_completed"}}


async def test_taking_back_what_an_earlier_attempt_made_needless_lets_go_of_it(tmp_path: Path) -> None:
    settings = Settings(
        token=TOKEN,
        database=f"sqlite:///{tmp_path / 'rollout.db'}",
        files=str(tmp_path / "files"),
        callback_secret=TOKEN,
    )
    async with Service(settings) as service:
        await service.submit(TaskRequest.model_validate({"scenario": SCENARIO}), None)
        [first] = service.board.line._waiting.values()
        await service.writer.write(partial(assign, picks=[(first, "gw", "i1")]))
        lost = End("lost", "its gateway is gone", "assigned", fault=True)
        effects: Effects = await service.writer.write(partial(lose, session_ids=[first.session_id], how=lost))
        [second] = effects.queued
        await service.writer.write(partial(assign, picks=[(second, "gw", "i2")]))
        report = Report(
            session_id=first.session_id,
            incarnation="i1",
            status="completed",
            ended_in="grading",
            reward=1.0,
            times=StageTimes(),
        )
        taken = await service.writer.write(partial(take_report, report=report))
        assert (taken.outcome, taken.effects.cancel) == ("counts", [second.session_id])
        back = await service.writer.write(partial(take_back, session_id=second.session_id))
        assert (back.over, back.queued) == ([second.session_id], [])
