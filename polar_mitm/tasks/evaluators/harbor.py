"""`type: harbor`: the tests of a Harbor task folder, which leave rewards in files.

The scalar is the reward that is named `reward`, or else the mean of all. A test script that ends with another exit code
than 0 may have left a reward all the same; with `strict_exit` it has not.
"""

from typing import Literal

from polar_mitm.sandboxes import SandboxError
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished
from polar_mitm.tasks.evaluators.program import tail
from polar_mitm.tasks.harbor import reward
from polar_mitm.tasks.harbor.artifacts import ArtifactTooLarge
from polar_mitm.tasks.harbor.verify import verify


class Harbor(EvaluatorFields):
    type: Literal["harbor"]
    strict_exit: bool = False
    """Whether a reward counts only where the test script ended with exit code 0."""

    async def evaluate(self, finished: Finished) -> Evaluation:
        place = finished.harbor
        if place is None or finished.image is None:
            return Evaluation.failed("there is no Harbor task to run the tests of: the scenario names none")
        try:
            verified = await verify(place, finished.image, finished.session_id, finished.sandbox)
        except (SandboxError, OSError, ScenarioError, ArtifactTooLarge) as error:
            return Evaluation.failed(f"the tests could not be run: {error}")
        ended = verified.ended
        output = tail(verified.output)
        if ended.timed_out:
            timeout_s = place.setting.task.config.verifier.timeout_sec
            return Evaluation.failed(f"the tests took more than {timeout_s:g} s (verifier.timeout_sec)", output)
        if ended.over_limit and ended.code is None:
            return Evaluation.failed(f"the tests were ended: {ended.over_limit}", output)
        if self.strict_exit and ended.code != 0:
            return Evaluation.failed(f"the tests ended with exit code {ended.code}", output)
        try:
            return Evaluation.named(reward.read(place.logs / "verifier"), output)
        except reward.NoReward as error:
            return Evaluation.failed(f"{error}; they ended with exit code {ended.code}", output)
